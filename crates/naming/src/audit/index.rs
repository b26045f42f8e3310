//! What a transaction changes in the pages of a directory, counted from their bytes: those stored against those that will be.
//!
//! It reads pages in a way of its own, and only what differs between the two: nothing here is shared with the code that makes them but the
//! format.

use crate::directory::layout::*;
use holdfast_integrity::SetDigest;
use holdfast_object::{Kind, NamePlace, ObjectId};
use zerocopy::FromBytes;

/// A number for an entry, that of the object with its kind. Ids have 48 bits.
pub(crate) fn link_number(object: ObjectId, kind: u8) -> u64 {
    object.0 | u64::from(kind) << 48
}

/// A number for three numbers, such that others are most unlikely to have the same.
pub(crate) fn mixed(numbers: [u64; 3]) -> u64 {
    numbers.into_iter().fold(0, |sum: u64, number| {
        // The finalizer of SplitMix64.
        let mut mixed = sum.rotate_left(29) ^ number;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}

/// A number for a name of an object.
pub(crate) fn name_number(object: ObjectId, place: NamePlace) -> u64 {
    mixed([object.0, place.directory.0, place.key])
}

/// A name that a request has put into a directory, or taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    pub(crate) object: ObjectId,
    pub(crate) kind: Kind,
    pub(crate) key: u64,
    pub(crate) is_put: bool,
}

/// What is in the changed pages of a directory less what was in them.
pub(crate) struct IndexChanges {
    pub(super) directory: ObjectId,
    /// Entries.
    pub(super) entries: u64,
    /// Entries as the heads of nodes count them.
    pub(super) entries_counted: u64,
    /// Entries of all but directories, by [`link_number`].
    pub(super) links: SetDigest,
    /// Objects of entries of directories.
    pub(super) subdirectories: SetDigest,
    /// Names, by [`name_number`], with their kind.
    pub(super) names: SetDigest,
    /// Entries put under a key that is not that of their name, and those gone. A damaged store may have some, which move with their page.
    pub(super) keys_wrong: u64,
    pub(super) keys_wrong_gone: u64,
    /// Pages that branches name.
    pub(super) branches: SetDigest,
    /// Nodes below the root.
    pub(super) nodes: SetDigest,
    /// Nodes.
    pub(super) nodes_count: u64,
    /// Pages in the list of free pages.
    pub(super) free: SetDigest,
    /// Pages that the header and free pages name as the next free one.
    pub(super) free_named: SetDigest,
    /// The same of what is put alone.
    pub(super) free_named_put: SetDigest,
    /// Pages put that are nothing that a directory has.
    pub(super) strange: u64,
    /// What the header says.
    pub(super) pages: u64,
    pub(super) free_count: u64,
    /// The list of free pages was given up as a whole: not all pages of it are known.
    pub(super) is_cut: bool,
    pub(super) called: Vec<Called>,
}

/// What a page is.
enum Form<'a> {
    Leaf { count: u16, records: &'a [u8] },
    Branch { records: &'a [u8] },
    Free { next: u64 },
    Strange,
}

impl<'a> Form<'a> {
    fn of(page: u64, image: &'a Image) -> Form<'a> {
        let node = &image[node_offset(page)..];
        if let Ok((free, _)) = FreeRaw::ref_from_prefix(node)
            && free.magic == FREE_MAGIC
        {
            return Form::Free { next: free.next.get() };
        }
        let Ok((raw, body)) = NodeRaw::ref_from_prefix(node) else { return Form::Strange };
        match body.get(..usize::from(raw.used.get())) {
            Some(records) if raw.magic == NODE_MAGIC && raw.level == 0 => {
                Form::Leaf { count: raw.count.get(), records }
            }
            Some(records) if raw.magic == NODE_MAGIC => Form::Branch { records },
            _ => Form::Strange,
        }
    }
}

/// The entry that begins at `at`, and its bytes with the name; `None` if there is none.
fn entry_at(records: &[u8], at: usize) -> Option<(&EntryRaw, &[u8])> {
    let (raw, rest) = EntryRaw::ref_from_prefix(records.get(at..)?).ok()?;
    Some((raw, rest.get(..usize::from(raw.name_length))?))
}

/// How many bytes are the same from the start on, and from the end on without those.
fn same_bytes(old: &[u8], new: &[u8]) -> (usize, usize) {
    const STEP: usize = 32;
    let equal = old.as_chunks::<STEP>().0.iter().zip(new.as_chunks::<STEP>().0).take_while(|(a, b)| a == b).count();
    let start = equal * STEP;
    let start = start + old[start..].iter().zip(&new[start..]).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[start..], &new[start..]);
    let pairs = old.as_rchunks::<STEP>().1.iter().rev().zip(new.as_rchunks::<STEP>().1.iter().rev());
    let end = pairs.take_while(|(a, b)| a == b).count() * STEP;
    let (old, new) = (&old[..old.len() - end], &new[..new.len() - end]);
    (start, end + old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count())
}

const GONE: u64 = u64::MAX;

impl IndexChanges {
    pub(crate) fn new(directory: ObjectId, called: Vec<Called>) -> IndexChanges {
        let none = SetDigest::NOTHING;
        IndexChanges {
            directory,
            entries: 0,
            entries_counted: 0,
            links: none,
            subdirectories: none,
            names: none,
            keys_wrong: 0,
            keys_wrong_gone: 0,
            branches: none,
            nodes: none,
            nodes_count: 0,
            free: none,
            free_named: none,
            free_named_put: none,
            strange: 0,
            pages: 0,
            free_count: 0,
            is_cut: false,
            called,
        }
    }

    /// A page changes. `key_of` gives the lowest key that a name can have.
    pub(crate) fn page(&mut self, page: u64, old: Option<&Image>, new: Option<&Image>, key_of: impl Fn(&[u8]) -> u64) {
        if page == 0 {
            old.into_iter().for_each(|image| self.header(image, GONE));
            new.into_iter().for_each(|image| self.header(image, 1));
        }
        let forms = (old.map(|image| Form::of(page, image)), new.map(|image| Form::of(page, image)));
        if let (Some(Form::Leaf { count: was, records: old }), Some(Form::Leaf { count, records: new })) = forms {
            self.entries_counted = self.entries_counted.wrapping_add(u64::from(count)).wrapping_sub(was.into());
            return self.leaf(old, new, key_of);
        }
        let (old, new) = forms;
        old.into_iter().for_each(|form| self.form(page, &form, GONE, &key_of));
        new.into_iter().for_each(|form| self.form(page, &form, 1, &key_of));
    }

    /// All pages but the first were given up, and with them the whole list of free ones. No request puts one into it afterwards.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    fn header(&mut self, image: &Image, times: u64) {
        let Ok((raw, _)) = HeaderRaw::ref_from_prefix(image) else { return };
        let add = |sum: &mut u64, number: u64| *sum = sum.wrapping_add(number.wrapping_mul(times));
        add(&mut self.pages, raw.pages.get());
        add(&mut self.free_count, raw.free_count.get());
        self.next_free(raw.free_head.get(), times);
    }

    fn next_free(&mut self, next: u64, times: u64) {
        if next != 0 {
            self.free_named += SetDigest::of(next).times(times);
        }
        if next != 0 && times == 1 {
            self.free_named_put += SetDigest::of(next);
        }
    }

    fn form(&mut self, page: u64, form: &Form<'_>, times: u64, key_of: &impl Fn(&[u8]) -> u64) {
        let node = |index: &mut IndexChanges| {
            index.nodes_count = index.nodes_count.wrapping_add(times);
            if page != 0 {
                index.nodes += SetDigest::of(page).times(times);
            }
        };
        match form {
            Form::Leaf { count, records } => {
                node(self);
                self.entries_counted = self.entries_counted.wrapping_add(u64::from(*count).wrapping_mul(times));
                let (old, new): (&[u8], &[u8]) = if times == 1 { (&[], records) } else { (records, &[]) };
                self.leaf(old, new, key_of);
            }
            Form::Branch { records } => {
                node(self);
                for bytes in records.chunks(BRANCH_BYTES) {
                    match BranchRaw::read_from_bytes(bytes) {
                        Ok(raw) => self.branches += SetDigest::of(raw.child.get()).times(times),
                        Err(_) => self.strange += 1,
                    }
                }
            }
            Form::Free { next } => {
                self.free += SetDigest::of(page).times(times);
                self.next_free(*next, times);
            }
            Form::Strange => self.strange += 1,
        }
    }

    /// Counts the entries in which the records of two leaves differ.
    fn leaf(&mut self, old: &[u8], new: &[u8], key_of: impl Fn(&[u8]) -> u64) {
        let is_wrong = |raw: &EntryRaw, name: &[u8]| raw.key.get() >> SLOT_BITS != key_of(name) >> SLOT_BITS;
        let (start, end) = same_bytes(old, new);
        let mut at = 0;
        while let Some(next) = old.get(at + ENTRY_BYTES - 1).map(|length| at + ENTRY_BYTES + usize::from(*length)) {
            if next > start {
                break;
            }
            at = next;
        }
        let (mut at_old, mut at_new) = (at, at);
        loop {
            let (left_old, left_new) = (old.len() - at_old, new.len() - at_new);
            if left_old == left_new && left_old <= end {
                return;
            }
            if left_old >= left_new {
                let Some((raw, name)) = entry_at(old, at_old) else { return self.strange += 1 };
                self.entry(raw, GONE);
                self.keys_wrong_gone += u64::from(is_wrong(raw, name));
                at_old += ENTRY_BYTES + name.len();
            }
            if left_new >= left_old {
                let Some((raw, name)) = entry_at(new, at_new) else { return self.strange += 1 };
                self.entry(raw, 1);
                self.keys_wrong += u64::from(is_wrong(raw, name));
                at_new += ENTRY_BYTES + name.len();
            }
        }
    }

    fn entry(&mut self, raw: &EntryRaw, times: u64) {
        let (object, key) = (ObjectId(raw.object.get()), raw.key.get());
        self.entries = self.entries.wrapping_add(times);
        if raw.kind == Kind::Directory as u8 {
            self.subdirectories += SetDigest::of(object.0).times(times);
        } else {
            self.links += SetDigest::of(link_number(object, raw.kind)).times(times);
        }
        self.names += SetDigest::of(name_number(object, NamePlace { directory: self.directory, key })).times(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn same_bytes_from_both_ends() {
        for seed in 0..300 {
            let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let [first, old, new, last] = std::array::from_fn(|_| random.random_range(0..100));
            let mut bytes = |length: usize, value: u8| -> Vec<u8> {
                (0..length).map(|_| if value == 0 { random.random() } else { value }).collect()
            };
            let (first, last) = (bytes(first, 0), bytes(last, 0));
            let (old, new) =
                ([&first[..], &bytes(old, 1), &last].concat(), [&first[..], &bytes(new, 2), &last].concat());
            let (start, end) = same_bytes(&old, &new);
            let shorter = old.len().min(new.len());
            assert!(start >= first.len() && start + end <= shorter, "seed {seed}");
            assert!(start + end >= (first.len() + last.len()).min(shorter), "seed {seed}");
            assert_eq!(old[..start], new[..start], "seed {seed}");
            assert_eq!(old[old.len() - end..], new[new.len() - end..], "seed {seed}");
        }
    }
}
