//! What is seen on a terminal only. script(1) makes one.

use crate::rig::{PATIENCE, Rig, eventually, fuse, has_ended, is_there, kill};
use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CLEARED: &str = "\x1b[2K";

/// What is read from a terminal.
#[derive(Default)]
struct Screen {
    written: Mutex<Written>,
    /// Told when there is more.
    more: Condvar,
}

#[derive(Default)]
struct Written {
    text: String,
    /// The command has ended.
    is_all: bool,
}

/// A command on a terminal of its own, and what it has written there.
struct Terminal {
    child: Child,
    screen: Arc<Screen>,
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    /// Bars come after so many milliseconds, or when they usually do.
    fn run(rig: &Rig, arguments: &str, bar_after_ms: Option<u32>) -> Terminal {
        let mut command = Command::new("script");
        command
            .args(["-q", "-e", "-c", &format!("{} {arguments}", env!("CARGO_BIN_EXE_holdfast")), "/dev/null"])
            .current_dir(rig.path(""))
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(after_ms) = bar_after_ms {
            command.env("HOLDFAST_BAR_AFTER_MS", after_ms.to_string());
        }
        let mut child = command.spawn().unwrap();
        let (mut out, screen) = (child.stdout.take().unwrap(), Arc::new(Screen::default()));
        let shown = screen.clone();
        let read = move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                shown.written.lock().text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                shown.more.notify_all();
            }
            shown.written.lock().is_all = true;
            shown.more.notify_all();
        };
        Terminal { child, screen, reader: std::thread::spawn(read) }
    }

    /// Until this has been written, the command has ended, or it takes too long.
    fn wait_for(&self, part: &str) {
        let Screen { written, more } = &*self.screen;
        let is_to_come = |written: &mut Written| !written.text.contains(part) && !written.is_all;
        more.wait_while_for(&mut written.lock(), is_to_come, PATIENCE);
    }

    /// What was written until the command ended well.
    #[track_caller]
    fn end(mut self) -> String {
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let screen = std::mem::take(&mut self.screen.written.lock().text);
        assert!(status.success(), "{status}: {screen:?}");
        screen
    }
}

#[test]
fn a_check_shows_a_bar_on_a_terminal_and_takes_it_away() {
    if !is_there("script") {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    let screen = Terminal::run(&rig, "check s", Some(0)).end();
    let bar = screen.find("checking names [").unwrap_or_else(|| panic!("no bar: {screen:?}"));
    let cleared = screen.rfind(CLEARED).unwrap_or_else(|| panic!("not taken away: {screen:?}"));
    let words = screen.find("recovery point").unwrap();
    assert!(bar < cleared && cleared < words && screen.contains("objects"), "{screen:?}");
    let screen = Terminal::run(&rig, "check s --json", Some(0)).end();
    assert!(screen.starts_with('{') && !screen.contains("checking"), "{screen:?}");
    let began = Instant::now();
    let screen = Terminal::run(&rig, "check s", None).end();
    let was_quick = began.elapsed() < Duration::from_secs(1);
    assert!(!was_quick || !screen.contains("checking names"), "none where it takes no second: {screen:?}");
}

/// Whatever asks a mount shows that it waits, and for how long, while the mount does not answer.
#[test]
fn commands_that_ask_a_mount_show_that_they_wait() {
    if !fuse() || !is_there("script") {
        return;
    }
    let rig = Rig::new();
    rig.mounted("cache=16M");
    let daemon = rig.daemon("m");
    for (command, bar, words) in [
        ("snapshot create m a", "writing what is not on the disk yet (", "keeps the files"),
        ("snapshot list m", "counting what each one keeps (", "only in it"),
        ("snapshot diff m a", "comparing (", ""),
        ("snapshot delete m a", "writing what is not on the disk yet (", "is gone"),
        ("sync m", "writing what is not on the disk yet (", "recovery point"),
        ("trim m", "writing what is not on the disk yet (", "free"),
        ("grow m +16M", "making room (", "MiB"),
    ] {
        kill(daemon, Signal::STOP);
        let terminal = Terminal::run(&rig, command, Some(100));
        terminal.wait_for(bar);
        kill(daemon, Signal::CONT);
        let screen = terminal.end();
        let shown = screen.find(bar).unwrap_or_else(|| panic!("{command}: no {bar:?} in {screen:?}"));
        let cleared = screen.rfind(CLEARED).unwrap_or_else(|| panic!("{command}: not taken away: {screen:?}"));
        assert!(shown < cleared && screen[cleared..].contains(words), "{command}: {screen:?}");
    }
    // A bar that is to come after no time is drawn at once, however soon the mount answers.
    let screen = Terminal::run(&rig, "snapshot create m b --json", Some(0)).end();
    assert!(screen.starts_with('{') && !screen.contains(CLEARED), "{screen:?}");
    let screen = Terminal::run(&rig, "snapshot create m c", Some(0)).end();
    assert!(screen.contains(CLEARED), "{screen:?}");
    rig.run(["unmount", "m"]).exits(0);
    eventually("the daemon has ended", || has_ended(daemon));
}

/// The bar begins anew with each step of a trim, of which this store needs more than one.
#[test]
fn a_trim_shows_how_much_of_the_store_it_has_been_through() {
    if !fuse() || !is_there("script") {
        return;
    }
    let rig = Rig::new();
    rig.mounted("cache=16M");
    let screen = Terminal::run(&rig, "trim m", Some(0)).end();
    let percents: Vec<u32> = screen
        .split("discarding what is free [")
        // What stands before the first bar.
        .skip(1)
        .filter_map(|bar| bar.split_once(']')?.1.split_once('%')?.0.trim().parse().ok())
        .collect();
    assert!(percents.is_sorted() && percents.iter().any(|percent| (1..100).contains(percent)), "{screen:?}");
    let cleared = screen.rfind(CLEARED).unwrap_or_else(|| panic!("not taken away: {screen:?}"));
    assert!(screen[cleared..].contains("that are free"), "{screen:?}");
    let screen = Terminal::run(&rig, "trim m --json", Some(0)).end();
    assert!(screen.starts_with('{') && !screen.contains("discarding"), "{screen:?}");
    rig.run(["unmount", "m"]).exits(0);
}

/// A mount after a power cut replays the intent log, and says so.
#[test]
fn a_mount_says_that_it_replays_the_log() {
    if !fuse() || !is_there("script") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("cache=16M");
    std::fs::write(mount.join("f"), b"synced").unwrap();
    std::fs::File::open(mount.join("f")).unwrap().sync_all().unwrap();
    rig.kill_daemon("m");
    let screen = Terminal::run(&rig, "mount s m", Some(0)).end();
    let bar = screen.find("replaying the intent log").unwrap_or_else(|| panic!("no bar: {screen:?}"));
    let words = screen.find("It had not been closed in order").unwrap_or_else(|| panic!("{screen:?}"));
    assert!(bar < words && screen[bar..words].contains(CLEARED), "{screen:?}");
    rig.run(["unmount", "m"]).exits(0);
}
