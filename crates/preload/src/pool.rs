//! Memory for the library itself, which a signal handler may ask for while the program is inside malloc, and a child of vfork while its
//! parent waits: rooms of four sizes, taken and given back by one atomic operation; the kernel's for what is larger, or when all are taken.
//!
//! Invariant: a room is used by whoever set its bit, and by nobody else. What a process held when it was forked, in another thread, stays taken
//! in the child: it has a room less.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;

/// Rooms of one size; aligned as memory of the kernel's is.
#[repr(C, align(4096))]
struct Rooms<const BYTES: usize, const COUNT: usize> {
    bytes: UnsafeCell<[[u8; BYTES]; COUNT]>,
    /// One bit each.
    taken: AtomicU64,
}

// SAFETY: a room is used by the one who has set its bit.
unsafe impl<const BYTES: usize, const COUNT: usize> Sync for Rooms<BYTES, COUNT> {}

impl<const BYTES: usize, const COUNT: usize> Rooms<BYTES, COUNT> {
    const fn new() -> Self {
        assert!(COUNT <= 64 && BYTES.is_power_of_two(), "a bit for each; a room is aligned to its size, up to a page");
        Rooms { bytes: UnsafeCell::new([[0; BYTES]; COUNT]), taken: AtomicU64::new(0) }
    }

    fn take(&self) -> Option<*mut u8> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = (!taken).trailing_zeros() as usize;
            if free >= COUNT {
                return None;
            }
            match self.taken.compare_exchange_weak(taken, taken | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(self.bytes.get().cast::<u8>().wrapping_add(free * BYTES)),
                Err(now) => taken = now,
            }
        }
    }

    /// Takes a room back; `false` if it is none of these.
    fn give(&self, room: *mut u8) -> bool {
        let index = (room as usize).wrapping_sub(self.bytes.get() as usize) / BYTES;
        if index >= COUNT {
            return false;
        }
        self.taken.fetch_and(!(1 << index), Ordering::Release);
        true
    }
}

/// See the file's head.
pub(crate) struct Pool {
    words: Rooms<256, 64>,
    lists: Rooms<2048, 64>,
    /// An ioctl's payload.
    payloads: Rooms<16_384, 48>,
    /// The checksums of a megabyte.
    sums: Rooms<65_536, 16>,
}

impl Pool {
    pub(crate) const fn new() -> Pool {
        Pool { words: Rooms::new(), lists: Rooms::new(), payloads: Rooms::new(), sums: Rooms::new() }
    }
}

// SAFETY: memory has the size and alignment that are asked for, and is nobody else's until it is given back.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return std::ptr::null_mut();
        }
        // A room is aligned to its size, up to a page.
        let size = layout.size().max(layout.align());
        let room = if size <= 256 {
            self.words.take()
        } else if size <= 2048 {
            self.lists.take()
        } else if size <= 16_384 {
            self.payloads.take()
        } else if size <= 65_536 {
            self.sums.take()
        } else {
            None
        };
        room.unwrap_or_else(|| map(size))
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let is_room =
            self.words.give(memory) || self.lists.give(memory) || self.payloads.give(memory) || self.sums.give(memory);
        if !is_room {
            // SAFETY: none of the rooms, so it was mapped, with this size.
            unsafe { libc::munmap(memory.cast(), layout.size().max(layout.align())) };
        }
    }
}

fn map(size: usize) -> *mut u8 {
    let (kind, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size, kind, flags, -1, 0) };
    if memory == libc::MAP_FAILED { std::ptr::null_mut() } else { memory.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_nobody_elses() {
        static POOL: Pool = Pool::new();
        let sizes = [1, 256, 257, 2048, 16_383, 20_000, 65_536, 65_537, 300_000];
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    for round in 0..300 {
                        let held: Vec<_> = (0..40)
                            .map(|index| {
                                let align = 1 << (index % 13);
                                let layout = Layout::from_size_align(sizes[(index + round) % 9], align).unwrap();
                                // SAFETY: used within its size, and given back once.
                                let memory = unsafe { POOL.alloc(layout) };
                                assert_eq!(memory as usize % align, 0);
                                let mark = (thread * 40 + index) as u8;
                                // SAFETY: as above.
                                unsafe {
                                    memory.write(mark);
                                    memory.add(layout.size() - 1).write(mark);
                                }
                                (memory, layout, mark)
                            })
                            .collect();
                        for (memory, layout, mark) in held {
                            // SAFETY: as above.
                            unsafe {
                                assert_eq!((memory.read(), memory.add(layout.size() - 1).read()), (mark, mark));
                                POOL.dealloc(memory, layout);
                            }
                        }
                    }
                });
            }
        });
        let taken = [&POOL.words.taken, &POOL.lists.taken, &POOL.payloads.taken, &POOL.sums.taken];
        assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 0), "all were given back");
    }

    #[test]
    fn when_all_are_taken_the_kernel_has_more() {
        static POOL: Pool = Pool::new();
        let layout = Layout::from_size_align(16_000, 8).unwrap();
        // SAFETY: used within its size, and given back once.
        let held: Vec<_> = (0..100).map(|_| unsafe { POOL.alloc(layout) }).collect();
        let mut places: Vec<_> = held.iter().map(|memory| *memory as usize).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() == 100 && places[0] != 0);
        // SAFETY: as above.
        held.into_iter().for_each(|memory| unsafe { POOL.dealloc(memory, layout) });
        assert_eq!(POOL.payloads.taken.load(Ordering::Relaxed), 0);
    }
}
