//! Of which blocks the bits have gone bad, and when they were last changed legally: for the report. The sums say so themselves where no more than one
//! word of 64 blocks has; else it is what differs from the bitmap of the last recovery point.

use super::Alloc;
use crate::difference::{in_blocks, stored_page};
use crate::disk::Disk;
use crate::format::BlockPointer;
use crate::objects::{BITMAP, system_key};
use crate::words::{Bad, CHUNK_WORDS, Words};
use holdfast_object::Epoch;

impl Alloc {
    /// The bitmap of the last recovery point.
    pub(crate) fn stored_is(&mut self, levels: u8, root: BlockPointer) {
        self.stored = (levels, root);
    }

    /// In words, and the epoch, if that is known.
    pub(crate) fn differs(&self, disk: &Disk, chunk: u64) -> (String, Option<Epoch>) {
        let (levels, root) = &self.stored;
        let stored = stored_page(disk, system_key(BITMAP), *levels, root, chunk);
        let changed = match self.touched.contains(&chunk) {
            true => Some(disk.newest()),
            false => stored.as_ref().map(|(_, birth)| *birth),
        };
        let parts = self.parts(chunk);
        let one = parts.iter().find_map(|(whose, words, bad)| match bad {
            Bad::Word(at, was) => Some(in_one_word(chunk, whose, words, (*at, *was))),
            _ => None,
        });
        let told = match (one, stored) {
            (Some(told), _) => told,
            (None, _) if parts.iter().all(|(.., bad)| *bad == Bad::Nothing) => {
                "no bit of it is another one now: the number has gone bad, or what the last epoch had freed, which is forgotten by now".into()
            }
            (None, Some((page, _))) => {
                let stored = std::array::from_fn(|at| u64::from_le_bytes(page.as_chunks().0[at]));
                let differ = in_blocks(chunk, &stored, &page_of(&parts));
                format!("by the last recovery point's bitmap, legal changes since included: {differ}")
            }
            (None, None) => "no recovery point has a bitmap of it, to tell the blocks".into(),
        };
        (told, changed)
    }

    /// What the words of a chunk are, and what of them has gone bad: of the bits in use, which are first, and of those that are taken out of them.
    fn parts(&self, chunk: u64) -> Vec<(&'static str, Words, Bad)> {
        let (words, bad) = self.used.bad(chunk);
        let masks = [("freed", &self.pending), ("written ahead", &self.placed), ("held back", &self.held)];
        let masks =
            masks.into_iter().filter_map(|(whose, mask)| mask.bad(chunk).map(|(words, bad)| (whose, *words, bad)));
        std::iter::once(("in use", words, bad)).chain(masks).collect()
    }
}

/// As [`Alloc::page`] puts it together.
fn page_of(parts: &[(&'static str, Words, Bad)]) -> Words {
    let mut page = [0; CHUNK_WORDS];
    for (nth, (_, words, _)) in parts.iter().enumerate() {
        page.iter_mut().zip(words).for_each(|(page, word)| if nth == 0 { *page = *word } else { *page &= !word });
    }
    page
}

fn in_one_word(chunk: u64, whose: &str, words: &Words, (at, was): (usize, u64)) -> String {
    let mut before = *words;
    before[at] = was;
    let differ = in_blocks(chunk, &before, words);
    format!("bits of what is {whose}: {differ}, expected {was:#018x}, got {:#018x}", words[at])
}
