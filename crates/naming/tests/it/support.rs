//! A name space in memory for one test.

use crate::memory_cache::MemoryCache;
use holdfast_naming::check::{Report, check};
use holdfast_naming::{Access, Caller, Create, Enforce, Namespace, Options, Request};
use holdfast_object::{Attributes, ManualClock, ObjectCache, ObjectId};
use std::sync::Arc;

pub(crate) const ROOT: ObjectId = ObjectId::ROOT;
pub(crate) const READ_WRITE: Create = Create { mode: 0o644, exclusive: false, wanted: Access::READ, truncate: false };

pub(crate) struct World {
    pub(crate) cache: Arc<MemoryCache>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) space: Namespace,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Options::default())
    }

    pub(crate) fn enforcing() -> World {
        World::with(Options { enforce: Enforce::InNaming, ..Options::default() })
    }

    pub(crate) fn with(options: Options) -> World {
        let cache = MemoryCache::new(1 << 15);
        let clock = Arc::new(ManualClock::new(1_000_000_000_000, 1_000));
        let space = Namespace::new(cache.clone() as Arc<dyn ObjectCache>, clock.clone(), options);
        assert!(space.initialise(0, 0, 0o755).unwrap());
        assert!(!space.initialise(0, 0, 0o700).unwrap(), "the root is made once");
        World { cache, clock, space }
    }

    /// The same name space for others, who lock nothing that this one waits for.
    pub(crate) fn another(&self) -> Namespace {
        Namespace::new(self.cache.clone(), self.clock.clone(), Options::default())
    }

    /// A new file, held by id and not open.
    pub(crate) fn file(&self, parent: ObjectId, name: &str) -> ObjectId {
        let created = self.space.create(&Request::ROOT, parent, name.as_bytes(), &READ_WRITE).unwrap();
        assert!(created.new);
        self.space.release(created.found.id).unwrap();
        created.found.id
    }

    pub(crate) fn directory(&self, parent: ObjectId, name: &str) -> ObjectId {
        self.space.mkdir(&Request::ROOT, parent, name.as_bytes(), 0o755).unwrap().id
    }

    pub(crate) fn write(&self, id: ObjectId, offset: u64, bytes: &[u8]) {
        assert_eq!(self.space.write(&Request::ROOT, id, offset, bytes, false), Ok(bytes.len()));
    }

    /// All bytes, which both ways to read give.
    pub(crate) fn read_all(&self, id: ObjectId) -> Vec<u8> {
        let bytes = self.space.read(id, 0, usize::MAX).unwrap().to_vec();
        let mut copied = vec![0xaa; bytes.len() + 1];
        assert_eq!(self.space.read_into(id, 0, &mut copied), Ok(bytes.len()));
        assert_eq!(copied.pop(), Some(0xaa), "behind the end of the file");
        assert!(copied == bytes);
        bytes
    }

    pub(crate) fn attributes(&self, id: ObjectId) -> Attributes {
        self.space.getattr(id).unwrap()
    }

    pub(crate) fn names(&self, id: ObjectId) -> Vec<String> {
        let mut names: Vec<String> = self
            .space
            .entries(&Request::ROOT, id)
            .unwrap()
            .into_iter()
            .map(|(name, _, _)| String::from_utf8(name).unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn check(&self) -> Report {
        check(&*self.cache, self.cache.objects())
    }

    /// The whole name space is in order.
    pub(crate) fn assert_clean(&self) {
        let report = self.check();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

pub(crate) fn user(uid: u32, gid: u32, groups: &[u32]) -> Request {
    Request { id: None, caller: Caller { uid, gid, groups: groups.to_vec() }, umask: 0 }
}

/// What a read of a bad block is told by.
pub(crate) fn device_fault() -> holdfast_object::Error {
    holdfast_object::Error::Device(Box::new(holdfast_object::DeviceFault {
        device: "memory".into(),
        operation: "read".into(),
        address: Some(7),
        length: 4096,
        page: None,
        cause: "Input/output error".into(),
    }))
}
