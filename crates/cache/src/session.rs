//! What sessions hold of objects, and the answers they were given.

use holdfast_object::{Hold, Holds, ObjectId, RequestId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Answers remembered. A client asks again only for requests whose answer it has not got; it has far fewer under way.
const ANSWERS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Sessions {
    holds: FxHashMap<ObjectId, Holds>,
    answers: FxHashMap<RequestId, Vec<u8>>,
    answered: VecDeque<RequestId>,
}

impl Sessions {
    pub(crate) fn holds(&self, id: ObjectId) -> Holds {
        self.holds.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn hold(&mut self, id: ObjectId, hold: Hold, delta: i64) -> Holds {
        let holds = self.holds.entry(id).or_default();
        let count = match hold {
            Hold::Lookup => &mut holds.lookups,
            Hold::Open => &mut holds.opens,
        };
        *count = count.saturating_add_signed(delta);
        let now = *holds;
        if now.is_free() {
            self.holds.remove(&id);
        }
        now
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_go_below_zero() {
        let mut sessions = Sessions::default();
        let id = ObjectId(7);
        assert_eq!(sessions.hold(id, Hold::Lookup, 2).lookups, 2);
        assert_eq!(sessions.hold(id, Hold::Open, 1).opens, 1);
        assert!(sessions.hold(id, Hold::Lookup, -5) == Holds { lookups: 0, opens: 1 });
        assert!(sessions.hold(id, Hold::Open, -1).is_free());
        assert!(sessions.holds.is_empty());
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
