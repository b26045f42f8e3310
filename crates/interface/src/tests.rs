use super::*;

const REQUEST: Request =
    Request { algorithm: Algorithm::Fletcher256, verify: true, append: true, offset: 4095, length: 4098, address: 7 };

fn reply() -> Reply {
    Reply {
        status: Status::Mismatch,
        side: Some(Side::Memory),
        operation: Operation::Write,
        grew: false,
        taken: false,
        length: 0,
        errno: 5,
        offset: 3 * 4096 + 5,
        device_address: Some(77),
        bad: vec![3, 67, 259],
        text: "block 3 is bäd".into(),
    }
}

#[test]
fn numbers_are_those_of_the_header() {
    // _IOR('H', 16, char[96]), _IOWR('H', 17, char[16383]), as <asm-generic/ioctl.h> makes them.
    assert_eq!(Command::Features.number(96), 0x8060_4810);
    assert_eq!(Command::Read.number(16_383), 0xffff_4811);
    for command in Command::ALL {
        for size in [0, 1, 96, PAYLOAD_BYTES_MAX] {
            assert_eq!(Command::of(command.number(size)), Some(command));
        }
    }
    // Of another type, number and direction.
    for number in [0xffff_4911, 0xffff_480f, 0xffff_4816, 0x4060_4810, 0xbfff_4811, 0] {
        assert_eq!(Command::of(number), None, "{number:#x}");
    }
}

#[test]
fn every_byte_of_a_transfer_is_in_one_block() {
    for offset in [0u64, 1, 4095, 4096, 4097, 12_288, u64::from(u32::MAX)] {
        for length in [0usize, 1, 4095, 4096, 4097, 8192, 70_000] {
            let all: Vec<_> = pieces(offset, length).collect();
            assert_eq!(all.len(), blocks(offset, length));
            let mut at = 0;
            for piece in &all {
                assert_eq!(piece.range.start, at);
                assert!(!piece.range.is_empty());
                let (first, last) = (offset + at as u64, offset + piece.range.end as u64 - 1);
                assert_eq!((first / 4096, last / 4096), (piece.block, piece.block));
                at = piece.range.end;
            }
            assert_eq!(at, length);
        }
    }
    assert!(blocks(4095, TRANSFER_BYTES_MAX) <= BLOCKS_MAX);
}

#[test]
fn messages_come_back() {
    let mut bytes = REQUEST.encode().to_vec();
    bytes.extend_from_slice(b"rest");
    assert_eq!(Request::decode(&bytes), Ok((REQUEST, &b"rest"[..])));
    let bytes = reply().encode(PAYLOAD_BYTES_MAX);
    assert_eq!(Reply::decode(&bytes), Ok((reply(), &b""[..])));
    let bytes = Reply { taken: true, ..reply() }.encode(PAYLOAD_BYTES_MAX);
    assert_eq!(Reply::decode(&bytes), Ok((Reply { taken: true, ..reply() }, &b""[..])));
    let mut bytes = Reply::done(Operation::Read, 9, 4, true).encode(REPLY_BYTES);
    bytes.extend_from_slice(b"sums");
    assert_eq!(Reply::decode(&bytes), Ok((Reply::done(Operation::Read, 9, 4, true), &b"sums"[..])));
    let features = features();
    assert_eq!(Features::decode(&features.encode()), Ok(features));
}

fn features() -> Features {
    let access = Access { read: true, write: false };
    let all = Features::all(access, Algorithm::Crc64Nvme, "uniform".into());
    Features { capabilities: Capabilities(1 << 40 | all.capabilities.0), ..all }
}

#[test]
fn newer_and_older_mounts_are_understood() {
    let with = |at: usize, value: &[u8]| {
        let mut bytes = features().encode();
        bytes[at..at + value.len()].copy_from_slice(value);
        Features::decode(&bytes)
    };
    let number = |number: u16| number.to_ne_bytes();
    // A newer version that still answers this one, and one that does not; an older one.
    let newer = with(0, &number(7)).unwrap();
    assert_eq!((newer.version, newer.version_least), (7, VERSION_LEAST));
    let mut bytes = newer.encode();
    bytes[64..66].copy_from_slice(&number(2));
    assert_eq!(Features::decode(&bytes), Err(Malformed::Version(7)));
    assert_eq!(with(0, &number(0)), Err(Malformed::Version(0)));
    // From before there were these fields.
    let before = with(56, &[0; 40]).unwrap();
    assert_eq!((before.version_least, before.capabilities), (VERSION, Capabilities(0)));
    assert!(!before.capabilities.have(Capabilities::APPEND) && newer.capabilities.have(Capabilities::APPEND));
    assert!(newer.capabilities.have(Capabilities(1 << 40)), "unknown ones stay");
    // An algorithm that is not known here; more and less than is known here in one request.
    assert_eq!(with(3, &[200]).unwrap().page_algorithm, Algorithm::Crc64Nvme);
    assert_eq!(with(8, &(64u32 << 20).to_ne_bytes()).unwrap().transfer_bytes_max, TRANSFER_BYTES_MAX);
    assert_eq!(with(8, &(64u32 << 10).to_ne_bytes()).unwrap().transfer_bytes_max, 64 << 10);
    assert!(with(8, &4096u32.to_ne_bytes()).is_err());
}

#[test]
fn words_are_cut_to_fit() {
    let cut = |text: &str, room: usize| {
        let encoded = Reply { text: text.into(), ..reply() }.encode(REPLY_BYTES + room);
        assert!(encoded.len() <= REPLY_BYTES + room);
        Reply::decode(&encoded).unwrap().0.text
    };
    assert_eq!(cut("block 3 is bäd", 15), "block 3 is bäd");
    assert_eq!(cut("block 3 is bäd", 14), "block 3 is …");
    // The two bytes of ä do not fit beside the mark.
    assert_eq!(cut("bäd indeed", 5), "b…");
    assert_eq!(cut("bäd indeed", 6), "bä…");
    assert_eq!(cut("bäd indeed", 2), "", "not even the mark");
    assert_eq!(reply().encode(0).len(), REPLY_BYTES);
    // As Fletcher's checksums need it.
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    assert_eq!(cut(&long[1..], 1000), long[1..]);
    assert_eq!(cut(&long, 1000).len(), TEXT_BYTES_MAX);
}

#[test]
fn of_a_path_the_end_stays() {
    assert_eq!(words::without_start("/srv/größe", 12), "/srv/größe");
    assert_eq!(words::without_start("/srv/größe", 7), "…ße");
    assert_eq!(words::without_start("/srv/größe", 8), "…öße");
    assert_eq!(words::without_start("/srv/größe", 2), "");
}

#[test]
fn foreign_requests_are_errors() {
    let good = REQUEST.encode();
    for length in 0..good.len() {
        assert!(matches!(Request::decode(&good[..length]), Err(Malformed::Short { .. })));
    }
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good;
        bytes[at..at + value.len()].copy_from_slice(value);
        Request::decode(&bytes).map(|(request, _)| request)
    };
    assert_eq!(with(0, &2u16.to_ne_bytes()), Err(Malformed::Version(2)));
    assert!(matches!(with(2, &[7]), Err(Malformed::Algorithm(_))));
    assert!(matches!(with(3, &[4]), Err(Malformed::Field(_))));
    assert!(with(3, &[2]).is_ok_and(|request| request.append && !request.verify));
    assert!(matches!(with(4, &(TRANSFER_BYTES_MAX as u32 + 1).to_ne_bytes()), Err(Malformed::Field(_))));
    assert!(with(4, &(TRANSFER_BYTES_MAX as u32).to_ne_bytes()).is_ok());
    for offset in [u64::MAX, 1 << 63, (1 << 63) - 4098] {
        assert!(matches!(with(8, &offset.to_ne_bytes()), Err(Malformed::Field(_))), "{offset}");
    }
    assert!(with(8, &((1u64 << 63) - 4099).to_ne_bytes()).is_ok());
    for at in 24..REQUEST_BYTES {
        assert!(matches!(with(at, &[1]), Err(Malformed::Field(_))), "byte {at}");
    }
}

/// Whatever the bytes are: no panic, and nothing that contradicts itself.
#[test]
fn foreign_replies_are_errors_or_make_sense() {
    let good = reply().encode(PAYLOAD_BYTES_MAX);
    for length in 0..good.len() {
        assert!(Reply::decode(&good[..length]).is_err(), "{length}");
    }
    for at in 0..good.len() {
        for value in [0, 1, 2, 5, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            if let Ok((reply, _)) = Reply::decode(&bytes) {
                assert_eq!(reply.status == Status::Done, reply.errno == 0);
                assert!(reply.length <= TRANSFER_BYTES_MAX);
                assert!(reply.offset.checked_add(reply.length as u64).is_some_and(|end| end < 1 << 63));
            }
        }
    }
    // Where an append has put the bytes: whoever asked goes on from behind them.
    let at =
        |offset: u64, length| Reply::decode(&Reply::done(Operation::Write, offset, length, true).encode(96)).is_ok();
    for (offset, length) in [(u64::MAX, 1), (u64::MAX, 0), (1 << 63, 0), ((1 << 63) - 1, 1), ((1 << 63) - 5, 4096)] {
        assert!(!at(offset, length), "{length} bytes at {offset}");
    }
    assert!(at((1 << 63) - 1, 0) && at((1 << 63) - 2, 1) && at((1 << 63) - 4097, 4096));
    for length in 0..FEATURES_BYTES {
        assert!(Features::decode(&vec![0; length]).is_err());
    }
    assert!(Features::decode(&[0xff; FEATURES_BYTES]).is_err());
}

#[test]
fn checksums_are_counted() {
    let bytes: Vec<u8> = (0..64).collect();
    for algorithm in Algorithm::ALL {
        let each = algorithm.digest_len();
        let (sums, rest) = decode_sums(algorithm, 2, &bytes).unwrap();
        assert_eq!((sums.len(), rest.len()), (2, 64 - 2 * each));
        assert_eq!(sums[1].as_bytes(), &bytes[each..2 * each]);
        for count in [65, usize::MAX] {
            assert!(each == 0 || decode_sums(algorithm, count, &bytes).is_err());
        }
    }
}

#[test]
fn lists_of_blocks_come_back() {
    for blocks in [vec![], vec![7], vec![0, 1, u64::MAX]] {
        let mut bytes = encode_blocks(&blocks);
        assert_eq!(blocks_fitting(bytes.len()), blocks.len());
        for length in 0..bytes.len() {
            assert!(decode_blocks(&bytes[..length]).is_err());
        }
        bytes.extend([0xff; 20]);
        assert_eq!(decode_blocks(&bytes), Ok(blocks));
    }
    assert!(decode_blocks(&encode_blocks(&[3, 3])).is_err());
    assert!(decode_blocks(&[0xff; 800]).is_err());
    assert_eq!(blocks_fitting(7), 0);
}
