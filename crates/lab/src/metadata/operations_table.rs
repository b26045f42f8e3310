//! What operations met, for people.

use super::Kind;
use super::operations::{Cell, Done, Operation, Outcome, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What a cell of the table has: nothing, if the field was not there.
type Met = BTreeSet<Outcome>;

fn letters(met: Option<&Met>) -> String {
    let Some(met) = met else { return String::new() };
    let telling = met.iter().filter(|outcome| **outcome != Outcome::Quiet);
    let letters: String = telling.map(|outcome| outcome.letter()).collect();
    if letters.is_empty() { Outcome::Quiet.letter().to_string() } else { letters }
}

/// Rows of a kind: fields that met the same, together.
fn rows(cells: &BTreeMap<&Cell, Met>, operations: &[Operation], kind: Kind) -> Vec<(Vec<String>, Vec<String>)> {
    let of_kind = cells.keys().filter(|cell| cell.kind == kind);
    let fields: BTreeSet<&str> = of_kind.map(|cell| cell.field.as_str()).collect();
    let mut rows: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for field in fields {
        let met = |operation: &Operation| {
            let cell = Cell { operation: *operation, kind, field: field.to_string() };
            letters(cells.get(&cell))
        };
        let row: Vec<String> = operations.iter().map(met).collect();
        match rows.iter_mut().find(|(_, other)| *other == row) {
            Some((fields, _)) => fields.push(field.to_string()),
            None => rows.push((vec![field.to_string()], row)),
        }
    }
    rows
}

/// Kind × field × operation.
fn by_field(done: &Done) -> String {
    let mut cells: BTreeMap<&Cell, Met> = BTreeMap::new();
    for trial in &done.trials {
        cells.entry(&trial.cell).or_default().extend(&trial.outcomes);
    }
    let struck: BTreeSet<Operation> = done.trials.iter().map(|trial| trial.cell.operation).collect();
    let operations: Vec<Operation> = Operation::ALL.iter().copied().filter(|of| struck.contains(of)).collect();
    let columns: Vec<&str> = operations.iter().map(|of| of.column()).collect();
    let mut out = format!("| kind | fields | {} |\n|---|---|{}\n", columns.join(" | "), ":-:|".repeat(columns.len()));
    for kind in Kind::all() {
        let mut rows = rows(&cells, &operations, kind);
        let count: usize = rows.iter().map(|(fields, _)| fields.len()).sum();
        // That which most fields have is that of the others.
        let most = rows.iter().map(|(fields, _)| fields.len()).max().unwrap_or(0);
        let others = rows.iter().position(|(fields, _)| fields.len() == most && most > 3);
        if let Some(others) = others {
            let others = rows.remove(others);
            rows.push(others);
        }
        let last = rows.len().saturating_sub(1);
        for (nth, (fields, met)) in rows.into_iter().enumerate() {
            let name = match (nth == last && others.is_some(), fields.len() == count) {
                (true, true) => format!("all {count}"),
                (true, false) => format!("the other {}", fields.len()),
                (false, _) => format!("`{}`", fields.join("`, `")),
            };
            let _ = writeln!(out, "| {kind} | {name} | {} |", met.join(" | "));
        }
    }
    out
}

/// Strikes of a sort, by what became of them.
fn line(name: &str, trials: &[&Trial]) -> String {
    let count = |is: &dyn Fn(&Trial) -> bool| trials.iter().filter(|trial| is(trial)).count().to_string();
    let mut numbers = vec![trials.len().to_string()];
    numbers.extend(Outcome::ALL.map(|outcome| count(&|trial: &Trial| trial.outcomes.contains(&outcome))));
    let is_quiet = |trial: &Trial| trial.outcomes.iter().all(|outcome| *outcome == Outcome::Quiet);
    numbers.push(count(&|trial: &Trial| is_quiet(trial) && trial.later == Outcome::PutRight));
    numbers.push(count(&|trial: &Trial| is_quiet(trial) && trial.later == Outcome::Anew));
    numbers.push(count(&|trial: &Trial| is_quiet(trial) && trial.later == Outcome::Quiet));
    format!("| {name} | {} |\n", numbers.join(" | "))
}

fn summary<K: Ord>(done: &Done, first: &str, of: impl Fn(&Trial) -> K, name: impl Fn(&K) -> String) -> String {
    let mut out = format!(
        "| {first} | strikes | nothing noticed | read again, put right | begun anew | failed | bad data | crashed | \
         of those with nothing noticed: put right later | begun anew later | never noticed |\n|---|{}\n",
        "---:|".repeat(10)
    );
    let mut groups: BTreeMap<K, Vec<&Trial>> = BTreeMap::new();
    done.trials.iter().for_each(|trial| groups.entry(of(trial)).or_default().push(trial));
    groups.iter().for_each(|(group, trials)| out.push_str(&line(&name(group), trials)));
    out.push_str(&line("**all**", &done.trials.iter().collect::<Vec<_>>()));
    out
}

fn by_operation(done: &Done) -> String {
    let name = |operation: &Operation| format!("`{}` {operation}", operation.column());
    summary(done, "operation", |trial| trial.cell.operation, name)
}

fn by_kind(done: &Done) -> String {
    summary(done, "kind", |trial| trial.cell.kind, ToString::to_string)
}

/// What could not be struck, and why.
fn missed(done: &Done) -> String {
    let mut groups: BTreeMap<(Kind, &str, &str), Vec<&str>> = BTreeMap::new();
    for (Cell { operation, kind, field }, why) in &done.missed {
        groups.entry((*kind, field.as_str(), why.as_str())).or_default().push(operation.name());
    }
    let told = |((kind, field, why), operations): (&(Kind, &str, &str), &Vec<&str>)| {
        format!("{kind}, {field}, before {}: {why}\n", operations.join(", "))
    };
    groups.iter().map(told).collect()
}

/// How many strikes of scribbles were told as logic bugs.
fn named_logic(done: &Done) -> usize {
    done.trials.iter().filter(|trial| trial.is_named_logic).count()
}

/// For a terminal.
pub fn text(done: &Done) -> String {
    let mut out = format!("{}\n{}\n", by_operation(done), by_kind(done));
    let mut shown: BTreeMap<(Kind, Operation), u32> = BTreeMap::new();
    for trial in done.broken() {
        let Cell { operation, kind, field } = &trial.cell;
        let times = shown.entry((*kind, *operation)).or_default();
        *times += 1;
        if *times > 2 {
            continue;
        }
        let letters = letters(Some(&trial.outcomes));
        let _ = writeln!(out, "BROKEN ({letters}): {kind}, {field}, before {operation}: {}", trial.struck);
        let _ = writeln!(out, "    replay: metadata-campaign --by-operation --replay '{}'", trial.replay());
        trial.wrong.iter().take(4).for_each(|what| out.push_str(&format!("    {what}\n")));
    }
    missed(done).lines().for_each(|line| out.push_str(&format!("NOT MET: {line}\n")));
    let _ = writeln!(out, "told as a logic bug: {}", named_logic(done));
    out
}

/// Of the table in the dissertation, as its letters can be counted.
const BESIDE: &str = "## Beside the dissertation's table\n\n\
    Table 3.5 shows only rows of fields with a trouble, so the troubles can be counted and the cells without one cannot. There each case was injected five times, and always into what the operation had used of its own; here in two states of the store, and into its own where there is such a thing. ZFS put nothing right in any case (*observation 9*: \"there is no recovery for \
    corrupted metadata\").\n\n\
    | | ZFS, table 3.5 | here |\n|---|---:|---:|\n";

/// Of the table by kind.
const NEVER_NOTICED: &str = "*Never noticed* is what nobody used between the strike and the next mount, which knows nothing of it; \
    what stands on the device is right, as each trial ends with that mount and a check.\n\n\
    - *snapshot-list*: blocks of these lists are read when a store is opened, when a list changes (a snapshot is made or deleted), \
    and when a snapshot in memory has gone bad. All else is answered by the snapshots in memory: kind *snapshot*.\n\
    - *log-contents*: what a block of the log holds is asked for when pages of a batch are written over it, which is a few blocks of a whole area.\n\
    - *attributes*: those that are durable (`stable`) are used when their object changes, and when something of it goes into the log or \
    a recovery point; by nothing that only reads.\n";

/// The page `docs/metadata-operations.md`. `command` makes it, of the sources of `commit`.
pub fn markdown(done: &Done, command: &str, commit: Option<&str>) -> String {
    let of = commit.map(|commit| format!(", of commit {commit}")).unwrap_or_default();
    let fields: BTreeSet<(Kind, &str)> =
        done.trials.iter().map(|trial| (trial.cell.kind, trial.cell.field.as_str())).collect();
    let broken = done.broken().count();
    let cells_of = |outcome: Outcome| {
        let with = done.trials.iter().filter(|trial| trial.outcomes.contains(&outcome));
        with.map(|trial| &trial.cell).collect::<BTreeSet<_>>().len()
    };
    let mut out = format!(
        "# Metadata in memory, by field and operation\n\n\
         Made by `{command}`{of}; a test does some cells of it elsewhere each time, by a seed of its own.\n\n\
         Each of {} fields of metadata in memory that are there when an application asks for something is struck, one bit of it, directly before one operation, which runs alone: {} strikes, in {} fields × operations. \
         As Zhang's dissertation does it for ZFS (*Cooperative Data Protection*, §3.3, table 3.5). Then everything is synced, read, in snapshots too, checked from scratch, \
         and read again from the next mount. Strikes in other patterns, at other moments, in the middle of a recovery point: [metadata-campaign.md](metadata-campaign.md).\n\n\
         - `.`: the operation noticed nothing, and completed right. It did not use the field, or verified it a moment before, or what it read is held against something else; what became of the strike later is in the tables below.\n\
         - `R`: it noticed, read again or put right in its place, and completed right.\n\
         - `A`: it noticed, the epoch was begun anew, and it completed right.\n\
         - `E`: it failed, or its answer was wrong, or the recovery point after it failed.\n\
         - `B`: it gave wrong bytes; or something read afterwards or after the next mount was wrong, or the check found something.\n\
         - `C`: something panicked.\n\
         - Empty: there is no such field then.\n\n\
         `E`, `B` and `C` make the program fail. {}\n\n\
         Each field is struck in two states of a store, where it is there: as it was mounted, to be closed in the end; and with changes \
         since its last recovery point, some of them in the intent log, and a power cut in the end. In one of them the strike comes right after everything has been looked \
         at and is believed for a second, in the other one that second is over; which, and what is struck of a kind, is by the seed, and the same for all fields of a kind. \
         What is the operation's own is preferred: its file's tree, record and attributes, its directory's pages. \
         For the store's own metadata the cache is all but empty, so that the operation has to ask the store; for pages and attributes in the cache everything has been read. \
         Fields that met the same are one row; all are named in [metadata-campaign.md](metadata-campaign.md#fields).\n\n\
         ## By field and operation\n\n{}\n",
        fields.len(),
        done.trials.len(),
        done.cells(),
        match broken {
            0 => "There is none.".to_string(),
            _ => format!("**There are {broken} such strikes.**"),
        },
        by_field(done)
    );
    out.push_str("Operations:\n\n");
    for operation in Operation::ALL {
        let _ = writeln!(out, "- `{}` {operation}: {}", operation.column(), operation.meaning());
    }
    let _ = write!(out, "\n## By operation\n\n{}\n## By kind\n\n{}\n", by_operation(done), by_kind(done));
    let _ = write!(
        out,
        "{NEVER_NOTICED}\nTold as a logic bug, and not as the scribble that it was: {} strikes.\n\n{BESIDE}\
         | system crashes | 54 | {} |\n\
         | operations that failed, had wrong results or a misleading message | 30 | {} |\n\
         | bad data | 5, of which 3 for metadata | {} |\n\
         | noticed and put right, or begun anew | 0 | {} |\n\n",
        named_logic(done),
        cells_of(Outcome::Crashed),
        cells_of(Outcome::Failed),
        cells_of(Outcome::Bad),
        done.trials
            .iter()
            .filter(|trial| trial.outcomes.iter().any(|of| matches!(of, Outcome::PutRight | Outcome::Anew)))
            .map(|trial| &trial.cell)
            .collect::<BTreeSet<_>>()
            .len(),
    );
    out.push_str(
        "## Left out\n\n\
         - *What there is only while a recovery point or a log batch is made*: changed blocks of the store and where they go, records of changed objects, a superblock that is prepared, batches of the log. \
         No operation begins in the middle of it in the lab, which has one thread; the [campaign](metadata-campaign.md#by-moment) strikes it at each moment.\n\
         - What that page [leaves out](metadata-campaign.md#left-out).\n",
    );
    if !done.missed.is_empty() {
        let _ = write!(out, "\n## Not there\n\n");
        missed(done).lines().for_each(|line| out.push_str(&format!("- {line}.\n")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::operations::Way;
    use holdfast_physical::scribble::State;

    fn trial(operation: Operation, field: &str, outcomes: &[Outcome]) -> Trial {
        Trial {
            cell: Cell { operation, kind: Kind::Attributes, field: field.into() },
            replay: (Way::Clean, State::Clean, 7),
            struck: "a bit".into(),
            outcomes: outcomes.iter().copied().collect(),
            later: Outcome::Quiet,
            is_named_logic: false,
            wrong: Vec::new(),
        }
    }

    #[test]
    fn fields_that_met_the_same_are_one_row_and_whatever_broke_has_its_own() {
        let mut done = Done::default();
        for field in ["a", "b", "c", "d", "e", "f"] {
            done.trials.push(trial(Operation::Stat, field, &[Outcome::PutRight]));
            done.trials.push(trial(Operation::Stat, field, &[Outcome::Quiet]));
            done.trials.push(trial(Operation::Read, field, &[Outcome::Quiet]));
        }
        done.trials.push(trial(Operation::Read, "c", &[Outcome::Quiet, Outcome::Bad]));
        done.trials.push(trial(Operation::Stat, "g", &[Outcome::Anew, Outcome::Crashed]));
        assert_eq!(
            by_field(&done),
            "| kind | fields | st | re |\n|---|---|:-:|:-:|\n\
             | attributes | `c` | R | B |\n\
             | attributes | `g` | AC |  |\n\
             | attributes | the other 5 | R | . |\n"
        );
        assert_eq!(done.broken().count(), 2);
        assert_eq!((done.trials.len(), done.cells()), (20, 13));
        let text = text(&done);
        assert!(text.contains("BROKEN (B): attributes, c, before read: a bit"), "{text}");
        assert!(text.contains("--by-operation --replay 'read:clean:7:attributes:clean:c'"), "{text}");
        let page = markdown(&done, "make it", Some("abc"));
        for row in ["| system crashes | 54 | 1 |", "| bad data | 5, of which 3 for metadata | 1 |", "of commit abc"] {
            assert!(page.contains(row), "{page}");
        }
    }
}
