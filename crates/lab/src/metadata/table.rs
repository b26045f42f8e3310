//! The results for people.

use super::coverage::{Row as Covered, Unreachable};
use super::trial::{WHOLE_SLOT, fits};
use super::{Done, Kind, Moment, Trial, Verdict, What};
use crate::caught::PANIC;
use holdfast_physical::scribble::{MetaKind, Pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What of a sort has become what.
#[derive(Default)]
struct Row {
    injections: u64,
    scribbles: u64,
    logic: u64,
    harmless: u64,
    stored: u64,
    errors: u64,
}

impl Row {
    fn add(&mut self, trial: &Trial) {
        self.injections += 1;
        match trial.verdict {
            Verdict::Scribble => self.scribbles += 1,
            Verdict::Logic => self.logic += 1,
            Verdict::Harmless => self.harmless += 1,
        }
        self.stored += u64::from(!trial.stored.is_empty());
        self.errors += u64::from(!trial.errors.is_empty());
    }

    fn line(&self, name: &str) -> String {
        let Row { injections, scribbles, logic, harmless, stored, errors } = self;
        format!("| {name} | {injections} | {scribbles} | {logic} | {harmless} | {stored} | {errors} |\n")
    }
}

fn table(first: &str, rows: impl Iterator<Item = (String, Row)>) -> String {
    let mut out = format!(
        "| {first} | injections | found as a scribble | found as a logic bug | harmless | stored | application errors |\n\
         |---|---:|---:|---:|---:|---:|---:|\n"
    );
    rows.for_each(|(name, row)| out.push_str(&row.line(&name)));
    out
}

fn of<'a>(trials: impl Iterator<Item = &'a Trial>) -> Row {
    trials.fold(Row::default(), |mut row, trial| {
        row.add(trial);
        row
    })
}

fn by_kind(done: &Done) -> String {
    let of_kind = |trial: &&Trial, wanted: Kind| matches!(trial.cell.what, What::Field { kind, .. } if kind == wanted);
    let kinds =
        Kind::all().map(|kind| (kind.name().to_string(), of(done.trials.iter().filter(|trial| of_kind(trial, kind)))));
    let bugs = ("logic bugs".to_string(), of(done.trials.iter().filter(|trial| trial.cell.pattern.is_none())));
    let all = ("**all**".to_string(), of(done.trials.iter()));
    table("kind", kinds.chain([bugs, all]).filter(|(_, row)| row.injections > 0))
}

fn pattern_name(pattern: Option<Pattern>) -> &'static str {
    pattern.map_or("logic bug", Pattern::name)
}

fn by_pattern(done: &Done) -> String {
    let patterns = Pattern::ALL.into_iter().map(Some).chain([None]);
    let rows = patterns.map(|pattern| {
        (pattern_name(pattern).to_string(), of(done.trials.iter().filter(|trial| trial.cell.pattern == pattern)))
    });
    table("pattern", rows)
}

fn by_moment(done: &Done) -> String {
    let rows = Moment::ALL.into_iter().map(|moment| {
        let updates = if moment.is_before_updates() { "before" } else { "after" };
        let name = format!("{} ({updates} further updates)", moment.name());
        (name, of(done.trials.iter().filter(|trial| trial.cell.moment == moment)))
    });
    table("moment", rows)
}

fn by_bug(done: &Done) -> String {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for trial in &done.trials {
        match &trial.cell.what {
            What::Bug(bug) => rows.entry(bug.to_string()).or_default().add(trial),
            What::NameBug(bug) => rows.entry(format!("names: {bug}")).or_default().add(trial),
            What::Wrong { kind, .. } => rows.entry(format!("changed wrongly: {kind}")).or_default().add(trial),
            What::Field { .. } => {}
        }
    }
    table("logic bug", rows.into_iter())
}

/// What a field says, roughly. What the kind's own fields are has no other name than theirs.
fn group_of(field: &str) -> &'static str {
    let field = field.trim_start_matches("twin of ").trim_start_matches("stable ").trim_start_matches("frozen ");
    let last = field.trim_end_matches(", upper part").rsplit('.').next().unwrap_or_default();
    match last.split('[').next().unwrap_or_default() {
        "address" | "birth_log" | "birth_phys" | "shape" | "primary" | "secondary" | "algorithms" => "block pointers",
        "levels" | "page_bound" | "pointer_size" => "form of trees",
        "kind" | "mode" | "uid" | "gid" | "nlink" | "size" | "blocks" | "rdev" | "flags" | "generation" | "xattr"
        | "parent" | "project" | "policy" | "class" | "compression" | "placement" | "entries" | "secs" | "nanos"
        | "name_key" | "other_names" | "directory" | "key" | "dedup_xor" => "attributes",
        "created" | "changed" | "epoch" | "previous" | "base" | "sequence" => "epochs",
        "magic" | "version" | "store" | "device" | "device_count" | "device_index" | "label" | "features" | "slot"
        | "crc" | "clean" | "protection" | "block_size" | "name" | "name_bytes" | "id" => "identity, state, sums",
        "bits" | "counter" => "bits and counters",
        name if name.ends_with("reserved") || name.starts_with("reserved") => "reserved",
        _ => "other numbers",
    }
}

/// Kind × what a field says: what the store did, and what an application got.
fn by_group(done: &Done) -> String {
    let mut groups: BTreeMap<(Kind, &str), Vec<&Trial>> = BTreeMap::new();
    for trial in &done.trials {
        if let What::Field { kind, field, .. } = &trial.cell.what {
            groups.entry((*kind, group_of(field))).or_default().push(trial);
        }
    }
    let mut out = String::from(
        "| kind | fields | injections | put right, or read again | epoch begun anew | not met | answers right | failed, wrong or misleading | \
         crashes | stored |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for ((kind, group), trials) in groups {
        let count = |is: fn(&Trial) -> bool| trials.iter().filter(|trial| is(trial)).count();
        let found = |trial: &Trial| trial.verdict != Verdict::Harmless;
        let crashed = |trial: &Trial| trial.errors.iter().any(|error| error.starts_with(PANIC));
        let numbers = [
            trials.len(),
            trials.iter().filter(|trial| found(trial) && !trial.begun_anew).count(),
            count(|trial| trial.begun_anew),
            trials.iter().filter(|trial| !found(trial) && !trial.begun_anew).count(),
            count(|trial| trial.errors.is_empty()),
            trials.iter().filter(|trial| !trial.errors.is_empty() && !crashed(trial)).count(),
            trials.iter().filter(|trial| crashed(trial)).count(),
            count(|trial| !trial.stored.is_empty()),
        ];
        let _ = writeln!(out, "| {kind} | {group} | {} |", numbers.map(|number| number.to_string()).join(" | "));
    }
    out
}

/// What had to be met, cells, and how much of them has been, by kind.
fn coverage(done: &Done) -> String {
    let patterns = Pattern::ALL.map(Pattern::name).join(" | ");
    let mut out = format!(
        "| kind | fields | met | field × pattern × before/after | met | cells | met | {patterns} |\n\
         |---|---:|---:|---:|---:|---:|---:|{}\n",
        "---:|".repeat(Pattern::ALL.len())
    );
    for Covered { name, needs, cells, fields, strikes } in done.coverage.rows() {
        let strikes = strikes.map(|strikes| strikes.to_string()).join(" | ");
        let numbers = [fields.0, fields.1, needs.0, needs.1, cells.0, cells.1].map(|number| number.to_string());
        let _ = writeln!(out, "| {name} | {} | {strikes} |", numbers.join(" | "));
    }
    out
}

/// What could not be struck, and why.
fn unreachable(done: &Done) -> String {
    let mut out = String::new();
    for Unreachable { kind, names, is_before, why } in done.coverage.unreachable() {
        let when = match is_before {
            Some(true) => "before further updates: ",
            Some(false) => "after further updates: ",
            None => "",
        };
        let all = done.fields.get(&kind).map_or(0, BTreeSet::len);
        let names = if names.len() == all { "all fields".to_string() } else { format!("`{}`", names.join("`, `")) };
        let _ = writeln!(out, "- *{kind}*, {names}, {when}{why}.");
    }
    for ((kind, why), cells) in done.coverage.missed_cells() {
        let kind = kind.map_or("logic bugs", Kind::name);
        let of = if cells == 1 { "cell" } else { "cells" };
        let _ = writeln!(out, "- *{kind}*, {cells} {of} at particular moments: {why}.");
    }
    for need in done.coverage.known_lacking() {
        let _ = writeln!(out, "- {need}: at no moment, for one of these reasons.");
    }
    out + &unaudited(done)
}

/// What is not struck so that no sum sees it, and why.
fn unaudited(done: &Done) -> String {
    let mut out = String::new();
    for (kind, fields) in &done.fields {
        let Kind::Store(block) = kind else { continue };
        let names: Vec<&str> = fields.iter().map(String::as_str).filter(|field| *field != WHOLE_SLOT).collect();
        let left: Vec<&str> = names.iter().copied().filter(|field| !fits(*kind, field, Pattern::KeepAll)).collect();
        if !block.is_block() || left.is_empty() {
            continue;
        }
        let left =
            if left.len() == names.len() { "all fields".to_string() } else { format!("`{}`", left.join("`, `")) };
        let _ = writeln!(
            out,
            "- *{kind}*, {left}, so that no sum sees it: no equation has it, or one that is of changes, which takes what it finds for what was there \
             ([audit.md](audit.md#what-no-checksum-sees))."
        );
    }
    if !out.is_empty() {
        out.push_str(
            "- The same of a record whose object the epoch had not changed before, of an entry in a list of snapshots that does not change, of a whole slot, and where an equation does not tell \
             the word from what was there (a birth on the same side of the newest snapshot; a pointer without a tree).\n\
             - All that is in no block, so that no sum sees it: it has two sums of another sort, a copy or a twin, and no way to take these along.\n",
        );
    }
    out
}

/// The share of what had to be met that has been: the campaign's last line.
pub fn share(done: &Done) -> String {
    let (needs, met) = done.coverage.needs();
    format!(
        "field × pattern × before or after further updates, and logic bug × before or after: {met} of {needs} that there are, {:.1} %",
        100.0 * met as f64 / needs.max(1) as f64
    )
}

/// For a terminal.
pub fn text(done: &Done) -> String {
    let tables = [by_kind(done), by_pattern(done), by_moment(done), by_bug(done), coverage(done)];
    let mut out = tables.join("\n") + "\n" + &unreachable(done);
    let mut shown: BTreeMap<String, u32> = BTreeMap::new();
    for trial in done.broken() {
        let Trial { cell, struck, stored, errors, .. } = trial;
        let times = shown.entry(format!("{} {}", cell.what, pattern_name(cell.pattern))).or_default();
        *times += 1;
        if *times > 2 {
            continue;
        }
        let _ =
            writeln!(out, "BROKEN: {}, {}, {}: {struck}", cell.what, pattern_name(cell.pattern), cell.moment.name());
        let _ = writeln!(out, "    replay: metadata-campaign --replay '{}'", trial.replay());
        if trial.is_misnamed() {
            let _ = writeln!(out, "    named wrongly: {}", trial.verdict.name());
        }
        let what = stored.iter().map(|what| ("stored", what)).chain(errors.iter().map(|what| ("application", what)));
        for (which, what) in what.take(4) {
            let _ = writeln!(out, "    {which}: {what}");
        }
    }
    out
}

/// What the paper says that its mechanisms have found, and what the same have found here.
fn beside_the_paper(done: &Done) -> String {
    let count = |is: fn(&Trial) -> bool| done.trials.iter().filter(|trial| is(trial)).count();
    let scribbles = count(|trial| trial.verdict == Verdict::Scribble);
    let logic = count(|trial| trial.verdict == Verdict::Logic);
    let stored = count(|trial| !trial.stored.is_empty());
    let of_bitmap = |trial: &&Trial| {
        let What::Field { kind, .. } = &trial.cell.what else { return false };
        *kind == Kind::Store(MetaKind::Bitmap) && trial.cell.pattern == Some(Pattern::KeepAll)
    };
    let unseen = of(done.trials.iter().filter(of_bitmap));
    let all_unseen = of(done.trials.iter().filter(|trial| trial.cell.pattern == Some(Pattern::KeepAll)));
    format!(
        "## Beside the paper's figures\n\n\
         The paper gives no figures of its injections: \"several test plans were built so that injected corruptions would be caught\" before the superblock was written, and \
         those that flipped bits of the bitmap so that the checksum stayed what it was \"were always caught by the audit\" (§7.4); here {} of {}, and {} of {} with those of other fields that the audit has. What it counts are bugs that \
         the mechanisms met in five years (§7.5). Holdfast has had no such years: its figures are those of the strikes above, and say that the mechanisms find what they are \
         for, not how often there is something to find.\n\n\
         | | WAFL, in test | WAFL, at customers | here, struck on purpose |\n|---|---:|---:|---:|\n\
         | scribbles found by page protection | 75 bugs (debug kernels) | off by default, needed once (§7.3) | tests only: a stray write ends the process |\n\
         | scribbles found by checksums | 32 bugs (other kernels) | 8 bugs, 33 times | {scribbles} of {} strikes |\n\
         | logic bugs found by the audit | 23 bugs | 9 bugs, 50 times | {logic} strikes |\n\
         | got to the disk | not told | 34, 21 and 44 % less from release to release | {stored} |\n\n\
         The last line of WAFL's is a rate: how often inconsistencies got to the disk, by hours of run time, over four releases with more and more of the mechanisms. All in all it fell to \
         less than a third. What is left is of metadata that the mechanisms did not protect yet. Its page protection takes 20 % of the \
         throughput, and is for diagnosis; here pages are locked in production where the processor has keys ([0026](decisions/0026-locked-pages.md)).\n\n",
        unseen.logic,
        unseen.injections,
        all_unseen.logic,
        all_unseen.injections,
        done.trials.len()
    )
}

/// What is in memory and is not struck, and why.
const LEFT_OUT: &str = "## Left out\n\n\
    - *For which epoch a block was written ahead*: the cache writes nothing ahead yet; tests of the physical layer strike it \
    (`cargo test -p holdfast-physical --test it log_ends::`).\n\
    - *Where the next search for a free block begins, which chunks of the bitmap have changed, what the epoch has adopted*: any place to begin is right; a chunk that \
    is forgotten, or a block too many, breaks the equation *blocks*.\n\
    - *How many blocks the snapshots keep together, the store's figures*: told, and nothing is made of them.\n\
    - *Names of snapshots* are in the sums of their entries, and struck in the list's blocks.\n\
    - *Keys of maps in memory, and pointers of the program itself*: what is not found there is looked for on the device, or is missing in an equation; a wrong \
    pointer ends the process, and the last recovery point and the log stand.\n\
    - *What one device request is made of*, which bytes go to which block: it is gone with the request. Right before the device gets it, and when it is done, it is \
    compared with the addresses that were verified; tests of the physical layer strike it (`cargo test -p holdfast-physical --lib requests::`).\n\
    - *Label and superblock while they are decoded*, for as long as it takes to make bytes of them; and *what the intent log has, while a store is opened*: tests strike \
    what both are compared with (`cargo test -p holdfast-physical --lib sealed::`, `mend::`, `check::labels::`, `create::`, `log_recovery::`; `cargo test -p holdfast-cache --lib recover::`).\n\
    - *Settings of the mount* (quota aside, which is struck): which protection files get, how much of a deletion is done at a time. They are no state of the store.\n\
    - *Contents of files* in the page pool have checksums of their own ([protection.md](protection.md)).\n\
    - *What the layers above know beside attributes and pages*: sessions, and objects without a name that somebody has open, are in no block of metadata; what \
    becomes of them goes through the equations of names ([audit.md](audit.md)). Which objects and pages have changed has a sum, and what a log batch is to have has checks, \
    from admission on; numbers about an object (up to which transaction its changes are durable, whether the log has its creation), the number of the last \
    transaction, and where the operation log begins and ends are kept three times; tests of the cache \
    strike these (`cargo test -p holdfast-cache --test it pending::`).\n\
    - *Wrong legal changes* of what nothing else says, or of which the code's own bugs are planted: \
    [0035](decisions/0035-what-metadata-protection-deviates-in.md#wrong-changes-by-field) has which, and why.\n\
    - *Kinds and classes of objects in the cache*: values of the program's own, of which there is none that is none; all other attributes are struck.\n\n";

/// The page `docs/metadata-campaign.md`. `command` makes it, of the sources of `commit`.
pub fn markdown(done: &Done, command: &str, commit: Option<&str>) -> String {
    let of = commit.map(|commit| format!(", of commit {commit}")).unwrap_or_default();
    let fields: usize = done.fields.values().map(|fields| fields.len()).sum();
    let (cells, struck) = done.coverage.cells();
    let mut out = format!(
        "# Metadata in memory, struck on purpose\n\n\
         Made by `{command}`{of}; a test does a part of it elsewhere each time, by a seed of its own.\n\n\
         Each time, one piece of the metadata that a store has in memory is written to past everything that keeps its checksums right, as a flipped \
         bit or a program with a wrong pointer would, or something is changed wrongly by legal ways, as a logic bug would. Then the store goes on. \
         After the injections of the paper ([WAFL](https://www.usenix.org/conference/fast17/technical-sessions/presentation/kumar), §7.4).\n\n\
         - *patterns*: one bit; a word of 8 bytes; 16 to 512 bytes; a multiple of the CRC's polynomial, so that the CRC of the bytes stays what it was. \
         All begin in the field that they are for. Of blocks of slots also *copy-slot*: a whole slot becomes what another of the same block is. And *keep-all*: a word, with \
         both sums of the block taken along, as if neither saw it, of fields that the audit has, where something is changed legally afterwards: a record whose object the epoch has changed \
         before, the bitmap, a list of snapshots that changes.\n\
         - *moments*: at rest; before and while a sync goes into the log; when the store has got a part of an epoch; before the recovery point, with the log in use; when it has got all of the \
         epoch; before a device request of the recovery point; before its superblock. Recovery points are made by a sync, a new \
         snapshot, and a deleted one.\n\
         - *found as a scribble*: a checksum, a tally, a count or a twin in memory said so: it was read again, put right, or the epoch was begun anew. *Found as a logic bug*: \
         an equation of the [audit](audit.md) did not hold, and the epoch was begun anew. *Harmless*: nothing was noticed, and the device \
         has the same bytes as without the strike: what was struck was written over, had gone, was not used any more, or is verified before it is used.\n\
         - *stored*: something of it is in the recovery point: its bytes are others than without the strike though nothing was noticed; what it says is \
         something else; a check of it from scratch finds something; or contents are wrong when it is mounted again (closed, or after a power cut).\n\
         - *application errors*: an operation had another answer than it should, then or later.\n\
         - *bugs of names*: a request has operations that it did not mean, once; nothing of these may be done, and the request has to succeed.\n\
         - *changed wrongly*: a word of a field of something that the epoch has changed becomes another by the update that is for it, so that all sums are right, and nothing else that \
         belongs to it is done ([audit](audit.md#wrong-changes-field-by-field)).\n\
         - *named*: what was written over is to be found as a scribble, if it is found; a multiple of the polynomial may be called a logic bug. What no sum sees, and what was done \
         wrongly, is to be found as a logic bug. Else the campaign fails. That each sum of the audit has a twin that tells is \
         [0028](decisions/0028-sums-that-are-kept-twice.md).\n\
         - *without a protection*: `--plant checksums` has stores without sums in memory and without the audit, `--plant audit` without the audit alone. What is struck is stored then, \
         or found by nothing, and the run is red (exit code 1): it shows that a campaign would see it. It writes no page.\n\n\
         What was looked at in the same second is not looked at again ([0015](decisions/0015-metadata-in-place.md)), but for that of which nothing later would tell. So half of the strikes, by \
         the seed, come right after everything has been looked at, and what follows comes in the same second; at rest the store is asked at once, past the \
         cache, for the attributes, contents and holes of all objects, in snapshots too. After each of the others a second passes, and after each copied slot, which within that second leads to a good page of another place \
         ([audit](audit.md#not-yet)): then each page is read past the cache, also while the store has got a part of an epoch. All layers run in one process, on a device in memory.\n\n\
         Each of the {fields} fields is struck in each way, before and after further legal updates, and each logic bug is made before and after them (that of the end of the log before a sync goes there): {}. \
         Then come the other cells, each once, in an order by seed: the {} injections were in {struck} of the {cells} cells that there are, of field × state × \
         pattern × moment. What cannot be struck is [below](#not-there).\n\n",
        share(done),
        done.trials.len()
    );
    for (title, table) in [
        ("By kind", by_kind(done)),
        ("By pattern", by_pattern(done)),
        ("By moment", by_moment(done)),
        ("Logic bugs", by_bug(done)),
        ("Cells met", coverage(done)),
    ] {
        let _ = write!(out, "## {title}\n\n{table}\n");
    }
    if done.broken().next().is_none() {
        out.push_str(
            "None of the strikes was stored, no application operation failed, and all that was found was named for what it is: what was written \
             over a scribble (what keeps the CRC may be called a logic bug), and what no sum sees or was done wrongly a logic bug. A strike that does not keep these \
             promises fails the campaign, and the test.\n\n",
        );
    }
    let _ = write!(
        out,
        "## By field: what the store did, and what an application got\n\n\
         As Zhang's dissertation (*Cooperative Data Protection*) does it for ZFS (§3.3, table 3.5: bit flips in fields of metadata in memory, by \
         operation), where operations completed on what was corrupted, failed, or failed with a misleading message, bad data was \
         returned, or the system crashed. Operation by operation, each alone: [metadata-operations.md](metadata-operations.md); here all of a script. \
         *Put right, or read again*: in its place, from a copy or from the device, and nobody waits. *Epoch begun \
         anew*: the last recovery point is read again, and what was done since is done again; nobody is told. *Not met*: harmless, see above. \
         *Answers right*: all operations of the script, then and later, also after the next mount. *Failed, wrong or misleading*: an operation \
         that should have succeeded did not, or said something else.\n\n{}\n",
        by_group(done)
    );
    out.push_str(&beside_the_paper(done));
    let _ = write!(
        out,
        "## Not there\n\n\
         There is no such thing in memory at any moment of the scripts, or there was not when it was to be struck (24 places are tried).\n\n{}\n",
        unreachable(done)
    );
    out.push_str(LEFT_OUT);
    out.push_str("## Fields\n\n| kind | fields |\n|---|---|\n");
    for (kind, fields) in &done.fields {
        let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
        let _ = writeln!(out, "| {kind} | {} |", fields.join(", "));
    }
    out
}
