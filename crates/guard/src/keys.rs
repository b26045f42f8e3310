//! The protection key of this process and the rights of threads to it (Intel SDM volume 3, 4.6.2; pkeys(7)).
//!
//! PKRU, a register of each thread, has two bits for each key: access disabled, write disabled. No code here allocates or locks:
//! all but `install` is called in signal handlers too.

/// What a thread may do with regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    Read,
    Write,
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::Rights;
    use crate::memory::{Mapping, admits_writes};
    use crate::{Unavailable, memory};
    use std::arch::{asm, x86_64::__cpuid_count};
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    const ACCESS_DISABLED: u32 = 1;
    const WRITE_DISABLED: u32 = 2;

    /// The key, 1 to 15; 0, everybody's key, until there is one.
    static KEY: AtomicU32 = AtomicU32::new(0);

    /// Where PKRU is in what XSAVE writes, as in a signal's frame.
    static PKRU_IN_XSAVE: AtomicU32 = AtomicU32::new(0);

    /// The key of regions. There must be one.
    #[inline(always)]
    pub(crate) fn key() -> u32 {
        let key = KEY.load(Ordering::Relaxed);
        debug_assert!(key != 0, "no key yet");
        key
    }

    #[inline(always)]
    fn read_pkru() -> u32 {
        let pkru: u32;
        // SAFETY: RDPKRU exists where a key could be allocated, which is the only way to get here; it changes EDX (to 0) and EAX.
        unsafe { asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nomem, nostack, preserves_flags)) };
        pkru
    }

    #[inline(always)]
    fn write_pkru(pkru: u32) {
        // SAFETY: as above; rights to other keys are written as they were read. As there is no `nomem`, the compiler keeps accesses to memory
        // that this could reach for all it knows on their side of it: those through pointers from integers, as `Region::as_ptr` gives, and not
        // those through a reference that nobody else can have. The CPU makes none of those after it earlier, not even speculatively.
        unsafe { asm!("wrpkru", in("ecx") 0, in("eax") pkru, in("edx") 0, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn with(pkru: u32, key: u32, rights: Rights) -> u32 {
        let disabled = match rights {
            Rights::Read => WRITE_DISABLED,
            Rights::Write => 0,
        };
        pkru & !((ACCESS_DISABLED | WRITE_DISABLED) << (2 * key)) | disabled << (2 * key)
    }

    /// Gives the calling thread these rights to the key of regions, whatever it had.
    #[inline]
    pub(crate) fn set_rights(rights: Rights) {
        write_pkru(with(read_pkru(), key(), rights));
    }

    /// The same, cheaper where the thread has them already: writing the register takes several times as long as reading it.
    #[inline]
    pub(crate) fn ensure_rights(rights: Rights) {
        let now = read_pkru();
        let then = with(now, key(), rights);
        if now != then {
            write_pkru(then);
        }
    }

    fn cpuid(leaf: u32, sub_leaf: u32) -> std::arch::x86_64::CpuidResult {
        // Not unsafe any more in newer compilers than the oldest one allowed.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 CPU has the instruction; leaves it does not have give the values of another.
        unsafe {
            __cpuid_count(leaf, sub_leaf)
        }
    }

    /// Whether CPU and kernel have keys at all: PKU and OSPKE, leaf 7.
    fn supported() -> Result<(), Unavailable> {
        let features = if cpuid(0, 0).eax >= 7 { cpuid(7, 0).ecx } else { 0 };
        match (features & 1 << 3 != 0, features & 1 << 4 != 0) {
            (false, _) => Err(Unavailable::Cpu),
            (true, false) => Err(Unavailable::Kernel),
            (true, true) => Ok(()),
        }
    }

    /// Allocates the key, and tries it. The calling thread can read afterwards, threads made before can neither read nor write.
    pub(crate) fn install() -> Result<(), Unavailable> {
        supported()?;
        // SAFETY: no memory is involved. The key's rights in PKRU become those given here.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, WRITE_DISABLED) };
        if key < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::ENOSPC) => Unavailable::NoKeyLeft,
                _ => Unavailable::System { call: "pkey_alloc", source },
            });
        }
        KEY.store(key as u32, Ordering::Relaxed);
        PKRU_IN_XSAVE.store(cpuid(0xD, 9).ebx, Ordering::Relaxed);
        try_key().inspect_err(|_| {
            KEY.store(0, Ordering::Relaxed);
            // SAFETY: no memory has the key: the page of the attempt is gone.
            unsafe { libc::syscall(libc::SYS_pkey_free, key) };
        })
    }

    fn try_key() -> Result<(), Unavailable> {
        let page = Mapping::new(memory::page_size()).map_err(|source| Unavailable::System { call: "mmap", source })?;
        lock(page.address(), page.bytes()).map_err(|source| Unavailable::System { call: "pkey_mprotect", source })?;
        if admits_writes(page.address()) {
            return Err(Unavailable::NotEnforced("passes"));
        }
        set_rights(Rights::Write);
        let open = admits_writes(page.address());
        set_rights(Rights::Read);
        if open { Ok(()) } else { Err(Unavailable::NotEnforced("fails inside a window")) }
    }

    /// Gives pages the key: rights to them are the threads' from now on.
    pub(crate) fn lock(address: usize, bytes: usize) -> io::Result<()> {
        change(address, bytes, key())
    }

    /// Takes it from them.
    pub(crate) fn unlock(address: usize, bytes: usize) -> io::Result<()> {
        change(address, bytes, 0)
    }

    fn change(address: usize, bytes: usize, key: u32) -> io::Result<()> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are those of a region, whose owner wants this; their contents do not change.
        match unsafe { libc::syscall(libc::SYS_pkey_mprotect, address, bytes, rights, key) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets the thread that a signal has interrupted read regions once it goes on, if the reason was that it is older than the key.
    /// `false` if that was not the reason, or its registers are not where they are expected.
    ///
    /// # Safety
    /// `context` is what the kernel gave to the handler.
    pub(crate) unsafe fn admit_interrupted(context: *mut libc::ucontext_t) -> bool {
        // What the kernel writes into bytes that XSAVE leaves to software: asm/sigcontext.h, struct _fpx_sw_bytes.
        const SOFTWARE_BYTES: usize = 464;
        const MAGIC: u32 = 0x4650_5853;
        const STATES_IN_USE: usize = 512;
        const PKRU_STATE: u64 = 1 << 9;
        // SAFETY: the caller's promise; the frame of a signal lives until its handler has returned.
        let saved = unsafe { (*context).uc_mcontext.fpregs.cast::<u8>() };
        let at = PKRU_IN_XSAVE.load(Ordering::Relaxed) as usize;
        if saved.is_null() || at == 0 {
            return false;
        }
        // SAFETY: without XSAVE the area is 512 bytes, which is as far as this reads before the magic number says that it is longer.
        let (magic, states, bytes) = unsafe {
            let software = saved.add(SOFTWARE_BYTES);
            (
                software.cast::<u32>().read_unaligned(),
                software.add(8).cast::<u64>().read_unaligned(),
                software.add(16).cast::<u32>().read_unaligned() as usize,
            )
        };
        if magic != MAGIC || states & PKRU_STATE == 0 || at + 4 > bytes {
            return false;
        }
        // SAFETY: the kernel says that PKRU is among the states it has saved, and that the area is that long.
        unsafe {
            let in_use = saved.add(STATES_IN_USE).cast::<u64>();
            let register = saved.add(at).cast::<u32>();
            // A state not in use has its first value, 0, whatever the area has.
            let used = in_use.read_unaligned() & PKRU_STATE != 0;
            let pkru = if used { register.read_unaligned() } else { 0 };
            if pkru & ACCESS_DISABLED << (2 * key()) == 0 {
                return false;
            }
            register.write_unaligned(with(pkru, key(), Rights::Read));
            in_use.write_unaligned(in_use.read_unaligned() | PKRU_STATE);
        }
        true
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_the_two_bits_of_the_key_change() {
            assert_eq!(with(0x5555_5554, 3, Rights::Read), 0x5555_5594);
            assert_eq!(with(0x5555_5594, 3, Rights::Write), 0x5555_5514);
            assert_eq!(with(0, 15, Rights::Read), 0x8000_0000);
            assert_eq!(with(u32::MAX, 15, Rights::Write), 0x3fff_ffff);
        }
    }
}

/// Elsewhere `install` says that there are no keys, and nothing else is ever called.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use elsewhere::*;

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::Rights;
    use crate::Unavailable;
    use std::io;

    pub(crate) fn install() -> Result<(), Unavailable> {
        Err(Unavailable::Architecture)
    }

    pub(crate) fn set_rights(_: Rights) {
        unreachable!("no keys on this architecture")
    }

    pub(crate) fn ensure_rights(_: Rights) {
        unreachable!("no keys on this architecture")
    }

    pub(crate) fn lock(_: usize, _: usize) -> io::Result<()> {
        unreachable!("no keys on this architecture")
    }

    pub(crate) fn unlock(_: usize, _: usize) -> io::Result<()> {
        unreachable!("no keys on this architecture")
    }

    /// # Safety
    /// None needed.
    pub(crate) unsafe fn admit_interrupted(_: *mut libc::ucontext_t) -> bool {
        false
    }
}
