//! The options of `mount -o`.

use crate::size;
use holdfast_naming::Atime;

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountOptions {
    /// Take no changes; nothing is written to the store, not even the replay of its intent log.
    pub(crate) read_only: bool,
    /// Size of the page pool, in bytes.
    pub(crate) cache_bytes: u64,
    /// Other users may use the mount, too.
    pub(crate) allow_other: bool,
    /// Mount on a directory that has files; they are hidden.
    pub(crate) nonempty: bool,
    /// Times of last access.
    pub(crate) atime: Atime,
    /// Longest time that a change stays outside a recovery point, in milliseconds.
    pub(crate) epoch_ms: u64,
    /// FUSE workers.
    pub(crate) threads: usize,
}

const CACHE_BYTES_MIN: u64 = 16 << 20;
const CACHE_BYTES_MAX: u64 = 1 << 40;
const EPOCH_MS_MIN: u64 = 10;
const EPOCH_MS_MAX: u64 = 60_000;
const THREADS_MAX: u64 = 64;

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            cache_bytes: 256 << 20,
            allow_other: false,
            nonempty: false,
            atime: Atime::Relative,
            epoch_ms: 5_000,
            threads: 2,
        }
    }
}

impl MountOptions {
    /// Reads lists of options separated by commas. Later ones count. An option that is not known is an error.
    pub(crate) fn parse(lists: &[String]) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            options.set(option)?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("allow_other", None) => self.allow_other = true,
            ("nonempty", None) => self.nonempty = true,
            // Always so: the kernel checks permissions.
            ("default_permissions" | "defaults", None) => {}
            ("relatime", None) => self.atime = Atime::Relative,
            ("strictatime", None) => self.atime = Atime::Strict,
            ("noatime", None) => self.atime = Atime::Never,
            ("cache", Some(value)) => {
                let bytes = size::parse(value).map_err(|error| format!("mount option cache: {error}"))?;
                self.cache_bytes = within(name, bytes, CACHE_BYTES_MIN, CACHE_BYTES_MAX, size::show)?;
            }
            ("epoch", Some(value)) => {
                let show = |ms| format!("{ms} (milliseconds)");
                self.epoch_ms = within(name, number(name, value)?, EPOCH_MS_MIN, EPOCH_MS_MAX, show)?;
            }
            ("threads", Some(value)) => {
                let threads = within(name, number(name, value)?, 1, THREADS_MAX, |threads| threads.to_string())?;
                self.threads = threads as usize;
            }
            ("cache" | "epoch" | "threads", None) => {
                return Err(format!("mount option {name} needs a value: {name}=…"));
            }
            (_, Some(_)) if OptionHelp::is_known(name) => return Err(format!("mount option {name} takes no value")),
            _ => return Err(format!("mount option {name:?} is not known; `holdfast mount --help` lists them")),
        }
        Ok(())
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("mount option {name}: {value:?} is no whole number"))
}

fn within(name: &str, value: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<u64, String> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(format!("mount option {name}: {} is not between {} and {}", show(value), show(min), show(max)))
}

/// An option and what it does, for `--help`.
struct OptionHelp(&'static str, &'static str);

const OPTIONS: &[OptionHelp] = &[
    OptionHelp("ro", "take no changes, write nothing to the store"),
    OptionHelp("rw", "take changes (default)"),
    OptionHelp("cache=SIZE", "memory for pages, 16M to 1T; default 256M"),
    OptionHelp("epoch=MS", "longest time until a change is in a recovery point,"),
    OptionHelp("", "10 to 60000 ms; default 5000"),
    OptionHelp("threads=N", "requests handled at once, 1 to 64; default 2"),
    OptionHelp("relatime", "update times of last access now and then (default)"),
    OptionHelp("noatime", "never update them"),
    OptionHelp("strictatime", "always update them"),
    OptionHelp("allow_other", "let other users in (needs root, or the line"),
    OptionHelp("", "user_allow_other in /etc/fuse.conf)"),
    OptionHelp("nonempty", "mount on a directory that has files, and hide them"),
    OptionHelp("defaults", "nothing; for use in scripts"),
    OptionHelp("default_permissions", "always on: the kernel checks permissions"),
];

impl OptionHelp {
    fn is_known(name: &str) -> bool {
        OPTIONS.iter().any(|option| !name.is_empty() && option.0.split('=').next() == Some(name))
    }
}

/// The options, one per line, for `mount --help`.
pub(crate) fn help() -> String {
    let rows: Vec<_> = OPTIONS.iter().map(|option| (option.0, option.1.to_string())).collect();
    crate::output::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, String> {
        MountOptions::parse(&[list.to_string()])
    }

    #[test]
    fn later_options_count() {
        let lists = ["ro,cache=64M,,noatime".to_string(), "rw,epoch=250,threads=4,strictatime".to_string()];
        let options = MountOptions::parse(&lists).unwrap();
        let expected = MountOptions {
            cache_bytes: 64 << 20,
            epoch_ms: 250,
            threads: 4,
            atime: Atime::Strict,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!(parse("").unwrap(), MountOptions::default());
        assert_eq!(parse("defaults,default_permissions").unwrap(), MountOptions::default());
    }

    #[test]
    fn errors_name_the_option() {
        for (list, named) in [
            ("ro,sparkle", "\"sparkle\""),
            ("sparkle=1", "\"sparkle\""),
            ("ro=1", "ro takes no value"),
            ("cache", "cache needs a value"),
            ("cache=1M", "cache: 1.00 MiB is not between"),
            ("cache=big", "cache"),
            ("epoch=0", "epoch"),
            ("epoch=5s", "epoch"),
            ("threads=65", "threads"),
        ] {
            let error = parse(list).unwrap_err();
            assert!(error.contains(named), "{list}: {error}");
        }
    }

    #[test]
    fn the_help_lists_every_option_that_is_taken() {
        for option in OPTIONS {
            let name = option.0;
            let tried = name.replace("SIZE", "64M").replace("MS", "100").replace('N', "3");
            assert!(parse(&tried).is_ok(), "{name}");
        }
        assert_eq!(help().lines().count(), OPTIONS.len());
    }
}
