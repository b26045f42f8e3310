//! Attributes in memory, what an epoch that is written consists of, and what the next one or the next log batch will, written over on purpose: see
//! [`crate::lab`].

use crate::Cache;
use crate::progress::ProgressNumber;
use crate::sealed_attributes::SealedAttributes;
use crate::state::{FrozenEpoch, State};
use crate::sync::Capture;
use crate::thrice::Thrice;
use crate::unlogged::Unlogged;
use holdfast_object::{Attributes, NamePlace, ObjectId, Op, PageIndex};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Which attributes of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AttributesCopy {
    /// The newest.
    Newest,
    /// What these are compared with.
    TwinOfNewest,
    /// Those of a durable prefix of the object's own changes, by which log batches go.
    Stable,
    /// What these are compared with.
    TwinOfStable,
    /// Those of the epoch being written, which changes made meanwhile leave alone. Only who writes it can get hold of them.
    Frozen,
    /// What these are compared with.
    TwinOfFrozen,
}

impl AttributesCopy {
    /// All of them.
    pub const ALL: [AttributesCopy; 6] = [
        AttributesCopy::Newest,
        AttributesCopy::TwinOfNewest,
        AttributesCopy::Stable,
        AttributesCopy::TwinOfStable,
        AttributesCopy::Frozen,
        AttributesCopy::TwinOfFrozen,
    ];

    /// Whether it is there only while an epoch with a change of the object is written.
    pub fn is_frozen(self) -> bool {
        matches!(self, AttributesCopy::Frozen | AttributesCopy::TwinOfFrozen)
    }
}

/// An object in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidentObject {
    /// Which.
    pub object: ObjectId,
    /// It has changes that neither a log batch nor a recovery point has.
    pub is_changed: bool,
    /// It has changes in the epoch being written, and none since.
    pub is_frozen: bool,
}

/// What an epoch that is written consists of, beside pages and attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrozenPart {
    /// Which object its first operation is about.
    Operation,
    /// The same of a batch that is made of it for the store.
    Given,
    /// Which page of an object its first page is.
    Place(ObjectId),
    /// Which transaction its last one is: the first of three copies.
    Sequence,
    /// A word of what its requests have proved: the first of three copies.
    Proved(usize),
}

/// What becomes durable by a log batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapturedPart {
    /// Up to which transaction.
    Sequence,
    /// The first object of which the batch has the names.
    Names,
    /// The first of which it has all.
    Own,
}

/// What the next log batch or recovery point is going by, beside pages and attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingPart {
    /// The first truncation, zeroing or deletion of extended attributes that goes into the log with the object: its size, its offset, or which.
    Operation(ObjectId),
    /// Which object the first deletion is of that goes there with the names.
    Deletion,
    /// Which file goes there with the names, as a rename has put it in another's place.
    Brought(ObjectId),
    /// Which object has changes of names that are to go there.
    Names(ObjectId),
    /// Which page is to go there.
    Logged(ObjectId, PageIndex),
    /// Which object has changed since the last recovery point.
    Object(ObjectId),
    /// Which page of it has.
    Page(ObjectId, PageIndex),
    /// A number by which it is known what of the object is to go where: the first, second or third copy.
    Progress(ObjectId, ProgressNumber, usize),
    /// Where the operation log begins; of this and what follows the first, second or third copy.
    LogHead(usize),
    /// Where it ends.
    LogTail(usize),
    /// Where in it the open epoch begins.
    LogStart(usize),
    /// Which transaction was the last one.
    Sequence(usize),
    /// Up to which transaction there is no log batch.
    Spoilt(usize),
    /// A word of the sums that requests have proved, or behind these how many transactions nobody has audited: the first, second or third copy.
    Proved(usize, usize),
    /// How many pages have changed since the last recovery point.
    DirtyPages,
}

/// A strike at what is frozen, which waits for who writes the epoch.
enum Laid {
    Attributes { object: ObjectId, of_twin: bool, invert: Invert, bits: u64 },
    Part(FrozenPart, u64),
}

/// Such strikes. Where none waits, they cost a load for each request to the store.
#[derive(Default)]
pub(crate) struct FrozenStrikes {
    are_laid: AtomicBool,
    laid: Mutex<Vec<Laid>>,
    /// Bits of [`FrozenPart::Given`], or 0.
    given: AtomicU64,
    /// The same of a log batch.
    is_captured_laid: AtomicBool,
    captured: Mutex<Option<(CapturedPart, u64)>>,
}

impl FrozenStrikes {
    fn lay(&self, laid: Laid) {
        self.laid.lock().push(laid);
        self.are_laid.store(true, Ordering::Relaxed);
    }
}

/// Of the first operation.
fn invert_target(ops: &mut [Op], bits: u64) {
    if let Some(Op::Create { id, .. } | Op::Delete { id } | Op::Truncate { id, .. }) = ops.first_mut() {
        id.0 ^= bits;
    }
}

/// The number that a part is, and which copy of it.
fn kept_thrice(state: &mut State, part: PendingPart) -> Option<(&mut Thrice, usize)> {
    let [head, tail] = state.log.positions();
    Some(match part {
        PendingPart::Progress(id, number, copy) => (state.objects.get_mut(&id)?.progress.number(number), copy),
        PendingPart::LogHead(copy) => (head, copy),
        PendingPart::LogTail(copy) => (tail, copy),
        PendingPart::LogStart(copy) => (&mut state.open.log_start, copy),
        PendingPart::Sequence(copy) => (&mut state.sequence, copy),
        PendingPart::Spoilt(copy) => (&mut state.spoilt, copy),
        PendingPart::Proved(word, copy) => (state.open.proved.word(word), copy),
        _ => return None,
    })
}

/// Inverts bits of a number.
type Invert = fn(&mut Attributes, u64);

/// Fewer bits, of which some are 1 if some were.
fn half(bits: u64) -> u32 {
    (bits | bits >> 32) as u32
}

fn quarter(bits: u64) -> u16 {
    (half(bits) | half(bits) >> 16) as u16
}

/// All numbers of an object's attributes, with how bits of them are inverted; narrower ones take what they have room for. Its kind and class are no
/// numbers: others than those that there are cannot be made from here.
pub const ATTRIBUTE_FIELDS: [(&str, Invert); 23] = [
    ("generation", |of, bits| of.generation ^= bits),
    ("mode", |of, bits| of.mode ^= quarter(bits)),
    ("uid", |of, bits| of.uid ^= half(bits)),
    ("gid", |of, bits| of.gid ^= half(bits)),
    ("nlink", |of, bits| of.nlink ^= half(bits)),
    ("rdev", |of, bits| of.rdev ^= half(bits)),
    ("size", |of, bits| of.size ^= bits),
    ("blocks", |of, bits| of.blocks ^= bits),
    ("entries", |of, bits| of.entries ^= bits),
    ("atime.secs", |of, bits| of.atime.secs ^= bits as i64),
    ("atime.nanos", |of, bits| of.atime.nanos ^= half(bits)),
    ("mtime.secs", |of, bits| of.mtime.secs ^= bits as i64),
    ("mtime.nanos", |of, bits| of.mtime.nanos ^= half(bits)),
    ("ctime.secs", |of, bits| of.ctime.secs ^= bits as i64),
    ("ctime.nanos", |of, bits| of.ctime.nanos ^= half(bits)),
    ("btime.secs", |of, bits| of.btime.secs ^= bits as i64),
    ("btime.nanos", |of, bits| of.btime.nanos ^= half(bits)),
    ("parent", |of, bits| of.parent.0 ^= bits),
    ("name_key", |of, bits| of.name_key ^= bits),
    ("other_names", |of, bits| match of.other_names.first_mut() {
        Some(name) => name.key ^= bits,
        None => of.other_names.push(NamePlace { directory: ObjectId(bits), key: bits }),
    }),
    ("xattr", |of, bits| of.xattr.0 ^= bits),
    ("policy", |of, bits| of.policy.0 ^= quarter(bits)),
    ("flags", |of, bits| of.flags ^= half(bits)),
];

impl Cache {
    /// Objects of which something is known in memory.
    pub fn resident_objects(&self) -> Vec<ResidentObject> {
        let state = self.state.read();
        let objects = state.objects.iter().map(|(&object, known)| ResidentObject {
            object,
            is_changed: !known.is_clean(),
            is_frozen: state.freezing.is_some_and(|epoch| known.progress.changed_in.get() == Some(epoch)),
        });
        let mut objects: Vec<_> = objects.collect();
        objects.sort_unstable_by_key(|known| known.object);
        objects
    }

    /// Inverts bits of a field of an object's attributes, past what keeps their sum; whether the object is in memory. Also while an epoch is
    /// written; what that has of them is struck when its writer next has an answer from the store, if it has the object then.
    pub fn strike_attributes(&self, object: ObjectId, copy: AttributesCopy, field: &str, bits: u64) -> bool {
        let mut state = self.state.write();
        let invert = ATTRIBUTE_FIELDS.iter().find(|(name, _)| *name == field);
        let (Some(known), Some((_, invert))) = (state.objects.get_mut(&object), invert) else { return false };
        let strike = |attributes: &mut SealedAttributes, of_twin| attributes.strike(of_twin, |of| invert(of, bits));
        let lay = |of_twin| {
            let strikes = &self.frozen_strikes;
            strikes.lay(Laid::Attributes { object, of_twin, invert: *invert, bits });
        };
        match copy {
            AttributesCopy::Frozen => lay(false),
            AttributesCopy::TwinOfFrozen => lay(true),
            AttributesCopy::Newest => strike(&mut known.attributes, false),
            AttributesCopy::TwinOfNewest => strike(&mut known.attributes, true),
            AttributesCopy::Stable => strike(&mut known.stable, false),
            AttributesCopy::TwinOfStable => strike(&mut known.stable, true),
        }
        true
    }

    /// Inverts bits of a part of the next epoch that is written.
    pub fn strike_frozen_part(&self, part: FrozenPart, bits: u64) {
        match part {
            FrozenPart::Given => self.frozen_strikes.given.store(bits, Ordering::Relaxed),
            part => self.frozen_strikes.lay(Laid::Part(part, bits)),
        }
    }

    /// Inverts bits of a part of the next log batch or recovery point; whether it is there.
    pub fn strike_pending(&self, part: PendingPart, bits: u64) -> bool {
        let state = &mut *self.state.write();
        let strike = |change: Option<&mut Unlogged>| change.map(|change| change.strike(bits)).is_some();
        let other = |id: ObjectId| ObjectId(id.0 ^ bits);
        let objects = &mut state.objects;
        match part {
            PendingPart::Operation(id) => strike(objects.get_mut(&id).and_then(|known| known.structural.first_mut())),
            PendingPart::Deletion => strike(state.gone_unlogged.first_mut()),
            PendingPart::Brought(id) => {
                let brought = state.brings.remove(&id);
                brought.map(|brought| state.brings.insert(other(id), brought)).is_some()
            }
            PendingPart::Names(id) => state.names_unlogged.strike(id, other(id)),
            PendingPart::Progress(..)
            | PendingPart::LogHead(_)
            | PendingPart::LogTail(_)
            | PendingPart::LogStart(_)
            | PendingPart::Sequence(_)
            | PendingPart::Spoilt(_)
            | PendingPart::Proved(..) => {
                kept_thrice(state, part).map(|(number, copy)| number.strike(copy, bits)).is_some()
            }
            PendingPart::DirtyPages => {
                state.open.pages ^= bits;
                true
            }
            PendingPart::Object(id) => state.open.objects.strike(id, other(id)),
            PendingPart::Logged(id, index) => {
                objects.get_mut(&id).is_some_and(|known| known.unlogged.strike(index, index ^ bits))
            }
            PendingPart::Page(id, index) => {
                objects.get_mut(&id).is_some_and(|known| known.dirty.strike(index, index ^ bits))
            }
        }
    }

    /// Writes one byte over all copies of a number that is kept three times; whether it is one that is there.
    pub fn overwrite_pending(&self, part: PendingPart, byte: u8) -> bool {
        kept_thrice(&mut self.state.write(), part).map(|(number, _)| number.overwrite(byte)).is_some()
    }

    /// Inverts bits of what becomes durable by the next log batch that has such a part, while that is written.
    pub fn strike_captured_part(&self, part: CapturedPart, bits: u64) {
        *self.frozen_strikes.captured.lock() = Some((part, bits));
        self.frozen_strikes.is_captured_laid.store(true, Ordering::Relaxed);
    }

    /// Whoever has written a log batch comes by here with it.
    pub(crate) fn strike_captured(&self, captured: &mut Capture) {
        if self.frozen_strikes.is_captured_laid.load(Ordering::Relaxed) {
            let mut laid = self.frozen_strikes.captured.lock();
            *laid = laid.filter(|(part, bits)| !captured.strike(*part, *bits));
            self.frozen_strikes.is_captured_laid.store(laid.is_some(), Ordering::Relaxed);
        }
    }

    /// Whoever gives a batch to the store comes by here with it.
    pub(crate) fn strike_given(&self, ops: &mut [Op]) {
        if self.frozen_strikes.given.load(Ordering::Relaxed) != 0 && !ops.is_empty() {
            invert_target(ops, self.frozen_strikes.given.swap(0, Ordering::Relaxed));
        }
    }

    /// The writer of an epoch comes by here with all that only it has.
    pub(crate) fn strike_frozen(&self, frozen: &mut FrozenEpoch) {
        if !self.frozen_strikes.are_laid.swap(false, Ordering::Relaxed) {
            return;
        }
        for laid in self.frozen_strikes.laid.lock().drain(..) {
            match laid {
                Laid::Attributes { object, of_twin, invert, bits } => {
                    if let Some(known) = frozen.objects.iter_mut().find(|known| known.id == object) {
                        known.attributes.strike(of_twin, |of| invert(of, bits));
                    }
                }
                Laid::Part(FrozenPart::Operation | FrozenPart::Given, bits) => {
                    frozen.ops.strike(|ops| invert_target(ops, bits));
                }
                Laid::Part(FrozenPart::Sequence, bits) => frozen.sequence.strike(0, bits),
                Laid::Part(FrozenPart::Proved(word), bits) => frozen.proved.word(word).strike(0, bits),
                Laid::Part(FrozenPart::Place(object), bits) => {
                    let known = frozen.objects.iter_mut().find(|known| known.id == object);
                    if let Some((index, _)) = known.and_then(|known| known.pages.first_mut()) {
                        *index ^= bits;
                    }
                }
            }
        }
    }
}
