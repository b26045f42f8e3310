//! The protection mode that somebody asks for, and what it is on a machine, by the reliability model.

use crate::args::{Assumed, Ecc};
use crate::duration;
use crate::ecc::{self, Verdict};
use holdfast_integrity::{Protection, UnknownProtection};
use holdfast_reliability::{Disk, Machine, Memory, Mode, Model, Residency, recommend};
use std::path::Path;
use std::str::FromStr;

/// What `create --protection` and `mount -o protection` take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// What is recommended for the machine.
    Auto,
    /// xor in memory, or the strong checksum where the model says that xor is never enough.
    Static,
    /// xor in memory until the model's t_switch.
    Dynamic,
    /// Just this one.
    Exactly(Protection),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        match text {
            "auto" => Ok(Wanted::Auto),
            "static" => Ok(Wanted::Static),
            "dynamic" => Ok(Wanted::Dynamic),
            _ => match text.strip_prefix("dynamic=") {
                Some(time) => t_switch(time).map(|t_switch_s| Wanted::Exactly(Protection::Dynamic { t_switch_s })),
                None => text.parse().map(Wanted::Exactly).map_err(|error| match error {
                    UnknownProtection::Name(name) => format!(
                        "unknown protection mode '{name}' (known: auto, uniform, uniform=blake3, none, disk, \
                         end-to-end=ALGORITHM, static, static=strong, dynamic, dynamic=TIME)"
                    ),
                    error => error.to_string(),
                }),
            },
        }
    }
}

/// Stored in whole seconds.
fn t_switch(text: &str) -> Result<u32, String> {
    let seconds = duration::parse(text).map_err(|error| format!("dynamic={text}: {error}"))?;
    if seconds.fract() != 0.0 {
        return Err(format!(
            "dynamic={text}: t_switch is in whole seconds; dynamic=0 has the strong checksum throughout"
        ));
    }
    if seconds > f64::from(u32::MAX) {
        return Err(format!("dynamic={text}: t_switch is {} at most", time(f64::from(u32::MAX))));
    }
    Ok(seconds as u32)
}

/// What a store or a mount is told to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    pub(crate) protection: Protection,
    /// Why, if that was left to Holdfast; or that the model agrees, if a machine or a goal was described.
    pub(crate) reason: Option<String>,
    /// What the model says against it.
    pub(crate) warning: Option<String>,
    /// What it says so of.
    pub(crate) machine: String,
}

impl Wanted {
    /// What it is on this machine, as far as it can be told and was said.
    pub(crate) fn choose(self, assumed: &Assumed) -> Chosen {
        let looked = look(assumed);
        let Looked { model, memory_from, disk_from } = &looked;
        let machine = format!("memory: {memory_from}; disk: {disk_from}");
        let by = &machine;
        let goal = one_in(model.goal.name());
        let enough = match model.t_switch() {
            Residency::UpTo(seconds) => {
                let t_switch_max = f64::from(u32::MAX);
                let most =
                    (seconds > t_switch_max).then(|| format!(", and t_switch is {} at most", time(t_switch_max)));
                format!("enough for {goal} until {}{}", time(seconds), most.unwrap_or_default())
            }
            always_or_never => format!("{always_or_never} enough for {goal}"),
        };
        let xor = format!("xor in memory is {enough}; {by}");
        let (protection, reason) = match self {
            Wanted::Auto => {
                let uptime = time(assumed.uptime);
                let why = format!("the cheapest that keeps {goal} for pages up to {uptime} in memory; {by}");
                (model.chosen(recommend(model, assumed.costs, assumed.uptime).mode), Some(why))
            }
            Wanted::Static => (model.chosen(Mode::Static), Some(xor)),
            Wanted::Dynamic => (model.chosen(Mode::Dynamic), Some(xor)),
            Wanted::Exactly(protection) => (protection, None),
        };
        let warning = looked.against(protection, assumed.uptime);
        // It says until when xor is enough.
        let is_said_twice = protection == Protection::Static { strong: false } && warning.is_some();
        let reason = reason.filter(|_| !is_said_twice);
        // Whoever has described a machine or a goal hears what comes of it.
        let is_asked = reason.is_none() && warning.is_none() && *assumed != Assumed::default();
        let uptime = time(assumed.uptime);
        let agrees = || format!("by the reliability model it keeps {goal} for pages up to {uptime} in memory; {by}");
        let reason = reason.or_else(|| is_asked.then(agrees));
        Chosen { protection, reason, warning, machine }
    }
}

/// A machine and a goal, and where what is known of the machine is from.
pub(crate) struct Looked {
    pub(crate) model: Model,
    pub(crate) memory_from: String,
    pub(crate) disk_from: String,
}

impl Looked {
    /// Where a mode misses the goal.
    fn against(&self, protection: Protection, uptime_s: f64) -> Option<String> {
        let model = &self.model;
        let when = match model.keeps_as_told(protection) {
            kept if kept.covers(uptime_s) => return None,
            Residency::Never => String::new(),
            kept => format!(" for pages more than {kept} in memory"),
        };
        let goal = one_in(model.goal.name());
        Some(format!("by the reliability model {protection} does not keep {goal}{when}"))
    }
}

/// Finds out what was not said.
pub(crate) fn look(assumed: &Assumed) -> Looked {
    let (memory, memory_from) = memory(assumed);
    let (disk, disk_from) = disk(assumed);
    let machine = Machine { memory, disk, flush_s: assumed.flush };
    Looked { model: Model { machine, data: assumed.checksum_data, goal: assumed.goal }, memory_from, disk_from }
}

/// The memory, and what was detected, given or assumed.
fn memory(assumed: &Assumed) -> (Memory, String) {
    if let Some(memory) = assumed.memory_fit {
        return (memory, "as given".into());
    }
    match (assumed.ecc, assumed.config) {
        (Some(Ecc::Yes), _) => (Memory::ECC, "with ECC, as given".into()),
        (Some(Ecc::No), _) => (Memory::NON_ECC, "without ECC, as given".into()),
        (None, Some(config)) => (config.machine().memory, format!("sample configuration {}", config.number())),
        (None, None) => {
            let found = ecc::detect(Path::new("/"));
            let (memory, verdict) = match found.verdict {
                Verdict::Ecc => (Memory::ECC, "with ECC"),
                Verdict::NoEcc => (Memory::NON_ECC, "without ECC"),
                Verdict::Unknown => (Memory::NON_ECC, "taken to have no ECC"),
            };
            (memory, format!("{verdict} ({})", found.evidence))
        }
    }
}

fn disk(assumed: &Assumed) -> (Disk, String) {
    match (assumed.uber, assumed.config) {
        (Some(disk), _) => (disk, "as given".into()),
        (None, Some(config)) => (config.machine().disk, format!("sample configuration {}", config.number())),
        // No disk tells.
        (None, None) => (Disk::REGULAR, "assumed of a regular disk".into()),
    }
}

/// A goal in words.
pub(crate) fn one_in(goal: &str) -> String {
    let article = if goal.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("at most one silent corruption in {article} {goal} read")
}

/// A length of time in words.
pub(crate) fn time(seconds: f64) -> String {
    Residency::UpTo(seconds).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_reliability::{Config, Goal};

    fn chosen(wanted: &str, config: Config) -> Chosen {
        let assumed = Assumed { config: Some(config), uptime: 3600.0, ..Assumed::default() };
        wanted.parse::<Wanted>().unwrap().choose(&assumed)
    }

    #[test]
    fn t_switch_has_a_unit() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("2m", 120), ("1.5h", 5400), ("7w", 4_233_600)] {
            let wanted = format!("dynamic={text}").parse();
            assert_eq!(wanted, Ok(Wanted::Exactly(Protection::Dynamic { t_switch_s: seconds })), "{text}");
        }
        for (text, why) in [
            ("", "is no time"),
            ("-1", "out of range"),
            ("0.5", "whole seconds"),
            ("500ms", "is no unit of time"),
            ("137y", "136 years at most"),
            ("soon", "is no unit of time"),
        ] {
            let error = format!("dynamic={text}").parse::<Wanted>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn static_and_dynamic_are_strong_where_xor_is_never_enough() {
        for (wanted, told) in [("static", "static=strong"), ("dynamic", "dynamic=0")] {
            let Chosen { protection, reason, warning, .. } = chosen(wanted, Config::LowEnd);
            assert_eq!((protection.to_string().as_str(), warning), (told, None));
            assert!(reason.unwrap().starts_with("xor in memory is never enough for at most one silent"), "{wanted}");
        }
        let Chosen { protection, reason, .. } = chosen("dynamic", Config::Enterprise);
        assert!(protection.switches_after().is_some_and(|after| after.as_secs() > 7 * 7 * 86400), "{protection}");
        assert!(reason.unwrap().contains("until 7.18 weeks"));
        let Chosen { protection, reason, warning, .. } = chosen("static", Config::Enterprise);
        assert_eq!((protection, warning), (Protection::Static { strong: false }, None));
        assert!(reason.unwrap().starts_with("xor in memory is enough for at most one silent corruption"));
        let stable = Assumed { memory_fit: Some(Memory::of_fit(1e-12).unwrap()), ..Assumed::default() };
        let Chosen { protection, reason, .. } = Wanted::Dynamic.choose(&stable);
        assert_eq!(protection, Protection::Dynamic { t_switch_s: u32::MAX });
        assert!(reason.unwrap().contains("and t_switch is 136 years at most"));
        let told = Wanted::Exactly(Protection::Uniform).choose(&stable).reason.unwrap();
        assert!(told.starts_with("by the reliability model it keeps at most one silent corruption"), "{told}");
        let Chosen { reason, warning, .. } = Wanted::Exactly(Protection::Uniform).choose(&Assumed::default());
        assert_eq!((reason, warning), (None, None), "nothing was described");
    }

    #[test]
    fn what_is_said_is_done_and_warned_of() {
        for (wanted, config, warning) in [
            (
                "dynamic=92",
                Config::LowEnd,
                Some("dynamic=92 does not keep at most one silent corruption in a zettabyte read"),
            ),
            ("dynamic=600", Config::Consumer, Some("read for pages more than 92.4 s in memory")),
            ("none", Config::Server, Some("none does not keep")),
            ("dynamic=90", Config::Consumer, None),
            ("static=strong", Config::LowEnd, None),
            ("uniform=blake3", Config::LowEnd, None),
        ] {
            let chosen = chosen(wanted, config);
            assert_eq!(chosen.protection.to_string(), wanted);
            assert_eq!(chosen.reason.is_some(), chosen.warning.is_none(), "one of them is said");
            match (chosen.warning, warning) {
                (Some(text), Some(warning)) => assert!(text.contains(warning), "{text}"),
                (text, warning) => assert_eq!(text.as_deref(), warning, "{wanted}"),
            }
        }
        // What is left to the model gets a reason and a warning only where these are two things.
        let long = |wanted: Wanted| wanted.choose(&Assumed { config: Some(Config::Consumer), ..Assumed::default() });
        let Chosen { reason, warning, .. } = long(Wanted::Static);
        assert!(reason.is_none() && warning.unwrap().contains("for pages more than 92.4 s"));
        let Chosen { reason, warning, .. } = long(Wanted::Dynamic);
        assert!(reason.unwrap().contains("until 92.4 s") && warning.unwrap().contains("weeks in memory"));
        // An easier goal.
        let easy = Assumed { goal: Goal::Terabyte, config: Some(Config::Server), ..Assumed::default() };
        assert_eq!(Wanted::Exactly(Protection::Disk).choose(&Assumed { uptime: 60.0, ..easy }).warning, None);
    }
}
