//! Labels: who a device is, and how far it is.

use super::{
    AREA_UNIT_BLOCKS, BLOCKS_MAX, Damage, FORMAT_VERSION, Fault, LABEL_AREA_BLOCKS, LABEL_PAIRS, expect_zero, hex,
    sums_area_blocks,
};
use holdfast_integrity::crc64;
use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"HFFLASHL";
/// The numbers of pages and positions count what was ever written: 2^60 blocks are not.
const NUMBER_END: u64 = 1 << 60;
/// Of so many blocks for both areas, one is of the meta area: enough for 32 KiB of data with each page, so that frequent flushes, which
/// each end a page, do not fill it long before the data area.
const META_SHARE: u64 = 9;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq)]
#[repr(C)]
struct RawPoint {
    page: U64,
    data: U64,
    previous: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    role: u8,
    state: u8,
    mode: u8,
    reserved: u8,
    block: U64,
    sequence: U64,
    set: [u8; 16],
    main: [u8; 16],
    log: [u8; 16],
    generation: U64,
    blocks: U64,
    device_blocks: U64,
    meta_start: U64,
    meta_blocks: U64,
    data_start: U64,
    data_blocks: U64,
    tail: RawPoint,
    applied: RawPoint,
    start: U64,
    backup: [u8; 16],
    staged: RawPoint,
    staged_pages: U64,
    staged_sum: U64,
    copied: U64,
    rebuilt: U64,
    map: U64,
    has_map: u8,
    reserved_2: [u8; 7],
    left: U64,
    durable: U64,
    backup_sequence: U64,
    dirty: U64,
    damaged: [U64; 4],
    log_tells: u8,
    reserved_3: [u8; 3735],
    barrier: U64,
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == 4096);
const _: () = assert!(std::mem::offset_of!(Raw, set) == 32);
const _: () = assert!(std::mem::offset_of!(Raw, generation) == 80);
const _: () = assert!(std::mem::offset_of!(Raw, tail) == 136);
const _: () = assert!(std::mem::offset_of!(Raw, backup) == 192);
const _: () = assert!(std::mem::offset_of!(Raw, map) == 264);
const _: () = assert!(std::mem::offset_of!(Raw, durable) == 288);
const _: () = assert!(std::mem::offset_of!(Raw, dirty) == 304);
const _: () = assert!(std::mem::offset_of!(Raw, damaged) == 312);
const _: () = assert!(std::mem::offset_of!(Raw, barrier) == 4080);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 4088);

/// A random number that names a set or a device of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Stands for none.
    pub(crate) const NONE: Uuid = Uuid([0; 16]);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// What a device is in its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Has every block at its own address.
    Main,
    /// Has what was written, in order.
    Log,
    /// Has every block at its own address, as it was at some moment.
    Backup,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Main => "main",
            Role::Log => "log",
            Role::Backup => "backup",
        })
    }
}

/// What a device is being used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// A log whose main may still have the generation before. Nothing of this generation has been written.
    Opening,
    /// In use. Of a main: it has, without the log, all that was flushed to it.
    Open,
    /// Of a main: what the log has is being copied to it; without the log it is a mixture.
    CatchingUp,
    /// Of a main: the log has failed, and main has everything.
    Alone,
    /// Of a backup: it is being copied, and is no state yet.
    Copying,
    /// Of a backup: what leads to the next state is complete in its staging area, and may have been copied to its place in part.
    Staged,
}

const STATES: [State; 6] =
    [State::Opening, State::Open, State::CatchingUp, State::Alone, State::Copying, State::Staged];

/// A place between two pages of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Point {
    /// Number of the page that comes next.
    pub(crate) page: u64,
    /// Position in the data area that comes next: blocks ever written there.
    pub(crate) data: u64,
    /// Checksum of the page before; 0 before the first.
    pub(crate) previous: u64,
}

impl Point {
    fn to_raw(self) -> RawPoint {
        RawPoint { page: U64::new(self.page), data: U64::new(self.data), previous: U64::new(self.previous) }
    }

    fn from_raw(raw: RawPoint) -> Point {
        Point { page: raw.page.get(), data: raw.data.get(), previous: raw.previous.get() }
    }
}

/// Where the areas of pages and of their data are, in blocks: of a log, or the staging area of a backup. All zero on main.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Areas {
    pub(crate) meta_start: u64,
    pub(crate) meta_blocks: u64,
    pub(crate) data_start: u64,
    pub(crate) data_blocks: u64,
}

/// A decoded label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub(crate) role: Role,
    pub(crate) state: State,
    /// Of this label among the device's.
    pub(crate) sequence: u64,
    pub(crate) set: Uuid,
    /// The main device that the set has.
    pub(crate) main: Uuid,
    /// The log device that the set has. Its pages have it too.
    pub(crate) log: Uuid,
    /// Goes up with every opening, closing and change of the set.
    pub(crate) generation: u64,
    /// Size of the set's device.
    pub(crate) blocks: u64,
    /// Size of the device that this label is on.
    pub(crate) device_blocks: u64,
    pub(crate) areas: Areas,
    /// Of a log: what is before it is not needed any more.
    pub(crate) tail: Point,
    /// Of a log: what is before it is durable on main. Of a backup: its state is the one after what is before it.
    pub(crate) applied: Point,
    /// Of a log: number of the first page of this generation; pages before it are of earlier ones.
    pub(crate) start: u64,
    /// Of a log: the backup for which it keeps everything from its tail on; zeros if there is none. Of a main that is alone: the one
    /// that its map of dirty regions is about. Of a backup: itself.
    pub(crate) backup: Uuid,
    /// Of a log, and of a main that is alone: the sequence number of the backup's label when what it lacks was last told; 0 if that is not
    /// known. One with a lower number is older than that.
    pub(crate) backup_sequence: u64,
    /// Of a main that is alone: sequence number of the map of what the backup lacks of what was written with the log; 0 if that is not known.
    pub(crate) dirty: u64,
    pub(crate) staging: Staging,
    /// Of a log: main was made anew in this generation, so what pages up to it say of main does not count. 0 if it never was.
    pub(crate) rebuilt: u64,
    /// Of a set that was last opened in asynchronous mode.
    pub(crate) is_asynchronous: bool,
    /// Of a log: number of the barrier that came next when the label was written.
    pub(crate) barrier: u64,
    /// Sequence number of the newest map of regions. Of a backup: of the log's map that is being copied.
    pub(crate) map: u64,
    /// The map of that number counts.
    pub(crate) has_map: bool,
    /// Of a main that is alone: the generation in which its log was there last.
    pub(crate) left: u64,
    /// Of a log: pages before this one were durable when the label was written. Of a main that is alone: when its log went. If one is missing, it
    /// was damaged, or the log is an older copy.
    pub(crate) durable: u64,
    /// Of a main. Of a backup: what main's label told when it was copied, if it was not known which blocks these are; only of main.
    pub(crate) damage: Damage,
}

/// What a backup is about to become. All zero on other devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Staging {
    /// The point of its next state.
    pub(crate) to: Point,
    /// Pages in the staging area, from the first of its meta area on.
    pub(crate) pages: u64,
    /// Checksum of the last of them.
    pub(crate) sum: u64,
    /// While it is being copied: blocks that are done.
    pub(crate) copied: u64,
}

/// What was found in a block where a label may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decoded {
    Valid(Box<Label>),
    /// No label.
    Nothing,
    OtherVersion(u32),
    Damaged(Fault),
}

/// First block of the pair for a label.
pub(crate) fn place(role: Role, sequence: u64, device_blocks: u64) -> u64 {
    Label::area(role, device_blocks) + 2 * (sequence % LABEL_PAIRS)
}

impl Areas {
    /// Both areas in these blocks, which are three MiB at least.
    pub(crate) fn between(start: u64, end: u64) -> Areas {
        let units = (end - start) / AREA_UNIT_BLOCKS;
        let meta_blocks = units.div_ceil(META_SHARE).min(units - 2) * AREA_UNIT_BLOCKS;
        Areas {
            meta_start: start,
            meta_blocks,
            data_start: start + meta_blocks,
            data_blocks: units * AREA_UNIT_BLOCKS - meta_blocks,
        }
    }
}

impl Label {
    /// That of a device of a new set of so many blocks, of which the set, main and log have these names.
    pub(crate) fn first(
        [set, main, log]: [Uuid; 3],
        blocks: u64,
        role: Role,
        device_blocks: u64,
        areas: Areas,
    ) -> Label {
        Label {
            role,
            state: State::Open,
            sequence: 0,
            set,
            main,
            log,
            generation: 1,
            blocks,
            device_blocks,
            areas,
            tail: Point::default(),
            applied: Point::default(),
            start: 0,
            backup: Uuid::NONE,
            backup_sequence: 0,
            dirty: 0,
            staging: Staging::default(),
            rebuilt: 0,
            is_asynchronous: false,
            barrier: 0,
            map: 0,
            has_map: false,
            left: 0,
            durable: 0,
            damage: Damage::default(),
        }
    }

    /// That of a device which comes to this set: what the set is, and nothing of how far one of its devices has got.
    pub(crate) fn of_newcomer(&self, role: Role, device_blocks: u64, areas: Areas) -> Label {
        let Label { set, main, log, generation, blocks, is_asynchronous, .. } = *self;
        Label { generation, is_asynchronous, ..Label::first([set, main, log], blocks, role, device_blocks, areas) }
    }

    /// Of a backup: what it has, or is about to have, goes with this log and its main.
    pub(crate) fn is_of(&mut self, log: &Label) {
        (self.main, self.log, self.generation) = (log.main, log.log, log.generation);
    }

    /// First block of the area of labels.
    pub(crate) fn area(role: Role, device_blocks: u64) -> u64 {
        match role {
            Role::Log => 0,
            Role::Main | Role::Backup => device_blocks.saturating_sub(LABEL_AREA_BLOCKS),
        }
    }

    /// Of a device on which main is being made anew: it is a mixture, and nobody's.
    pub(crate) fn is_given_up(&self) -> bool {
        self.role == Role::Main && self.main == Uuid::NONE
    }

    /// First block of the pair that this label is written to.
    pub(crate) fn place(&self) -> u64 {
        place(self.role, self.sequence, self.device_blocks)
    }

    /// Both blocks.
    pub(crate) fn encode(&self) -> [[u8; 4096]; 2] {
        [0, 1].map(|copy| self.encode_at(self.place() + copy))
    }

    fn encode_at(&self, block: u64) -> [u8; 4096] {
        let mut raw = Raw {
            magic: MAGIC,
            version: U32::new(FORMAT_VERSION),
            role: match self.role {
                Role::Main => 1,
                Role::Log => 2,
                Role::Backup => 3,
            },
            state: STATES.iter().position(|state| *state == self.state).unwrap_or_default() as u8 + 1,
            mode: u8::from(self.is_asynchronous),
            block: U64::new(block),
            sequence: U64::new(self.sequence),
            set: self.set.0,
            main: self.main.0,
            log: self.log.0,
            generation: U64::new(self.generation),
            blocks: U64::new(self.blocks),
            device_blocks: U64::new(self.device_blocks),
            meta_start: U64::new(self.areas.meta_start),
            meta_blocks: U64::new(self.areas.meta_blocks),
            data_start: U64::new(self.areas.data_start),
            data_blocks: U64::new(self.areas.data_blocks),
            tail: self.tail.to_raw(),
            applied: self.applied.to_raw(),
            start: U64::new(self.start),
            backup: self.backup.0,
            staged: self.staging.to.to_raw(),
            staged_pages: U64::new(self.staging.pages),
            staged_sum: U64::new(self.staging.sum),
            copied: U64::new(self.staging.copied),
            rebuilt: U64::new(self.rebuilt),
            barrier: U64::new(self.barrier),
            map: U64::new(self.map),
            has_map: u8::from(self.has_map),
            left: U64::new(self.left),
            durable: U64::new(self.durable),
            backup_sequence: U64::new(self.backup_sequence),
            dirty: U64::new(self.dirty),
            damaged: self.damage.to_raw(),
            log_tells: u8::from(self.damage.log_tells),
            ..Raw::new_zeroed()
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..4088]));
        zerocopy::transmute!(raw)
    }

    /// Whether these bytes begin as a label does.
    pub(crate) fn is_begun(bytes: &[u8; 4096]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// How large the device was that has these bytes, if they begin as a label does; they may be damaged.
    pub(crate) fn device_blocks_said(bytes: &[u8; 4096]) -> Option<u64> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        Self::is_begun(bytes).then_some(raw.device_blocks.get())
    }

    /// Reads what block `block` of a device of `device_blocks` blocks has.
    pub(crate) fn decode(bytes: &[u8; 4096], block: u64, device_blocks: u64) -> Decoded {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Decoded::Nothing;
        }
        let crc = crc64(&bytes[..4088]);
        if raw.crc.get() != crc {
            return Decoded::Damaged(Fault::new("checksum of the label", hex(raw.crc.get()), hex(crc)));
        }
        if raw.version.get() != FORMAT_VERSION {
            return Decoded::OtherVersion(raw.version.get());
        }
        match Self::judge(&raw, block, device_blocks) {
            Ok(label) => Decoded::Valid(Box::new(label)),
            Err(fault) => Decoded::Damaged(fault),
        }
    }

    fn judge(raw: &Raw, block: u64, device_blocks: u64) -> Result<Label, Fault> {
        let role = match raw.role {
            1 => Role::Main,
            2 => Role::Log,
            3 => Role::Backup,
            other => return Err(Fault::new("role", "1 to 3", other)),
        };
        let state = usize::from(raw.state).checked_sub(1).and_then(|at| STATES.get(at).copied());
        let state = state.ok_or_else(|| Fault::new("state", "1 to 6", raw.state))?;
        if raw.mode > 1 {
            return Err(Fault::new("mode", "0 or 1", raw.mode));
        }
        let sequence = raw.sequence.get();
        let at = place(role, sequence, device_blocks);
        if raw.block.get() != block || !(at..at + 2).contains(&block) {
            return Err(Fault::new("the label's own block", format!("{block} in {at}"), raw.block));
        }
        let (blocks, size) = (raw.blocks.get(), raw.device_blocks.get());
        if size != device_blocks {
            return Err(Fault::new("blocks of the device", device_blocks, size));
        }
        if blocks == 0 || blocks > BLOCKS_MAX || (role == Role::Main && blocks > Self::area(role, size)) {
            return Err(Fault::new("blocks of the set's device", "those of main before its labels", blocks));
        }
        let areas = Areas {
            meta_start: raw.meta_start.get(),
            meta_blocks: raw.meta_blocks.get(),
            data_start: raw.data_start.get(),
            data_blocks: raw.data_blocks.get(),
        };
        let label = Label {
            role,
            state,
            sequence,
            set: Uuid(raw.set),
            main: Uuid(raw.main),
            log: Uuid(raw.log),
            generation: raw.generation.get(),
            blocks,
            device_blocks: size,
            areas,
            tail: Point::from_raw(raw.tail),
            applied: Point::from_raw(raw.applied),
            start: raw.start.get(),
            backup: Uuid(raw.backup),
            staging: Staging {
                to: Point::from_raw(raw.staged),
                pages: raw.staged_pages.get(),
                sum: raw.staged_sum.get(),
                copied: raw.copied.get(),
            },
            rebuilt: raw.rebuilt.get(),
            is_asynchronous: raw.mode == 1,
            barrier: raw.barrier.get(),
            map: raw.map.get(),
            has_map: raw.has_map == 1,
            left: raw.left.get(),
            durable: raw.durable.get(),
            backup_sequence: raw.backup_sequence.get(),
            dirty: raw.dirty.get(),
            damage: Damage::from_raw(raw.damaged, raw.log_tells),
        };
        label.damage.judge(blocks)?;
        if raw.log_tells > u8::from(role == Role::Main && label.damage.main.blocks > 0) {
            return Err(Fault::new(
                "whether the log tells of damaged blocks",
                "1 if there are any, or 0",
                raw.log_tells,
            ));
        }
        // With room for all that will ever be added to them.
        let Label { sequence, generation, rebuilt, map, backup_sequence, dirty, durable, .. } = label;
        let numbers = [sequence, generation, rebuilt, map, backup_sequence, dirty, durable];
        if numbers.iter().any(|number| *number >= NUMBER_END) {
            return Err(Fault::new("numbers of the label", format!("less than {NUMBER_END}"), format!("{numbers:?}")));
        }
        // In front of one that is begun there is another, which main may have.
        let least = 1 + u64::from(state == State::Opening);
        if generation < least {
            return Err(Fault::new("generation", format!("{least} or more"), generation));
        }
        if raw.has_map > u8::from(role != Role::Backup) {
            return Err(Fault::new("map of regions", "1 if there is one, 0 if not", raw.has_map));
        }
        match role {
            Role::Main => {
                expect_zero("positions in the label of main", &raw.as_bytes()[104..192])?;
                expect_zero("positions in the label of main", &raw.as_bytes()[208..264])?;
                if state != State::Alone {
                    let what = "the backup of a main that is not alone";
                    expect_zero(what, &raw.backup)?;
                    expect_zero(what, raw.backup_sequence.as_bytes())?;
                    expect_zero(what, raw.dirty.as_bytes())?;
                    expect_zero("durable pages of the log of a main that is not alone", raw.durable.as_bytes())?;
                }
            }
            Role::Log => {
                label.judge_areas(LABEL_AREA_BLOCKS, size)?;
                label.judge_points()?;
                expect_zero("staging in the label of a log", &raw.as_bytes()[208..256])?;
            }
            Role::Backup => {
                label.judge_areas(blocks + sums_area_blocks(blocks), Self::area(role, size))?;
                label.judge_staging()?;
                expect_zero("points in the label of a backup", &raw.as_bytes()[136..160])?;
                expect_zero("points in the label of a backup", &raw.as_bytes()[184..192])?;
                expect_zero("rebuilding in the label of a backup", &raw.as_bytes()[256..264])?;
                expect_zero("durable pages in the label of a backup", raw.durable.as_bytes())?;
            }
        }
        if role != Role::Log {
            expect_zero("barrier in the label of another device", raw.barrier.as_bytes())?;
        }
        expect_zero("reserved bytes of the label", &[raw.reserved])?;
        expect_zero("reserved bytes of the label", &raw.reserved_2)?;
        expect_zero("reserved bytes of the label", &raw.reserved_3)?;
        if role == Role::Backup {
            expect_zero("the backup's label in itself", raw.backup_sequence.as_bytes())?;
        }
        if role != Role::Main {
            expect_zero("map of dirty regions in another label than main's", raw.dirty.as_bytes())?;
            expect_zero("generation of a lost log in another label than main's", &raw.left.to_bytes())?;
            expect_zero("damage of a backup in another label than main's", raw.damaged[2..].as_bytes())?;
        }
        if role == Role::Log {
            expect_zero("damage in the label of a log", raw.damaged.as_bytes())?;
        }
        Ok(label)
    }

    /// The areas are whole MiB, one after the other.
    fn judge_areas(&self, start: u64, device_end: u64) -> Result<(), Fault> {
        let Areas { meta_start, meta_blocks, data_start, data_blocks } = self.areas;
        let units = [meta_start, meta_blocks, data_start, data_blocks];
        let end = data_start.checked_add(data_blocks);
        let fits = meta_start == start
            && meta_start.checked_add(meta_blocks) == Some(data_start)
            && end.is_some_and(|end| end <= device_end);
        if fits && units.iter().all(|at| *at != 0 && at % AREA_UNIT_BLOCKS == 0) {
            return Ok(());
        }
        Err(Fault::new("areas", "whole MiB one after the other on the device", format!("{units:?}")))
    }

    /// The points are in order and within the rings.
    fn judge_points(&self) -> Result<(), Fault> {
        let (tail, applied) = (self.tail, self.applied);
        let used = applied.page.checked_sub(tail.page).zip(applied.data.checked_sub(tail.data));
        let fits = used.is_some_and(|(pages, data)| pages <= self.areas.meta_blocks && data <= self.areas.data_blocks);
        if fits && [applied.page, applied.data, self.start, self.barrier].iter().all(|at| *at < NUMBER_END) {
            return Ok(());
        }
        Err(Fault::new("points of the log", "in order, within the areas", format!("{tail:?}, {applied:?}")))
    }

    /// What is staged is within its area.
    fn judge_staging(&self) -> Result<(), Fault> {
        let Staging { to, pages, copied, .. } = self.staging;
        let numbers = [self.applied.page, self.applied.data, to.page, to.data];
        let fits = pages <= self.areas.meta_blocks && copied <= self.blocks;
        if fits && numbers.iter().all(|at| *at < NUMBER_END) {
            return Ok(());
        }
        Err(Fault::new("staging of the backup", "within its areas", format!("{:?}, {:?}", self.applied, self.staging)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bad;
    use super::*;

    fn log() -> Label {
        Label {
            role: Role::Log,
            state: State::Open,
            sequence: 70,
            set: Uuid([1; 16]),
            main: Uuid([2; 16]),
            log: Uuid([3; 16]),
            generation: 4,
            blocks: 2048,
            device_blocks: 1100,
            areas: Areas { meta_start: 256, meta_blocks: 256, data_start: 512, data_blocks: 512 },
            tail: Point { page: 5, data: 6, previous: 7 },
            applied: Point { page: 8, data: 9, previous: 10 },
            start: 11,
            backup: Uuid([12; 16]),
            staging: Staging::default(),
            rebuilt: 19,
            is_asynchronous: false,
            barrier: 20,
            map: 21,
            has_map: true,
            left: 0,
            durable: 22,
            backup_sequence: 0,
            dirty: 0,
            damage: Damage::default(),
        }
    }

    fn backup() -> Label {
        Label {
            role: Role::Backup,
            state: State::Staged,
            device_blocks: 3200,
            areas: Areas { meta_start: 2304, meta_blocks: 256, data_start: 2560, data_blocks: 256 },
            tail: Point::default(),
            start: 0,
            staging: Staging { to: Point { page: 13, data: 14, previous: 15 }, pages: 16, sum: 17, copied: 18 },
            rebuilt: 0,
            barrier: 0,
            durable: 0,
            has_map: false,
            ..log()
        }
    }

    fn main() -> Label {
        Label {
            role: Role::Main,
            device_blocks: 2304,
            areas: Areas::default(),
            tail: Point::default(),
            applied: Point::default(),
            start: 0,
            backup: Uuid::NONE,
            rebuilt: 0,
            barrier: 0,
            durable: 0,
            ..log()
        }
    }

    /// Seals changed bytes again.
    fn seal(bytes: &mut [u8; 4096]) {
        let crc = crc64(&bytes[..4088]);
        bytes[4088..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn both_copies_read_back_at_their_own_places_only() {
        let backed = Label { backup: Uuid([9; 16]), backup_sequence: 23, ..main() };
        let alone = Label { state: State::Alone, left: 3, durable: 26, dirty: 24, ..backed };
        let [main_bad, backup_bad] = [(3, 7), (1, 2047)].map(|(blocks, first)| Bad { blocks, first });
        let damage = Damage { main: main_bad, log_tells: true, backup: backup_bad };
        let damaged = Label { damage, ..main() };
        let forgotten = Label { damage: Damage { log_tells: false, ..damage }, ..main() };
        let log_of_backup = Label { backup_sequence: 25, ..log() };
        let of_forgotten = Label { damage: Damage { main: main_bad, ..Damage::default() }, ..backup() };
        for (label, place) in [
            (log(), 12),
            (log_of_backup, 12),
            (main(), 2048 + 12),
            (alone, 2048 + 12),
            (damaged, 2048 + 12),
            (forgotten, 2048 + 12),
            (backup(), 2944 + 12),
            (of_forgotten, 2944 + 12),
        ] {
            assert_eq!(label.place(), place);
            for (bytes, block) in label.encode().iter().zip(place..) {
                let valid = Decoded::Valid(Box::new(label.clone()));
                assert_eq!(Label::decode(bytes, block, label.device_blocks), valid);
                assert!(matches!(Label::decode(bytes, block ^ 1, label.device_blocks), Decoded::Damaged(_)));
                assert!(matches!(Label::decode(bytes, block + 2, label.device_blocks), Decoded::Damaged(_)));
                assert!(matches!(Label::decode(bytes, block, label.device_blocks + 1), Decoded::Damaged(_)));
            }
        }
    }

    #[test]
    fn the_bytes_are_golden() {
        // A change here is another version of the format.
        let [bytes, _] = log().encode();
        assert_eq!(&bytes[..16], b"HFFLASHL\x01\0\0\0\x02\x02\0\0");
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[48], bytes[64], bytes[80]), (12, 70, 1, 2, 3, 4));
        assert_eq!((&bytes[88..90], &bytes[96..98]), (&[0, 8][..], &[0x4c, 4][..]));
        assert_eq!((bytes[105], bytes[113], bytes[121], bytes[129]), (1, 1, 2, 2));
        let [of_asynchronous, _] = Label { is_asynchronous: true, ..log() }.encode();
        assert_eq!(&of_asynchronous[12..16], b"\x02\x02\x01\0");
        assert_eq!([136, 144, 152, 160, 168, 176, 184, 192].map(|at| bytes[at]), [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!([256, 264, 272, 288, 4080].map(|at| bytes[at]), [19, 21, 1, 22, 20]);
        let [of_alone, _] = Label { state: State::Alone, backup_sequence: 23, dirty: 24, ..main() }.encode();
        assert_eq!([296, 304].map(|at| of_alone[at]), [23, 24]);
        let [main_bad, backup_bad] = [(3, 7), (2, 9)].map(|(blocks, first)| Bad { blocks, first });
        let damage = Damage { main: main_bad, log_tells: true, backup: backup_bad };
        let [damaged, _] = Label { damage, ..main() }.encode();
        assert_eq!([312, 320, 328, 336, 344].map(|at| damaged[at]), [3, 7, 2, 9, 1]);
        let [of_backup, _] = backup().encode();
        assert_eq!([208, 216, 224, 232, 240, 248].map(|at| of_backup[at]), [13, 14, 15, 16, 17, 18]);
        let sums = [log(), main(), backup()].map(|label| label.encode().map(|bytes| crc64(&bytes[..4088])));
        let of_log = [0x681b_7605_afaa_ee1f, 0x8029_0d13_784e_4055];
        let of_main = [0xd0ae_2bce_fb88_47d5, 0x389c_50d8_2c6c_e99f];
        let of_backup = [0x23ff_a451_2b51_f85f, 0xcbcd_df47_fcb5_5615];
        assert_eq!(sums, [of_log, of_main, of_backup]);
    }

    #[test]
    fn every_flipped_byte_is_seen() {
        let [good, _] = log().encode();
        for at in 0..4096 {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert!(!matches!(Label::decode(&bytes, 12, 1100), Decoded::Valid(_)), "byte {at}");
        }
    }

    #[test]
    fn nonsense_behind_a_good_checksum_is_refused() {
        let [good, _] = log().encode();
        // Role, state, mode, reserved, block, sequence, blocks, device, areas, points, reserved bytes.
        let edits = [(12, 9), (13, 0), (13, 9), (14, 2), (16, 3), (24, 9), (90 + 5, 1), (96, 1), (104, 1)];
        let more = [
            (15, 1),
            (31, 0xff),
            (80, 0),
            (87, 0x10),
            (263, 0xff),
            (105, 9),
            (113, 9),
            (121, 3),
            (129, 99),
            (136, 9),
            (144, 10),
            (167, 0x10),
            (191, 0xff),
            (208, 1),
            (255, 1),
            (272, 2),
            (273, 1),
            (280, 1),
            (295, 0x10),
            (303, 0xff),
            (304, 1),
            (312, 1),
            (344, 1),
            (345, 1),
            (4079, 1),
            (4087, 0xff),
        ];
        for (at, value) in edits.into_iter().chain(more) {
            let mut bytes = good;
            bytes[at] = value;
            seal(&mut bytes);
            assert!(matches!(Label::decode(&bytes, 12, 1100), Decoded::Damaged(_)), "byte {at}");
        }
        // There is a generation before that of an opening.
        let [first, _] = Label { state: State::Opening, generation: 1, ..log() }.encode();
        assert!(matches!(Label::decode(&first, 12, 1100), Decoded::Damaged(_)));
        let mut bytes = main().encode()[0];
        bytes[160] = 1;
        seal(&mut bytes);
        assert!(matches!(Label::decode(&bytes, 2060, 2304), Decoded::Damaged(_)));
        for at in [192, 288, 296, 304, 314, 320, 344, 345] {
            let mut bytes = main().encode()[0];
            bytes[at] = 1;
            seal(&mut bytes);
            assert!(matches!(Label::decode(&bytes, 2060, 2304), Decoded::Damaged(_)), "byte {at} of main");
        }
        let edits = [
            (296, 1),
            (96, 0),
            (136, 1),
            (184, 1),
            (232 + 1, 2),
            (248 + 2, 1),
            (215, 0xff),
            (256, 1),
            (272, 1),
            (288, 1),
            (320, 1),
            (328, 1),
            (336, 1),
            (344, 1),
            (4080, 1),
        ];
        for (at, value) in edits {
            let mut bytes = backup().encode()[0];
            bytes[at] = value;
            seal(&mut bytes);
            assert!(matches!(Label::decode(&bytes, 2956, 3200), Decoded::Damaged(_)), "byte {at}");
        }
        let mut bytes = good;
        bytes[8] = 77;
        seal(&mut bytes);
        assert_eq!(Label::decode(&bytes, 12, 1100), Decoded::OtherVersion(77));
        assert_eq!(Label::decode(&[0; 4096], 12, 1100), Decoded::Nothing);
    }
}
