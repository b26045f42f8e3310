//! A store with every structure of the format in it: deep trees, a directory of several levels with free pages, links of all
//! kinds, extended attributes and access control lists, shared pages, allocated ranges, holes, pages with each kind of checksum, lost
//! pages, snapshots with dead lists, one whose deletion is half done, objects without a name, blocks set aside, and batches and a seal
//! in the intent log.

use super::image::Image;
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::MemoryDevice;
use holdfast_integrity::{Algorithm, Protection};
use holdfast_naming::{Atime, Error, NewNode, Position, Request, SpaceMode, XattrMode};
use holdfast_object::{Durability, ObjectCache, ObjectId, ObjectStore, ScrubCursor, Snapshots};
use holdfast_physical::DeletionSlice;
use holdfast_physical::check::{BlockRole, BlockUse, block_uses};
use std::sync::Arc;

/// Blocks of the device.
const BLOCKS: u64 = 1024;
const SET_ASIDE_BLOCKS: u64 = 20;
/// Modes in which files are written, that all kinds of checksums are there; `uniform`, with CRC-64, has the rest.
const MODES: [Protection; 8] = [
    Protection::None,
    Protection::Disk,
    Protection::EndToEnd(Algorithm::Xor64),
    Protection::EndToEnd(Algorithm::Crc32c),
    Protection::EndToEnd(Algorithm::Xxh3),
    Protection::EndToEnd(Algorithm::Blake3),
    // A second checksum in each pointer.
    Protection::Static { strong: false },
    Protection::UniformBlake3,
];
const WHO: &Request = &Request::ROOT;
/// Owner, user 10, owning group, group 20, mask, others (`struct posix_acl_xattr_entry`).
const ACL: [(u16, u16, u32); 6] =
    [(1, 7, u32::MAX), (2, 6, 10), (4, 5, u32::MAX), (8, 4, 20), (0x10, 6, u32::MAX), (0x20, 1, u32::MAX)];

pub(crate) fn acl() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in ACL {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Always the same store, byte by byte.
///
/// # Errors
/// Those of the layers, in words: there should be none.
pub fn sample() -> Result<Image, String> {
    let device = Arc::new(MemoryDevice::new(BLOCKS));
    let clock = stack::clock();
    let own = Protection::Dynamic { t_switch_s: Protection::T_SWITCH_DEFAULT_S };
    let words = |error: holdfast_object::Error| error.to_string();
    stack::create_reserving(device.clone(), &clock, own, SET_ASIDE_BLOCKS).map_err(words)?;
    let open = |mode| {
        let mut options = StackOptions::new(512);
        options.physical.protection = Some(mode);
        // So small that a short dead list takes several.
        options.physical.deletion_slice = DeletionSlice { runs: 2, blocks: 4 };
        Stack::open(device.clone(), &options, &clock).map_err(words)
    };
    for mode in MODES {
        write_file(&open(mode)?, mode).map_err(|error| error.to_string())?;
    }
    damage_file(&open(Protection::Uniform)?, &device)?;
    // It has nothing of the file in memory.
    condemn(&open(Protection::Uniform)?).map_err(words)?;
    fill(&open(Protection::Uniform)?).map_err(|error| error.to_string())?;
    // As after a power cut: the log is to be replayed.
    Ok(Image::new((*device).clone()))
}

/// A file that has the mode's name.
fn write_file(stack: &Stack, mode: Protection) -> Result<(), Error> {
    let names = stack.namespace(Atime::Never);
    let file = names.mknod(WHO, ObjectId::ROOT, mode.to_string().as_bytes(), NewNode::Regular, 0o644)?;
    names.write(WHO, file.id, 0, &[9; 6000], false)?;
    names.sync_all().map(drop)
}

/// A file of which the device has lost a page.
fn damage_file(stack: &Stack, device: &Arc<MemoryDevice>) -> Result<(), String> {
    let names = stack.namespace(Atime::Never);
    let write = || -> Result<ObjectId, Error> {
        let file = names.mknod(WHO, ObjectId::ROOT, b"lost on the device", NewNode::Regular, 0o644)?;
        names.write(WHO, file.id, 0, &[9; 6000], false)?;
        names.sync_all()?;
        Ok(file.id)
    };
    let file = write().map_err(|error| error.to_string())?;
    let uses = block_uses(device.clone()).map_err(|error| error.to_string())?;
    let is_page = |used: &&BlockUse| {
        used.role == BlockRole::Data && used.object.is_some_and(|key| key.object == file) && used.index == 1
    };
    let block = uses.iter().find(is_page).ok_or("the page has no block")?.block;
    device.alter(block, |bytes| bytes[7] ^= 1).map_err(|error| error.to_string())
}

/// Scrubs all of it, so that what has no good copy is marked as lost.
fn condemn(stack: &Stack) -> holdfast_object::Result<()> {
    let mut cursor = ScrubCursor::Start;
    while cursor != ScrubCursor::End {
        cursor = stack.cache.scrub_step(&cursor, BLOCKS)?.cursor;
    }
    stack.cache.sync_all().map(drop)
}

fn fill(stack: &Stack) -> Result<(), Error> {
    let names = stack.namespace(Atime::Never);
    let file = |name: &[u8]| names.mknod(WHO, ObjectId::ROOT, name, NewNode::Regular, 0o644).map(|found| found.id);
    let write = |id, offset, byte| names.write(WHO, id, offset, &[byte; 6000], false).map(|_| ());

    let plain = file(b"plain")?;
    write(plain, 0, 1)?;
    let deep = file(b"deep")?;
    for offset in [0, 300 << 12, 20_000 << 12, 10 << 40] {
        write(deep, offset, 2)?;
    }
    // Pages are shared once they are on the device.
    names.sync_all()?;
    let shared = file(b"shared")?;
    let (source, target) = (Position { id: plain, offset: 0 }, Position { id: shared, offset: 0 });
    names.copy_range(WHO, source, target, 4096, false)?;
    let clone = file(b"clone")?;
    let (source, target) = (Position { id: deep, offset: 20_000 << 12 }, Position { id: clone, offset: 0 });
    names.copy_range(WHO, source, target, 4096, false)?;
    let allocated = file(b"allocated")?;
    names.allocate(WHO, allocated, 8192, 20_000, SpaceMode::Allocate { keep_size: true }, false)?;
    write(allocated, 12_288, 3)?;
    names.allocate(WHO, allocated, 16_384, 4096, SpaceMode::Punch, false)?;

    // One below a tree block, one below the record itself.
    let (holed, lost) = (file(b"lost page")?, file(b"lost")?);
    write(holed, 0, 1)?;
    names.write(WHO, lost, 0, &[1; 4096], false)?;
    // In no store yet: they are lost with the next recovery point.
    stack.flip(holed, 1, &[77])?;
    stack.flip(lost, 0, &[77])?;
    names.sync_all()?;

    let directory = names.mkdir(WHO, ObjectId::ROOT, b"directory", 0o2755)?.id;
    names.set_acl(WHO, directory, b"system.posix_acl_default", &acl(), false)?;
    names.symlink(WHO, directory, b"link", b"../deep/er")?;
    names.link(WHO, plain, directory, b"second")?;
    names.mknod(WHO, directory, b"pipe", NewNode::Fifo, 0o600)?;
    names.mknod(WHO, directory, b"null", NewNode::CharDevice(0x103), 0o666)?;
    let listed = names.mknod(WHO, directory, b"listed", NewNode::Regular, 0o640)?.id;
    names.setxattr(WHO, listed, b"user.short", b"value", XattrMode::Set)?;
    names.setxattr(WHO, listed, b"user.long", &[b'l'; 5000], XattrMode::Set)?;
    names.setxattr(WHO, listed, b"security.capability", &[1; 20], XattrMode::Set)?;

    // Long names, so that few of them take several levels; then fewer, so that pages become free.
    let large = names.mkdir(WHO, ObjectId::ROOT, b"large", 0o755)?.id;
    let name = |number: u32| format!("{number:0>200}").into_bytes();
    for number in 0..120 {
        names.link(WHO, plain, large, &name(number))?;
    }
    for number in 0..60 {
        names.unlink(WHO, large, &name(number * 2))?;
    }

    let snapshots: &dyn Snapshots = &*stack.cache;
    snapshots.snapshot_create("first")?;
    names.unlink(WHO, directory, b"pipe")?;
    write(deep, 300 << 12, 4)?;
    write(plain, 0, 5)?;
    snapshots.snapshot_create("second")?;
    write(deep, 0, 6)?;
    snapshots.snapshot_create("third")?;
    write(deep, 20_000 << 12, 6)?;
    write(allocated, 12_288, 6)?;
    names.unlink(WHO, ObjectId::ROOT, b"shared")?;
    // Held, so it stays as an object without a name.
    let orphan = file(b"orphan")?;
    write(orphan, 0, 7)?;
    names.unlink(WHO, ObjectId::ROOT, b"orphan")?;
    names.sync_all()?;
    // The first slice; nothing here does the next one.
    snapshots.snapshot_delete("third")?;

    // What only the log has.
    let logged = file(b"logged")?;
    write(logged, 100, 8)?;
    names.sync(logged, Durability::All)?;
    // As the cache does it when it has been idle; but its tick would go on with the deletion, too.
    stack.module.log_seal()?;
    names.rename(WHO, ObjectId::ROOT, b"logged", directory, b"logged", holdfast_naming::RenameMode::Replace)?;
    names.setxattr(WHO, logged, b"user.logged", b"too", XattrMode::Set)?;
    names.sync(logged, Durability::All)?;
    names.unlink(WHO, directory, b"null")?;
    names.sync(directory, Durability::All)
}
