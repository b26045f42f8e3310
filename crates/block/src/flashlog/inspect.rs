//! What the label of a device says, without its set being opened.

use super::Error;
use super::device::Mode;
use super::dirty::PAGES_MOST;
use super::format::{Damage, Decoded, Label, Role, State, Uuid};
use super::labels::{Labelled, newest};
use super::ring::{Rings, is_of_read};
use super::scan::Scan;
use crate::Device;
use std::sync::Arc;

/// What a device of a set is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Main is being made anew on it, or that was cut off: it is a mixture, and nobody's.
    GivenUp,
    /// In order, or the set is in use, or is being opened.
    Open,
    /// A main that is between two states: it can be used with its log only.
    CatchingUp,
    /// A main that has gone on without its log.
    Alone,
    /// A backup whose full copy is not complete: it is no state yet.
    Copying,
    /// A backup whose next state is complete, and may be in its place in part.
    Staged,
}

/// What the newest label of a device says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// What it is in its set.
    pub role: Role,
    /// What it is at.
    pub condition: Condition,
    /// The set.
    pub set: Uuid,
    /// The device's own name.
    pub uuid: Uuid,
    /// The main device that the set has.
    pub main: Uuid,
    /// The log device that the set has.
    pub log: Uuid,
    /// Of a log: the backup for which it is kept. Of a backup: itself.
    pub backup: Option<Uuid>,
    /// Of a log: it does not keep all that the backup may lack.
    pub has_map: bool,
    /// Goes up with every opening, closing and change of the set.
    pub generation: u64,
    /// How the set was opened last.
    pub mode: Mode,
    /// Blocks of the set's device.
    pub blocks: u64,
    /// Blocks of this device.
    pub device_blocks: u64,
    /// Of a backup that is being copied: blocks that are done.
    pub copied_blocks: u64,
    /// Of a main: what was found damaged, and not found mended since. Of a backup: what main's label told of main when it was copied, if it was not known
    /// any more which blocks these are.
    pub damage: Damage,
}

/// What a device is, as far as its label says; `None` if it has no label. Nothing is written, so this can be done while the set is in
/// use: it tells what was, not what is.
///
/// # Errors
/// [`Error::Device`]; [`Error::OtherVersion`] and [`Error::Damaged`] if there are labels, but none that is whole; [`Error::LabelUnread`] if there
/// may be one that cannot be read: with the role of a main, it may be a backup's.
pub fn inspect(device: &dyn Device) -> Result<Option<Inspected>, Error> {
    // Main's and a backup's labels are in the same place.
    let mut bad = None;
    for role in [Role::Main, Role::Log] {
        let found = match newest(device, role) {
            Err(cause) if is_of_read(&cause) => {
                // In the other place may be one.
                bad = bad.or(Some(Error::LabelUnread { device: device.name().into(), role, cause }));
                continue;
            }
            found => found?,
        };
        match found {
            Decoded::Valid(label) => return Ok(Some(Inspected::of(&label))),
            Decoded::Nothing => {}
            Decoded::OtherVersion(version) => {
                bad = bad.or(Some(Error::OtherVersion { device: device.name().into(), version }));
            }
            Decoded::Damaged(fault) => {
                let block = Label::area(role, device.blocks());
                bad = bad.or(Some(Error::Damaged { device: device.name().into(), block, fault }));
            }
        }
    }
    bad.map_or(Ok(None), Err)
}

/// Reads the pages that a log keeps, if they are not more than an opening reads, and tells what is damaged. Nothing is written. Of a log that is
/// written meanwhile nothing is told.
///
/// # Errors
/// [`Error`] tells what is wrong with the device or its labels.
pub fn damaged_pages(log: Arc<dyn Device>) -> Result<Option<Error>, Error> {
    let log = Labelled::read(log, Role::Log)?;
    let label = &log.label;
    if label.backup == Uuid::NONE || label.start.max(label.durable) > label.tail.page + PAGES_MOST {
        return Ok(None);
    }
    let rings = Rings { device: Arc::clone(&log.device), areas: label.areas };
    let mut scan = Scan::new(&rings, label, label.tail, false).without_mending();
    while scan.next()?.is_some() {}
    // An opening is refused then, or compares everything.
    let unread = scan.unread_end();
    match scan.verify_end().and_then(|()| unread.map_or(Ok(()), Err)) {
        Err(damage @ (Error::Damaged { .. } | Error::MissingPages { .. })) => {
            let now = Labelled::read(Arc::clone(&log.device), Role::Log)?;
            Ok((now.label.sequence == label.sequence).then_some(damage))
        }
        done => done.map(|()| None),
    }
}

impl Inspected {
    fn of(label: &Label) -> Inspected {
        Inspected {
            role: label.role,
            condition: match label.state {
                _ if label.is_given_up() => Condition::GivenUp,
                State::Open | State::Opening => Condition::Open,
                State::CatchingUp => Condition::CatchingUp,
                State::Alone => Condition::Alone,
                State::Copying => Condition::Copying,
                State::Staged => Condition::Staged,
            },
            set: label.set,
            uuid: match label.role {
                Role::Main => label.main,
                Role::Log => label.log,
                Role::Backup => label.backup,
            },
            main: label.main,
            log: label.log,
            backup: (label.backup != Uuid::NONE).then_some(label.backup),
            has_map: label.has_map && label.role == Role::Log,
            generation: label.generation,
            mode: if label.is_asynchronous { Mode::Asynchronous } else { Mode::Synchronous },
            blocks: label.blocks,
            device_blocks: label.device_blocks,
            copied_blocks: label.staging.copied,
            damage: label.damage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::flashlog::tests::Unreadable;
    use crate::flashlog::{Create, Flashlog, Options, create, finish_backup};

    const SET: Uuid = Uuid([1; 16]);

    fn set(main: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>) {
        create(main.clone(), log.clone(), &Create { set: SET, main: Uuid([2; 16]), log: Uuid([3; 16]) }).unwrap();
    }

    #[test]
    fn each_device_says_what_it_is() {
        let (main, log) = (Arc::new(MemoryDevice::new(1024)), Arc::new(MemoryDevice::new(2048)));
        let backup = Arc::new(MemoryDevice::new(2048));
        assert_eq!(inspect(&*main).unwrap(), None);
        assert_eq!(inspect(&MemoryDevice::new(3)).unwrap(), None);
        set(&main, &log);
        assert_eq!(inspect(&*main).unwrap().unwrap().mode, Mode::Synchronous);
        let options = Options { mode: Mode::Asynchronous, ..Options::default() };
        let (flashlog, _) = Flashlog::open(main.clone(), log.clone(), &options).unwrap();
        flashlog.create_backup(backup.clone(), Uuid([4; 16])).unwrap();
        let found = inspect(&*backup).unwrap().unwrap();
        assert_eq!((found.role, found.condition, found.uuid), (Role::Backup, Condition::Copying, Uuid([4; 16])));
        assert!(matches!(finish_backup(backup.clone()), Err(Error::Incomplete { .. })));
        flashlog.backup(backup.clone()).unwrap();
        finish_backup(backup.clone()).unwrap();
        for (device, role, uuid) in [(&main, Role::Main, 2), (&log, Role::Log, 3), (&backup, Role::Backup, 4)] {
            let found = inspect(&**device).unwrap().unwrap();
            let expected = (role, Condition::Open, SET, Uuid([uuid; 16]), 2, 768);
            assert_eq!(found.mode, Mode::Asynchronous);
            let (generation, blocks) = (found.generation, found.blocks);
            assert_eq!((found.role, found.condition, found.set, found.uuid, generation, blocks), expected);
        }
        assert_eq!(inspect(&*log).unwrap().unwrap().backup, Some(Uuid([4; 16])));
    }

    #[test]
    fn what_a_device_is_that_cannot_be_read_in_another_place_is_told_and_what_cannot_be_told_is_of_its_labels() {
        let [main, log] = [1024, 2048].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
        set(&main, &log);
        // The only label of each, one copy of which is enough.
        let of = |device: &Arc<MemoryDevice>, role| Label::area(role, device.blocks()) + 2;
        for (device, own, other) in [(&main, Role::Main, Role::Log), (&log, Role::Log, Role::Main)] {
            let inspected = inspect(&*Unreadable::at(device, of(device, own))).unwrap().unwrap();
            assert_eq!(inspected.role, own);
            let both = |role| Unreadable::over(Unreadable::at(device, of(device, role)), of(device, role) + 1);
            assert_eq!(inspect(&*both(other)).unwrap().unwrap().role, own);
            let unread = inspect(&*both(own));
            assert!(matches!(unread, Err(Error::LabelUnread { role, .. }) if role == own), "{unread:?}");
        }
    }

    #[test]
    fn a_device_that_was_another_kind_is_only_what_it_is_now() {
        let [a, b, c] = [0; 3].map(|_| Arc::new(MemoryDevice::new(2048)));
        set(&a, &b);
        set(&b, &c);
        assert_eq!(inspect(&*b).unwrap().unwrap().role, Role::Main);
        set(&a, &b);
        assert_eq!(inspect(&*b).unwrap().unwrap().role, Role::Log);
        assert_eq!(inspect(&*a).unwrap().unwrap().role, Role::Main);
    }
}
