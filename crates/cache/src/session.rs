//! What sessions hold of objects, and the answers they were given.

use holdfast_object::{Hold, Holds, ObjectId, RequestId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Answers remembered. A client asks again only for requests whose answer it has not got; it has far fewer under way.
const ANSWERS_MAX: usize = 4096;

/// Parts of the table of holds: when it grows, only one part at a time is there twice.
const PARTS: usize = 64;

/// What nearly all holds are: the kernel can hold millions of files, and this is in memory for each.
#[derive(Clone, Copy)]
struct Few {
    lookups: u32,
    opens: u32,
}

/// Invariant: an object is in `few` or in `many`, not in both; and in neither while nothing holds it.
pub(crate) struct Sessions {
    few: Vec<FxHashMap<ObjectId, Few>>,
    /// Those whose counts do not fit.
    many: FxHashMap<ObjectId, Holds>,
    answers: FxHashMap<RequestId, Vec<u8>>,
    answered: VecDeque<RequestId>,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let few = (0..PARTS).map(|_| FxHashMap::default()).collect();
        Sessions { few, many: FxHashMap::default(), answers: FxHashMap::default(), answered: VecDeque::new() }
    }
}

impl Sessions {
    pub(crate) fn holds(&self, id: ObjectId) -> Holds {
        match self.few[part(id)].get(&id) {
            Some(few) => Holds { lookups: few.lookups.into(), opens: few.opens.into() },
            None => self.many.get(&id).copied().unwrap_or_default(),
        }
    }

    pub(crate) fn hold(&mut self, id: ObjectId, hold: Hold, delta: i64) -> Holds {
        let mut holds = self.holds(id);
        let count = match hold {
            Hold::Lookup => &mut holds.lookups,
            Hold::Open => &mut holds.opens,
        };
        *count = count.saturating_add_signed(delta);
        let few = &mut self.few[part(id)];
        match (u32::try_from(holds.lookups), u32::try_from(holds.opens)) {
            (Ok(0), Ok(0)) => {
                few.remove(&id);
                self.many.remove(&id);
            }
            (Ok(lookups), Ok(opens)) => {
                few.insert(id, Few { lookups, opens });
                self.many.remove(&id);
            }
            _ => {
                few.remove(&id);
                self.many.insert(id, holds);
            }
        }
        holds
    }

    /// Everything that something holds.
    pub(crate) fn held(&self) -> Vec<ObjectId> {
        self.few.iter().flat_map(|part| part.keys()).chain(self.many.keys()).copied().collect()
    }

    pub(crate) fn answer(&self, request: RequestId) -> Option<Vec<u8>> {
        self.answers.get(&request).cloned()
    }

    pub(crate) fn note(&mut self, request: RequestId, answer: Vec<u8>) {
        if self.answers.insert(request, answer).is_none() {
            self.answered.push_back(request);
        }
        if self.answered.len() > ANSWERS_MAX
            && let Some(oldest) = self.answered.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }
}

fn part(id: ObjectId) -> usize {
    (id.0 % PARTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_any_size() {
        let mut sessions = Sessions::default();
        let id = ObjectId(65);
        let step = i64::from(u32::MAX);
        for times in 1..4 {
            assert_eq!(sessions.hold(id, Hold::Lookup, step).lookups, times * u64::from(u32::MAX));
        }
        assert_eq!(sessions.hold(id, Hold::Open, 1), Holds { lookups: 3 * u64::from(u32::MAX), opens: 1 });
        assert_eq!((sessions.few[1].len(), sessions.many.len()), (0, 1));
        assert_eq!(sessions.held(), [id]);
        assert_eq!(sessions.hold(id, Hold::Lookup, -3 * step + 2), Holds { lookups: 2, opens: 1 });
        assert_eq!((sessions.few[1].len(), sessions.many.len()), (1, 0));
        assert_eq!(sessions.held(), [id]);
        assert_eq!(sessions.holds(id), Holds { lookups: 2, opens: 1 });
    }

    #[test]
    fn counts_do_not_go_below_zero() {
        let mut sessions = Sessions::default();
        let id = ObjectId(7);
        assert_eq!(sessions.hold(id, Hold::Lookup, 2).lookups, 2);
        assert_eq!(sessions.hold(id, Hold::Open, 1).opens, 1);
        assert!(sessions.hold(id, Hold::Lookup, -5) == Holds { lookups: 0, opens: 1 });
        assert!(sessions.hold(id, Hold::Open, -1).is_free());
        assert!(sessions.many.is_empty() && sessions.few.iter().all(FxHashMap::is_empty));
    }

    #[test]
    fn only_the_newest_answers_are_kept() {
        let mut sessions = Sessions::default();
        for unique in 0..=ANSWERS_MAX as u64 {
            sessions.note(RequestId { client: 1, unique }, unique.to_le_bytes().to_vec());
        }
        assert_eq!(sessions.answer(RequestId { client: 1, unique: 0 }), None);
        let last = ANSWERS_MAX as u64;
        assert_eq!(sessions.answer(RequestId { client: 1, unique: last }), Some(last.to_le_bytes().to_vec()));
        assert_eq!(sessions.answers.len(), ANSWERS_MAX);
    }
}
