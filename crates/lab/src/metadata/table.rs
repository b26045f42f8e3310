//! The results for people.

use super::{Done, GAPS, Moment, Trial, Verdict, What};
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
    let of_kind =
        |trial: &&Trial, wanted: MetaKind| matches!(trial.cell.what, What::Field { kind, .. } if kind == wanted);
    let kinds = MetaKind::ALL
        .into_iter()
        .map(|kind| (kind.name().to_string(), of(done.trials.iter().filter(|trial| of_kind(trial, kind)))));
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
        if let What::Bug(bug) = trial.cell.what {
            rows.entry(bug.to_string()).or_default().add(trial);
        }
    }
    table("logic bug", rows.into_iter())
}

/// For a terminal.
pub fn text(done: &Done) -> String {
    let mut out = by_kind(done) + "\n" + &by_pattern(done) + "\n" + &by_moment(done) + "\n" + &by_bug(done) + "\n";
    let mut shown: BTreeMap<String, u32> = BTreeMap::new();
    let (broken, in_gaps) = done.broken();
    for (trial, word) in
        broken.into_iter().map(|trial| (trial, "BROKEN")).chain(in_gaps.into_iter().map(|trial| (trial, "gap")))
    {
        let Trial { cell, replay: (script, event, choice), struck, stored, errors, .. } = trial;
        let times = shown.entry(format!("{} {}", cell.what, pattern_name(cell.pattern))).or_default();
        *times += 1;
        if *times > 2 {
            continue;
        }
        let _ = writeln!(
            out,
            "{word}: {}, {}, {} (script {script}, moment {event}, choice {choice}): {struck}",
            cell.what,
            pattern_name(cell.pattern),
            cell.moment.name()
        );
        let what = stored.iter().map(|what| ("stored", what)).chain(errors.iter().map(|what| ("application", what)));
        for (which, what) in what.take(4) {
            let _ = writeln!(out, "    {which}: {what}");
        }
    }
    out
}

/// What is not protected, with one example each.
fn gaps(done: &Done) -> String {
    let (_, in_gaps) = done.broken();
    let mut out = String::from("## Gaps\n\n");
    if in_gaps.is_empty() {
        out.push_str("None of the strikes was stored, and no application operation failed.\n\n");
        return out;
    }
    out.push_str(
        "Broken promises are all of these kinds, which have no sums in memory, or not of all that they are:\n\n",
    );
    for kind in GAPS {
        let of_kind = |trial: &&&Trial| matches!(trial.cell.what, What::Field { kind: found, .. } if found == kind);
        let fields: BTreeSet<String> = in_gaps.iter().filter(of_kind).map(|trial| field_of(trial)).collect();
        if !fields.is_empty() {
            let fields: Vec<String> = fields.into_iter().collect();
            let _ = writeln!(out, "- {kind}: {}", fields.join(", "));
        }
    }
    out + "\n"
}

fn field_of(trial: &Trial) -> String {
    match &trial.cell.what {
        What::Field { field, .. } => format!("`{field}`"),
        What::Bug(bug) => bug.to_string(),
    }
}

/// The page `docs/metadata-campaign.md`. `command` makes it.
pub fn markdown(done: &Done, command: &str) -> String {
    let fields: usize = done.fields.values().map(|fields| fields.len()).sum();
    let (cells, struck) = done.cells;
    let mut out = format!(
        "# Metadata in memory, struck on purpose\n\n\
         Made by `{command}`; a test does a part of it elsewhere each time, by a seed of its own.\n\n\
         Each time, one piece of the metadata that a store has in memory is written to past everything that keeps its checksums right, as a flipped \
         bit or a program with a wrong pointer would, or something is changed wrongly by legal ways, as a logic bug would. Then the store goes on. \
         After the injections of the paper ([WAFL](https://www.usenix.org/conference/fast17/technical-sessions/presentation/kumar), §6).\n\n\
         - *patterns*: one bit; a word of 8 bytes; 16 to 512 bytes; a multiple of the CRC's polynomial, so that the CRC of the bytes stays what it was. \
         All begin in the field that they are for.\n\
         - *moments*: at rest; when the store has got a part of an epoch; before the recovery point, with the log in use; when it has got all of the \
         epoch; before a device request of the recovery point; before its superblock. Recovery points are made by a sync, a new \
         snapshot, and a deleted one.\n\
         - *found as a scribble*: a checksum, a tally or a count in memory said so: it was read again, or the epoch was begun anew. *Found as a logic bug*: \
         an equation of the [audit](audit.md) did not hold, and the epoch was begun anew. *Harmless*: nothing was noticed, and the device \
         has the same bytes as without the strike: what was struck was written over, had gone, was not used any more, or is verified before it is used.\n\
         - *stored*: something of it is in the recovery point: its bytes are others than without the strike though nothing was noticed; what it says is \
         something else; a check of it from scratch finds something; or contents are wrong when it is mounted again (closed, or after a power cut).\n\
         - *application errors*: an operation had another answer than it should, then or later.\n\n\
         After each strike a second passes: what was looked at in the same second is not looked at again \
         ([0015](decisions/0015-metadata-in-place.md)). All layers run in one process, on a device in memory.\n\n\
         {} injections in {struck} of the {cells} cells that there are: field × state × pattern × moment, for {fields} fields.\n\n",
        done.trials.len()
    );
    for (title, table) in [
        ("By kind", by_kind(done)),
        ("By pattern", by_pattern(done)),
        ("By moment", by_moment(done)),
        ("Logic bugs", by_bug(done)),
    ] {
        let _ = write!(out, "## {title}\n\n{table}\n");
    }
    out.push_str(&gaps(done));
    out.push_str("## Fields\n\n| kind | fields |\n|---|---|\n");
    for (kind, fields) in &done.fields {
        let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
        let _ = writeln!(out, "| {kind} | {} |", fields.join(", "));
    }
    out
}
