//! One strike of a campaign once more: all that decides it in one line, which the campaign prints of what has broken a promise.

use super::coverage::Coverage;
use super::trial::{self, Twin};
use super::{Cell, Done, Kind, Trial, What, script};
use crate::enemy::reference::Reference;
use holdfast_naming::NameBug;
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::{LogicBug, MetaKind, Pattern, State};

/// Kinds are not called so.
const BUG: &str = "bug";
const NAME_BUG: &str = "name-bug";
const WRONG: &str = "wrong";

impl Trial {
    /// What [`again`] takes.
    pub fn replay(&self) -> String {
        let (script, event, choice) = self.replay;
        let what = match &self.cell.what {
            What::Field { kind, state, field } => {
                format!("{kind}:{}:{}:{field}", state.name(), self.cell.pattern.map_or("", Pattern::name))
            }
            What::Bug(bug) => format!("{BUG}:{bug}"),
            What::NameBug(bug) => format!("{NAME_BUG}:{bug}"),
            What::Wrong { kind, field } => format!("{WRONG}:{kind}:{field}"),
        };
        format!("{script}:{event}:{choice}:{what}")
    }
}

pub(super) fn named<T>(all: impl IntoIterator<Item = T>, name: &str, of: impl Fn(&T) -> String) -> Result<T, String> {
    all.into_iter().find(|one| of(one) == name).ok_or(format!("there is no {name}"))
}

fn what(kind: &str, rest: &[&str]) -> Result<(What, Option<Pattern>), String> {
    Ok(match (kind, rest) {
        (BUG, [bug]) => (What::Bug(named(LogicBug::ALL, bug, ToString::to_string)?), None),
        (NAME_BUG, [bug]) => (What::NameBug(named(NameBug::ALL, bug, ToString::to_string)?), None),
        (WRONG, [kind, field]) => {
            let kind = named(MetaKind::ALL, kind, ToString::to_string)?;
            (What::Wrong { kind, field: (*field).to_string() }, None)
        }
        (_, [state, pattern, field]) => {
            let kind = named(Kind::all(), kind, ToString::to_string)?;
            let state = named(State::ALL, state, |state| state.name().to_string())?;
            let pattern = named(Pattern::ALL, pattern, ToString::to_string)?;
            (What::Field { kind, state, field: (*field).to_string() }, Some(pattern))
        }
        _ => {
            return Err(
                "a strike is SCRIPT:MOMENT:CHOICE:KIND:STATE:PATTERN:FIELD, …:bug:NAME, or …:wrong:KIND:FIELD".into()
            );
        }
    })
}

/// Strikes as a line says that [`Trial::replay`] gave.
///
/// # Errors
/// In words: it is no such line, or there is nothing to strike.
pub fn again(line: &str, metadata: MetadataProtection) -> Result<Done, String> {
    let parts: Vec<&str> = line.split(':').collect();
    let [script, event, choice, kind, rest @ ..] = &parts[..] else {
        return Err(format!("{line}: it has too few parts"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let (script, event, choice) = (number(script)?, number(event)? as usize, number(choice)?);
    let (what, pattern) = what(kind, rest)?;
    if script >= script::SCRIPTS {
        return Err(format!("there are {} scripts", script::SCRIPTS));
    }
    let store = Reference::make_closed()?;
    let twin = Twin::run(&store, script, metadata)?;
    let (moment, _) = twin.survey.get(event).ok_or(format!("script {script} has no moment {event}"))?;
    let cell = Cell { what, pattern, moment: *moment };
    let trial = trial::run(&store, &twin, &cell, event, choice, metadata)?;
    let mut coverage = Coverage::default();
    coverage.there(&cell);
    coverage.struck(&cell);
    Ok(Done { trials: vec![trial], coverage, ..Done::default() })
}
