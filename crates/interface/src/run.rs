//! What `holdfast run` and the library that it preloads into programs say to each other: variables of the environment, and
//! a file of counters that all processes share.

/// Name of the preloaded library's file.
pub const LIBRARY: &str = "libholdfast_preload.so";
/// Variable with the library's path, for `holdfast run`; without it the library is looked for beside the binary.
pub const LIBRARY_VARIABLE: &str = "HOLDFAST_PRELOAD";
/// Variable for the library: a file of [`COUNTERS_BYTES`] bytes, to count in, as [`CountersName`] has it. Its path is a link of /proc, which may
/// be another file's by now: one whose link is not as [`COUNTERS_LINK`], or that does not begin with [`CountersName::header`], is left alone.
pub const COUNTERS_VARIABLE: &str = "HOLDFAST_RUN_COUNTERS";
/// Variable for the library: if it is there, bytes that went bad are not told on standard error.
pub const QUIET_VARIABLE: &str = "HOLDFAST_RUN_QUIET";

/// What the file of counters is called.
pub const COUNTERS_NAME: &str = "holdfast-run";
/// What the link of the file of counters begins with.
pub const COUNTERS_LINK: &str = "/memfd:holdfast-run";
/// What the file of counters begins with.
pub const COUNTERS_MAGIC: [u8; 8] = *b"HFcount3";
/// Bytes before the counters: the magic bytes, and those that no other run has.
pub const COUNTERS_HEADER_BYTES: usize = COUNTERS_MAGIC.len() + 16;

/// What [`COUNTERS_VARIABLE`] says: 32 hexadecimal digits, a colon, and the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountersName {
    /// Random: a process with the number of one that has ended may have a file of counters in the same place, and it is another run's.
    pub nonce: u128,
    /// Where the file is.
    pub path: String,
}

impl CountersName {
    /// What the file begins with.
    pub fn header(&self) -> [u8; COUNTERS_HEADER_BYTES] {
        let mut header = [0; COUNTERS_HEADER_BYTES];
        let (magic, nonce) = header.split_at_mut(COUNTERS_MAGIC.len());
        magic.copy_from_slice(&COUNTERS_MAGIC);
        nonce.copy_from_slice(&self.nonce.to_le_bytes());
        header
    }

    /// The variable's value, or nothing that `holdfast run` writes.
    pub fn parse(value: &str) -> Option<CountersName> {
        let (digits, path) = value.split_once(':')?;
        let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let nonce = u128::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal)?;
        Some(CountersName { nonce, path: path.to_string() })
    }
}

impl std::fmt::Display for CountersName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}:{}", self.nonce, self.path)
    }
}

/// What is counted: a 64-bit number each, in the machine's byte order, behind the header, in the order of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Counter {
    /// Programs that the library was loaded into.
    Programs,
    /// Of these, those whose stdio it has.
    Streams,
    /// Reads of files in a mount, whose bytes were verified in the reader's memory.
    Reads,
    /// Bytes of those.
    ReadBytes,
    /// Writes to files in a mount, whose checksums were made in the writer's memory.
    Writes,
    /// Bytes of those.
    WrittenBytes,
    /// Calls on files in a mount that were left to the system, as with O_APPEND.
    LeftAlone,
    /// Calls that failed since bytes did not have their checksum, and reads that ended before such bytes; an fsync whose blocks had gone bad
    /// before they were stored, too.
    Bad,
    /// Of those that were left to the system, calls on files in mounts that do not offer the interface. The first one is told.
    Refused,
}

impl Counter {
    /// All, in order, with their names.
    pub const ALL: [(Counter, &'static str); 9] = [
        (Counter::Programs, "programs"),
        (Counter::Streams, "programs_with_stdio"),
        (Counter::Reads, "verified_reads"),
        (Counter::ReadBytes, "verified_read_bytes"),
        (Counter::Writes, "verified_writes"),
        (Counter::WrittenBytes, "verified_written_bytes"),
        (Counter::LeftAlone, "left_alone"),
        (Counter::Bad, "bad"),
        (Counter::Refused, "refused"),
    ];
}

/// Size of the file of counters.
pub const COUNTERS_BYTES: usize = COUNTERS_HEADER_BYTES + Counter::ALL.len() * size_of::<u64>();

/// The counters in a file of them; what is missing is 0.
pub fn decode_counters(bytes: &[u8]) -> [u64; Counter::ALL.len()] {
    let (words, _) = bytes.get(COUNTERS_HEADER_BYTES..).unwrap_or_default().as_chunks::<8>();
    std::array::from_fn(|index| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_in_their_places() {
        for (place, (counter, name)) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, place, "{name}");
        }
        let mut bytes = [0; COUNTERS_BYTES];
        bytes[COUNTERS_HEADER_BYTES + Counter::Writes as usize * 8..][..8].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(decode_counters(&bytes)[Counter::Writes as usize], 7);
        assert_eq!(decode_counters(&bytes[..3]), [0; 9]);
    }

    #[test]
    fn names_of_counters_come_back() {
        for nonce in [0, 7, u128::MAX] {
            let name = CountersName { nonce, path: "/proc/77/fd/3".into() };
            assert_eq!(CountersName::parse(&name.to_string()), Some(name.clone()));
            assert_eq!(name.header()[COUNTERS_MAGIC.len()..], nonce.to_le_bytes());
        }
        let short = "7".repeat(31);
        for other in ["", "/proc/77/fd/3", ":/proc/77/fd/3", &format!("{short}:/x"), &format!("+{short}:/x")] {
            assert_eq!(CountersName::parse(other), None, "{other}");
        }
    }
}
