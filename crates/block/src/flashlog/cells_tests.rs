//! The table of what is done when a device fails, cell by cell: the device fails so in that mode, with each thing that can be done then, and with
//! what the documentation has as the default; and what the set does is looked at.
use super::patience_tests::{BLOCKS, Back, Failing, Rig};
use super::tests::{block, get, open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Error as DeviceError, MemoryDevice};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MODES: [Mode; 2] = [Mode::Synchronous, Mode::Asynchronous];
const ROLES: [Role; 3] = [Role::Main, Role::Log, Role::Backup];
const ACTIONS: [Action; 4] = [Action::Tell, Action::GoOnAlone, Action::ReadOnly, Action::Stop];
/// Written again and again before anything fails.
const WRITTEN: u64 = 50;
/// In asynchronous mode the log alone has it, if main is to lack something.
const IN_LOG: u64 = 150;
/// Nobody has written it, so it is read from main.
const ON_MAIN: u64 = BLOCKS - 6;

/// A place in the table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    mode: Mode,
    role: Role,
    symptom: Symptom,
}

fn cells() -> Vec<Cell> {
    let of_mode =
        |mode| ROLES.into_iter().flat_map(move |role| Symptom::ALL.map(|symptom| Cell { mode, role, symptom }));
    MODES.into_iter().flat_map(of_mode).collect()
}

/// What comes of a read.
#[derive(PartialEq, Debug)]
enum Reads {
    Given,
    /// The device's own error.
    Failed,
    /// Nobody asks the device any more.
    Refused,
}

#[derive(PartialEq, Debug)]
enum Shown {
    Protected,
    Alone,
    Stopped,
}

/// How the set is when the failure counts.
#[derive(PartialEq, Debug)]
struct Seen {
    reads: Reads,
    /// Something is written and flushed.
    takes_changes: bool,
    shown: Shown,
    /// `holdfast flashlog status` says NOT PROTECTED, and exits with 3.
    is_told: bool,
}

/// What the documentation says of it. `lacks`: the log has what main has not.
fn expected(Cell { mode, role, symptom }: Cell, action: Action, lacks: bool) -> Seen {
    assert!(!lacks || mode == Mode::Asynchronous);
    let is_unreadable = role == Role::Main && matches!(symptom, Symptom::Read | Symptom::Gone);
    let reads = if is_unreadable { Reads::Failed } else { Reads::Given };
    match action {
        // Blocks that could not be read are told of until somebody has them.
        Action::Tell => Seen { reads, takes_changes: true, shown: Shown::Protected, is_told: symptom == Symptom::Read },
        Action::GoOnAlone if !lacks => Seen { reads, takes_changes: true, shown: Shown::Alone, is_told: true },
        Action::GoOnAlone | Action::ReadOnly => {
            Seen { reads, takes_changes: false, shown: Shown::Stopped, is_told: true }
        }
        Action::Stop => Seen { reads: Reads::Refused, takes_changes: false, shown: Shown::Stopped, is_told: true },
    }
}

/// Which places of the table can have what.
fn is_possible(Cell { role, symptom, .. }: Cell, Entry { patience, action }: Entry) -> bool {
    let has_its_patience = match patience {
        Patience::None => true,
        Patience::Retry { .. } => symptom == Symptom::Read,
        Patience::Wait { .. } => symptom == Symptom::Gone,
    };
    let has_its_action = match (role, action) {
        (Role::Backup, action) => action == Action::Tell,
        (Role::Main, Action::GoOnAlone) => false,
        (_, Action::Tell) => symptom == Symptom::Read,
        _ => true,
    };
    has_its_patience && has_its_action
}

/// A set with a backup, of which a device is about to fail.
struct Tried {
    cell: Cell,
    lacks: bool,
    rig: Rig,
    backup: Arc<Failing>,
    over_backup: Arc<dyn Device>,
}

impl Tried {
    fn new(cell: Cell, policy: &str, lacks: bool) -> Tried {
        // Memory would have what main lacks.
        let memory_blocks = if lacks { 0 } else { options(cell.mode).memory_blocks };
        let rig = Rig::with_memory(cell.mode, policy, memory_blocks);
        let backup = Failing::over(MemoryDevice::new(2048).named("backup"));
        let set = rig.set.set().unwrap();
        set.create_backup(backup.clone(), Uuid([9; 16])).unwrap();
        let over_backup = rig.watch.over(Role::Backup, backup.clone()).unwrap();
        set.backup(over_backup.clone()).unwrap();
        for at in 0..WRITTEN {
            put(&rig.set, at, at).unwrap();
        }
        rig.set.settle().unwrap();
        if lacks {
            put(&rig.set, IN_LOG, IN_LOG).unwrap();
            rig.set.flush().unwrap();
        }
        let tried = Tried { cell, lacks, rig, backup, over_backup };
        assert!(!tried.is_told(), "{cell:?}");
        tried
    }

    /// As `holdfast flashlog status` has it (`report.rs` of the command).
    fn is_told(&self) -> bool {
        let (status, protection) = self.rig.set.status();
        let is_troubled = status.troubles.iter().any(|(_, of)| of.waiting_since.is_some() || of.unread_blocks > 0);
        let has_no_backup = status.since_backup_blocks.is_none() || status.changed_blocks > 0;
        let is_damaged = status.damage != Damage::default() || status.log_damage.is_some();
        !matches!(protection, Protection::Protected) || is_troubled || has_no_backup || is_damaged
    }

    fn device(&self) -> &Arc<Failing> {
        match self.cell.role {
            Role::Main => &self.rig.main,
            Role::Log => &self.rig.log,
            Role::Backup => &self.backup,
        }
    }

    /// From now on, so often.
    fn fails(&self, times: i64) {
        self.device().times.store(times, Ordering::Relaxed);
        self.device().fail(self.cell.symptom);
    }

    /// It is in its place again when it has been looked for so often.
    fn comes_back(&self, looks: i64) {
        self.rig.places.looks.store(looks, Ordering::Relaxed);
        let back = Arc::new(Back(self.device().clone()));
        self.rig.places.there.lock().unwrap().push((self.cell.role, back));
    }

    /// Whether it is a backup that finds out. Nobody else reads what main has as well from the log; and in asynchronous mode whatever is written
    /// before a flush of the log is something that main lacks.
    fn needs_backup(&self) -> bool {
        let Cell { mode, role, symptom } = self.cell;
        let of_log = symptom == Symptom::Read || symptom == Symptom::Flush && mode == Mode::Asynchronous;
        role == Role::Backup || role == Role::Log && of_log && !self.lacks
    }

    /// Something that needs the device: whether all went well, and how long it took.
    fn need(&self) -> (bool, Duration) {
        let (set, begun) = (&self.rig.set, self.rig.timer.now());
        let is_done = match (self.cell.role, self.cell.symptom) {
            _ if self.needs_backup() => self.back_up(),
            (Role::Main, Symptom::Read) => read(set, ON_MAIN).is_ok(),
            (_, Symptom::Read) => read(set, IN_LOG).is_ok(),
            _ => put(set, 60, 60).and_then(|()| set.settle()).is_ok(),
        };
        (is_done, self.rig.timer.now() - begun)
    }

    /// As the command does it.
    fn back_up(&self) -> bool {
        let done = self.rig.set.set().unwrap().backup(self.over_backup.clone());
        match done.and_then(|_| verify_backup(self.over_backup.clone())) {
            Ok(_) => true,
            Err(error) => {
                let Some(failed) = error.of_device() else { panic!("{:?}: {error}", self.cell) };
                self.rig.set.heed(failed);
                false
            }
        }
    }

    fn seen(&self) -> Seen {
        let set = &self.rig.set;
        let reads = match read(set, ON_MAIN) {
            Ok(()) => Reads::Given,
            Err(DeviceError::Latched { .. }) => Reads::Refused,
            Err(_) => Reads::Failed,
        };
        let takes_changes = put(set, 70, 70).and_then(|()| set.flush()).is_ok();
        let shown = match set.protection() {
            Protection::Protected => Shown::Protected,
            Protection::Alone { .. } => Shown::Alone,
            Protection::Stopped { .. } => Shown::Stopped,
        };
        Seen { reads, takes_changes, shown, is_told: self.is_told() }
    }

    /// That what was flushed before is there when the set is opened with its devices as they are.
    fn keeps_everything(self, what: &str) {
        let Tried { cell, lacks, rig, .. } = self;
        let [main, log] = [&rig.main, &rig.log].map(|device| Arc::new(device.device.clone()));
        drop(rig);
        let opened = open(&main, &log, cell.mode).map(|(set, _)| set);
        let device: &dyn Device = match &opened {
            Ok(set) => set,
            Err(Error::Alone { .. }) => &*main,
            Err(error) => panic!("{what}: {error}"),
        };
        let written = (0..WRITTEN).chain(lacks.then_some(IN_LOG));
        written.for_each(|at| assert!(get(device, at) == block(at), "{what}: block {at}"));
    }
}

fn read(set: &Lasting, at: u64) -> Result<(), DeviceError> {
    let mut bytes = vec![0; BLOCK_SIZE];
    set.read(at, &mut [IoSliceMut::new(&mut bytes)])
}

/// That a set with this policy does in this case what this entry says.
fn does(cell: Cell, entry: Entry, policy: &str, lacks: bool) {
    let what = format!("{cell:?} is {entry}{}, {policy:?}", if lacks { ", main lacks something" } else { "" });
    let Entry { patience, action } = entry;
    let new = || Tried::new(cell, policy, lacks);
    // What comes right in time is nobody's concern; what does not is.
    match patience {
        Patience::Retry { times, pause } => {
            let tried = new();
            tried.fails(times.into());
            assert_eq!(tried.need(), (true, pause * times), "{what}");
            let Trouble { mended_reads, failed_reads, .. } = tried.rig.trouble(cell.role);
            assert_eq!((mended_reads, failed_reads, tried.is_told()), (1, 0, false), "{what}");
            let tried = new();
            tried.fails(i64::from(times) + 1);
            assert_eq!(tried.need().1, pause * times, "{what}");
            assert_eq!(tried.rig.trouble(cell.role).failed_reads, 1, "{what}");
        }
        Patience::Wait { most } => {
            let tried = new();
            tried.fails(i64::MAX);
            tried.comes_back(7);
            let (is_done, waited) = tried.need();
            assert!(is_done && waited > Duration::ZERO && waited < most, "{what}: {waited:?}");
            assert_eq!((tried.rig.trouble(cell.role).returns, tried.is_told()), (1, false), "{what}");
            let all = Seen { reads: Reads::Given, takes_changes: true, shown: Shown::Protected, is_told: false };
            assert_eq!(tried.seen(), all, "{what}");
            tried.keeps_everything(&what);
        }
        Patience::None => {}
    }
    let tried = new();
    tried.fails(i64::MAX);
    if patience == Patience::None {
        // Nobody looks.
        tried.comes_back(0);
    }
    let (is_done, waited) = tried.need();
    // Whoever writes need not know what main takes alone; whoever makes a backup does.
    let is_alone = expected(cell, action, lacks).shown == Shown::Alone;
    assert_eq!(is_done, is_alone && !tried.needs_backup(), "{what}");
    if let Patience::Wait { most } = patience {
        assert!((most..most + Duration::from_secs(1)).contains(&waited), "{what}: {waited:?}");
    }
    let trouble = tried.rig.trouble(cell.role);
    assert!(trouble.returns == 0 && trouble.last.is_some(), "{what}: {trouble:?}");
    assert_eq!(tried.seen(), expected(cell, action, lacks), "{what}");
    tried.keeps_everything(&what);
}

fn with_and_without_lack(cell: Cell, entry: Entry, policy: &str) {
    does(cell, entry, policy, false);
    if cell.mode == Mode::Asynchronous {
        does(cell, entry, policy, true);
    }
}

fn named(Cell { mode, role, symptom }: Cell) -> String {
    let mode = if mode == Mode::Synchronous { "sync" } else { "async" };
    format!("{mode}.{role}.{symptom}")
}

#[test]
fn each_cell_of_the_table_does_what_it_is_set_to_and_is_set_to_nothing_that_makes_no_sense() {
    let patiences = [
        Patience::None,
        Patience::Retry { times: 2, pause: Duration::from_secs(3) },
        Patience::Wait { most: Duration::from_secs(60) },
    ];
    let mut done = 0;
    for cell in cells() {
        for entry in patiences.iter().flat_map(|patience| ACTIONS.map(|action| Entry { patience: *patience, action })) {
            let policy = format!("{}={entry}", named(cell));
            assert_eq!(policy.parse::<Policy>().is_ok(), is_possible(cell, entry), "{policy}");
            if is_possible(cell, entry) {
                with_and_without_lack(cell, entry, &policy);
                done += 1;
            }
        }
    }
    // Of each mode: 6 + 2 + 2 + 4 of main, 8 + 3 + 3 + 6 of the log, 2 + 1 + 1 + 2 of a backup.
    assert_eq!(done, 2 * (14 + 20 + 6));
}

#[test]
fn each_cell_of_the_table_does_by_default_what_the_documentation_says() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flashlog.md")).unwrap();
    for cell in cells() {
        let row = format!("| `{}.{}` | `", cell.role, cell.symptom);
        let row = docs.lines().find_map(|line| line.strip_prefix(&row)).unwrap_or_else(|| panic!("no {row}"));
        let columns: Vec<&str> = row.trim_end_matches("` |").split("` | `").collect();
        let text = columns[usize::from(cell.mode == Mode::Asynchronous)];
        let policy: Policy = format!("{}={text}", named(cell)).parse().unwrap();
        let entry = policy.entry(cell.role, cell.symptom, cell.mode);
        assert_eq!(entry.to_string(), text);
        with_and_without_lack(cell, entry, "");
    }
}
