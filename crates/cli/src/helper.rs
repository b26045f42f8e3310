//! The command as a helper of mount(8): called under a name like `mount.holdfast` (a symbolic link in /sbin), with the helper's
//! conventions instead of our own.
//!
//! `mount.holdfast STORE DIR [-sfnv] [-r] [-w] [-t TYPE] [-o OPTIONS]`, mount(8) "EXTERNAL HELPERS"; its exit codes.

use crate::args::{Mount, TIMEOUT_S};
use crate::commands::{mount, remount};
use crate::failure::{Failure, Result, exit};
use crate::options::MountOptions;
use crate::output::{Format, print_failure};
use crate::process;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// mount(8): incorrect invocation or permissions.
const EXIT_USAGE: u8 = 1;
/// mount(8): mount failure.
const EXIT_FAILED: u8 = 32;
/// How long to wait for the daemon of the last mount if it shows no sign of life.
const TIMEOUT: Duration = Duration::from_secs(TIMEOUT_S as u64);

/// What mount(8) asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    places: Vec<PathBuf>,
    options: Vec<String>,
    /// `-s`: options that are not known are left out.
    sloppy: bool,
    /// `-f`: everything but the mount itself.
    fake: bool,
    /// `-v`: tell how it went.
    verbose: bool,
}

/// Whether this process was called as the helper.
pub(crate) fn is_called() -> bool {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_name);
    name.is_some_and(|name| name.to_string_lossy().starts_with("mount."))
}

/// Runs as the helper.
pub(crate) fn run() -> ExitCode {
    let code = match parse(process::arguments()).and_then(|asked| mount_as(&asked)) {
        Ok(()) => exit::OK,
        Err(failure) => {
            print_failure(Format::Words, &failure);
            if failure.code == exit::USAGE { EXIT_USAGE } else { EXIT_FAILED }
        }
    };
    ExitCode::from(code)
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut words = words;
    while let Some(word) = words.next() {
        let Some(letters) = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|rest| !rest.is_empty())
        else {
            asked.places.push(PathBuf::from(word));
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                's' => asked.sloppy = true,
                'f' => asked.fake = true,
                'v' => asked.verbose = true,
                'r' => asked.options.push("ro".into()),
                'w' => asked.options.push("rw".into()),
                // There is no /etc/mtab to leave alone.
                'n' => {}
                'o' | 't' => {
                    let rest = &letters[at + 1..];
                    let value = if rest.is_empty() { words.next() } else { Some(rest.into()) };
                    let value = value.ok_or_else(|| Failure::usage(format!("-{letter} needs a value")))?;
                    if letter == 'o' {
                        asked.options.push(value.to_string_lossy().into_owned());
                    }
                    break;
                }
                other => return Err(Failure::usage(format!("-{other} is not known to this helper of mount(8)"))),
            }
        }
    }
    Ok(asked)
}

fn mount_as(asked: &Asked) -> Result<()> {
    let [store, directory] = &asked.places[..] else {
        return Err(Failure::usage("a store and a directory are needed: mount -t holdfast STORE DIR"));
    };
    let options = if asked.sloppy { MountOptions::known(&asked.options) } else { asked.options.clone() };
    if MountOptions::has(&options, "nofail") && !store.exists() {
        // mount(8) leaves that to its helpers.
        return Ok(());
    }
    if MountOptions::is_remount(&options) {
        return remount::as_helper(store, directory, &options, asked.fake);
    }
    let place = |path: &Path| path.to_path_buf();
    let arguments = Mount {
        store: place(store),
        directory: place(directory),
        options,
        foreground: false,
        report_ready: false,
        lab: false,
    };
    if asked.fake { mount::try_out(&arguments) } else { mount::quietly(&arguments, TIMEOUT, asked.verbose) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_line_of_mount_8_is_understood() {
        let expected = Asked {
            places: vec!["/data/s".into(), "/mnt".into()],
            options: vec!["ro".into(), "noatime,x-a".into(), "rw".into()],
            sloppy: true,
            fake: true,
            verbose: true,
        };
        assert_eq!(asked("/data/s /mnt -sfnvr -o noatime,x-a -t fuse.holdfast -w").unwrap(), expected);
        assert_eq!(asked("/data/s /mnt -sfvr -onoatime,x-a -w").unwrap(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_the_callers_fault() {
        for line in ["/s /m -o", "/s /m -N", "/s /m -z"] {
            assert_eq!(asked(line).unwrap_err().code, exit::USAGE, "{line}");
        }
        assert_eq!(mount_as(&asked("/s").unwrap()).unwrap_err().code, exit::USAGE);
    }
}
