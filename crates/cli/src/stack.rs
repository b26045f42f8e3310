//! Puts the layers together: device → physical → logical → cache → naming. The one place that knows them all.

use crate::audited::Audited;
use crate::failure::{Failure, Result};
use crate::holder;
use crate::report::{Figures, SnapshotFigures};
use crate::scratch::Scratch;
use holdfast_block::{Access, Device, FileDevice};
use holdfast_cache::{Cache, Options as CacheOptions, Recovered};
use holdfast_integrity::Protection;
use holdfast_logical::Logical;
use holdfast_naming::{Atime, Enforce, Namespace};
use holdfast_object::{
    Arena, Clock, DomainId, Error, ObjectCache, ObjectId, ObjectStore, PAGE_SIZE, PageIndex, Snapshots, StoreStatus,
    SystemClock,
};
use holdfast_physical::{MetadataProtection, Module, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a stack is to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Nothing is written to the device.
    pub(crate) read_only: bool,
    /// Size of the page pool, in bytes.
    pub(crate) cache_bytes: u64,
    /// Longest time a change stays outside a recovery point, in milliseconds.
    pub(crate) epoch_ms: u64,
    /// Times of last access.
    pub(crate) atime: Atime,
    /// Directories keep theirs.
    pub(crate) no_directory_atime: bool,
    /// Most bytes that may be in use.
    pub(crate) quota_bytes: Option<u64>,
    /// What is freed is given back to the host.
    pub(crate) discard: bool,
    /// How the contents of files are protected, if not as the store says.
    pub(crate) protection: Option<Protection>,
    /// Which equations must hold.
    pub(crate) audit: Audited,
}

impl Settings {
    /// For commands that only look.
    pub(crate) fn to_look() -> Settings {
        Settings {
            read_only: true,
            cache_bytes: 64 << 20,
            epoch_ms: 5_000,
            atime: Atime::Never,
            no_directory_atime: true,
            quota_bytes: None,
            discard: false,
            protection: None,
            audit: Audited::All,
        }
    }
}

/// All layers over one device.
pub(crate) struct Stack {
    pub(crate) module: Arc<Module>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) namespace: Arc<Namespace>,
    /// What opening had to replay.
    pub(crate) recovered: Recovered,
    /// The store had been closed in order before this.
    pub(crate) was_clean: bool,
    /// Something was wrong with it when it was opened for changes, and it takes none.
    pub(crate) is_stopped: bool,
}

impl Stack {
    /// What the next mount will have, in memory: the intent log is replayed, and nothing is written to the device. Nothing if that fails.
    pub(crate) fn replayed(device: Arc<dyn Device>) -> Option<Stack> {
        let settings = Settings { read_only: false, ..Settings::to_look() };
        Stack::open(Arc::new(Scratch::over(device)), &settings).ok()
    }

    /// Opens the store on `device`. Unless it is read-only, the intent log is replayed. Nothing runs on its own
    /// afterwards: whoever wants epochs closed in time calls [`Cache::tick`].
    pub(crate) fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Stack> {
        Stack::open_watched(device, settings, &mut |_| {})
    }

    /// The same; `does` is told of what may take long.
    pub(crate) fn open_watched(
        device: Arc<dyn Device>,
        settings: &Settings,
        does: &mut dyn FnMut(&str),
    ) -> Result<Stack> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let memory = Memory::divided(settings.cache_bytes);
        let arena = arena(memory.pages_bytes)?;
        let frames = arena.frames();
        let options = OpenOptions {
            read_only: settings.read_only,
            node_cache_bytes: memory.nodes_bytes,
            quota_blocks: settings.quota_bytes.map(|bytes| bytes / PAGE_SIZE as u64),
            discard: settings.discard && !settings.read_only,
            protection: settings.protection,
            metadata: match settings.audit {
                Audited::All | Audited::Store => MetadataProtection::default(),
                Audited::Nothing => MetadataProtection::Rolling,
            },
            ..OpenOptions::default()
        };
        let cache_options = CacheOptions { epoch_age_max_ms: settings.epoch_ms, ..CacheOptions::for_frames(frames) };
        let mut was_clean = false;
        let (module, (cache, recovered)) = until_sound(|| {
            let module = Arc::new(Module::open(device.clone(), arena.clone(), clock.clone(), &options)?);
            was_clean = module.is_clean();
            if !was_clean && !settings.read_only {
                does("replaying the intent log: the store was not closed in order");
            }
            let store = Logical::assemble(vec![module.clone()]).map_err(|error| Error::Protocol(error.to_string()))?;
            let (arena, clock) = (arena.clone(), clock.clone());
            Ok((module, Cache::open(Arc::new(store), arena, clock, DomainId::MAIN, cache_options.clone())?))
        })?;
        let cache = Arc::new(cache);
        let seed = u64::from_le_bytes(random()?);
        // The kernel checks permissions: the mount always has `default_permissions`.
        let Settings { atime, no_directory_atime, .. } = *settings;
        let unaudited = settings.audit != Audited::All;
        let options =
            holdfast_naming::Options { enforce: Enforce::Outside, atime, no_directory_atime, seed, unaudited };
        let namespace = Arc::new(Namespace::new(cache.clone(), clock, options).with_snapshots(cache.clone()));
        let is_stopped = !settings.read_only && cache.status().read_only.is_some();
        Ok(Stack { module, cache, namespace, recovered, was_clean, is_stopped })
    }

    /// Makes the root directory, which belongs to the calling user, if there is none.
    pub(crate) fn initialise(&self) -> Result<()> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        self.namespace.initialise(uid, gid, 0o755).map(drop).map_err(says)
    }

    /// State of the store.
    pub(crate) fn status(&self) -> StoreStatus {
        self.cache.store_status()
    }

    /// The first of the files that have pages which went bad in memory before they were stored, and how many there are.
    pub(crate) fn bad_files(&self, count: usize) -> (Vec<BadFile>, usize) {
        let known = |object| self.cache.bad_pages(object, 0, BAD_PAGES_KNOWN).unwrap_or_default();
        self.files(self.cache.bad_objects(), count, known)
    }

    /// The first of the files that have pages which only memory has, and how many there are: what was written last and not synced.
    pub(crate) fn unwritten_files(&self, count: usize) -> (Vec<BadFile>, usize) {
        let known = |object| self.cache.unwritten_pages(object, BAD_PAGES_KNOWN);
        self.files(self.cache.unwritten_objects(), count, known)
    }

    fn files(
        &self,
        objects: Vec<(ObjectId, usize)>,
        count: usize,
        known: impl Fn(ObjectId) -> Vec<PageIndex>,
    ) -> (Vec<BadFile>, usize) {
        let all = objects.len();
        let files = objects.into_iter().take(count).map(|(object, pages)| {
            let path = String::from_utf8_lossy(&self.namespace.path_of(object)).into_owned();
            let known = known(object);
            BadFile { object, path, pages: pages as u64, bytes: runs_of(&known, pages), known }
        });
        (files.collect(), all)
    }

    /// Logs which files have pages that only memory has.
    pub(crate) fn log_unwritten(&self) {
        for BadFile { path, pages, bytes, .. } in self.unwritten_files(usize::MAX).0 {
            tracing::error!(path, pages, bytes, "was written last, and is not on the disk");
        }
    }

    /// Logs which files have pages that went bad in memory before they were stored, and gives them.
    pub(crate) fn log_bad(&self, what: &str) -> Vec<BadFile> {
        let (files, _) = self.bad_files(usize::MAX);
        for BadFile { path, pages, bytes, .. } in &files {
            tracing::error!(path, pages, bytes, "went bad in memory, and {what}");
        }
        files
    }

    /// A state of the store, for reports.
    pub(crate) fn figures(&self, status: StoreStatus) -> Figures {
        let protection = (self.module.protection(), self.module.store_protection());
        let snapshots = SnapshotFigures {
            count: self.module.snapshot_count(DomainId::MAIN),
            kept_bytes: self.module.kept_blocks(DomainId::MAIN).map(|blocks| blocks.saturating_mul(PAGE_SIZE as u64)),
            deletions: self.cache.snapshot_deletions(),
        };
        Figures::new(self.module.store_uuid(), snapshots, protection, status)
    }
}

/// A file with pages that went bad in memory before they were stored, or could not be.
pub(crate) struct BadFile {
    pub(crate) object: ObjectId,
    pub(crate) path: String,
    pub(crate) pages: u64,
    /// Where they are, in words.
    pub(crate) bytes: String,
    /// The first of them, ascending.
    pub(crate) known: Vec<PageIndex>,
}

/// Runs of bytes that are named of a file, and pages of each that are looked for.
const RUNS_NAMED: usize = 16;
const PAGES_OF_A_RUN: usize = 256;
/// Bad pages that are looked for in a file; the others are counted.
pub(crate) const BAD_PAGES_KNOWN: usize = RUNS_NAMED * PAGES_OF_A_RUN;

/// The bytes of these pages, ascending, of `all` that there are.
pub(crate) fn runs_of(pages: &[u64], all: usize) -> String {
    let byte = |page: u64| page.saturating_mul(PAGE_SIZE as u64);
    let mut left = all;
    let mut named = Vec::new();
    for run in pages.chunk_by(|a, b| a + 1 == *b).take(RUNS_NAMED) {
        named.push(format!("{} to {}", byte(run[0]), byte(run[run.len() - 1] + 1) - 1));
        left = left.saturating_sub(run.len());
    }
    if left > 0 {
        named.push(format!("and of {left} pages more"));
    }
    named.join(", ")
}

/// An empty store on a device, with a root directory of the calling user; so many bytes are set aside for root.
pub(crate) fn create(
    device: Arc<dyn Device>,
    overwrite: bool,
    set_aside_bytes: u64,
    protection: Protection,
) -> Result<Stack> {
    let set_aside_blocks = set_aside_bytes.div_ceil(PAGE_SIZE as u64);
    let options = holdfast_physical::CreateOptions {
        set_aside_blocks,
        protection,
        overwrite,
        ..holdfast_physical::CreateOptions::new(uuid()?, uuid()?)
    };
    let settings = Settings { read_only: false, ..Settings::to_look() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    Module::create(device.clone(), arena(settings.cache_bytes)?, clock, &options).map_err(says)?;
    let stack = Stack::open(device, &settings)?;
    stack.initialise()?;
    stack.cache.close().map_err(says)?;
    Ok(stack)
}

/// The absolute path of a store. If there is none, says which ones there are in that directory.
pub(crate) fn locate(store: &Path) -> Result<PathBuf> {
    let failure = match crate::mounts::resolve(store) {
        Ok(path) => return Ok(path),
        Err(failure) => failure,
    };
    let directory = store.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if store.exists() || !directory.is_dir() {
        return Err(failure);
    }
    let stores: Vec<String> = stores_in(directory).iter().map(|store| crate::paths::shell(store)).collect();
    Err(failure.hint(match stores.is_empty() {
        true => format!("to make a store there: holdfast create {}", crate::paths::shell(store)),
        false => format!("stores in that directory: {}", stores.join(", ")),
    }))
}

/// The first files of a directory that look like stores.
fn stores_in(directory: &Path) -> Vec<PathBuf> {
    const LOOKED_AT: usize = 1000;
    const NAMED: usize = 5;
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    // Opening anything else could wait, or do something.
    let files = entries.take(LOOKED_AT).flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut stores: Vec<PathBuf> = files.map(|entry| entry.path()).filter(|path| is_store(path)).take(NAMED).collect();
    stores.sort();
    stores
}

/// Whether a file or disk begins as a store does.
pub(crate) fn is_store(path: &Path) -> bool {
    let mut magic = [0; 8];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *crate::probe::MAGIC
}

/// Opens the file or disk that holds a store, exclusively. One in use is refused at once; [`holder::device`] waits for a daemon
/// that is closing it.
pub(crate) fn device(store: &Path, access: Access) -> Result<Arc<FileDevice>> {
    try_device(store, access)?.ok_or_else(|| holder::in_use(store))
}

/// The same; nothing if it is in use.
pub(crate) fn try_device(store: &Path, access: Access) -> Result<Option<Arc<FileDevice>>> {
    let device = match FileDevice::open(store, access) {
        Ok(device) => device,
        Err(holdfast_block::Error::InUse { .. }) => return Ok(None),
        Err(holdfast_block::Error::Io { operation: holdfast_block::Operation::Open, ref source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            return Err(crate::users::store_refused(store, access != Access::ReadWrite));
        }
        Err(error) => return Err(says(error)),
    };
    if !device.is_direct() {
        tracing::warn!("no direct I/O on this host: reads may come from its page cache");
        // A store or set flushes what it has written, and soon.
        device.write_early();
    }
    Ok(Some(Arc::new(device)))
}

/// What the memory of a mount is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Memory {
    /// Pages of objects.
    pages_bytes: u64,
    /// Clean blocks of the store's own metadata.
    nodes_bytes: usize,
}

impl Memory {
    /// Metadata blocks kept in any case, besides the configured cache.
    const NODES_BYTES_MIN: u64 = 16 << 20;
    /// More than this makes little difference: the object table of 130,000 files.
    const NODES_BYTES_MAX: u64 = 64 << 20;

    /// Metadata blocks get a quarter of a large cache. What is more than the least comes out of it.
    fn divided(cache_bytes: u64) -> Memory {
        let nodes = (cache_bytes / 4).clamp(Self::NODES_BYTES_MIN, Self::NODES_BYTES_MAX);
        Memory { pages_bytes: cache_bytes.saturating_sub(nodes - Self::NODES_BYTES_MIN), nodes_bytes: nodes as usize }
    }
}

/// Page frames and room for the operation log.
fn arena(cache_bytes: u64) -> Result<Arc<Arena>> {
    let frames = cache_bytes / PAGE_SIZE as u64;
    let frames = u32::try_from(frames).ok().filter(|&frames| frames < u32::MAX);
    let frames = frames.ok_or_else(|| Failure::usage("the page pool is too large"))?;
    let log_bytes = (cache_bytes / 16).clamp(2 << 20, 32 << 20) as usize;
    Arena::new(frames, log_bytes).map_err(|error| Failure::new(format!("no memory for the page pool: {error}")))
}

pub(crate) fn uuid() -> Result<[u8; 16]> {
    let mut bytes: [u8; 16] = random()?;
    // RFC 9562, version 4.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; N];
    let read = std::fs::File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| Failure::at(Path::new(SOURCE), error))?;
    Ok(bytes)
}

/// Errors of the layers name their place themselves.
/// Times that a store is opened whose metadata goes bad in memory meanwhile.
const OPENINGS_MAX: u32 = 4;

/// Opens a store, again if what it would make of the intent log has gone bad in memory: nothing of that is on the device.
fn until_sound<T>(mut open: impl FnMut() -> std::result::Result<T, Error>) -> Result<T> {
    for _ in 1..OPENINGS_MAX {
        match open() {
            Err(Error::GivenUp(what)) => {
                tracing::warn!(%what, "went bad in memory while the store was opened; once more")
            }
            outcome => return outcome.map_err(says),
        }
    }
    open().map_err(|error| match error {
        Error::GivenUp(_) => says(error)
            .hint("have the memory tested, or report what is called a logic bug; nothing is lost, and -o ro mounts the last recovery point"),
        error => says(error),
    })
}

pub(crate) fn says(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a small store there, and gives what opens its device.
    pub(crate) fn made_in(directory: &Path) -> impl Fn() -> Arc<FileDevice> {
        let path = directory.join("s");
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let device = move || Arc::new(FileDevice::open(&path, Access::ReadWrite).unwrap());
        drop(create(device(), false, 0, Protection::Uniform).unwrap());
        device
    }

    #[test]
    fn bytes_of_pages_are_told_in_runs() {
        assert_eq!(runs_of(&[1, 2, 3, 7], 4), "4096 to 16383, 28672 to 32767");
        let many: Vec<u64> = (0..20).map(|number| 2 * number).collect();
        assert!(runs_of(&many, 25).ends_with("122880 to 126975, and of 9 pages more"));
    }

    #[test]
    fn a_store_is_opened_again_if_its_metadata_goes_bad_meanwhile() {
        let bad = |what: &str| {
            let Error::Corrupt(corruption) = Error::corrupt(Default::default(), what, "", "") else { unreachable!() };
            Err::<u32, Error>(Error::GivenUp(corruption))
        };
        let mut openings = 0;
        let opened = until_sound(|| {
            openings += 1;
            if openings < OPENINGS_MAX { bad("bits") } else { Ok(openings) }
        });
        assert_eq!(opened.ok(), Some(OPENINGS_MAX));
        let failure = until_sound(|| bad("bits")).unwrap_err();
        assert!(failure.to_string().contains("bits"), "{failure}");
        let mut openings = 0;
        let failure = until_sound(|| {
            openings += 1;
            Err::<(), Error>(Error::NoStore("nothing there".into()))
        });
        assert!(failure.is_err() && openings == 1, "other errors are told at once");
    }

    #[test]
    fn metadata_blocks_take_no_memory_beyond_the_least() {
        for (cache_mib, nodes_mib) in [(16, 16), (64, 16), (128, 32), (256, 64), (1 << 20, 64)] {
            let memory = Memory::divided(cache_mib << 20);
            assert_eq!(memory.nodes_bytes, nodes_mib << 20);
            assert_eq!(memory.pages_bytes + memory.nodes_bytes as u64, (cache_mib + 16) << 20);
        }
    }
}
