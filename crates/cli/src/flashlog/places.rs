//! The places of devices, for those that go and come back: a device is named as its path.

use holdfast_block::flashlog::Source;
use holdfast_block::{Access, Device, FileDevice};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// What tells a file or disk from another at the same path.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Which {
    /// Device and number of the file; of a disk those of its node.
    file: (u64, u64),
    /// Number of the disk.
    disk: u64,
}

fn which(name: &str) -> Option<Which> {
    // As it is now: a link to a disk by its name goes with the disk.
    let found = Path::new(name).metadata().ok()?;
    Some(Which { file: (found.dev(), found.ino()), disk: found.rdev() })
}

/// Paths of devices in use.
#[derive(Default)]
pub(crate) struct Places(Mutex<BTreeMap<String, Which>>);

impl Source for Places {
    fn opened(&self, name: &str) {
        if let Some(which) = which(name) {
            self.0.lock().insert(name.into(), which);
        }
    }

    fn is_there(&self, name: &str) -> bool {
        // Of one that was not found in the first place nothing is known.
        self.0.lock().get(name).is_none_or(|known| which(name) == Some(*known))
    }

    fn reopen(&self, name: &str) -> Option<Arc<dyn Device>> {
        match FileDevice::open(Path::new(name), Access::ReadWrite) {
            Ok(device) => Some(Arc::new(device)),
            Err(error) => {
                tracing::debug!(%error, "it is not back yet");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_device_is_there_as_long_as_no_other_is_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let name = path.to_str().unwrap();
        let places = Places::default();
        fs::write(&path, [0; 8192]).unwrap();
        places.opened(name);
        assert!(places.is_there(name) && places.is_there("unknown"));
        fs::rename(&path, directory.path().join("away")).unwrap();
        assert!(!places.is_there(name) && places.reopen(name).is_none());
        fs::write(&path, [0; 8192]).unwrap();
        assert!(!places.is_there(name), "it is another file");
        fs::rename(directory.path().join("away"), &path).unwrap();
        assert!(places.is_there(name));
        assert_eq!(places.reopen(name).unwrap().blocks(), 2);
    }
}
