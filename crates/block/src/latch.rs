//! The latch that a failed write or flush closes for good.

use std::sync::{Arc, OnceLock};

use crate::{Error, Operation};

/// Remembers the first failure of a write or flush and refuses every later change with it.
///
/// A write that failed may have reached the medium in part, and after a failed flush nobody knows which of the earlier
/// writes are durable, so nothing that builds on either can be trusted (Rebello et al., "Can applications recover from
/// fsync failures?", ATC '20).
#[derive(Debug, Default)]
pub struct Latch(OnceLock<Arc<Error>>);

impl Latch {
    /// An open latch.
    pub fn new() -> Self {
        Latch::default()
    }

    /// The error that closed the latch.
    pub fn cause(&self) -> Option<&Error> {
        self.0.get().map(Arc::as_ref)
    }

    /// Refuses a request if the latch is closed.
    ///
    /// # Errors
    /// [`Error::Latched`] with the first cause.
    pub fn check(
        &self,
        device: &Arc<str>,
        operation: Operation,
        first: Option<u64>,
        length_bytes: u64,
    ) -> Result<(), Error> {
        match self.0.get() {
            None => Ok(()),
            Some(cause) => Err(Error::Latched {
                device: Arc::clone(device),
                operation,
                first,
                length_bytes,
                cause: Arc::clone(cause),
            }),
        }
    }

    /// Closes the latch, whatever the error. Says whether it was open.
    pub fn close(&self, error: &Error) -> bool {
        self.0.set(Arc::new(error.clone())).is_ok()
    }

    /// Passes a result on, and closes the latch if it is a failure of the device. The first failure wins.
    ///
    /// # Errors
    /// The error it was given.
    pub fn watch<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && error.is_device_failure()
        {
            let _ = self.0.set(Arc::new(error.clone()));
        }
        result
    }
}
