//! `holdfast run`: a program whose reads and writes of files in a mount go with checksums.

use crate::args::Run;
use crate::failure::{Failure, Result, exit};
use crate::output::{Format, count};
use crate::quoting;
use crate::stack;
use holdfast_interface::run::{
    COUNTERS_BYTES, COUNTERS_NAME, COUNTERS_VARIABLE, Counter, CountersName, LIBRARY, LIBRARY_VARIABLE, QUIET_VARIABLE,
    decode_counters,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a shell gives for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

pub(crate) fn run(arguments: &Run, format: Format) -> Result<u8> {
    let [program, words @ ..] = &arguments.command[..] else {
        return Err(Failure::usage("there is no command to run"));
    };
    if program.as_bytes().starts_with(b"-") {
        let failure = Failure::usage(format!("there is no option {}", Path::new(program).display()));
        return Err(failure.hint("a program of that name is given with its directory"));
    }
    let library = library()?;
    let mut command = Command::new(program);
    command.args(words).env("LD_PRELOAD", preload(&library)?);
    if arguments.quiet {
        command.env(QUIET_VARIABLE, "1");
    }
    if !arguments.stats {
        return Err(not_run(program, &command.exec()));
    }
    let counters = Counters::new()?;
    command.env(COUNTERS_VARIABLE, counters.name.to_string());
    let mut child = command.spawn().map_err(|error| not_run(program, &error))?;
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: no handler is set. They are for the program; its end is waited for.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let status = child.wait().map_err(stack::says)?;
    counters.tell(format)?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED))
}

fn not_run(program: &OsString, error: &io::Error) -> Failure {
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
    Failure { code, ..Failure::at(Path::new(program), error) }
}

/// Where the library is: as the environment says, or beside this program as it is built or installed.
fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return std::path::absolute(&path).ok().filter(|path| path.is_file()).ok_or_else(|| {
            Failure::at(Path::new(&path), format!("there is no library, where {LIBRARY_VARIABLE} says"))
        });
    }
    let program = std::env::current_exe().map_err(stack::says)?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)];
    places.iter().find_map(|path| path.canonicalize().ok()).ok_or_else(|| {
        let message = format!("{LIBRARY} is neither in {} nor in ../lib", directory.display());
        Failure::new(message)
            .hint(format!("make build makes it, make install installs it; {LIBRARY_VARIABLE} names another place"))
    })
}

/// What the loader is to load: ours before what was to be loaded already.
fn preload(library: &Path) -> Result<OsString> {
    let name = library.as_os_str().as_bytes();
    if name.iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n')) {
        let message = "the loader takes no path with a space or a colon in it";
        return Err(Failure::at(library, message).hint(format!("{LIBRARY_VARIABLE} names another place")));
    }
    let others = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
    let mut all = name.to_vec();
    if let Some(others) = others {
        all.push(b':');
        all.extend(others.into_vec());
    }
    Ok(OsString::from_vec(all))
}

/// Memory that the programs count in. They open it through this process, so that nothing is left of it.
struct Counters {
    file: File,
    name: CountersName,
}

impl Counters {
    fn new() -> Result<Counters> {
        let file = memfd_create(COUNTERS_NAME, MemfdFlags::CLOEXEC).map_err(stack::says)?;
        ftruncate(&file, COUNTERS_BYTES as u64).map_err(stack::says)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let name = CountersName { nonce: u128::from_le_bytes(stack::random()?), path };
        let file = File::from(file);
        file.write_all_at(&name.header(), 0).map_err(stack::says)?;
        Ok(Counters { file, name })
    }

    /// To standard error: standard output is the program's.
    fn tell(&self, format: Format) -> Result<()> {
        let mut bytes = [0; COUNTERS_BYTES];
        self.file.read_exact_at(&mut bytes, 0).map_err(stack::says)?;
        let counts = decode_counters(&bytes);
        let of = |counter: Counter| counts[counter as usize];
        let text = match format {
            Format::Words if of(Counter::Programs) == 0 => {
                "holdfast run: the library was not loaded (a static program?): nothing was verified".to_owned()
            }
            // What goes bad in the mount itself is found there, or not, as its protection mode has it.
            Format::Words => format!(
                "holdfast run: {}, {} of them with stdio; verified on the way to and from the mount: {} of {}, {} of {}; left alone: {}, {} of them on mounts that refuse; bad: {}; mappings (mmap) are not counted",
                count(of(Counter::Programs), "program", "programs"),
                of(Counter::Streams),
                count(of(Counter::Reads), "read", "reads"),
                count(of(Counter::ReadBytes), "byte", "bytes"),
                count(of(Counter::Writes), "write", "writes"),
                count(of(Counter::WrittenBytes), "byte", "bytes"),
                of(Counter::LeftAlone),
                of(Counter::Refused),
                of(Counter::Bad),
            ),
            Format::Json => {
                let all = Counter::ALL.into_iter().map(|(counter, name)| (name.to_string(), of(counter).into()));
                serde_json::Value::Object(all.collect()).to_string()
            }
        };
        // Nobody reading it is no error.
        let _ = writeln!(io::stderr().lock(), "{}", quoting::line(&text));
        Ok(())
    }
}
