//! What is noted with a transaction, so that a request that comes twice gets the same answer twice.
//!
//! One byte for the form, then a 64-bit little-endian number.

use super::{Namespace, Request};
use crate::error::{Error, Result};
use holdfast_object::{self as object, ObjectId, Outcome};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// It was done.
    Nothing,
    /// This object was made or named.
    Object(ObjectId),
    /// So many bytes were written.
    Count(u64),
}

impl Answer {
    pub(super) fn encode(self) -> Vec<u8> {
        let (form, number) = match self {
            Answer::Nothing => (0, 0),
            Answer::Object(id) => (1, id.0),
            Answer::Count(count) => (2, count),
        };
        let mut bytes = vec![form];
        bytes.extend_from_slice(&u64::to_le_bytes(number));
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Answer> {
        let unknown = || Error::Object(object::Error::Protocol(format!("unknown answer {bytes:?}")));
        let (&form, number) = bytes.split_first().ok_or_else(unknown)?;
        let number = u64::from_le_bytes(number.try_into().map_err(|_| unknown())?);
        match form {
            0 if number == 0 => Ok(Answer::Nothing),
            1 => ObjectId::from_raw(number).map(Answer::Object).ok_or_else(unknown),
            2 => Ok(Answer::Count(number)),
            _ => Err(unknown()),
        }
    }

    /// The object of an answer to a request that makes or names one.
    pub(super) fn object(self) -> Result<ObjectId> {
        match self {
            Answer::Object(id) => Ok(id),
            other => {
                Err(Error::Object(object::Error::Protocol(format!("answer {other:?} to a request for an object"))))
            }
        }
    }

    /// The bytes written.
    pub(super) fn count(self) -> Result<u64> {
        match self {
            Answer::Count(count) => Ok(count),
            other => Err(Error::Object(object::Error::Protocol(format!("answer {other:?} to a write")))),
        }
    }
}

impl Namespace {
    /// The answer that the request was given when it came before.
    pub(super) fn earlier(&self, request: &Request) -> Result<Option<Answer>> {
        let Some(id) = request.id else { return Ok(None) };
        self.cache.answer(id).map(|bytes| Answer::decode(&bytes)).transpose()
    }
}

/// The earlier answer if the request turned out to have been done.
pub(super) fn repeated(outcome: Outcome) -> Result<Option<Answer>> {
    match outcome {
        Outcome::Done { .. } => Ok(None),
        Outcome::Repeated { answer } => Answer::decode(&answer).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_go_round_and_nonsense_is_refused() {
        for answer in [Answer::Nothing, Answer::Object(ObjectId::MAX), Answer::Count(u64::MAX)] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
        for bytes in [&[][..], &[0], &[9; 9], &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[0; 10]] {
            assert!(Answer::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
