//! What is told of a stray write, by the thread that made it, before the process dies of it.
//!
//! The handler of SIGSEGV takes no lock and allocates nothing: the culprit may have been interrupted anywhere, in the allocator too. It
//! writes each line with one system call, the facts first, then the frames, for unwinding is what could go wrong.

use crate::keys::{self, Rights};
use crate::{Place, Protect, place_of, protect, signal_stack};
use std::fmt::{self, Write};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// `si_code` of a SIGSEGV for pages that do not allow the access (asm-generic/siginfo.h).
const SEGV_ACCERR: i32 = 2;
/// The same, because of a protection key.
const SEGV_PKUERR: i32 = 4;

/// What the instruction tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To write outside a window.
    Write,
    /// To read, in a thread without rights whose rights could not be set right either.
    Read,
}

/// A stray access to a region.
#[derive(Clone, Copy, Debug)]
pub struct Fault<'a> {
    /// Where it went.
    pub address: usize,
    /// The same as a place in a region.
    pub place: Place,
    /// What it was.
    pub access: Access,
    /// The instruction.
    pub instruction: usize,
    /// The kernel's number of the thread.
    pub thread: i32,
    /// Return addresses of the culprit's callers, the innermost first. Empty where the thread has no signal stack that is
    /// large enough to find them; [`admit_thread`](crate::admit_thread) makes one.
    pub callers: &'a [usize],
}

struct Installed {
    former: libc::sigaction,
    reporter: Option<fn(&Fault<'_>)>,
    /// Load address of the program, which turns addresses into those that addr2line knows.
    program: usize,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Whether threads get a signal stack when they are admitted.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// Takes SIGSEGV, so that a stray write into a region says on standard error where it went, into which region, and from where, before
/// the process ends as it would have: then, and on faults that are none of ours, the handler of before has its turn,
/// or the system's default. (Its signal mask is not applied. It runs on the thread's signal stack.)
///
/// A thread that cannot read because it is older than the key is admitted at its first read, and nothing is told.
///
/// `reporter` can tell more, after that and before the end: it runs in the thread of the culprit, inside the handler, with the right to read
/// regions. It must not wait for a lock that the culprit may hold, which for whoever is called with a stray write can be any: `try_lock`
/// only, and no more memory than it must. It should know that a deadlock there leaves a process that hangs, with the report written.
/// If it ends the process itself, then by `_exit` or `abort`: `exit` runs the destructors of the culprit's thread inside the handler, and
/// waits for its locks.
///
/// Once per process, by the program and not by a library, after [`install`](crate::install) and after other code has set its
/// handlers; a second call changes nothing. Threads that exist have no large signal stack until they are admitted.
///
/// # Errors
/// The system refuses a handler.
pub fn report_faults(reporter: Option<fn(&Fault<'_>)>) -> io::Result<()> {
    // SAFETY: all zeros is a valid value: the default action, with an empty mask.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only asks.
    if unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &mut former) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut first = false;
    INSTALLED.get_or_init(|| {
        first = true;
        Installed { former, reporter, program: load_address() }
    });
    if !first {
        return Ok(());
    }
    // The first time it may load a library.
    callers_of(0, &mut [0; CALLERS + HANDLER_FRAMES]);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does what a handler may do.
    if unsafe { libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    REPORTING.store(true, Ordering::Release);
    crate::admit_thread();
    Ok(())
}

/// What a thread needs for a full report.
#[inline]
pub(crate) fn ready_thread() {
    if REPORTING.load(Ordering::Acquire) {
        signal_stack::ensure();
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both to a handler with SA_SIGINFO, for as long as it runs; the address is valid with SIGSEGV.
    let (code, address, context) = unsafe { ((*info).si_code, (*info).si_addr() as usize, context.cast()) };
    let ours = match protect() {
        Protect::Off => None,
        Protect::Keys if code == SEGV_PKUERR => place_of(address),
        Protect::Pages if code == SEGV_ACCERR => place_of(address),
        _ => None,
    };
    if let Some(place) = ours {
        // SAFETY: as above.
        let (instruction, access) = unsafe { culprit(context) };
        // SAFETY: as above.
        if access == Access::Read && code == SEGV_PKUERR && unsafe { keys::admit_interrupted(context) } {
            return;
        }
        report(code, Fault { address, place, access, instruction, thread: thread_number(), callers: &[] });
    }
    chain(signal, info, context.cast(), code);
}

/// The instruction, and what it tried.
///
/// # Safety
/// `context` is what the kernel gave to the handler.
#[cfg(target_arch = "x86_64")]
unsafe fn culprit(context: *const libc::ucontext_t) -> (usize, Access) {
    // Of the CPU's error code for page faults (Intel SDM volume 3, 4.7).
    const WRITE: i64 = 1 << 1;
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context).uc_mcontext.gregs };
    let access = if registers[libc::REG_ERR as usize] & WRITE != 0 { Access::Write } else { Access::Read };
    (registers[libc::REG_RIP as usize] as usize, access)
}

/// The instruction; pages can always be read, so what faulted wrote.
///
/// # Safety
/// `context` is what the kernel gave to the handler.
#[cfg(target_arch = "aarch64")]
unsafe fn culprit(context: *const libc::ucontext_t) -> (usize, Access) {
    // SAFETY: the caller's promise.
    (unsafe { (*context).uc_mcontext.pc } as usize, Access::Write)
}

fn thread_number() -> i32 {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn report(code: i32, fault: Fault<'_>) {
    let mut frames = [0; CALLERS + HANDLER_FRAMES];
    let mut fault = fault;
    let Some(installed) = INSTALLED.get() else { return };
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, with a zero at the end.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok()).unwrap_or("?");
    let what = match fault.access {
        Access::Write => "stray write into",
        Access::Read => "read by a thread without rights of",
    };
    let Place { region, offset, .. } = fault.place;
    tell(format_args!(
        "holdfast: {what} protected memory: {region} at {:#x}, byte {offset} (4 KiB block {}, byte {} of it)",
        fault.address,
        offset / 4096,
        offset % 4096
    ));
    tell(format_args!(
        "holdfast: by thread {} ({name}), instruction {}, {}",
        fault.thread,
        In { program: installed.program, address: fault.instruction },
        if code == SEGV_PKUERR { "SEGV_PKUERR" } else { "SEGV_ACCERR" }
    ));
    fault.callers = match signal_stack::usable_bytes() {
        // Without a signal stack this runs on the thread's own, which did not overflow: the address was in a region.
        0 => callers_of(fault.instruction, &mut frames),
        bytes if bytes >= signal_stack::ENOUGH => callers_of(fault.instruction, &mut frames),
        _ => &[],
    };
    for caller in fault.callers {
        tell(format_args!("holdfast:   called from {}", In { program: installed.program, address: *caller }));
    }
    if fault.callers.is_empty() {
        tell(format_args!(
            "holdfast:   its callers are not known: the thread has no signal stack large enough to find them"
        ));
    }
    if let Some(reporter) = installed.reporter {
        if protect() == Protect::Keys {
            // A handler starts with no rights to regions; what it interrupts gets its own back.
            keys::set_rights(Rights::Read);
        }
        reporter(&fault);
    }
}

/// Callers told.
const CALLERS: usize = 48;
/// Frames of the handler itself, and the one that the kernel made for it.
const HANDLER_FRAMES: usize = 8;

/// The return addresses behind that of `instruction`, on the stack on which this is called.
fn callers_of(instruction: usize, frames: &mut [usize; CALLERS + HANDLER_FRAMES]) -> &[usize] {
    // SAFETY: there is room for that many.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr().cast(), frames.len() as i32) };
    let frames = &frames[..usize::try_from(found).unwrap_or(0).min(frames.len())];
    match frames.iter().position(|frame| *frame == instruction) {
        Some(culprit) => &frames[culprit + 1..],
        None => &[],
    }
}

/// An address, and within the program what addr2line takes.
struct In {
    program: usize,
    address: usize,
}

impl fmt::Display for In {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)?;
        match self.address.checked_sub(self.program) {
            Some(offset) if self.program != 0 && offset < 1 << 32 => write!(f, " (program + {offset:#x})"),
            _ => Ok(()),
        }
    }
}

/// Where the program was loaded: 0 if at its own addresses.
fn load_address() -> usize {
    extern "C" fn first(object: *mut libc::dl_phdr_info, _: usize, base: *mut libc::c_void) -> i32 {
        // SAFETY: the object is the loader's, for the length of this call; `base` is what is given below.
        unsafe { *base.cast::<usize>() = (*object).dlpi_addr as usize };
        // The program comes first, and no other is asked for.
        1
    }
    let mut base = 0usize;
    // SAFETY: the function has the signature asked for, and `base` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut base).cast()) };
    base
}

/// Writes a line to standard error with one call, for reporters ([`report_faults`]): takes no lock and no memory, if what it is to write
/// takes none. What is longer than 255 bytes is cut.
pub fn tell(text: fmt::Arguments<'_>) {
    struct Line {
        bytes: [u8; 256],
        used: usize,
    }
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // The last byte is the end of the line.
            let room = self.bytes.len() - 1 - self.used;
            let taken = text.len().min(room);
            self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
            self.used += taken;
            Ok(())
        }
    }
    let mut line = Line { bytes: [0; 256], used: 0 };
    let _ = line.write_fmt(text);
    line.bytes[line.used] = b'\n';
    // SAFETY: the bytes are there. What cannot be told is not told.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.used + 1) };
}

/// The handler of before.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    let former = INSTALLED.get().map(|installed| installed.former);
    match former {
        Some(former) if former.sa_sigaction != libc::SIG_DFL && former.sa_sigaction != libc::SIG_IGN => {
            if former.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: with that flag, whoever installed it gave a function of this signature.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(former.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: and without it, one of this.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(former.sa_sigaction) };
                handler(signal);
            }
        }
        _ => {
            // SAFETY: the default action has no function. The instruction is tried again when the handler has returned, and ends the process
            // with a memory image of the culprit as it was; a signal that was sent has no instruction, and is sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if code <= 0 {
                    libc::raise(signal);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_program_are_told_as_addr2line_takes_them() {
        let told = |program, address| In { program, address }.to_string();
        assert_eq!(told(0x5000_0000, 0x5000_1234), "0x50001234 (program + 0x1234)");
        assert_eq!(told(0x5000_0000, 0x7fff_0000_0000), "0x7fff00000000");
        assert_eq!(told(0, 0x40_1234), "0x401234");
        assert_eq!(told(0x5000_0000, 0x1234), "0x1234");
    }
}
