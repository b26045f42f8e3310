//! Strikes that wait until a recovery point is made: while it is put together there is metadata in memory that is there at no other time, and
//! nobody outside of the store is told of it.
//!
//! Where none waits, this costs a recovery point two loads.

use super::{Aim, Choice, Lab, LogicBug, MetaKind, Missed, State, Struck, Target};
use crate::inject::Random;
use crate::module::Module;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a strike waits for who reads metadata at that moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// When.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The store has got all that it consists of, and has put nothing of it together.
    Applied,
    /// All of it is on the device but the superblock.
    Prepared,
    /// No recovery point: a batch of the intent log is put together.
    Appending,
}

/// What is done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blow {
    /// Something is written over, as nobody may.
    Scribble(Choice),
    /// Something is done wrongly, by who may.
    Bug {
        /// What.
        bug: LogicBug,
        /// Decides between the objects and blocks to which it can happen.
        seed: u64,
    },
}

impl Blow {
    /// When it meets a recovery point.
    pub fn moment(&self) -> Moment {
        match self {
            Blow::Scribble(choice) if choice.kind == MetaKind::LogBatch => Moment::Appending,
            Blow::Scribble(choice) if choice.states == [State::Prepared] => Moment::Prepared,
            _ => Moment::Applied,
        }
    }
}

/// What was done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blown {
    /// Something was written over.
    Scribble(Struck),
    /// Something was done wrongly: what, and what it is like now.
    Bug(LogicBug, String),
}

impl std::fmt::Display for Blown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Blown::Scribble(struck) => struck.fmt(f),
            Blown::Bug(bug, what) => write!(f, "{bug}: {what}"),
        }
    }
}

/// What has become of an ambush.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fallen {
    /// What was done, each time.
    pub blown: Vec<Blown>,
    /// Why nothing was, the last time that nothing was.
    pub missed: Option<Missed>,
    /// Why recovery points were given up since, each time.
    pub found: Vec<String>,
}

struct Laid {
    blow: Blow,
    times: u32,
    fallen: Fallen,
}

/// What waits for the next recovery point.
#[derive(Default)]
pub(crate) struct Ambush {
    is_laid: AtomicBool,
    laid: Mutex<Option<Laid>>,
}

impl Ambush {
    /// A recovery point was given up.
    pub(crate) fn found(&self, why: &impl std::fmt::Display) {
        if let Some(laid) = &mut *self.laid.lock() {
            laid.fallen.found.push(why.to_string());
        }
    }
}

impl Module {
    /// The recovery point that is being made has come to this. Called without any lock.
    pub(crate) fn fall_into_ambush(&self, moment: Moment) {
        if !self.ambush.is_laid.load(Ordering::Relaxed) {
            return;
        }
        let blow = match &mut *self.ambush.laid.lock() {
            Some(laid) if laid.times > 0 && laid.blow.moment() == moment => {
                laid.times -= 1;
                laid.blow.clone()
            }
            _ => return,
        };
        let outcome = self.lab().patient(PATIENCE).blow(&blow);
        if let Some(laid) = &mut *self.ambush.laid.lock() {
            match outcome {
                Ok(blown) => {
                    tracing::warn!(%blown, "metadata in memory was damaged on purpose");
                    laid.fallen.blown.push(blown);
                }
                Err(missed) => laid.fallen.missed = Some(missed),
            }
        }
    }
}

impl Module {
    /// A batch of the intent log is being put together, and has this part so far. Nobody else can get hold of it.
    pub(crate) fn batch_falls_into_ambush(&self, part: &'static str, bytes: &mut [u8]) {
        if !self.ambush.is_laid.load(Ordering::Relaxed) {
            return;
        }
        let mut laid = self.ambush.laid.lock();
        let Some(Laid { blow: Blow::Scribble(choice), times, fallen }) = &mut *laid else { return };
        let is_meant = choice.kind == MetaKind::LogBatch && choice.field.as_ref().is_none_or(|field| field == part);
        if *times == 0 || !is_meant || bytes.is_empty() {
            return;
        }
        *times -= 1;
        let Choice { offset, length, pattern, bytes: new, seed, .. } = choice.clone();
        let (aim, target) = (Aim { field: None, offset, length, pattern, bytes: new }, Target::of_batch());
        match aim.bits(&[], bytes, &mut Random::new(seed)) {
            Ok((at, flipped)) => {
                let place = &mut bytes[at..at + flipped.len()];
                let before = place.to_vec();
                place.iter_mut().zip(flipped).for_each(|(byte, bits)| *byte ^= bits);
                let (field, after) = (part.to_string(), place.to_vec());
                fallen.blown.push(Blown::Scribble(Struck { target, offset: at, field, before, after }));
            }
            Err(_) => fallen.missed = Some(Missed::Nothing(target)),
        }
    }
}

impl Lab<'_> {
    /// Does it now.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn blow(&self, blow: &Blow) -> Result<Blown, Missed> {
        match blow {
            Blow::Scribble(choice) => self.strike_chosen(choice).map(Blown::Scribble),
            Blow::Bug { bug, seed } => match self.logic_bug(*bug, *seed) {
                Ok(Some(told)) => Ok(Blown::Bug(*bug, told)),
                Ok(None) => Err(Missed::NothingFor(*bug)),
                Err(error) => Err(Missed::Unread(error.to_string())),
            },
        }
    }

    /// Does it with each of the next attempts to make a recovery point, so many times; one that was laid before is forgotten.
    pub fn lay_ambush(&self, blow: Blow, times: u32) {
        let ambush = &self.module.ambush;
        *ambush.laid.lock() = Some(Laid { blow, times, fallen: Fallen::default() });
        ambush.is_laid.store(true, Ordering::Relaxed);
    }

    /// Takes the ambush away, and gives what has become of it.
    pub fn lift_ambush(&self) -> Fallen {
        let ambush = &self.module.ambush;
        ambush.is_laid.store(false, Ordering::Relaxed);
        ambush.laid.lock().take().map(|laid| laid.fallen).unwrap_or_default()
    }
}
