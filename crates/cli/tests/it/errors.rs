//! Bytes that go bad in memory before they are stored, as applications see it: who is told, how often, and what is left.

use crate::caching::write_mapped;
use crate::rig::{Rig, eventually, fuse, kill, root};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: usize = 4;
/// Who keeps pages; no epoch closes by itself.
const MODES: [&str; 5] = [
    "cache=direct,cache=16M,epoch=60000",
    "cache=kernel,cache=16M,epoch=60000",
    "cache=direct,cache=16M,epoch=60000,protection=static",
    "cache=direct,cache=16M,epoch=60000,protection=dynamic=1",
    "cache=direct,cache=16M,epoch=60000,protection=uniform=blake3",
];

fn page(seed: usize, number: usize) -> Vec<u8> {
    (0..PAGE).map(|at| ((at + 1000 * number + 7 * seed) * 31 % 251) as u8).collect()
}

fn pages(seed: usize) -> Vec<u8> {
    (0..PAGES).flat_map(|number| page(seed, number)).collect()
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// A mount with a file whose old contents are stored, and whose new ones the daemon has in memory only.
struct Changed {
    rig: Rig,
    path: PathBuf,
}

impl Changed {
    fn new(options: &str) -> Changed {
        let rig = Rig::new();
        let path = rig.lab(options).join("f");
        fs::write(&path, pages(1)).unwrap();
        fs::write(path.with_file_name("other"), pages(3)).unwrap();
        rig.run(["sync", "m"]).exits(0);
        let changed = Changed { rig, path };
        let file = open(&changed.path, 0);
        file.write_all_at(&pages(2), 0).unwrap();
        // The kernel hands down what it keeps.
        rustix::fs::syncfs(&file).unwrap();
        changed
    }

    fn flip(&self, number: usize) {
        self.rig.flip("/f", number, "dirty");
    }

    fn open(&self) -> File {
        open(&self.path, 0)
    }

    /// Past what the kernel keeps.
    fn reads(&self, number: usize) -> Option<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path).unwrap();
        // Direct I/O wants aligned memory.
        let mut bytes = vec![0; 2 * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        match file.read_at(&mut bytes[start..start + PAGE], (number * PAGE) as u64) {
            Ok(read) => {
                assert_eq!(read, PAGE);
                Some(bytes[start..start + PAGE].to_vec())
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                None
            }
        }
    }
}

/// What a call said: nothing, or EIO.
fn told(outcome: io::Result<()>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(libc::EIO) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_descriptor_is_told_once() {
    if !fuse() {
        return;
    }
    for mode in MODES {
        let changed = Changed::new(mode);
        let [one, two, mapped, closed, written] = [(); 5].map(|()| changed.open());
        let same = one.try_clone().unwrap();
        let other = open(&changed.path.with_file_name("other"), 0);
        changed.flip(1);
        assert!(told(one.sync_all()), "{mode}: fsync");
        assert!(!told(same.sync_all()) && !told(one.sync_all()), "{mode}: it is the same open file, told once");
        assert!(told(two.sync_data()), "{mode}: fdatasync of another one");
        assert!(!told(two.sync_all()), "{mode}");
        // SAFETY: the number was the file's own, which has given it up.
        let close = unsafe { libc::close(closed.into_raw_fd()) };
        assert_eq!(close, 0, "{mode}: close tells nothing");
        let late = changed.open();
        assert!(!told(late.sync_all()), "{mode}: opened when others had been told");
        assert!(!told(other.sync_all()), "{mode}: another file");
        assert_eq!(changed.reads(1), None, "{mode}: neither the old bytes nor the bad ones");
        for number in [0, 2, 3] {
            assert!(changed.reads(number) == Some(page(2, number)), "{mode}: page {number}");
        }
        // By msync; the page that is written is another one.
        assert!(told(write_mapped(&mapped, 1, 9).map_err(io::Error::from)), "{mode}: msync");
        assert!(!told(mapped.sync_all()), "{mode}");
        written.write_all_at(&page(2, 0), 0).unwrap();
        written.write_all_at(&page(2, 1), PAGE as u64).unwrap();
        assert!(!told(written.sync_all()), "{mode}: written again before it was told, nothing is bad");
        drop([one, two, mapped, written, same, late, other]);
        // What was is told, and is no reason to see to it any more.
        let status = changed.rig.run(["status", "m"]).exits(0).out;
        let told = "1 page of a file went bad in memory before it was stored; 1 of these was written again or cut off";
        assert!(status.contains(told) && !status.contains("NOT STORED"), "{mode}: {status}");
        assert!(changed.reads(1) == Some(page(2, 1)), "{mode}");
        changed.rig.kill_daemon("m");
        changed.rig.run(["mount", "s", "m"]).exits(0);
        assert!(fs::read(&changed.path).unwrap() == pages(2), "{mode}: and it is durable");
        changed.rig.run(["unmount", "m"]).exits(0);
        changed.rig.run(["check", "s"]).exits(0);
    }
}

/// Unmounting ends the chance to write them again.
#[test]
fn unmounting_over_bad_pages_is_not_silent() {
    if !fuse() {
        return;
    }
    for has_synced in [false, true] {
        let changed = Changed::new(MODES[0]);
        let rig = &changed.rig;
        changed.flip(1);
        if has_synced {
            // Told once, which is no reason to be silent later.
            rig.run(["sync", "m"]).exits(1);
            let status = rig.run(["status", "m"]).exits(3).out;
            assert!(status.contains("NOT STORED") && status.contains("no corrupt one met on the disk"), "{status}");
        }
        let refused = rig.run(["unmount", "m"]).exits(1);
        refused.says("1 page went bad in memory").says("nothing was unmounted").says("--force");
        changed.open().write_all_at(&page(2, 1), PAGE as u64).unwrap();
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["mount", "--lab", "s", "m", "-o", MODES[0]]).exits(0);
        assert!(fs::read(&changed.path).unwrap() == pages(2), "all that was written");

        changed.open().write_all_at(&pages(4), 0).unwrap();
        changed.flip(2);
        changed.flip(3);
        let forced = rig.run(["unmount", "m", "--force"]).exits(1);
        forced.says("m is unmounted; 2 pages that went bad in memory have not been stored").says("older contents");
        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        let left: Vec<_> = [4, 4, 2, 2].into_iter().enumerate().flat_map(|(at, seed)| page(seed, at)).collect();
        assert!(fs::read(&changed.path).unwrap() == left, "the others are stored, these are as before");
        rig.run(["unmount", "m"]).exits(0);
    }
}

/// Who unmounts in another way than by `holdfast unmount` cannot be refused: the log, the exit code and the next mounts say what is gone.
#[test]
fn what_a_mount_gives_up_is_told_by_the_next_ones() {
    if !fuse() {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    let ways: &[&[&str]] =
        if is_root { &[&["umount"], &["umount", "-l"], &[]] } else { &[&["fusermount3", "-u"], &[]] };
    for way in ways {
        let changed = Changed::new(MODES[0]);
        let rig = &changed.rig;
        rig.run(["unmount", "m"]).exits(0);
        let mount = || {
            let mut daemon = rig.command();
            daemon.args(["mount", "--lab", "s", "m", "--foreground", "-o", MODES[0]]);
            let daemon = daemon.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            eventually("it is mounted", || changed.path.exists());
            daemon
        };
        let end = |daemon: Child| {
            match way {
                [] => kill(i32::try_from(daemon.id()).unwrap(), Signal::TERM),
                [program, options @ ..] => {
                    assert!(Command::new(program).args(options).arg(rig.path("m")).status().unwrap().success());
                }
            }
            let ended = daemon.wait_with_output().unwrap();
            (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
        };
        let daemon = mount();
        changed.open().write_all_at(&pages(4), 0).unwrap();
        changed.flip(1);
        changed.flip(2);
        let (code, log) = end(daemon);
        assert_eq!(code, Some(5), "{way:?}: {log}");
        assert!(
            log.contains("closed in order") && log.contains("2 pages of 1 file went bad in memory"),
            "{way:?}: {log}"
        );
        assert!(log.contains("/f") && log.contains("4096 to 12287"), "{way:?}: {log}");
        rig.run(["check", "s"]).exits(0);

        // Each mount says so, whether anybody has looked or not.
        let given_up = "GIVEN UP: 2 pages of /f went bad in memory before the mount ended";
        let said = rig.run(["mount", "s", "m"]).exits(0);
        assert!(said.err.contains(given_up), "{way:?}: {said:?}");
        rig.run(["unmount", "m"]).exits(0);
        let daemon = mount();
        let status = || rig.run(["status", "m", "--json"]).exits(0).json()["given_up"].clone();
        let told = status();
        assert_eq!((&told["pages"], &told["files"], &told["first"]), (&2.into(), &1.into(), &"/f".into()), "{way:?}");
        changed.open().write_all_at(&pages(4), 0).unwrap();
        assert!(status().is_null(), "{way:?}: they are written again");
        let (code, log) = end(daemon);
        assert_eq!(code, Some(0), "{way:?}: {log}");
        let said = rig.run(["mount", "s", "m"]).exits(0);
        assert!(said.err.is_empty(), "{way:?}: {said:?}");
        assert!(fs::read(&changed.path).unwrap() == pages(4), "{way:?}");
        rig.run(["unmount", "m"]).exits(0);
    }
}

/// Wherever one looks, mounted or not. A page that is written again is told of no more, whatever time the file has then; nothing else helps.
#[test]
fn what_was_given_up_is_told_everywhere_until_the_page_is_written() {
    if !fuse() {
        return;
    }
    let changed = Changed::new(MODES[0]);
    let (rig, path) = (&changed.rig, &changed.path);
    let mount = || rig.run(["mount", "--lab", "s", "m", "-o", &format!("{},epoch=60000", MODES[0])]).exits(0);
    let is_told = |subject: &str, pages: u64, bytes: &str| {
        let file = format!("/f: {} (bytes {bytes})", if pages == 1 { "1 page" } else { "2 pages" });
        let status = rig.run(["status", subject]).exits(0).out;
        assert!(status.contains("GIVEN UP") && status.contains(&file), "{status}");
        let given_up = rig.run(["status", subject, "--json"]).exits(0).json()["given_up"].clone();
        let named = serde_json::json!([{ "path": "/f", "pages": pages, "bytes": bytes }]);
        assert_eq!((&given_up["files"], &given_up["pages"], &given_up["named"]), (&1.into(), &pages.into(), &named));
        let check = rig.run(["check", subject]).exits(0).out;
        assert!(check.contains("GIVEN UP: ") && check.contains(&file) && check.contains("no errors"), "{check}");
        assert_eq!(rig.run(["check", subject, "--json"]).exits(0).json()["given_up"], given_up);
        let metrics = rig.run(["status", subject, "--metrics"]).exits(0).out;
        let sample = |name: &str, labels: &str, value: u64| {
            let end = format!("{labels}}} {value}");
            metrics.lines().any(|line| line.starts_with(&format!("{name}{{")) && line.ends_with(&end))
        };
        assert!(sample("holdfast_given_up_files", "", 1) && sample("holdfast_given_up_pages", "", pages), "{metrics}");
        assert!(sample("holdfast_given_up_file_pages", ",file=\"/f\"", pages), "{metrics}");
    };
    let is_silent = |subject: &str| {
        // The daemon may have been killed, which has an exit code of its own.
        let code = if rig.run(["status", subject]).code == Some(3) { 3 } else { 0 };
        for (words, code) in [(&["status", subject][..], code), (&["check", subject], 0)] {
            let said = rig.run(words).exits(code).out;
            assert!(!said.contains("GIVEN UP"), "{said}");
        }
        let metrics = rig.run(["status", subject, "--metrics"]).exits(code).out;
        let samples: Vec<_> = metrics.lines().filter(|line| line.starts_with("holdfast_given_up_")).collect();
        assert!(samples.len() == 2 && samples.iter().all(|sample| sample.ends_with("} 0")), "{samples:?}");
    };
    let give_up = || {
        changed.open().write_all_at(&pages(4), 0).unwrap();
        changed.flip(1);
        changed.flip(2);
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        rig.run(["unmount", "m", "--force"]).exits(1);
        modified
    };
    is_silent("m");
    let modified = give_up();
    is_told("s", 2, "4096 to 12287");
    mount();
    is_told("m", 2, "4096 to 12287");
    // Other times, other rights, other pages.
    let file = changed.open();
    file.set_modified(modified + Duration::from_secs(5)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    file.write_all_at(&page(5, 0), 0).unwrap();
    is_told("m", 2, "4096 to 12287");
    // With the time that it had, as `cp -p` and `rsync -a` do.
    file.write_all_at(&page(4, 1), PAGE as u64).unwrap();
    file.set_modified(modified).unwrap();
    is_told("m", 1, "8192 to 12287");
    rig.run(["sync", "m"]).exits(0);
    is_told("m", 1, "8192 to 12287");
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    is_told("s", 1, "8192 to 12287");
    mount();
    let file = changed.open();
    file.write_all_at(&page(4, 2), 2 * PAGE as u64).unwrap();
    file.set_modified(modified).unwrap();
    // In the intent log only: checking the mount would make a recovery point.
    file.sync_all().unwrap();
    drop(file);
    rig.kill_daemon("m");
    is_silent("s");
    mount();
    is_silent("m");
    rig.run(["sync", "m"]).exits(0);
    is_silent("m");
    rig.run(["unmount", "m"]).exits(0);
    is_silent("s");

    // Cut off.
    mount();
    give_up();
    mount();
    is_told("m", 2, "4096 to 12287");
    changed.open().set_len(PAGE as u64).unwrap();
    changed.open().set_len((PAGES * PAGE) as u64).unwrap();
    is_silent("m");
    rig.run(["unmount", "m"]).exits(0);
    is_silent("s");
}

#[test]
fn a_synchronous_write_is_told_at_once() {
    if !fuse() {
        return;
    }
    for mode in MODES {
        for flags in [libc::O_DSYNC, libc::O_SYNC] {
            let changed = Changed::new(mode);
            let (synchronous, ordinary) = (open(&changed.path, flags), changed.open());
            changed.flip(1);
            let write = || told(synchronous.write_all_at(&page(2, 3), 3 * PAGE as u64));
            assert!(write(), "{mode}");
            assert!(!write(), "{mode}: once");
            assert!(told(ordinary.sync_all()) && !told(ordinary.sync_all()), "{mode}: who writes without it, by fsync");
        }
    }
    // A mount for which every write is synchronous: the intent log has all of them, and a page that goes bad is read again from there.
    for mode in MODES {
        let changed = Changed::new(mode);
        let rig = &changed.rig;
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["mount", "--lab", "s", "m", "-o", &format!("{mode},sync")]).exits(0);
        let (one, two) = (changed.open(), changed.open());
        // Written under this mount, so that the page is dirty.
        for is_read in [true, false] {
            one.write_all_at(&page(2, 1), PAGE as u64).unwrap();
            rig.flip("/f", 1, "dirty");
            if is_read {
                assert!(changed.reads(1) == Some(page(2, 1)), "{mode}");
            }
            rig.run(["sync", "m"]).exits(0);
            assert!(changed.reads(1) == Some(page(2, 1)), "{mode}: also from the recovery point");
        }
        assert!(!told(one.write_all_at(&page(2, 0), 0)) && !told(two.sync_all()), "{mode}");
    }
}

#[test]
fn the_old_contents_stay_until_it_is_written_again() {
    if !fuse() {
        return;
    }
    for mode in MODES {
        let changed = Changed::new(mode);
        let file = changed.open();
        // A page that the store has never had.
        file.write_all_at(&page(2, PAGES), (PAGES * PAGE) as u64).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        changed.flip(1);
        changed.flip(PAGES);
        assert!(told(file.sync_all()), "{mode}");
        drop(file);
        changed.rig.kill_daemon("m");
        changed.rig.run(["mount", "s", "m"]).exits(0);
        let mut expected = (0..PAGES).map(|number| Some(page(2, number))).collect::<Vec<_>>();
        expected[1] = Some(page(1, 1));
        expected.push(None);
        let found: Vec<_> = (0..=PAGES).map(|number| changed.reads(number)).collect();
        assert!(found == expected, "{mode}: the old bytes, and no zeros where there were none");
        let file = changed.open();
        assert!(!told(file.sync_all()), "{mode}: that was another life");
        for number in [1, PAGES] {
            file.write_all_at(&page(2, number), (number * PAGE) as u64).unwrap();
        }
        assert!(!told(file.sync_all()), "{mode}");
        drop(file);
        changed.rig.run(["unmount", "m"]).exits(0);
        changed.rig.run(["check", "s"]).exits(0);
    }
}

#[test]
fn a_sync_of_everything_tells_what_it_cannot_store_and_stores_the_rest() {
    if !fuse() {
        return;
    }
    for mode in MODES {
        let changed = Changed::new(mode);
        let rig = &changed.rig;
        let file = changed.open();
        let figure = |code, name: &str| rig.run(["status", "m", "--json"]).exits(code).json()["cache"][name].clone();
        changed.flip(2);
        let place = "/f: 1 page (bytes 8192 to 12287)";
        let says = format!("1 page went bad in memory and is not on the disk: {place}; everything else is");
        let ran = rig.run(["sync", "m"]).exits(1).says(&says);
        let log = ran.err.split("names: ").nth(1).unwrap().trim();
        let logged = fs::read_to_string(log).unwrap();
        assert!(logged.contains("went bad in memory") && logged.contains("/f"), "{logged}");
        rig.run(["sync", "m"]).exits(1).says(&says);
        let status = rig.run(["status", "m"]).exits(3).out;
        assert!(status.contains("NOT STORED") && status.contains(place), "{mode}: {status}");
        assert_eq!((figure(3, "pages_bad"), figure(3, "pages_lost")), (1.into(), 1.into()));
        assert!(told(file.sync_all()), "{mode}: descriptors are told apart from that");
        file.write_all_at(&page(2, 2), 2 * PAGE as u64).unwrap();
        assert!(!told(file.sync_all()), "{mode}");
        rig.run(["sync", "m"]).exits(0);
        assert_eq!((figure(0, "pages_bad"), figure(0, "pages_lost")), (0.into(), 1.into()));
        // Found, and written again, before anybody asks: nothing to tell.
        file.write_all_at(&page(2, 3), 3 * PAGE as u64).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        changed.flip(3);
        assert_eq!(changed.reads(3), None, "{mode}");
        file.write_all_at(&page(2, 3), 3 * PAGE as u64).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        rig.run(["sync", "m"]).exits(0);
    }
}

/// It is made all the same: what is good is in it, and whoever wants that has it.
#[test]
fn a_snapshot_tells_of_pages_that_it_has_as_they_were() {
    if !fuse() {
        return;
    }
    let changed = Changed::new(MODES[0]);
    let rig = &changed.rig;
    changed.flip(1);
    changed.flip(2);
    let create = |name: &str| rig.run(["snapshot", "create", "m", name]);
    let ran = create("one").exits(1);
    let told = "snapshot one is made, with the old contents of 2 pages that went bad in memory and are not on the disk";
    assert!(ran.err.contains(told) && ran.out.is_empty(), "{ran:?}");
    let of = |name: &str| fs::read(rig.path("m/.holdfast/snapshots").join(name).join("f")).unwrap();
    assert_eq!(of("one"), [page(2, 0), page(1, 1), page(1, 2), page(2, 3)].concat());
    let log = rig.run(["status", "m", "--json"]).exits(3).json()["daemon"]["log"].as_str().unwrap().to_owned();
    let logged = fs::read_to_string(log).unwrap();
    assert!(logged.contains("went bad in memory") && logged.contains("/f"), "{logged}");
    let file = changed.open();
    for number in [1, 2] {
        file.write_all_at(&page(2, number), (number * PAGE) as u64).unwrap();
    }
    rustix::fs::syncfs(&file).unwrap();
    assert!(create("two").exits(0).out.contains("keeps the files as they are now"));
    assert_eq!(of("two"), pages(2));
}

/// A remount opens the store anew, and descriptors stay.
#[test]
fn a_remount_forgets_nothing() {
    if !fuse() || !root("remounts need root") {
        return;
    }
    let changed = Changed::new(MODES[0]);
    let remount = |how: &str| changed.rig.run(["mount", "s", "m", "-o", &format!("remount,{how}")]).exits(0);
    // For reading: others would be in the way.
    let [one, two] = [(); 2].map(|()| File::open(&changed.path).unwrap());
    changed.flip(1);
    assert!(told(one.sync_all()));
    remount("ro");
    assert_eq!(changed.reads(1), None, "not the old contents all of a sudden");
    changed.rig.run(["unmount", "m"]).exits(1).says("1 page went bad in memory").says("nothing was unmounted");
    assert!(changed.reads(0) == Some(page(2, 0)));
    assert!(told(two.sync_all()) && !told(two.sync_all()) && !told(one.sync_all()));
    remount("rw");
    assert_eq!(changed.reads(1), None);
    let file = changed.open();
    file.write_all_at(&page(2, 1), PAGE as u64).unwrap();
    assert!(changed.reads(1) == Some(page(2, 1)) && !told(file.sync_all()));
    // Counted on from where it was: what is new is told to those who were told before.
    file.write_all_at(&page(2, 2), 2 * PAGE as u64).unwrap();
    changed.flip(2);
    for file in [&file, &one, &two] {
        assert!(told(file.sync_all()) && !told(file.sync_all()));
    }
}
