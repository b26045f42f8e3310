//! The labels of one device: finding the newest one, writing the next.

use super::Error;
use super::format::{
    Decoded, LABEL_AREA_BLOCKS, LABEL_PAIRS, LABELS_BLOCKS, Label, MAP_BLOCKS, MAP_SLOT_BLOCKS, MapOf, Regions, Role,
    place,
};
use super::ring::is_of_read;
use super::trim::trim_all;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A device with its newest label.
pub(super) struct Labelled {
    pub(super) device: Arc<dyn Device>,
    pub(super) label: Label,
}

impl Labelled {
    /// Finds the newest label of a device that should have this role.
    pub(super) fn read(device: Arc<dyn Device>, role: Role) -> Result<Labelled, Error> {
        let name = || -> Arc<str> { device.name().into() };
        let found = newest(&*device, role).map_err(|cause| match is_of_read(&cause) {
            true => Error::LabelUnread { device: name(), role, cause },
            false => cause.into(),
        })?;
        // Those of main and backup are in the same place.
        let other = if role == Role::Log { Role::Main } else { Role::Log };
        match found {
            Decoded::Valid(label) if label.is_given_up() => Err(Error::GivenUp { device: name() }),
            Decoded::Valid(label) if label.role == role => Ok(Labelled { label: *label, device }),
            Decoded::Valid(label) => Err(Error::OtherRole { device: name(), expected: role, got: label.role }),
            Decoded::OtherVersion(version) => Err(Error::OtherVersion { device: name(), version }),
            Decoded::Damaged(fault) => {
                Err(Error::Damaged { device: name(), block: Label::area(role, device.blocks()), fault })
            }
            Decoded::Nothing => match newest(&*device, other)? {
                Decoded::Valid(label) => Err(Error::OtherRole { device: name(), expected: role, got: label.role }),
                _ => Err(Error::NoLabel { device: name(), role }),
            },
        }
    }

    /// Makes the device one of a set. Labels that it may have had are gone first, also those of another role, and a log's contents are discarded.
    pub(super) fn create(device: Arc<dyn Device>, label: Label) -> Result<Labelled, crate::Error> {
        wipe(&*device, label.role)?;
        if label.role == Role::Log {
            trim_all(&*device, &label.areas);
        }
        let mut labelled = Labelled { device, label };
        labelled.write(|_| ())?;
        Ok(labelled)
    }

    /// Writes the next label, durably, and with it what was written before.
    pub(super) fn write(&mut self, change: impl FnOnce(&mut Label)) -> Result<(), crate::Error> {
        let mut next = self.label.clone();
        next.sequence += 1;
        change(&mut next);
        let encoded = next.encode();
        let is_read_back = |bytes, block| match Label::decode(bytes, block, next.device_blocks) {
            Decoded::Valid(found) => *found == next,
            _ => false,
        };
        debug_assert!(encoded.iter().zip(next.place()..).all(|(bytes, block)| is_read_back(bytes, block)), "{next:?}");
        let pair = AlignedBuf::copy_of(&encoded.concat());
        self.device.write(next.place(), &[IoSlice::new(&pair)])?;
        self.device.flush()?;
        self.label = next;
        Ok(())
    }

    /// Writes a map of regions and then the label that names it, durably: the map before counts until then.
    pub(super) fn write_map(&mut self, map: &Regions, change: impl FnOnce(&mut Label)) -> Result<(), crate::Error> {
        self.write_maps(map, None, change)
    }

    /// The same with a map of dirty regions, which stays when other maps are written later on.
    pub(super) fn write_maps(
        &mut self,
        map: &Regions,
        dirty: Option<&Regions>,
        change: impl FnOnce(&mut Label),
    ) -> Result<(), crate::Error> {
        let sequence = self.label.map + 1;
        for (map, place) in [(Some(map), self.slot(sequence)), (dirty, self.dirty_slot(sequence))] {
            if let Some(map) = map {
                let bytes = AlignedBuf::copy_of(&map.encode(&self.map_of(sequence)));
                self.device.write(place, &[IoSlice::new(&bytes)])?;
            }
        }
        self.device.flush()?;
        self.write(|label| {
            (label.map, label.has_map) = (sequence, true);
            if dirty.is_some() {
                label.dirty = sequence;
            }
            change(label);
        })
    }

    /// The same for a main device, and its set, that have become larger: at its end now. The labels of the old end go; the set's data
    /// comes there.
    pub(super) fn move_to_end(&mut self, blocks: u64, device_blocks: u64, map: &Regions) -> Result<(), crate::Error> {
        let dirty = self.read_dirty()?.map(|dirty| dirty.of_larger(blocks));
        let (old, new) = [self.label.device_blocks, device_blocks].map(|size| Label::area(Role::Main, size)).into();
        if new != old {
            // Whatever was there.
            empty_labels(&*self.device, new)?;
        }
        let label = Label { blocks, device_blocks, ..self.label.clone() };
        let mut moved = Labelled { device: Arc::clone(&self.device), label };
        moved.write_maps(map, dirty.as_ref(), |label| label.generation += 1)?;
        *self = moved;
        if new != old {
            empty_labels(&*self.device, old)?;
        }
        Ok(())
    }

    /// The map of regions that counts, if there is one. One that is damaged, or cannot be read, means that everything may have changed.
    pub(super) fn read_map(&self) -> Result<Option<Regions>, crate::Error> {
        let Label { map, has_map, .. } = self.label;
        if has_map { self.read_map_at(map, self.slot(map)).map(Some) } else { Ok(None) }
    }

    /// The map of dirty regions, if there is one.
    pub(super) fn read_dirty(&self) -> Result<Option<Regions>, crate::Error> {
        match self.label.dirty {
            0 => Ok(None),
            sequence => self.read_map_at(sequence, self.dirty_slot(sequence)).map(Some),
        }
    }

    fn read_map_at(&self, sequence: u64, block: u64) -> Result<Regions, crate::Error> {
        let mut bytes = AlignedBuf::zeroed(MAP_BLOCKS as usize * BLOCK_SIZE);
        read_what_can_be(&*self.device, block, &mut bytes)?;
        Ok(Regions::decode(&bytes, &self.map_of(sequence)).unwrap_or_else(|fault| {
            let device = self.device.name();
            tracing::warn!(device, block, %fault, "the map of regions is damaged: everything counts as changed");
            Regions::all(self.label.blocks).about(0, self.label.tail.page)
        }))
    }

    fn map_of(&self, sequence: u64) -> MapOf {
        let Label { role, set, main, log, blocks, .. } = self.label;
        MapOf { set, device: if role == Role::Main { main } else { log }, sequence, blocks }
    }

    fn slot(&self, sequence: u64) -> u64 {
        let area = Label::area(self.label.role, self.label.device_blocks);
        area + LABELS_BLOCKS + sequence % 2 * MAP_SLOT_BLOCKS
    }

    /// The second half of a slot, which no other map takes.
    fn dirty_slot(&self, sequence: u64) -> u64 {
        self.slot(sequence) + MAP_BLOCKS
    }
}

/// Makes the area for labels that begins there an empty one, durably.
pub(super) fn empty_labels(device: &dyn Device, area: u64) -> Result<(), crate::Error> {
    let zeros = AlignedBuf::zeroed(LABEL_AREA_BLOCKS as usize * BLOCK_SIZE);
    device.write(area, &[IoSlice::new(&zeros)])?;
    device.flush()
}

/// Takes a device out of whatever set it was of, durably, before it gets other contents or another role.
pub(super) fn wipe(device: &dyn Device, role: Role) -> Result<(), crate::Error> {
    let other = if role == Role::Log { Role::Main } else { Role::Log };
    // What cannot be read there is no label: of most devices it is data.
    if let Ok((Decoded::Valid(_), _)) = look(device, other, device.blocks()) {
        remove_labels(device, other, device.blocks())?;
    }
    remove_labels(device, role, device.blocks())
}

/// Takes the labels away that a device of this size has, or had, durably. The newest one goes last: cut off, none of before it counts instead. If that
/// is one that cannot be read, those that can be go first.
pub(super) fn remove_labels(device: &dyn Device, role: Role, device_blocks: u64) -> Result<(), crate::Error> {
    // Who wrote the newest one may not have come to flush it.
    device.flush()?;
    match newest_of(device, role, device_blocks) {
        Ok(Decoded::Valid(newest)) => remove_others(device, &newest)?,
        Ok(_) => {}
        Err(error) => remove_readable(device, (role, device_blocks), error)?,
    }
    empty_labels(device, Label::area(role, device_blocks))
}

/// Makes empty what is around a label, durably.
pub(super) fn remove_others(device: &dyn Device, newest: &Label) -> Result<(), crate::Error> {
    let area = Label::area(newest.role, newest.device_blocks);
    let zeros = AlignedBuf::zeroed(LABEL_AREA_BLOCKS as usize * BLOCK_SIZE);
    for (first, end) in [(area, newest.place()), (newest.place() + 2, area + LABEL_AREA_BLOCKS)] {
        if first < end {
            device.write(first, &[IoSlice::new(&zeros[..(end - first) as usize * BLOCK_SIZE])])?;
        }
    }
    device.flush()
}

/// The same where the newest cannot be read, for this reason, as it may be again: the oldest go first, and from the newest that can be read on one after
/// the other. What cannot be read behind it is taken for newer: where it is of the round before, it may count if the power goes right before the end.
fn remove_readable(device: &dyn Device, (role, blocks): (Role, u64), error: crate::Error) -> Result<(), crate::Error> {
    if !is_of_read(&error) {
        return Err(error);
    }
    // If none can be that counts, nobody knows which is the newest.
    let (best, unread) = match look(device, role, blocks) {
        Ok((Decoded::Valid(best), unread)) => (best, unread),
        Err(error) if !is_of_read(&error) => return Err(error),
        _ => return Ok(()),
    };
    // It may be readable by now.
    let unread = unread.map_or_else(Vec::new, |(_, blocks)| blocks);
    let is_unread = |pair: &u64| unread.contains(pair) && unread.contains(&(pair + 1));
    let newer = (1..LABEL_PAIRS).map(|more| place(role, best.sequence + more, blocks)).take_while(is_unread);
    let last: Vec<u64> = [best.place()].into_iter().chain(newer).collect();
    let (zeros, area) = (AlignedBuf::zeroed(2 * BLOCK_SIZE), Label::area(role, blocks));
    for pair in (area..area + LABELS_BLOCKS).step_by(2).filter(|pair| !last.contains(pair)) {
        device.write(pair, &[IoSlice::new(&zeros)])?;
    }
    device.flush()?;
    for pair in last {
        device.write(pair, &[IoSlice::new(&zeros)])?;
        device.flush()?;
    }
    Ok(())
}

/// The newest label in the area for a role; if there is none, what speaks against it.
pub(super) fn newest(device: &dyn Device, role: Role) -> Result<Decoded, crate::Error> {
    newest_of(device, role, device.blocks())
}

/// The same of a device that is, or was, of this size.
pub(super) fn newest_of(device: &dyn Device, role: Role, blocks: u64) -> Result<Decoded, crate::Error> {
    let (best, unread) = look(device, role, blocks)?;
    let Some((error, unread)) = unread else { return Ok(best) };
    let may_be_newest = match &best {
        Decoded::Valid(best) => {
            // Labels go around one after the other: of a newer one there is no copy that can be read.
            let next = Label { sequence: best.sequence + 1, ..(**best).clone() }.place();
            [next, next + 1].iter().all(|block| unread.contains(block))
        }
        // One that counts is in a pair, in both blocks.
        Decoded::Nothing => (0..LABEL_PAIRS)
            .any(|sequence| [0, 1].iter().all(|copy| unread.contains(&(place(role, sequence, blocks) + copy)))),
        Decoded::OtherVersion(_) | Decoded::Damaged(_) => true,
    };
    if may_be_newest { Err(error) } else { Ok(best) }
}

/// Blocks that cannot be read, with the first error.
pub(super) type Unread = Option<(crate::Error, Vec<u64>)>;

/// The newest of the labels that can be read.
///
/// # Errors
/// As of [`read_what_can_be`].
pub(super) fn look(device: &dyn Device, role: Role, blocks: u64) -> Result<(Decoded, Unread), crate::Error> {
    let mut best = Decoded::Nothing;
    if blocks < LABEL_AREA_BLOCKS {
        return Ok((best, None));
    }
    let first = Label::area(role, blocks);
    let mut area = AlignedBuf::zeroed(LABELS_BLOCKS as usize * BLOCK_SIZE);
    let unread = read_what_can_be(device, first, &mut area)?;
    let (all, _none) = area.as_chunks::<BLOCK_SIZE>();
    for (block, bytes) in (first..).zip(all) {
        let found = Label::decode(bytes, block, blocks);
        let is_better = match (&best, &found) {
            (Decoded::Valid(best), Decoded::Valid(found)) => found.sequence > best.sequence,
            (Decoded::Valid(_), _) | (_, Decoded::Nothing) => false,
            _ => true,
        };
        if is_better {
            best = found;
        }
    }
    Ok((best, unread))
}

/// The number of a label that counts from when it is written, also if a newer one than those that can be read should come to light; and until then the
/// device is what it was.
///
/// # Errors
/// No label can be read, and nobody knows what the others are; or there is no place for one.
pub(super) fn next_that_counts(device: &dyn Device, role: Role) -> Result<u64, crate::Error> {
    let blocks = device.blocks();
    let (best, unread) = look(device, role, blocks)?;
    let (before, taken, error) = match (best, unread) {
        (Decoded::Valid(best), Some((error, unread))) => (best.sequence, unread, Some(error)),
        (Decoded::Valid(best), None) => (best.sequence, Vec::new(), None),
        (_, Some((error, _))) => return Err(error),
        (_, None) => (0, newest_of_smaller(device, role)?, None),
    };
    let free = (before + 1..before + LABELS_BLOCKS / 2).find(|sequence| {
        let [own, next] = [0, 1].map(|more| place(role, sequence + more, blocks));
        // What cannot be read behind it would count as newer than it.
        let is_taken = |at: u64| taken.contains(&at);
        !(is_taken(own) || is_taken(own + 1) || is_taken(next) && is_taken(next + 1))
    });
    let reason = "there is no place for a label among those that cannot be read";
    free.ok_or_else(|| error.unwrap_or_else(|| crate::Error::Unsuitable { device: device.name().into(), reason }))
}

/// Where the newest label is of a device that has become a little larger, if that is in the area for those at its end.
fn newest_of_smaller(device: &dyn Device, role: Role) -> Result<Vec<u64>, crate::Error> {
    if device.blocks() < LABEL_AREA_BLOCKS {
        return Ok(Vec::new());
    }
    let first = Label::area(role, device.blocks());
    let mut area = AlignedBuf::zeroed(LABELS_BLOCKS as usize * BLOCK_SIZE);
    device.read(first, &mut [IoSliceMut::new(&mut area)])?;
    let (all, _none) = area.as_chunks::<BLOCK_SIZE>();
    let sequence_at = |(at, bytes): (u64, &[u8; BLOCK_SIZE])| {
        let found = Label::decode(bytes, at, Label::device_blocks_said(bytes)?);
        if let Decoded::Valid(label) = found { Some((label.sequence, at)) } else { None }
    };
    let found: Vec<(u64, u64)> = (first..).zip(all).filter_map(sequence_at).collect();
    let newest = found.iter().map(|(sequence, _)| *sequence).max();
    Ok(found.iter().filter(|(sequence, _)| Some(*sequence) == newest).map(|(_, at)| *at).collect())
}

/// Reads blocks in a row. Those that cannot be read are zeros; which they are comes with the first error.
///
/// # Errors
/// The device is not there, or gives none of them.
pub(super) fn read_what_can_be(device: &dyn Device, first: u64, bytes: &mut [u8]) -> Result<Unread, crate::Error> {
    let error = match device.read(first, &mut [IoSliceMut::new(bytes)]) {
        Ok(()) => return Ok(None),
        Err(error) if is_of_read(&error) => error,
        Err(error) => return Err(error),
    };
    let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
    let (mut unread, count) = (Vec::new(), blocks.len());
    for (block, at) in blocks.iter_mut().zip(first..) {
        if let Err(error) = device.read(at, &mut [IoSliceMut::new(block)]) {
            if !is_of_read(&error) {
                return Err(error);
            }
            let device = device.name();
            tracing::warn!(device, block = at, %error, "a block of the labels cannot be read: it counts as damaged");
            block.fill(0);
            unread.push(at);
        }
    }
    if unread.len() < count { Ok(Some((error, unread))) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flashlog::format::{Areas, State, Uuid};
    use crate::flashlog::given_up_tests::{Failing, Torn};
    use crate::flashlog::tests::Unreadable;
    use crate::{Filter, MemoryDevice, Operation};

    fn label(role: Role) -> Label {
        let is_log = role == Role::Log;
        let areas = Areas { meta_start: 256, meta_blocks: 256, data_start: 512, data_blocks: 256 };
        let names = [[1; 16], [2; 16], [3; 16]].map(Uuid);
        Label::first(names, 256, role, 1024, if is_log { areas } else { Areas::default() })
    }

    #[test]
    fn the_newest_label_is_found_all_around_the_ring_and_after_damage_to_one_copy() {
        for role in [Role::Main, Role::Log] {
            let device = Arc::new(MemoryDevice::new(1024));
            let mut labels = Labelled::create(device.clone(), label(role)).unwrap();
            for round in 1..=2 * LABEL_PAIRS + 3 {
                labels.write(|label| label.generation = round).unwrap();
                device.alter(labels.label.place() + round % 2, |block| block[700] ^= 1).unwrap();
                let found = Labelled::read(device.clone(), role).unwrap();
                assert_eq!((found.label.generation, &found.label), (round, &labels.label));
            }
        }
    }

    #[test]
    fn a_map_counts_when_the_label_names_it_and_a_damaged_one_is_of_everything() {
        for role in [Role::Main, Role::Log] {
            let device = Arc::new(MemoryDevice::new(1024));
            let mut labels = Labelled::create(device.clone(), label(role)).unwrap();
            assert_eq!(labels.read_map().unwrap(), None);
            let mut map = Regions::none(256);
            for address in [16, 0, 100] {
                map.mark(address, 1);
                labels.write_map(&map, |label| label.generation += 1).unwrap();
                let found = Labelled::read(device.clone(), role).unwrap();
                assert_eq!(
                    (found.read_map().unwrap(), found.label.generation),
                    (Some(map.clone()), labels.label.generation)
                );
            }
            device.alter(labels.slot(labels.label.map), |block| block[130] ^= 1).unwrap();
            assert!(labels.read_map().unwrap().unwrap().is_all());
            // Cut off before the label, the one before counts.
            labels.write_map(&map, |_| ()).unwrap();
            let next = Regions::all(256).encode(&labels.map_of(labels.label.map + 1));
            device.write(labels.slot(labels.label.map + 1), &[IoSlice::new(&next)]).unwrap();
            assert_eq!(Labelled::read(device.clone(), role).unwrap().read_map().unwrap(), Some(map));
            labels.write(|label| label.has_map = false).unwrap();
            assert_eq!(labels.read_map().unwrap(), None);
        }
    }

    #[test]
    fn a_map_of_dirty_regions_stays_while_other_maps_are_written() {
        let device = Arc::new(MemoryDevice::new(1024));
        let mut labels = Labelled::create(device.clone(), label(Role::Main)).unwrap();
        let [mut map, mut dirty] = [Regions::none(256), Regions::none(256)];
        labels.write_map(&map, |_| ()).unwrap();
        dirty.mark(77, 1);
        labels.write_maps(&map, Some(&dirty), |label| label.state = State::Alone).unwrap();
        for address in [0, 16, 100, 200] {
            map.mark(address, 1);
            labels.write_map(&map, |_| ()).unwrap();
            let found = Labelled::read(device.clone(), Role::Main).unwrap();
            assert_eq!(
                (found.read_map().unwrap(), found.read_dirty().unwrap()),
                (Some(map.clone()), Some(dirty.clone()))
            );
        }
        device.alter(labels.dirty_slot(labels.label.dirty), |block| block[130] ^= 1).unwrap();
        assert!(labels.read_dirty().unwrap().unwrap().is_all());
    }

    #[test]
    fn one_block_of_labels_or_maps_need_not_be_readable() {
        for role in [Role::Main, Role::Log] {
            let device = Arc::new(MemoryDevice::new(1024));
            let mut labels = Labelled::create(device.clone(), label(role)).unwrap();
            let mut map = Regions::none(256);
            map.mark(16, 1);
            for round in 1..=LABEL_PAIRS + 1 {
                labels.write_map(&map, |label| label.generation = round).unwrap();
                let area = Label::area(role, 1024);
                for at in area..area + LABEL_AREA_BLOCKS {
                    let found = Labelled::read(Unreadable::at(&device, at), role).unwrap();
                    assert_eq!(found.label, labels.label, "{role:?}, round {round}, block {at}");
                    let slot = labels.slot(labels.label.map);
                    let is_of_map = (slot..slot + 2).contains(&at);
                    let expected = if is_of_map { Regions::all(256).about(0, 0) } else { map.clone() };
                    assert_eq!(found.read_map().unwrap(), Some(expected), "{role:?}, round {round}, block {at}");
                }
            }
        }
    }

    /// Two blocks cannot be read.
    struct Pair {
        below: Arc<MemoryDevice>,
        at: u64,
    }

    impl Filter for Pair {
        fn below(&self) -> &dyn Device {
            &*self.below
        }

        fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
            let blocks: usize = bufs.iter().map(|buf| buf.len() / BLOCK_SIZE).sum();
            if (self.at..self.at + 2).all(|at| !(first..first + blocks as u64).contains(&at)) {
                return self.below.read(first, bufs);
            }
            let source = Arc::new(std::io::Error::from_raw_os_error(libc::EIO));
            let (device, operation, length_bytes) = (self.name().into(), Operation::Read, 0);
            Err(crate::Error::Io { device, operation, first: Some(first), length_bytes, source })
        }
    }

    #[test]
    fn a_label_before_the_newest_is_not_taken_for_it_because_that_cannot_be_read() {
        let device = Arc::new(MemoryDevice::new(1024));
        let mut labels = Labelled::create(device.clone(), label(Role::Log)).unwrap();
        (0..3).for_each(|_| labels.write(|label| label.generation += 1).unwrap());
        let newest = labels.label.place();
        for at in (0..LABELS_BLOCKS).step_by(2) {
            let pair = Arc::new(Pair { below: device.clone(), at });
            let found = Labelled::read(pair, Role::Log).map(|found| found.label.sequence);
            // Where the next one would be, nobody knows that there is none.
            match [newest, newest + 2].contains(&at) {
                true => assert!(matches!(found, Err(Error::LabelUnread { .. })), "{found:?}"),
                false => assert!(matches!(found, Ok(sequence) if sequence == labels.label.sequence), "block {at}"),
            }
        }
    }

    #[test]
    fn cut_off_and_torn_while_labels_are_taken_away_the_newest_counts_or_none() {
        let device = Arc::new(MemoryDevice::new(1024));
        let mut labels = Labelled::create(device.clone(), label(Role::Main)).unwrap();
        for round in 1..=5 {
            labels.write(|label| label.generation = round).unwrap();
        }
        let area = Label::area(Role::Main, 1024);
        let check = |newest_generation: u64, unread: &[u64], (requests, torn): (i64, Torn)| {
            let failing = Failing::after(requests, Arc::new((*device).clone()), unread.to_vec(), torn);
            let what = format!("generation {newest_generation}, unread {unread:?}: {requests} requests, {torn:?}");
            assert!(wipe(&failing, Role::Main).is_err(), "{what}");
            // As the blocks cannot be read still, and as they can be again.
            for found in [newest(&failing, Role::Main), newest(&*failing.below, Role::Main)] {
                match found {
                    Ok(Decoded::Valid(left)) => assert_eq!(left.generation, newest_generation, "{what}"),
                    Ok(Decoded::Nothing) => {}
                    Err(_) if !unread.is_empty() => {}
                    other => panic!("{what}: {other:?}"),
                }
            }
        };
        let all_torn = || (area..area + 20).flat_map(|at| [Torn::Before(at), Torn::From(at)]);
        // All around it and then the rest.
        (0..5).for_each(|requests| all_torn().for_each(|torn| check(5, &[], (requests, torn))));
        // One after the other, where the newest, or two, cannot be read; also where they have gone around.
        for generation in [5, LABEL_PAIRS + 3] {
            while labels.label.generation < generation {
                labels.write(|label| label.generation += 1).unwrap();
            }
            let newest = labels.label.place();
            for unread in [vec![newest, newest + 1], (newest - 2..newest + 2).collect()] {
                // After a flush, of the pairs all but the last are written, with one flush; of those each has one, and then all go.
                let last = unread.len() as i64 / 2 + 1;
                let requests = 1 + LABEL_PAIRS as i64 - last + 1 + 2 * last;
                (0..requests).for_each(|requests| check(generation, &unread, (requests, Torn::None)));
                all_torn().for_each(|torn| check(generation, &unread, (requests, torn)));
            }
        }
        wipe(&*device, Role::Main).unwrap();
        assert_eq!(newest(&*device, Role::Main).unwrap(), Decoded::Nothing);
    }

    #[test]
    fn a_torn_label_leaves_the_one_before() {
        let device = Arc::new(MemoryDevice::new(1024));
        let mut labels = Labelled::create(device.clone(), label(Role::Main)).unwrap();
        labels.write(|label| label.generation = 5).unwrap();
        labels.write(|label| label.generation = 6).unwrap();
        for copy in 0..2 {
            device.alter(labels.label.place() + copy, |block| block[2048..].fill(0)).unwrap();
        }
        assert_eq!(Labelled::read(device, Role::Main).unwrap().label.generation, 5);
    }

    #[test]
    fn what_is_no_such_device_is_told() {
        let empty = || Arc::new(MemoryDevice::new(1024));
        assert!(matches!(Labelled::read(empty(), Role::Log), Err(Error::NoLabel { role: Role::Log, .. })));
        assert!(matches!(Labelled::read(Arc::new(MemoryDevice::new(3)), Role::Log), Err(Error::NoLabel { .. })));
        let device = empty();
        Labelled::create(device.clone(), label(Role::Main)).unwrap();
        let other = Labelled::read(device.clone(), Role::Log);
        assert!(matches!(other, Err(Error::OtherRole { expected: Role::Log, got: Role::Main, .. })));
        for copy in 0..2 {
            device.alter(768 + 2 + copy, |block| block[9] ^= 1).unwrap();
        }
        assert!(matches!(Labelled::read(device.clone(), Role::Main), Err(Error::Damaged { block: 768, .. })));
        // Made anew, it has only the new one, whose numbers begin again.
        for number in [9, 10] {
            let mut labels =
                Labelled::create(device.clone(), Label { set: Uuid([number; 16]), ..label(Role::Log) }).unwrap();
            assert_eq!(Labelled::read(device.clone(), Role::Log).unwrap().label.set, Uuid([number; 16]));
            labels.write(|_| ()).unwrap();
        }
    }
}
