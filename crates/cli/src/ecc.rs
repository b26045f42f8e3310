//! Whether this machine's memory has ECC, as far as the kernel and the firmware tell.
//!
//! Two witnesses: the kernel's EDAC drivers, which talk to the memory controller, and the table of the firmware (SMBIOS,
//! read from sysfs, by root only). That of a virtual machine describes memory that there is not; it is not believed.
//! Files are read below a root that is given, and what is in them is foreign.

use std::fs;
use std::path::Path;

/// What the machine says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Ecc,
    NoEcc,
    Unknown,
}

/// What was found out, and by what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Detected {
    pub(crate) verdict: Verdict,
    pub(crate) evidence: String,
}

fn detected(verdict: Verdict, evidence: impl Into<String>) -> Detected {
    Detected { verdict, evidence: evidence.into() }
}

/// Looks below `root`, which is `/` but in tests.
pub(crate) fn detect(root: &Path) -> Detected {
    if let Some(found) = by_edac(&root.join("sys/devices/system/edac/mc")) {
        return found;
    }
    let table = fs::read(root.join("sys/firmware/dmi/tables/DMI"));
    let cpu = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    if cpu.split_whitespace().any(|word| word == "hypervisor") || table.as_deref().is_ok_and(is_virtual) {
        return detected(Verdict::Unknown, "a virtual machine does not know its host's memory");
    }
    match table {
        Ok(table) => by_firmware(&table),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            detected(Verdict::Unknown, "no EDAC driver, and only root may read the firmware's table")
        }
        Err(_) => detected(Verdict::Unknown, "neither an EDAC driver nor a table of the firmware"),
    }
}

/// Codes of the kernel's `edac_mode` (Documentation/ABI/testing/sysfs-devices-edac) that correct errors.
const CORRECTING: [&str; 6] = ["EC", "SECDED", "S2ECD2ED", "S4ECD4ED", "S8ECD8ED", "S16ECD16ED"];

/// What the memory controllers say of their modules. `None` where there is no driver, or it does not know.
fn by_edac(controllers: &Path) -> Option<Detected> {
    let mut modes = Vec::new();
    for controller in named(controllers, &["mc"]) {
        for module in named(&controller, &["dimm", "rank"]) {
            modes.push(fs::read_to_string(module.join("dimm_edac_mode")).unwrap_or_default().trim().to_string());
        }
    }
    if modes.iter().any(|mode| mode == "None") {
        return Some(detected(Verdict::NoEcc, "EDAC: a memory module without ECC"));
    }
    let ecc = !modes.is_empty() && modes.iter().all(|mode| CORRECTING.contains(&mode.as_str()));
    ecc.then(|| {
        let number = crate::output::count(modes.len() as u64, "memory module", "memory modules");
        modes.sort_unstable();
        modes.dedup();
        detected(Verdict::Ecc, format!("EDAC: {number} with {}", modes.join(", ")))
    })
}

fn named(directory: &Path, prefixes: &[&str]) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        prefixes.iter().any(|prefix| {
            name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        })
    });
    wanted.map(|entry| entry.path()).collect()
}

/// SMBIOS (DMTF DSP0134) structures, each with its type and its formatted area; ends where the table makes no sense.
fn structures(table: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    const HEADER_BYTES: usize = 4;
    const END_OF_TABLE: u8 = 127;
    let mut rest = table;
    std::iter::from_fn(move || {
        let (kind, length) = (*rest.first()?, usize::from(*rest.get(1)?));
        if length < HEADER_BYTES || kind == END_OF_TABLE {
            return None;
        }
        let formatted = rest.get(..length)?;
        // Strings follow, ended by two zero bytes.
        let strings = &rest[length..];
        let end = strings.windows(2).position(|pair| pair == [0, 0])?;
        rest = &strings[end + 2..];
        Some((kind, formatted))
    })
}

/// Type 0, BIOS information: bit 4 of the second byte of extended characteristics says that the table is of a virtual machine.
fn is_virtual(table: &[u8]) -> bool {
    structures(table).any(|(kind, bytes)| kind == 0 && bytes.get(0x13).is_some_and(|flags| flags & 1 << 4 != 0))
}

/// Type 16, physical memory arrays: those whose use is system memory have a kind of error correction.
fn by_firmware(table: &[u8]) -> Detected {
    const SYSTEM_MEMORY: u8 = 3;
    let arrays = structures(table).filter(|(kind, bytes)| *kind == 16 && bytes.get(5) == Some(&SYSTEM_MEMORY));
    let corrections: Vec<u8> = arrays.filter_map(|(_, bytes)| bytes.get(6).copied()).collect();
    match corrections.as_slice() {
        [] => detected(Verdict::Unknown, "the firmware's table does not tell"),
        all if all.iter().all(|correction| matches!(correction, 5 | 6)) => {
            let name = if all.contains(&5) { "single-bit ECC" } else { "multi-bit ECC" };
            detected(Verdict::Ecc, format!("the firmware's table: {name}"))
        }
        all if all.contains(&3) => detected(Verdict::NoEcc, "the firmware's table: no error correction"),
        _ => detected(Verdict::Unknown, "the firmware's table has another kind of error correction"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn write(root: &TempDir, path: &str, bytes: impl AsRef<[u8]>) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn structure(kind: u8, formatted: &[u8], strings: &[u8]) -> Vec<u8> {
        let header = [kind, formatted.len() as u8 + 4, 7, 0];
        [&header[..], formatted, strings, &[0, 0]].concat()
    }

    /// Type 16 of a system board's system memory.
    fn array(correction: u8) -> Vec<u8> {
        structure(16, &[3, 3, correction, 0, 0, 0, 4, 0xfe, 0xff, 4, 0], b"")
    }

    fn bios(is_virtual: bool) -> Vec<u8> {
        let mut formatted = [0; 20];
        formatted[0x13 - 4] = if is_virtual { 0x1c } else { 0x0c };
        structure(0, &formatted, b"Vendor\0Version")
    }

    const DMI: &str = "sys/firmware/dmi/tables/DMI";

    fn verdict(parts: &[Vec<u8>]) -> Verdict {
        let root = TempDir::new().unwrap();
        write(&root, DMI, parts.concat());
        detect(root.path()).verdict
    }

    #[test]
    fn modules_of_the_memory_controllers_are_asked_first() {
        let root = TempDir::new().unwrap();
        write(&root, DMI, array(3));
        let module = |number: u32| format!("sys/devices/system/edac/mc/mc0/dimm{number}/dimm_edac_mode");
        write(&root, &module(0), "SECDED\n");
        write(&root, &module(1), "S4ECD4ED\n");
        write(&root, "sys/devices/system/edac/mc/mc0/size_mb", "8192\n");
        let found = detect(root.path());
        assert_eq!(found, detected(Verdict::Ecc, "EDAC: 2 memory modules with S4ECD4ED, SECDED"));
        write(&root, &module(2), "None\n");
        assert_eq!(detect(root.path()).verdict, Verdict::NoEcc);
        // What it does not know, the firmware may.
        write(&root, &module(2), "Unknown\n");
        assert_eq!(detect(root.path()), detected(Verdict::NoEcc, "the firmware's table: no error correction"));
    }

    #[test]
    fn the_firmware_tells_of_every_array() {
        assert_eq!(verdict(&[bios(false), array(6)]), Verdict::Ecc);
        assert_eq!(verdict(&[array(5), array(6)]), Verdict::Ecc);
        assert_eq!(verdict(&[array(6), array(3)]), Verdict::NoEcc);
        assert_eq!(verdict(&[array(4)]), Verdict::Unknown);
        assert_eq!(verdict(&[bios(false)]), Verdict::Unknown);
        // Flash memory, not system memory.
        assert_eq!(verdict(&[structure(16, &[3, 5, 6, 0, 0], b"")]), Verdict::Unknown);
        // After the end of the table there is nothing.
        assert_eq!(verdict(&[structure(127, &[], b""), array(6)]), Verdict::Unknown);
    }

    #[test]
    fn a_virtual_machine_is_not_believed() {
        assert_eq!(verdict(&[bios(true), array(6)]), Verdict::Unknown);
        let root = TempDir::new().unwrap();
        write(&root, DMI, array(6));
        write(&root, "proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n");
        assert_eq!(detect(root.path()).verdict, Verdict::Unknown);
        assert!(detect(root.path()).evidence.contains("virtual"));
    }

    #[test]
    fn nothing_to_look_at_is_no_answer() {
        let root = TempDir::new().unwrap();
        assert_eq!(detect(root.path()).verdict, Verdict::Unknown);
    }

    #[test]
    fn cut_and_foreign_tables_do_no_harm() {
        let whole = [bios(false), array(6), structure(127, &[], b"")].concat();
        for length in 0..whole.len() {
            let found = by_firmware(&whole[..length]).verdict;
            assert!(found == Verdict::Unknown || length >= bios(false).len() + array(6).len(), "{length}");
            is_virtual(&whole[..length]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut table = whole.clone();
                table[at] = value;
                by_firmware(&table);
                is_virtual(&table);
            }
        }
    }
}
