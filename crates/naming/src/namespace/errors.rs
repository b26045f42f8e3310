//! Bad pages of files, as seen through descriptors.

use super::Namespace;
use crate::error::Result;
use holdfast_object::{Durability, Epoch, ObjectId};

impl Namespace {
    /// What a descriptor of the file that is opened now has been told of bad pages: of all, except errors that nobody has been told of.
    pub fn errors_begin(&self, id: ObjectId) -> u64 {
        self.cache.errors_begin(id)
    }

    /// As [`Namespace::sync`], but tells nobody of bad pages: [`Namespace::errors_tell`] is to be called next.
    pub fn make_durable(&self, id: ObjectId, durability: Durability) -> Result<()> {
        self.inode(id)?;
        Ok(self.cache.make_durable(id, durability)?)
    }

    /// Tells a descriptor, which was told up to `seen`, of pages that went bad in memory since. They were not stored, and are bad until
    /// they are written again.
    ///
    /// # Errors
    /// That of the first one, once: `seen` goes up.
    pub fn errors_tell(&self, id: ObjectId, seen: &mut u64) -> Result<()> {
        match self.cache.errors_tell(id, *seen) {
            None => Ok(()),
            Some((now, error)) => {
                *seen = now;
                Err(error.into())
            }
        }
    }
    /// As [`Namespace::sync_all`], and tells of pages that went bad in memory, each time of those since the last.
    ///
    /// # Errors
    /// That of the first one: then everything else is durable.
    pub fn sync_all_and_tell(&self) -> Result<Epoch> {
        let epoch = self.cache.sync_all()?;
        self.cache.errors_tell_all().map_or(Ok(epoch), |error| Err(error.into()))
    }
}
