//! A device at whose requests something happens in memory, and writing there as a program with a wrong pointer would.

use super::{Arc, Arena, ManualClock, Module, OpenOptions, Rig};
use holdfast_block::{Device, Error, Filter, MemoryDevice};
use parking_lot::Mutex;
use std::fs::OpenOptions as FileOptions;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

/// A request to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Read,
    Write,
    /// The device has done it.
    Written,
}

type Hook = Box<dyn FnMut(Request, u64, *const u8) + Send>;

pub(crate) struct Meanwhile {
    pub(crate) inner: MemoryDevice,
    hook: Mutex<Option<Hook>>,
}

impl Meanwhile {
    /// With what a store has on its device, and the store opened there.
    pub(crate) fn open(rig: &Rig) -> (Arc<Meanwhile>, Arc<Module>) {
        Meanwhile::open_on(MemoryDevice::clone(&rig.device))
    }

    pub(crate) fn on(inner: MemoryDevice) -> Arc<Meanwhile> {
        Arc::new(Meanwhile { inner, hook: Mutex::default() })
    }

    pub(crate) fn open_on(inner: MemoryDevice) -> (Arc<Meanwhile>, Arc<Module>) {
        let device = Meanwhile::on(inner);
        let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
        let module = Module::open(device.clone(), arena, clock, &OpenOptions::default()).unwrap();
        (device, Arc::new(module))
    }

    /// From now on, this happens with each request to a block: with the bytes of one that is written.
    pub(crate) fn set(&self, hook: impl FnMut(Request, u64, *const u8) + Send + 'static) {
        *self.hook.lock() = Some(Box::new(hook));
    }

    pub(crate) fn unset(&self) {
        *self.hook.lock() = None;
    }

    fn tell(&self, request: Request, first: u64, bytes: *const u8) {
        if let Some(hook) = &mut *self.hook.lock() {
            hook(request, first, bytes);
        }
    }
}

impl Filter for Meanwhile {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.tell(Request::Read, first, std::ptr::null());
        self.inner.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let bytes = bufs[0].as_ptr();
        self.tell(Request::Write, first, bytes);
        self.inner.write(first, bufs)?;
        self.tell(Request::Written, first, bytes);
        Ok(())
    }
}

/// Flips bits of a byte anywhere in memory.
pub(crate) fn flip(at: *const u8, bits: u8) {
    let memory = FileOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at as u64).unwrap();
    memory.write_all_at(&[byte[0] ^ bits], at as u64).unwrap();
}
