//! What an epoch that is being written consists of beside pages and attributes, which have sums of their own: its operations, and which pages of
//! which objects. Somebody may write to it who must not, while it is handed down: so it is there twice, and compared before the epoch becomes a
//! recovery point. What the store was given by then may have followed from it: the epoch is begun anew with what has been put right.

use crate::involved::Operation;
use holdfast_integrity::{SetDigest, crc64};
use holdfast_object::{
    Corruption, DomainId, Epoch, Error, ObjectId, ObjectKey, Op, PageIndex, PinnedPage, Place, Proved, Result,
};
use std::ops::Deref;

/// Takes a number into a sum. Another number in one place is another sum, always.
pub(crate) fn fold(sum: u64, number: u64) -> u64 {
    (sum ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
}

fn encoded(ops: &[Op]) -> Result<Vec<u8>> {
    postcard::to_stdvec(ops).map_err(|error| Error::Protocol(format!("operations of an epoch: {error}")))
}

/// What is not what it was.
pub(crate) fn corruption(object: Option<ObjectId>, what: &str) -> Corruption {
    Corruption {
        // Which domain is not known here, nor needed.
        place: Place::default(),
        what: format!("{what} in memory, to which somebody has written who must not"),
        expected: "what was to become a recovery point".into(),
        got: object.map_or_else(|| "something else".into(), |object| format!("something else, of {object}")),
    }
}

/// The same, with what it is and was, and for which epoch it was last changed legally.
pub(crate) fn told(what: &str, differs: String, epoch: Epoch) -> Corruption {
    Corruption { got: format!("{differs}, last changed legally for epoch {epoch}"), ..corruption(None, what) }
}

/// A record says in these fields something else than was handed down.
pub(crate) fn not_as_handed_down(key: ObjectKey, epoch: Epoch, differs: &str) -> Corruption {
    let got = format!("not so: {differs} (a logic bug, to be reported; nothing of the epoch is a recovery point)");
    Corruption {
        place: Place { object: Some(key), ..Place::default() },
        what: format!("audit of epoch {epoch}: \"attributes\""),
        expected: "attributes as they were handed down, in the records of the recovery point".into(),
        got,
    }
}

/// Records say something else of names than requests have proved: how much more there is of what by the ones and by the others.
pub(crate) fn not_as_proved(domain: DomainId, epoch: Epoch, proved: Proved, records: Proved) -> Corruption {
    let (mut names, mut expected, mut got, mut object) = (Vec::new(), Vec::new(), Vec::new(), None);
    let sums = Proved::NAMES.into_iter().zip(proved.sums()).zip(records.sums());
    for ((name, proved), records) in sums.filter(|((_, proved), records)| proved != records) {
        names.push(format!("\"{name} proved\""));
        expected.push(format!("{proved} {name} more than before, as requests have proved"));
        let only = (proved - records).only().filter(|_| name != "names");
        // The lower part of a number with a kind is the object.
        let only = only.map(|number| ObjectId(number & ObjectId::MAX.0));
        object = object.or(only);
        let only = only.map_or_else(String::new, |id| format!(", which differ in {id} only"));
        got.push(format!("{records} by the records of the recovery point{only}"));
    }
    Corruption {
        place: Place { object: object.map(|object| ObjectKey { domain, object }), ..Place::default() },
        what: format!("audit of epoch {epoch}: {}", names.join(", ")),
        expected: expected.join(" | "),
        got: format!("{} (a logic bug, to be reported; nothing of the epoch is a recovery point)", got.join(" | ")),
    }
}

/// The store says that it has written other pages of metadata than requests have put; which one, if it is one.
pub(crate) fn not_as_put(
    domain: DomainId,
    epoch: Epoch,
    put: SetDigest,
    stored: SetDigest,
    only: Option<(ObjectId, PageIndex)>,
) -> Corruption {
    let differs = only.map_or_else(String::new, |(id, index)| format!(", which differ in page {index} of {id} only"));
    let object = only.map(|(object, _)| ObjectKey { domain, object });
    Corruption {
        place: Place { object, index: only.map(|(_, index)| index), ..Place::default() },
        what: format!("audit of epoch {epoch}, domain {}: \"pages proved\"", domain.0),
        expected: format!("{put} pages of directories, links and attributes, as requests have put them"),
        got: format!(
            "{stored} by what was written{differs} (a logic bug, to be reported; nothing of the epoch is a recovery point)"
        ),
    }
}

/// In which operation those that have gone bad differ first.
fn first_that_differs(good: &[Op], bad: &[Op]) -> String {
    let same = good.iter().zip(bad).take_while(|(good, bad)| good == bad).count();
    let name = |ops: &[Op]| ops.get(same).map_or_else(|| "none".into(), |op| Operation(op).to_string());
    let (good, bad) = (name(good), name(bad));
    match good == bad {
        true => format!("{bad} (operation {same}) with other values"),
        false => format!("{bad} (operation {same}) and not {good}"),
    }
}

/// The structural operations of an epoch, in admission order.
pub(crate) struct FrozenOps {
    ops: Vec<Op>,
    /// The same, encoded.
    twin: Vec<u8>,
    /// CRC-64 of the twin.
    sum: u64,
}

impl FrozenOps {
    pub(crate) fn new(ops: Vec<Op>) -> Result<FrozenOps> {
        let twin = encoded(&ops)?;
        Ok(FrozenOps { ops, sum: crc64(&twin), twin })
    }

    /// Puts right what has gone bad. Of operations that were not what they were when they were frozen, which.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: both have gone bad.
    pub(crate) fn heal(&mut self) -> Result<Option<String>> {
        let now = encoded(&self.ops)?;
        if now == self.twin {
            return Ok(None);
        }
        if crc64(&now) == self.sum {
            self.twin = now;
            return Ok(None);
        }
        let good: Option<Vec<Op>> =
            Some(&self.twin).filter(|twin| crc64(twin) == self.sum).and_then(|twin| postcard::from_bytes(twin).ok());
        let good =
            good.ok_or_else(|| Error::Corrupt(Box::new(corruption(None, "operations of an epoch, and their twin,"))))?;
        let differs = first_that_differs(&good, &self.ops);
        self.ops = good;
        Ok(Some(differs))
    }

    /// Makes another operation of one, on purpose.
    pub(crate) fn strike(&mut self, change: impl FnOnce(&mut [Op])) {
        change(&mut self.ops);
    }
}

impl Deref for FrozenOps {
    type Target = [Op];

    fn deref(&self) -> &[Op] {
        &self.ops
    }
}

/// Which pages of which object there are, once more.
pub(crate) struct Places {
    id: ObjectId,
    indices: Box<[PageIndex]>,
    sum: u64,
}

fn sum_of_places(id: ObjectId, indices: impl Iterator<Item = PageIndex>) -> u64 {
    indices.fold(fold(0, id.0), fold)
}

impl Places {
    pub(crate) fn of(id: ObjectId, pages: &[(PageIndex, PinnedPage)]) -> Places {
        let indices: Box<[PageIndex]> = pages.iter().map(|(index, _)| *index).collect();
        Places { id, sum: sum_of_places(id, indices.iter().copied()), indices }
    }

    /// Puts right what has gone bad. Of object and pages that were not what they were when they were frozen, which.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: both have gone bad.
    pub(crate) fn heal(&mut self, id: &mut ObjectId, pages: &mut [(PageIndex, PinnedPage)]) -> Result<Option<String>> {
        let now = || pages.iter().map(|(index, _)| *index);
        if *id == self.id && now().eq(self.indices.iter().copied()) {
            return Ok(None);
        }
        if sum_of_places(*id, now()) == self.sum {
            *self = Places::of(*id, pages);
            return Ok(None);
        }
        if sum_of_places(self.id, self.indices.iter().copied()) != self.sum {
            return Err(Error::Corrupt(Box::new(corruption(Some(*id), "places of pages, and their twin,"))));
        }
        let differing = now().zip(&self.indices).find(|(page, index)| page != *index);
        let differs = match differing {
            Some((page, index)) => format!("page {page} of {id} and not {index} of {}", self.id),
            None => format!("pages of {id} and not of {}", self.id),
        };
        *id = self.id;
        pages.iter_mut().zip(&self.indices).for_each(|((page, _), index)| *page = *index);
        Ok(Some(differs))
    }
}

/// Of the operations that the store is given, before and after it has them.
pub(crate) fn sum_of_batch(ops: &[Op]) -> Result<u64> {
    ops.iter().try_fold(0, |sum, op| match op {
        Op::Write { id, fragments, size_min } => {
            let sum = fold(fold(sum, id.0), *size_min);
            Ok(fragments.iter().fold(sum, |sum, fragment| {
                let page = fragment.page;
                let part = u64::from(fragment.start) << 16 | u64::from(fragment.end);
                let frame = u64::from(page.frame) << 32 | u64::from(page.generation);
                [fragment.index, part, frame, page.checksum].into_iter().fold(sum, fold)
            }))
        }
        op => Ok(fold(sum, crc64(&encoded(std::slice::from_ref(op))?))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::Checksum;
    use holdfast_object::{Arena, Fragment, PAGE_SIZE};

    fn delete(id: u64) -> Op {
        Op::Delete { id: ObjectId(id) }
    }

    #[test]
    fn operations_that_go_bad_are_put_right() {
        let frozen = || FrozenOps::new(vec![delete(3), delete(5)]).unwrap();
        let mut ops = frozen();
        assert_eq!(ops.heal().unwrap(), None);
        ops.strike(|ops| ops[0] = delete(2));
        assert_eq!(ops.heal().unwrap().as_deref(), Some("delete #2 (operation 0) and not delete #3"));
        assert_eq!(ops[..], [delete(3), delete(5)]);
        ops.twin[2] ^= 1;
        assert_eq!(ops.heal().unwrap(), None, "the operations are what they were");
        ops.strike(|ops| ops[1] = delete(4));
        assert!(ops.heal().unwrap().is_some(), "the twin had been made anew");
        ops.strike(|ops| ops.swap(0, 1));
        ops.twin[0] ^= 1;
        assert!(matches!(ops.heal(), Err(Error::Corrupt(_))));
    }

    #[test]
    fn places_that_go_bad_are_put_right() {
        let arena = Arena::new(4, 0).unwrap();
        let page = || arena.allocate().expect("a frame").publish(Checksum::none());
        let (mut id, mut pages) = (ObjectId(7), vec![(4, page()), (6, page())]);
        let mut places = Places::of(id, &pages);
        assert_eq!(places.heal(&mut id, &mut pages).unwrap(), None);
        (id, pages[1].0) = (ObjectId(6), 4);
        let told = places.heal(&mut id, &mut pages).unwrap();
        assert_eq!(told.as_deref(), Some("page 4 of #6 and not 6 of #7"));
        assert_eq!((id, pages[0].0, pages[1].0), (ObjectId(7), 4, 6));
        places.indices[0] = 5;
        assert_eq!(places.heal(&mut id, &mut pages).unwrap(), None, "the pages are what they were");
        (places.id, pages[0].0) = (ObjectId(3), 3);
        assert!(matches!(places.heal(&mut id, &mut pages), Err(Error::Corrupt(_))));
    }

    #[test]
    fn each_bit_of_a_batch_is_in_its_sum() {
        let arena = Arena::new(1, 0).unwrap();
        let page = arena.allocate().expect("a frame").publish(Checksum::crc64(9)).page();
        let write = |change: fn(&mut Fragment), size_min| {
            let mut fragment = Fragment { index: 3, start: 0, end: PAGE_SIZE as u16, page };
            change(&mut fragment);
            sum_of_batch(&[delete(1), Op::Write { id: ObjectId(2), fragments: vec![fragment], size_min }]).unwrap()
        };
        let before = write(|_| (), 5);
        for changed in [
            write(|_| (), 4),
            write(|fragment| fragment.index ^= 1 << 40, 5),
            write(|fragment| fragment.start ^= 1, 5),
            write(|fragment| fragment.end ^= 2, 5),
            write(|fragment| fragment.page.frame ^= 4, 5),
            write(|fragment| fragment.page.generation ^= 8, 5),
            write(|fragment| fragment.page.checksum ^= 16, 5),
        ] {
            assert_ne!(changed, before);
        }
        assert_ne!(sum_of_batch(&[delete(1)]).unwrap(), sum_of_batch(&[delete(3)]).unwrap());
    }
}
