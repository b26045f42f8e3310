//! Damage on purpose, in a mount made for it: the daemon's part of `holdfast inject` on a mounted store.

mod metadata;

use super::live::Live;
use super::{State, asked};
use crate::failure::{Failure, Result};
use crate::lab::{Asked, InjectReply, InjectRequest, Scribble, Struck, When, Where};
use crate::stack::{Stack, says};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_cache::{FlipError, FlipPart, PageState, Quiet, ResidentPage};
use holdfast_naming::page_fields;
use holdfast_object::{DomainId, Error, Kind, ObjectCache, ObjectId, ObjectKey, ObjectStore, PAGE_BITS};
use holdfast_physical::inject::{self, BlockClass, Catalogue, Copies, Fault, Random, Selection};
use holdfast_physical::scribble::{Aim, field_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bits that a reply names; what a request is answered in has an end.
const BITS_NAMED: usize = 64;
/// How long to wait for who reads a page at this moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to look whether somebody still does.
const LOOKED_EVERY: Duration = Duration::from_millis(5);

/// The reply to a request of the user `uid`.
pub(super) fn answer(state: &State, uid: u32, request: &[u8]) -> InjectReply {
    let done = match state.is_owner(uid) {
        false => Err(Failure::new("only root and the user who mounted the store damage it")),
        true => match asked(request) {
            Ok(Asked::Page(request)) => strike(state, &request),
            Ok(Asked::Metadata { metadata }) => {
                return metadata::answer(state, metadata).unwrap_or_else(InjectReply::Refused);
            }
            Err(failure) => Err(failure),
        },
    };
    match done {
        Ok(struck) => {
            let Struck { object, path, page, state, part, bits, bits_flipped, .. } = &struck;
            tracing::warn!(%object, path, page, state, part, ?bits, bits_flipped, "damaged on purpose");
            InjectReply::Done(struck)
        }
        Err(failure) => InjectReply::Refused(failure),
    }
}

fn strike(state: &State, request: &InjectRequest) -> Result<Struck> {
    let kind = match request.kind {
        BlockClass::FileData => Kind::Regular,
        BlockClass::Directory => Kind::Directory,
        BlockClass::Symlink => Kind::Symlink,
        BlockClass::Xattr => Kind::Xattr,
        other => {
            let message = format!(
                "on the disk, blocks of the kind {} are damaged only in a store that is not mounted",
                other.name()
            );
            return Err(Failure::usage(message).hint("--memory damages what a mount has of them in memory"));
        }
    };
    let live = state.up()?;
    let object = match &request.path {
        None => None,
        Some(path) => Some(crate::commands::inject::find(&live.stack, path, request.kind)?),
    };
    match request.place {
        Where::Memory { when, checksum } => {
            let part = match checksum {
                true => FlipPart::Sum,
                false if request.astray => FlipPart::Astray,
                false => FlipPart::Bytes,
            };
            if request.astray {
                can_go_astray(state)?;
                if kind == Kind::Regular {
                    return Err(Failure::new("nothing can go astray there: pages of files are not locked"));
                }
            }
            in_memory(&live.stack, request, (object, kind), when, part)
        }
        Where::Disk { copies } => on_disk(&live, request, object, copies),
    }
}

/// Whether a write without unlocking memory meets a lock.
fn can_go_astray(state: &State) -> Result<()> {
    let pages = &state.mounting.metadata_pages;
    if pages.starts_with("locked") {
        return Ok(());
    }
    Err(Failure::new(format!("nothing can go astray there: its pages of metadata are {pages}"))
        .hint("mount it with -o protect=pages (or protect=keys), and --lab"))
}

/// Which bits of `all`.
fn bits(request: &InjectRequest, all: u32, random: &mut Random) -> Result<Vec<u32>> {
    match request.bit {
        Some(bit) if bit < all => Ok(vec![bit]),
        Some(bit) => Err(Failure::usage(format!("there is no bit {bit}: it has {all}, from 0"))),
        None if request.bits <= all => Ok(inject::different_bits(request.bits, all, random)),
        None => Err(Failure::usage(format!("{} bits cannot be flipped: it has {all}", request.bits))),
    }
}

/// What is written over of a page, and which bits of it are inverted.
fn aimed(
    quiet: &Quiet<'_>,
    (page, kind): (&ResidentPage, Kind),
    aim: &Aim,
    random: &mut Random,
) -> Result<(Scribble, Vec<u32>)> {
    let bytes = quiet.bytes(page).ok_or_else(|| changed(&FlipError::NotInMemory))?;
    let fields = page_fields(kind, page.index, &bytes);
    let of = |error| Failure::new(format!("page {} of object {}: {error}", page.index, page.object));
    let (offset, flipped) = aim.bits(&fields, &bytes[..], random).map_err(of)?;
    let before = &bytes[offset..offset + flipped.len()];
    let after: Vec<u8> = before.iter().zip(&flipped).map(|(old, bits)| old ^ bits).collect();
    let (field, [before, after]) = (field_of(&fields, offset).to_string(), [before, &after].map(metadata::hex));
    let inverted = (0..8 * flipped.len()).filter(|bit| flipped[bit / 8] >> (bit % 8) & 1 == 1);
    let bits = inverted.map(|bit| (8 * offset + bit) as u32).collect();
    Ok((Scribble { offset, field, before, after }, bits))
}

fn in_memory(
    stack: &Stack,
    request: &InjectRequest,
    (object, kind): (Option<ObjectKey>, Kind),
    when: When,
    part: FlipPart,
) -> Result<Struck> {
    let object = object.map(|key| key.object);
    if let (Some(id), Some(page)) = (object, request.page)
        && when != When::Dirty
    {
        // Into memory, if it is there to be had. An error is for whoever reads the page.
        let _ = stack.cache.read(id, page, 1);
    }
    let until = Instant::now() + PATIENCE;
    let (page, scribble, bits) = loop {
        match flip_one(stack, request, (object, kind), when, part)? {
            Ok(flipped) => break flipped,
            // Nothing tells when a reader has let go of a page: readers, who are many, would have to look for a lab that waits, of which there is
            // mostly none. So it looks again, for a second at most, in the thread of this one request.
            Err(FlipError::InUse) if Instant::now() < until => std::thread::sleep(LOOKED_EVERY),
            Err(error) => return Err(changed(&error)),
        }
    };
    // A path may have to be read, and reading may have to close an epoch: not while it is quiet.
    let struck = struck(stack, page.object, page.index, &page.state.to_string(), part, &bits, Vec::new());
    Ok(Struck { scribble, ..struck })
}

/// A page, what was written over of it, and the bits that were inverted.
type Flipped = (ResidentPage, Option<Scribble>, Vec<u32>);

/// Damages one of the pages that there are now; or says why none could be.
fn flip_one(
    stack: &Stack,
    request: &InjectRequest,
    (object, kind): (Option<ObjectId>, Kind),
    when: When,
    part: FlipPart,
) -> Result<std::result::Result<Flipped, FlipError>> {
    let is_then = |page: &ResidentPage| match when {
        When::Dirty => page.state == PageState::Dirty,
        When::Clean => page.state == PageState::Clean,
        When::Any => true,
    };
    let is_of = |id: ObjectId, found: Kind| found == kind && object.is_none_or(|wanted| wanted == id);
    let quiet = stack.cache.quiet();
    let there = quiet.resident_pages(|id, attributes| is_of(id, attributes.kind));
    let there = there.into_iter().filter(|page| request.page.is_none_or(|wanted| wanted == page.index));
    let (mut pages, others): (Vec<_>, Vec<_>) = there.partition(is_then);
    let mut random = Random::new(request.seed);
    if pages.is_empty() {
        return Err(none_such(request.kind, when, others.len() as u64));
    }
    loop {
        let page = pages.swap_remove(random.below(pages.len() as u64) as usize);
        let all = if part == FlipPart::Sum { page.sum_bits } else { PAGE_BITS };
        if all == 0 {
            return Err(Failure::new("pages have no checksum in memory in this protection mode"));
        }
        let (scribble, bits) = match &request.aim {
            None => (None, bits(request, all, &mut random)?),
            Some(aim) => {
                let (scribble, bits) = aimed(&quiet, (&page, kind), aim, &mut random)?;
                (Some(scribble), bits)
            }
        };
        match quiet.flip(&page, part, &bits) {
            Ok(()) => return Ok(Ok((page, scribble, bits))),
            // Another one will do as well.
            Err(FlipError::InUse) if !pages.is_empty() => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// There is no page to damage: of those that were asked for, `others` are in memory, in the other state.
fn none_such(kind: BlockClass, when: When, others: u64) -> Failure {
    let kind = kind.name();
    let (clean, dirty) = (
        "pages are clean once they have been read, or synced with holdfast sync",
        "pages are dirty from when they are written until the next recovery point",
    );
    let all_are = |wanted: &str, state: &str| {
        let all = if others == 1 { "it is".to_string() } else { format!("all {others} are") };
        Failure::new(format!("no such page of the kind {kind} in memory is {wanted}: {all} {state}"))
    };
    let none_is = |state: &str| Failure::new(format!("no such page of the kind {kind} is in memory{state}"));
    match (when, others) {
        (When::Any, _) => none_is(""),
        (When::Clean, 0) => none_is(" that is clean").hint(clean),
        (When::Dirty, 0) => none_is(" that is dirty").hint(dirty),
        (When::Clean, _) => all_are("clean", "dirty, in no recovery point yet")
            .hint("clean after holdfast sync; --memory=dirty takes what is dirty"),
        (When::Dirty, _) => all_are("dirty", "clean").hint(format!("{dirty}; --memory=clean takes what is clean")),
    }
}

fn on_disk(live: &Live, request: &InjectRequest, object: Option<ObjectKey>, copies: Copies) -> Result<Struck> {
    if live.read_only {
        return Err(Failure::new("it is mounted read-only: nothing is written to its disk, nor damaged there"));
    }
    let device: Arc<dyn Device> = live.disks.bare()?.clone();
    let selection =
        Selection { class: request.kind, object, page: request.page, held: false, copies, seed: request.seed };
    let fault = match request.bit {
        Some(bit) => Fault::FlipBit { bit },
        None => Fault::Flip { bits: request.bits },
    };
    if let Some(key) = object
        && let Err(Error::NoObject(_)) = live.stack.module.attributes(key)
    {
        let message = "it is in no recovery point yet, so nothing of it is on the disk";
        return Err(Failure::new(message).hint("first: holdfast sync"));
    }
    let quiet = live.stack.cache.quiet();
    let catalogue = Catalogue::read(&device).map_err(says)?;
    let injection = inject::plan(&*device, &catalogue, &selection, fault).map_err(says)?;
    let page = injection.target.index;
    let Some(ObjectKey { domain: DomainId::MAIN, object: id }) = injection.target.object else {
        return Err(Failure::new("it is no page of a file"));
    };
    let changes = &injection.changes;
    let damage = || inject::write(&*device, changes.iter().map(|change| (change.block, &*change.after)));
    match quiet.below(id, page, damage) {
        Ok(written) => written.map_err(says)?,
        Err(FlipError::Is(PageState::Dirty)) => {
            return Err(Failure::new("the page has changes that are not on the disk yet").hint("first: holdfast sync"));
        }
        Err(error) => return Err(changed(&error)),
    }
    drop(quiet);
    let first = changes.first();
    let bits: Vec<u32> = (0..BLOCK_SIZE as u32 * 8)
        .filter(|bit| {
            let of = |bytes: &inject::Bytes| bytes[*bit as usize / 8] >> (bit % 8) & 1;
            first.is_some_and(|change| of(&change.before) != of(&change.after))
        })
        .collect();
    let blocks = changes.iter().map(|change| change.block).collect();
    Ok(struck(&live.stack, id, page, "stored", FlipPart::Bytes, &bits, blocks))
}

fn changed(error: &FlipError) -> Failure {
    match error {
        FlipError::NotInMemory | FlipError::Is(_) => {
            Failure::new(format!("{error}: it has changed meanwhile; try again"))
        }
        FlipError::InUse => says(error).hint("try again, or another page"),
        error => says(error),
    }
}

fn struck(
    stack: &Stack,
    object: ObjectId,
    page: u64,
    state: &str,
    part: FlipPart,
    bits: &[u32],
    blocks: Vec<u64>,
) -> Struck {
    Struck {
        object: ObjectKey { domain: DomainId::MAIN, object }.to_string(),
        path: String::from_utf8_lossy(&stack.namespace.path_of(object)).into_owned(),
        page,
        state: state.into(),
        part: if part == FlipPart::Sum { "checksum" } else { "page" }.into(),
        bits: bits.iter().copied().take(BITS_NAMED).collect(),
        bits_flipped: bits.len() as u32,
        scribble: None,
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::{Settings, tests::made_in};
    use holdfast_naming::{Access as Wanted, Create, Request};
    use std::sync::mpsc;

    #[test]
    fn a_page_that_is_being_read_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let device = made_in(directory.path());
        let settings = Settings { read_only: false, ..Settings::to_look() };
        let stack = Stack::open_watched(device(), &settings, &mut |_| {}).unwrap();
        let how = Create { mode: 0o600, exclusive: true, wanted: Wanted::WRITE, truncate: false };
        let created = stack.namespace.create(&Request::ROOT, ObjectId::ROOT, b"f", &how).unwrap();
        let id = created.found.id;
        stack.namespace.write(&Request::ROOT, id, 0, b"some", false).unwrap();
        let request = InjectRequest {
            place: Where::Memory { when: When::Any, checksum: false },
            kind: BlockClass::FileData,
            path: None,
            page: Some(0),
            bit: Some(3),
            bits: 1,
            aim: None,
            seed: 0,
            astray: false,
        };
        let key = ObjectKey { domain: DomainId::MAIN, object: id };
        let (reading, reads) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let page = stack.cache.read(id, 0, 1).unwrap();
                reading.send(()).unwrap();
                // It must hold the page while the other one looks for the first time, and nothing tells that it has; were this too short, the page
                // would be free at once, and the test pass without a wait, but never fail.
                std::thread::sleep(20 * LOOKED_EVERY);
                drop(page);
            });
            reads.recv().unwrap();
            let struck = in_memory(&stack, &request, (Some(key), Kind::Regular), When::Any, FlipPart::Bytes).unwrap();
            assert_eq!((struck.page, &struck.bits[..]), (0, &[3][..]));
        });
        // It is there, and is not said not to be.
        let strike = |when| in_memory(&stack, &request, (Some(key), Kind::Regular), when, FlipPart::Bytes);
        let told = strike(When::Clean).map(|_| ()).unwrap_err();
        assert_eq!(
            told.message,
            "no such page of the kind file-data in memory is clean: it is dirty, in no recovery point yet"
        );
        assert!(told.hint.unwrap().contains("clean after holdfast sync"));
    }
}
