//! Moments to go back to: the barriers that the log has behind a backup's state. Nothing here writes.

use super::Error;
use super::chunk::zero_sum;
use super::format::{Entry, Fault, Label, Of, Page, Point, Role, State, hex};
use super::labels::Labelled;
use super::newest::Newest;
use super::ring::{Area, Rings};
use super::scan::{Data, Scan, look_for_data};
use super::staging::Backup;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Blocks of data that are read at once: 1 MiB.
const VERIFIED_BLOCKS: usize = 256;

/// Which state is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum At {
    /// Everything that the log has.
    #[default]
    Now,
    /// The last barrier whose number is not greater. A number behind those of all barriers is refused.
    Barrier(u64),
    /// The last barrier that was written not later.
    Time(SystemTime),
    /// What the backup has, without the log.
    Backup,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Now => f.write_str("now"),
            At::Barrier(number) => write!(f, "barrier {number}"),
            At::Time(time) => write!(f, "{} seconds after 1970", seconds(*time)),
            At::Backup => f.write_str("the backup's state"),
        }
    }
}

/// Since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A moment at which a flush was asked for: what was written before it is in the log in front of it, and nothing else is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Barrier {
    /// Its number.
    pub number: u64,
    /// When it was.
    pub time: SystemTime,
    /// Blocks written since the barrier before, or since the backup's state.
    pub blocks: u64,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "barrier {} ({} seconds after 1970)", self.number, seconds(self.time))
    }
}

/// The barriers between a backup's state and the end of the log, in order. The set may not be in use; nothing is written to its devices.
///
/// # Errors
/// [`Error`] tells which device cannot be used, and why. Damage in the log is one: what is behind it is not known.
pub fn barriers(backup: Arc<dyn Device>, log: Arc<dyn Device>) -> Result<Vec<Barrier>, Error> {
    let backup = Backup::look(backup)?;
    let log = Labelled::read(log, Role::Log)?;
    let survey = Behind::closed(&backup, &log)?.survey()?;
    match survey.damage {
        Some(damage) => Err(damage),
        None => Ok(survey.barriers.into_iter().map(|(barrier, _)| barrier).collect()),
    }
}

/// The log behind a backup's state.
pub(super) struct Behind {
    pub(super) rings: Rings,
    label: Label,
    /// The backup's state.
    from: Point,
    /// Up to there it is durable, if that is known.
    end: Option<Point>,
    backup: Arc<str>,
}

/// What is behind a backup's state.
pub(super) struct Survey {
    /// With the points after them.
    pub(super) barriers: Vec<(Barrier, Point)>,
    /// The end.
    pub(super) end: Point,
    /// Blocks behind the last barrier.
    pub(super) rest_blocks: u64,
    /// There was more, which is damaged, or may be: what cannot be read may have been flushed.
    pub(super) damage: Option<Error>,
}

/// Where the newest version of a block is, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) address: u64,
    /// Position of its data, or of zeros that of what follows; the lowest bit says which.
    packed: u64,
    pub(super) sum: u64,
}

impl Kept {
    /// The blocks of an entry.
    pub(super) fn of(entry: &Entry) -> impl Iterator<Item = Kept> {
        let (first, data) = (entry.first, entry.data);
        (0..entry.blocks()).map(move |index| match &entry.of {
            Of::Data(sums) => {
                Kept { address: first + index, packed: (data + index) << 1 | 1, sum: sums[index as usize] }
            }
            Of::Zeros { .. } => Kept { address: first + index, packed: data << 1, sum: zero_sum() },
        })
    }

    /// A block of zeros, wherever the log says so.
    pub(super) fn zeros(address: u64) -> Kept {
        Kept { address, packed: 0, sum: zero_sum() }
    }

    /// A block that is to be found at this position.
    pub(super) fn at(address: u64, position: u64, sum: u64) -> Kept {
        Kept { address, packed: position << 1 | 1, sum }
    }

    /// Position of its data; none if it is zeros.
    pub(super) fn position(&self) -> Option<u64> {
        (self.packed & 1 == 1).then_some(self.packed >> 1)
    }

    pub(super) fn is_zeros(&self) -> bool {
        self.position().is_none()
    }
}

impl Behind {
    /// Of a set that is not in use.
    pub(super) fn closed(backup: &Backup, log: &Labelled) -> Result<Behind, Error> {
        let rings = Rings { device: Arc::clone(&log.device), areas: log.label.areas };
        let behind = Self::new(backup, rings, log.label.clone(), None)?;
        behind.verify_join()?;
        Ok(behind)
    }

    /// Of a set in use, whose log is durable up to there.
    pub(super) fn open(backup: &Backup, log: &Labelled, end: Point) -> Result<Behind, Error> {
        let rings = Rings { device: Arc::clone(&log.device), areas: log.label.areas };
        let behind = Self::new(backup, rings, log.label.clone(), Some(end))?;
        if behind.from.page > end.page {
            let (device, expected, got) = (log.device.name().into(), behind.from.page, end.page);
            return Err(Error::Older { device, expected, got });
        }
        verify_join(&behind.rings, &log.label, behind.from)?;
        Ok(behind)
    }

    /// The log by itself, from a point on.
    pub(super) fn of_log(log: &Labelled, from: Point, end: Point) -> Behind {
        let rings = Rings { device: Arc::clone(&log.device), areas: log.label.areas };
        Behind { rings, label: log.label.clone(), from, end: Some(end), backup: "none".into() }
    }

    fn new(backup: &Backup, rings: Rings, label: Label, end: Option<Point>) -> Result<Behind, Error> {
        let (of, from) = (backup.label(), backup.point());
        let device: Arc<str> = backup.labels.device.name().into();
        if of.set != label.set {
            return Err(Error::OtherSet { device, expected: label.set, got: of.set });
        }
        if of.state == State::Copying {
            return Err(Error::Incomplete { device });
        }
        if of.log != label.log {
            let (device, role) = (rings.device.name().into(), Role::Log);
            return Err(Error::Replaced { device, role, expected: of.log, got: label.log });
        }
        if of.backup != label.backup || from.page < label.tail.page {
            return Err(Error::Gap { device, first: label.tail.page, needed: from.page });
        }
        // Of a set in use the tail goes on; pages that are written then have room as seen from there.
        let tail = if end.is_some() { from } else { label.tail };
        Ok(Behind { rings, label: Label { tail, ..label }, from, end, backup: device })
    }

    /// Blocks of the set's device, which may be more than those of the backup.
    pub(super) fn blocks(&self) -> u64 {
        self.label.blocks
    }

    fn scan(&self) -> Scan<'_> {
        Scan::new(&self.rings, &self.label, self.from, false).without_mending()
    }

    /// That the log has, in front of the backup's state, the page that the backup knows.
    fn verify_join(&self) -> Result<(), Error> {
        verify_join(&self.rings, &self.label, self.from)
    }

    /// The next page, unless it is behind what is durable.
    fn next(&self, scan: &mut Scan<'_>) -> Result<Option<Page>, Error> {
        if self.end.is_some_and(|end| scan.at.page >= end.page) { Ok(None) } else { scan.next() }
    }

    /// Reads all pages, twice, and the data of those that nothing says were durable: the end is where an opening would find it.
    pub(super) fn survey(&self) -> Result<Survey, Error> {
        let mut scan = self.scan();
        let mut durable = self.end.map_or(self.label.start.max(self.label.durable), |end| end.page);
        while let Some(page) = self.next(&mut scan)? {
            durable = durable.max(page.head.durable_pages());
        }
        // Of a set in use the end is known.
        let mut unread = scan.unread_end().filter(|_| self.end.is_none());
        let damage = match self.end {
            Some(end) if scan.at != end => Some(scan.missing()),
            Some(_) => None,
            None => match scan.verify_end() {
                Ok(()) => None,
                Err(damage @ (Error::Damaged { .. } | Error::MissingPages { .. })) => Some(damage),
                Err(error) => return Err(error),
            },
        };
        let mut survey = Survey { barriers: Vec::new(), end: self.from, rest_blocks: 0, damage };
        let mut scan = self.scan();
        while let Some(page) = self.next(&mut scan)? {
            if page.head.number >= durable && self.look_for_data(&page)?.ends_log(&mut unread) {
                break;
            }
            if !page.head.is_partial {
                survey.end = scan.at;
            }
            survey.rest_blocks += page.blocks();
            if page.head.is_barrier {
                let blocks = std::mem::take(&mut survey.rest_blocks);
                let barrier = Barrier { number: page.head.barrier, time: page.head.time, blocks };
                survey.barriers.push((barrier, scan.at));
            }
        }
        survey.damage = survey.damage.or(unread);
        Ok(survey)
    }

    /// The point of a state, and the barrier if it is one.
    pub(super) fn choose(&self, survey: &Survey, at: At) -> Result<(Point, Option<Barrier>), Error> {
        let wanted: &dyn Fn(&Barrier) -> bool = match &at {
            At::Backup => return Ok((self.from, None)),
            At::Now => &|_| true,
            At::Barrier(number) => &|barrier| barrier.number <= *number,
            At::Time(time) => &|barrier| barrier.time <= *time,
        };
        let found = survey.barriers.iter().rposition(|(barrier, _)| wanted(barrier));
        let is_certain =
            matches!((at, found), (At::Barrier(number), Some(found)) if survey.barriers[found].0.number == number);
        if let (false, Some(damage)) = (is_certain, &survey.damage) {
            // What is behind it may be what is wanted.
            return Err(damage.clone());
        }
        if let (At::Barrier(wanted), Some((last, _))) = (at, survey.barriers.last())
            && wanted > last.number
        {
            return Err(Error::NoBarrier { device: self.rings.device.name().into(), wanted, last: *last });
        }
        match found.map(|found| survey.barriers[found]) {
            Some((barrier, point)) if at != At::Now || point == survey.end => Ok((point, Some(barrier))),
            _ if at == At::Now => Ok((survey.end, None)),
            _ => {
                let first = survey.barriers.first().map(|(barrier, _)| *barrier);
                Err(Error::TooEarly { device: Arc::clone(&self.backup), wanted: at, first })
            }
        }
    }

    /// The newest version of each block up to a point.
    pub(super) fn newest(&self, to: Point) -> Result<Newest, Error> {
        self.newest_between(self.from, to)
    }

    /// The same from another point on.
    pub(super) fn newest_between(&self, from: Point, to: Point) -> Result<Newest, Error> {
        let mut newest = Newest::default();
        self.each_entry(from, to, |entry| newest.add(entry))?;
        newest.end();
        Ok(newest)
    }

    /// What there is between two points.
    pub(super) fn each_entry(&self, from: Point, to: Point, mut see: impl FnMut(&Entry)) -> Result<(), Error> {
        let mut scan = Scan::new(&self.rings, &self.label, from, false).without_mending();
        while scan.at.page < to.page {
            scan.next_there()?.entries.iter().for_each(&mut see);
        }
        Ok(())
    }

    /// Reads the data of the newest versions up to a point. Gives the first block of the log that is damaged beyond what can be made good, or cannot
    /// be read, and the end of what is in front of its page.
    pub(super) fn damaged_data(&self, to: Point) -> Result<Option<(Error, Point)>, Error> {
        let mut newest = self.newest(to)?.into_data();
        newest.sort_unstable_by_key(|kept| kept.packed);
        let mut bytes = AlignedBuf::zeroed(VERIFIED_BLOCKS * BLOCK_SIZE);
        for part in newest.chunks(VERIFIED_BLOCKS) {
            let positions: Vec<u64> = part.iter().filter_map(Kept::position).collect();
            let bytes = &mut bytes[..part.len() * BLOCK_SIZE];
            let unread = self.rings.read_each_that_can_be(Area::Data, &positions, bytes)?;
            let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
            for ((block, kept), position) in blocks.iter_mut().zip(part).zip(positions) {
                if !is_good(block, kept.sum) {
                    let (device, at) = (self.rings.device.name().into(), self.rings.block(Area::Data, position));
                    let got = unread.why(position).map_or(hex(crc64(block)), |why| format!("none ({why})"));
                    let of = format!("{got}, for block {} of the set", kept.address);
                    let fault = Fault::new("checksum of a block's newest version", hex(kept.sum), of);
                    return Ok(Some((Error::Damaged { device, block: at, fault }, self.in_front_of(position)?)));
                }
            }
        }
        Ok(None)
    }

    /// The end of what is in front of the page that has the data at a position.
    fn in_front_of(&self, position: u64) -> Result<Point, Error> {
        let (mut scan, mut end) = (self.scan(), self.from);
        loop {
            let page = scan.next_there()?;
            let has_it = |entry: &Entry| (entry.data..entry.data + entry.sums().len() as u64).contains(&position);
            if page.entries.iter().any(has_it) {
                return Ok(end);
            }
            if !page.head.is_partial {
                end = scan.at;
            }
        }
    }

    /// Whether all data of a page is there, or can be made good.
    fn look_for_data(&self, page: &Page) -> Result<Data, Error> {
        look_for_data(&self.rings, page, |block, kept, _| Ok(is_good(block, kept.sum)))
    }
}

/// That a log has, in front of a backup's state, the page that the backup knows, as far as that page can be read: otherwise it has lost what the
/// backup has, and has gone on from an earlier state.
pub(super) fn verify_join(rings: &Rings, label: &Label, state: Point) -> Result<(), Error> {
    let Point { page, previous, .. } = state;
    if page <= label.tail.page {
        return Ok(());
    }
    let mut bytes = [0; BLOCK_SIZE];
    rings.read_what_can_be(Area::Meta, page - 1, &mut bytes)?;
    match Page::decode_mending(&mut bytes, label.blocks) {
        Ok(found) if found.head.log == label.log && found.head.number == page - 1 && found.sum != previous => {
            let (device, block) = (rings.device.name().into(), rings.block(Area::Meta, page - 1));
            let fault = Fault::new("the page before the backup's state", hex(previous), hex(found.sum));
            Err(Error::Damaged { device, block, fault })
        }
        _ => Ok(()),
    }
}

/// Whether a block has this checksum, if need be after flipping back one bit.
pub(super) fn is_good(block: &mut [u8; BLOCK_SIZE], sum: u64) -> bool {
    crc64(block) == sum || correct_flips(block, sum, FlipsMax::One).is_some()
}
