//! What is written: which bytes go to which block. Between the place where an address was verified and the device's own copy of the request there is a
//! list in memory, and a good block that goes elsewhere is written over somebody else's. So the sum of all pairs is made where the addresses come
//! from, and the list is compared with it right before the device gets it. It is compared again when the device is done: the last ones of many
//! wait there for as long as the first ones take.

use crate::disk::Disk;
use crate::meta_block::Scribble;
use holdfast_block::{Error as BlockError, Write};
use holdfast_guard::closed;
use holdfast_object::{Corruption, Error, Place, Result};
use std::io::IoSlice;

/// Most blocks in one device write: 4 MiB, and within what a vectored system call takes.
const RUN_MAX: usize = 1024;

/// Odd, and without a pattern: the first digits of π.
const FACTORS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];

/// The sum of which bytes go where. It does not depend on an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Route(u64);

impl Route {
    /// These bytes of memory go to this block.
    pub(crate) fn add(&mut self, block: u64, bytes: &[u8]) {
        let product = u128::from(block ^ FACTORS[0]) * u128::from(bytes.as_ptr() as u64 ^ FACTORS[1]);
        self.0 = self.0.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }

    fn of(writes: &[Write<'_>]) -> Route {
        let mut route = Route::default();
        for write in writes {
            let blocks = (0..).map(|number| write.first.wrapping_add(number));
            blocks.zip(write.bufs).for_each(|(block, bytes)| route.add(block, bytes));
        }
        route
    }
}

/// Blocks to write, neighbours together.
#[derive(Default)]
pub(crate) struct Requests<'a> {
    runs: Vec<(u64, usize)>,
    slices: Vec<IoSlice<'a>>,
    route: Route,
    /// A recovery point stands once they are written, and cannot be begun anew.
    are_last: bool,
}

impl<'a> Requests<'a> {
    /// Of blocks with their addresses.
    pub(crate) fn new(disk: &Disk, blocks: impl IntoIterator<Item = (u64, &'a [u8; 4096])>) -> Result<Requests<'a>> {
        let mut requests = Requests::default();
        blocks.into_iter().try_for_each(|(address, bytes)| requests.add(disk, address, bytes))?;
        Ok(requests)
    }

    /// One more.
    pub(crate) fn add(&mut self, disk: &Disk, address: u64, bytes: &'a [u8; 4096]) -> Result<()> {
        let block = disk.block(address, 1)?;
        self.route.add(block, bytes);
        match self.runs.last_mut() {
            Some((first, count)) if *first + *count as u64 == block && *count < RUN_MAX => *count += 1,
            _ => self.runs.push((block, 1)),
        }
        self.slices.push(IoSlice::new(bytes));
        Ok(())
    }

    /// What it is to be by who has the addresses from elsewhere.
    pub(crate) fn along(self, route: Route) -> Requests<'a> {
        Requests { route, ..self }
    }

    /// They make a recovery point.
    pub(crate) fn last(self) -> Requests<'a> {
        Requests { are_last: true, ..self }
    }

    /// What the device gets. Of runs that are longer than what there is, less.
    fn writes(&self) -> Vec<Write<'_>> {
        let mut rest = &self.slices[..];
        let next = |&(first, count): &(u64, usize)| {
            let (bufs, later) = rest.split_at(count.min(rest.len()));
            rest = later;
            Write { first, bufs }
        };
        self.runs.iter().map(next).collect()
    }
}

impl Disk {
    /// Writes blocks at their addresses, and returns when the device has taken them. A failure latches.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: somebody has written to the list of what goes where. Where what was written may be a recovery point, it is
    /// [`Error::Corrupt`], and latches.
    pub(crate) fn submit(&self, requests: &Requests<'_>) -> Result<()> {
        self.check_writable()?;
        let writes = requests.writes();
        self.check_route(&writes, requests).map_err(|mut corruption| {
            corruption.got += ", before the device got it: nothing was written";
            self.give_up(*corruption)
        })?;
        self.counters.written(writes.len() as u64, requests.slices.len() as u64 * 4096);
        let outcome = closed(|| self.write_runs(&writes));
        self.watch(outcome)?;
        self.check_route(&writes, requests).map_err(|mut corruption| {
            corruption.got += ", while the device had it: it may have written to these blocks:";
            for Write { first, bufs } in &writes {
                corruption.got += &format!(" {first}+{}", bufs.len());
            }
            if !requests.are_last {
                return self.give_up(*corruption);
            }
            tracing::error!(%corruption, "the store is read-only from now on");
            self.latch(corruption.to_string());
            Error::Corrupt(corruption)
        })
    }

    fn write_runs(&self, writes: &[Write<'_>]) -> std::result::Result<(), BlockError> {
        match writes {
            [] => Ok(()),
            [write] => self.device().write(write.first, write.bufs),
            writes => self.device().write_batch(writes),
        }
    }

    fn check_route(&self, writes: &[Write<'_>], requests: &Requests<'_>) -> std::result::Result<(), Box<Corruption>> {
        let scribble = Scribble::unless_equal("list of the blocks of a write", requests.route.0, Route::of(writes).0);
        scribble.map_err(|scribble| {
            self.counters.scribbled();
            Box::new(scribble.at(Place { address: None, ..self.place(0) }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::{Device, MemoryDevice};
    use std::io::IoSliceMut;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    /// Writes to a request while it has it, as a program with a wrong pointer would.
    struct Meanwhile {
        inner: MemoryDevice,
        strike: bool,
    }

    impl Meanwhile {
        fn strike(&self, of: &u64) {
            if self.strike {
                let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
                memory.write_all_at(&(of ^ 4).to_ne_bytes(), std::ptr::from_ref(of) as u64).unwrap();
            }
        }
    }

    impl Device for Meanwhile {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn blocks(&self) -> u64 {
            self.inner.blocks()
        }

        fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> std::result::Result<(), BlockError> {
            self.inner.read(first, bufs)
        }

        fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), BlockError> {
            self.inner.write(first, bufs)
        }

        fn write_batch(&self, writes: &[Write<'_>]) -> std::result::Result<(), BlockError> {
            self.strike(&writes[writes.len() - 1].first);
            self.inner.write_batch(writes)
        }

        fn flush(&self) -> std::result::Result<(), BlockError> {
            self.inner.flush()
        }

        fn discard(&self, first: u64, count: u64) -> std::result::Result<(), BlockError> {
            self.inner.discard(first, count)
        }
    }

    const BLOCKS: u64 = 64;

    fn disk(strike: bool) -> Disk {
        Disk::new(Arc::new(Meanwhile { inner: MemoryDevice::new(BLOCKS), strike }), BLOCKS)
    }

    /// The first byte of each block.
    fn on_device(disk: &Disk) -> Vec<u8> {
        let mut block = [0; 4096];
        let mut first = |at| disk.read_block(at, &mut block).map(|()| block[0]);
        (0..BLOCKS).map(|at| first(at).unwrap()).collect()
    }

    fn blocks() -> Vec<(u64, Box<[u8; 4096]>)> {
        [9, 10, 11, 20, 30, 31].map(|at| (at, Box::new([at as u8; 4096]))).into()
    }

    fn requests<'a>(disk: &Disk, blocks: &'a [(u64, Box<[u8; 4096]>)]) -> Requests<'a> {
        Requests::new(disk, blocks.iter().map(|(at, bytes)| (*at, &**bytes))).unwrap()
    }

    fn is_given_up(disk: &Disk, outcome: &Result<()>, told: &str) -> bool {
        let scribbles = disk.counters.scribbles();
        let is_told = matches!(outcome, Err(error @ Error::GivenUp(_)) if error.to_string().contains(told));
        is_told && scribbles == 1 && disk.check_sound().is_err() && disk.check_writable().is_ok()
    }

    #[test]
    fn blocks_go_where_they_should_neighbours_together() {
        let (disk, blocks) = (disk(false), blocks());
        let requests = requests(&disk, &blocks);
        assert_eq!(requests.runs, [(9, 3), (20, 1), (30, 2)]);
        disk.submit(&requests).unwrap();
        let expected: Vec<u8> =
            (0..BLOCKS as u8).map(|at| if blocks.iter().any(|(to, _)| *to == at.into()) { at } else { 0 }).collect();
        assert_eq!(on_device(&disk), expected);
        assert!(Requests::new(&disk, [(BLOCKS, &[0; 4096])]).is_err());
    }

    #[test]
    fn a_list_that_was_written_to_is_not_submitted() {
        type Strike = fn(&mut Requests<'_>);
        let strikes: [(&str, Strike); 6] = [
            ("where a run begins", |requests| requests.runs[1].0 ^= 1),
            ("how long one is", |requests| requests.runs[0].1 -= 1),
            ("that it is too long", |requests| requests.runs[0].1 += 1 << 40),
            ("that there is one", |requests| requests.runs.truncate(2)),
            ("whose bytes", |requests| requests.slices.swap(0, 4)),
            ("the sum", |requests| requests.route.0 ^= 1 << 63),
        ];
        for (what, strike) in strikes {
            let (disk, blocks) = (disk(false), blocks());
            let mut requests = requests(&disk, &blocks);
            strike(&mut requests);
            let outcome = disk.submit(&requests);
            assert!(is_given_up(&disk, &outcome, "nothing was written"), "{what}: {outcome:?}");
            assert_eq!(on_device(&disk), [0; BLOCKS as usize], "{what}");
        }
    }

    #[test]
    fn a_list_that_was_written_to_while_the_device_had_it_is_found() {
        let (disk, blocks) = (disk(true), blocks());
        let outcome = disk.submit(&requests(&disk, &blocks));
        assert!(is_given_up(&disk, &outcome, "9+3 20+1 26+2"), "{outcome:?}");
    }

    /// If a superblock may have been among them, what it says must not be made anew.
    #[test]
    fn the_last_ones_latch() {
        let (disk, blocks) = (disk(true), blocks());
        let outcome = disk.submit(&requests(&disk, &blocks).last());
        assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
        assert!(disk.read_only().is_some_and(|reason| reason.contains("26+2")), "{:?}", disk.read_only());
        assert!(disk.given_up().is_none());
    }

    /// What came of the same addresses by another way.
    #[test]
    fn a_list_that_does_not_go_along_is_not_submitted() {
        let (disk, blocks) = (disk(false), blocks());
        let mut route = Route::default();
        blocks.iter().rev().for_each(|(at, bytes)| route.add(*at, &**bytes));
        disk.submit(&requests(&disk, &blocks).along(route)).unwrap();
        route.add(1, &blocks[0].1[..]);
        let outcome = disk.submit(&requests(&disk, &blocks).along(route));
        assert!(is_given_up(&disk, &outcome, "nothing was written"), "{outcome:?}");
    }
}
