//! The name space that a mount serves, which can be exchanged for another one between two requests: a remount opens the store anew,
//! for writing or for reading only.

use holdfast_naming::Namespace;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::time::Duration;

/// A name space in use by requests.
#[derive(Debug)]
pub struct Served(RwLock<Arc<Namespace>>);

impl Served {
    /// Serves `namespace` at first.
    pub fn new(namespace: Arc<Namespace>) -> Served {
        Served(RwLock::new(namespace))
    }

    /// What is served, kept as long as the guard is there. A request has one of them, so whoever waits for the exchange goes first.
    pub(crate) fn get(&self) -> RwLockReadGuard<'_, Arc<Namespace>> {
        self.0.read()
    }

    /// Waits until no request is under way, for `patience` at most, and serves what `make` gives; others wait meanwhile. Nothing if
    /// there was no such moment. Not to be called with a guard.
    ///
    /// # Errors
    /// That of `make`: then the same is served as before.
    pub fn exchange<E>(
        &self,
        patience: Duration,
        make: impl FnOnce() -> Result<Arc<Namespace>, E>,
    ) -> Option<Result<(), E>> {
        let mut served = self.0.try_write_for(patience)?;
        Some(make().map(|namespace| *served = namespace))
    }
}
