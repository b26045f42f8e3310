//! Strikes that wait until a recovery point is made: while it is put together there is metadata in memory that is there at no other time, and
//! nobody outside of the store is told of it.
//!
//! Where none waits, this costs a recovery point three loads.

use super::{Aim, Choice, Lab, LogicBug, MetaKind, Missed, State, Struck, Target};
use crate::inject::Random;
use crate::module::Module;
use holdfast_object::{ObjectStore, StoreCounters};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a strike waits for who reads metadata at that moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// The parts of a batch of the intent log that an ambush meets ([`MetaKind::LogBatch`]): its fields.
pub const BATCH_PARTS: [&str; 5] = ["entries", "sums", "head", "second head", "written head"];

/// When.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The store has got all that it consists of, and has put nothing of it together.
    Applied,
    /// All blocks that it changes are at hand, those of the store's own objects too, and have an address; none is complete.
    Staged,
    /// All of it is on the device but the superblock.
    Prepared,
    /// No recovery point: a batch goes into the intent log.
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
    /// When it may meet a recovery point: at the first of these at which there is something that it fits.
    pub fn moments(&self) -> &'static [Moment] {
        match self {
            Blow::Scribble(choice) if choice.kind == MetaKind::LogBatch => &[Moment::Appending],
            Blow::Scribble(choice) if choice.states == [State::Prepared] => &[Moment::Prepared],
            // Blocks of the object table, of the bitmap and of dead lists are changed when all others are.
            Blow::Scribble(_) => &[Moment::Applied, Moment::Staged],
            Blow::Bug { bug: LogicBug::LogHead, .. } => &[Moment::Appending],
            Blow::Bug { .. } => &[Moment::Applied],
        }
    }

    /// Whether it waits for what goes into the intent log, and not for a recovery point.
    pub fn is_of_log(&self) -> bool {
        self.moments() == [Moment::Appending]
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
    /// What the store had counted when it was laid.
    pub before: StoreCounters,
    /// What was done, each time.
    pub blown: Vec<Blown>,
    /// Why nothing was, the last time that nothing was.
    pub missed: Option<Missed>,
    /// What has been found since: why recovery points were given up, and what was put right.
    pub found: Vec<String>,
}

struct Laid {
    blow: Blow,
    times: u32,
    /// By the store's clock. Nothing falls into it any more then.
    until_ns: u64,
    /// The recovery point that is being made has been struck.
    is_struck: bool,
    fallen: Fallen,
}

/// What waits for the next recovery point.
#[derive(Default)]
pub(crate) struct Ambush {
    is_laid: AtomicBool,
    laid: Mutex<Option<Laid>>,
}

impl Ambush {
    /// Whether something may be done at the next moment that comes.
    pub(crate) fn is_laid(&self) -> bool {
        self.is_laid.load(Ordering::Relaxed)
    }

    /// Something has been found to be bad in memory, for which a recovery point was given up or not.
    pub(crate) fn found(&self, what: &impl std::fmt::Display) {
        if let Some(laid) = &mut *self.laid.lock() {
            laid.fallen.found.push(what.to_string());
        }
    }
}

impl Module {
    /// The recovery point that is being made has come to this. Called without any lock that a strike may need.
    pub(crate) fn fall_into_ambush(&self, moment: Moment) {
        if !self.disk().ambush.is_laid() {
            return;
        }
        let blow = {
            let mut laid = self.disk().ambush.laid.lock();
            let Some(laid) = laid.as_mut().filter(|laid| laid.is_open(self)) else { return };
            // Each attempt comes by here.
            laid.is_struck &= !matches!(moment, Moment::Applied | Moment::Appending);
            // A batch has to be put together first: see `batch_falls_into_ambush`.
            let is_too_early = moment == Moment::Appending && matches!(laid.blow, Blow::Scribble(_));
            if laid.is_struck || is_too_early || !laid.blow.moments().contains(&moment) {
                return;
            }
            laid.blow.clone()
        };
        let outcome = self.lab().patient(PATIENCE).blow(&blow);
        if let Some(laid) = &mut *self.disk().ambush.laid.lock() {
            match outcome {
                Ok(blown) => {
                    tracing::warn!(%blown, "metadata in memory was damaged on purpose");
                    laid.times = laid.times.saturating_sub(1);
                    laid.is_struck = true;
                    laid.fallen.blown.push(blown);
                }
                // What is there, and cannot be struck, says more than what is not there at a later moment.
                Err(Missed::NoSuch(_)) if laid.fallen.missed.is_some() => {}
                Err(missed) => laid.fallen.missed = Some(missed),
            }
        }
    }
}

impl Laid {
    fn is_open(&self, module: &Module) -> bool {
        self.times > 0 && module.clock.monotonic_ns() < self.until_ns
    }
}

impl Module {
    /// A batch of the intent log is being put together, and has this part so far. Nobody else can get hold of it.
    pub(crate) fn batch_falls_into_ambush(&self, part: &'static str, bytes: &mut [u8]) {
        if !self.disk().ambush.is_laid() {
            return;
        }
        let mut laid = self.disk().ambush.laid.lock();
        let Some(laid) = laid.as_mut().filter(|laid| laid.is_open(self)) else { return };
        let Laid { blow: Blow::Scribble(choice), times, fallen, .. } = laid else { return };
        let is_meant = choice.kind == MetaKind::LogBatch && choice.field.as_ref().is_none_or(|field| field == part);
        if !is_meant || bytes.is_empty() {
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

    /// Does it with each of the next attempts to make a recovery point, so many times, if they come within that time; one that was laid before is
    /// forgotten.
    pub fn lay_ambush(&self, blow: Blow, times: u32, within: Duration) {
        let module = self.module;
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = module.clock.monotonic_ns().saturating_add(within_ns);
        let fallen = Fallen { before: module.status().counters, ..Fallen::default() };
        *module.disk().ambush.laid.lock() = Some(Laid { blow, times, until_ns, is_struck: false, fallen });
        module.disk().ambush.is_laid.store(true, Ordering::Relaxed);
    }

    /// What has become so far of the ambush that is laid, if it is for this.
    pub fn look_at_ambush(&self, blow: &Blow) -> Option<Fallen> {
        let laid = self.module.disk().ambush.laid.lock();
        laid.as_ref().filter(|laid| laid.blow == *blow).map(|laid| laid.fallen.clone())
    }

    /// Takes the ambush away, and gives what has become of it.
    pub fn lift_ambush(&self) -> Fallen {
        let ambush = &self.module.disk().ambush;
        ambush.is_laid.store(false, Ordering::Relaxed);
        ambush.laid.lock().take().map(|laid| laid.fallen).unwrap_or_default()
    }
}
