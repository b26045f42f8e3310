//! Protection modes: which checksum the pages of files have in memory and on disk, and who verifies it when.
//!
//! | mode | in memory | stored | verified by | stands for |
//! |---|---|---|---|---|
//! | `none` | – | – | nobody | a file system without checksums |
//! | `disk` | – | Fletcher-256 | reads from the device | ZFS, btrfs |
//! | `end-to-end=ALG` | ALG | the same, passed on | the reader; fsync, for the intent log | E²ZFS |
//! | `static` | xor | Fletcher-256 and the xor | reader, writes to and reads from the device | Z²FS, static |
//! | `dynamic` | xor; Fletcher-256 after t_switch | Fletcher-256 and the xor | the same | Z²FS, dynamic |
//! | `uniform` | CRC-64/NVME | the same | the same | Holdfast |
//! | `uniform=blake3` | CRC-64/NVME | BLAKE3 and the CRC | the same | Holdfast, also against who wants to deceive |
//!
//! A page that comes from the device and has a reader is verified by the reader alone, by what it is stored under ([`StoredSums::forwarded`]).
//!
//! Source: Y. Zhang, D. S. Myers, A. C. and R. H. Arpaci-Dusseau, *Zettabyte Reliability with Flexible End-to-end Data Integrity*
//! (MSST 2013), section III. What is not the contents of a regular file has CRC-64/NVME in every mode.

use crate::{Algorithm, Checksum, Mismatch, PAGE_SIZE, UnknownAlgorithm, fletcher256_and_xor64_each};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A protection mode: what a store does. The model of the crate `reliability` has modes of its own, without t_switch, which is its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protection {
    /// No checksums.
    None,
    /// On the device only.
    Disk,
    /// The application's, passed on as it is.
    EndToEnd(Algorithm),
    /// A fast one in memory, a strong one on the device.
    Static {
        /// The strong one in memory too: where the model says that xor is never enough.
        strong: bool,
    },
    /// As static, with the strong one for what has been in memory for long.
    Dynamic {
        /// Residency after which the strong one counts, in seconds; 0: the strong one throughout.
        t_switch_s: u32,
    },
    /// The same strong and fast one everywhere.
    #[default]
    Uniform,
    /// As uniform, with a BLAKE3 beside it on the device, by which blocks are verified that come from there: equal ones may be taken for equal
    /// contents.
    UniformBlake3,
}

/// A protection mode that a person or a device names is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownProtection {
    /// A name.
    #[error(
        "unknown protection mode '{0}' (known: none, disk, end-to-end=ALGORITHM, static, static=strong, dynamic, \
         dynamic=SECONDS, uniform, uniform=blake3)"
    )]
    Name(String),
    /// The algorithm of `end-to-end`.
    #[error(transparent)]
    Algorithm(#[from] UnknownAlgorithm),
    /// Stored bytes.
    #[error("unknown protection mode {0:02x?}")]
    Bytes([u8; Protection::BYTES]),
}

impl Protection {
    /// The checksum of the device in the modes that have a strong one beside a fast one: the papers' choice.
    pub const STRONG: Algorithm = Algorithm::Fletcher256;
    /// The checksum of memory in those modes.
    pub const FAST: Algorithm = Algorithm::Xor64;
    /// Residency after which `dynamic` switches if nothing else is said, in seconds: the paper's t_switch for a machine of medium
    /// reliability.
    pub const T_SWITCH_DEFAULT_S: u32 = 92;
    /// Length of the stored form.
    pub const BYTES: usize = 8;

    /// What a page gets when its bytes come from the application.
    pub fn memory(self) -> Algorithm {
        match self {
            Protection::None | Protection::Disk => Algorithm::None,
            Protection::EndToEnd(algorithm) => algorithm,
            Protection::Static { strong: true } | Protection::Dynamic { t_switch_s: 0 } => Protection::STRONG,
            Protection::Static { strong: false } | Protection::Dynamic { .. } => Protection::FAST,
            Protection::Uniform | Protection::UniformBlake3 => Algorithm::Crc64Nvme,
        }
    }

    /// What a block is verified with.
    pub fn stored(self) -> Algorithm {
        match self {
            Protection::None => Algorithm::None,
            Protection::Disk | Protection::Static { .. } | Protection::Dynamic { .. } => Protection::STRONG,
            Protection::EndToEnd(algorithm) => algorithm,
            Protection::Uniform => Algorithm::Crc64Nvme,
            Protection::UniformBlake3 => Algorithm::Blake3,
        }
    }

    /// Whether the checksum of memory is stored beside the strong one, so that a page read back needs no other.
    pub fn stores_both(self) -> bool {
        let is_passed_on_alone = matches!(self, Protection::None | Protection::Disk | Protection::EndToEnd(_));
        !is_passed_on_alone && self.memory() != self.stored()
    }

    /// Whether bytes are verified where they cross the boundary between memory and device.
    pub fn verifies_at_device(self) -> bool {
        !matches!(self, Protection::None | Protection::EndToEnd(_))
    }

    /// Residency after which readers go by the strong checksum.
    pub fn switches_after(self) -> Option<Duration> {
        match self {
            Protection::Dynamic { t_switch_s } if t_switch_s > 0 => Some(Duration::from_secs(u64::from(t_switch_s))),
            _ => None,
        }
    }

    /// The checksums that pages have now, of those with which they are stored, made of all of them together, which is quicker than of one after the
    /// other. Of none in the modes that do not look where bytes cross the boundary between memory and device.
    pub fn sums_of<'a>(self, pages: impl Iterator<Item = &'a [u8; PAGE_SIZE]>) -> Vec<StoredSums> {
        if !self.verifies_at_device() {
            return Vec::new();
        }
        let pages: Vec<_> = pages.map(std::hint::black_box).collect();
        self.sums_of_blocks(|| &pages)
    }

    /// [`Protection::sums_of`] blocks that are reached anew for each checksum, so that the tests can change them in between.
    fn sums_of_blocks<'a>(self, pages: impl Fn() -> &'a [&'a [u8; PAGE_SIZE]]) -> Vec<StoredSums> {
        match self.stored() {
            Algorithm::Crc64Nvme => crc64_of_each(pages()).map(StoredSums::of).collect(),
            Algorithm::Blake3 => {
                // Before the checksums that are compared with those of memory: what flips in between has not got those.
                let new: Vec<_> = pages().iter().map(|page| Algorithm::Blake3.sum(&page[..])).collect();
                let both = new.into_iter().zip(crc64_of_each(pages()));
                both.map(|(primary, secondary)| StoredSums { primary, secondary }).collect()
            }
            _ => {
                let pages = pages();
                let mut sums = Vec::with_capacity(pages.len());
                fletcher256_and_xor64_each(pages, |strong, fast| {
                    let [primary, secondary] =
                        [Checksum::of_le(Protection::STRONG, &strong), Checksum::from_number(Protection::FAST, fast)];
                    sums.push(StoredSums { primary, secondary });
                });
                sums
            }
        }
    }

    /// The stored form.
    pub fn encode(self) -> [u8; Protection::BYTES] {
        let (mode, detail, seconds) = match self {
            Protection::Uniform => (0, 0, 0),
            Protection::UniformBlake3 => (0, Algorithm::Blake3.id(), 0),
            Protection::None => (1, 0, 0),
            Protection::Disk => (2, 0, 0),
            Protection::EndToEnd(algorithm) => (3, algorithm.id(), 0),
            Protection::Static { strong } => (4, u8::from(strong), 0),
            Protection::Dynamic { t_switch_s } => (5, 0, t_switch_s),
        };
        let [a, b, c, d] = u32::to_le_bytes(seconds);
        [mode, detail, 0, 0, a, b, c, d]
    }

    /// The mode that a device has.
    ///
    /// # Errors
    /// [`UnknownProtection::Bytes`] unless a mode has just this form.
    pub fn decode(bytes: [u8; Protection::BYTES]) -> Result<Protection, UnknownProtection> {
        let [mode, detail, _, _, a, b, c, d] = bytes;
        let unknown = || UnknownProtection::Bytes(bytes);
        let protection = match mode {
            0 if detail == Algorithm::Blake3.id() => Protection::UniformBlake3,
            0 => Protection::Uniform,
            1 => Protection::None,
            2 => Protection::Disk,
            3 => Protection::EndToEnd(Algorithm::parse(detail).map_err(|_| unknown())?),
            4 => Protection::Static { strong: detail == 1 },
            5 => Protection::Dynamic { t_switch_s: u32::from_le_bytes([a, b, c, d]) },
            _ => return Err(unknown()),
        };
        let is_mode = protection != Protection::EndToEnd(Algorithm::None) && protection.encode() == bytes;
        if is_mode { Ok(protection) } else { Err(unknown()) }
    }
}

fn crc64_of_each(pages: &[&[u8; PAGE_SIZE]]) -> impl Iterator<Item = Checksum> + use<> {
    let mut sums = vec![0; pages.len()];
    Algorithm::Crc64Nvme.number_each(std::hint::black_box(pages), &mut sums);
    sums.into_iter().map(Checksum::crc64)
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::None => f.pad("none"),
            Protection::Disk => f.pad("disk"),
            Protection::EndToEnd(algorithm) => f.pad(&format!("end-to-end={algorithm}")),
            Protection::Static { strong: false } => f.pad("static"),
            Protection::Static { strong: true } => f.pad("static=strong"),
            Protection::Dynamic { t_switch_s } => f.pad(&format!("dynamic={t_switch_s}")),
            Protection::Uniform => f.pad("uniform"),
            Protection::UniformBlake3 => f.pad("uniform=blake3"),
        }
    }
}

impl FromStr for Protection {
    type Err = UnknownProtection;

    fn from_str(text: &str) -> Result<Self, UnknownProtection> {
        let unknown = || UnknownProtection::Name(text.to_owned());
        let (name, detail) = text.split_once('=').map_or((text, None), |(name, detail)| (name, Some(detail)));
        match (name, detail) {
            ("none", None) => Ok(Protection::None),
            ("disk", None) => Ok(Protection::Disk),
            ("end-to-end", Some(algorithm)) => match algorithm.parse()? {
                Algorithm::None => Err(unknown()),
                algorithm => Ok(Protection::EndToEnd(algorithm)),
            },
            ("static", None) => Ok(Protection::Static { strong: false }),
            ("static", Some("strong")) => Ok(Protection::Static { strong: true }),
            ("dynamic", None) => Ok(Protection::Dynamic { t_switch_s: Protection::T_SWITCH_DEFAULT_S }),
            ("dynamic", Some(seconds)) => {
                seconds.parse().map(|t_switch_s| Protection::Dynamic { t_switch_s }).map_err(|_| unknown())
            }
            ("uniform", None) => Ok(Protection::Uniform),
            ("uniform", Some("blake3")) => Ok(Protection::UniformBlake3),
            _ => Err(unknown()),
        }
    }
}

/// What is stored beside a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StoredSums {
    /// What the block is verified with.
    pub primary: Checksum,
    /// The fast checksum of the modes that store both, of 8 bytes at most; else that of [`Algorithm::None`].
    pub secondary: Checksum,
}

/// What a page has in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PageSums {
    /// What readers verify.
    pub memory: Checksum,
    /// What they verify after the switch; of [`Algorithm::None`] if there is none.
    pub strong: Checksum,
    /// Nobody has looked at the bytes since they came from the device. Where there is a strong checksum, it is the one that they are stored under,
    /// and the first reader verifies that one.
    pub is_forwarded: bool,
}

impl StoredSums {
    /// One checksum.
    pub fn of(primary: Checksum) -> StoredSums {
        StoredSums { primary, secondary: Checksum::none() }
    }

    /// That of an algorithm, if it is there.
    #[inline]
    pub fn under(&self, algorithm: Algorithm) -> Option<Checksum> {
        [self.primary, self.secondary].into_iter().find(|sum| sum.algorithm() == algorithm)
    }

    /// The checksums with which a page of memory is stored: generated from `bytes` where they are not known, before `page`, under
    /// which the bytes were kept, is verified (case 2 of checksum chaining).
    ///
    /// # Errors
    /// [`Mismatch`] if the bytes have not the checksum `page.memory`, in a mode that looks.
    pub fn generate(bytes: &[u8], page: PageSums, mode: Protection) -> Result<StoredSums, Mismatch> {
        StoredSums::generate_summed(bytes, None, page, mode)
    }

    /// The same for whoever has just made checksums of the bytes, of whatever algorithms: they are what is generated and what the bytes are verified by.
    ///
    /// # Errors
    /// As for [`StoredSums::generate`].
    pub fn generate_summed(
        bytes: &[u8],
        just_made: Option<StoredSums>,
        page: PageSums,
        mode: Protection,
    ) -> Result<StoredSums, Mismatch> {
        StoredSums::generate_at(&bytes, just_made, page, mode)
    }

    /// The same of bytes that are reached anew at each step, so that the tests can change them in between.
    #[inline]
    fn generate_at(
        bytes: &impl AsRef<[u8]>,
        just_made: Option<StoredSums>,
        page: PageSums,
        mode: Protection,
    ) -> Result<StoredSums, Mismatch> {
        let made = |algorithm| just_made.and_then(|made| made.under(algorithm));
        let known = |algorithm| [page.memory, page.strong].into_iter().find(|sum| sum.algorithm() == algorithm);
        let get = |algorithm: Algorithm| {
            let generate = || algorithm.sum(std::hint::black_box(bytes.as_ref()));
            known(algorithm).or_else(|| made(algorithm)).unwrap_or_else(generate)
        };
        let primary = get(mode.stored());
        let secondary = if mode.stores_both() { get(mode.memory()) } else { Checksum::none() };
        let is_passed_on = primary == page.memory;
        if mode.verifies_at_device() || !is_passed_on && mode != Protection::None {
            page.memory.verify_summed(std::hint::black_box(bytes.as_ref()), made(page.memory.algorithm()))?;
        }
        Ok(StoredSums { primary, secondary })
    }

    /// The checksums for a block that was read into memory: generated where they are not stored, before the stored one is verified. Of what was
    /// made of the bytes just before, of whatever algorithms, nothing is made again, as for [`StoredSums::generate_summed`].
    ///
    /// # Errors
    /// [`Mismatch`] if the bytes have not the stored checksum, in a mode that looks.
    pub fn load_summed(
        &self,
        bytes: &[u8],
        just_made: Option<StoredSums>,
        mode: Protection,
    ) -> Result<PageSums, Mismatch> {
        self.load_if(&bytes, just_made, mode, mode.verifies_at_device())
    }

    /// The same for whoever relies on what comes from the device, and not on a reader: the bytes are looked at in every mode.
    ///
    /// # Errors
    /// [`Mismatch`] if the bytes have not the stored checksum.
    pub fn load_verified(
        &self,
        bytes: &[u8],
        just_made: Option<StoredSums>,
        mode: Protection,
    ) -> Result<PageSums, Mismatch> {
        self.load_if(&bytes, just_made, mode, true)
    }

    /// As [`StoredSums::generate_at`], the bytes are reached anew at each step.
    #[inline]
    fn load_if(
        &self,
        bytes: &impl AsRef<[u8]>,
        just_made: Option<StoredSums>,
        mode: Protection,
        is_verified: bool,
    ) -> Result<PageSums, Mismatch> {
        let made = |algorithm| just_made.and_then(|made| made.under(algorithm));
        let wanted = mode.memory();
        let memory = self.under(wanted).or_else(|| made(wanted));
        let memory = memory.unwrap_or_else(|| wanted.sum(std::hint::black_box(bytes.as_ref())));
        // Stored by its own mode; over a store of another mode it is generated, here as well before the stored one is verified.
        let strong = match mode.switches_after() {
            Some(_) => {
                let known = self.under(Protection::STRONG).or_else(|| made(Protection::STRONG));
                known.unwrap_or_else(|| Protection::STRONG.sum(std::hint::black_box(bytes.as_ref())))
            }
            None => Checksum::none(),
        };
        let is_passed_on = memory == self.primary;
        if is_verified || !is_passed_on && mode != Protection::None {
            self.primary.verify_summed(std::hint::black_box(bytes.as_ref()), made(self.primary.algorithm()))?;
        }
        Ok(PageSums { memory, strong, is_forwarded: false })
    }

    /// The checksums for a block that whoever uses it verifies: those that it is stored under, passed on without a look at the bytes (case 1
    /// of *Cooperative Data Protection*, §3.2). `None` where they are not all stored, or none is wanted in memory.
    pub fn forwarded(&self, mode: Protection) -> Option<PageSums> {
        let memory = self.under(mode.memory()).filter(|sum| sum.algorithm() != Algorithm::None)?;
        let sums = if memory.algorithm() == self.primary.algorithm() {
            // What readers switch to would have to be made.
            mode.switches_after().is_none().then(|| PageSums::of(memory))?
        } else {
            PageSums { memory, strong: self.primary, is_forwarded: false }
        };
        Some(PageSums { is_forwarded: true, ..sums })
    }
}

impl PageSums {
    /// One checksum.
    pub fn of(memory: Checksum) -> PageSums {
        PageSums { memory, strong: Checksum::none(), is_forwarded: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flaky::Flaky;

    fn all() -> Vec<Protection> {
        let mut all = vec![
            Protection::None,
            Protection::Disk,
            Protection::Static { strong: false },
            Protection::Static { strong: true },
            Protection::Dynamic { t_switch_s: 0 },
            Protection::Dynamic { t_switch_s: 92 },
            Protection::Uniform,
            Protection::UniformBlake3,
        ];
        all.extend(Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::None).map(Protection::EndToEnd));
        all
    }

    #[test]
    fn names_and_stored_forms_lead_back() {
        for mode in all() {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(Protection::decode(mode.encode()), Ok(mode));
        }
        for bad in [
            "",
            "nonsense",
            "none=1",
            "end-to-end",
            "end-to-end=none",
            "dynamic=-1",
            "static=weak",
            "uniform=",
            "uniform=xor64",
        ] {
            assert!(bad.parse::<Protection>().is_err(), "{bad}");
        }
        for bad in
            [[6, 0, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0], [3, 9, 0, 0, 0, 0, 0, 0], [4, 2, 0, 0, 0, 0, 0, 0]]
        {
            assert!(Protection::decode(bad).is_err(), "{bad:?}");
        }
        for at in 1..8 {
            let mut bytes = Protection::Uniform.encode();
            bytes[at] = 1;
            assert!(Protection::decode(bytes).is_err(), "byte {at} of a mode without details");
        }
    }

    /// Which mode notices a flip at which of the three times: before the block is stored, on the device, in memory afterwards.
    #[test]
    fn each_mode_notices_what_its_row_says() {
        let bytes: [u8; PAGE_SIZE] = std::array::from_fn(|at| ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8);
        let mut flipped = bytes;
        flipped[1000] ^= 0x10;
        for mode in all() {
            let fresh = PageSums::of(mode.memory().sum(&bytes));
            let stored = StoredSums::generate(&bytes, fresh, mode).unwrap();
            let loaded = stored.load_summed(&bytes, None, mode).unwrap();
            assert_eq!(loaded.memory, fresh.memory, "{mode}: a page that comes back has the checksum that it had");
            assert_eq!(loaded.strong.algorithm() != Algorithm::None, mode.switches_after().is_some(), "{mode}");
            let before = StoredSums::generate(&flipped, fresh, mode).is_err();
            let on_device = stored.load_summed(&flipped, None, mode).is_err();
            let is_stored = mode.stored() != Algorithm::None;
            assert_eq!(stored.load_verified(&flipped, None, mode).is_err(), is_stored, "{mode}: whoever relies on it");
            assert_eq!(stored.load_verified(&bytes, None, mode), Ok(loaded), "{mode}");
            // Whoever has just made checksums of them, of whatever algorithms, is told the same.
            let made = all().into_iter().filter_map(|other| other.sums_of([&flipped].into_iter()).pop());
            let made = made.chain(Algorithm::ALL.map(|algorithm| StoredSums::of(algorithm.sum(&flipped)))).map(Some);
            for just_made in made {
                assert_eq!(StoredSums::generate_summed(&flipped, just_made, fresh, mode).is_err(), before, "{mode}");
                assert_eq!(stored.load_summed(&flipped, just_made, mode).is_err(), on_device, "{mode}");
            }
            // And what it stores of good ones is what was stored without.
            let just_made = mode.sums_of([&bytes].into_iter()).pop();
            assert_eq!(just_made.is_some(), before || on_device, "{mode}");
            assert_eq!(StoredSums::generate_summed(&bytes, just_made, fresh, mode), Ok(stored), "{mode}");
            assert_eq!(stored.load_summed(&bytes, just_made, mode), Ok(loaded), "{mode}");
            let by_reader = fresh.memory.verify(&flipped).is_err();
            let expected = match mode {
                Protection::None => (false, false, false),
                Protection::Disk => (false, true, false),
                Protection::EndToEnd(_) => (false, false, true),
                Protection::Static { .. } | Protection::Dynamic { .. } => (true, true, true),
                Protection::Uniform | Protection::UniformBlake3 => (true, true, true),
            };
            assert_eq!((before, on_device, by_reader), expected, "{mode}");
            if loaded.strong.algorithm() != Algorithm::None {
                assert!(loaded.strong.verify(&flipped).is_err(), "{mode}");
            }
        }
    }

    /// Cases 1 and 2 of *Cooperative Data Protection*, §3.2, where a page crosses the boundary to the device: whenever a bit flips in between, the
    /// checksums that come out are not those of the flipped bytes, or the crossing fails.
    #[test]
    fn no_flip_between_the_steps_gets_a_checksum_of_its_own() {
        let bytes = [5u8; PAGE_SIZE];
        let mut steps_max = 0;
        for (old, new) in all().into_iter().flat_map(|old| all().into_iter().map(move |new| (old, new))) {
            let page = PageSums::of(old.memory().sum(&bytes));
            let stored = StoredSums::generate(&bytes, page, old).unwrap();
            let strays = |flip_before| Flaky::new(bytes.to_vec(), 12_345, flip_before);
            // To the device: of a page that has a checksum in memory.
            if old.memory() != Algorithm::None && new != Protection::None {
                let good = StoredSums::generate(&bytes, page, new).unwrap();
                for flip_before in 0.. {
                    let flaky = strays(flip_before);
                    let made = StoredSums::generate_at(&flaky, None, page, new);
                    assert!(made.is_err() || made == Ok(good), "{old} to {new}, before step {flip_before}");
                    steps_max = steps_max.max(flaky.accesses());
                    if flaky.accesses() <= flip_before {
                        break;
                    }
                }
            }
            // And from it.
            if old.stored() != Algorithm::None && new != Protection::None {
                let good = stored.load_summed(&bytes, None, new).unwrap();
                for flip_before in 0.. {
                    let flaky = strays(flip_before);
                    let made = stored.load_if(&flaky, None, new, new.verifies_at_device());
                    assert!(made.is_err() || made == Ok(good), "{old} from {new}, before step {flip_before}");
                    if flaky.accesses() <= flip_before {
                        break;
                    }
                }
            }
        }
        assert_eq!(steps_max, 3, "two checksums generated and one verified");
    }

    /// The same where the checksums of many pages are made before they are compared.
    #[test]
    fn no_flip_between_the_sums_of_many_pages_is_missed() {
        let (bytes, mut flipped) = ([5u8; PAGE_SIZE], [5u8; PAGE_SIZE]);
        flipped[99] = 4;
        for mode in all().into_iter().filter(|mode| mode.memory() != Algorithm::None && mode.verifies_at_device()) {
            let page = PageSums::of(mode.memory().sum(&bytes));
            let good = StoredSums::generate(&bytes, page, mode).unwrap();
            for flip_before in 0..3 {
                let looks = std::cell::Cell::new(0);
                let (sound, bad) = ([&bytes; 3], [&flipped; 3]);
                let just_made = mode.sums_of_blocks(|| {
                    looks.set(looks.get() + 1);
                    if looks.get() > flip_before { &bad } else { &sound }
                });
                for made in just_made {
                    let sums = StoredSums::generate_summed(&bytes, Some(made), page, mode);
                    assert!(sums.is_err() || sums == Ok(good), "{mode}, before look {flip_before}");
                }
            }
        }
    }

    /// A store's blocks of one mode under another: whatever has to be generated anew has the old one verified afterwards.
    #[test]
    fn modes_take_each_others_blocks() {
        let bytes = [7u8; 4096];
        let mut flipped = bytes;
        flipped[9] = 6;
        for old in all() {
            let stored = StoredSums::generate(&bytes, PageSums::of(old.memory().sum(&bytes)), old).unwrap();
            for new in all() {
                let page = stored.load_summed(&bytes, None, new).unwrap();
                assert_eq!(page.memory, new.memory().sum(&bytes), "{old} under {new}");
                let strong = new.switches_after().map_or(Checksum::none(), |_| Protection::STRONG.sum(&bytes));
                assert_eq!(page.strong, strong, "{old} under {new}: what readers go by after the switch");
                let is_noticed =
                    stored.load_summed(&flipped, None, new).is_err() || page.memory.verify(&flipped).is_err();
                assert_eq!(
                    is_noticed,
                    old.stored() != Algorithm::None && new != Protection::None || new.memory() != Algorithm::None,
                    "{old} under {new}"
                );
                let again = StoredSums::generate(&bytes, page, new).unwrap();
                assert_eq!(again.primary, new.stored().sum(&bytes), "{old} under {new}");
            }
        }
    }
}
