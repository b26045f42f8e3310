//! Which transactions an epoch has, for the report of one that is given up: whoever looks for a logic bug begins with them.

use crate::state::FrozenEpoch;
use holdfast_object::Op;
use std::fmt;

/// Most operations, and most objects, that are told.
const TOLD_MAX: usize = 24;

/// The transactions of an epoch: in the order in which they were admitted what is more than new contents and attributes, of those the outcome.
pub(crate) struct Involved<'a>(pub(crate) &'a FrozenEpoch);

impl fmt::Display for Involved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrozenEpoch { sequence, ops, objects, .. } = self.0;
        match sequence.get() {
            Some(sequence) => write!(f, "all up to transaction {sequence}")?,
            None => f.write_str("all up to a transaction whose number has gone bad")?,
        }
        list(f, "operations", ops, |f, op| Operation(op).fmt(f))?;
        list(f, "objects changed", objects, |f, object| match object.pages.len() {
            0 => write!(f, "attributes of {}", object.id),
            pages => write!(f, "{pages} pages of {}", object.id),
        })
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    all: &[T],
    tell: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    write!(f, "; {} {what}", all.len())?;
    for (at, one) in all.iter().take(TOLD_MAX).enumerate() {
        f.write_str(if at == 0 { ": " } else { ", " })?;
        tell(f, one)?;
    }
    match all.len().saturating_sub(TOLD_MAX) {
        0 => Ok(()),
        more => write!(f, ", and {more} more"),
    }
}

/// An operation, in words.
pub(crate) struct Operation<'a>(pub(crate) &'a Op);

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0.target();
        match self.0 {
            Op::Create { attributes, .. } => write!(f, "create {id} ({:?})", attributes.kind),
            Op::Delete { .. } => write!(f, "delete {id}"),
            Op::Write { fragments, .. } => write!(f, "write {} pages of {id}", fragments.len()),
            Op::Adopt { pages, .. } => write!(f, "adopt {} pages of {id}", pages.len()),
            Op::Lose { pages, .. } => write!(f, "lose {} pages of {id}", pages.len()),
            Op::Truncate { size, .. } => write!(f, "cut {id} to {size} bytes"),
            Op::Zero { offset, length, .. } => write!(f, "zero {length} bytes of {id} from {offset}"),
            Op::SetAttributes { .. } => write!(f, "attributes of {id}"),
            Op::Copy { source, pages, .. } => write!(f, "copy {pages} pages of {source} to {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::{FrozenOps, Places};
    use crate::sealed_attributes::SealedAttributes;
    use crate::state::FrozenObject;
    use crate::thrice::Thrice;
    use holdfast_object::{Attributes, Class, Kind, ObjectId, Timestamp};

    #[test]
    fn operations_come_in_order_and_not_too_many() {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let object = |id| FrozenObject {
            id: ObjectId(id),
            attributes: SealedAttributes::new(attributes.clone()),
            pages: Vec::new(),
            places: Places::of(ObjectId(id), &[]),
            twins: Vec::new(),
        };
        let mut epoch = FrozenEpoch {
            epoch: 3,
            sequence: Thrice::new(9),
            ops: FrozenOps::new(vec![
                Op::Create { id: ObjectId(5), attributes: attributes.clone() },
                Op::Delete { id: ObjectId(4) },
            ])
            .unwrap(),
            objects: vec![object(5)],
            unsettled: Vec::new(),
            errors: 0,
        };
        assert_eq!(
            Involved(&epoch).to_string(),
            "all up to transaction 9; 2 operations: create #5 (Regular), delete #4; 1 objects changed: attributes of #5"
        );
        epoch.ops = FrozenOps::new((0..100).map(|id| Op::Truncate { id: ObjectId(id), size: 7 }).collect()).unwrap();
        epoch.objects.clear();
        let told = Involved(&epoch).to_string();
        assert!(told.contains("; 100 operations: cut #0 to 7 bytes, cut #1"), "{told}");
        assert!(told.ends_with("cut #23 to 7 bytes, and 76 more; 0 objects changed"), "{told}");
    }
}
