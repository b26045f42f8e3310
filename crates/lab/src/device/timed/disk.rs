//! A hard disk without a cache: the arm, the rotation, the motor.

use super::{Model, Motor, transfer_ns};
use std::ops::Range;

/// What a disk is like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiskOptions {
    /// Blocks of the device, from one end of the arm's way to the other.
    pub blocks: u64,
    /// Bytes a second, once it is there.
    pub bytes_per_s: u64,
    /// To the next track, in nanoseconds.
    pub seek_least_ns: u64,
    /// Across all of the disk.
    pub seek_most_ns: u64,
    /// One revolution.
    pub revolution_ns: u64,
    /// Without a request for so long, the motor stops; never with `u64::MAX`.
    pub stops_after_ns: u64,
    /// What starting it takes.
    pub start_ns: u64,
}

impl DiskOptions {
    /// 100 MB/s, 7200 revolutions a minute, 1 to 15 ms to a place; the motor stops after 10 s and takes 5 to start.
    pub fn new(blocks: u64) -> DiskOptions {
        DiskOptions {
            blocks,
            bytes_per_s: 100_000_000,
            seek_least_ns: 1_000_000,
            seek_most_ns: 15_000_000,
            revolution_ns: 60_000_000_000 / 7200,
            stops_after_ns: 10_000_000_000,
            start_ns: 5_000_000_000,
        }
    }
}

/// A hard disk.
#[derive(Clone, Debug)]
pub struct Disk {
    options: DiskOptions,
    /// The block under the head.
    head: u64,
    /// A flush has come between: the place behind the head has gone by.
    has_gone_by: bool,
    /// When it was last used.
    used_ns: u64,
    motor: Motor,
}

impl Disk {
    /// Whose motor stands still.
    pub fn new(options: DiskOptions) -> Disk {
        Disk { options, head: 0, has_gone_by: false, used_ns: 0, motor: Motor::default() }
    }

    /// How long the motor goes on after the last request.
    fn lingers_ns(&self, now_ns: u64) -> u64 {
        if self.motor.starts == 0 { 0 } else { now_ns.saturating_sub(self.used_ns).min(self.options.stops_after_ns) }
    }

    fn go(&mut self, blocks: &Range<u64>, now_ns: u64) -> u64 {
        let DiskOptions { seek_least_ns, seek_most_ns, revolution_ns, .. } = self.options;
        let mut cost_ns = 0;
        let stood = now_ns.saturating_sub(self.used_ns) > self.options.stops_after_ns;
        self.motor.on_ns += self.lingers_ns(now_ns);
        if self.motor.starts == 0 || stood {
            self.motor.starts += 1;
            cost_ns += self.options.start_ns;
        }
        let far = self.head.abs_diff(blocks.start);
        if far > 0 {
            let part = (far as f64 / self.options.blocks as f64).min(1.0).sqrt();
            cost_ns += seek_least_ns + ((seek_most_ns - seek_least_ns) as f64 * part) as u64;
            // Half of one in the mean.
            cost_ns += revolution_ns / 2;
        } else if self.has_gone_by {
            cost_ns += revolution_ns;
        }
        cost_ns += transfer_ns(blocks.end - blocks.start, self.options.bytes_per_s);
        (self.head, self.has_gone_by, self.used_ns) = (blocks.end, false, now_ns + cost_ns);
        self.motor.on_ns += cost_ns;
        cost_ns
    }
}

impl Model for Disk {
    fn read(&mut self, blocks: Range<u64>, now_ns: u64) -> u64 {
        self.go(&blocks, now_ns)
    }

    fn write(&mut self, blocks: Range<u64>, now_ns: u64) -> u64 {
        self.go(&blocks, now_ns)
    }

    fn flush(&mut self) -> u64 {
        self.has_gone_by = true;
        0
    }

    fn discard(&mut self, _blocks: Range<u64>) {}

    fn motor(&self, now_ns: u64) -> Motor {
        Motor { on_ns: self.motor.on_ns + self.lingers_ns(now_ns), ..self.motor }
    }
}
