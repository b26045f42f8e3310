//! `holdfast up`: from nothing to a mounted store.

use crate::rig::{Rig, fuse};
use std::fs;

#[test]
fn up_makes_a_store_once_and_mounts_it() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    fs::create_dir(rig.path("home")).unwrap();
    let home = rig.path("home");
    let first = rig.run(["up", "--json"]).exits(0).json();
    assert_eq!(first["done"], "created");
    assert_eq!(first["mounted_on"], home.join("Holdfast").to_str().unwrap());
    let store = home.join(".local/share/holdfast/main.store");
    assert_eq!(first["store"], store.to_str().unwrap());
    fs::write(home.join("Holdfast/letter"), "dear all").unwrap();

    assert_eq!(rig.run(["up", "--json"]).exits(0).json()["done"], "already-up");
    let words = rig.run(["up"]).exits(0).out;
    assert!(words.starts_with("Holdfast is already up.") && words.contains("holdfast unmount "), "{words}");
    fs::create_dir(rig.path("elsewhere")).unwrap();
    rig.run(["up", "elsewhere"]).exits(1).says("can be in one place only");

    rig.run(["unmount", "home/Holdfast"]).exits(0);
    assert_eq!(rig.run(["up", "elsewhere", "--json"]).exits(0).json()["done"], "mounted");
    assert_eq!(fs::read(rig.path("elsewhere/letter")).unwrap(), b"dear all");
    rig.run(["unmount", "elsewhere"]).exits(0);
}

#[test]
fn up_does_not_hide_files_and_makes_no_store_in_vain() {
    let rig = Rig::new();
    fs::create_dir_all(rig.path("home/Holdfast")).unwrap();
    fs::write(rig.path("home/Holdfast/mine"), "mine").unwrap();
    rig.run(["up"]).exits(1).says("is not empty");
    assert!(!rig.path("home/.local/share/holdfast").exists());
    let nowhere = rig.command().arg("up").env("HOME", "here").output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(said.contains("HOME is not an absolute path") && said.contains("holdfast create STORE"), "{said}");
    // Without HOME the user database has it. Nothing is made, since the directory has files.
    let service = rig.command().args(["up", "home/Holdfast"]).env_remove("HOME").output().unwrap();
    let said = String::from_utf8_lossy(&service.stderr).into_owned();
    assert!(!service.status.success() && !said.contains("HOME"), "{said}");
}
