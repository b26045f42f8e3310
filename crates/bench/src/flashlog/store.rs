//! Files of a store on a device: the loads of a file system.

use super::MIB_BLOCKS;
use crate::cpu;
use crate::error::{At, Result};
use crate::pattern::Generator;
use crate::stack::{Options, Stack, other};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_integrity::Protection;
use holdfast_naming::{NewNode, Request};
use holdfast_object::{Durability, ObjectId, SystemClock};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for a store's files.
const POOL_BYTES: u64 = 32 << 20;
const PIECE: usize = MIB_BLOCKS as usize * BLOCK_SIZE;

/// What is done to them. A rewrite and a copy are of half of a load, as a log alone has room for two, and a store for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Files {
    /// A file in pieces of 1 MiB, then synced.
    Write,
    /// The same again, over what it has.
    Rewrite,
    /// Files of 1 MiB, none of them in memory, are read and written to new ones, then all is synced.
    Copy,
}

impl Files {
    pub(super) const ALL: [Files; 3] = [Files::Write, Files::Rewrite, Files::Copy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Files::Write => "a file of a store on it, 1 MiB in a row",
            Files::Rewrite => "a file of a store on it, rewrite, 1 MiB in a row",
            Files::Copy => "files of a store on it, copy of files of 1 MiB",
        }
    }

    /// Bytes, time, and processor time; making the store, what is there before, and closing it are not in them.
    pub(super) fn run(self, device: &Arc<dyn Device>, mib: u64) -> Result<(u64, Duration, Duration)> {
        self.on(device, if self == Files::Write { mib } else { mib / 2 })
            .at("measure files of a store on", device.name())
    }

    fn on(self, device: &Arc<dyn Device>, mib: u64) -> io::Result<(u64, Duration, Duration)> {
        let options = Options::new(Protection::default(), POOL_BYTES, Arc::new(SystemClock::default()));
        let mut stack = Stack::create(device.clone(), &options)?;
        let mut bytes = vec![0; PIECE];
        Generator::new(&[7]).fill(&mut bytes);
        if self == Files::Copy {
            for number in 0..mib {
                let id = make(&stack, &format!("from {number}"))?;
                write(&stack, id, 0, &bytes)?;
            }
            stack.close()?;
            stack = Stack::open(device.clone(), &options)?;
        }
        let id = make(&stack, "file")?;
        let row = || {
            (0..mib).try_for_each(|at| write(&stack, id, at << 20, &bytes))?;
            stack.namespace.sync(id, Durability::All).map_err(other)
        };
        if self == Files::Rewrite {
            row()?;
        }
        let (start, cpu) = (Instant::now(), cpu::own());
        if self == Files::Copy {
            copy(&stack, mib)?
        } else {
            row()?
        }
        let took = (mib << 20, start.elapsed(), cpu::own().saturating_sub(cpu));
        stack.close()?;
        Ok(took)
    }
}

fn make(stack: &Stack, name: &str) -> io::Result<ObjectId> {
    let made = stack.namespace.mknod(&Request::ROOT, ObjectId::ROOT, name.as_bytes(), NewNode::Regular, 0o644);
    Ok(made.map_err(other)?.id)
}

fn write(stack: &Stack, id: ObjectId, offset: u64, bytes: &[u8]) -> io::Result<()> {
    stack.namespace.write(&Request::ROOT, id, offset, bytes, false).map(drop).map_err(other)
}

fn copy(stack: &Stack, mib: u64) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(PIECE);
    for number in 0..mib {
        let from = stack.namespace.lookup(&Request::ROOT, ObjectId::ROOT, format!("from {number}").as_bytes());
        let data = stack.namespace.read(from.map_err(other)?.id, 0, PIECE).map_err(other)?;
        buffer.clear();
        data.slices().for_each(|slice| buffer.extend_from_slice(slice));
        let to = make(stack, &format!("to {number}"))?;
        write(stack, to, 0, &buffer)?;
    }
    stack.namespace.sync_all().map(drop).map_err(other)
}
