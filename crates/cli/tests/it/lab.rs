//! Damage on purpose to a store that is in use: `holdfast mount --lab`, `holdfast inject DIR`.

use crate::rig::{Rig, fuse, root};
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;

const PAGE: usize = 4096;
const PAGES: usize = 5;
const OPTIONS: &str = "epoch=60000,cache=16M";

fn content(seed: usize) -> Vec<u8> {
    (0..PAGES * PAGE).map(|at| ((at + at / PAGE * 77 + seed) * 31 % 251) as u8).collect()
}

fn figure(rig: &Rig, name: &str) -> u64 {
    rig.run(["status", "m", "--json"]).exits(0).json()["cache"][name].as_u64().unwrap()
}

/// `holdfast inject m` with these words behind it.
fn inject(rig: &Rig, words: &str) -> Value {
    rig.run(["inject", "m", "--json"].into_iter().chain(words.split_whitespace())).exits(0).json()
}

/// Runs the command that an injection gave to undo it.
fn undo(rig: &Rig, done: &Value) {
    let command = done["undo"].as_str().unwrap();
    let words = command.strip_prefix("holdfast ").unwrap();
    let again = rig.run(words.split_whitespace().chain(["--json"])).exits(0).json();
    assert_eq!(again, *done, "the same once more");
}

#[test]
fn a_file_that_was_damaged_by_its_path_can_be_deleted() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let m = rig.lab(OPTIONS);
    let objects = || rig.run(["status", "m", "--json"]).exits(0).json()["objects"].clone();
    let before = objects();
    fs::create_dir(m.join("d")).unwrap();
    fs::write(m.join("d/f"), content(1)).unwrap();
    rig.run(["sync", "m"]).exits(0);
    inject(&rig, "--memory=clean --kind file-data --path /d/f");
    rig.run(["inject", "m", "--memory=clean", "--kind", "file-data", "--path", "/d/none"]).exits(1);
    fs::remove_dir_all(m.join("d")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    assert_eq!(objects(), before, "nobody holds them any more");
}

fn is_eio(path: &Path) -> bool {
    match fs::read(path) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
            true
        }
    }
}

#[test]
fn a_mount_takes_no_damage_unless_it_was_made_for_it() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted(OPTIONS).join("f");
    fs::write(&path, content(1)).unwrap();
    for words in ["--memory", "--memory=dirty --checksum", ""] {
        for target in ["m", "s", "m/f"] {
            let words = ["inject", target, "--kind", "file-data"].into_iter().chain(words.split_whitespace());
            rig.run(words).exits(1).says("is mounted on").says("and not with --lab");
        }
    }
    assert!(!rig.run(["status", "m"]).exits(0).out.contains("LAB"));
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["inject", "s", "--memory", "--kind", "file-data"]).exits(1).says("not mounted: it has no memory");
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "--lab", "s", "m", "-o", "remount,ro"]).exits(2).says("--lab");
}

#[test]
fn only_root_and_who_mounted_it_damage_it() {
    if !fuse() || !root("other users need root") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("allow_other,cache=16M");
    fs::write(mount.join("f"), content(1)).unwrap();
    let directory = File::open(&mount).unwrap();
    let request =
        r#"{"place":{"memory":{"when":"any","checksum":false}},"kind":"file-data","bits":1,"seed":0,"astray":false}"#;
    let ask = || {
        let reply = holdfast_fuse::control::inject(&directory, request.as_bytes()).unwrap();
        serde_json::from_slice::<Value>(&reply.expect("it is the lab's")).unwrap()
    };
    let refused = std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            // Of this thread alone: the system call, not the library's function.
            // SAFETY: no memory is passed.
            let done = unsafe { libc::syscall(libc::SYS_setfsuid, 65_534) };
            assert_eq!(done, 0, "it was root");
            ask()
        });
        user.join().unwrap()
    });
    let message = refused["refused"]["message"].as_str().expect("refused");
    assert!(message.contains("only root and the user who mounted"), "{message}");
    let done = ask();
    assert!(done["done"]["bits_flipped"] == 1, "{done}");
}

#[test]
fn bits_flip_in_memory_at_each_moment_and_back() {
    if !fuse() {
        return;
    }
    for (mode, checksum) in [("uniform", ""), ("uniform", "--checksum"), ("end-to-end=fletcher256", "--checksum")] {
        let rig = Rig::new();
        let path = rig.lab(&format!("{OPTIONS},protection={mode}")).join("f");
        assert!(rig.run(["status", "m"]).exits(0).out.contains("LAB"));
        let flip = |state: &str, words: &str| {
            let what = format!("--memory={state} {checksum} --kind file-data --path /f {words}");
            let done = inject(&rig, &what);
            assert_eq!(done["state"], state, "{done}");
            assert_eq!(done["part"], if checksum.is_empty() { "page" } else { "checksum" });
            done
        };
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &content(1), 0).unwrap();
        rig.run(["inject", "m", "--memory=clean", "--kind", "file-data"])
            .exits(1)
            .says("no such page")
            .says("is clean: all 5 are dirty")
            .says("holdfast sync");
        // Not on the disk yet; nobody looks meanwhile.
        undo(&rig, &flip("dirty", "--page 2 --bit 19"));
        undo(&rig, &flip("dirty", "--bits 3 --seed 7"));
        assert!(fs::read(&path).unwrap() == content(1), "{mode}: as if nothing had been");
        flip("dirty", "--page 3 --bit 9");
        assert!(is_eio(&path), "{mode}");
        if mode == "uniform" {
            assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        fs::write(&path, content(2)).unwrap();
        rig.run(["sync", "m"]).exits(0);
        rig.run(["inject", "m", "--memory=dirty", "--kind", "file-data"])
            .exits(1)
            .says("no such page")
            .says("is dirty: all");
        let before = figure(&rig, "pages_reread");
        undo(&rig, &flip("clean", "--page 2 --bit 19"));
        assert!(fs::read(&path).unwrap() == content(2));
        assert_eq!(figure(&rig, "pages_reread"), before, "{mode}: flipped back");
        for _ in 0..3 {
            flip("clean", "--page 2 --bits 5");
            assert!(fs::read(&path).unwrap() == content(2), "{mode}: read again from the disk");
        }
        assert_eq!(figure(&rig, "pages_reread"), before + 3);
        drop(file);
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
    }
}

#[test]
fn without_checksums_in_memory_nobody_notices() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab(&format!("{OPTIONS},protection=none")).join("f");
    fs::write(&path, content(1)).unwrap();
    inject(&rig, "--memory=dirty --kind file-data --path /f --page 1 --bit 8");
    File::open(&path).unwrap().sync_all().unwrap();
    let mut wrong = content(1);
    wrong[PAGE + 1] ^= 1;
    assert!(fs::read(&path).unwrap() == wrong, "exactly the bit that was asked for");
    let refused = ["inject", "m", "--memory", "--checksum", "--kind", "file-data", "--path", "/f"];
    rig.run(refused).exits(1).says("no checksum in memory");
    rig.run(["inject", "m", "--kind", "label"]).exits(2).says("only in a store that is not mounted");
}

#[test]
fn pages_of_directories_and_links_are_hit_as_well() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab(OPTIONS);
    fs::create_dir(mount.join("d")).unwrap();
    for number in 0..50 {
        fs::write(mount.join(format!("d/{number}")), "").unwrap();
    }
    std::os::unix::fs::symlink("where it leads", mount.join("link")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    let before = figure(&rig, "pages_reread");
    let done = inject(&rig, "--memory=clean --kind directory --path /d --page 0");
    assert_eq!(done["path"], "/d");
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 50);
    inject(&rig, "--memory=clean --kind symlink --path /link --page 0 --checksum");
    assert_eq!(fs::read_link(mount.join("link")).unwrap(), Path::new("where it leads"));
    assert_eq!(figure(&rig, "pages_reread"), before + 2);
    // On the disk there are two copies of such pages: both bad is an error, flipped back is none.
    let done = inject(&rig, "--kind directory --path /d --page 0 --copy all");
    assert_eq!(done["blocks"].as_array().unwrap().len(), 2);
    assert!(fs::read_dir(mount.join("d")).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()).is_err());
    undo(&rig, &done);
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 50);
    let done = inject(&rig, "--kind directory --path /d --page 0");
    assert_eq!(done["state"], "stored");
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 50, "from the second copy");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_field_of_a_page_of_names_is_written_over_and_back() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab(OPTIONS);
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/name"), "").unwrap();
    setxattr(mount.join("d/name"), "user.note", b"noted", XattrFlags::empty()).unwrap();
    std::os::unix::fs::symlink("where it leads", mount.join("link")).unwrap();
    let of_names = "--memory --kind directory --path /d";
    for (way, field, before, after) in [
        (format!("{of_names} --field entry.name --bytes 4e"), "entry.name", "6e", "4e"),
        (format!("{of_names} --offset 0 --bytes 484643"), "header.magic", "484644", "484643"),
        ("--memory --kind symlink --path /link --offset 6 --bytes 495420".into(), "target", "697420", "495420"),
        (
            "--memory --kind xattr --path /d/name --field attribute.value --bytes 4e".into(),
            "attribute.value",
            "74",
            "4e",
        ),
    ] {
        for sync in [false, true] {
            if sync {
                rig.run(["sync", "m"]).exits(0);
            }
            let done = inject(&rig, &way);
            let scribble = &done["scribble"];
            assert_eq!([&scribble["field"], &scribble["before"], &scribble["after"]], [field, before, after], "{done}");
            assert_eq!(done["state"], if sync { "clean" } else { "dirty" });
            let words = done["undo"].as_str().unwrap().strip_prefix("holdfast ").unwrap();
            let again = rig.run(words.split_whitespace().chain(["--json"])).exits(0).json();
            assert_eq!([&again["scribble"]["before"], &again["scribble"]["after"]], [after, before], "{again}");
        }
        // Pages that are dirty again, as they get other bytes.
        fs::write(mount.join("d/another"), "").unwrap();
        fs::remove_file(mount.join("d/another")).unwrap();
        fs::remove_file(mount.join("link")).unwrap();
        std::os::unix::fs::symlink("where it leads", mount.join("link")).unwrap();
        setxattr(mount.join("d/name"), "user.note", field.as_bytes(), XattrFlags::empty()).unwrap();
    }
    rig.run(["sync", "m"]).exits(0);
    for pattern in ["bit", "word", "range", "keep-checksum"] {
        let done = inject(&rig, &format!("{of_names} --field entry.key --pattern {pattern} --seed 3"));
        assert_eq!(done["scribble"]["field"], "entry.key");
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 1, "read again from the disk");
    }
    let done = inject(&rig, &format!("{of_names} --offset 4000 --length 96"));
    assert_eq!(done["scribble"]["offset"], 4000);
    assert!(figure(&rig, "pages_reread") >= 4);
    for (way, code, part) in [
        ("--field nonsense", 1, "it has no field nonsense; there are: behind the end, entry.key, "),
        ("--offset 4000 --length 97", 1, "there is no byte 4096: it has 4096"),
        ("--pattern copy-slot", 1, "copy-slot is for blocks of the store's own metadata: a page has no slots"),
        ("--field entry.key --pattern keep-all", 1, "keep-all is for blocks of the store's own metadata"),
        ("--field entry.name --bit 5", 2, "--bit says which bits, and so do --field"),
        ("--pattern word --checksum", 2, "--checksum says which bits"),
        ("--index 0", 2, "--index is for the store's own metadata, and directory is pages of files"),
        ("--times 2", 2, "--times is for the store's own metadata"),
    ] {
        let words = ["inject", "m"].into_iter().chain(of_names.split_whitespace()).chain(way.split_whitespace());
        rig.run(words).exits(code).says(part);
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn bits_flip_on_the_disk_below_a_mount_and_back() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab(OPTIONS).join("f");
    fs::write(&path, content(1)).unwrap();
    let at_page = ["inject", "m", "--kind", "file-data", "--path", "/f", "--page", "2"];
    rig.run(at_page).exits(1).says("it is in no recovery point yet").says("holdfast sync");
    rig.run(["sync", "m"]).exits(0);
    let done = inject(&rig, "--kind file-data --path /f --page 2 --seed 5");
    assert_eq!((&done["state"], &done["page"]), (&"stored".into(), &2.into()));
    assert!(is_eio(&path), "the page is read from the disk");
    undo(&rig, &done);
    assert!(fs::read(&path).unwrap() == content(1));
    fs::write(&path, content(2)).unwrap();
    // The block is that of the old contents.
    rig.run(at_page).exits(1).says("not on the disk yet");
    rig.run(["sync", "m"]).exits(0);
    rig.run(at_page).exits(0);
    assert!(is_eio(&path));
    fs::write(&path, content(3)).unwrap();
    assert!(fs::read(&path).unwrap() == content(3));
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn the_same_seed_hits_the_same_page() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab(OPTIONS);
    for number in 0..9 {
        fs::write(mount.join(format!("f{number}")), content(number)).unwrap();
    }
    let hit = |seed: u32| inject(&rig, &format!("--memory=dirty --kind file-data --bits 2 --seed {seed}"));
    let (one, other) = (hit(1), hit(2));
    assert_ne!((&one["path"], &one["page"]), (&other["path"], &other["page"]));
    assert_eq!(hit(1), one);
    assert_eq!(hit(2), other);
    for number in 0..9 {
        assert!(fs::read(mount.join(format!("f{number}"))).unwrap() == content(number), "twice is not at all");
    }
}
