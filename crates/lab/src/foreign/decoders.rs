//! All decoders of single structures by name, and one that is the whole stack: the bytes say what to change in the sample.

use super::edit::Edit;
use super::flashlog;
use super::image::{BlockName, Image, Part};
use super::{sample, try_edits};
use holdfast_block::BLOCK_SIZE;
use std::sync::OnceLock;

/// A decoder: any bytes are an error or a value, or it panics; it says whether they are a value.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// Edits that the bytes for [`store`] can make.
const EDITS_MAX: usize = 8;

/// Those of all layers.
pub fn all() -> impl Iterator<Item = Decoder> {
    let layers = [
        &holdfast_physical::decoders::DECODERS[..],
        &holdfast_naming::decoders::DECODERS,
        &holdfast_block::flashlog::decoders::DECODERS,
    ];
    let whole: [Decoder; 3] = [("fuse-request", fuse_request), ("store", store), ("flashlog-set", flashlog::set)];
    layers.concat().into_iter().chain(whole)
}

fn fuse_request(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    // What was agreed on with the kernel: nothing, or everything.
    let agreed = if first & 1 == 0 { 0 } else { u64::MAX };
    holdfast_fuse::header(bytes).is_ok() & holdfast_fuse::request(bytes, agreed).is_ok()
}

fn image() -> &'static (Image, Vec<BlockName>) {
    static IMAGE: OnceLock<(Image, Vec<BlockName>)> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let image = sample().expect("the sample can be made");
        let names = image.names().collect();
        (image, names)
    })
}

/// Each edit: 2 bytes for the block, 2 for the offset, 1 for the length, then as many. A value is a store that can be opened.
fn store(bytes: &[u8]) -> bool {
    let (image, names) = image();
    let mut edits = Vec::new();
    let mut rest = bytes;
    while let [a, b, c, d, length, tail @ ..] = rest
        && edits.len() < EDITS_MAX
    {
        let block = names[usize::from(u16::from_le_bytes([*a, *b])) % names.len()];
        let offset = usize::from(u16::from_le_bytes([*c, *d])) % BLOCK_SIZE;
        let (bytes, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        edits.push(Edit { block, offset, bytes: bytes[..bytes.len().min(BLOCK_SIZE - offset)].to_vec() });
        rest = tail;
    }
    match try_edits(image, &edits, "bytes of the fuzzer") {
        Ok(seen) => seen.opened,
        Err(failure) => panic!("{}\n{}", failure.what, failure.edits),
    }
}

/// Sound structures from the sample, to start from.
pub fn seeds(decoder: &str) -> Vec<Vec<u8>> {
    let (image, names) = image();
    let of = |wanted: &dyn Fn(&BlockName) -> bool| -> Vec<Vec<u8>> {
        names.iter().filter(|name| wanted(name)).filter_map(|name| Some(image.bytes(*name)?.to_vec())).collect()
    };
    let is = |name: &BlockName, which: &[(u16, u64)]| match name.part {
        Part::Object { domain, object } => which.contains(&(domain, object)),
        _ => false,
    };
    let parts = |blocks: Vec<Vec<u8>>, bytes: usize| -> Vec<Vec<u8>> {
        let chunks = blocks.iter().flat_map(|block| block.chunks_exact(bytes));
        let mut parts: Vec<Vec<u8>> =
            chunks.filter(|part| part.iter().any(|byte| *byte != 0)).map(<[u8]>::to_vec).collect();
        parts.dedup_by_key(|part| part[..16.min(part.len())].to_vec());
        parts
    };
    let heads = || of(&|name| matches!(name.part, Part::LogHead(_)));
    match decoder {
        "label" => of(&|name| name.part == Part::Label),
        "superblock" => of(&|name| name.part == Part::Superblock),
        "pointer" => parts(of(&|name| name.level > 0), 64),
        "record" => parts(of(&|name| name.level == 0 && is(name, &[(0, 0), (0, 16)])), 512),
        "snapshot" => parts(of(&|name| name.level == 0 && is(name, &[(0, 19)])), 1024),
        "dead-run" => parts(of(&|name| name.level == 0 && is(name, &[(0, 20)])), 32),
        "log-header" => heads().into_iter().map(|head| head[..160].to_vec()).collect(),
        "log-entries" => {
            let entries =
                |head: &Vec<u8>| head[160..160 + usize::from(u16::from_le_bytes([head[72], head[73]]))].to_vec();
            heads().iter().map(entries).collect()
        }
        "sector-sums" => vec![[vec![1, 1], vec![7; 64]].concat(), [vec![2, 0], vec![7; 64]].concat()],
        "directory" => of(&|name| is(name, &[(1, 1)]) || name.level == 0 && is_directory_page(image, name)),
        "xattrs" => of(&|name| image.bytes(*name).is_some_and(|bytes| bytes[..4] == *b"HFXA")),
        "acl" => vec![super::sample::acl()],
        "flashlog-set" => flashlog::seeds(),
        _ if decoder.starts_with("flashlog-") => flashlog::seeds_of(decoder),
        "fuse-request" => (0..55).map(request_seed).collect(),
        _ => (0..names.len() as u16)
            .step_by(6)
            .map(|block| [&block.to_le_bytes()[..], &[0, 0, 1, 0xff]].concat())
            .collect(),
    }
}

fn is_directory_page(image: &Image, name: &BlockName) -> bool {
    let magic = image.bytes(*name).map(|bytes| [bytes[0], bytes[1], bytes[2]]);
    matches!(name.part, Part::Object { domain: 1, .. }) && magic == Some(*b"HFD")
}

/// A request with this opcode of the protocol, with room for every body.
fn request_seed(opcode: u32) -> Vec<u8> {
    let body = [&b"ab\0c\0"[..], &[0; 115]].concat();
    let mut bytes = vec![1];
    bytes.extend((40 + body.len() as u32).to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend([1; 16]);
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}
