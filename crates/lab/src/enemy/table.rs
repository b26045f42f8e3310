//! The results for people.

use super::{FAULTS, Trial, Verdict, Work, fault_name};
use holdfast_physical::inject::BlockClass;
use std::collections::BTreeSet;
use std::fmt::Write;

/// For a terminal: one line for each kind, fault and number of copies; broken promises below it.
pub fn text(trials: &[Trial]) -> String {
    let mut out = String::new();
    for class in BlockClass::ALL {
        for fault in FAULTS {
            for all in [false, true] {
                let of = |work| cell(trials, |t| (t.class, t.fault, t.all_copies, t.work) == (class, fault, all, work));
                if Work::ALL.into_iter().any(|work| !of(work).is_empty()) {
                    let copies = if all { "all copies" } else { "one copy" };
                    let _ = write!(out, "{:16} {:10} {copies:10}", class.name(), fault_name(fault));
                    for work in Work::ALL {
                        let _ = write!(out, "  {} {:4}", work.name(), of(work));
                    }
                    let here = trials.iter().filter(|t| (t.class, t.fault, t.all_copies) == (class, fault, all));
                    let message = here.clone().find_map(|trial| trial.message.as_deref());
                    let _ = writeln!(out, "  {}", message.unwrap_or(""));
                }
                let broken = trials.iter().filter(|t| (t.class, t.fault, t.all_copies) == (class, fault, all));
                for trial in broken {
                    for wrong in &trial.wrong {
                        let _ = writeln!(out, "    WRONG: {}, seed {}: {wrong}", trial.work.name(), trial.seed);
                    }
                }
            }
        }
    }
    out
}

/// What became of the trials that fit, each letter once.
fn cell(trials: &[Trial], fits: impl Fn(&Trial) -> bool) -> String {
    let verdicts: BTreeSet<Verdict> = trials.iter().filter(|trial| fits(trial)).map(|trial| trial.verdict).collect();
    let letters = verdicts.into_iter().map(|verdict| match verdict {
        Verdict::Recovered => "R",
        Verdict::Error => "E",
        Verdict::Older => "O",
        Verdict::NotMet => "·",
    });
    letters.collect::<Vec<_>>().join(" ")
}

/// The page `docs/enemy.md`. `command` makes it, of the sources at `commit`.
pub fn markdown(trials: &[Trial], command: &str, commit: &str) -> String {
    let mut out = format!(
        "# The enemy within\n\n\
         Made by `{command}`, commit {commit}; a test does the same elsewhere each time, by a seed of its own.\n\n\
         Each kind of block is damaged as `holdfast inject` does it, in one copy or in all, then the store is used. After the \
         disk corruption analysis of ZFS in Zhang, *Cooperative Data Protection* (2015), §3.2, table 3.2. *mount*: damaged while \
         unmounted, then mounted. *remount*: damaged while mounted and in use, then changed, unmounted and mounted; there, for the intent log, \
         after two syncs of a file, for maps after the removal of a file in use. *create*: \
         damaged while unmounted, mounted; in every directory a file is made and written, with an extended attribute, and a \
         snapshot. *read*: damaged while unmounted, mounted; everything is read, in all snapshots too.\n\n\
         The trials run the stack of the daemon, from the names down to the device, in one process and on a device in memory. There is no \
         kernel and no mount(2) in it: *mounted* means that the store is opened and objects without a name are reclaimed, *unmounted* that it \
         is closed.\n\n\
         - **R**: recovered: put right from another copy, from what else there is (the bitmap; an empty batch of the intent log, by \
         the batches beside it), or by its checksum (a flipped bit in the intent log), or written anew from memory; or nothing was \
         in it: the seal at the end of the intent log;\n\
         - **E**: what needs the block fails, or the mount takes no changes or is refused, with an error that names the path, \
         the object and the page or block of what has a path, and the structure and the device block of what has none (label, superblock, \
         bitmap, object table …); all else is right;\n\
         - **O**: what was there before the last sync, because the damage leaves what a power cut during it may leave \
         ([0005](decisions/0005-torn-or-damaged.md)); `holdfast check` tells of it before the mount, and the mount says that \
         something may be missing;\n\
         - **·**: the block is not needed for that; `holdfast check` finds the damage.\n\n\
         Of a batch of the intent log heads, entries and pages of metadata are there twice. Pages of files are there once, as file data is \
         on the device: of these *one copy* is all copies, and they are what is E there.\n\n\
         The stores: one closed in order; one whose process was killed, with synced changes in the intent log only; one killed \
         like it after so many recovery points that every slot for superblocks had been used; each of 16 MiB; and one of 160 MiB closed in \
         order, with two blocks each of the bitmap, the reference table, the maps and the list of snapshots, of which the others have but one \
         of some. Right after the damage, before \
         anything else, a check is run on a copy. Which blocks are damaged is known from what was injected, not from the check: \
         every block in use that holds other bytes than it should must be in what the check tells (behind one that cannot be read, \
         the check says that it could not get further).\n\n\
         The intent log of the two that were killed is *sealed* ([0005](decisions/0005-torn-or-damaged.md)), as it is 0.1 to 0.2 s \
         after the last sync. That is what is not in the table: in a store that was killed sooner after its last sync, and whose last \
         batch of the log has then lost both its headers (zeros, or a page of the log in their place), that sync is undone and nothing \
         tells of it. A power cut before the sync was answered leaves the same.\n\n\
         Wrong bytes, panics, errors without path or place, damage that the check does not tell of (but for both heads of the seal at the \
         end of the intent log, with which nothing is lost), an older state that the mount does not tell of, and errors where a copy is good do not occur: the program and the test fail if one does. Several \
         letters: it depends on the block, on which copy, and on the store.\n\n\
         {} trials.\n",
        trials.len()
    );
    let mut part = |title: &str, fits: &dyn Fn(&Trial) -> bool| {
        let _ = write!(
            out,
            "\n## {title}\n\n\
             | | one copy | | | | all copies | | | |\n|---|---|---|---|---|---|---|---|---|\n\
             | block | mount | remount | create | read | mount | remount | create | read |\n"
        );
        for class in BlockClass::ALL {
            let _ = write!(out, "| {} |", class.name());
            for all in [false, true] {
                for work in Work::ALL {
                    let here = cell(trials, |t| fits(t) && (t.class, t.all_copies, t.work) == (class, all, work));
                    let _ = write!(out, " {here} |");
                }
            }
            out.push('\n');
        }
    };
    part("All faults", &|_| true);
    for fault in FAULTS {
        let (name, what) = match fault {
            super::Fault::Flip { .. } | super::Fault::FlipBit { .. } => ("Flip", "one bit of the block"),
            super::Fault::Drop => ("Drop", "zeros, as if it had never been written"),
            super::Fault::Duplicate => ("Duplicate", "the bytes of another block of the kind"),
            super::Fault::Swap => ("Swap", "exchanged with another block of the kind"),
        };
        part(&format!("{name}: {what}"), &|trial| trial.fault == fault);
    }
    out.push_str(
        "\nEmpty cells: file data has one copy, so that all copies are that one.\n\n\
         The intent log is R at *remount* whatever happens to it: nothing reads it while the store is in use, and the recovery point of the \
         unmount has from memory all that was in it.\n\n\
         ## ZFS in the paper\n\n\
         Bits flipped in one or all of the copies (table 3.2; pool version 14, one disk):\n\n\
         | block | one copy: mount | remount | create | read | all copies: mount | remount | create | read |\n\
         |---|---|---|---|---|---|---|---|---|\n\
         | vdev label | R | R | | | E | R | | |\n\
         | uberblock | R | R | | | E | R | | |\n\
         | MOS object set and dnode blocks | R | R | | | E | R | | |\n\
         | object set, indirect, dnode blocks of the file system | R | R | | | E | R | | |\n\
         | directory | | | R | R | | | E | E |\n\
         | file data | | | | E | | | | E |\n\n\
         The first error of each kind, as a user meets it:\n\n",
    );
    for class in BlockClass::ALL {
        let first = trials.iter().filter(|trial| trial.class == class).find_map(|t| Some((t, t.message.as_ref()?)));
        if let Some((trial, message)) = first {
            let _ = writeln!(out, "- {}, {}: `{message}`", class.name(), fault_name(trial.fault));
        }
    }
    out
}
