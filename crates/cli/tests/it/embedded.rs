//! A store that a program has in its own process, and a mount has before and after.

use crate::rig::{Rig, fuse};
use crate::summed::{any_transfers, opened};
use holdfast_embedded::naming::SetAttr;
use holdfast_embedded::{Algorithm, File, Options, Store, pieces};
use std::fs;
use std::io::{IoSlice, IoSliceMut};

#[test]
fn a_program_and_a_mount_take_turns_with_a_store() {
    let rig = Rig::new();
    let path = rig.path("s");
    let bytes: Vec<u8> = (0..300_007).map(|at: u32| (at * 31 % 251) as u8).collect();
    let store = Store::create(&path, 64 << 20, &Options::default()).unwrap();
    let file = store.create_file("by the program").unwrap();
    file.write_at_with_sums(&bytes, 0, &file.sums(&bytes, 0)).unwrap();
    // A command sees that it is in use.
    let ran = rig.run(["check", "s"]);
    assert!(ran.code != Some(0) && ran.err.contains("in use"), "{ran:?}");
    drop(file);
    store.close().unwrap();
    rig.run(["check", "s"]).exits(0);
    if !fuse() {
        return;
    }
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("by the program")).unwrap() == bytes);
    let refused = Store::open(&path, &Options::default()).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/by the mount"), &bytes).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let store = Store::open(&path, &Options::default()).unwrap();
    let mut back = vec![0; bytes.len()];
    let file = store.open_file("d/by the mount").unwrap();
    assert_eq!(file.read_at_with_sums(&mut back, 0, &mut Vec::new()).unwrap(), bytes.len());
    assert!(back == bytes);
    drop(file);
    store.close().unwrap();
    rig.run(["check", "s"]).exits(0);
}

/// The same calls of `holdfast_client::File` and of `holdfast_embedded::File`, by the same names; gives what each of them answered.
macro_rules! calls {
    ($file:expr, $is_transfer:expr) => {{
        let mut file = $file;
        let mut told: Vec<String> = vec![format!("{:?}", file.features())];
        let bytes: Vec<u8> = (0..2_500_000).map(|at: u32| (at * 31 % 251) as u8).collect();
        // Never emptied: a call that reads says which checksums there are, and no others.
        let mut sums = Vec::new();
        for algorithm in file.features().algorithms.clone() {
            file = file.with_algorithm(algorithm).unwrap();
            assert_eq!(file.algorithm(), algorithm);
            for (offset, length) in
                [(0, 1), (4095, 2), (100, 12_288), (5, 70_000), (3, (1 << 20) + 5000), (2_000_000, 0)]
            {
                let bytes = &bytes[..length];
                let (a, b) = bytes.split_at(length / 3);
                told.push(format!("{:?}", file.write_at(bytes, offset).unwrap()));
                let mut back = vec![0; length + 3];
                told.push(format!("{:?}", file.read_at_with_sums(&mut back, offset, &mut sums).unwrap()));
                told.push(format!("{sums:?} {:?}", algorithm.sum(&back)));
                // What was read is written again, with the checksums that came along.
                let got = pieces(offset, length).len();
                file.read_at_with_sums(&mut back[..length], offset, &mut sums).unwrap();
                assert_eq!(sums.len(), got, "{algorithm} {offset} {length}");
                assert_eq!(file.write_at_with_sums(&back[..length], offset, &sums).unwrap(), length);
                let slices = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
                told.push(format!("{:?}", file.write_vectored_at_with_sums(&slices, offset, &sums).unwrap()));
                told.push(format!("{:?}", file.write_vectored_at(&slices, offset + 7).unwrap()));
                let (mut c, mut d) = (vec![0; length / 2], vec![0; length]);
                let mut slices = [IoSliceMut::new(&mut c), IoSliceMut::new(&mut d)];
                told.push(format!("{:?}", file.read_vectored_at(&mut slices, offset + 1).unwrap()));
                told.push(format!("{:?}", file.read_vectored_at_with_sums(&mut slices, offset, &mut sums).unwrap()));
                told.push(format!("{sums:?} {:?} {:?}", algorithm.sum(&c), algorithm.sum(&d)));
                told.push(format!("{:?}", file.read_at(&mut d, offset + 2).unwrap()));
            }
            let mut rest = &bytes[..];
            // Without checksums a mount fetches nothing, so that what goes to the end is as much as it is sent at once.
            let longest = if algorithm == Algorithm::None { 12_000 } else { 1 << 20 };
            for length in [0, 1, 5000, 8192, longest] {
                let (at, done) = file.append(&rest[..length]).unwrap();
                rest = &rest[done..];
                told.push(format!("{at} {done}"));
            }
            let mut end = vec![0; 8192];
            told.push(format!("{:?} {:?}", file.read_at(&mut end, 1 << 20).unwrap(), algorithm.sum(&end)));
        }
        told.push(format!("{:?}", file.bad_blocks().unwrap()));
        // What is refused: too few checksums, others, wrong ones, positions that no file has.
        let mut buffer = [0; 4096];
        for sums in [vec![], vec![Algorithm::Crc32c.sum(&buffer)]] {
            file = file.with_algorithm(Algorithm::Blake3).unwrap();
            told.push(format!("{:?}", file.write_at_with_sums(&buffer, 0, &sums).map_err($is_transfer)));
        }
        let wrong = [Algorithm::Blake3.sum(b"other")];
        told.push(format!("{:?}", file.write_at_with_sums(&buffer, 0, &wrong).map_err($is_transfer)));
        for offset in [i64::MAX as u64 - 4095, u64::MAX] {
            told.push(format!("{:?}", file.write_at(&buffer, offset).map_err($is_transfer)));
            told.push(format!("{:?}", file.read_at(&mut buffer, offset).map_err($is_transfer)));
            told.push(format!("{:?}", file.read_at_with_sums(&mut buffer, offset, &mut sums).map_err($is_transfer)));
        }
        told.push(format!("{:?}", file.read_at(&mut buffer, i64::MAX as u64 - 4096).unwrap()));
        // Over the end of the largest file: all or nothing, and it stays as long as it was.
        let largest = 1 << 44;
        told.push(format!("{:?}", file.write_at(&[7; 10], largest - 3).map_err($is_transfer)));
        told.push(format!("{:?}", file.read_at(&mut buffer, largest - 3).unwrap()));
        // Longer than what is done at once, and bad at its end: nothing is written.
        let (far, mut long) = (16 << 20, bytes.clone());
        let own: Vec<_> = pieces(far, long.len()).map(|piece| Algorithm::Blake3.sum(&long[piece.range])).collect();
        *long.last_mut().unwrap() ^= 1;
        told.push(format!("{:?}", file.write_at_with_sums(&long, far, &own).map_err($is_transfer)));
        told.push(format!("{:?}", file.read_at(&mut buffer, far).unwrap()));
        told
    }};
}

#[test]
fn a_file_here_has_the_calls_of_one_in_a_mount_and_they_mean_the_same() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let store = Store::create(rig.path("s"), 64 << 20, &Options::default()).unwrap();
    let here = calls!(store.create_file("here").unwrap(), |error: holdfast_embedded::Error| {
        (matches!(error, holdfast_embedded::Error::Transfer { .. }), error.blocks())
    });
    store.close().unwrap();
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m"]).exits(0);
    let mounted =
        calls!(opened(&mount.join("mounted")), |error: holdfast_client::Error| { (error.in_transfer, error.blocks) });
    assert_eq!(here.len(), mounted.len());
    for (number, (here, mounted)) in here.iter().zip(&mounted).enumerate() {
        assert!(here == mounted, "answer {number}: {here:.300} here, {mounted:.300} in a mount");
    }
    assert!(fs::read(mount.join("here")).unwrap() == fs::read(mount.join("mounted")).unwrap());
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn any_offset_and_any_length() {
    let rig = Rig::new();
    let store = Store::create(rig.path("s"), 64 << 20, &Options::default()).unwrap();
    let set_len = |file: &File, length| {
        let set = SetAttr { size: Some(length), ..SetAttr::default() };
        store.namespace().setattr(store.request(), file.id(), &set).unwrap();
    };
    drop(any_transfers!(
        "embedded::any_offset",
        store.create_file("f").unwrap(),
        |file: &File, bytes: &[u8], offset| assert_eq!(file.write_at(bytes, offset).unwrap(), bytes.len()),
        set_len
    ));
    store.close().unwrap();
    rig.run(["check", "s"]).exits(0);
}
