//! What `status` tells, in the text format of Prometheus (exposition format 0.0.4).
//!
//! One family for each figure, with a sample for each store; a store that does not say a figure has no sample. Counters count
//! since the store was opened, so they begin anew with each mount.

use crate::flashlog::report::SetReport;
use crate::given_up::{GivenUp, Named};
use crate::quoting;
use crate::report::{CacheFigures, Condition, Figures, StoreReport};
use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Gauge,
    Counter,
}

/// A figure and where to find it.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&StoreReport) -> Option<f64>,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&StoreReport) -> Option<f64>) -> Family {
    Family { name, kind: Kind::Gauge, help, value }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&StoreReport) -> Option<f64>) -> Family {
    Family { name, kind: Kind::Counter, help, value }
}

fn is(condition: bool) -> Option<f64> {
    Some(f64::from(u8::from(condition)))
}

/// Prometheus knows no integers; beyond 2^53 the last digits go.
fn of(report: &StoreReport, value: impl Fn(&Figures) -> u64) -> Option<f64> {
    report.figures.as_ref().map(|figures| value(figures) as f64)
}

fn of_set(report: &StoreReport, value: impl Fn(&SetReport) -> u64) -> Option<f64> {
    report.flashlog.as_ref().map(|set| value(set) as f64)
}

fn of_cache(report: &StoreReport, value: impl Fn(&CacheFigures) -> u64) -> Option<f64> {
    report.cache.as_ref().map(|cache| value(cache) as f64)
}

/// The record is of the user who mounts: another one is told of nothing. Of a backup there is nothing to know.
fn of_given_up(report: &StoreReport, value: impl Fn(&GivenUp) -> u64) -> Option<f64> {
    let is_known = report.figures.is_some() && !report.is_backup();
    is_known.then(|| report.given_up.as_ref().map_or(0, value) as f64)
}

const FAMILIES: &[Family] = &[
    gauge("holdfast_mounted", "Whether the store is mounted and its daemon answers.", |r| {
        is(r.condition == Condition::Mounted)
    }),
    gauge("holdfast_abandoned", "Whether there is a mount whose daemon has died.", |r| {
        is(r.condition == Condition::Abandoned)
    }),
    gauge("holdfast_clean", "Of a store that is not mounted: whether it was left in order.", |r| match r.condition {
        Condition::Clean => is(true),
        Condition::Unclean => is(false),
        _ => None,
    }),
    gauge("holdfast_read_only", "Whether no changes are taken, for whatever reason.", |r| {
        r.figures.as_ref().and_then(|_| is(r.read_only.is_some()))
    }),
    gauge("holdfast_latched", "Whether no changes are taken because a device failed.", |r| {
        r.figures.as_ref().and_then(|_| is(r.latched))
    }),
    gauge(
        "holdfast_flashlog_protected",
        "Whether the failure of one device of its Flashlog loses nothing that was flushed but holdfast_flashlog_log_alone_bytes, if that is the log.",
        |r| r.flashlog.as_ref().and_then(|_| is(!r.is_unprotected())),
    ),
    gauge(
        "holdfast_flashlog_log_alone_bytes",
        "Flushed to the log, in asynchronous mode, and not on main for certain: at most so much goes with the log.",
        |r| of_set(r, |s| s.log_alone_bytes),
    ),
    gauge("holdfast_flashlog_behind_bytes", "In the log, and not on main for certain.", |r| {
        of_set(r, |s| s.behind_bytes)
    }),
    gauge("holdfast_flashlog_log_bytes", "Room for data in the log.", |r| of_set(r, |s| s.log_bytes)),
    gauge("holdfast_flashlog_log_used_bytes", "Of it kept, for main or for the next backup.", |r| {
        of_set(r, |s| s.log_used_bytes)
    }),
    gauge("holdfast_flashlog_since_backup_bytes", "Written to the log since the state of the backup.", |r| {
        r.flashlog.as_ref().and_then(|set| set.since_backup_bytes).map(|bytes| bytes as f64)
    }),
    gauge("holdfast_recovery_point_epoch", "Epoch of the last recovery point.", |r| of(r, |f| f.epoch)),
    gauge("holdfast_objects", "Files, directories and everything else.", |r| of(r, |f| f.objects)),
    gauge("holdfast_snapshots", "Snapshots; what each keeps is in `holdfast snapshot list`.", |r| {
        of(r, |f| f.snapshots)
    }),
    gauge(
        "holdfast_snapshots_kept_bytes",
        "What the snapshots keep together, and deleted ones still; with blocks that clones share.",
        |r| r.figures.as_ref().and_then(|figures| figures.snapshots_kept_bytes).map(|bytes| bytes as f64),
    ),
    gauge("holdfast_snapshot_deletions", "Deleted snapshots of which something is still to be freed.", |r| {
        of(r, |f| f.snapshot_deletions_count)
    }),
    gauge(
        "holdfast_snapshot_deletion_runs_left",
        "Runs of blocks of deleted snapshots that are still to be freed.",
        |r| of(r, |f| f.snapshot_deletion_runs_left),
    ),
    gauge("holdfast_space_total_bytes", "Size of the store, without labels and log.", |r| {
        of(r, |f| f.space.total_bytes)
    }),
    gauge("holdfast_space_used_bytes", "In use.", |r| of(r, |f| f.space.used_bytes)),
    gauge("holdfast_space_free_bytes", "Not in use, with all that is kept back.", |r| of(r, |f| f.space.free_bytes)),
    gauge("holdfast_space_available_bytes", "For new data.", |r| of(r, |f| f.space.available_bytes)),
    gauge("holdfast_space_pending_bytes", "Freed; free for others when the open epoch is closed.", |r| {
        of(r, |f| f.space.pending_bytes)
    }),
    gauge("holdfast_space_reserve_bytes", "Kept back, so that files can always be deleted.", |r| {
        of(r, |f| f.space.reserve_bytes)
    }),
    gauge("holdfast_space_reserved_bytes", "Set aside for changes not written yet.", |r| {
        of(r, |f| f.space.reserved_bytes)
    }),
    counter(
        "holdfast_metadata_scribbles_total",
        "Blocks of metadata, and pages of directories, links and attributes, that were changed in memory by nobody who may.",
        |r| r.figures.as_ref().map(|_| r.scribbles() as f64),
    ),
    counter("holdfast_metadata_restarts_total", "Recovery points that were given up for that, and begun anew.", |r| {
        of(r, |f| f.counters.restarts)
    }),
    counter(
        "holdfast_audit_failures_total",
        "Recovery points not made, as what had changed did not fit together.",
        |r| of(r, |f| f.counters.audit_failures),
    ),
    counter(
        "holdfast_name_audit_failures_total",
        "Requests refused, as what they would have changed did not fit together.",
        |r| r.daemon.as_ref().map(|daemon| daemon.name_audit_failures as f64),
    ),
    counter("holdfast_blocks_repaired_total", "Bad copies of blocks replaced by good ones.", |r| {
        of(r, |f| f.blocks_repaired)
    }),
    counter("holdfast_blocks_unrepaired_total", "Different blocks found without a good copy.", |r| {
        of(r, |f| f.blocks_unrepaired)
    }),
    counter(
        "holdfast_blocks_with_remains_total",
        "Different blocks found with something in entries that are free.",
        |r| of(r, |f| f.blocks_with_remains),
    ),
    counter("holdfast_device_reads_total", "Read requests sent to devices.", |r| of(r, |f| f.counters.device_reads)),
    counter("holdfast_device_read_bytes_total", "Bytes read from devices.", |r| of(r, |f| f.counters.read_bytes)),
    counter("holdfast_device_writes_total", "Write requests sent to devices.", |r| of(r, |f| f.counters.device_writes)),
    counter("holdfast_device_written_bytes_total", "Bytes written to devices.", |r| {
        of(r, |f| f.counters.written_bytes)
    }),
    counter("holdfast_device_flushes_total", "Flush requests sent to devices.", |r| {
        of(r, |f| f.counters.device_flushes)
    }),
    counter("holdfast_device_discards_total", "Runs of free blocks that devices were told of.", |r| {
        of(r, |f| f.counters.device_discards)
    }),
    counter("holdfast_epochs_total", "Recovery points made.", |r| of(r, |f| f.counters.epochs)),
    counter("holdfast_intent_log_batches_total", "Batches appended to the intent log.", |r| {
        of(r, |f| f.counters.log_batches)
    }),
    counter("holdfast_intent_log_bytes_total", "Bytes appended to the intent log.", |r| {
        of(r, |f| f.counters.log_bytes)
    }),
    gauge("holdfast_intent_log_replayed_batches", "Batches of the intent log replayed when it was mounted.", |r| {
        r.daemon.as_ref().map(|daemon| daemon.batches_replayed as f64)
    }),
    gauge("holdfast_intent_log_lost_pages", "Synced pages found lost in the intent log when it was mounted.", |r| {
        r.daemon.as_ref().map(|daemon| daemon.synced_pages_lost as f64)
    }),
    counter("holdfast_epochs_seconds_total", "Time spent in writing epochs.", |r| {
        r.cache.as_ref().map(|cache| cache.epochs_ms as f64 / 1000.0)
    }),
    counter(
        "holdfast_cache_epochs_unproved_total",
        "Recovery points not held against what changes of names have proved.",
        |r| of_cache(r, |c| c.epochs_unproved),
    ),
    counter("holdfast_fsyncs_total", "Calls of fsync, fdatasync and the like.", |r| of_cache(r, |c| c.syncs)),
    counter("holdfast_transactions_total", "Changes admitted.", |r| of_cache(r, |c| c.transactions)),
    gauge("holdfast_cache_size_bytes", "Memory for pages.", |r| of_cache(r, |c| c.total_bytes)),
    gauge("holdfast_cache_used_bytes", "Of it in use.", |r| {
        of_cache(r, |c| c.total_bytes.saturating_sub(c.free_bytes))
    }),
    gauge("holdfast_cache_dirty_bytes", "Of it changed, and in no recovery point yet.", |r| {
        of_cache(r, |c| c.dirty_bytes)
    }),
    gauge(
        "holdfast_cache_twins_bytes",
        "Memory beside it, for second copies of changed pages of directories, links and attributes.",
        |r| of_cache(r, |c| c.twins_bytes),
    ),
    counter("holdfast_cache_page_hits_total", "Pages read that were in memory.", |r| of_cache(r, |c| c.page_hits)),
    counter(
        "holdfast_cache_pages_switched_total",
        "Pages read that had been in memory for longer than t_switch.",
        |r| of_cache(r, |c| c.pages_switched),
    ),
    counter("holdfast_cache_page_misses_total", "Pages read that had to come from the store.", |r| {
        of_cache(r, |c| c.page_misses)
    }),
    counter("holdfast_cache_pages_reread_total", "Pages found corrupt in memory, and read again.", |r| {
        of_cache(r, |c| c.pages_reread)
    }),
    counter(
        "holdfast_cache_pages_renewed_total",
        "Changed pages of directories, links and attributes found corrupt in memory, and made anew from their twins.",
        |r| of_cache(r, |c| c.pages_renewed),
    ),
    counter(
        "holdfast_cache_attributes_renewed_total",
        "Attributes found corrupt in memory, and made anew from their twins or read again.",
        |r| of_cache(r, |c| c.attributes_renewed),
    ),
    counter(
        "holdfast_cache_operations_renewed_total",
        "Operations found corrupt in memory, and read of their twin or put into a recovery point; sets of what has changed, made anew; \
         numbers about objects and the log, put right.",
        |r| of_cache(r, |c| c.operations_renewed),
    ),
    counter("holdfast_cache_pages_lost_total", "Changed pages found corrupt in memory, and not stored.", |r| {
        of_cache(r, |c| c.pages_lost)
    }),
    gauge("holdfast_cache_pages_bad", "Of them not written again yet.", |r| of_cache(r, |c| c.pages_bad)),
    gauge("holdfast_given_up_files", "Files with pages that earlier mounts could not store.", |r| {
        of_given_up(r, |given_up| given_up.files)
    }),
    gauge("holdfast_given_up_pages", "Pages that earlier mounts could not store, and nobody has written again.", |r| {
        of_given_up(r, |given_up| given_up.pages)
    }),
];

/// All figures of these stores.
pub(crate) fn text(reports: &[StoreReport]) -> String {
    let mut text = String::new();
    info(&mut text, reports);
    for family in FAMILIES {
        let samples: Vec<(&StoreReport, f64)> =
            reports.iter().filter_map(|report| Some((report, (family.value)(report)?))).collect();
        if samples.is_empty() {
            continue;
        }
        let kind = if family.kind == Kind::Gauge { "gauge" } else { "counter" };
        head(&mut text, family.name, kind, family.help);
        for (report, value) in samples {
            let _ = writeln!(text, "{}{{{}}} {value}", family.name, labels(report));
        }
    }
    given_up(&mut text, reports);
    text
}

/// Which files, by their names.
fn given_up(text: &mut String, reports: &[StoreReport]) {
    let files = |report: &StoreReport| report.given_up.as_ref().map_or(0, |given_up| given_up.named.len());
    if reports.iter().map(files).sum::<usize>() == 0 {
        return;
    }
    const NAME: &str = "holdfast_given_up_file_pages";
    head(text, NAME, "gauge", "Of these pages, those of the first files, which it names.");
    for report in reports {
        for Named { path, pages, .. } in report.given_up.iter().flat_map(|given_up| &given_up.named) {
            let _ = writeln!(text, "{NAME}{{{},file=\"{}\"}} {pages}", labels(report), escaped(path));
        }
    }
}

/// What is no number, as labels.
fn info(text: &mut String, reports: &[StoreReport]) {
    if reports.is_empty() {
        return;
    }
    head(text, "holdfast_info", "gauge", "Always 1; what is known about a store and who serves it.");
    for report in reports {
        let _ = write!(text, "holdfast_info{{{}", labels(report));
        let uuid = report.figures.as_ref().map(|figures| figures.uuid.as_str());
        let version = report.daemon.as_ref().map(|daemon| daemon.version.as_str());
        for (name, value) in [("uuid", uuid), ("version", version)] {
            let _ = value.map(|value| write!(text, ",{name}=\"{}\"", escaped(value)));
        }
        let _ = writeln!(text, "}} 1");
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The same store can be mounted in one place only, but an abandoned mount may be left elsewhere.
fn labels(report: &StoreReport) -> String {
    let store = format!("store=\"{}\"", escaped(&report.store));
    match &report.mounted_on {
        Some(directory) => format!("{store},directory=\"{}\"", escaped(directory)),
        None => store,
    }
}

/// The format knows `\\`, `\"` and `\n`. Other control characters stand as in C, with a backslash that is a character of the label.
fn escaped(value: &str) -> String {
    let escaped = |part: &str| quoting::line(part).replace('\\', "\\\\").replace('"', "\\\"");
    value.split('\n').map(escaped).collect::<Vec<_>>().join("\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn names_are_prometheus_names_with_their_unit_and_are_there_once() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            assert!(
                family
                    .name
                    .strip_prefix("holdfast_")
                    .is_some_and(|name| name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()))
            );
            assert_eq!(
                family.name.ends_with("_total") && !family.name.ends_with("space_total"),
                family.kind == Kind::Counter,
                "{}",
                family.name
            );
            assert!(family.help.ends_with('.') && !family.help.contains('\\'));
        }
    }

    #[test]
    fn a_store_that_says_nothing_has_its_condition_only() {
        let report = StoreReport::bare(Path::new("/a\"b\\c\nd\x1b[2J"), Condition::NotAnswering, Some(Path::new("/m")));
        let text = text(&[report]);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = r#"{store="/a\"b\\c\nd\\033[2J",directory="/m"}"#;
        let expected = ["holdfast_info", "holdfast_mounted", "holdfast_abandoned"];
        let values = ["1", "0", "0"];
        let expected: Vec<String> =
            expected.iter().zip(values).map(|(name, value)| format!("{name}{labels} {value}")).collect();
        assert_eq!(samples, expected);
        assert_eq!(super::text(&[]), "");
    }
}
