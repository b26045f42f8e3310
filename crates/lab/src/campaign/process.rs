//! Bits that flip in the memory of another process.

use rand::Rng;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;
/// Set in a word of `/proc/PID/pagemap` for a page that is in memory (proc_pid_pagemap(5)).
const PRESENT: u64 = 1 << 63;
/// What the kernel maps into each process; it belongs to nobody.
const KERNELS: [&str; 4] = ["[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]"];

/// A mapping of a process, as in a line of `/proc/PID/maps`.
struct Mapping {
    addresses: Range<u64>,
    name: String,
}

/// A bit that has flipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flip {
    /// Where.
    pub(super) address: u64,
    /// What is mapped there, as `/proc/PID/maps` names it.
    pub(super) mapping: String,
}

/// A line, and whether what is mapped is the process's own, to be written to or code.
fn parse(line: &str) -> Option<(Mapping, bool)> {
    // Addresses, permissions, offset, device, inode, and behind some blanks the name, which may have blanks in it.
    let words: Vec<&str> = line.splitn(6, ' ').collect();
    let [addresses, permissions, _, _, _, name] = words[..] else { return None };
    let (from, to) = addresses.split_once('-')?;
    let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16));
    let name = name.trim_start().to_owned();
    // What is mapped from a file for all to read can be written by nobody.
    let is_its_own = match permissions.as_bytes() {
        [b'r', b'w', ..] | [b'r', _, _, b'p'] => !KERNELS.contains(&name.as_str()),
        _ => false,
    };
    Some((Mapping { addresses: from.ok()?..to.ok()?, name }, is_its_own))
}

/// What is left alone of a process's memory.
pub(super) struct Spared<'a> {
    /// How the name of its mapping begins. It may be in several lines, as parts of it are protected in different ways.
    pub(super) mapping: &'a str,
    /// Where it begins in there, in bytes before the end of the last one.
    pub(super) from_end: u64,
    /// Its length.
    pub(super) bytes: u64,
}

impl Spared<'_> {
    /// Where that is.
    fn among<'m>(&self, mappings: impl Iterator<Item = &'m Mapping>) -> Range<u64> {
        let named = mappings.filter(|mapping| mapping.name.starts_with(self.mapping));
        let all = named
            .map(|mapping| mapping.addresses.clone())
            .reduce(|all, next| all.start.min(next.start)..all.end.max(next.end));
        let Range { start, end } = all.unwrap_or(0..0);
        let from = end.saturating_sub(self.from_end).max(start);
        from..from.saturating_add(self.bytes).min(end)
    }
}

/// Flips `count` random bits in what the process has in memory but what is spared: data, stacks, heap, code.
///
/// # Errors
/// The process is gone, or may not be written to.
pub(super) fn flip(pid: u32, count: u32, spared: &Spared<'_>, rng: &mut impl Rng) -> io::Result<Vec<Flip>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut pages = Vec::new();
    let mappings = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mappings: Vec<(Mapping, bool)> = mappings.lines().filter_map(parse).collect();
    let spared = spared.among(mappings.iter().map(|(mapping, _)| mapping));
    for (mapping, _) in mappings.iter().filter(|(_, is_its_own)| *is_its_own) {
        let Range { start, end } = mapping.addresses.clone();
        let mut words = vec![0; ((end - start) / PAGE * 8) as usize];
        pagemap.read_exact_at(&mut words, start / PAGE * 8)?;
        let present = words.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word) & PRESENT != 0);
        let addresses = (start..end).step_by(PAGE as usize).zip(present);
        let hit = addresses.filter(|(page, is_present)| *is_present && !spared.contains(page));
        pages.extend(hit.map(|(page, _)| (page, mapping.name.clone())));
    }
    if pages.is_empty() {
        return Err(io::Error::other("the process has nothing in memory"));
    }
    let mut flips = Vec::new();
    for _ in 0..count {
        let (page, mapping) = pages[rng.random_range(0..pages.len())].clone();
        let address = page + rng.random_range(0..PAGE);
        let mut byte = [0];
        memory.read_exact_at(&mut byte, address)?;
        byte[0] ^= 1 << rng.random_range(0..8);
        memory.write_all_at(&byte, address)?;
        flips.push(Flip { address, mapping });
    }
    Ok(flips)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn lines_of_maps_are_understood() {
        let (mapping, is_its_own) =
            parse("7f00a000-7f00c000 rw-s 00001000 00:01 4097   /memfd:holdfast-arena (deleted)").unwrap();
        assert_eq!((mapping.addresses, is_its_own), (0x7f00_a000..0x7f00_c000, true));
        assert_eq!(mapping.name, "/memfd:holdfast-arena (deleted)");
        assert_eq!(parse("7f00a000-7f00c000 rw-p 00000000 00:00 0 ").unwrap().0.name, "");
        for others in [
            "7f00a000-7f00c000 ---p 00000000 00:00 0 ",
            "7f00a000-7f00c000 r--s 00000000 fe:00 12 /usr/lib/gconv-modules.cache",
            "7fff0000-7fff2000 r-xp 00000000 00:00 0 [vdso]",
        ] {
            assert!(!parse(others).unwrap().1, "{others}");
        }
    }

    /// Also where what is behind it is protected, which makes two lines of it.
    #[test]
    fn the_middle_of_a_mapping_is_spared() {
        let mapping = |addresses, name: &str| Mapping { addresses, name: name.into() };
        let spared = Spared { mapping: "/memfd:pool", from_end: 0x8000, bytes: 0x3000 };
        let heap = mapping(0x30_000..0x40_000, "[heap]");
        for parts in [&[(0x10_000, 0x20_000)][..], &[(0x10_000, 0x1c_000), (0x1c_000, 0x20_000)]] {
            let pool = parts.iter().map(|&(start, end)| mapping(start..end, "/memfd:pool (deleted)"));
            let all: Vec<Mapping> = pool.chain([mapping(0x30_000..0x40_000, "[heap]")]).collect();
            assert_eq!(spared.among(all.iter()), 0x18_000..0x1b_000);
        }
        assert!(spared.among([&heap].into_iter()).is_empty());
    }

    /// One bit differs where it is said to, in a process that waits, and what is spared is not hit.
    #[test]
    fn a_bit_of_another_process_flips() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // Once it has answered, it runs; once it has answered twice, the way there brings nothing new into memory.
        for byte in *b"12" {
            child.stdin.as_mut().unwrap().write_all(&[byte]).unwrap();
            let mut answer = [0];
            child.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
            assert_eq!(answer, [byte]);
        }
        let byte_at = |address| {
            let mut byte = [0];
            File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut byte, address).unwrap();
            byte[0]
        };
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let stack = Spared { mapping: "[stack]", from_end: u64::MAX, bytes: u64::MAX };
        // The same bits twice: they are as before.
        let first = flip(pid, 1, &stack, &mut rng.clone()).unwrap();
        let hit = byte_at(first[0].address);
        let again = flip(pid, 1, &stack, &mut rng).unwrap();
        assert_eq!(first, again);
        assert_eq!((hit ^ byte_at(first[0].address)).count_ones(), 1);
        let many = flip(pid, 500, &stack, &mut rng).unwrap();
        assert!(many.iter().all(|flip| flip.mapping != "[stack]"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
