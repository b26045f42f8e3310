//! What requests have proved of names, from their admission to the recovery point: there it must be what the records of its objects say more than
//! those of the last one. The two sides come from different places. Naming makes out what its operations do to the attributes that it saw, and has
//! held that against the pages of directories; the records are what came down, by way of the operation log, attributes in memory and frozen ones,
//! the store's blocks and the device. So an object that is left out of the epoch is missed, and so are attributes that admission has set wrongly,
//! or that are of the epoch before, in what the sums are of. That the pages are those which requests have proved this with is a sum of its own
//! ([`pages`]).
//!
//! Nobody can make these sums anew when an epoch is begun anew: each word of them is there three times, and changes three times, each copy from
//! itself. One that has gone bad is put right and told as that (docs/decisions/0028-sums-that-are-kept-twice.md), and if no two are the same, the equations of
//! that epoch are passed over.
//!
//! Passed over, and counted as that ([`crate::CacheStatus::epochs_unproved`]), is what is said of names also in an epoch with a transaction that nobody has
//! audited, and in one with an object of which the record of the last recovery point cannot be read. The replay of the intent log has no transactions.

mod pages;

pub(crate) use pages::version;

use crate::Cache;
use crate::frozen;
use crate::state::FrozenEpoch;
use crate::thrice::Thrice;
use holdfast_integrity::SetDigest;
use holdfast_object::{Attributes, Epoch, Error, Found, ObjectId, ObjectKey, Op, Proved, Result};
use rustc_hash::FxHashSet;

const WHAT: &str = "sums of what requests have proved";

/// Words of the sums of names.
const WORDS: usize = 3 * Proved::NAMES.len();

/// Objects that the store is asked for at a time, so that what it says of all of them is never in memory at once.
const LOOKED_UP_AT_A_TIME: usize = 32;

/// See the module.
#[derive(Default)]
pub(crate) struct ProvedSums {
    names: [Thrice; WORDS],
    /// See [`pages`].
    pages: [Thrice; 3],
    /// Transactions of which nobody has proved anything.
    unaudited: Thrice,
}

fn add(words: &mut [Thrice], more: &[u64]) {
    words.iter_mut().zip(more).for_each(|(word, more)| word.add(*more));
}

/// Puts right what has gone bad. How many words that were, and whether all are known.
fn heal(words: &mut [Thrice]) -> (u64, bool) {
    let (mut renewed, mut is_known) = (0, true);
    for word in words {
        match word.heal() {
            Ok(is_renewed) => renewed += u64::from(is_renewed),
            Err(_all_differ) => is_known = false,
        }
    }
    (renewed, is_known)
}

impl ProvedSums {
    /// A transaction is admitted.
    #[inline]
    pub(crate) fn add(&mut self, proved: Option<Proved>) {
        match proved {
            // Most are writes to files.
            Some(Proved::NOTHING) => {}
            Some(proved) => add(&mut self.names, proved.sums().map(SetDigest::words).as_flattened()),
            None => self.unaudited.add(1),
        }
    }

    /// Whether all that was admitted has been audited, as far as that is known.
    fn is_audited(&self) -> bool {
        self.unaudited.get() == Some(0)
    }

    /// Puts right what has gone bad of names, and says how many words that were; what was proved, if it is known.
    fn healed(&mut self) -> (u64, Option<Proved>) {
        let of_all = [heal(&mut self.names), heal(std::slice::from_mut(&mut self.unaudited))];
        let word = |at: usize| self.names[at].get().unwrap_or(0);
        let sums = std::array::from_fn(|sum| SetDigest::from_words(std::array::from_fn(|at| word(3 * sum + at))));
        let is_known = of_all.iter().all(|(_, is_known)| *is_known);
        (of_all.iter().map(|(renewed, _)| renewed).sum(), is_known.then(|| Proved::from_sums(sums)))
    }

    /// A word, to be struck: those of names, those of pages, and how many transactions nobody has audited.
    pub(crate) fn word(&mut self, at: usize) -> &mut Thrice {
        self.names.iter_mut().chain(&mut self.pages).nth(at).unwrap_or(&mut self.unaudited)
    }
}

/// Objects that the epoch deletes and does not have otherwise, each once.
fn deleted(frozen: &FrozenEpoch) -> Vec<ObjectId> {
    let deleted = frozen.ops.iter().filter_map(|op| if let Op::Delete { id } = op { Some(*id) } else { None });
    let mut ids: Vec<ObjectId> = deleted.collect();
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|id| frozen.objects.binary_search_by_key(id, |object| object.id).is_err());
    ids
}

/// Objects that the last recovery point has not: what comes first of them in the epoch is that they are made.
fn made(frozen: &FrozenEpoch) -> FxHashSet<ObjectId> {
    let (mut made, mut others) = (FxHashSet::default(), FxHashSet::default());
    for op in frozen.ops.iter() {
        match op {
            Op::Create { id, .. } if !others.contains(id) => made.insert(*id),
            Op::Delete { id } if !made.contains(id) => others.insert(*id),
            _ => continue,
        };
    }
    made
}

impl Cache {
    /// What the store says of these objects, some at a time.
    pub(crate) fn attributes_of(
        &self,
        objects: Vec<ObjectId>,
    ) -> impl Iterator<Item = (ObjectKey, Result<Attributes>)> + use<'_> {
        let mut keys = objects.into_iter().map(|object| ObjectKey { domain: self.domain, object });
        std::iter::from_fn(move || {
            let some: Vec<ObjectKey> = keys.by_ref().take(LOOKED_UP_AT_A_TIME).collect();
            (!some.is_empty()).then(|| {
                let attributes = self.store.attributes_of(&some);
                some.into_iter().zip(attributes)
            })
        })
        .flatten()
    }

    /// What the last recovery point says of the objects that an epoch changes, before anything of the epoch is handed down; `None` if that is not to be
    /// judged, or cannot be.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: it has gone bad in the store's memory.
    pub(crate) fn names_before(&self, frozen: &FrozenEpoch) -> Result<Option<Proved>> {
        if !frozen.proved.is_audited() {
            return Ok(None);
        }
        let made = made(frozen);
        let mut before = Proved::NOTHING;
        let changed = frozen.objects.iter().map(|object| object.id).chain(deleted(frozen));
        for (key, attributes) in self.attributes_of(changed.filter(|id| !made.contains(id)).collect()) {
            match attributes {
                Ok(attributes) => before += Proved::by(key.object, &attributes),
                Err(Error::NoObject(_)) => {}
                Err(error @ Error::GivenUp(_)) => return Err(error),
                // A damaged store still takes changes: what they need of it they ask themselves.
                Err(error) => {
                    tracing::warn!(%error, epoch = frozen.epoch, "{WHAT} are held against no records");
                    return Ok(None);
                }
            }
        }
        Ok(Some(before))
    }

    /// Holds what requests have proved against the records: what those of objects that the epoch has say `now`, less what these and those of deleted ones
    /// said `before`. Whether that could be done.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: they say something else.
    pub(crate) fn compare_proved(&self, frozen: &mut FrozenEpoch, before: Option<Proved>, now: Proved) -> Result<bool> {
        let (renewed, proved) = frozen.proved.healed();
        self.note_proved(frozen.epoch, WHAT, renewed, proved.is_some());
        let (Some(before), Some(proved)) = (before, proved) else { return Ok(false) };
        let records = now - before;
        if proved == records {
            return Ok(true);
        }
        // It is not for an object that it is not about.
        self.verify_frozen(frozen)?;
        let why = frozen::not_as_proved(self.domain, frozen.epoch, proved, records);
        Err(self.store.give_up(Found::LogicBug, why))
    }

    /// Counts and tells what has gone bad of sums.
    fn note_proved(&self, epoch: Epoch, what: &str, renewed: u64, is_known: bool) {
        if renewed > 0 {
            self.state.write().note_numbers(what, renewed);
        }
        if !is_known {
            self.state.write().operations_renewed += 1;
            tracing::error!(epoch, "{what} in memory went bad in all copies: they are held against nothing");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
