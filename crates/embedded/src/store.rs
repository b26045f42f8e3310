//! A store and its thread.

use crate::error::{Error, Result};
use crate::file::File;
use holdfast_block::{Access, Device, FileDevice};
use holdfast_cache::{Cache, Options as CacheOptions, Recovered};
use holdfast_integrity::Protection;
use holdfast_logical::Logical;
use holdfast_naming::permission::{Access as Wanted, Caller};
use holdfast_naming::{Create, ErrorKind, Namespace, Options as NamingOptions, Request};
use holdfast_object::{Arena, Clock, DomainId, ObjectId, PAGE_SIZE, SystemClock};
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Times that a store is opened whose metadata goes bad in memory meanwhile.
const OPENINGS_MAX: u32 = 4;
/// How often the thread looks whether there is something to do.
const WRITER_PERIOD: Duration = Duration::from_millis(250);
/// The least memory for pages, in bytes.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

/// How a store is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How contents of files are protected. Of a new store, what it has from then on; without it, `uniform`. Of one that is opened, for
    /// this time; without it, as the store says.
    pub protection: Option<Protection>,
    /// Memory for contents of files, in bytes: 4 MiB at least.
    pub memory_bytes: u64,
    /// Memory for the store's own metadata, in bytes.
    pub metadata_bytes: usize,
    /// Longest time that a change stays outside a recovery point, in milliseconds, unless it is synced.
    pub recovery_point_age_max_ms: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { protection: None, memory_bytes: 64 << 20, metadata_bytes: 16 << 20, recovery_point_age_max_ms: 5_000 }
    }
}

/// A store in this process. Dropped, it is closed; [`Store::close`] tells whether that went well.
#[derive(Debug)]
pub struct Store {
    layers: Arc<Layers>,
    shared: Arc<Shared>,
    lost: Vec<(ObjectId, u64)>,
    writer: Option<JoinHandle<()>>,
}

/// All layers, put together.
pub(crate) struct Layers {
    pub(crate) namespace: Namespace,
    /// Who asks: the user of this process. Whoever can open the store's file may do everything in it.
    pub(crate) request: Request,
    cache: Arc<Cache>,
    path: PathBuf,
    is_ending: AtomicBool,
}

/// What files have of their store: its layers until it is closed.
#[derive(Debug)]
pub(crate) struct Shared {
    path: PathBuf,
    layers: RwLock<Option<Arc<Layers>>>,
}

impl Shared {
    /// The store is not closed as long as this is held.
    pub(crate) fn layers(&self) -> Result<MappedRwLockReadGuard<'_, Arc<Layers>>> {
        RwLockReadGuard::try_map(self.layers.read(), Option::as_ref)
            .map_err(|_none| at(&self.path)("the store was closed"))
    }
}

impl Store {
    /// Makes a store in a new file of so many bytes, a multiple of 4096, and opens it.
    ///
    /// # Errors
    /// [`Error::Store`], in particular if the file exists or there is no room for it.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64, options: &Options) -> Result<Store> {
        let path = path.as_ref();
        let device = FileDevice::create_file(path, size_bytes).map_err(at(path))?;
        // Nobody else's file goes if the rest fails.
        Store::create_on(Arc::new(device), options).inspect_err(|_| drop(std::fs::remove_file(path)))
    }

    /// Opens the store in a file or on a disk, which is this process's alone meanwhile. What was synced before a crash is there again.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Store> {
        let path = path.as_ref();
        let device = FileDevice::open(path, Access::ReadWrite).map_err(at(path))?;
        if !device.is_direct() {
            tracing::warn!(path = %path.display(), "no direct I/O on this host: reads may come from its page cache");
            device.write_early();
        }
        Store::open_on(Arc::new(device), options)
    }

    /// Makes a store on a device that has none, and opens it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn create_on(device: Arc<dyn Device>, options: &Options) -> Result<Store> {
        let path = PathBuf::from(device.name());
        let made = CreateOptions {
            protection: options.protection.unwrap_or(Protection::Uniform),
            ..CreateOptions::new(uuid(), uuid())
        };
        let arena = Arena::new(64, 1 << 20).map_err(at(&path))?;
        Module::create(device.clone(), arena, Arc::new(SystemClock::default()), &made).map_err(at(&path))?;
        Store::open_on(device, options)
    }

    /// Opens the store on a device: one of one's own, or a Flashlog.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open_on(device: Arc<dyn Device>, options: &Options) -> Result<Store> {
        let path = PathBuf::from(device.name());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let frames = options.memory_bytes.max(MEMORY_BYTES_MIN) / PAGE_SIZE as u64;
        let frames = u32::try_from(frames).map_err(at(&path))?;
        let log_bytes = (options.memory_bytes / 16).clamp(2 << 20, 32 << 20) as usize;
        let arena = Arena::new(frames, log_bytes).map_err(at(&path))?;
        let opening = OpenOptions {
            node_cache_bytes: options.metadata_bytes,
            protection: options.protection,
            ..OpenOptions::default()
        };
        let limits =
            CacheOptions { epoch_age_max_ms: options.recovery_point_age_max_ms, ..CacheOptions::for_frames(frames) };
        let open = || -> std::result::Result<(Cache, Recovered), holdfast_object::Error> {
            let module = Module::open(device.clone(), arena.clone(), clock.clone(), &opening)?;
            let store = Logical::assemble(vec![Arc::new(module)])
                .map_err(|error| holdfast_object::Error::Protocol(error.to_string()))?;
            Cache::open(Arc::new(store), arena.clone(), clock.clone(), DomainId::MAIN, limits.clone())
        };
        let mut openings = 1;
        let (cache, recovered) = loop {
            match open() {
                // Nothing of what went bad in memory is on the device.
                Err(holdfast_object::Error::GivenUp(what)) if openings < OPENINGS_MAX => {
                    tracing::warn!(%what, "went bad in memory while the store was opened; once more");
                    openings += 1;
                }
                opened => break opened.map_err(at(&path))?,
            }
        };
        let cache = Arc::new(cache);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let naming = NamingOptions { seed: rand::random(), ..NamingOptions::default() };
        let namespace = Namespace::new(cache.clone(), clock, naming).with_snapshots(cache.clone());
        match cache.store_status().read_only {
            Some(reason) => tracing::error!(path = %path.display(), %reason, "the store takes no changes"),
            None => begin(&namespace, uid, gid).map_err(at(&path))?,
        }
        for (object, block) in &recovered.lost {
            let file = namespace.path_of(*object);
            tracing::error!(file = %file.escape_ascii(), block, "had been synced and is lost: damaged in the intent log");
        }
        let request = Request { caller: Caller { uid, gid, groups: Vec::new() }, ..Request::ROOT };
        let shared = Shared { path: path.clone(), layers: RwLock::new(None) };
        let layers = Arc::new(Layers { namespace, request, cache, path, is_ending: AtomicBool::new(false) });
        let served = layers.clone();
        let writer = std::thread::Builder::new().name("holdfast-writer".into()).spawn(move || served.serve());
        let writer = writer.map_err(at(&layers.path))?;
        *shared.layers.write() = Some(layers.clone());
        Ok(Store { layers, shared: Arc::new(shared), lost: recovered.lost, writer: Some(writer) })
    }

    /// Everything that can be done with names, attributes and contents, as transactions; the requests of a mount.
    pub fn namespace(&self) -> &Namespace {
        &self.layers.namespace
    }

    /// Who asks, for requests to [`Store::namespace`]: the user of this process.
    pub fn request(&self) -> &Request {
        &self.layers.request
    }

    /// Blocks that had been synced before a crash, and were damaged in the intent log: reading them is an error until they are written again.
    pub fn lost(&self) -> &[(ObjectId, u64)] {
        &self.lost
    }

    /// Pages that reads have not found in memory so far.
    pub fn page_misses(&self) -> u64 {
        self.layers.cache.status().page_misses
    }

    /// Opens a file. `path` is from the root on, with `/` between names; no links are followed.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn open_file(&self, path: &str) -> Result<File> {
        let (space, request) = (self.namespace(), self.request());
        self.at(path, |parent, name| {
            let found = space.lookup(request, parent, name)?;
            let opened = space.open(request, found.id, Wanted::READ.and(Wanted::WRITE), false);
            // What is open is held by that.
            space.forget(found.id, 1)?;
            opened.map(|()| found.id)
        })
    }

    /// Makes a file, or opens it if there is one. Its directory must be there.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn create_file(&self, path: &str) -> Result<File> {
        let (space, request) = (self.namespace(), self.request());
        let how = Create { mode: 0o644, exclusive: false, truncate: false, wanted: Wanted::READ.and(Wanted::WRITE) };
        self.at(path, |parent, name| {
            let created = space.create(request, parent, name, &how)?;
            space.forget(created.found.id, 1)?;
            Ok(created.found.id)
        })
    }

    /// Does something with the last name of a path and its directory.
    fn at(&self, path: &str, open: impl FnOnce(ObjectId, &[u8]) -> holdfast_naming::Result<ObjectId>) -> Result<File> {
        let (space, request) = (self.namespace(), self.request());
        let mut names: Vec<&[u8]> =
            path.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let last = names.pop().unwrap_or(b".");
        let mut held = Vec::new();
        let mut parent = ObjectId::ROOT;
        let walk = || -> holdfast_naming::Result<ObjectId> {
            for name in names {
                parent = space.lookup(request, parent, name)?.id;
                held.push(parent);
            }
            open(parent, last)
        };
        let found = walk();
        let let_go = held.into_iter().try_for_each(|id| space.forget(id, 1));
        let id = found.and_then(|id| let_go.map(|()| id)).map_err(Error::name(path))?;
        File::of(self.shared.clone(), id, path)
    }

    /// Writes everything, and leaves the store in order. Waits for calls that are under way; files that are still open fail from then on.
    ///
    /// # Errors
    /// [`Error::Store`]: then the store is as after a power cut, and what was synced is there when it is opened again.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        // Nothing that would be lost is taken from now on.
        self.shared.layers.write().take();
        self.layers.is_ending.store(true, Ordering::Release);
        self.layers.cache.wake_writer();
        // Its panic has been told where it was.
        let _ = writer.join();
        self.layers.cache.close().map_err(at(&self.layers.path))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the store could not be closed");
        }
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Layers {
    /// Makes recovery points in time.
    fn serve(&self) {
        let mut is_failing = false;
        while !self.is_ending.load(Ordering::Acquire) {
            self.cache.wait_for_work(WRITER_PERIOD);
            if let Err(error) = self.cache.tick()
                && !std::mem::replace(&mut is_failing, true)
            {
                tracing::error!(%error, path = %self.path.display(), "no recovery point could be made, and no changes are taken from now on");
            }
        }
    }
}

/// What comes before the first request.
fn begin(namespace: &Namespace, uid: u32, gid: u32) -> holdfast_naming::Result<()> {
    namespace.initialise(uid, gid, 0o755)?;
    match namespace.reclaim_orphans() {
        // Nobody can reach it, and everybody wants the rest.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal) => {
            tracing::error!(%error, "a file without a name cannot be deleted: its space stays in use");
            Ok(())
        }
        reclaimed => reclaimed.map(drop),
    }
}

/// As RFC 9562 has it, version 4.
fn uuid() -> [u8; 16] {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn at<E: Display>(path: &Path) -> impl Fn(E) -> Error + '_ {
    move |error| Error::Store { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, BLOCK_BYTES, Side};
    use holdfast_block::MemoryDevice;
    use holdfast_cache::{FlipPart, PageState};

    fn store(protection: Protection) -> Store {
        let options = Options { protection: Some(protection), memory_bytes: 8 << 20, ..Options::default() };
        Store::create_on(Arc::new(MemoryDevice::new(16 << 8)), &options).unwrap()
    }

    /// Flips a bit of the file's second page in memory, which must be there in this state.
    fn flip(store: &Store, file: &File, state: PageState) {
        let quiet = store.layers.cache.quiet();
        let pages = quiet.resident_pages(|id, _| id == file.id());
        let page = pages.iter().find(|page| page.state == state && page.index == 1).expect("in memory");
        quiet.flip(page, FlipPart::Bytes, &[4242]).unwrap();
    }

    #[test]
    fn a_flip_in_a_clean_page_is_read_again_from_below() {
        for protection in [Protection::Uniform, Protection::Static { strong: false }] {
            let store = store(protection);
            let file = store.create_file("a").unwrap();
            let bytes = vec![7; 3 * BLOCK_BYTES];
            file.write_at(&bytes, 0).unwrap();
            store.namespace().sync_all().unwrap();
            for with_sums in [false, true] {
                let mut back = vec![0; bytes.len()];
                file.read_at(&mut back, 0).unwrap();
                flip(&store, &file, PageState::Clean);
                back.fill(0);
                let read = match with_sums {
                    true => file.read_at_with_sums(&mut back, 0, &mut Vec::new()),
                    false => file.read_at(&mut back, 0),
                };
                assert_eq!(read.unwrap(), bytes.len());
                assert!(back == bytes, "{protection}, with sums: {with_sums}");
            }
            drop(file);
            store.close().unwrap();
        }
    }

    #[test]
    fn a_flip_in_a_changed_page_is_told_once_and_mended_by_writing_again() {
        let store = store(Protection::Uniform);
        let file = store.create_file("a").unwrap();
        let other = store.open_file("/a").unwrap();
        let bytes = vec![7; 3 * BLOCK_BYTES];
        file.write_at(&bytes, 0).unwrap();
        flip(&store, &file, PageState::Dirty);
        for file in [&file, &other] {
            let error = file.sync().unwrap_err();
            assert_eq!((error.side(), error.blocks()), (Some(Side::Memory), vec![1]), "{error}");
            file.sync().unwrap();
        }
        assert_eq!(file.bad_blocks().unwrap(), [1]);
        let mut back = vec![0; BLOCK_BYTES];
        let error = file.read_at(&mut back, 5000).unwrap_err();
        assert_eq!((error.side(), error.blocks()), (Some(Side::Memory), vec![1]), "{error}");
        assert_eq!(file.read_at(&mut back, 0).unwrap(), BLOCK_BYTES);
        file.write_at(&bytes[BLOCK_BYTES..], BLOCK_BYTES as u64).unwrap();
        file.sync().unwrap();
        assert_eq!(file.bad_blocks().unwrap(), [0; 0]);
        assert_eq!(file.read_at_with_sums(&mut back, 5000, &mut Vec::new()).unwrap(), BLOCK_BYTES);
        assert!(back == bytes[..BLOCK_BYTES]);
    }

    #[test]
    fn checksums_of_any_kind_go_on_from_the_program_to_the_device() {
        for algorithm in Algorithm::ALL {
            let store = store(Protection::Uniform);
            let file = store.create_file("a").unwrap().with_algorithm(algorithm).unwrap();
            let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 77).map(|at| (at * 31 % 251) as u8).collect();
            let sums = file.sums(&bytes, 4093);
            assert_eq!(file.write_at_with_sums(&bytes, 4093, &sums).unwrap(), bytes.len());
            // What is in there from before does not stay.
            let (mut back, mut got) = (vec![0; bytes.len() + 9], sums.clone());
            assert_eq!(file.read_at_with_sums(&mut back, 4093, &mut got).unwrap(), bytes.len());
            assert!(back[..bytes.len()] == bytes && got == sums, "{algorithm}");
        }
    }
}
