//! Taking a session over, step by step in one process: which requests come again, and how they are marked.

use crate::mounted::{Watchdog, missing};
use holdfast_fuse::abi::{Attr, init_flags};
use holdfast_fuse::{
    Answer, Attributes, Caching, Context, Entry, Handler, MountOptions, Session, mount, request, unmount,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

/// A request that nobody answers holds its application up, and with it the test, until the connection is cut.
const LIMIT: Duration = Duration::from_secs(20);

fn mount_point() -> Option<(TempDir, OwnedFd)> {
    if let Some(why) = missing() {
        eprintln!("skipped: {why}");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let options = MountOptions { source: "resume".into(), ..MountOptions::default() };
    let device = mount(scratch.path(), &options).unwrap();
    Some((scratch, device))
}

/// Every name is there, and those who asked for the second time are noted.
#[derive(Default)]
struct Noting {
    resent: Mutex<BTreeSet<u64>>,
}

fn attributes(node: u64) -> Attributes {
    let attr = Attr { ino: node, mode: libc::S_IFDIR | 0o755, nlink: 2, blksize: 4096, ..Attr::default() };
    Attributes { attr, btime: (0, 0), valid: Duration::ZERO }
}

impl Noting {
    fn note(&self, context: &Context) {
        if context.resent {
            self.resent.lock().unwrap().insert(context.unique);
        }
    }
}

impl Handler for Noting {
    type Data = Vec<u8>;

    fn getattr(&self, context: &Context, node: u64) -> Answer<Attributes> {
        self.note(context);
        Ok(attributes(node))
    }

    fn lookup(&self, context: &Context, _: u64, name: &[u8]) -> Answer<Entry> {
        self.note(context);
        let node = 10 + name.len() as u64;
        let Attributes { attr, valid, .. } = attributes(node);
        Ok(Entry { node, generation: 1, attr, name_valid: valid, attr_valid: valid })
    }
}

/// Reads one request as a worker does that dies before it answers: its identity, whether it is a resend, and the rest.
fn swallow(device: &OwnedFd) -> (u64, bool, String) {
    let mut bytes = vec![0; (1 << 20) + 4096];
    loop {
        match rustix::io::read(device, &mut bytes[..]) {
            Ok(length) => {
                let request = request(&bytes[..length], 0).unwrap();
                return (
                    request.context.unique,
                    request.context.resent,
                    format!("{} {:?}", request.node, request.body),
                );
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn readable(device: &OwnedFd) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&wait)).unwrap() > 0
}

#[test]
fn what_was_read_and_not_answered_comes_again_with_its_identity() {
    let Some((scratch, device)) = mount_point() else { return };
    let directory = scratch.path();
    let _watchdog = Watchdog::new(directory.to_path_buf(), LIMIT);
    // The supervisor keeps the descriptor, the clones, and what was agreed.
    let first = Session::start(device.try_clone().unwrap(), Caching::Direct).unwrap();
    let clones = [first.clone_device().unwrap(), first.clone_device().unwrap()];
    let agreed = serde_json::to_string(&first.negotiated()).unwrap();
    assert_ne!(first.negotiated().flags & init_flags::HAS_RESEND, 0, "Linux 6.9 or newer is needed");

    let noting = Noting::default();
    std::thread::scope(|scope| {
        // Two applications, each waiting for a request that another clone has read.
        let mut applications = Vec::new();
        let mut swallowed = Vec::new();
        for (name, clone) in ["one", "three"].into_iter().zip(&clones) {
            let path = directory.join(name);
            applications.push(scope.spawn(move || fs::symlink_metadata(path).map(|metadata| metadata.ino())));
            swallowed.push(swallow(clone));
        }
        assert!(swallowed.iter().all(|(_, resent, _)| !resent), "{swallowed:?}");
        drop(first);
        let again = |(unique, _, body): &(u64, bool, String)| (*unique, true, body.clone());
        let expected: BTreeSet<_> = swallowed.iter().map(again).collect();
        assert_eq!(expected.len(), 2);

        // Three take over in turn; the first two die in the same way, holding both requests on one clone.
        for _ in 0..2 {
            let session = Session::resume(device.try_clone().unwrap(), serde_json::from_str(&agreed).unwrap());
            assert!(!readable(&clones[0]), "nothing comes again by itself");
            session.ask_resend().unwrap();
            let got: BTreeSet<_> = (0..2).map(|_| swallow(&clones[0])).collect();
            assert_eq!(got, expected);
        }
        let session = Session::resume(device.try_clone().unwrap(), serde_json::from_str(&agreed).unwrap());
        session.ask_resend().unwrap();
        let mut worker = session.worker(clones[1].try_clone().unwrap()).unwrap();
        let noting = &noting;
        let serving = scope.spawn(move || worker.serve(noting));
        let inodes: Vec<_> = applications.into_iter().map(|application| application.join().unwrap()).collect();
        assert_eq!(inodes.into_iter().collect::<Result<Vec<_>, _>>().expect("a pause and no error"), [13, 15]);

        // And the session goes on as before: only what was swallowed came again.
        assert_eq!(fs::symlink_metadata(directory.join("to")).unwrap().ino(), 12);
        let uniques: BTreeSet<_> = expected.iter().map(|(unique, ..)| *unique).collect();
        assert_eq!(*noting.resent.lock().unwrap(), uniques);
        unmount(directory, true).unwrap();
        serving.join().unwrap().unwrap();
    });
}

/// Why the supervisor keeps every clone: closing one ends the requests that were read from it.
#[test]
fn closing_a_clone_ends_its_requests() {
    let Some((scratch, device)) = mount_point() else { return };
    let directory = scratch.path();
    let _watchdog = Watchdog::new(directory.to_path_buf(), LIMIT);
    let session = Session::start(device, Caching::Direct).unwrap();
    let clone = session.clone_device().unwrap();
    std::thread::scope(|scope| {
        let application = scope.spawn(|| fs::symlink_metadata(directory.join("one")));
        swallow(&clone);
        drop(clone);
        let error = application.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED));
    });
    unmount(directory, true).unwrap();
}
