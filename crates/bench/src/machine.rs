//! One line that says what a table was measured on.

use std::fs;
use std::path::Path;

use crate::error;

/// Processor, memory, kernel, the disk under `dir`, and how busy the machine was.
pub fn describe(dir: &Path) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let cores = processors();
    let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    let memory_gib = (memory_kib as f64 / f64::from(1 << 20)).round();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let disk = error::run("findmnt", &["-n", "-o", "SOURCE,FSTYPE", "-T", &dir.display().to_string()])
        .map_or_else(|_| "unknown disk".to_owned(), |text| text.split_whitespace().collect::<Vec<_>>().join(", "));
    let load = load();
    format!("{cpu}, {cores} cores, {memory_gib} GiB, Linux {kernel}, stores on {disk}, load at the start {load}")
}

/// Processors of the machine that are in use: also those that this program keeps away from ([`cpu::stay_on_one`](crate::cpu::stay_on_one)).
fn processors() -> usize {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|list| listed(&list));
    listed.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// How many are in one of the kernel's lists, as `0-3,6`.
fn listed(list: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let counts = list.trim().split(',').map(|part| match part.split_once('-') {
        Some((first, last)) => (number(last)? + 1).checked_sub(number(first)?),
        None => number(part).map(|_| 1),
    });
    counts.sum()
}

/// Mean number of processes that ran or wanted to, over the last minute.
pub fn load() -> String {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split_whitespace().next().unwrap_or("?").to_owned()
}

/// Memory that programs can still have, in MiB.
pub fn available_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Has the C library keep memory that is freed, so that a measurement does not pay for the kernel's clearing of pages that the one before it
/// has given back: of a device in memory, up to 15 of 110 µs a transaction, and more noise than what is measured.
pub fn keep_freed_memory() {
    // SAFETY: sets two parameters of the allocator, which may be done at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,6,8-9\n", 7)] {
            assert_eq!(listed(list), Some(count), "{list}");
        }
        for list in ["", "0-", "x", "3-1"] {
            assert_eq!(listed(list), None, "{list}");
        }
    }

    #[test]
    fn a_program_on_one_processor_counts_them_all() {
        let pinned = || {
            crate::cpu::stay_on_one().expect("pinned");
            (describe(Path::new("/")), std::thread::available_parallelism().map_or(0, usize::from))
        };
        let expected = describe(Path::new("/"));
        let (described, usable) = std::thread::spawn(pinned).join().expect("it ends");
        let cores = |text: &str| text.split(", ").find(|part| part.ends_with(" cores")).map(str::to_owned);
        assert_eq!((cores(&described), usable), (cores(&expected), 1));
        assert!(cores(&described).is_some());
    }
}
