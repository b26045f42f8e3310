//! The audit of a recovery point: before its superblock is written, sums of what has changed since the last one must satisfy equations whose
//! sides come from different places (*High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST 2017, §5).
//! Checksums tell when somebody writes to metadata who must not; this tells when somebody who may writes the wrong thing. `docs/audit.md` has
//! the equations with what they find and cost.
//!
//! Invariants:
//! - what is *in the bytes* of blocks is counted by the methods through which bytes change ([`Counting`]), old against new, and by nobody
//!   else. Blocks that go away without being changed are counted where they are dropped ([`Audit::dropped`], [`Audit::dead_page_cut`]);
//! - what is *done* (a page shared, a run buried) is counted where it is done, never from those bytes;
//! - sums are those since the last recovery point: they begin anew when one is complete, and an
//!   epoch that fails before that goes on with them;
//! - all of them are kept twice ([`twin`]): what has gone bad in them is told as such, before any equation is judged;
//! - a store that was damaged before still takes changes. Where the code goes on over a contradiction that it finds (a block that is free
//!   already, a bit that a record does not have), it says so here, and an equation has that as a term. Nothing else does.

mod changes;
mod compared;
mod offender;
mod scribble;
mod sums;
mod suspects;
mod twin;

pub(crate) use changes::Counting;
pub(crate) use holdfast_integrity::SetDigest as Digest;
pub(crate) use sums::{Audit, KeptStart, Listed, listed_digest};
pub(crate) use suspects::owner;
pub(crate) use twin::Twin;

use crate::base::Base;
use crate::commit::CommitOrder;
use crate::format::blockptr::Glance;
use crate::format::{BITS, LABEL_BLOCKS, Label, Superblock};
use crate::module::log_area;
use crate::tree::Trees;
use changes::Pointers;
use compared::Compared;
use holdfast_object::{Corruption, Epoch, Error, ObjectKey, Place};
use sums::{Start, Sums, fixed_bits};

/// What an equation is about.
struct Facts<'a> {
    sums: &'a Sums,
    last: &'a Superblock,
    next: &'a Superblock,
    start: Start,
    /// See [`fixed_bits`]; of the next superblock.
    fixed: Digest,
    blocks: u64,
    /// Entries of the last recovery point's snapshot lists, and of the snapshots in memory.
    listed: Digest,
    snapshots: Digest,
    /// See [`Audit::unmatched`].
    unmatched: Option<Digest>,
}

impl Facts<'_> {
    /// The pointer at the very top is in no block.
    fn top(&self) -> Pointers {
        let mut top = Pointers::default();
        top.gone(&Glance::of(&self.last.root.root));
        top.put(&Glance::of(&self.next.root.root));
        top
    }

    fn all_pointers(&self) -> Pointers {
        let mut all = self.sums.pointers.clone();
        all.add(&self.top());
        all
    }

    fn newly_fixed(&self) -> Digest {
        self.fixed - self.start.fixed
    }
}

/// How much more there is of something than there was.
fn grown(next: u64, last: u64) -> Digest {
    Digest::of_count(next.wrapping_sub(last))
}

/// What must be the same on both sides.
struct Equation {
    name: &'static str,
    left: &'static str,
    right: &'static str,
    sides: fn(&Facts<'_>) -> (Digest, Digest),
}

/// In the order in which a failure is told: what explains others comes first.
const EQUATIONS: [Equation; 21] = [
    Equation {
        name: "pending",
        left: "placeholders for blocks without an address put, less those replaced",
        right: "none",
        sides: |facts| (Digest::of_count(facts.all_pointers().pending), Digest::NOTHING),
    },
    Equation {
        name: "levels",
        left: "block pointers put that are not of the level below, or of a kind that it has not",
        right: "none",
        sides: |facts| (Digest::of_count(facts.sums.wrong_levels + facts.all_pointers().wrong_kinds), Digest::NOTHING),
    },
    Equation {
        name: "births",
        left: "the newest birth of a block pointer put",
        right: "that, and no newer than the epoch",
        sides: |facts| {
            let newest = facts.all_pointers().newest;
            (Digest::of_count(newest), Digest::of_count(newest.min(facts.next.epoch)))
        },
    },
    Equation {
        name: "birth order",
        left: "block pointers put that were born physically before the first epoch or after their logical birth",
        right: "none",
        sides: |facts| (Digest::of_count(facts.all_pointers().misborn), Digest::NOTHING),
    },
    Equation {
        name: "range",
        left: "the lowest and the highest address in a block pointer put",
        right: "those, and between the labels",
        sides: |facts| {
            let Pointers { lowest, highest, .. } = facts.all_pointers();
            if highest == 0 {
                return (Digest::NOTHING, Digest::NOTHING);
            }
            let least = Digest::of(lowest.max(2 * LABEL_BLOCKS));
            (Digest::of(lowest) + Digest::of(highest), least + Digest::of(highest.min(facts.last_block())))
        },
    },
    Equation {
        name: "blocks",
        left: "bits of the bitmap set, less those cleared, without labels and log",
        right: "blocks that pointers name, and dead lists, more than before, without those named again",
        sides: |facts| {
            let Sums { bits, dead, shared_first, shared_second, not_freed, .. } = *facts.sums;
            let (set, named) = match facts.unmatched {
                Some(unmatched) => (unmatched, facts.top().addresses),
                None => (bits, facts.all_pointers().addresses),
            };
            (set - facts.start.bits - facts.newly_fixed(), named + dead - shared_first - shared_second + not_freed)
        },
    },
    Equation {
        name: "free",
        left: "free blocks of the superblock, more than before",
        right: "bits of the bitmap cleared, less those set, and blocks that the device has more",
        sides: |facts| {
            let set = facts.sums.bits - facts.start.bits - facts.newly_fixed();
            let more = grown(facts.next.total, facts.start.total);
            (grown(facts.next.free, facts.start.free), more - Digest::of_count(set.count()))
        },
    },
    Equation {
        name: "references",
        left: "addresses in the reference table, as often as it counts them, more than before",
        right: "addresses of pages shared, less those of shared pages let go",
        sides: |facts| (facts.sums.counters, facts.sums.shared_first),
    },
    Equation {
        name: "dead lists",
        left: "blocks in runs of dead lists, more than before",
        right: "blocks that died under snapshots, less those of deleted snapshots",
        sides: |facts| (facts.sums.dead, facts.sums.buried),
    },
    Equation {
        name: "dead births",
        left: "births and sorts of runs in dead lists, for each block",
        right: "those of the pointers that went away",
        sides: |facts| (facts.sums.dead_births, facts.sums.buried_births),
    },
    Equation {
        name: "next generation",
        left: "generation of the next object in the superblock, more than before",
        right: "generations given to objects",
        sides: |facts| {
            let grown = grown(facts.next.next_generation, facts.last.next_generation);
            (grown, Digest::of_count(facts.sums.generations))
        },
    },
    Equation {
        name: "objects",
        left: "objects of the superblock, more than before",
        right: "records put, less those taken out",
        sides: |facts| {
            let counted = grown(facts.next.objects, facts.last.objects);
            (counted, Digest::of_count(facts.sums.objects) + Digest::of_count(facts.sums.objects_uncounted))
        },
    },
    Equation {
        name: "object maps",
        left: "ids set in the maps of objects, less those cleared",
        right: "ids of records put, less those of records taken out",
        sides: |facts| (facts.sums.mapped, facts.sums.records - facts.sums.mapped_wrongly),
    },
    Equation {
        name: "orphans",
        left: "ids set in the maps of orphans, less those cleared",
        right: "ids of records without a name put, less those taken out or named",
        sides: |facts| (facts.sums.orphans, facts.sums.nameless - facts.sums.orphans_wrongly),
    },
    Equation {
        name: "pages",
        left: "pages that records say they have, more than before",
        right: "block pointers to pages of objects put, less those gone",
        sides: |facts| {
            let Sums { pages, pages_told, pages_unknown, .. } = *facts.sums;
            (Digest::of_count(pages_told), Digest::of_count(pages) - Digest::of_count(pages_unknown))
        },
    },
    Equation {
        name: "bounds",
        left: "block pointers of objects, in blocks that change or along a bound that sinks, at or beyond the bound that the record says",
        right: "none",
        sides: |facts| (Digest::of_count(facts.sums.beyond), Digest::NOTHING),
    },
    Equation {
        name: "generations",
        left: "the newest generation of objects made, and of those before",
        right: "that, and below the next one of the superblock",
        sides: |facts| {
            let newest = facts.sums.newest_generation.max(facts.last.next_generation.saturating_sub(1));
            (Digest::of_count(newest), Digest::of_count(newest.min(facts.next.next_generation.saturating_sub(1))))
        },
    },
    Equation {
        name: "snapshots",
        left: "entries of the snapshot lists: those of the last recovery point, those put since, less those taken out, and what blocks that change have otherwise",
        right: "snapshots in memory",
        sides: |facts| (facts.listed + facts.sums.listed + facts.sums.listed_otherwise, facts.snapshots),
    },
    Equation {
        name: "metadata",
        left: "blocks of metadata of the superblock, more than before",
        right: "block pointers with two addresses of the domain main put, less those gone",
        sides: |facts| {
            let Sums { doubled, metadata_uncounted, .. } = *facts.sums;
            let counted = grown(facts.next.metadata, facts.start.metadata);
            (counted, Digest::of_count(doubled) + Digest::of_count(metadata_uncounted))
        },
    },
    Equation {
        name: "metadata kept",
        left: "blocks of metadata of the superblock that the newest snapshot of the domain main has too",
        right: "those before, less pointers of main to such gone, and more put; at most all",
        sides: |facts| {
            let Sums { kept, kept_start, .. } = *facts.sums;
            let start = match kept_start {
                None => facts.last.metadata_kept,
                Some(KeptStart::All) => facts.start.metadata,
                Some(KeptStart::Known(kept)) => kept,
            };
            // Not below 0 either: the code stops there, however many go.
            let counted = start.wrapping_add(kept).cast_signed().max(0).cast_unsigned();
            (Digest::of_count(facts.next.metadata_kept), Digest::of_count(counted.min(facts.next.metadata)))
        },
    },
    Equation {
        name: "size",
        left: "blocks of the superblock",
        right: "blocks of the device, without labels and log",
        sides: |facts| {
            let fixed = facts.fixed.count() - (facts.blocks.next_multiple_of(BITS) - facts.blocks);
            (Digest::of_count(facts.next.total), Digest::of_count(facts.blocks - fixed))
        },
    },
];

/// An equation that does not hold.
struct Failure {
    equation: &'static Equation,
    left: Digest,
    right: Digest,
    /// Where, if it is about what single blocks must be.
    at: Option<String>,
    /// Objects that it is about, as far as that can be told.
    suspects: Vec<ObjectKey>,
}

impl Failure {
    /// The one number in which the sides differ, if it is one. None is of a number that counts alone.
    fn only(left: Digest, right: Digest) -> Option<u64> {
        (left - right).only().filter(|number| *number != 0)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Equation { name, left, right, .. } = self.equation;
        write!(f, "\"{name}\": {left}, is {}; {right}, is {}", self.left, self.right)?;
        if let Some(number) = Failure::only(self.left, self.right) {
            write!(f, "; they differ in {number} only")?;
        }
        f.write_str(self.at.as_deref().unwrap_or_default())?;
        match self.suspects.is_empty() {
            true => Ok(()),
            false => write!(f, "; it is about {}", named(&self.suspects)),
        }
    }
}

impl Trees {
    /// Whether all equations hold for what is about to be written, `next` after `last`.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: one does not. No recovery point is made of it.
    pub(crate) fn audit_epoch(
        &self,
        base: &Base,
        label: &Label,
        last: &Superblock,
        next: &Superblock,
    ) -> Result<(), Error> {
        if !base.disk.metadata.audits() {
            return Ok(());
        }
        self.kept.domains().try_for_each(|domain| self.verify_snapshots(base, domain))?;
        let sums = self.audit.sums.verified().map_err(|scribble| base.give_up_sums(scribble))?;
        let listed = self.kept.listed().map_err(|scribble| base.give_up_sums(scribble))?;
        let log = log_area(label);
        let of_last = || Start {
            bits: Digest::NOTHING,
            fixed: fixed_bits(last.covered(label), &log),
            free: last.free,
            total: last.total,
            metadata: last.metadata,
        };
        let facts = Facts {
            sums,
            last,
            next,
            start: sums.start.unwrap_or_else(of_last),
            fixed: fixed_bits(label.blocks, &log),
            blocks: label.blocks,
            listed,
            snapshots: match base.commit_order {
                // A bug for the lab, which a crash is to show.
                CommitOrder::ListNothing => listed + sums.listed + sums.listed_otherwise,
                _ => self.kept.in_memory(),
            },
            unmatched: self.audit.unmatched(),
        };
        let failed = EQUATIONS.iter().filter_map(|equation| {
            let (left, right) = (equation.sides)(&facts);
            (left != right).then(|| {
                let (at, owner) = self.offender(base, equation.name, &facts).unzip();
                let only = Failure::only(left, right);
                let mut suspects = self.suspects(base, equation.name, only, &facts);
                suspects.extend(owner.flatten());
                Failure { equation, left, right, at, suspects }
            })
        });
        let failed: Vec<Failure> = failed.collect();
        if failed.is_empty() {
            return Ok(());
        }
        // What somebody has written to a block who must not gets into the sums when the block is changed the next time.
        self.verify_written(base)?;
        // What explains others comes first.
        let suspects = failed.iter().find(|failure| !failure.suspects.is_empty());
        let suspects = suspects.map_or_else(Vec::new, |failure| failure.suspects.clone());
        let failed = failed.iter().map(ToString::to_string).chain(self.misfit_in_words(base));
        let failed: Vec<String> = failed.collect();
        base.disk.suspect(suspects);
        Err(self.give_up_as_wrong(base, next.epoch, "the same on both sides of all equations", &failed))
    }

    /// No recovery point is made of what has been done wrong.
    pub(crate) fn give_up_as_wrong(&self, base: &Base, epoch: Epoch, expected: &str, failed: &[String]) -> Error {
        let objects = &mut self.changed.keys().copied().collect::<Vec<_>>();
        base.disk.counters.audit_failed();
        base.disk.give_up(failure(base, epoch, expected, failed, objects))
    }
}

/// Most objects that are named.
const NAMED_MAX: usize = 16;

fn named(objects: &[ObjectKey]) -> String {
    let named: Vec<String> = objects.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    named.join(", ") + if objects.len() > named.len() { ", …" } else { "" }
}

fn failure(base: &Base, epoch: Epoch, expected: &str, failed: &[String], objects: &mut [ObjectKey]) -> Corruption {
    objects.sort_unstable();
    let changed = format!("{} objects changed in it ({})", objects.len(), named(objects));
    let got = format!(
        "not so: {} (a logic bug, to be reported; nothing of the epoch is stored; {changed})",
        failed.join(" | ")
    );
    let place = Place { address: None, ..base.disk.place(0) };
    Corruption { place, what: format!("audit of epoch {epoch}"), expected: expected.to_string(), got }
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
