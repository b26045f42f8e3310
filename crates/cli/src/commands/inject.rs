//! `holdfast inject`: damage on purpose, and its undoing.
//!
//! A store that is not mounted is held exclusively throughout. What is written over is on the host's disk in the undo file before the store
//! is touched. A mounted one is damaged by its daemon, if it was mounted for that.

mod metadata;

use crate::args::{FaultKind, Inject, Metadata, TargetKind};
use crate::failure::{Failure, Result};
use crate::lab::{Asked, InjectReply, InjectRequest, Scribble, Struck, Where};
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::output::{Format, Report, count, print, table};
use crate::paths::shell;
use crate::progress::Progress;
use crate::quoting;
use crate::stack::{self, Settings, Stack};
use crate::target;
use holdfast_block::{Access, BLOCK_SIZE, Device, FileDevice};
use holdfast_fuse::control;
use holdfast_naming::Request;
use holdfast_object::{DomainId, ObjectId, ObjectKey};
use holdfast_physical::inject::{self, BlockClass, Catalogue, Change, Copies, Fault, Injection, Selection, Target};
use holdfast_physical::scribble::Aim;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Bytes shown of a change.
const SHOWN: usize = 8;
/// How many undo files a store can have beside it.
const UNDO_FILES_MAX: u32 = 10_000;

/// A block that has other bytes now.
#[derive(Serialize, Debug)]
struct Changed {
    block: u64,
    /// Of the first byte that is different.
    device_offset_bytes: u64,
    /// Bytes that are different.
    different_bytes: usize,
    /// The first of them and those behind it.
    before: String,
    after: String,
}

#[derive(Serialize, Debug)]
struct Injected {
    store: String,
    fault: &'static str,
    kind: BlockClass,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    level: u8,
    index: u64,
    /// The live file has another one, or none.
    in_snapshots_only: bool,
    /// Copies that the block has.
    copies: usize,
    seed: u64,
    changes: Vec<Changed>,
    /// Puts back what was there.
    undo: String,
    #[serde(skip)]
    undo_command: String,
}

impl Report for Injected {
    fn words(&self) -> String {
        let what = match (self.kind, self.level) {
            (BlockClass::BlockTree | BlockClass::SystemTree, level) => format!("block {} of level {level}", self.index),
            (BlockClass::Label, _) => "the label".to_string(),
            (BlockClass::Superblock, _) => format!("{} before the newest", count(self.index, "epoch", "epochs")),
            (BlockClass::IntentLog, _) => format!("block {}", self.index),
            _ => format!("page {}", self.index),
        };
        let object = self.object.as_deref().map(|object| format!(" of {object}")).unwrap_or_default();
        let path = self.path.as_deref().map(|path| format!(" ({})", quoting::name(path))).unwrap_or_default();
        let of = count(self.copies as u64, "copy", "copies");
        let held = if self.in_snapshots_only { " as only snapshots have it" } else { "" };
        let mut text = format!("{}: {}, {what}{object}{path}{held}, which has {of}\n", self.fault, self.kind.name());
        for change in &self.changes {
            text.push_str(&format!(
                "  block {}: {} changed, the first at byte {} of the device: {} is now {}\n",
                change.block,
                count(change.different_bytes as u64, "byte", "bytes"),
                change.device_offset_bytes,
                change.before,
                change.after
            ));
        }
        text + &format!("Undo with: {}\n", self.undo_command)
    }
}

#[derive(Serialize, Debug)]
struct Listed {
    store: String,
    /// By kind: blocks, and copies in all.
    kinds: Vec<(BlockClass, u64, u64)>,
}

impl Report for Listed {
    fn words(&self) -> String {
        let row = |(class, blocks, copies): &(BlockClass, u64, u64)| {
            (class.name(), format!("{}, {}", count(*blocks, "block", "blocks"), count(*copies, "copy", "copies")))
        };
        table(&self.kinds.iter().map(row).collect::<Vec<_>>())
    }
}

#[derive(Serialize, Debug)]
struct Undone {
    store: String,
    /// Blocks that have their old bytes again.
    restored: u64,
    /// Blocks that had them already: repaired meanwhile.
    unchanged: u64,
}

impl Report for Undone {
    fn words(&self) -> String {
        let (blocks, store) = (count(self.restored, "block", "blocks"), quoting::name(&self.store));
        match self.unchanged {
            0 => format!("Restored {blocks} of {store}.\n"),
            unchanged => format!("Restored {blocks} of {store}; {unchanged} had been repaired already.\n"),
        }
    }
}

/// What an injection wrote over.
#[derive(Serialize, Deserialize)]
struct UndoFile {
    /// Always [`UNDO_FORMAT`].
    format: String,
    store_uuid: String,
    device_blocks: u64,
    changes: Vec<UndoChange>,
}

const UNDO_FORMAT: &str = "holdfast-inject-undo-1";

#[derive(Serialize, Deserialize)]
struct UndoChange {
    block: u64,
    /// 8192 hexadecimal digits.
    before: String,
    after: String,
}

pub(crate) fn run(arguments: &Inject, format: Format) -> Result<()> {
    if arguments.metadata.is_contradictory() {
        return Err(Failure::usage(
            "--bytes says what is written, and so does --pattern: with --bytes there is only keep-all",
        ));
    }
    if let Some(mount) = mounted(arguments)? {
        if metadata::is_about(arguments) {
            return metadata::run(&mount, arguments, format);
        }
        let strike = || ask(&mount, arguments).map(|struck| InMount { command: again(arguments, &struck), struck });
        if arguments.metadata.stray {
            return metadata::astray(&mount, format, strike);
        }
        print(format, &strike()?);
        return Ok(());
    }
    if arguments.memory.is_some() || arguments.metadata.logic_bug.is_some() {
        return Err(Failure::new(format!(
            "{} is a store that is not mounted: it has no memory",
            arguments.store.display()
        ))
        .hint(format!("mount it first: holdfast mount --lab {} DIR", shell(&arguments.store))));
    }
    let device = stack::device(&arguments.store, Access::ReadWrite)?;
    if let Some(undo_file) = &arguments.undo {
        print(format, &undo(&arguments.store, &*device, undo_file)?);
        return Ok(());
    }
    let shared: Arc<dyn Device> = device.clone();
    let catalogue = {
        let _shown = Progress::unknown("looking where the blocks of each kind are");
        Catalogue::read(&shared).map_err(stack::says)?
    };
    match arguments.kind {
        Some(kind) if !arguments.list => print(format, &injure(arguments, on_disk(kind)?, device, &catalogue)?),
        kind => print(format, &list(&arguments.store, &catalogue, kind)),
    }
    Ok(())
}

fn on_disk(kind: TargetKind) -> Result<BlockClass> {
    kind.block.ok_or_else(|| {
        Failure::usage(format!("{} is not on the disk: only in the memory of a mount, with --memory", kind.name()))
    })
}

/// The mount that is to be damaged, if it is one.
fn mounted(arguments: &Inject) -> Result<Option<Mount>> {
    let resolved = stack::locate(&arguments.store)?;
    match target::of_store(&resolved)? {
        Some(mount) => Ok(Some(mount)),
        // A store may lie in a mount.
        None if mounts::containing(&resolved)?.is_some_and(|mount| mount.file_system == FILE_SYSTEM)
            && !stack::is_store(&resolved) =>
        {
            target::mount(&resolved).map(Some)
        }
        None => Ok(None),
    }
}

/// Has a mount damage itself.
fn ask(mount: &Mount, arguments: &Inject) -> Result<Struck> {
    let directory = mount.directory.display();
    let Some(kind) = arguments.kind.filter(|_| arguments.undo.is_none() && !arguments.list) else {
        return Err(Failure::usage(format!(
            "{} is mounted on {directory}; --undo and --list need one that is not",
            mount.source.display()
        ))
        .hint("--memory --list tells what of its metadata is in memory"));
    };
    if arguments.fault != FaultKind::Flip || arguments.save_undo.is_some() {
        return Err(Failure::usage(format!(
            "{} is mounted on {directory}, where bits can be flipped, and nothing else",
            mount.source.display()
        )));
    }
    let place = match arguments.memory {
        Some(when) => Where::Memory { when, checksum: arguments.checksum },
        None => Where::Disk { copies: arguments.copy },
    };
    let Inject { path, page, bit, bits, seed, .. } = arguments;
    let kind = on_disk(kind)?;
    let (path, astray, aim) = (path.clone(), arguments.metadata.stray, aim(arguments)?);
    let request = InjectRequest { place, kind, path, page: *page, bit: *bit, bits: *bits, aim, seed: *seed, astray };
    match exchange(mount, &Asked::Page(request))? {
        InjectReply::Done(struck) => Ok(struck),
        _ => Err(Failure::at(&mount.directory, "the mount answered something else")),
    }
}

/// Where in a page in memory, and with what, if that is said otherwise than by bits.
fn aim(arguments: &Inject) -> Result<Option<Aim>> {
    let Inject { kind, checksum, bits, bit, metadata, .. } = arguments;
    let Metadata { object, level, index, field, offset, length, pattern, bytes, times, .. } = metadata;
    let of_metadata = [
        ("--object", object.is_some()),
        ("--level", level.is_some()),
        ("--index", index.is_some()),
        ("--times", *times != 1),
    ];
    if let Some((option, _)) = of_metadata.into_iter().find(|(_, is_given)| *is_given) {
        let kind = kind.map_or("", TargetKind::name);
        return Err(Failure::usage(format!("{option} is for the store's own metadata, and {kind} is pages of files"))
            .hint("--path and --page choose a page"));
    }
    if field.is_none() && offset.is_none() && length.is_none() && pattern.is_none() && bytes.is_none() {
        return Ok(None);
    }
    let of_bits = [("--checksum", *checksum), ("--bits", *bits != 1), ("--bit", bit.is_some())];
    if let Some((option, _)) = of_bits.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format!(
            "{option} says which bits, and so do --field, --offset, --length, --pattern and --bytes: one or the other"
        )));
    }
    Ok(Some(Aim {
        field: field.clone(),
        offset: *offset,
        length: *length,
        pattern: metadata.pattern(),
        bytes: bytes.as_ref().map(|bytes| bytes.0.clone()),
    }))
}

/// Asks a mount about damage, and gives an answer that is no refusal.
fn exchange(mount: &Mount, request: &Asked) -> Result<InjectReply> {
    let directory = mount.directory.display();
    let json = serde_json::to_vec(request).map_err(stack::says)?;
    let reply = target::ask(mount, "could not be asked to damage itself", |file| control::inject(file, &json))?;
    let reply = reply.ok_or_else(|| {
        Failure::new(format!("{} is mounted on {directory}, and not with --lab", mount.source.display()))
            .hint(format!("unmount it first, to damage the store: holdfast unmount {}", shell(&mount.directory)))
    })?;
    let reply = serde_json::from_slice(&reply).map_err(|error| {
        Failure::at(&mount.directory, format!("the mount gave no answer that makes sense: {error}"))
    })?;
    match reply {
        InjectReply::Refused(failure) => Err(failure),
        reply => Ok(reply),
    }
}

/// The command that flips the same bits once more, or puts back the bytes that were there.
fn again(arguments: &Inject, struck: &Struck) -> String {
    let mut command = format!("holdfast inject {}", shell(&arguments.store));
    if arguments.memory.is_some() {
        command.push_str(&format!(" --memory={}", struck.state));
    }
    if arguments.checksum {
        command.push_str(" --checksum");
    }
    let kind = arguments.kind.map_or("", TargetKind::name);
    command.push_str(&format!(" --kind {kind} --path {} --page {}", shell(Path::new(&struck.path)), struck.page));
    match (arguments.memory, arguments.copy) {
        (None, Copies::All) => command.push_str(" --copy all"),
        (None, Copies::One(copy)) if copy > 0 => command.push_str(&format!(" --copy {}", copy + 1)),
        _ => {}
    }
    if let Some(Scribble { offset, before, .. }) = &struck.scribble {
        return command + &format!(" --offset {offset} --bytes {before}");
    }
    match struck.bits[..] {
        // Each copy has bits of its own, unless they were asked for.
        [bit] if arguments.bit.is_some() || struck.blocks.len() < 2 => command.push_str(&format!(" --bit {bit}")),
        _ => command.push_str(&format!(" --bits {} --seed {}", arguments.bits, arguments.seed)),
    }
    command
}

/// Damage to a mounted store.
#[derive(Serialize, Debug)]
struct InMount {
    #[serde(flatten)]
    struck: Struck,
    /// Takes it back, as long as the page stays as it is.
    #[serde(rename = "undo")]
    command: String,
}

impl Report for InMount {
    fn words(&self) -> String {
        let Struck { object, path, page, state, part, bits, bits_flipped, scribble, blocks } = &self.struck;
        if let Some(scribble) = scribble {
            return format!(
                "written over: page {page} of {object} ({}), in memory, where it is {state}\n  {}\nTo undo it: {}\n",
                quoting::name(path),
                metadata::in_words(scribble),
                self.command
            );
        }
        let bits: Vec<String> = bits.iter().map(|bit| format!("bit {} of byte {}", bit % 8, bit / 8)).collect();
        let more = if *bits_flipped as usize > bits.len() { ", …" } else { "" };
        let each = if blocks.len() > 1 { "; of the other copies as many" } else { "" };
        let place = match blocks[..] {
            [] => format!("in memory, where it is {state}"),
            [block] => format!("on the disk, in block {block}"),
            _ => {
                let blocks: Vec<String> = blocks.iter().map(u64::to_string).collect();
                format!("on the disk, in the blocks {}", blocks.join(", "))
            }
        };
        let of = if part == "checksum" { "the checksum of " } else { "" };
        format!(
            "flipped: {of}page {page} of {object} ({}), {place}\n  {}: {}{more}{each}\nOnce more, to undo it: {}\n",
            quoting::name(path),
            count((*bits_flipped).into(), "bit", "bits"),
            bits.join(", "),
            self.command
        )
    }
}

fn list(store: &Path, catalogue: &Catalogue, kind: Option<TargetKind>) -> Listed {
    let of = |class: BlockClass| {
        let copies: Vec<u64> = catalogue.of_class(class).map(|target| target.copies.len() as u64).collect();
        (class, copies.len() as u64, copies.iter().sum())
    };
    let wanted = BlockClass::ALL.into_iter().filter(|class| kind.is_none_or(|kind| kind.block == Some(*class)));
    Listed { store: store.display().to_string(), kinds: wanted.map(of).collect() }
}

fn injure(arguments: &Inject, class: BlockClass, device: Arc<FileDevice>, catalogue: &Catalogue) -> Result<Injected> {
    let stack = Stack::open(device.clone(), &Settings::to_look());
    let Inject { page, copy: copies, seed, .. } = *arguments;
    let is_of_table = class == BlockClass::ObjectTable;
    let (object, page) = match &arguments.path {
        None => (None, page),
        Some(_) if !class.is_of_object() && !is_of_table => {
            let kind = class.name();
            return Err(Failure::usage(format!("blocks of the kind {kind} are the store's own, and of no file")).hint(
                "leave out --path; with it, choose block-tree, file-data, directory, symlink, xattr, or object-table for the block that has \
                 the file's record",
            ));
        }
        Some(_) if is_of_table && page.is_some() => {
            return Err(Failure::usage("--page is of the object table itself, and --path says which page of it")
                .hint("leave out one of the two"));
        }
        Some(path) => {
            let object = find(stack.as_ref().map_err(Clone::clone)?, path, class)?;
            let (table, at) = inject::table_page(object);
            if is_of_table { (Some(table), Some(at)) } else { (Some(object), page) }
        }
    };
    // A file's page, as somebody reads it now.
    let held = arguments.path.is_none();
    let selection = Selection { class, object, page, held, copies, seed };
    let fault = match arguments.fault {
        FaultKind::Flip => match arguments.bit {
            Some(bit) => Fault::FlipBit { bit },
            None => Fault::Flip { bits: arguments.bits },
        },
        FaultKind::Drop => Fault::Drop,
        FaultKind::Duplicate => Fault::Duplicate,
        FaultKind::Swap => Fault::Swap,
    };
    let injection = inject::plan(&*device, catalogue, &selection, fault).map_err(stack::says)?;
    let undo_file = save(arguments, &*device, catalogue, &injection)?;
    let written = injection.changes.iter().map(|change| (change.block, &*change.after));
    inject::write(&*device, written).map_err(stack::says)?;
    let Injection { target, changes, .. } = injection;
    let path = match (&stack, target.object) {
        (Ok(stack), Some(key)) if key.domain == DomainId::MAIN => {
            Some(String::from_utf8_lossy(&stack.namespace.path_of(key.object)).into_owned())
        }
        _ => None,
    };
    let Target { object, level, index, held, copies, .. } = target;
    let store = arguments.store.display().to_string();
    Ok(Injected {
        undo_command: format!("holdfast inject {} --undo {}", shell(&arguments.store), shell(&undo_file)),
        store,
        fault: match (arguments.fault, arguments.copy) {
            (FaultKind::Flip, _) => "flipped",
            (FaultKind::Drop, _) => "dropped",
            (FaultKind::Duplicate, _) => "overwritten with another block of its kind",
            (FaultKind::Swap, Copies::One(_)) => "swapped with another block of its kind",
            (FaultKind::Swap, Copies::All) => "swapped in every copy with another block of its kind",
        },
        kind: class,
        object: object.map(|key| key.to_string()),
        path,
        level,
        index,
        in_snapshots_only: held,
        copies: copies.len(),
        seed: arguments.seed,
        changes: changes.iter().map(changed).collect(),
        undo: undo_file.display().to_string(),
    })
}

fn changed(change: &Change) -> Changed {
    let differs = |at: &usize| change.before[*at] != change.after[*at];
    let first = (0..BLOCK_SIZE).find(differs).unwrap_or(0);
    let shown = first..(first + SHOWN).min(BLOCK_SIZE);
    Changed {
        block: change.block,
        device_offset_bytes: change.block * BLOCK_SIZE as u64 + first as u64,
        different_bytes: (0..BLOCK_SIZE).filter(differs).count(),
        before: to_hex(&change.before[shown.clone()]),
        after: to_hex(&change.after[shown]),
    }
}

/// The object with a path in the store; for extended attributes, the one that holds those of the file.
pub(crate) fn find(stack: &Stack, path: &Path, class: BlockClass) -> Result<ObjectKey> {
    let mut held = Vec::new();
    let found = find_holding(stack, path, class, &mut held);
    for id in held {
        stack.namespace.forget(id, 1).map_err(|error| Failure::at(path, error))?;
    }
    found
}

/// Each object on the way is held, as by whoever looks it up.
fn find_holding(stack: &Stack, path: &Path, class: BlockClass, held: &mut Vec<ObjectId>) -> Result<ObjectKey> {
    let fail = |error: &dyn std::fmt::Display| Failure::at(path, error);
    let mut id = ObjectId::ROOT;
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                let found = stack.namespace.lookup(&Request::ROOT, id, name.as_bytes());
                id = found.map_err(|error| fail(&error))?.id;
                held.push(id);
            }
            _ => return Err(Failure::usage(format!("{}: a path in the store, without ..", path.display()))),
        }
    }
    if class == BlockClass::Xattr {
        id = stack.namespace.getattr(id).map_err(|error| fail(&error))?.xattr;
        if id == ObjectId::NONE {
            return Err(fail(&"it has no extended attributes"));
        }
    }
    Ok(ObjectKey { domain: DomainId::MAIN, object: id })
}

/// Writes the undo file, durably. An existing one is never written over.
fn save(arguments: &Inject, device: &dyn Device, catalogue: &Catalogue, injection: &Injection) -> Result<PathBuf> {
    let undo = UndoFile {
        format: UNDO_FORMAT.into(),
        store_uuid: crate::report::show_uuid(&catalogue.store_uuid),
        device_blocks: device.blocks(),
        changes: injection
            .changes
            .iter()
            .map(|change| UndoChange {
                block: change.block,
                before: to_hex(&change.before[..]),
                after: to_hex(&change.after[..]),
            })
            .collect(),
    };
    let bytes = serde_json::to_vec(&undo).map_err(stack::says)?;
    let (path, file) = match &arguments.save_undo {
        Some(path) => (path.clone(), File::create_new(path)),
        None => create_numbered(&arguments.store),
    };
    let fail = |error: std::io::Error| {
        Failure::at(&path, mounts::plain(&error)).hint("nothing was damaged: it could not be undone")
    };
    file.and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all())).map_err(fail)?;
    Ok(path)
}

fn create_numbered(store: &Path) -> (PathBuf, std::io::Result<File>) {
    let beside = match fs::metadata(store) {
        Ok(found) if found.is_file() => store.to_path_buf(),
        _ => PathBuf::from(store.file_name().unwrap_or(store.as_os_str())),
    };
    let mut number = 1;
    loop {
        let mut name: OsString = beside.clone().into();
        name.push(format!(".undo-{number}.json"));
        let path = PathBuf::from(name);
        match File::create_new(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < UNDO_FILES_MAX => number += 1,
            made => return (path, made),
        }
    }
}

fn undo(store: &Path, device: &dyn Device, undo_file: &Path) -> Result<Undone> {
    let text = fs::read(undo_file).map_err(|error| Failure::at(undo_file, mounts::plain(&error)))?;
    let undo: UndoFile =
        serde_json::from_slice(&text).map_err(|_| Failure::at(undo_file, "not made by `holdfast inject`"))?;
    if undo.format != UNDO_FORMAT {
        return Err(Failure::at(undo_file, format!("of the format {:?}, not {UNDO_FORMAT}", undo.format)));
    }
    if undo.device_blocks != device.blocks() {
        return Err(Failure::at(undo_file, format!("made for a store of {} blocks", undo.device_blocks)));
    }
    let (mut back, mut unchanged) = (Vec::new(), 0);
    for change in &undo.changes {
        let (Some(before), Some(after), true) =
            (from_hex(&change.before), from_hex(&change.after), change.block < device.blocks())
        else {
            return Err(Failure::at(undo_file, "damaged"));
        };
        match inject::read(device, change.block).map_err(stack::says)? {
            now if now == after => back.push((change.block, before)),
            now if now == before => unchanged += 1,
            _ => {
                let block = change.block;
                return Err(Failure::new(format!("block {block} of {} has been written since", store.display()))
                    .hint("nothing was changed: what it holds now may be needed"));
            }
        }
    }
    inject::write(device, back.iter().map(|(block, bytes)| (*block, &**bytes))).map_err(stack::says)?;
    Ok(Undone { store: store.display().to_string(), restored: back.len() as u64, unchanged })
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Box<inject::Bytes>> {
    let digits = text.as_bytes();
    let mut bytes = Box::new([0; BLOCK_SIZE]);
    if digits.len() != 2 * BLOCK_SIZE {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_undo_file() {
        let mut bytes = Box::new([0; BLOCK_SIZE]);
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7) as u8);
        assert_eq!(from_hex(&to_hex(&bytes[..])), Some(bytes));
        assert_eq!(from_hex("00"), None);
        assert_eq!(from_hex(&"zz".repeat(BLOCK_SIZE)), None);
    }
}
