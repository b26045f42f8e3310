//! What a transaction changes in the pages of a directory, counted from their bytes: those stored against those that will be.
//!
//! It reads pages in a way of its own, and only what differs between the two: nothing here is shared with the code that makes them but the
//! format.

use crate::directory::layout::*;
use holdfast_integrity::SetDigest;
use holdfast_object::{Kind, NamePlace, ObjectId, link_number, name_number};
use zerocopy::FromBytes;

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
    /// Names, by [`name_number`].
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
    /// All pages but the first were given up, and with them the whole list of free ones: not all pages of it are known. No request puts
    /// one into it afterwards.
    pub(super) is_cut: bool,
    /// Pages given up with them that were neither in the tree nor said to be free: a damaged directory has some.
    pub(super) lost: u64,
}

/// What a page is.
enum Form<'p> {
    Leaf { count: u16, records: &'p [u8] },
    Branch { records: &'p [u8] },
    Free { next: u64 },
    Strange,
}

impl<'p> Form<'p> {
    fn of(page: u64, image: &'p Image) -> Form<'p> {
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

/// An entry with its name.
type Entry<'p> = (&'p EntryRaw, &'p [u8]);

/// The entry with which records begin, and those that follow; `None` if there is none.
fn first_entry(records: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (raw, rest) = EntryRaw::ref_from_prefix(records).ok()?;
    let (name, rest) = rest.split_at_checked(usize::from(raw.name_length))?;
    Some(((raw, name), rest))
}

/// How many bytes are the same from the start on.
fn same_bytes(old: &[u8], new: &[u8]) -> usize {
    fn same_parts<const BYTES: usize>(old: &[u8], new: &[u8]) -> usize {
        let parts = old.as_chunks::<BYTES>().0.iter().zip(new.as_chunks::<BYTES>().0);
        parts.take_while(|(old, new)| old == new).count() * BYTES
    }
    let many = same_parts::<512>(old, new);
    let some = many + same_parts::<32>(&old[many..], &new[many..]);
    let most = some + same_parts::<8>(&old[some..], &new[some..]);
    most + same_parts::<1>(&old[most..], &new[most..])
}

/// How many of the first bytes are whole records.
fn whole_records(records: &[u8], bytes: usize) -> usize {
    let records = &records[..bytes];
    let mut at = 0;
    while let Some(&length) = records.get(at + ENTRY_BYTES - 1) {
        let step = ENTRY_BYTES + usize::from(length);
        // Often neighbours' names are of the same length. Then the processor need not wait for each length to find the next one.
        let is_like = |number: usize| records[at + number * step + ENTRY_BYTES - 1] == length;
        if at + 4 * step <= bytes && is_like(1) && is_like(2) && is_like(3) {
            at += 4 * step;
        } else if at + step <= bytes {
            at += step;
        } else {
            break;
        }
    }
    at
}

const GONE: u64 = u64::MAX;

/// Counts what changes, page by page.
pub(crate) struct Counting<'p, K> {
    changes: IndexChanges,
    /// Gives the lowest key that a name can have.
    key_of: K,
    /// Ends of leaves, or all of them, that are compared with what comes: where entries have moved from page to page, it is the same. One
    /// of the two has nothing.
    gone: &'p [u8],
    put: &'p [u8],
}

impl<'p, K: Fn(&[u8]) -> u64> Counting<'p, K> {
    #[inline]
    pub(crate) fn new(directory: ObjectId, key_of: K) -> Counting<'p, K> {
        let none = SetDigest::NOTHING;
        let changes = IndexChanges {
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
            lost: 0,
        };
        Counting { changes, key_of, gone: &[], put: &[] }
    }

    /// All pages but the first were given up: see [`IndexChanges::is_cut`].
    pub(crate) fn cut(&mut self, lost: u64) {
        (self.changes.is_cut, self.changes.lost) = (true, lost);
    }

    /// A page changes.
    pub(crate) fn page(&mut self, page: u64, old: Option<&'p Image>, new: Option<&'p Image>) {
        if page == 0 {
            old.into_iter().for_each(|image| self.header(image, GONE));
            new.into_iter().for_each(|image| self.header(image, 1));
        }
        match (old.map(|image| Form::of(page, image)), new.map(|image| Form::of(page, image))) {
            (Some(Form::Leaf { count: was, records: old }), Some(Form::Leaf { count, records: new })) => {
                self.counted(was, GONE);
                self.counted(count, 1);
                self.leaf(old, new);
            }
            (Some(Form::Branch { records: old }), Some(Form::Branch { records: new })) => self.branch(old, new),
            (old, new) => {
                old.into_iter().for_each(|form| self.form(page, &form, GONE));
                new.into_iter().for_each(|form| self.form(page, &form, 1));
            }
        }
    }

    /// All pages that change have been counted.
    pub(crate) fn done(&mut self) -> &IndexChanges {
        let (gone, put) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.put));
        self.all(gone, GONE);
        self.all(put, 1);
        &self.changes
    }

    fn header(&mut self, image: &Image, times: u64) {
        let Ok((raw, _)) = HeaderRaw::ref_from_prefix(image) else { return };
        let add = |sum: &mut u64, number: u64| *sum = sum.wrapping_add(number.wrapping_mul(times));
        add(&mut self.changes.pages, raw.pages.get());
        add(&mut self.changes.free_count, raw.free_count.get());
        self.next_free(raw.free_head.get(), times);
    }

    fn next_free(&mut self, next: u64, times: u64) {
        if next != 0 {
            self.changes.free_named += SetDigest::of(next).times(times);
        }
        if next != 0 && times == 1 {
            self.changes.free_named_put += SetDigest::of(next);
        }
    }

    fn counted(&mut self, count: u16, times: u64) {
        let sum = &mut self.changes.entries_counted;
        *sum = sum.wrapping_add(u64::from(count).wrapping_mul(times));
    }

    fn form(&mut self, page: u64, form: &Form<'p>, times: u64) {
        if let Form::Leaf { .. } | Form::Branch { .. } = form {
            self.changes.nodes_count = self.changes.nodes_count.wrapping_add(times);
            if page != 0 {
                self.changes.nodes += SetDigest::of(page).times(times);
            }
        }
        fn turned(records: &[u8], times: u64) -> (&[u8], &[u8]) {
            if times == 1 { (&[], records) } else { (records, &[]) }
        }
        match *form {
            Form::Leaf { count, records } => {
                self.counted(count, times);
                let (old, new) = turned(records, times);
                self.leaf(old, new);
            }
            Form::Branch { records } => {
                let (old, new) = turned(records, times);
                self.branch(old, new);
            }
            Form::Free { next } => {
                self.changes.free += SetDigest::of(page).times(times);
                self.next_free(next, times);
            }
            Form::Strange => self.strange(times),
        }
    }

    /// What is in a page that nobody can read. A damaged page may go.
    fn strange(&mut self, times: u64) {
        self.changes.strange += u64::from(times == 1);
    }

    /// Counts the branches in which two nodes differ.
    fn branch(&mut self, old: &[u8], new: &[u8]) {
        let ((old, _), (new, part)) = (old.as_chunks::<BRANCH_BYTES>(), new.as_chunks::<BRANCH_BYTES>());
        if !part.is_empty() {
            self.strange(1);
        }
        let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let (old, new) = (&old[start..], &new[start..]);
        let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
        let child = |bytes: &[u8; BRANCH_BYTES]| {
            let raw: &BranchRaw = zerocopy::transmute_ref!(bytes);
            SetDigest::of(raw.child.get())
        };
        old[..old.len() - end].iter().for_each(|bytes| self.changes.branches -= child(bytes));
        new[..new.len() - end].iter().for_each(|bytes| self.changes.branches += child(bytes));
    }

    /// Counts the entries in which two leaves differ, but for an end that only one of them has, which may be in another leaf.
    fn leaf(&mut self, old: &'p [u8], new: &'p [u8]) {
        let (gone, put) = self.differences(old, new);
        let (gone, put) = match gone {
            [] => {
                let gone = std::mem::take(&mut self.gone);
                self.differences(gone, put)
            }
            gone => {
                let put = std::mem::take(&mut self.put);
                self.differences(gone, put)
            }
        };
        if !gone.is_empty() {
            let before = std::mem::replace(&mut self.gone, gone);
            self.all(before, GONE);
        }
        if !put.is_empty() {
            let before = std::mem::replace(&mut self.put, put);
            self.all(before, 1);
        }
    }

    /// Counts the entries in which records differ, up to where those of one of them end. Gives what is left of the other. In damaged pages keys
    /// may be in no order; then more is counted on both sides, and it is as right.
    fn differences(&mut self, mut old: &'p [u8], mut new: &'p [u8]) -> (&'p [u8], &'p [u8]) {
        while !old.is_empty() && !new.is_empty() {
            let same = same_bytes(old, new);
            if same == old.len() && same == new.len() {
                return (&[], &[]);
            }
            let whole = whole_records(old, same);
            (old, new) = (&old[whole..], &new[whole..]);
            match (first_entry(old), first_entry(new)) {
                (Some((gone, old_rest)), Some((put, new_rest))) => {
                    let (old_key, new_key) = (gone.0.key.get(), put.0.key.get());
                    if old_key <= new_key {
                        self.entry(gone, GONE);
                        old = old_rest;
                    }
                    if new_key <= old_key {
                        self.entry(put, 1);
                        new = new_rest;
                    }
                }
                (gone, put) => {
                    // The end of one of them, or no entry.
                    if gone.is_none() && !old.is_empty() {
                        old = &[];
                    }
                    if put.is_none() && !new.is_empty() {
                        self.strange(1);
                        new = &[];
                    }
                }
            }
        }
        (old, new)
    }

    /// Counts all entries.
    fn all(&mut self, mut records: &[u8], times: u64) {
        while let Some((entry, rest)) = first_entry(records) {
            self.entry(entry, times);
            records = rest;
        }
        if !records.is_empty() {
            self.strange(times);
        }
    }

    fn entry(&mut self, (raw, name): Entry<'_>, times: u64) {
        let (object, key) = (ObjectId(raw.object.get()), raw.key.get());
        let is_wrong = u64::from(key >> SLOT_BITS != (self.key_of)(name) >> SLOT_BITS);
        let changes = &mut self.changes;
        if times == 1 {
            changes.keys_wrong += is_wrong;
        } else {
            changes.keys_wrong_gone += is_wrong;
        }
        changes.entries = changes.entries.wrapping_add(times);
        if raw.kind == Kind::Directory as u8 {
            changes.subdirectories += SetDigest::of(object.0).times(times);
        } else {
            changes.links += SetDigest::of(link_number(object, raw.kind)).times(times);
        }
        let place = NamePlace { directory: changes.directory, key };
        changes.names += SetDigest::of(name_number(object, place)).times(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn whole_records_of_any_lengths() {
        for seed in 0..300 {
            let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let (mut records, mut ends) = (Vec::new(), vec![0]);
            for _ in 0..random.random_range(0..5) {
                let length = random.random_range(0..=u8::MAX);
                for _ in 0..random.random_range(0..12) {
                    records.extend([1; ENTRY_BYTES - 1].into_iter().chain([length]).chain(vec![2; length.into()]));
                    ends.push(records.len());
                }
            }
            for bytes in 0..=records.len() {
                let end = ends.iter().rfind(|end| **end <= bytes);
                assert_eq!(Some(&whole_records(&records, bytes)), end, "seed {seed}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn same_bytes_from_the_start() {
        for seed in 0..300 {
            let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let [same, old, new] = [1200, 600, 600].map(|most| random.random_range(0..most));
            let bytes: Vec<u8> = (0..same).map(|_| random.random()).collect();
            let [old, new] = [(old, 1), (new, 2)].map(|(count, byte)| [&bytes[..], &vec![byte; count]].concat());
            assert_eq!(same_bytes(&old, &new), same, "seed {seed}");
        }
    }
}
