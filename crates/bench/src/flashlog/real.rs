//! A Flashlog on real devices, in real time, beside its devices alone: rates, and what the processor does for them.
//!
//! Rounds are interleaved, so that a slow phase of the machine hits all; ratios are taken within a round. Each measurement ends with what makes it
//! durable. Main, log and backup are files in one directory, or given: then they may be different disks.

use super::awake::{self, Awake, Counted, awake_table};
use super::loads::{Runner, Time, since};
use super::store::Files;
use super::{Load, MIB_BLOCKS, Sizes, of_device, of_set};
use crate::cpu;
use crate::error::{Error, Result};
use crate::measure::Summary;
use crate::program::Progress;
use crate::report::{number, table};
use holdfast_block::flashlog::{self, BackedUp, Create, Flashlog, Mode, ReadAhead, Uuid};
use holdfast_block::{Access, BLOCK_SIZE, Device, FileDevice};
use std::io::IoSlice;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Scattered requests, and those that are flushed each.
const SCATTERED: u64 = 1000;
const FLUSHED: u64 = 50;
/// What a backup needs beside the set's size.
const BESIDE_BLOCKS: u64 = 64 * MIB_BLOCKS;

/// Where, and how much.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the files.
    pub dir: PathBuf,
    /// Devices or files that are there, instead of files in the directory. What they have is lost.
    pub main: Option<PathBuf>,
    /// The same for the log.
    pub log: Option<PathBuf>,
    /// MiB of a load. Main has four times as much, the log twice.
    pub mib: u64,
    /// How often each is measured.
    pub rounds: usize,
    /// Before a rewrite in asynchronous mode, so that the set takes main for asleep: after 5 s.
    pub pause: Duration,
    /// Seconds of a stream and of a compilation; at most eight times `mib`, as main has room for.
    pub steady_s: u64,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Device(Load),
    /// A store on the device.
    Files(Files),
}

impl Work {
    fn all() -> Vec<Work> {
        let written = Load::RECORDS.map(Load::Scattered);
        let read = Load::RECORDS.map(Load::Reads);
        let loads = [
            [Load::Sequential, Load::Rewrite].as_slice(),
            &written,
            &[Load::Durable],
            &read,
            &[Load::Copy, Load::CopyIn],
        ];
        loads.concat().into_iter().map(Work::Device).chain(Files::ALL.map(Work::Files)).collect()
    }

    fn name(self) -> String {
        match self {
            Work::Device(load) => load.name(),
            Work::Files(files) => files.name().into(),
        }
    }
}

/// On what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    Main,
    Log,
    /// The same to each of them, from a thread each: what there is for those who write everything twice.
    Both,
    Set(Mode),
}

const ALL_ON: [On; 5] = [On::Main, On::Log, On::Both, On::Set(Mode::Synchronous), On::Set(Mode::Asynchronous)];

/// What one run took.
#[derive(Clone, Copy)]
struct Run {
    mb_per_s: f64,
    /// Of the time, all threads of this process.
    cpu_percent: f64,
}

/// The devices of the bench.
struct Devices {
    options: Options,
    main: PathBuf,
    log: PathBuf,
    /// What is copied to the others.
    source: PathBuf,
    made: Vec<PathBuf>,
}

impl Drop for Devices {
    fn drop(&mut self) {
        for path in &self.made {
            // Who looks for the room finds the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The time that everybody has.
struct Wall(Instant);

impl Time for Wall {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    fn pass(&self, time: Duration) {
        // Nothing is waited for: a pause of so long is what is measured, as between two seconds of a stream.
        std::thread::sleep(time);
    }
}

/// Main or log alone, or a set of both with the threads that serve it.
struct Opened {
    device: Arc<dyn Device>,
    set: Option<(Arc<Flashlog>, [JoinHandle<()>; 3])>,
    mode: Option<Mode>,
}

impl Opened {
    /// Main has everything; the devices are free.
    fn close(self) -> Result<()> {
        let Some((set, threads)) = self.set else { return Ok(()) };
        let settled = set.settle().map_err(of_device);
        set.end_main();
        for thread in threads {
            // A panic has been told where it was.
            let _ = thread.join();
        }
        settled
    }
}

impl Devices {
    fn new(options: &Options) -> Result<Devices> {
        let mut devices = Devices {
            options: options.clone(),
            main: PathBuf::new(),
            log: PathBuf::new(),
            source: PathBuf::new(),
            made: Vec::new(),
        };
        devices.main = devices.place(options.main.clone(), "main", 4 * options.mib + 1)?;
        devices.log = devices.place(options.log.clone(), "log", 2 * options.mib)?;
        devices.source = devices.place(None, "source", options.mib)?;
        Ok(devices)
    }

    /// A file of so many MiB, written from end to end, if none is given.
    fn place(&mut self, given: Option<PathBuf>, name: &str, mib: u64) -> Result<PathBuf> {
        if let Some(path) = given {
            return Ok(path);
        }
        let path = self.options.dir.join(format!("holdfast-flashlog-{name}.img"));
        let device = FileDevice::create_file(&path, mib << 20).map_err(of_device)?;
        self.made.push(path.clone());
        let zeros = vec![0; 1 << 20];
        for at in 0..mib {
            device.write(at * MIB_BLOCKS, &[IoSlice::new(&zeros)]).map_err(of_device)?;
        }
        device.flush().map_err(of_device)?;
        Ok(path)
    }

    fn open(&self, on: On) -> Result<Vec<Opened>> {
        let file = |path| FileDevice::open(path, Access::ReadWrite).map_err(of_device);
        let alone = |path| Ok(Opened { device: Arc::new(file(path)?), set: None, mode: None });
        match on {
            On::Main => Ok(vec![alone(&self.main)?]),
            On::Log => Ok(vec![alone(&self.log)?]),
            On::Both => Ok(vec![alone(&self.main)?, alone(&self.log)?]),
            On::Set(mode) => Ok(vec![self.open_set(Arc::new(file(&self.main)?), mode)?]),
        }
    }

    fn open_set(&self, main: Arc<dyn Device>, mode: Mode) -> Result<Opened> {
        let log = Arc::new(FileDevice::open(&self.log, Access::ReadWrite).map_err(of_device)?);
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        flashlog::create(main.clone(), log.clone(), &names).map_err(of_set)?;
        let options = flashlog::Options { mode, ..flashlog::Options::default() };
        let (set, _) = Flashlog::open(main, log, &options).map_err(of_set)?;
        let set = Arc::new(set);
        let threads = [Flashlog::serve_main, Flashlog::serve_log, Flashlog::serve_reads].map(|serve| {
            let set = set.clone();
            std::thread::spawn(move || serve(&set))
        });
        Ok(Opened { device: set.clone(), set: Some((set, threads)), mode: Some(mode) })
    }

    fn run(&self, work: Work, on: On, round: usize) -> Result<Run> {
        let opened = self.open(on)?;
        let runs = std::thread::scope(|scope| {
            let one = |opened: &Opened| match work {
                Work::Device(load) => self.load(load, opened, round),
                Work::Files(files) => files.run(&opened.device, self.options.mib),
            };
            let others: Vec<_> = opened[1..].iter().map(|opened| scope.spawn(move || one(opened))).collect();
            let first = one(&opened[0]);
            let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            [first].into_iter().chain(others).collect::<Result<Vec<_>>>()
        })?;
        opened.into_iter().try_for_each(Opened::close)?;
        // Of several, the slowest; each has the same bytes, which count once.
        let (bytes, seconds, cpu_s) = runs
            .into_iter()
            .max_by_key(|(_, took, _)| *took)
            .ok_or_else(|| Error::Usage("nothing was opened".into()))?;
        let seconds = seconds.as_secs_f64().max(1e-9);
        Ok(Run { mb_per_s: bytes as f64 / 1e6 / seconds, cpu_percent: 100.0 * cpu_s.as_secs_f64() / seconds })
    }

    fn sizes(&self, load: Load, device: &dyn Device) -> Sizes {
        let mib = self.options.mib * MIB_BLOCKS;
        // Where requests are scattered: twice a load, which a log alone has as well. Of a copy that holds both ends.
        let area = if load == Load::Copy { mib } else { device.blocks().min(2 * mib) };
        let scattered = if load == Load::Durable { 4 * FLUSHED } else { SCATTERED };
        Sizes { main: 4 * mib, log: 2 * mib, load: mib, area, scattered, steady_s: self.options.steady_s }
    }

    /// Bytes that were moved, time, and processor time; what is there before the load is not in them.
    fn load(&self, load: Load, opened: &Opened, round: usize) -> Result<(u64, Duration, Duration)> {
        let (device, wall) = (&*opened.device, Wall(Instant::now()));
        let mut runner = Runner::new(device, &wall, self.sizes(load, device), load, Some(round as u64));
        runner.prepare()?;
        if let (Load::Rewrite, Some((set, _))) = (load, &opened.set) {
            set.settle().map_err(of_device)?;
            // In the other mode nobody asks whether main is asleep.
            if opened.mode == Some(Mode::Asynchronous) {
                wall.pass(self.options.pause);
            }
        }
        // From two threads at once.
        let source = (load == Load::CopyIn).then(|| FileDevice::open(&self.source, Access::ReadOnlyUnlocked));
        let source = source.transpose().map_err(of_device)?;
        let (start, cpu) = (Instant::now(), cpu::own());
        let blocks = runner.run(source.as_ref().map(|source| source as &dyn Device))?;
        Ok((blocks * BLOCK_SIZE as u64, start.elapsed(), cpu::own().saturating_sub(cpu)))
    }

    /// What main does while a load goes on, and for it afterwards.
    fn awake(&self, load: Load, setup: &'static str, mode: Option<Mode>) -> Result<Awake> {
        let main = FileDevice::open(&self.main, Access::ReadWrite).map_err(of_device)?;
        let counted = Arc::new(Counted::new(Arc::new(main)));
        let opened = match mode {
            Some(mode) => self.open_set(counted.clone(), mode)?,
            None => Opened { device: counted.clone(), set: None, mode: None },
        };
        let before = counted.activity();
        let (_, took, _) = self.load(load, &opened, 0)?;
        let after = counted.activity();
        opened.close()?;
        let (steady_s, seconds) = (self.options.steady_s, took.as_secs_f64());
        let (meanwhile, afterwards) = (since(&after, &before), since(&counted.activity(), &after));
        Ok(Awake { load, setup, steady_s, seconds, meanwhile, afterwards })
    }

    /// Seconds of a full copy and of the next one, and the blocks of that.
    fn backups(&mut self) -> Result<(f64, f64, u64)> {
        let mib = 4 * self.options.mib + BESIDE_BLOCKS / MIB_BLOCKS;
        let path = self.place(None, "backup", mib)?;
        let main = FileDevice::open(&self.main, Access::ReadWrite).map_err(of_device)?;
        let opened = self.open_set(Arc::new(main), Mode::Asynchronous)?;
        let Some((set, _)) = &opened.set else { return Err(Error::Usage("a set was opened as a device".into())) };
        let backup = Arc::new(FileDevice::open(&path, Access::ReadWrite).map_err(of_device)?);
        set.create_backup(backup.clone(), Uuid([4; 16])).map_err(of_set)?;
        let start = Instant::now();
        back_up(set, &backup)?;
        let full_s = start.elapsed().as_secs_f64();
        for _ in 0..4 {
            // The same places each time.
            self.load(Load::Scattered(1), &opened, 1)?;
        }
        let start = Instant::now();
        let done = back_up(set, &backup)?;
        let next_s = start.elapsed().as_secs_f64();
        opened.close()?;
        Ok((full_s, next_s, done.blocks))
    }
}

/// With a thread that reads in advance, as the command has it.
fn back_up(set: &Flashlog, backup: &Arc<FileDevice>) -> Result<BackedUp> {
    let ahead = ReadAhead::default();
    let done = std::thread::scope(|scope| {
        scope.spawn(|| set.read_ahead(&ahead));
        set.backup_ahead(backup.clone(), &ahead, &mut |_, _| ())
    });
    done.map_err(of_set)
}

/// Measures, and gives the table.
///
/// # Errors
/// Of the devices.
pub fn measure(options: &Options, progress: &Progress) -> Result<String> {
    let mut devices = Devices::new(options)?;
    let works = Work::all();
    let mut runs: Vec<[Vec<Run>; ALL_ON.len()]> = works.iter().map(|_| Default::default()).collect();
    for round in 0..options.rounds {
        for (work, runs) in works.iter().zip(&mut runs) {
            for step in 0..ALL_ON.len() {
                // Who begins changes from round to round.
                let which = (step + round) % ALL_ON.len();
                progress.say(&format!("round {}, {}, {:?}", round + 1, work.name(), ALL_ON[which]));
                runs[which].push(devices.run(*work, ALL_ON[which], round)?);
            }
        }
    }
    let setups =
        [("main", None), ("Flashlog, sync", Some(Mode::Synchronous)), ("Flashlog, async", Some(Mode::Asynchronous))];
    let mut steady = Vec::new();
    for (load, (setup, mode)) in awake::LOADS.iter().flat_map(|load| setups.map(|setup| (*load, setup))) {
        progress.say(&format!("{}, {} s, {setup}", load.name(), options.steady_s));
        steady.push(devices.awake(load, setup, mode)?);
    }
    progress.say("backups");
    let (full_s, next_s, blocks) = devices.backups()?;
    let header = [
        "load",
        "main",
        "log",
        "both at once",
        "Flashlog, sync",
        "Flashlog, async",
        "sync / slower",
        "async / log",
        "sync / both",
        "async / both",
    ];
    let body = works.iter().zip(&runs).map(|(work, runs)| row(*work, runs)).collect();
    let backups = format!(
        "A full copy of {} MiB to a backup: {} s; the next one, of {blocks} blocks that were scattered and written four times each: {} s.",
        4 * options.mib,
        number(full_s),
        number(next_s)
    );
    Ok(format!(
        "MB/s, and processor time of the process in % of the time, medians of {} rounds of {} MiB.\n\n{}\n{backups}\n\nA stream and a compilation, in real time and so \
         {} s instead of ten minutes, once each: what main does meanwhile, and afterwards until it has everything.\n\n{}",
        options.rounds,
        options.mib,
        table(&header.map(str::to_owned), body),
        options.steady_s,
        awake_table(&steady)
    ))
}

fn row(work: Work, runs: &[Vec<Run>; ALL_ON.len()]) -> Vec<String> {
    let median =
        |values: &[f64]| Summary::of(values.iter().copied()).map_or_else(|| "–".to_owned(), |s| number(s.median));
    let [main, log, both, sync, other] =
        [0, 1, 2, 3, 4].map(|at| runs[at].iter().map(|run| run.mb_per_s).collect::<Vec<f64>>());
    let cells = [0, 1, 2, 3, 4].map(|at| {
        let cpu: Vec<f64> = runs[at].iter().map(|run| run.cpu_percent).collect();
        let rates: Vec<f64> = runs[at].iter().map(|run| run.mb_per_s).collect();
        format!("{} ({} %)", median(&rates), median(&cpu))
    });
    let slower: Vec<f64> = main.iter().zip(&log).map(|(main, log)| main.min(*log)).collect();
    let ratio = |of: &[f64], to: &[f64]| {
        Summary::of_ratios(of, to)
            .map_or_else(|| "–".to_owned(), |s| format!("{:.2} ({:.2}–{:.2})", s.median, s.min, s.max))
    };
    let ratios = vec![ratio(&sync, &slower), ratio(&other, &log), ratio(&sync, &both), ratio(&other, &both)];
    [vec![work.name()], cells.to_vec(), ratios].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_one_runs_in_a_directory_and_leaves_nothing_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options {
            dir: dir.path().into(),
            main: None,
            log: None,
            mib: 16,
            rounds: 1,
            pause: Duration::ZERO,
            steady_s: 1,
        };
        let text = measure(&options, &Progress::default()).expect("it runs");
        assert!(
            Work::all().iter().all(|work| text.contains(&work.name())) && text.contains("full copy of 64 MiB"),
            "{text}"
        );
        for load in [
            "rewrite, 1 MiB in a row",
            "write, scattered, 16 MiB",
            "read, scattered, 256 KiB",
            "copy of files of 1 MiB",
            "copy of files from another disk",
            "a file of a store on it, rewrite, 1 MiB in a row",
            "files of a store on it, copy of files of 1 MiB",
        ] {
            assert!(text.lines().any(|line| line.starts_with(&format!("| {load} "))), "{load}: {text}");
        }
        for load in ["stream, 1 s", "compilation, 1 s"] {
            let rows = text.lines().filter(|line| line.contains(load));
            let rows: Vec<Vec<&str>> = rows.map(|line| line.split('|').map(str::trim).collect()).collect();
            let written = rows.iter().map(|cells| (cells[2], cells[5] != "0.00", cells[9] != "0.00"));
            // By itself, at once; in asynchronous mode, afterwards.
            let expected = [("main", true, false), ("Flashlog, sync", true, false), ("Flashlog, async", false, true)];
            assert_eq!(written.collect::<Vec<_>>(), expected, "{text}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }
}
