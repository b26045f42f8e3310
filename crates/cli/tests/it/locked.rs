//! Mounts whose metadata is in locked memory.

use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn locked(rig: &Rig) -> String {
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    status["daemon"]["metadata_pages"].as_str().expect("words").to_string()
}

/// Asked of the system, and not of what is tested.
fn has_keys() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap();
    info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"))
}

#[test]
fn a_mount_locks_its_metadata_where_it_can_and_says_so() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    let words = locked(&rig);
    match has_keys() {
        true => assert_eq!(words, "locked with protection keys"),
        false => assert!(words.starts_with("not locked: ") && words.contains("protection keys"), "{words}"),
    }
    let status = rig.run(["status", "m"]).exits(0).out;
    assert!(status.contains(&format!("pages {words}")), "{status}");
    let log = fs::read_dir(rig.path("home/.local/state/holdfast")).unwrap().next().unwrap().unwrap().path();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains(&format!("metadata pages: {words}")), "{log}");
    rig.run(["unmount", "m"]).exits(0);

    rig.run(["mount", "s", "m", "-o", "protect=off"]).exits(0);
    assert!(locked(&rig).starts_with("not locked, as"), "{}", locked(&rig));
    rig.run(["unmount", "m"]).exits(0);

    let ran = rig.run(["mount", "s", "m", "-o", "protect=keys"]);
    match has_keys() {
        true => drop(ran.exits(0)),
        false => drop(ran.exits(1).says("cannot be locked as protect=keys says: ")),
    }
}

/// What changes names, in a directory of its own: pages of directories of several levels, of links and of attributes.
fn change_names(directory: &Path) {
    let link = |number: usize| {
        directory.join(format!("a rather long name of a link, so that there are many pages {number:04}"))
    };
    for number in 0..300 {
        symlink("over there ".repeat(1 + number), link(number)).unwrap();
    }
    let file = directory.join("attributes");
    fs::write(&file, b"x").unwrap();
    for length in [10, 9000, 300] {
        rustix::fs::setxattr(&file, "user.kept", &vec![b'a'; length], rustix::fs::XattrFlags::empty()).unwrap();
    }
    for number in (0..300).step_by(3) {
        fs::rename(link(number), link(number + 1)).unwrap();
    }
    fs::hard_link(&file, directory.join("another name")).unwrap();
    fs::rename(&file, directory.join("a name after that")).unwrap();
}

/// What it has left.
fn look_at_names(directory: &Path) {
    let mut targets: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    targets.retain(|path| path.is_symlink());
    let mut lengths: Vec<_> = targets.iter().map(|path| fs::read_link(path).unwrap().as_os_str().len() / 11).collect();
    lengths.sort_unstable();
    let expected: Vec<_> = (0..300).filter(|number| number % 3 != 1).map(|number| 1 + number).collect();
    assert_eq!(lengths, expected);
    let mut value = vec![0; 1000];
    let length = rustix::fs::getxattr(directory.join("another name"), "user.kept", &mut value[..]).unwrap();
    assert_eq!(value[..length], [b'a'; 300]);
}

#[test]
fn a_mount_works_with_locked_metadata() {
    if !fuse() {
        return;
    }
    works_with("pages", "locked with mprotect");
    if has_keys() {
        works_with("keys", "locked with protection keys");
    }
}

/// What a mount does with metadata it does in windows; its threads can read it; and devices read and write beside the lock.
fn works_with(protect: &str, words: &str) {
    let rig = Rig::new();
    // Memory for so few pages that they come and go, of files and of metadata.
    let mount = rig.mounted(&format!("protect={protect},epoch=50,threads=4,cache=16M"));
    assert!(locked(&rig).starts_with(words), "{}", locked(&rig));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                let directory = mount.join(format!("d{thread}"));
                fs::create_dir(&directory).unwrap();
                for file in 0..60 {
                    let path = directory.join(format!("f{file}"));
                    fs::write(&path, vec![thread as u8; 1000 * file]).unwrap();
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                    if file % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
                change_names(&directory);
            });
        }
    });
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    fs::remove_dir_all(mount.join("d1")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["scrub", "m", "--wait"]).exits(0);
    rig.run(["snapshot", "delete", "m", "one"]).exits(0);
    // From the device, and with a log to replay.
    fs::write(mount.join("d2/last"), b"kept").unwrap();
    fs::File::open(mount.join("d2/last")).unwrap().sync_all().unwrap();
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", &format!("protect={protect}")]).exits(0);
    assert_eq!(fs::read(mount.join("d2/last")).unwrap(), b"kept");
    for file in (0..60).filter(|file| file % 3 != 0) {
        assert!(fs::read(mount.join(format!("d3/f{file}"))).unwrap() == vec![3; 1000 * file], "{file}");
    }
    ["d0", "d2", "d3"].iter().for_each(|directory| look_at_names(&mount.join(directory)));
    rig.run(["mount", "s", "m", "-o", "remount,ro"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "remount,rw"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_stray_write_to_a_page_of_a_directory_ends_the_daemon_which_names_the_page() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("protect=pages,epoch=60000");
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/f"), b"kept").unwrap();
    fs::File::open(mount.join("d/f")).unwrap().sync_all().unwrap();
    let inject = |kind: &str, path: &str| {
        let options = ["--memory", "--kind", kind, "--path", path, "--page", "0", "--bit", "8000", "--stray"];
        rig.run(["inject", "m"].into_iter().chain(options))
    };
    inject("file-data", "/d/f").exits(1).says("pages of files are not locked");
    let told = inject("directory", "/d").exits(0).out;
    let aim = told.lines().find(|line| line.contains("it was aimed at ")).unwrap_or_else(|| panic!("{told}"));
    assert!(aim.contains("byte 1000 of page 0 of object #") && aim.ends_with(", a directory"), "{told}");
    assert!(
        told.contains("pages of directories, links and attributes at 0x") && told.contains("called from"),
        "{told}"
    );
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "protect=off", "--lab"]).exits(0);
    assert_eq!(fs::read(mount.join("d/f")).unwrap(), b"kept");
    inject("directory", "/d").exits(1).says("nothing can go astray there: its pages of metadata are not locked");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
