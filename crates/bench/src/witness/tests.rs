//! The verification must accept what was written, and notice each kind of broken promise.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::pattern::BLOCK;
use crate::witness::contents;

struct Scene {
    _dir: tempfile::TempDir,
    root: PathBuf,
    journal: PathBuf,
}

/// Actors at work for a moment; all their changes are answered.
fn scene() -> Scene {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (root, path) = (dir.path().join("root"), dir.path().join("journal"));
    let journal = Journal::create(&path, 42).expect("a journal");
    let outcome = write(&root, &journal, 42, Duration::from_millis(300)).expect("the actors can work");
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    assert!(outcome.answered >= 4, "every actor made a change");
    Scene { _dir: dir, root, journal: path }
}

fn findings(scene: &Scene) -> Vec<Actor> {
    findings_by(scene, Unanswered::WholeOrAbsent)
}

fn findings_by(scene: &Scene, rule: Unanswered) -> Vec<Actor> {
    let report = verify(&scene.root, &scene.journal, rule).expect("the journal can be read");
    report.findings.iter().map(|finding| finding.actor).collect()
}

/// A line more in the journal, as if the change had been made.
fn claim(scene: &Scene, line: &str) {
    let text = fs::read_to_string(&scene.journal).expect("read") + line;
    fs::write(&scene.journal, text).expect("write");
}

fn newest(scene: &Scene, actor: Actor) -> u64 {
    let (_, records) = Journal::read(&scene.journal).expect("the journal can be read");
    records.iter().filter(|record| record.actor == actor).map(|record| record.number).max().unwrap_or(0)
}

fn a_file(root: &Path) -> PathBuf {
    let mut entries = fs::read_dir(contents::files_dir(root)).expect("the directory is there");
    entries.next().expect("a file is left").expect("an entry").path()
}

#[test]
fn what_was_written_is_accepted() {
    assert_eq!(findings(&scene()), []);
}

#[test]
fn a_lost_record_is_noticed() {
    let scene = scene();
    let path = contents::log_path(&scene.root);
    let file = OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(file.metadata().expect("stat").len() - 1).expect("truncate");
    assert_eq!(findings(&scene), [Actor::Log]);
}

#[test]
fn half_a_record_at_the_end_is_noticed_and_a_whole_one_accepted() {
    let scene = scene();
    let next = newest(&scene, Actor::Log) + 1;
    claim(&scene, &format!("begin log {next} 0\n"));
    let path = contents::log_path(&scene.root);
    let record = contents::log_record(42, next);
    let before = fs::read(&path).expect("read");
    fs::write(&path, [before.as_slice(), &record[..record.len() / 2]].concat()).expect("write");
    assert_eq!(findings(&scene), [Actor::Log]);
    assert_eq!(findings_by(&scene, Unanswered::Anything), []);
    fs::write(&path, [before.as_slice(), &record].concat()).expect("write");
    assert_eq!(findings(&scene), []);
}

#[test]
fn a_lost_file_is_noticed() {
    let scene = scene();
    fs::remove_file(a_file(&scene.root)).expect("remove");
    assert_eq!(findings(&scene), [Actor::Create]);
}

#[test]
fn a_file_with_other_contents_is_noticed() {
    let scene = scene();
    fs::write(a_file(&scene.root), b"other").expect("write");
    assert_eq!(findings(&scene), [Actor::Create]);
}

#[test]
fn a_removed_file_that_is_back_is_noticed() {
    let scene = scene();
    let (path, next) = (a_file(&scene.root), newest(&scene, Actor::Remove) + 1);
    let number: u64 = path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
    claim(&scene, &format!("begin remove {next} {number}\n"));
    assert_eq!(findings(&scene), [], "a removal that was begun only may have happened or not");
    claim(&scene, &format!("done remove {next} {number}\n"));
    assert_eq!(findings(&scene), [Actor::Remove]);
}

#[test]
fn an_old_or_torn_version_is_noticed() {
    let scene = scene();
    let path = contents::version_path(&scene.root);
    let number = newest(&scene, Actor::Replace);
    fs::write(&path, contents::version(42, number - 1)).expect("write");
    assert_eq!(findings(&scene), [Actor::Replace]);
    let version = contents::version(42, number);
    fs::write(&path, &version[..version.len() - 1]).expect("write");
    assert_eq!(findings(&scene), [Actor::Replace]);
    fs::remove_file(&path).expect("remove");
    assert_eq!(findings(&scene), [Actor::Replace]);
}

#[test]
fn an_old_or_torn_block_is_noticed() {
    let scene = scene();
    let (_, records) = Journal::read(&scene.journal).expect("the journal can be read");
    let place = records.iter().rfind(|record| record.actor == Actor::Block).expect("a block was written").place;
    let file = OpenOptions::new().write(true).open(contents::blocks_path(&scene.root)).expect("open");
    let offset = place * BLOCK as u64;
    file.write_all_at(&[0; 512], offset + 3584).expect("tear");
    assert_eq!(findings(&scene), [Actor::Block]);
    file.write_all_at(&contents::block(42, 0), offset).expect("an older state");
    assert_eq!(findings(&scene), [Actor::Block]);
}

#[test]
fn an_unfinished_line_is_ignored_and_a_foreign_one_refused() {
    let scene = scene();
    claim(&scene, "done log 99");
    assert_eq!(findings(&scene), []);
    claim(&scene, "9 0 0\n");
    assert!(verify(&scene.root, &scene.journal, Unanswered::WholeOrAbsent).is_err());
}
