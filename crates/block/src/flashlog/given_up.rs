//! A device that is about to become main: before anything else of it changes, one label says that it is a mixture. It is written as the next one
//! always is, where main's labels are looked for first, so until it is there the device is what it was, wherever the labels that say so are;
//! and then it is of no use, also where nobody knows of them.

use super::Error;
use super::format::{Decoded, Label, Role, State, Uuid};
use super::labels::{Labelled, look, next_that_counts, remove_labels, remove_others};
use super::outgrown::read_behind;
use super::ring::is_of_read;
use crate::device::{scatter, total_mut};
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error as DeviceError};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// What a device has where it ended before it became larger.
#[derive(Default)]
struct Before {
    /// Blocks of labels, with what they say: generation and number.
    labels: Vec<((u64, u64), u64)>,
    /// Blocks that cannot be read, and may be some.
    unread: Vec<u64>,
}

impl Before {
    /// Behind sets of these sizes.
    fn of(main: &dyn Device, of_sets: &[u64]) -> Result<Before, Error> {
        let mut before = Before::default();
        for set_blocks in of_sets {
            let (bytes, unread) = read_behind(main, *set_blocks)?;
            let end = Label::area(Role::Main, main.blocks());
            before.unread.extend(unread.into_iter().flat_map(|(_, blocks)| blocks).filter(|block| *block < end));
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            for (at, bytes) in (*set_blocks..).zip(blocks) {
                // What is not valid where it is, is no label to anybody.
                if let Some(size) = Label::device_blocks_said(bytes).filter(|size| *size != main.blocks())
                    && let Decoded::Valid(label) = Label::decode(bytes, at, size)
                {
                    before.labels.push(((label.generation, label.sequence), at));
                }
            }
        }
        before.labels.sort_unstable();
        before.labels.dedup();
        Ok(before)
    }

    /// The newest one that counted goes last.
    fn remove(&self, main: &dyn Device) -> Result<(), crate::Error> {
        let Some((newest, _)) = self.labels.last() else { return Ok(()) };
        let others = self.labels.partition_point(|(said, _)| said < newest);
        for part in [&self.labels[..others], &self.labels[others..]] {
            zero(main, part.iter().map(|(_, at)| *at))?;
        }
        Ok(())
    }
}

fn zero(main: &dyn Device, blocks: impl Iterator<Item = u64>) -> Result<(), crate::Error> {
    let (zeros, mut is_some) = (AlignedBuf::zeroed(BLOCK_SIZE), false);
    for at in blocks {
        main.write(at, &[IoSlice::new(&zeros)])?;
        is_some = true;
    }
    if is_some { main.flush() } else { Ok(()) }
}

/// What a device is, and may have been.
struct Found {
    /// Of the label that gives it up.
    sequence: u64,
    before: Before,
    is_main: bool,
    is_log: bool,
}

impl Found {
    fn on(main: &dyn Device, of_sets: &[u64]) -> Result<Found, Error> {
        let sequence = next_that_counts(main, Role::Main).map_err(|cause| match is_of_read(&cause) {
            true => Error::LabelUnread { device: main.name().into(), role: Role::Main, cause },
            false => cause.into(),
        })?;
        let is_valid = |found: Decoded| matches!(found, Decoded::Valid(_));
        let before = Before::of(main, of_sets)?;
        let is_main = is_valid(look(main, Role::Main, main.blocks())?.0) || !before.labels.is_empty();
        // Of a main these are data, and need not be readable.
        let is_log = look(main, Role::Log, main.blocks()).is_ok_and(|(found, _)| is_valid(found));
        Ok(Found { sequence, before, is_main, is_log })
    }
}

/// A device as it will be when it has this size: smaller, or with zeros behind what it has. It is looked at only.
struct AsLarge<'a> {
    below: &'a dyn Device,
    blocks: u64,
}

impl AsLarge<'_> {
    fn refuse(&self) -> Result<(), DeviceError> {
        Err(DeviceError::Unsuitable { device: self.name().into(), reason: "it has not this size yet" })
    }
}

impl Device for AsLarge<'_> {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let length_bytes = total_mut(bufs) as usize;
        let mut bytes = AlignedBuf::zeroed(length_bytes);
        let there_bytes = (self.below.blocks().saturating_sub(first) as usize * BLOCK_SIZE).min(length_bytes);
        if there_bytes > 0 {
            self.below.read(first, &mut [IoSliceMut::new(&mut bytes[..there_bytes])])?;
        }
        scatter(&bytes, bufs);
        Ok(())
    }

    fn write(&self, _first: u64, _bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.refuse()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.refuse()
    }

    fn discard(&self, _first: u64, _count: u64) -> Result<(), DeviceError> {
        self.refuse()
    }
}

/// That a device can be [given up](give_up) when it has this size. Nothing is written.
///
/// # Errors
/// As there, before anything is written.
pub(super) fn check_as_large(main: &dyn Device, blocks: u64, of_sets: &[u64]) -> Result<(), Error> {
    Found::on(&AsLarge { below: main, blocks }, of_sets).map(drop)
}

/// Takes a device out of whatever it was, durably. It may have been a main of a set of one of these sizes and have become larger since. What it is
/// to be is said with the label that is [written](Labelled::write) next, when that is so.
///
/// # Errors
/// What a main says that it is cannot be read, or it has no place for another label: nothing is written then. Otherwise as of the device.
pub(super) fn give_up(main: Arc<dyn Device>, of_sets: &[u64], label: &Label) -> Result<Labelled, Error> {
    let Found { sequence, mut before, is_main, is_log } = Found::on(&*main, of_sets)?;
    let remove_log = || if is_log { remove_labels(&*main, Role::Log, main.blocks()) } else { Ok(()) };
    if !is_main {
        remove_log()?;
    }
    let of_none =
        Label { main: Uuid::NONE, state: State::CatchingUp, left: 0, sequence: sequence - 1, ..label.clone() };
    let mut labels = Labelled { device: Arc::clone(&main), label: of_none };
    labels.write(|_| ())?;
    // It counts whatever becomes of the others. It may lie where one was of when the device ended a little earlier.
    let own = labels.label.place();
    before.labels.retain(|(_, at)| !(own..own + 2).contains(at));
    before.remove(&*main)?;
    remove_others(&*main, &labels.label)?;
    if is_main {
        remove_log()?;
    }
    zero(&*main, before.unread.iter().copied())?;
    Ok(labels)
}
