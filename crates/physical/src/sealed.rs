//! What an open store knows of its device for as long as it is open: the label, and the superblock of the last recovery point.
//!
//! Scrubs, closing and growing write both to the device, over copies that are bad, the next superblock takes over what it does not change,
//! and batches of the intent log name what is in them. So they are kept in the form that they have on the device, with its checksum, and
//! nothing that was in memory meanwhile is believed before it is verified. If somebody has written to it, it is read again.
//!
//! Invariants:
//! - the superblock is that of `epoch`, whose copies on the device are good or will be put right from this one;
//! - whoever makes bytes with a checksum from what is decoded here has decoded it just before. Who has held it while the device was asked
//!   compares it with what is sealed once more ([`Sealed::check_held`]), or takes it anew;
//! - a superblock is sealed as soon as it is made, from two makings that are the same ([`Sealed::open_as`]), and stays in this form until it
//!   is the last recovery point's.

use crate::difference;
use crate::disk::Disk;
use crate::format::label::LabelState;
use crate::format::superblock::FIELDS;
use crate::format::{Fault, Label, Superblock, hex};
use crate::locked_block::{LABEL, LockedBlock, SUPERBLOCK};
use crate::meta_block::{MetadataProtection, NodeKey};
use crate::open::{read_label, read_superblocks};
use holdfast_guard as guard;
use holdfast_integrity::{Delta, crc64, crc64_flips, tally};
use holdfast_object::{Corruption, Epoch, Error, Place, Result};
use parking_lot::{Mutex, RwLock};

/// Where labels and superblocks have the checksum of what is before it.
const CRC_AT: usize = 4088;

/// To read it; the thread may never have had to do with locked memory.
fn bytes(block: &LockedBlock) -> &[u8; 4096] {
    guard::admit_thread();
    &block.0
}

/// A block as it is on the device, which ends with its checksum, and a second sum, which sees what a CRC cannot.
struct SealedBlock {
    bytes: LockedBlock,
    tally: u32,
}

impl SealedBlock {
    fn new(bytes: [u8; 4096], key: NodeKey) -> SealedBlock {
        SealedBlock { tally: tally(&bytes), bytes: LockedBlock::new(&bytes, key, 0) }
    }

    fn bytes(&self) -> &[u8; 4096] {
        bytes(&self.bytes)
    }

    /// As it was, if one word of it alone has gone bad: found by both sums.
    fn before(&self) -> Option<[u8; 4096]> {
        let bytes = self.bytes();
        let words: &[[u8; 8]; 512] = bytes.as_chunks().0.try_into().ok()?;
        let (of_words, crc) = (crc64(&bytes[..CRC_AT]), u64::from_le_bytes(words[CRC_AT / 8]));
        let got = tally(bytes);
        let flips = std::iter::once(of_words ^ crc).chain(crc64_flips(of_words ^ crc));
        let (at, was) = (0..words.len()).rev().zip(flips).find_map(|(at, flips)| {
            let word = u64::from_le_bytes(words[at]);
            let grown = Delta::of_word(at, word, word ^ flips).tally;
            (flips != 0 && got.wrapping_add(grown) == self.tally).then_some((at, word ^ flips))
        })?;
        let mut before = *bytes;
        before[8 * at..8 * at + 8].copy_from_slice(&was.to_le_bytes());
        Some(before)
    }

    /// `what`: what its second sum is called.
    fn verify(&self, what: &'static str) -> std::result::Result<(), Fault> {
        match tally(self.bytes()) {
            got if got == self.tally => Ok(()),
            got => Err(Fault::new(what, hex(self.tally.into()), hex(got.into()))),
        }
    }
}

pub(crate) struct SealedLabel(SealedBlock);

impl SealedLabel {
    pub(crate) fn new(label: &Label) -> SealedLabel {
        SealedLabel(SealedBlock::new(label.encode(0), LABEL))
    }

    #[cfg(test)]
    pub(crate) fn address(&self, at: usize) -> *const u8 {
        &raw const self.0.bytes()[at]
    }

    /// The label as it was sealed.
    ///
    /// # Errors
    /// The bytes are others by now.
    pub(crate) fn open(&self) -> std::result::Result<Label, Fault> {
        self.0.verify("second sum of the label")?;
        match Label::decode(self.0.bytes(), 0, 0) {
            LabelState::Valid(label) => Ok(label),
            LabelState::Damaged(fault) => Err(fault),
            LabelState::OtherVersion(_) | LabelState::Foreign => {
                Err(Fault::new("label", "one of this store", "another"))
            }
        }
    }
}

/// A superblock with its checksum, as it is in label 0.
pub(crate) struct SealedSuperblock {
    pub(crate) epoch: Epoch,
    block: SealedBlock,
}

impl SealedSuperblock {
    pub(crate) fn new(superblock: &Superblock) -> SealedSuperblock {
        SealedSuperblock { epoch: superblock.epoch, block: SealedBlock::new(superblock.encode(0), SUPERBLOCK) }
    }

    /// The superblock as it was sealed.
    ///
    /// # Errors
    /// The bytes are others by now.
    fn decode(&self, disk: &Disk) -> std::result::Result<Superblock, Fault> {
        self.block.verify("second sum of the superblock")?;
        Superblock::decode_own(self.block.bytes(), disk.blocks())
    }

    /// The same, of one that is no recovery point's yet.
    ///
    /// # Errors
    /// The bytes are others by now, or the epoch is; with which fields are, and for which epoch it was made.
    fn open(&self, disk: &Disk) -> std::result::Result<Superblock, Fault> {
        let opened = self.decode(disk).and_then(|superblock| match superblock.epoch == self.epoch {
            true => Ok(superblock),
            false => Err(Fault::new("epoch of superblock", self.epoch, superblock.epoch)),
        });
        opened.map_err(|mut fault| {
            let differs = match self.block.before() {
                Some(before) => difference::in_fields(FIELDS, &before, self.block.bytes()),
                None => "more than one word of it, or none".into(),
            };
            fault.got += &format!(", {differs}, last changed legally for epoch {}", disk.newest());
            fault
        })
    }
}

/// What each batch of the intent log names of them, and all of it once more: to verify and decode two blocks of 4 KiB for each fsync takes
/// as long as all else that protects it.
#[derive(Clone, Copy)]
pub(crate) struct Gist {
    pub(crate) store: [u8; 16],
    pub(crate) epoch: Epoch,
    inverted: (u128, Epoch),
}

impl Gist {
    fn new(store: [u8; 16], epoch: Epoch) -> Gist {
        Gist { store, epoch, inverted: (!u128::from_le_bytes(store), !epoch) }
    }

    fn verify(&self) -> std::result::Result<(), Fault> {
        let Gist { inverted, .. } = Gist::new(self.store, self.epoch);
        if inverted == self.inverted {
            return Ok(());
        }
        let text = |(store, epoch): (u128, Epoch)| format!("{:032x}, {}", !store, !epoch);
        Err(Fault::new("store and epoch", text(self.inverted), text(inverted)))
    }
}

/// Locks, in the order in which they are taken: `gist`, `published`, `label`.
pub(crate) struct Sealed {
    gist: Mutex<Gist>,
    /// As all four labels are. Changed by growing only.
    label: RwLock<SealedLabel>,
    published: Mutex<SealedSuperblock>,
    /// Without protection: both as decoded, believed as they are.
    believed: Option<Mutex<(Label, Superblock)>>,
}

/// Counts and tells of bytes that no legal change has made.
fn scribbled(disk: &Disk, fault: Fault) -> Corruption {
    let corruption = told(disk, fault, "");
    disk.counters.scribbled();
    corruption
}

fn told(disk: &Disk, fault: Fault, more: &str) -> Corruption {
    let what = format!("{} in memory, to which somebody has written who must not", fault.what);
    let place = Place { address: None, ..disk.place(0) };
    let corruption = Corruption { place, what, expected: fault.expected, got: fault.got + more };
    tracing::error!(%corruption, "what the store knows of its device has gone bad");
    corruption
}

/// The same of what is read again from the device, or made anew from that; with what more is known.
fn renewed(disk: &Disk, fault: Fault, more: &str) -> Corruption {
    let corruption = told(disk, fault, more);
    disk.ambush.found(&format_args!("{corruption}: read again"));
    disk.counters.scribbled();
    corruption
}

impl Sealed {
    pub(crate) fn new(label: &Label, superblock: &Superblock, protection: MetadataProtection) -> Sealed {
        let published = Mutex::new(SealedSuperblock::new(superblock));
        let believed = (!protection.rolls()).then(|| Mutex::new((label.clone(), superblock.clone())));
        let gist = Mutex::new(Gist::new(label.store, superblock.epoch));
        Sealed { gist, label: RwLock::new(SealedLabel::new(label)), published, believed }
    }

    /// The store, and its last recovery point.
    ///
    /// # Errors
    /// As [`Sealed::label`].
    pub(crate) fn gist(&self, disk: &Disk) -> Result<Gist> {
        let mut gist = self.gist.lock();
        if self.believed.is_none()
            && let Err(fault) = gist.verify()
        {
            let _ = renewed(disk, fault, "");
            *gist = Gist::new(self.label(disk)?.store, self.superblock(disk)?.epoch);
        }
        Ok(*gist)
    }

    /// # Errors
    /// [`Error::Corrupt`] if it has gone bad in memory and cannot be read from the device.
    pub(crate) fn label(&self, disk: &Disk) -> Result<Label> {
        self.label_of(disk, disk.blocks())
    }

    /// The same, while labels on the device still say this size.
    ///
    /// # Errors
    /// As [`Sealed::label`].
    pub(crate) fn label_of(&self, disk: &Disk, blocks: u64) -> Result<Label> {
        if let Some(believed) = &self.believed {
            return Ok(believed.lock().0.clone());
        }
        let (fault, was) = {
            let label = self.label.read();
            match label.open() {
                Ok(label) => return Ok(label),
                Err(fault) => (fault, *label.0.bytes()),
            }
        };
        let label = read_label(disk.device()).ok().filter(|label| label.blocks == blocks);
        let more = label.as_ref().map(|label| format!("; {}", difference::between(&label.encode(0), &was)));
        let error = renewed(disk, fault, &more.unwrap_or_default());
        let label = label.ok_or_else(|| Error::Corrupt(Box::new(error)))?;
        self.set_label(&label);
        Ok(label)
    }

    pub(crate) fn set_label(&self, label: &Label) {
        *self.label.write() = SealedLabel::new(label);
        if let Some(believed) = &self.believed {
            believed.lock().0 = label.clone();
        }
    }

    /// Both, to work with for longer than it takes to make something of them: see [`Sealed::check_held`].
    ///
    /// # Errors
    /// As [`Sealed::label`].
    pub(crate) fn both(&self, disk: &Disk) -> Result<(Label, Superblock)> {
        Ok((self.label(disk)?, self.superblock(disk)?))
    }

    /// Whether what was taken a while ago still is what it was: to be asked when the work is done, before anything is made of it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: somebody has written to it, which is counted and told; or as [`Sealed::label`].
    pub(crate) fn check_held(&self, disk: &Disk, label: &Label, superblock: &Superblock) -> Result<()> {
        let (good_label, good) = self.both(disk)?;
        difference::unless_equal("label that is worked with", &good_label.encode(0), &label.encode(0))
            .and_then(|()| {
                difference::unless_equal("superblock that is worked with", &good.encode(0), &superblock.encode(0))
            })
            .map_err(|fault| Error::Corrupt(Box::new(scribbled(disk, fault))))
    }

    /// The last recovery point's superblock.
    ///
    /// # Errors
    /// As [`Sealed::label`].
    pub(crate) fn superblock(&self, disk: &Disk) -> Result<Superblock> {
        if let Some(believed) = &self.believed {
            return Ok(believed.lock().1.clone());
        }
        let mut published = self.published.lock();
        let fault = match published.decode(disk) {
            Ok(superblock) => {
                published.epoch = superblock.epoch;
                return Ok(superblock);
            }
            Err(fault) => fault,
        };
        let superblocks = read_superblocks(disk.device(), &self.label(disk)?).unwrap_or_default();
        // A newer one on the device may be one that is being written.
        let epoch = published.epoch;
        let superblock = superblocks.into_iter().find(|superblock| superblock.epoch == epoch);
        let more = superblock.as_ref().map(|superblock| {
            let differs = difference::between(&superblock.encode(0), published.block.bytes());
            format!("; {differs}; last changed legally for epoch {epoch}")
        });
        let error = renewed(disk, fault, &more.unwrap_or_default());
        let superblock = superblock.ok_or_else(|| Error::Corrupt(Box::new(error)))?;
        *published = SealedSuperblock::new(&superblock);
        Ok(superblock)
    }

    /// One that is not on the device yet.
    ///
    /// # Errors
    /// [`Error::GivenUp`] if it has gone bad in memory. Then it is nowhere.
    pub(crate) fn open(disk: &Disk, superblock: &SealedSuperblock) -> Result<Superblock> {
        superblock.open(disk).map_err(|fault| disk.give_up(scribbled(disk, fault)))
    }

    /// The same of one that has just been made: `again` is what the same has come to once more.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: they are not the same, so one of them has gone bad before it was sealed.
    pub(crate) fn open_as(disk: &Disk, superblock: &SealedSuperblock, again: &Superblock) -> Result<Superblock> {
        let opened = Sealed::open(disk, superblock)?;
        if disk.metadata.rolls() {
            difference::unless_equal("superblock that is made", &again.encode(0), superblock.block.bytes())
                .map_err(|fault| disk.give_up(scribbled(disk, fault)))?;
        }
        Ok(opened)
    }

    /// What it says, if these are its copies, in the order of labels: before they are written, and afterwards.
    ///
    /// # Errors
    /// Somebody has written to it, or to one of them, which is counted and told.
    pub(crate) fn verify_copies(
        disk: &Disk,
        superblock: &SealedSuperblock,
        copies: &[[u8; 4096]],
    ) -> std::result::Result<Superblock, Box<Corruption>> {
        let are_same = |meant: Superblock| {
            let mut copies = copies.iter().enumerate().filter(|_| disk.metadata.rolls());
            copies.try_for_each(|(label, copy)| {
                difference::unless_equal("copy of a superblock", &meant.encode(label), copy)
            })?;
            Ok(meant)
        };
        superblock.open(disk).and_then(are_same).map_err(|fault| Box::new(scribbled(disk, fault)))
    }

    /// The superblock is on the device, durable; with what it says.
    pub(crate) fn publish(&self, sealed: SealedSuperblock, superblock: &Superblock) {
        let mut gist = self.gist.lock();
        *self.published.lock() = sealed;
        *gist = Gist::new(superblock.store, superblock.epoch);
        if let Some(believed) = &self.believed {
            believed.lock().1 = superblock.clone();
        }
    }

    /// Of the last recovery point, for whoever is told of it or compares it with what is verified.
    pub(crate) fn epoch(&self) -> Epoch {
        self.published.lock().epoch
    }
}

/// What nobody may do: see [`crate::scribble`].
impl SealedSuperblock {
    pub(crate) fn scribbled(&mut self) -> &mut LockedBlock {
        guard::admit_thread();
        &mut self.block.bytes
    }
}

impl Sealed {
    pub(crate) fn scribbled_label<R>(&self, write: impl FnOnce(&mut LockedBlock) -> R) -> R {
        guard::admit_thread();
        write(&mut self.label.write().0.bytes)
    }

    pub(crate) fn scribbled_superblock<R>(&self, write: impl FnOnce(&mut LockedBlock) -> R) -> R {
        write(self.published.lock().scribbled())
    }

    pub(crate) fn scribbled_gist<R>(&self, write: impl FnOnce(&mut [u8; 16], &mut Epoch) -> R) -> R {
        let mut gist = self.gist.lock();
        let Gist { store, epoch, .. } = &mut *gist;
        write(store, epoch)
    }

    #[cfg(test)]
    pub(crate) fn scribble(&self, label: bool, at: usize, flipped: u8) {
        match label {
            true => self.scribbled_label(|block| block.scribble(at, &[flipped], false)),
            false => self.scribbled_superblock(|block| block.scribble(at, &[flipped], false)),
        }
    }

    #[cfg(test)]
    pub(crate) fn address_of_label(&self, at: usize) -> *const u8 {
        self.label.read().address(at)
    }

    #[cfg(test)]
    pub(crate) fn scribble_gist(&self, at: usize) {
        self.gist.lock().store[at] ^= 0x10;
    }

    #[cfg(test)]
    pub(crate) fn scribble_epoch(&self) {
        self.published.lock().epoch ^= 1;
    }
}

#[cfg(test)]
mod tests;
