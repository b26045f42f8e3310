//! The loads: the store that each begins with, and what is measured on it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::Protection;
use holdfast_naming::{NewNode, Position, Request};
use holdfast_object::{ObjectId, PAGE_SIZE, Seek, SystemClock};

use super::clock::Forwarded;
use super::peaks::{Apart, Taken};
use super::{Plan, Step};
use crate::error::{At, Result};
use crate::integrity::Cost;
use crate::integrity::access::{Access, Embedded};
use crate::pattern::{BLOCK, Generator, check_stamps, stamp};
use crate::stack::{Options, Stack, other};
use crate::{cpu, heap};

const MIB: u64 = 1 << 20;
/// Name of the file of a load.
const DATA: &str = "data";
/// Names of files that share blocks with it: two, so that there are references left when it is deleted.
const CLONES: [&str; 2] = ["clone", "another clone"];
/// Pages of the file that are written with one recovery point when it is laid out in a random order.
const PAGES_PER_EPOCH: usize = 2048;
/// Of so many parts of [`PART_BYTES`], one is in the clones, too.
const SHARED: u64 = 8;
/// What one tree block leads to.
const PART_BYTES: u64 = 64 * BLOCK as u64;
/// What `holdfast create` makes: the intent log of smaller stores is smaller, and needs more recovery points.
const STORE_MIB: u64 = 8192;
/// Of a transaction, as in [`holdfast_lab::load::Load::Oltp`].
const READS: u64 = 20;
const WRITES: u64 = 5;
/// Longer than clean blocks are believed without a look at them.
const UNSEEN_NS: u64 = 2_000_000_000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Random reads and overwrites of 4 KiB in a file twice as large as the pool, with fsync by transaction.
    Oltp,
    /// A file is deleted whose pages lie in the order in which they were written: a random one.
    Delete,
    /// The same when another file shares some of its blocks, and all counters of references must be asked.
    DeleteShared,
    /// The same as [`Load::Delete`] with a very large file, of whose tree most is not in memory.
    DeleteHuge,
    /// Empty files are made.
    Create,
    /// And unlinked.
    Unlink,
}

/// A store in use.
struct Used {
    stack: Stack,
    /// The file of the load; the root, if it has none.
    file: Embedded,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 6] =
        [Load::Oltp, Load::Delete, Load::DeleteShared, Load::DeleteHuge, Load::Create, Load::Unlink];

    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Load::Oltp => "OLTP, per transaction",
            Load::Delete => "deletion of a fragmented file, per page",
            Load::DeleteShared => "the same, one page of eight shared with clones",
            Load::DeleteHuge => "deletion of a very large one, per page",
            Load::Create => "creation of an empty file",
            Load::Unlink => "unlinking an empty file",
        }
    }

    /// Size of its file.
    fn file_mib(self, plan: &Plan) -> u64 {
        match self {
            Load::DeleteHuge => plan.huge_mib,
            _ => plan.file_mib,
        }
    }

    /// Pages of its file.
    fn pages(self, plan: &Plan) -> u64 {
        self.file_mib(plan) * MIB / BLOCK as u64
    }

    /// Of them those that its deletion frees; of a load that deletes nothing but what is empty, none.
    pub(super) fn freed(self, plan: &Plan) -> u64 {
        match self {
            Load::Delete | Load::DeleteHuge => self.pages(plan),
            Load::DeleteShared => self.pages(plan) - self.pages(plan) / SHARED,
            Load::Oltp | Load::Create | Load::Unlink => 0,
        }
    }

    /// Size of its store, which is in memory: as much is needed of it, at most, while the load is measured.
    pub fn store_mib(self, plan: &Plan) -> u64 {
        (self.file_mib(plan) * 2 + 512).max(STORE_MIB)
    }

    /// Memory for pages.
    fn pool_bytes(self, plan: &Plan) -> u64 {
        match self {
            Load::Oltp => plan.file_mib * MIB / 2,
            _ => 64 * MIB,
        }
    }

    fn options(self, plan: &Plan, clock: Arc<dyn holdfast_object::Clock>) -> Options {
        Options::new(Protection::default(), self.pool_bytes(plan).max(16 * MIB), clock)
    }

    /// The store with which each measurement begins.
    pub(super) fn image(self, plan: &Plan) -> Result<MemoryDevice> {
        let device = Arc::new(MemoryDevice::new(self.store_mib(plan) * MIB / PAGE_SIZE as u64));
        let options = self.options(plan, Arc::new(SystemClock::default()));
        let filled = Stack::create(device.clone(), &options).and_then(|stack| {
            self.fill(plan, &stack)?;
            stack.close()
        });
        filled.at("make a store in", "memory")?;
        Ok(MemoryDevice::clone(&device))
    }

    fn fill(self, plan: &Plan, stack: &Stack) -> io::Result<()> {
        match self {
            Load::Oltp | Load::Delete | Load::DeleteShared | Load::DeleteHuge => {
                let file = make(stack, DATA)?;
                let mut buffer = vec![0; BLOCK];
                Generator::new(&[plan.seed]).fill(&mut buffer);
                for pages in Generator::new(&[plan.seed, 1]).permutation(self.pages(plan)).chunks(PAGES_PER_EPOCH) {
                    for page in pages {
                        stamp(&mut buffer, *page, 0);
                        file.write(&buffer, page * BLOCK as u64)?;
                    }
                    stack.namespace.sync_all().map_err(other)?;
                }
                if self == Load::DeleteShared {
                    for name in CLONES {
                        let clone = make(stack, name)?;
                        for part in (0..plan.file_mib * MIB).step_by((SHARED * PART_BYTES) as usize) {
                            share(stack, file.id, clone.id, part, PART_BYTES)?;
                        }
                    }
                }
                Ok(())
            }
            Load::Create => Ok(()),
            Load::Unlink => create(stack, &names(plan)),
        }
    }

    /// CPU time of the load in a copy of the image.
    pub(super) fn measure(self, plan: &Plan, image: &MemoryDevice, step: Step, round: u64) -> Result<Cost> {
        let measured = || {
            let used = self.begin(plan, Arc::new(image.clone()), step, round)?;
            let (names, before) = (names(plan), used.free());
            let (own_before, start) = (cpu::own(), Instant::now());
            let requests = self.run(plan, &used, &names, round)?;
            used.stack.namespace.sync_all().map_err(other)?;
            let (wall, cpu) = (start.elapsed(), cpu::own().saturating_sub(own_before));
            self.check_freed(plan, used.free().saturating_sub(before))?;
            Ok(Cost { requests, cpu, daemon_cpu: std::time::Duration::ZERO, wall })
        };
        measured().map_err(|error: io::Error| error).at("measure a load in", "memory")
    }

    /// What the store takes of memory while the load is done in a copy of the image, what it has from before included.
    pub(super) fn take(self, plan: &Plan, image: &MemoryDevice, step: Step) -> Result<Taken> {
        let (names, device) = (names(plan), Arc::new(Apart(image.clone())));
        let (done, peak) = heap::peak_of(|| -> io::Result<(Used, u64)> {
            let used = self.begin(plan, device, step, 0)?;
            // An opening reads all of the intent log.
            heap::only_from_here();
            self.run(plan, &used, &names, 0)?;
            let twins = used.stack.cache.status().twins;
            used.stack.namespace.sync_all().map_err(other)?;
            Ok((used, twins))
        });
        let (used, twins) = done.at("measure a load in", "memory")?;
        Ok(Taken { peak, changed: used.stack.module.most_changed_blocks(), twins })
    }

    /// A store that has in memory what the load finds there, of which all is due for verification.
    fn begin(self, plan: &Plan, device: Arc<dyn Device>, step: Step, round: u64) -> io::Result<Used> {
        let clock = Arc::new(Forwarded::default());
        let (metadata, audits_names) = (step.protection(), step.audits_names());
        let options = Options { metadata, audits_names, ..self.options(plan, clock.clone()) };
        let used = self.warm_up(plan, Stack::open(device, &options)?, round)?;
        clock.forward_ns(UNSEEN_NS);
        Ok(used)
    }

    /// Reads what the load finds in memory.
    fn warm_up(self, plan: &Plan, stack: Stack, round: u64) -> io::Result<Used> {
        let id = match self {
            Load::Create | Load::Unlink => ObjectId::ROOT,
            _ => stack.namespace.lookup(&Request::ROOT, ObjectId::ROOT, DATA.as_bytes()).map_err(other)?.id,
        };
        if id != ObjectId::ROOT {
            stack.namespace.forget(id, 1).map_err(other)?;
        }
        let file = Embedded { namespace: stack.namespace.clone(), id, sums: None };
        let used = Used { stack, file };
        match self {
            Load::Oltp => {
                let mut buffer = vec![0; 64 * BLOCK];
                for at in (0..plan.file_mib * MIB).step_by(buffer.len()) {
                    used.file.read(&mut buffer, at)?;
                }
                transactions(plan, &used.file, plan.transactions / 4, &[plan.seed, round, 2])?;
                used.stack.namespace.sync_all().map_err(other)?;
            }
            Load::Delete | Load::DeleteShared | Load::DeleteHuge => {
                // Through all of the tree: there is no hole.
                used.stack.namespace.seek(id, 0, Seek::Hole).map_err(other)?;
            }
            Load::Create | Load::Unlink => used.stack.namespace.readdir(id, 0, |_| true).map_err(other)?,
        }
        Ok(used)
    }

    /// Gives the number of operations.
    fn run(self, plan: &Plan, used: &Used, names: &[String], round: u64) -> io::Result<u64> {
        match self {
            Load::Oltp => {
                transactions(plan, &used.file, plan.transactions, &[plan.seed, round, 3])?;
                Ok(plan.transactions)
            }
            Load::Delete | Load::DeleteShared | Load::DeleteHuge => {
                unlink(&used.stack, DATA)?;
                Ok(self.pages(plan))
            }
            Load::Create => create(&used.stack, names).map(|()| plan.files),
            Load::Unlink => names.iter().try_for_each(|name| unlink(&used.stack, name)).map(|()| plan.files),
        }
    }

    /// Whether as many blocks have become free as should.
    fn check_freed(self, plan: &Plan, freed: u64) -> io::Result<()> {
        let least = self.freed(plan);
        if freed < least {
            return Err(other(format!("{freed} blocks have become free and not {least}")));
        }
        Ok(())
    }
}

impl Used {
    /// Blocks that are free.
    fn free(&self) -> u64 {
        self.stack.cache.store_status().space.free
    }
}

fn names(plan: &Plan) -> Vec<String> {
    (0..plan.files).map(|number| format!("file-{number:06}")).collect()
}

/// A new file of this name.
fn make(stack: &Stack, name: &str) -> io::Result<Embedded> {
    let made = stack.namespace.mknod(&Request::ROOT, ObjectId::ROOT, name.as_bytes(), NewNode::Regular, 0o644);
    let id = made.map_err(other)?.id;
    // Nobody holds it, so that it goes when it is unlinked.
    stack.namespace.forget(id, 1).map_err(other)?;
    Ok(Embedded { namespace: stack.namespace.clone(), id, sums: None })
}

fn create(stack: &Stack, names: &[String]) -> io::Result<()> {
    names.iter().try_for_each(|name| make(stack, name).map(drop))
}

fn unlink(stack: &Stack, name: &str) -> io::Result<()> {
    stack.namespace.unlink(&Request::ROOT, ObjectId::ROOT, name.as_bytes()).map_err(other)
}

/// So many bytes of a file are those of another, too.
fn share(stack: &Stack, source: ObjectId, target: ObjectId, offset: u64, length: u64) -> io::Result<()> {
    let position = |id| Position { id, offset };
    let copied = stack.namespace.copy_range(&Request::ROOT, position(source), position(target), length, false);
    match copied.map_err(other)? {
        copied if copied == length => Ok(()),
        copied => Err(other(format!("{copied} of {length} bytes copied"))),
    }
}

/// Reads and writes random blocks; each transaction ends when its writes are durable.
fn transactions(plan: &Plan, file: &Embedded, count: u64, seed: &[u64]) -> io::Result<()> {
    let (mut generator, pages) = (Generator::new(seed), Load::Oltp.pages(plan));
    let mut buffer = vec![0; BLOCK];
    for transaction in 0..count {
        for _ in 0..READS {
            let page = generator.below(pages);
            file.read(&mut buffer, page * BLOCK as u64)?;
            check_stamps(&buffer, page)
                .map_err(|(expected, got)| other(format!("block {got} instead of {expected}")))?;
        }
        for _ in 0..WRITES {
            let page = generator.below(pages);
            stamp(&mut buffer, page, transaction);
            file.write(&buffer, page * BLOCK as u64)?;
        }
        file.sync()?;
    }
    Ok(())
}
