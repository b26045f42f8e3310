//! In processes of their own, as a process that protects memory does so for good.

use super::*;
use holdfast_integrity::crc64;
use std::process::{Command, Stdio};

/// Which case a child is.
const CASE: &str = "HOLDFAST_FRAMES_OF_METADATA";
/// Exit code of a child whose case came to its end.
const IN_PEACE: i32 = 92;

/// Runs `body` in a child for each way of protection that is to be had here. `test`: the name of the calling test.
fn protected(test: &str, body: impl FnOnce()) {
    in_children(test, |how| {
        guard::install(how).unwrap();
        guard::report_faults(Some(tell_aim)).unwrap();
        body();
    });
}

/// The same, but for protecting the memory.
fn in_children(test: &str, body: impl FnOnce(Protect)) {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let keys = info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"));
    if let Ok(case) = std::env::var(CASE) {
        let how = [Protect::Off, Protect::Keys, Protect::Pages].into_iter().find(|how| how.to_string() == case);
        body(how.expect("a way"));
        std::process::exit(IN_PEACE);
    }
    for how in [Protect::Off, Protect::Keys, Protect::Pages] {
        if how == Protect::Keys && !keys {
            eprintln!("not with protection keys: this machine has none");
            continue;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("arena::metadata::tests::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
        let output = command.env(CASE, how.to_string()).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(IN_PEACE), "{how}: {:?}\n{said}", output.status);
    }
}

fn page(arena: &Arc<Arena>, value: u8) -> PinnedPage {
    let mut frame = arena.allocate().expect("room").into_metadata();
    frame.fill(|bytes| bytes.fill(value));
    frame.publish(Checksum::crc64(crc64(&[value; PAGE_SIZE])))
}

#[test]
fn pages_and_twins_come_and_go() {
    protected("pages_and_twins_come_and_go", || {
        let arena = Arena::new(3, 0).unwrap();
        let mut pages: Vec<_> = (0..3).map(|value| page(&arena, value)).collect();
        assert!(arena.allocate().is_none(), "there is room for three, of whatever kind");
        assert!(pages.iter().all(|page| page.is_in_place() && page.verify().is_ok()));
        pages.iter().for_each(|page| page.seal_for(ObjectId(5), 7));
        let twins: Vec<_> = pages.iter().map(|page| page.twin(None)).collect();
        assert_eq!((arena.twins(), arena.free_frames()), (3, 0), "they take none of it");
        // What hits a page does not hit its twin.
        assert!(pages[1].flip(&[9]) && pages[1].verify().is_err());
        assert_eq!(twins[1].verify().unwrap(), &[1; PAGE_SIZE]);
        assert!(twins[1].seal().is_some_and(|seal| seal.is_of(ObjectId(5), 7)));
        drop(pages.pop());
        assert_eq!(arena.free_frames(), 1);
        let copy = arena.allocate().unwrap().into_metadata().publish_copy(&twins[1]);
        assert!(copy.verify().is_ok() && copy.is_in_place());
        drop((copy, pages, twins));
        assert_eq!((arena.twins(), arena.free_frames()), (0, 3));
    });
}

#[test]
fn a_twin_takes_the_memory_of_the_one_before() {
    protected("a_twin_takes_the_memory_of_the_one_before", || {
        let arena = Arena::new(3, 0).unwrap();
        let [one, two] = [1, 2].map(|value| page(&arena, value));
        let twin = one.twin(None);
        let before = twin.page();
        let twin = two.twin(Some(twin));
        assert_eq!((twin.page().frame, arena.twins()), (before.frame, 1));
        assert!(arena.pin(before).is_none(), "its old name is nobody's");
        assert_eq!(twin.verify().unwrap(), &[2; PAGE_SIZE]);
        // But not if an epoch has it.
        let in_an_epoch = twin.clone();
        let twin = one.twin(Some(twin));
        assert_eq!(arena.twins(), 2);
        assert!(in_an_epoch.verify().unwrap()[0] == 2 && twin.verify().unwrap()[0] == 1);
    });
}

#[test]
fn what_a_device_has_read_goes_along() {
    protected("what_a_device_has_read_goes_along", || {
        let arena = Arena::new(1, 0).unwrap();
        let mut frame = arena.allocate().unwrap();
        frame.fill(9);
        let page = frame.into_metadata_with_bytes().publish(Checksum::crc64(crc64(&[9; PAGE_SIZE])));
        assert!(page.verify().is_ok() && page.is_in_place());
        assert_eq!(arena.free_frames(), 0);
        drop(page);
        assert_eq!(arena.free_frames(), 1);
    });
}

/// Pages of both kinds share the memory, too.
#[test]
fn memory_is_taken_for_as_many_pages_as_there_is_room_for() {
    const ROOM: u64 = 200;
    protected("memory_is_taken_for_as_many_pages_as_there_is_room_for", || {
        let arena = Arena::new(ROOM as u32, 0).unwrap();
        let taken = || rustix::fs::fstat(arena.memory()).unwrap().st_blocks as u64 / 8;
        let files = || {
            let frames: Vec<_> = std::iter::from_fn(|| arena.allocate()).collect();
            let publish = |mut frame: FrameMut| {
                frame.fill(3);
                frame.publish(Checksum::none())
            };
            frames.into_iter().map(publish).collect::<Vec<_>>()
        };
        let metadata = |count: u64| (0..count).map(|value| page(&arena, value as u8)).collect::<Vec<_>>();
        // Descriptors, and what the frames of metadata begin with.
        let besides = arena.frames_offset as u64 / PAGE_SIZE as u64 + 1;
        for round in 0..3 {
            assert_eq!(files().len() as u64, ROOM);
            assert_eq!(metadata(ROOM).iter().filter(|page| page.verify().is_ok()).count() as u64, ROOM);
            let (some, others) = (metadata(ROOM / 2), files());
            assert_eq!(others.len() as u64, ROOM / 2);
            assert!(some.iter().all(|page| page.verify().is_ok()));
            assert!(taken() <= ROOM + besides, "round {round}: {} pages", taken());
        }
        // And for as many twins as there were at a time.
        for round in 0..3 {
            let pages = metadata(ROOM / 2);
            let twins: Vec<_> = pages.iter().map(|page| page.twin(None)).collect();
            assert!(pages.iter().zip(&twins).all(|(page, twin)| page.bytes() == twin.bytes()));
            drop((pages, twins));
            assert_eq!(files().len() as u64, ROOM);
            assert!(taken() <= ROOM + ROOM / 2 + besides, "round {round}: {} pages", taken());
        }
    });
}

#[test]
fn threads_exchange_frames() {
    protected("threads_exchange_frames", || {
        let arena = Arena::new(8, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..300u32 {
                        let Some(frame) = arena.allocate() else { continue };
                        let value = thread ^ round as u8;
                        if round % 3 == 0 {
                            drop(frame);
                            continue;
                        }
                        let mut frame = frame.into_metadata();
                        frame.fill(|bytes| bytes.fill(value));
                        let page = frame.publish(Checksum::crc64(crc64(&[value; PAGE_SIZE])));
                        let twin = page.twin(None);
                        drop(page);
                        assert!(twin.verify().is_ok());
                    }
                });
            }
        });
        assert_eq!((arena.free_frames(), arena.twins()), (8, 0));
    });
}

/// What a report says of a place.
fn told(page: &PinnedPage, byte: usize) -> String {
    let arena = &page.arena;
    let start = arena.frame(arena.frames).expose_provenance();
    arena.base.expose_provenance();
    Aim::at(start, page.bytes().as_ptr().addr() + byte - start).to_string()
}

#[test]
fn a_report_says_whose_page_it_is() {
    protected("a_report_says_whose_page_it_is", || {
        let arena = Arena::new(3, 0).unwrap();
        let page = page(&arena, 1);
        page.seal_for(ObjectId(77), 5);
        let twin = page.twin(None);
        assert_eq!(told(&twin, 9), "byte 9 of a page that is nobody's yet");
        page.belongs_to(ObjectId(77), 5, Kind::Directory);
        let twin = page.twin(Some(twin));
        assert_eq!(told(&twin, 4095), "byte 4095 of the twin of page 5 of object #77, a directory");
        if arena.lock.is_some() {
            assert_eq!(told(&page, 0), "byte 0 of page 5 of object #77, a directory");
        }
        let start = arena.frame(arena.frames).expose_provenance();
        assert_eq!(Aim::at(start, 3).to_string(), "what the frames begin with");
        let offset = twin.bytes().as_ptr().addr() - start;
        drop(twin);
        let freed = "byte 1 of a frame that has no page, or one that is being made; the last one was page 5 of object #77, a directory";
        assert_eq!(Aim::at(start, offset + 1).to_string(), freed);
    });
}

/// Such a thread can read no locked memory until it is admitted, which is seen where nothing does it on the side: with keys, and without
/// reports of faults.
#[test]
fn a_thread_older_than_the_lock_reads_pages() {
    in_children("a_thread_older_than_the_lock_reads_pages", |how| {
        let (give, take) = std::sync::mpsc::channel::<PinnedPage>();
        let older = std::thread::spawn(move || take.recv().unwrap().verify().is_ok());
        guard::install(how).unwrap();
        let arena = Arena::new(1, 0).unwrap();
        give.send(page(&arena, 7)).unwrap();
        assert!(older.join().unwrap());
    });
}
