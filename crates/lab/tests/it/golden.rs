//! The kept image of the format: a store with every structure in it, as this version wrote it once, must be read by today's code
//! with everything that is in it. `HOLDFAST_GOLDEN=write` makes it anew, for which a new version of the format or a new structure in the
//! sample is the reason.

use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use holdfast_integrity::crc64;
use holdfast_lab::foreign::sample;
use holdfast_lab::stack::{Stack, StackOptions, clock};
use holdfast_naming::{Atime, Namespace, Request};
use holdfast_object::{Kind, ObjectId, Seek, SnapshotId, Snapshots};
use holdfast_physical::FORMAT_VERSION;
use holdfast_physical::check::{CheckOptions, check};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

fn file(extension: &str) -> PathBuf {
    let name = format!("tests/it/golden/format-{FORMAT_VERSION}.{extension}");
    [env!("CARGO_MANIFEST_DIR"), &name].iter().collect()
}

/// A line for each block that is not all zero: its number, then runs of bytes as `HEX*COUNT`, or as they are where they do not
/// repeat.
fn to_text(device: &MemoryDevice) -> String {
    let bytes = device.snapshot();
    let mut text = format!("blocks {}\n", device.blocks());
    for (number, block) in bytes.chunks(BLOCK_SIZE).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0))
    {
        write!(text, "{number}").unwrap();
        let mut plain = false;
        for run in block.chunk_by(|a, b| a == b) {
            if run.len() > 4 {
                write!(text, " {:02x}*{}", run[0], run.len()).unwrap();
                plain = false;
            } else {
                text.push_str(if plain { "" } else { " " });
                run.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
                plain = true;
            }
        }
        text.push('\n');
    }
    text
}

fn from_text(text: &str) -> MemoryDevice {
    let hex = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
    let (first, lines) = text.split_once('\n').unwrap();
    let device = MemoryDevice::new(first.strip_prefix("blocks ").unwrap().parse().unwrap());
    for line in lines.lines() {
        let mut words = line.split(' ');
        let number = words.next().unwrap().parse().unwrap();
        let mut block = Vec::new();
        for word in words {
            match word.split_once('*') {
                Some((byte, count)) => block.extend(vec![hex(byte); count.parse().unwrap()]),
                None => block.extend((0..word.len() / 2).map(|at| hex(&word[2 * at..2 * at + 2]))),
            }
        }
        device.alter(number, |bytes| bytes.copy_from_slice(&block)).unwrap();
    }
    device
}

/// Everything that the store has, in words; `exact`: also what depends on how many epochs it took to make it.
fn listing(device: &MemoryDevice, exact: bool) -> String {
    let device = Arc::new(device.clone());
    let report = check(device.clone(), &CheckOptions::default()).unwrap();
    assert_eq!(report.found, 0, "{report:?}");
    let stack = Stack::open(device, &StackOptions::new(512), &clock()).unwrap();
    let names = stack.namespace(Atime::Never);
    let mut text = format!("{} batches of the log, {} lost pages\n", report.log_batches, report.lost_pages);
    writeln!(text, "orphans {:?}", holdfast_object::ObjectCache::orphans(&*stack.cache).unwrap()).unwrap();
    list(&names, ObjectId::ROOT, "", exact, &mut text);
    writeln!(text, "mode {}", stack.module.store_protection()).unwrap();
    let deletions = stack.cache.snapshot_deletions();
    deletions.iter().for_each(|deletion| writeln!(text, "{deletion:?}").unwrap());
    for info in stack.cache.snapshots().unwrap() {
        let epoch = if exact { info.epoch } else { 0 };
        writeln!(text, "snapshot {} {:?} of {}, {} objects", info.id.0, info.name, epoch, info.objects).unwrap();
        list(&names, ObjectId::ROOT.in_snapshot(info.id), "", exact, &mut text);
    }
    text
}

fn list(names: &Namespace, directory: ObjectId, path: &str, exact: bool, text: &mut String) {
    let mut entries: Vec<(Vec<u8>, ObjectId, u64)> = Vec::new();
    names
        .readdir(directory, 0, |entry| {
            entries.push((entry.name.to_vec(), entry.id, entry.cookie));
            true
        })
        .unwrap();
    for (name, id, cookie) in entries.into_iter().filter(|(name, ..)| name != b"." && name != b"..") {
        let attributes = names.getattr(id).unwrap();
        let path = format!("{path}/{}", name.escape_ascii());
        // Cookies are promised to stay.
        write!(text, "{path} {id} cookie {cookie:x} {:?} {:o}", attributes.kind, attributes.mode).unwrap();
        let generation = if exact { attributes.generation } else { 0 };
        let numbers = (attributes.nlink, attributes.uid, attributes.gid, attributes.rdev, generation);
        write!(text, " {numbers:?} size {} blocks {}", attributes.size, attributes.blocks).unwrap();
        for attribute in names.listxattr(&Request::ROOT, id).unwrap() {
            let value = names.getxattr(&Request::ROOT, id, &attribute).unwrap();
            write!(text, " {}={:016x}", attribute.escape_ascii(), crc64(&value)).unwrap();
        }
        if attributes.kind == Kind::Symlink {
            write!(text, " to {}", names.readlink(id).unwrap().escape_ascii()).unwrap();
        }
        if attributes.kind == Kind::Regular {
            let mut at = 0;
            while let Ok(data) = names.seek(id, at, Seek::Data) {
                at = names.seek(id, data, Seek::Hole).unwrap();
                // By pages: those that are lost cannot be read.
                for page in (data..at).step_by(BLOCK_SIZE) {
                    let end = at.min(page + BLOCK_SIZE as u64);
                    match names.read(id, page, (end - page) as usize) {
                        Ok(read) => {
                            let bytes: Vec<u8> = read.slices().flatten().copied().collect();
                            write!(text, " {page}..{end}={:016x}", crc64(&bytes)).unwrap();
                        }
                        Err(error) => {
                            let side = error.damage().map(|damage| damage.side);
                            write!(text, " {page}..{end} {:?} {side:?}", error.kind()).unwrap();
                        }
                    }
                }
            }
        }
        text.push('\n');
        if attributes.kind == Kind::Directory && id.snapshot() != SnapshotId::VIRTUAL {
            list(names, id, &path, exact, text);
        }
    }
}

#[test]
fn the_kept_image_of_the_format_has_what_it_had() {
    let today = sample().unwrap().with_edits(&[]);
    if std::env::var("HOLDFAST_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(file("image"), to_text(&today)).unwrap();
        std::fs::write(file("listing"), listing(&today, true)).unwrap();
    }
    let read = |extension| std::fs::read_to_string(file(extension)).expect("a golden image of this version is kept");
    let (kept, expected) = (from_text(&read("image")), read("listing"));
    assert_eq!(listing(&kept, true), expected);
    assert_eq!(to_text(&kept), read("image"));
    // What is written today is the same to those who read it.
    assert_eq!(listing(&today, false), listing(&kept, false));
}
