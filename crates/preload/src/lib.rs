//! `libholdfast_preload.so`, which `holdfast run` loads into programs: their reads and writes of files in a Holdfast mount go with a
//! checksum per block, made and verified in the program's own memory by [`holdfast_client`]. Everything else is left alone.
//!
//! | file | job |
//! |---|---|
//! | `exports` | the functions of libc that are taken over, and what they come to |
//! | `durable` | fsync and fdatasync, of which it is said which blocks have failed |
//! | `streams` | stdio: two entries of its table of functions |
//! | `transfer` | a read or write of a file in a mount; decides what is left to the system |
//! | `mounts` | which files are in a mount |
//! | `buffers` | the program's memory, looked at before it is used |
//! | `next` | the functions that were taken over |
//! | `pool` | memory that a signal handler may ask for |
//! | `counters`, `tell` | what is counted; what is said on standard error |
//! | `sys` | system calls |
//!
//! Rules:
//! - **Nothing is kept by descriptor.** Each call asks the kernel what the descriptor is, so nothing becomes stale by close, dup2, exec,
//!   or a fork. What is kept is which devices are mounts of Holdfast; the mount's own answer corrects it.
//! - **The file's own position is taken by one lseek**, which the kernel does in one step also for processes that share it (`transfer`).
//! - **A signal handler may do all of it**: no lock, no libc memory, no thread-local value with a destructor.
//! - **Whatever is odd is left to the system**, which then says what is wrong: an address that is no memory, an impossible length, a
//!   position that is none; and an append that takes more than one request, as others' bytes could come between.
//! - **errno is changed by failures only.** A thread may be cancelled in the system's function, and is unwound through ours: there is
//!   nothing to drop in their frames.
//!
//! Measurements and what else was thought of: `docs/decisions/0013-preloaded-library.md`.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("the functions taken over are those of glibc on 64-bit Linux");

mod buffers;
mod counters;
mod durable;
mod exports;
mod mounts;
mod next;
mod pool;
mod streams;
mod sys;
mod tell;
mod transfer;

use holdfast_client::Algorithm;
use holdfast_interface::run::Counter;
use std::hint::black_box;

#[global_allocator]
static POOL: pool::Pool = pool::Pool::new();

/// The loader calls it before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let errno = sys::errno();
    exports::find();
    durable::find();
    counters::start();
    tell::start();
    sys::start();
    // The first use of a checksum finds out what the processor can do, once; a signal that comes in the middle of it must not wait for it.
    for algorithm in Algorithm::ALL {
        black_box(algorithm.sum(black_box(&[0; 4096])));
    }
    counters::add(Counter::Programs, 1);
    if streams::take_over() {
        counters::add(Counter::Streams, 1);
    }
    sys::set_errno(errno);
}
