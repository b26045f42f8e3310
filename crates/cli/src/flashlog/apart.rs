//! Whether the devices of a set can fail one without the other: on what they lie in the end, as far as the kernel tells.

use holdfast_block::flashlog::Role;
use rustix::fs::{major, minor};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Loop devices over files over loop devices, and so on: more than anybody has.
const LAYERS_MOST: usize = 16;

/// What fails as a whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Base {
    /// A disk with nothing below it, by the kernel's name.
    Disk(String),
    /// A file system of which the kernel does not say on which disks it is: in memory, of a network, of several disks.
    FileSystem(u64),
}

/// What to warn of if some of these are on the same disk or in the same file system. What cannot be looked at is passed over.
pub(crate) fn warning(main: &Path, log: Option<&Path>, backup: Option<&Path>) -> Option<String> {
    let devices = [(Role::Main, Some(main)), (Role::Log, log), (Role::Backup, backup)];
    let mut all: BTreeMap<Base, Vec<String>> = BTreeMap::new();
    for (role, path) in devices.into_iter().filter_map(|(role, path)| Some((role, path?))) {
        for base in Kernel::default().bases(path, LAYERS_MOST) {
            all.entry(base).or_default().push(role.to_string());
        }
    }
    let (base, roles) = all.into_iter().filter(|(_, roles)| roles.len() > 1).max_by_key(|(_, roles)| roles.len())?;
    let place = match base {
        Base::Disk(name) => format!("on one disk ({name})"),
        Base::FileSystem(_) => "in one file system".to_string(),
    };
    let (last, others) = roles.split_last()?;
    Some(format!("{} and {last} are {place}: the failure of that may take each of them", others.join(", ")))
}

/// A line for people, if there is something to warn of.
pub(crate) fn words(warning: Option<&str>) -> String {
    warning.map_or(String::new(), |warning| format!("Warning: {warning}.\n"))
}

/// Where the kernel tells of disks.
struct Kernel(PathBuf);

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel("/sys/dev/block".into())
    }
}

impl Kernel {
    /// Of a file, or of a disk by its node.
    fn bases(&self, path: &Path, layers: usize) -> BTreeSet<Base> {
        let Ok(found) = fs::metadata(path) else { return BTreeSet::new() };
        let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
        match fs::canonicalize(self.0.join(format!("{}:{}", major(number), minor(number)))) {
            Ok(directory) => self.below(&directory, layers),
            Err(_) => BTreeSet::from([Base::FileSystem(number)]),
        }
    }

    /// Of what the kernel has this directory for.
    fn below(&self, directory: &Path, layers: usize) -> BTreeSet<Base> {
        // A partition may be one of a loop device or an array.
        if directory.join("partition").exists()
            && let Some(disk) = directory.parent()
        {
            return self.below(disk, layers);
        }
        let of_parts = || -> Option<BTreeSet<Base>> {
            let layers = layers.checked_sub(1)?;
            if let Ok(file) = fs::read_to_string(directory.join("loop/backing_file")) {
                return Some(self.bases(Path::new(file.trim_end_matches('\n')), layers));
            }
            let parts = fs::read_dir(directory.join("slaves")).ok()?.flatten();
            let parts = parts.filter_map(|part| fs::canonicalize(part.path()).ok());
            Some(parts.flat_map(|part| self.below(&part, layers)).collect())
        };
        if let Some(parts) = of_parts().filter(|parts| !parts.is_empty()) {
            return parts;
        }
        directory.file_name().map(|name| Base::Disk(name.to_string_lossy().into_owned())).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_of_one_file_system_are_told_and_those_of_two_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let [main, log] = ["main", "log"].map(|name| directory.path().join(name));
        fs::write(&main, []).unwrap();
        assert_eq!(warning(&main, Some(&log), None), None, "there is no log yet");
        fs::write(&log, []).unwrap();
        let told = warning(&main, Some(&log), None).unwrap();
        assert!(told.starts_with("main and log are ") && told.ends_with(" of them"), "{told}");
        let elsewhere = Some(Path::new("/proc/self/status"));
        assert_eq!(warning(&main, elsewhere, None), None);
        let told = warning(&main, elsewhere, Some(&log)).unwrap();
        assert!(told.starts_with("main and backup are "), "{told}");
        let told = warning(&main, Some(&log), Some(&log)).unwrap();
        assert!(told.starts_with("main, log and backup are "), "{told}");
    }

    /// Two partitions of a disk, a loop device with a partition over a file on one of them, a volume over the other and another disk.
    #[test]
    fn partitions_loop_devices_and_volumes_are_what_is_below_them() {
        let directory = tempfile::tempdir().unwrap();
        let sys = fs::canonicalize(directory.path()).unwrap();
        let kernel = Kernel(sys.join("dev/block"));
        fs::create_dir_all(&kernel.0).unwrap();
        let file = sys.join("file");
        fs::write(&file, []).unwrap();
        let number = fs::metadata(&file).unwrap().dev();
        for name in ["sda/sda1", "sda/sda2", "sdb", "loop0/loop", "loop0/loop0p1", "dm-0/slaves"] {
            fs::create_dir_all(sys.join(name)).unwrap();
        }
        for part in ["sda/sda1", "sda/sda2", "loop0/loop0p1"] {
            fs::write(sys.join(part).join("partition"), "1\n").unwrap();
        }
        // The file is on the first partition, whatever has it in truth.
        symlink(sys.join("sda/sda1"), kernel.0.join(format!("{}:{}", major(number), minor(number)))).unwrap();
        fs::write(sys.join("loop0/loop/backing_file"), format!("{}\n", file.display())).unwrap();
        for part in ["sda/sda2", "sdb"] {
            symlink(sys.join(part), sys.join("dm-0/slaves").join(Path::new(part).file_name().unwrap())).unwrap();
        }
        let below = |name: &str| kernel.below(&sys.join(name), LAYERS_MOST);
        let disks = |names: &[&str]| names.iter().map(|name| Base::Disk(name.to_string())).collect::<BTreeSet<_>>();
        assert_eq!(kernel.bases(&file, LAYERS_MOST), disks(&["sda"]));
        for (name, on) in [
            ("sda/sda2", &["sda"][..]),
            ("sdb", &["sdb"]),
            ("loop0", &["sda"]),
            ("loop0/loop0p1", &["sda"]),
            ("dm-0", &["sda", "sdb"]),
        ] {
            assert_eq!(below(name), disks(on), "{name}");
        }
        // A loop device that says that it is over a file on itself ends at itself.
        fs::remove_file(kernel.0.join(format!("{}:{}", major(number), minor(number)))).unwrap();
        symlink(sys.join("loop0"), kernel.0.join(format!("{}:{}", major(number), minor(number)))).unwrap();
        assert_eq!(below("loop0"), disks(&["loop0"]));
    }
}
