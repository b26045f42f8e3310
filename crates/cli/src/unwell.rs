//! Why somebody has to see to a store: each reason for which `status` exits with 3, and what is said of it.

use crate::output::count;
use crate::paths::shell;
use crate::report::{Condition, StoreReport};
use crate::scrub::ScrubReport;
use std::path::Path;

/// A reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unwell {
    /// Nobody serves its mount, or nobody can open it.
    NotServed,
    /// Its root directory cannot be read.
    RootDamaged,
    /// It takes no changes, as a device or the memory failed, or something in it is wrong.
    Latched,
    /// It is on a Flashlog whose devices are not all in order: a failure now may lose what was answered.
    NotProtected,
    /// Pages went bad in memory before they were stored, and have to be written again.
    NotStored,
    /// Blocks without a good copy were met since it was mounted, or opened for this.
    Corrupt,
    /// Something was met in entries that are free.
    Remains,
    /// Its last scrub met some.
    Lost,
}

impl Unwell {
    const ALL: [Unwell; 8] = [
        Unwell::NotServed,
        Unwell::RootDamaged,
        Unwell::Latched,
        Unwell::NotProtected,
        Unwell::NotStored,
        Unwell::Corrupt,
        Unwell::Remains,
        Unwell::Lost,
    ];
}

impl StoreReport {
    /// Whether somebody has to see to it.
    pub(crate) fn is_unwell(&self) -> bool {
        Unwell::ALL.into_iter().any(|reason| self.is(reason))
    }

    fn is(&self, reason: Unwell) -> bool {
        match reason {
            Unwell::NotServed => match self.condition {
                Condition::Mounted | Condition::Inaccessible => false,
                Condition::Abandoned | Condition::NotAnswering | Condition::WithoutLog => true,
                Condition::Clean | Condition::Unclean => self.mounted_on.is_some(),
            },
            Unwell::RootDamaged => self.root_damage.is_some(),
            Unwell::Latched => self.latched,
            Unwell::NotProtected => self.is_unprotected(),
            Unwell::NotStored => self.pages_bad() > 0,
            Unwell::Corrupt => self.figures.as_ref().is_some_and(|figures| figures.blocks_unrepaired > 0),
            Unwell::Remains => self.figures.as_ref().is_some_and(|figures| figures.blocks_with_remains > 0),
            Unwell::Lost => self.scrub.as_ref().is_some_and(ScrubReport::has_losses),
        }
    }

    /// What to do, a line for each reason that there is.
    pub(crate) fn what_to_do(&self) -> impl Iterator<Item = String> {
        Unwell::ALL.into_iter().filter(|reason| self.is(*reason)).map(|reason| self.remedy(reason))
    }

    /// What one reason is, by the word that the other lines have for it, and what to do.
    fn remedy(&self, reason: Unwell) -> String {
        let store = shell(Path::new(&self.store));
        let target = self.mounted_on.as_ref().map_or_else(|| store.clone(), |directory| shell(Path::new(directory)));
        match reason {
            Unwell::NotServed => match self.condition {
                Condition::WithoutLog => {
                    "LOG IS NOT THERE: plug it in, or say where it is: --log PATH; to mount main alone: -o without-log"
                        .into()
                }
                Condition::NotAnswering => format!(
                    "does NOT ANSWER: its disk may be slow, or hang (dmesg tells): wait, or cut the mount off with holdfast unmount --force {target}"
                ),
                _ => format!(
                    "its daemon has died: holdfast mount {store} {target} makes the mount anew, with all that was synced; holdfast unmount \
                     {target} takes it away"
                ),
            },
            Unwell::RootDamaged => format!(
                "ROOT DIRECTORY: copy what can be read by paths that are known, and what snapshots have ({target}/.holdfast/snapshots); then \
                 holdfast unmount {target}, and holdfast check {store} says what is damaged"
            ),
            Unwell::Latched if self.stopped_at_opening => format!(
                "READ-ONLY, as something was wrong with the store when it was mounted: copy what is needed; then holdfast unmount {target}, and \
                 holdfast check {store} says what is damaged, and what mends it"
            ),
            Unwell::Latched => format!(
                "READ-ONLY: what was synced is not lost; if a device failed, copy what is needed as long as it can be read, and look at it \
                 (dmesg, smartctl -a); holdfast unmount {target} and a new mount take changes again once the cause is gone"
            ),
            Unwell::NotProtected => {
                let is_alone = self.flashlog.as_ref().is_some_and(|set| set.alone.is_some());
                let (attach, of_set) = match &self.mounted_on {
                    Some(_) => (format!("{target} --log LOG"), target),
                    None => (format!("--main {store} --log LOG"), format!("--main {store} --log LOG")),
                };
                match is_alone {
                    true => format!(
                        "NOT PROTECTED: holdfast flashlog attach {attach} gives main its log back, or another one with --new"
                    ),
                    // The set takes no changes: a log that was unplugged is the usual cause, and what it alone has is missing.
                    false if self.latched => format!(
                        "NOT PROTECTED, for what is said at Flashlog: if the log was unplugged, plug it in, and holdfast flashlog attach {attach} \
                         gives it back"
                    ),
                    false => format!(
                        "NOT PROTECTED, for what is said at Flashlog: holdfast flashlog backup {of_set} makes a backup (the first one: --to \
                         DEVICE); holdfast flashlog scrub {of_set} looks for damage"
                    ),
                }
            }
            Unwell::NotStored => format!(
                "NOT STORED: write the pages named again, whole, then holdfast sync {target}; until then the disk has what was there before, or \
                 nothing"
            ),
            Unwell::Corrupt => {
                let until = match self.condition {
                    Condition::Mounted => "; this is said until it is mounted anew",
                    _ => "",
                };
                format!("CORRUPT: holdfast check {target} names files and bytes, and what helps{until}")
            }
            Unwell::Remains => {
                let unmount = self.mounted_on.is_some().then(|| format!("holdfast unmount {target}, then "));
                format!(
                    "NOT EMPTY: memory has gone bad unseen in entries that are free. They are taken for free, and nothing is lost; {}holdfast \
                     check --repair {store} empties them",
                    unmount.unwrap_or_default()
                )
            }
            Unwell::Lost => {
                let scrub = self.scrub.as_ref();
                let counts = scrub.map(|scrub| scrub.counts).unwrap_or_default();
                let lost = counts.lost + counts.lost_before;
                let lost = (lost > 0).then(|| format!("{} LOST", count(lost, "page", "pages")));
                let unrepaired = (counts.unrepaired > 0).then(|| format!("{} NOT repaired", counts.unrepaired));
                let found: Vec<String> = lost.into_iter().chain(unrepaired).collect();
                format!(
                    "{} as of the last scrub: holdfast check {target} names files and bytes, and what helps; then holdfast scrub {target}, until \
                     which this is said",
                    found.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Report;
    use crate::report::{CacheFigures, Figures, SnapshotFigures};
    use crate::scrub::ScrubCondition;
    use holdfast_cache::CacheStatus;
    use holdfast_integrity::Protection;
    use holdfast_object::{ScrubCounts, StoreStatus};

    fn mounted(condition: Condition) -> StoreReport {
        StoreReport::bare(Path::new("/s"), condition, Some(Path::new("/m")))
    }

    fn with_scrub(counts: ScrubCounts) -> StoreReport {
        let scrub = ScrubReport { condition: ScrubCondition::Done, counts, ..ScrubReport::default() };
        StoreReport { scrub: Some(scrub), ..mounted(Condition::Mounted) }
    }

    fn with_cache(pages_bad: u64, pages_lost: u64) -> StoreReport {
        let status = CacheStatus { pages_bad, pages_lost, ..CacheStatus::default() };
        StoreReport { cache: Some(CacheFigures::from(&status)), ..mounted(Condition::Mounted) }
    }

    fn with_figures(unrepaired: u64) -> StoreReport {
        with_status(StoreStatus { unrepaired, ..StoreStatus::default() })
    }

    fn with_status(status: StoreStatus) -> StoreReport {
        let modes = (Protection::Uniform, Protection::Uniform);
        let figures = Figures::new([1; 16], SnapshotFigures::default(), modes, status);
        StoreReport { figures: Some(figures), ..mounted(Condition::Mounted) }
    }

    fn on_flashlog(alone: bool) -> StoreReport {
        let mut set = serde_json::json!({
            "set": "x", "protected": false, "problem": "something", "mode": "sync", "generation": 1, "size_bytes": 1, "main": "/s",
            "log": "/l", "behind_bytes": 0, "log_used_bytes": 0, "log_bytes": 0, "log_pages_percent": 0, "backing_up": false,
            "read_only": false, "uris": [], "pid": 1,
        });
        if alone {
            set["alone"] = serde_json::json!({ "since_generation": 1, "changed_bytes": 0 });
        }
        StoreReport { flashlog: Some(serde_json::from_value(set).unwrap()), ..mounted(Condition::Mounted) }
    }

    /// Every way to each reason, with the word that tells it and a command or deed.
    #[test]
    fn each_reason_for_exit_code_3_is_told_with_what_to_do() {
        let ways = [
            (Unwell::NotServed, mounted(Condition::Abandoned), "ABANDONED", "holdfast mount /s /m"),
            (Unwell::NotServed, mounted(Condition::NotAnswering), "does NOT ANSWER", "holdfast unmount --force /m"),
            (Unwell::NotServed, mounted(Condition::Clean), "daemon of its mount on /m has died", "holdfast unmount /m"),
            (
                Unwell::NotServed,
                mounted(Condition::Unclean),
                "daemon of its mount on /m has died",
                "holdfast mount /s /m",
            ),
            (
                Unwell::NotServed,
                StoreReport { mounted_on: None, ..mounted(Condition::WithoutLog) },
                "LOG IS NOT THERE",
                "--log PATH",
            ),
            (
                Unwell::RootDamaged,
                StoreReport { root_damage: Some("its record is bad".into()), ..mounted(Condition::Mounted) },
                "cannot be read: its record is bad",
                "/m/.holdfast/snapshots",
            ),
            (
                Unwell::Latched,
                StoreReport {
                    latched: true,
                    read_only: Some("write failed at block 9".into()),
                    ..mounted(Condition::Mounted)
                },
                "write failed at block 9",
                "holdfast unmount /m",
            ),
            (
                Unwell::Latched,
                StoreReport {
                    latched: true,
                    stopped_at_opening: true,
                    read_only: Some("the root directory cannot be read".into()),
                    ..mounted(Condition::Mounted)
                },
                "the root directory cannot be read",
                "copy what is needed; then holdfast unmount /m, and holdfast check /s",
            ),
            (Unwell::NotProtected, on_flashlog(false), "NOT PROTECTED", "holdfast flashlog backup /m"),
            (Unwell::NotProtected, on_flashlog(true), "NOT PROTECTED", "holdfast flashlog attach /m"),
            (Unwell::NotStored, with_cache(2, 3), "2 pages went bad in memory", "write the pages named again"),
            (Unwell::Corrupt, with_figures(3), "3 CORRUPT", "holdfast check /m"),
            (
                Unwell::Remains,
                with_status(StoreStatus { remains: 1, ..StoreStatus::default() }),
                "1 block with free entries that are NOT EMPTY (nothing is lost)",
                "holdfast check --repair /s empties them",
            ),
            (
                Unwell::Lost,
                with_scrub(ScrubCounts { lost: 1, ..ScrubCounts::default() }),
                "1 page of files LOST",
                "holdfast check /m",
            ),
            (
                Unwell::Lost,
                with_scrub(ScrubCounts { lost_before: 2, ..ScrubCounts::default() }),
                "no new errors; 2 pages of files LOST before",
                "2 pages LOST as of the last scrub: holdfast check /m",
            ),
            (
                Unwell::Lost,
                with_scrub(ScrubCounts { unrepaired: 1, ..ScrubCounts::default() }),
                "1 block NOT repaired",
                "holdfast check /m",
            ),
        ];
        for (reason, report, what, to_do) in &ways {
            let reasons: Vec<Unwell> = Unwell::ALL.into_iter().filter(|one| report.is(*one)).collect();
            assert_eq!(reasons, [*reason], "{report:?}");
            let words = report.words();
            let told = words.lines().filter(|line| line.contains(to_do)).count();
            assert!(report.is_unwell() && words.contains(what) && told == 1, "{reason:?}: {what}, {to_do}: {words}");
            assert!(words.contains("what to do"), "{words}");
        }
        assert!(Unwell::ALL.into_iter().all(|reason| ways.iter().any(|(tried, ..)| *tried == reason)), "each is tried");
    }

    /// A set that takes no changes has mostly lost its log: a backup would not help.
    #[test]
    fn a_set_that_takes_no_changes_is_to_get_its_log_back() {
        let stopped =
            StoreReport { latched: true, read_only: Some("no changes are taken".into()), ..on_flashlog(false) };
        let words = stopped.words();
        assert!(words.contains("holdfast flashlog attach /m --log LOG") && !words.contains("backup /m"), "{words}");
    }

    #[test]
    fn what_was_written_again_leaves_a_line_and_nothing_to_do() {
        let report = with_cache(0, 3);
        let words = report.words();
        assert!(!report.is_unwell() && !words.contains("what to do"), "{words}");
        let line =
            "3 pages of files went bad in memory before they were stored; 3 of these were written again or cut off";
        assert!(words.contains(line), "{words}");
        assert!(with_cache(2, 3).words().contains("; 1 of these was written again or cut off"));
        assert!(!with_cache(0, 0).words().contains("went bad"));
    }
}
