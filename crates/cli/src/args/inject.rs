//! The command line of `holdfast inject`.

use crate::lab::When;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use holdfast_physical::inject::{BlockClass, Copies};
use holdfast_physical::scribble::{LogicBug, MetaKind, Pattern};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
Examples:
  holdfast inject s --list                          what there is to damage
  holdfast inject s --kind file-data                one bit of some file
  holdfast inject s --kind file-data --path /letter --page 0 --bits 3
  holdfast inject s --kind directory --fault swap --copy all --seed 7
  holdfast inject s --undo s.undo-1.json            as it was before
What is written over is kept in a file beside the store (or in the current
directory, if the store is a disk), which --undo takes.

A store that is mounted with --lab can be damaged while it is used:
  holdfast inject /mnt --memory --kind file-data    some page in memory
  holdfast inject /mnt --memory=dirty --kind file-data --path /letter --page 0
  holdfast inject /mnt --memory=clean --kind file-data --checksum
  holdfast inject /mnt --memory --kind directory --field entry.object
  holdfast inject /mnt --kind file-data --path /letter --page 0  on its disk
It prints the command that takes it back while the page stays as it is.

So can the store's own metadata in its memory:
  holdfast inject /mnt --memory --list              what of it is there now
  holdfast inject /mnt --memory --list --kind object-table    and its fields
  holdfast inject /mnt --memory --kind object-table --path /letter --field size
  holdfast inject /mnt --memory --kind bitmap --offset 100 --bytes 00ff
  holdfast inject /mnt --memory=dirty --kind block-tree --pattern keep-checksum
  holdfast inject /mnt --memory=clean --kind block-tree --pattern copy-slot
  holdfast inject /mnt --logic-bug pointer-to-used-block
  holdfast inject /mnt --memory=dirty --kind record --times 3
  holdfast inject /mnt --memory --kind label --stray
  holdfast inject /mnt --memory --kind directory --stray
What is clean is struck at once, and found when it is used next (what was
verified within the last second, after that). Not so with --pattern keep-all:
no checksum sees it, and the store may be damaged for good; you are told if the
audit has an equation for that field. For what is
dirty, and for logic bugs, a recovery point is made and struck on its way, and
you are told what was found. If it has no such thing, the next one that has is
waited for: 10 seconds, or --wait SECONDS. (A log-batch and the logic bug
log-head are part of none: they come with an fsync that goes into the intent
log; names are synced for it.)
Three times in a row makes the store read-only until it is mounted again.
--stray writes to locked memory without unlocking it, which ends the daemon
(see the mount option protect).";

#[derive(Args, Debug)]
pub(crate) struct Inject {
    /// File or block device with a store; or a directory in a mount made with --lab
    #[arg(value_name = "STORE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) store: PathBuf,
    /// In the memory of the mount: what is not on the disk yet, or what is
    #[arg(long, value_name = "STATE", num_args = 0..=1, require_equals = true, default_missing_value = "any", conflicts_with_all = ["undo", "copy", "fault", "save_undo"])]
    pub(crate) memory: Option<When>,
    /// Flip bits of the checksum that the page has in memory instead
    #[arg(long, requires = "memory")]
    pub(crate) checksum: bool,
    /// Kind of block to damage; or of metadata that is in memory only
    #[arg(long, value_parser = target_kind(), required_unless_present_any = ["undo", "list", "logic_bug"])]
    pub(crate) kind: Option<TargetKind>,
    /// What to do to it
    #[arg(long, default_value = "flip")]
    pub(crate) fault: FaultKind,
    /// How many bits to flip in each copy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub(crate) bits: u32,
    /// Flip this one: that of the value 2^(N mod 8) in byte N/8
    #[arg(long, value_name = "N", conflicts_with = "bits")]
    pub(crate) bit: Option<u32>,
    /// Which copy: its number from 1, or all
    #[arg(long, default_value = "1", value_parser = copies, value_name = "N|all")]
    pub(crate) copy: Copies,
    /// Only blocks of this file, by its path in the store
    #[arg(long)]
    pub(crate) path: Option<PathBuf>,
    /// Only this page (of 4 KiB, from 0), or the tree block above it
    #[arg(long)]
    pub(crate) page: Option<u64>,
    /// Decides which block and which bits; the same seed does the same to the same store
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where to keep what is written over; default: STORE.undo-1.json, or the next number
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) save_undo: Option<PathBuf>,
    /// Put back what an earlier injection wrote over
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["kind", "list"])]
    pub(crate) undo: Option<PathBuf>,
    /// Only list how many blocks of each kind there are; with --memory: what metadata is in memory now
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten, next_help_heading = "Metadata in the memory of a mount")]
    pub(crate) metadata: Metadata,
}

/// Which metadata in memory, and what becomes of it.
#[derive(Args, Debug)]
pub(crate) struct Metadata {
    /// Of this object of the store's: N of the files', or DOMAIN:N (0:N are the store's own)
    #[arg(long, value_name = "N|D:N", value_parser = object_number, requires = "memory", conflicts_with = "path")]
    pub(crate) object: Option<(u16, u64)>,
    /// On this level of its tree
    #[arg(long, value_name = "N", requires = "memory")]
    pub(crate) level: Option<u8>,
    /// With this index in its level
    #[arg(long, value_name = "N", requires = "memory")]
    pub(crate) index: Option<u64>,
    /// In this field; --list --kind has their names
    #[arg(long, value_name = "NAME", requires = "memory", conflicts_with = "offset")]
    pub(crate) field: Option<String>,
    /// From this byte of it on
    #[arg(long, value_name = "BYTE", requires = "memory")]
    pub(crate) offset: Option<usize>,
    /// So many bytes: 1 to 512
    #[arg(long, value_name = "BYTES", requires = "memory", value_parser = length)]
    pub(crate) length: Option<usize>,
    /// How: default is a bit, and with --length a range
    #[arg(long, value_parser = by_name(Pattern::ALL, Pattern::name), requires = "memory")]
    pub(crate) pattern: Option<Pattern>,
    /// Write these bytes, two hexadecimal digits each; of all patterns only keep-all goes with it
    #[arg(long, value_name = "HEX", value_parser = hex, requires = "memory", conflicts_with = "length")]
    pub(crate) bytes: Option<Hex>,
    /// Change something wrongly, as a bug in the store would, so that all checksums are right
    #[arg(long, value_name = "NAME", value_parser = by_name(LogicBug::ALL, LogicBug::name), conflicts_with_all = ["kind", "undo", "list", "memory", "copy", "fault", "save_undo", "path"])]
    pub(crate) logic_bug: Option<LogicBug>,
    /// Wait so many seconds for a recovery point that has it; 0: none but the one that is made at once
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) wait: u32,
    /// Strike with so many attempts to make a recovery point, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) times: u32,
    /// Write without unlocking the memory first: the daemon ends, and its log tells who it was
    #[arg(long, requires = "memory", conflicts_with = "checksum")]
    pub(crate) stray: bool,
}

impl Metadata {
    /// That both bytes and a pattern are said, if these do not go together.
    pub(crate) fn is_contradictory(&self) -> bool {
        self.bytes.is_some() && self.pattern.is_some_and(|pattern| pattern != Pattern::KeepAll)
    }

    /// How, also if that is not said.
    pub(crate) fn pattern(&self) -> Pattern {
        self.pattern.unwrap_or(if self.length.is_some() { Pattern::Range } else { Pattern::Bit })
    }
}

/// What can be damaged: blocks on the disk and pages, or metadata in memory, or both by one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TargetKind {
    pub(crate) block: Option<BlockClass>,
    pub(crate) memory: Option<MetaKind>,
}

impl TargetKind {
    fn of(name: &str) -> TargetKind {
        TargetKind {
            block: BlockClass::ALL.into_iter().find(|class| class.name() == name),
            memory: MetaKind::ALL.into_iter().find(|kind| kind.name() == name),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.block.map(BlockClass::name).or(self.memory.map(MetaKind::name)).unwrap_or_default()
    }
}

/// Ways to damage a block.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// Invert bits
    Flip,
    /// As if it had never been written: zeros
    Drop,
    /// The bytes of another block of the kind
    Duplicate,
    /// Exchange it with another block of the kind
    Swap,
}

/// Bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

/// Most bytes of metadata that are written over at once.
const LENGTH_MAX: usize = 512;

fn target_kind() -> impl TypedValueParser<Value = TargetKind> {
    let blocks = BlockClass::ALL.map(BlockClass::name);
    let in_memory = MetaKind::ALL.map(MetaKind::name).into_iter().filter(move |name| !blocks.contains(name));
    let names: Vec<&str> = blocks.into_iter().chain(in_memory).collect();
    PossibleValuesParser::new(names).map(|name| TargetKind::of(&name))
}

fn by_name<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).map(move |asked| {
        let found = all.into_iter().find(|one| name(*one) == asked);
        found.expect("one of the possible values")
    })
}

fn object_number(text: &str) -> Result<(u16, u64), String> {
    let (domain, number) = text.split_once(':').unwrap_or(("1", text));
    domain.parse().ok().zip(number.parse().ok()).ok_or("a number, or DOMAIN:NUMBER".into())
}

fn length(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length| (1..=LENGTH_MAX).contains(length));
    length.ok_or(format!("a number from 1 to {LENGTH_MAX}"))
}

fn hex(text: &str) -> Result<Hex, String> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    let bytes = bytes.filter(|bytes| rest.is_empty() && (1..=LENGTH_MAX).contains(&bytes.len()));
    bytes.map(Hex).ok_or(format!("two hexadecimal digits for each of 1 to {LENGTH_MAX} bytes"))
}

fn copies(text: &str) -> Result<Copies, String> {
    match text.parse::<usize>() {
        _ if text == "all" => Ok(Copies::All),
        Ok(number) if number > 0 => Ok(Copies::One(number - 1)),
        _ => Err("a number from 1, or all".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_objects_are_taken_as_they_are_written() {
        assert_eq!(hex("00fF7a"), Ok(Hex(vec![0, 255, 0x7a])));
        for wrong in ["", "0", "0g", "abc", &"00".repeat(LENGTH_MAX + 1)] {
            assert!(hex(wrong).is_err(), "{wrong}");
        }
        assert_eq!((object_number("7"), object_number("0:16")), (Ok((1, 7)), Ok((0, 16))));
        for wrong in ["", "a", "1:", ":7", "99999:1", "1:2:3", "-1"] {
            assert!(object_number(wrong).is_err(), "{wrong}");
        }
        assert!(length("512").is_ok() && length("513").is_err() && length("0").is_err());
    }

    #[test]
    fn a_name_stands_for_all_that_has_it() {
        let both = TargetKind::of("bitmap");
        assert_eq!((both.block, both.memory), (Some(BlockClass::Bitmap), Some(MetaKind::Bitmap)));
        assert_eq!(TargetKind::of("file-data").memory, None);
        assert_eq!((TargetKind::of("counts").block, TargetKind::of("counts").name()), (None, "counts"));
    }
}
