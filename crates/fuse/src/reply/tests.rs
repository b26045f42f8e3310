use super::*;

fn entry() -> Entry {
    Entry { node: 7, generation: 0, attr: Attr::default(), name_valid: Duration::ZERO, attr_valid: Duration::ZERO }
}

#[test]
fn directory_entries_are_padded_and_stay_within_their_room() {
    for plus in [false, true] {
        for length in 1..=255 {
            let name = vec![b'n'; length];
            let size = ((24 + length).div_ceil(8) * 8) + if plus { 128 } else { 0 };
            let entry = entry();
            let mut exact = DirBuffer::new(2 * size, plus);
            assert!(exact.is_empty());
            assert!(exact.push(7, 1, libc::S_IFREG, &name, plus.then_some(&entry)));
            assert_eq!(exact.bytes().len(), size, "{length}");
            assert!(exact.push(7, 2, libc::S_IFREG, &name, plus.then_some(&entry)));
            assert!(!exact.push(7, 3, libc::S_IFREG, &name, None));
            assert_eq!(exact.bytes().len(), 2 * size);
            assert!(exact.bytes()[size - (size - 24 - length) % 8..size].iter().all(|&byte| byte == 0));
            let mut short = DirBuffer::new(size - 1, plus);
            assert!(!short.push(7, 1, libc::S_IFREG, &name, None) && short.is_empty());
        }
    }
}

#[test]
fn an_entry_without_attributes_is_not_looked_up() {
    let mut buffer = DirBuffer::new(4096, true);
    assert!(buffer.push(7, 1, libc::S_IFDIR, b"..", None));
    assert_eq!(buffer.bytes()[..128], [0; 128], "node 0: the kernel passes over it");
}

/// Major and minor of a device as `makedev(3)` of the C library joins them, in the kernel's 32-bit encoding.
#[test]
fn device_numbers_are_split_as_the_kernel_joins_them() {
    for (major, minor) in [(0u32, 0u32), (1, 3), (8, 255), (8, 256), (259, 0xfffff), (0xfff, 0x12345)] {
        let rdev = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
        let attr = Attr { rdev, ..Attr::default() };
        let stat = statx(&Attributes { attr, btime: (0, 0), valid: Duration::ZERO }).stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (major, minor));
    }
}
