//! Which transactions an epoch has, for the report of one that is given up: whoever looks for a logic bug begins with them.

use crate::state::{FrozenEpoch, FrozenObject};
use holdfast_object::{ObjectId, Op};
use std::fmt;

/// Most operations, and most objects, that are told.
const TOLD_MAX: usize = 24;

/// The transactions of an epoch: in the order in which they were admitted what is more than new contents and attributes, of those the outcome. First
/// all that is about the objects in question, however late it came.
pub(crate) struct Involved<'a> {
    pub(crate) frozen: &'a FrozenEpoch,
    /// Objects that the failure is about, as far as the store can tell.
    pub(crate) suspects: &'a [ObjectId],
}

impl Involved<'_> {
    fn is_about(&self, op: &Op) -> bool {
        let is_source = matches!(op, Op::Copy { source, .. } if self.suspects.contains(source));
        is_source || self.suspects.contains(&op.target())
    }
}

impl fmt::Display for Involved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrozenEpoch { sequence, ops, objects, .. } = self.frozen;
        match sequence.get() {
            Some(sequence) => write!(f, "all up to transaction {sequence}")?,
            None => f.write_str("all up to a transaction whose number has gone bad")?,
        }
        let outcome = |f: &mut fmt::Formatter<'_>, object: &FrozenObject| match object.pages.len() {
            0 => write!(f, "attributes of {}", object.id),
            pages => write!(f, "{pages} pages of {}", object.id),
        };
        if !self.suspects.is_empty() {
            list(f, "objects in question", self.suspects, |f, id| write!(f, "{id}"))?;
            let about: Vec<&Op> = ops.iter().filter(|op| self.is_about(op)).collect();
            list(f, "operations on them", &about, |f, op| Operation(op).fmt(f))?;
            let changed: Vec<&FrozenObject> =
                objects.iter().filter(|object| self.suspects.contains(&object.id)).collect();
            list(f, "of them changed", &changed, |f, object| outcome(f, object))?;
            f.write_str("; of all")?;
        }
        list(f, "operations", ops, |f, op| Operation(op).fmt(f))?;
        list(f, "objects changed", objects, outcome)
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
    use crate::thrice::Thrice;
    use holdfast_object::{Attributes, Class, Kind, Timestamp};

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
            proved: Default::default(),
            objects: vec![object(5)],
            uncut: Default::default(),
            unsettled: Vec::new(),
            errors: 0,
        };
        assert_eq!(
            Involved { frozen: &epoch, suspects: &[] }.to_string(),
            "all up to transaction 9; 2 operations: create #5 (Regular), delete #4; 1 objects changed: attributes of #5"
        );
        epoch.ops = FrozenOps::new((0..100).map(|id| Op::Truncate { id: ObjectId(id), size: 7 }).collect()).unwrap();
        epoch.objects.clear();
        let told = Involved { frozen: &epoch, suspects: &[] }.to_string();
        assert!(told.contains("; 100 operations: cut #0 to 7 bytes, cut #1"), "{told}");
        assert!(told.ends_with("cut #23 to 7 bytes, and 76 more; 0 objects changed"), "{told}");
        epoch.objects.push(object(99));
        let told = Involved { frozen: &epoch, suspects: &[ObjectId(99)] }.to_string();
        let first = "all up to transaction 9; 1 objects in question: #99; 1 operations on them: cut #99 to 7 bytes; 1 of them changed: attributes of #99; of all; 100 operations: cut #0";
        assert!(told.starts_with(first), "{told}");
    }
}
