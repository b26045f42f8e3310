//! The contents of files.

use super::answer::{Answer, repeated};
use super::xattrs::drop_capabilities;
use super::{Namespace, Request};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::pages::{ReadData, SumsWanted};
use crate::permission;
use crate::stage::Staged;
use holdfast_integrity::Checksum;
use holdfast_object::{
    AttrSet, Attributes, Durability, Epoch, Kind, MAX_OBJECT_BYTES, ObjectId, Op, PAGE_SIZE, Seek, SnapshotId,
};
use std::iter;
use std::ops::Range;

/// Most bytes that one [`Namespace::write`] takes, and that one copy of unaligned bytes moves.
pub const WRITE_MAX: usize = 1 << 20;
/// Most bytes that one copy of whole pages moves.
const COPY_MAX: u64 = 1 << 30;

const PAGE: u64 = PAGE_SIZE as u64;

/// A byte of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The file.
    pub id: ObjectId,
    /// In bytes from its start.
    pub offset: u64,
}

/// What [`Namespace::allocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceMode {
    /// What is a hole gets zeroes that are stored, so that the range has its room from now on; the file grows to hold the
    /// range. What is written there later takes the place of what is stored, for which there always is room
    /// (docs/decisions/0006-allocated-ranges.md).
    Allocate {
        /// The file's size stays.
        keep_size: bool,
    },
    /// The range reads as zero and takes no space where whole pages are covered. The file's size stays.
    Punch,
    /// The range reads as zero, and has its room as after `Allocate`.
    Zero {
        /// The file's size stays.
        keep_size: bool,
    },
}

/// Where a write goes.
#[derive(Clone, Copy)]
enum Place {
    At(u64),
    /// To the end of the file, at this byte at most.
    End(u64),
}

/// Checksums that come with bytes.
#[derive(Clone, Copy)]
enum Sums<'a> {
    None,
    /// Of the parts of each block of the file.
    OfBlocks(&'a [Checksum]),
    /// Of each 4 KiB of the bytes, wherever they go.
    OfBytes(&'a [Checksum]),
}

/// What a write has done.
struct Written {
    count: usize,
    /// Where it has put the bytes.
    offset: u64,
    /// Size of the file before; 0 where that is not known, as the request came again.
    size_before: u64,
}

/// How many of these bytes one write puts there.
fn count_at(offset: u64, bytes: &[u8]) -> usize {
    let room = MAX_OBJECT_BYTES.saturating_sub(offset);
    bytes.len().min(WRITE_MAX).min(usize::try_from(room).unwrap_or(usize::MAX))
}

/// The checksums of the parts of blocks that bytes come to at this position, made before those that came with them are verified.
fn resummed(id: ObjectId, offset: u64, bytes: &[u8], came: &[Checksum]) -> Result<Vec<Checksum>> {
    let pieces = bytes.chunks(PAGE_SIZE);
    let algorithm = came.first().map(Checksum::algorithm);
    let (Some(algorithm), true) = (algorithm, pieces.len() == came.len()) else {
        return Err(Error::InvalidArgument("not one checksum for each block"));
    };
    let to_boundary = (PAGE - offset % PAGE).min(bytes.len() as u64) as usize;
    let (first, rest) = bytes.split_at(to_boundary);
    let sums = iter::once(first).chain(rest.chunks(PAGE_SIZE)).map(|part| algorithm.sum(part)).collect();
    let is_bad = |(piece, sum): (&[u8], &Checksum)| sum.algorithm() != algorithm || sum.verify(piece).is_err();
    let bad: Vec<u64> = (0..).zip(pieces.zip(came)).filter(|(_, pair)| is_bad(*pair)).map(|(block, _)| block).collect();
    if bad.is_empty() { Ok(sums) } else { Err(Error::Mismatch { object: id, blocks: bad }) }
}

impl Namespace {
    /// Reads up to `length` bytes from `offset` on; fewer at the end of the file. Every page was verified by then; a
    /// page that cannot be had makes the whole read fail.
    pub fn read(&self, id: ObjectId, offset: u64, length: usize) -> Result<ReadData> {
        self.read_quietly(id, offset, length, false)
    }

    /// The same; if `quiet` (open(2), O_NOATIME), without a change of the time of last access.
    pub fn read_quietly(&self, id: ObjectId, offset: u64, length: usize, quiet: bool) -> Result<ReadData> {
        self.read_with(id, offset, length, quiet, |length| ReadData::read(&*self.cache, id, offset, length))
    }

    /// Reads as [`Namespace::read`] does, into memory of the caller's; gives how many bytes. For programs that have the stack in their own process:
    /// pages are verified as they are copied, and not held. After an error, what is in the buffer is not said.
    pub fn read_into(&self, id: ObjectId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read_with(id, offset, buffer.len(), false, |length| {
            ReadData::read_into(&*self.cache, id, offset, &mut buffer[..length])?;
            Ok(length)
        })
    }

    /// What `read` makes of the bytes that there are of those wanted.
    fn read_with<T>(
        &self,
        id: ObjectId,
        offset: u64,
        length: usize,
        quiet: bool,
        read: impl FnOnce(usize) -> Result<T>,
    ) -> Result<T> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = self.regular(id)?;
        let left = attributes.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(length);
        let data = read(length)?;
        if length > 0 && !quiet {
            self.touch_atime(id, &attributes);
        }
        Ok(data)
    }

    /// Reads as [`Namespace::read_quietly`] does, and gives the checksum of each block's part beside the bytes. A checksum that is
    /// not a page's own is made before the page is verified; one that is, is forwarded for the reader to verify.
    pub fn read_with_sums(
        &self,
        id: ObjectId,
        offset: u64,
        length: usize,
        how: SumsWanted,
        quiet: bool,
    ) -> Result<(ReadData, Vec<Checksum>)> {
        self.read_with(id, offset, length, quiet, |length| {
            ReadData::read_with_sums(&*self.cache, id, offset, length, how)
        })
    }

    /// Blocks of a file from `first` on, `limit` at most, ascending, that were given up because they went bad in memory before they were
    /// stored. Reading one is an error until it is written again; [`Namespace::sync`] tells once.
    pub fn bad_blocks(&self, id: ObjectId, first: u64, limit: usize) -> Result<Vec<u64>> {
        self.regular(id)?;
        Ok(self.cache.bad_pages(id, first, limit)?)
    }

    /// Writes all of `bytes`, [`WRITE_MAX`] at most, if the part of each block has its checksum in `sums`. Otherwise nothing is
    /// written ([`Error::Mismatch`] says which blocks). Gives the size that the file had,
    /// or 0 for a request that came again.
    pub fn write_with_sums(
        &self,
        request: &Request,
        id: ObjectId,
        offset: u64,
        bytes: &[u8],
        sums: &[Checksum],
        clear_set_ids: bool,
    ) -> Result<u64> {
        if bytes.len() > WRITE_MAX {
            return Err(Error::InvalidArgument("more bytes than one write takes"));
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > MAX_OBJECT_BYTES) {
            return Err(Error::FileTooBig { object: id, size: offset.saturating_add(bytes.len() as u64) });
        }
        Ok(self
            .write_bytes(request, id, Place::At(offset), bytes, Sums::OfBlocks(sums), Some(clear_set_ids))?
            .size_before)
    }

    /// Writes bytes at a position; gives how many: [`WRITE_MAX`] at most. `clear_set_ids`: takes setuid and setgid away,
    /// as a write by an unprivileged caller does.
    pub fn write(
        &self,
        request: &Request,
        id: ObjectId,
        offset: u64,
        bytes: &[u8],
        clear_set_ids: bool,
    ) -> Result<usize> {
        Ok(self.write_bytes(request, id, Place::At(offset), bytes, Sums::None, Some(clear_set_ids))?.count)
    }

    /// Writes bytes as [`Namespace::write`] does, to the end of the file.
    pub fn append(&self, request: &Request, id: ObjectId, bytes: &[u8], clear_set_ids: bool) -> Result<usize> {
        Ok(self.write_bytes(request, id, Place::End(u64::MAX), bytes, Sums::None, Some(clear_set_ids))?.count)
    }

    /// Appends all of `bytes`, [`WRITE_MAX`] at most, if each 4 KiB of them, counted from the first, has its checksum in `sums`. Otherwise nothing is
    /// written ([`Error::Mismatch`] says which, counted so). Gives where they are: at `offset_max` at most, or the file is too big.
    pub fn append_with_sums(
        &self,
        request: &Request,
        id: ObjectId,
        offset_max: u64,
        bytes: &[u8],
        sums: &[Checksum],
        clear_set_ids: bool,
    ) -> Result<u64> {
        if bytes.len() > WRITE_MAX {
            return Err(Error::InvalidArgument("more bytes than one write takes"));
        }
        let place = Place::End(offset_max);
        Ok(self.write_bytes(request, id, place, bytes, Sums::OfBytes(sums), Some(clear_set_ids))?.offset)
    }

    /// Writes bytes as [`Namespace::write`] does, but changes no attribute besides the size: for a front end whose kernel kept the
    /// bytes for a while. It has changed the others when the application wrote, and sets them itself.
    pub fn write_back(&self, request: &Request, id: ObjectId, offset: u64, bytes: &[u8]) -> Result<usize> {
        Ok(self.write_bytes(request, id, Place::At(offset), bytes, Sums::None, None)?.count)
    }

    /// `changed`: the attributes change as well, and whether setuid and setgid go.
    fn write_bytes(
        &self,
        request: &Request,
        id: ObjectId,
        place: Place,
        bytes: &[u8],
        sums: Sums<'_>,
        changed: Option<bool>,
    ) -> Result<Written> {
        let again = |answer: Answer| -> Result<Written> {
            let (count, offset) = match (place, answer.count()?) {
                (Place::At(offset), count) => (usize::try_from(count).unwrap_or(usize::MAX), offset),
                // Where it went is what cannot be said otherwise.
                (Place::End(_), offset) => (count_at(offset, bytes), offset),
            };
            Ok(Written { count, offset, size_before: 0 })
        };
        if let Some(answer) = self.earlier(request)? {
            return again(answer);
        }
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        let attributes = self.regular(id)?;
        let (offset, is_within) = match place {
            Place::At(offset) => (offset, true),
            Place::End(max) => (attributes.size, attributes.size <= max),
        };
        let (count, size) = (count_at(offset, bytes), offset.saturating_add(bytes.len() as u64));
        // Bytes with checksums are written all, or none.
        let is_cut = size > MAX_OBJECT_BYTES && !matches!(sums, Sums::None);
        if !bytes.is_empty() && (count == 0 || is_cut) {
            return Err(Error::FileTooBig { object: id, size });
        }
        if !bytes.is_empty() && !is_within {
            return Err(Error::BeyondLimit { object: id, size });
        }
        let written = Written { count, offset, size_before: attributes.size };
        if count == 0 {
            return Ok(written);
        }
        // Who wrote what the kernel hands down later is not known.
        let mut staged = self.stage().by(changed.is_some() && request.caller.is_privileged());
        match sums {
            Sums::None => staged.bytes_with_sums(id, offset, &bytes[..count], None)?,
            Sums::OfBlocks(sums) => staged.bytes_with_sums(id, offset, &bytes[..count], Some(sums))?,
            Sums::OfBytes(sums) => {
                let sums = resummed(id, offset, bytes, sums)?;
                staged.bytes_with_sums(id, offset, bytes, Some(&sums))?;
            }
        }
        if let Some(clear_set_ids) = changed {
            self.stage_changed(request, &mut staged, id, &attributes, clear_set_ids)?;
        }
        let answer = match place {
            Place::At(_) => Answer::Count(count as u64),
            Place::End(_) => Answer::Count(offset),
        };
        let outcome = staged.submit(request.id, answer.encode())?;
        match repeated(outcome)? {
            Some(answer) => again(answer),
            None => Ok(written),
        }
    }

    /// Changes the space behind a range of bytes. `length` is at least 1.
    pub fn allocate(
        &self,
        request: &Request,
        id: ObjectId,
        offset: u64,
        length: u64,
        mode: SpaceMode,
        clear_set_ids: bool,
    ) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        if length == 0 {
            return Err(Error::InvalidArgument("a range of no bytes"));
        }
        let end = offset.checked_add(length).filter(|&end| end <= MAX_OBJECT_BYTES);
        let end = end.ok_or(Error::FileTooBig { object: id, size: offset.saturating_add(length) })?;
        let _in_use = self.locks.lock(&[(id, Use::Exclusive)]);
        let attributes = self.regular(id)?;
        let size_after = match mode {
            SpaceMode::Allocate { keep_size: false } | SpaceMode::Zero { keep_size: false } => end.max(attributes.size),
            _ => attributes.size,
        };
        let is_privileged = request.caller.is_privileged();
        let mut stored = Vec::new();
        if mode != SpaceMode::Punch {
            stored = self.holes(id, offset / PAGE..end.div_ceil(PAGE), attributes.size)?;
            let needed = stored.iter().map(|pages| pages.end - pages.start).sum();
            let available = || self.cache.space().available_to(is_privileged);
            if needed > available() {
                // What was deleted in the open epoch is free behind it.
                self.cache.sync_all()?;
                if needed > available() {
                    return Err(Error::Object(self.cache.space().lacks(needed, available())));
                }
            }
        }
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        if matches!(mode, SpaceMode::Zero { .. }) && !whole.is_empty() {
            stored.retain(|pages| !(whole.start <= pages.start && pages.end <= whole.end));
            stored.push(whole);
        }
        let zero_end = end.min(attributes.size);
        let mut staged = self.stage().by(is_privileged);
        match mode {
            SpaceMode::Punch => {
                staged.may_use_reserve();
                // The last page goes as a whole if nothing of it stays, and so does what was allocated behind the end.
                let to = if end >= attributes.size { end.next_multiple_of(PAGE) } else { end };
                staged.zero(id, offset, to);
            }
            SpaceMode::Zero { .. } => {
                // The ragged ends; whole pages are stored as zeroes.
                let start_end = zero_end.min(offset.next_multiple_of(PAGE));
                staged.zero(id, offset, start_end);
                staged.zero(id, start_end.max(end / PAGE * PAGE), zero_end);
            }
            SpaceMode::Allocate { .. } => {}
        }
        if size_after > attributes.size {
            staged.op(Op::Truncate { id, size: size_after });
        }
        self.stage_changed(request, &mut staged, id, &attributes, clear_set_ids)?;
        // The pages first, so that the size says that there is room for all of them.
        for pages in stored {
            self.store_zeroes(id, pages, attributes.size, is_privileged)?;
        }
        staged.submit(request.id, Answer::Nothing.encode())?;
        Ok(())
    }

    /// The pages of a range that are not stored; behind the end of the file all count as not stored. The object is in
    /// exclusive use.
    fn holes(&self, id: ObjectId, pages: Range<u64>, size: u64) -> Result<Vec<Range<u64>>> {
        let mut holes = Vec::new();
        let (mut at, end) = (pages.start, size.div_ceil(PAGE).min(pages.end));
        while at < end {
            let find = |from: u64, what| -> Result<u64> {
                Ok(self.cache.seek(id, from * PAGE, what)?.map_or(end, |position| position.div_ceil(PAGE)).min(end))
            };
            let start = find(at, Seek::Hole)?;
            if start == end {
                break;
            }
            at = find(start, Seek::Data)?.max(start + 1);
            holes.push(start..at);
        }
        let behind = pages.start.max(end)..pages.end;
        if !behind.is_empty() {
            holes.push(behind);
        }
        Ok(holes)
    }

    /// Writes pages of zeroes. All of them are one frame in memory.
    fn store_zeroes(&self, id: ObjectId, pages: Range<u64>, size_min: u64, is_privileged: bool) -> Result<()> {
        const PAGES_PER_TRANSACTION: u64 = WRITE_MAX as u64 / PAGE;
        let mut first = pages.start;
        while first < pages.end {
            let end = pages.end.min(first + PAGES_PER_TRANSACTION);
            let mut staged = self.stage().by(is_privileged);
            staged.zero_pages(id, first..end, size_min)?;
            staged.submit(None, Answer::Nothing.encode())?;
            first = end;
        }
        Ok(())
    }

    /// Copies up to `length` bytes from one regular file to another, or within one where the ranges do not overlap; gives
    /// how many, 0 at the end of the source. Whole pages are shared, not copied, where both positions are equally far from a
    /// page boundary.
    pub fn copy_range(
        &self,
        request: &Request,
        source: Position,
        target: Position,
        length: u64,
        clear_set_ids: bool,
    ) -> Result<u64> {
        let Position { id: source, offset: source_offset } = source;
        let Position { id: target, offset: target_offset } = target;
        if let Some(answer) = self.earlier(request)? {
            return answer.count();
        }
        let _in_use = self.locks.lock(&[(source, Use::Shared), (target, Use::Exclusive)]);
        let source_attributes = self.regular(source)?;
        let target_attributes = self.regular(target)?;
        let room = MAX_OBJECT_BYTES.saturating_sub(target_offset);
        let mut length = length.min(source_attributes.size.saturating_sub(source_offset)).min(COPY_MAX);
        if room == 0 && length > 0 {
            return Err(Error::FileTooBig { object: target, size: target_offset.saturating_add(length) });
        }
        length = length.min(room);
        if source == target && source_offset.abs_diff(target_offset) < length {
            return Err(Error::InvalidArgument("the ranges of a copy overlap"));
        }
        if length == 0 {
            return Ok(0);
        }
        let mut staged = self.stage().by(request.caller.is_privileged());
        let within = source_offset % PAGE;
        if within == target_offset % PAGE && within != 0 && length > PAGE - within {
            // Up to the page boundary, behind which the next call can share.
            length = PAGE - within;
        }
        // What only a snapshot has is read and written anew.
        let aligned = source.snapshot() == SnapshotId::LIVE && within == 0 && target_offset.is_multiple_of(PAGE);
        let pages = if aligned {
            whole_pages(&source_attributes, source_offset, &target_attributes, target_offset, length)
        } else {
            0
        };
        if pages > 0 {
            length = length.min(pages * PAGE);
            staged.op(Op::Copy {
                source,
                source_first: source_offset / PAGE,
                target,
                target_first: target_offset / PAGE,
                pages,
                size_min: target_offset + length,
            });
        } else {
            length = length.min(WRITE_MAX as u64);
            let bytes = ReadData::read(&*self.cache, source, source_offset, length as usize)?.to_vec();
            staged.bytes(target, target_offset, &bytes)?;
        }
        self.stage_changed(request, &mut staged, target, &target_attributes, clear_set_ids)?;
        let outcome = staged.submit(request.id, Answer::Count(length).encode())?;
        match repeated(outcome)? {
            Some(answer) => answer.count(),
            None => Ok(length),
        }
    }

    /// The first position at or behind `offset` with data, or with none (the end of the file counts as a hole).
    pub fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<u64> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = self.regular(id)?;
        let beyond = Error::BeyondEnd { object: id, offset };
        if offset >= attributes.size {
            return Err(beyond);
        }
        let found = self.cache.seek(id, offset, what)?.map(|position| position.max(offset));
        match (found, what) {
            (Some(position), _) if position < attributes.size => Ok(position),
            (_, Seek::Hole) => Ok(attributes.size),
            (_, Seek::Data) => Err(beyond),
        }
    }

    /// Makes an object's changes durable, and the name space as of now.
    pub fn sync(&self, id: ObjectId, durability: Durability) -> Result<()> {
        self.inode(id)?;
        // Not in use meanwhile: others go on while the device works. What was answered before is included, and what holds
        // the object's extended attributes goes along with it.
        Ok(self.cache.sync(id, durability)?)
    }

    /// Makes everything durable; gives the recovery point that has it.
    pub fn sync_all(&self) -> Result<Epoch> {
        Ok(self.cache.sync_all()?)
    }

    fn regular(&self, id: ObjectId) -> Result<Attributes> {
        let attributes = self.inode(id)?;
        match attributes.kind {
            Kind::Regular => Ok(attributes),
            Kind::Directory => Err(Error::IsDirectory(id)),
            _ => Err(Error::InvalidArgument("only a regular file has contents")),
        }
    }

    /// Adds what every change of contents changes. `clear_set_ids`: the kernel says that setuid and setgid go.
    fn stage_changed(
        &self,
        request: &Request,
        staged: &mut Staged<'_>,
        id: ObjectId,
        before: &Attributes,
        clear_set_ids: bool,
    ) -> Result<()> {
        let now = self.clock.now();
        let clear = clear_set_ids || self.enforces() && !request.caller.is_privileged();
        let cleared = permission::mode_without_set_ids(before, &request.caller);
        let mode = (clear && cleared != before.mode).then_some(cleared);
        let xattr = self.stage_changed_xattrs(staged, id, before, now, drop_capabilities)?;
        let set = AttrSet { mode, xattr, mtime: Some(now), ctime: Some(now), ..AttrSet::default() };
        staged.op(Op::SetAttributes { id, set });
        Ok(())
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, id: ObjectId) -> Result<Vec<u8>> {
        let _in_use = self.locks.lock(&[(id, Use::Shared)]);
        let attributes = self.inode(id)?;
        if attributes.kind != Kind::Symlink {
            return Err(Error::InvalidArgument("not a symbolic link"));
        }
        if attributes.size == 0 || attributes.size > crate::SYMLINK_MAX as u64 {
            return Err(Error::CorruptTree { object: id, what: "symbolic link with a target of impossible length" });
        }
        let target = ReadData::read(&*self.cache, id, 0, attributes.size as usize)?.to_vec();
        if target.contains(&0) {
            return Err(Error::CorruptTree { object: id, what: "symbolic link with a NUL in its target" });
        }
        self.touch_atime(id, &attributes);
        Ok(target)
    }
}

/// How many pages of a copy between page boundaries can be shared: the last page of the source, if it is a part of one,
/// only where nothing of the target lies behind it.
fn whole_pages(source: &Attributes, source_offset: u64, target: &Attributes, target_offset: u64, length: u64) -> u64 {
    let reaches_end = source_offset + length == source.size;
    if !length.is_multiple_of(PAGE) && reaches_end && target.size <= target_offset + length {
        length.div_ceil(PAGE)
    } else {
        length / PAGE
    }
}
