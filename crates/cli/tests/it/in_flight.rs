//! The asynchronous form of the interface: many transfers in flight from one thread, and what they tell of bits that flip.

#[path = "../../../client/examples/in_flight.rs"]
#[expect(dead_code, reason = "its main, which is started by hand, and what that times")]
mod example;

use crate::rig::{Rig, fuse};
use crate::summed::{bytes, opened};
use example::block_on;
use holdfast_client::{BLOCK_BYTES, Kind, Operation, Pending, Workers};
use std::sync::{Arc, Barrier};

const IN_FLIGHT: u64 = 32;

fn block(number: u64) -> Vec<u8> {
    bytes(7 * number as usize, BLOCK_BYTES)
}

#[test]
fn each_of_many_transfers_tells_its_own_bad_blocks() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let file = Arc::new(opened(&rig.lab("epoch=60000,cache=16M").join("f")));
    let workers = Workers::new(4, IN_FLIGHT as usize).unwrap();
    let blocks: Vec<u64> = (0..IN_FLIGHT).collect();
    block_on(async {
        // Nothing of it is stored by the time the bits flip.
        let written = blocks.iter().map(|&number| {
            let (file, bytes) = (file.clone(), block(number));
            workers.run(move || file.write_at(&bytes, number * BLOCK_BYTES as u64)).unwrap()
        });
        for written in written.collect::<Vec<_>>() {
            assert_eq!(written.await.unwrap(), BLOCK_BYTES);
        }
        rig.flip("/f", 3, "dirty");
        rig.flip("/f", 17, "dirty");
        for (number, read) in (0..).zip(example::read(&workers, &file, &blocks).await) {
            if number != 3 && number != 17 {
                assert!(read.unwrap() == block(number), "{number}");
                continue;
            }
            let error = read.unwrap_err();
            assert_eq!((error.kind, error.operation, error.errno), (Kind::Memory, Operation::Read, 5), "{error}");
            assert_eq!((error.offset, &error.blocks[..]), (number * BLOCK_BYTES as u64, &[number][..]), "{error}");
        }
        // A write of everything but these is stored, and fsync tells of them, once.
        let good = blocks.iter().filter(|&&number| number != 3 && number != 17);
        let good: Vec<_> = good.map(|&number| (number, block(number))).collect();
        let error = example::write(&workers, &file, good).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        let of_call = file.clone();
        let bad = workers.run(move || of_call.bad_blocks()).unwrap().await.unwrap();
        assert_eq!(bad, [3, 17]);
        example::write(&workers, &file, bad.into_iter().map(|number| (number, block(number))).collect()).await.unwrap();
        for (number, read) in (0..).zip(example::read(&workers, &file, &blocks).await) {
            assert!(read.unwrap() == block(number), "{number} is mended");
        }
    });
    assert_eq!(Arc::strong_count(&file), 1, "calls that are done have let go of it");
    drop(file);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

/// All of them at a mount with two workers; appends are whole and nobody's bytes come between.
#[test]
fn as_many_transfers_are_at_the_mount_as_there_are_threads() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let file = Arc::new(opened(&rig.mounted("").join("f")));
    let workers = Workers::new(IN_FLIGHT as usize, IN_FLIGHT as usize).unwrap();
    let together = Arc::new(Barrier::new(IN_FLIGHT as usize + 1));
    let append = |number| {
        let (file, together) = (file.clone(), together.clone());
        let call = move || {
            // None begins before all are there.
            together.wait();
            file.append(&block(number)).map(|(offset, length)| (number, offset, length))
        };
        workers.run(call).unwrap()
    };
    let appends: Vec<_> = (0..IN_FLIGHT).map(append).collect();
    assert!(workers.run(|| ()).is_err(), "no more than that");
    together.wait();
    let mut places: Vec<_> = appends.into_iter().map(|pending| pending.wait().unwrap()).collect();
    places.sort_by_key(|&(_, offset, _)| offset);
    let blocks: Vec<u64> = (0..IN_FLIGHT).collect();
    let read = block_on(example::read(&workers, &file, &blocks));
    for (place, ((number, offset, length), read)) in (0..).zip(places.into_iter().zip(read)) {
        assert_eq!((offset, length), (place * BLOCK_BYTES as u64, BLOCK_BYTES));
        assert!(read.unwrap() == block(number), "record {number} at {offset}");
    }
    // Several buffers: the form of one call is that of each.
    let of_call = file.clone();
    let vectored: Pending<bool> = workers
        .run(move || {
            let (mut first, mut second) = ([0; 100], vec![0; BLOCK_BYTES]);
            let mut buffers = [std::io::IoSliceMut::new(&mut first), std::io::IoSliceMut::new(&mut second)];
            of_call.read_vectored_at(&mut buffers, 50).unwrap() == 100 + BLOCK_BYTES
        })
        .unwrap();
    assert!(vectored.wait());
    drop((workers, file));
    rig.run(["unmount", "m"]).exits(0);
}
