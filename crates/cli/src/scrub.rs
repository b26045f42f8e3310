//! What a scrub has done: as the mount tells it, and as it is shown. And what the mount can be asked.

use crate::date::utc;
use crate::output::{self, Report, count, table};
use crate::quoting;
use crate::size;
use holdfast_object::{PAGE_SIZE, ScrubCounts, ScrubFinding};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What a scrub is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScrubCondition {
    /// There has been none.
    #[default]
    Never,
    Running,
    Paused,
    /// Everything has been read.
    Done,
    Cancelled,
    /// It could not go on.
    Failed,
}

/// Something found bad.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) finding: ScrubFinding,
    /// Of the file that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", quoting::line(&self.finding.to_string()))?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, ", in {}", quoting::name(path)))
    }
}

/// A scrub, the last or the present one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScrubReport {
    pub(crate) condition: ScrubCondition,
    /// Seconds after 1970.
    pub(crate) started_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_s: Option<u64>,
    /// Time spent in it, without that between mounts and in pauses.
    pub(crate) running_ms: u64,
    /// 0: as fast as it goes.
    pub(crate) rate_bytes_per_s: u64,
    /// Blocks that a whole scrub has to read, as of the last step.
    pub(crate) blocks_in_use: u64,
    pub(crate) counts: ScrubCounts,
    /// Number of all findings.
    pub(crate) found: u64,
    /// The first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<Found>,
    /// Why it could not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl ScrubReport {
    /// How much of it is done, from 0 to 1.
    pub(crate) fn part(&self) -> f64 {
        match self.condition {
            ScrubCondition::Done => 1.0,
            // More than all: shared blocks are read again after a restart, and in the meantime written ones may be counted.
            _ => (self.counts.blocks() as f64 / self.blocks_in_use.max(1) as f64).min(0.99),
        }
    }

    /// Seconds that it will still take, if it goes on as it did. Nothing where nobody knows.
    pub(crate) fn estimate_s(&self) -> Option<u64> {
        let rest = self.blocks_in_use.saturating_sub(self.counts.blocks());
        let done = self.counts.blocks();
        (self.condition == ScrubCondition::Running && done > 0 && rest > 0)
            .then(|| (rest as f64 * self.running_ms as f64 / done as f64 / 1000.0).ceil() as u64)
    }

    /// That several of what is listed are in one block, and in how many blocks all of it is.
    fn shared(&self) -> Option<String> {
        let places = || self.findings.iter().filter_map(|found| found.finding.place.address);
        let (all, blocks) = (places().count(), places().collect::<BTreeSet<u64>>().len());
        (blocks < all).then(|| {
            let blocks = count(blocks as u64, "block", "blocks");
            format!("{blocks} in all: one that files and snapshots share is told for each of them")
        })
    }

    /// Whether there are pages without a good copy, or anything else that could not be put right, as far as it has seen.
    pub(crate) fn has_losses(&self) -> bool {
        self.counts.lost + self.counts.lost_before + self.counts.unrepaired > 0
    }

    /// When it ended: what it found may be of long ago.
    fn when(&self) -> String {
        let seconds = self.ended_s.and_then(|ended| i64::try_from(ended).ok());
        seconds.map(|seconds| format!(" on {}", utc(seconds))).unwrap_or_default()
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        let percent = (self.part() * 100.0).floor();
        let mut text = match self.condition {
            ScrubCondition::Never => return "never".into(),
            ScrubCondition::Running => match self.estimate_s() {
                Some(estimate) => format!("running, {percent}%, some {} to go", time(estimate)),
                None => format!("running, {percent}%"),
            },
            ScrubCondition::Paused => format!("paused at {percent}%"),
            ScrubCondition::Done => format!("done{} in {}", self.when(), time(self.running_ms.div_ceil(1000))),
            ScrubCondition::Cancelled => format!("cancelled{} at {percent}%", self.when()),
            ScrubCondition::Failed => {
                format!("FAILED{} at {percent}%: {}", self.when(), quoting::line(self.error.as_deref().unwrap_or("?")))
            }
        };
        let ScrubCounts { repaired, lost, unrepaired, lost_before, .. } = self.counts;
        if repaired + lost + unrepaired == 0 {
            text.push_str(if lost_before > 0 { "; no new errors" } else { "; no errors" });
        }
        // Each file and snapshot that shares a block has a page of its own.
        let (block, page) = (["block", "blocks"], ["page of files", "pages of files"]);
        for (number, [one, many], what) in
            [(repaired, block, "repaired"), (lost, page, "LOST"), (unrepaired, block, "NOT repaired")]
        {
            if number > 0 {
                text.push_str(&format!("; {} {what}", count(number, one, many)));
            }
        }
        if lost_before > 0 {
            text.push_str(&format!("; {} LOST before", count(lost_before, "page of files", "pages of files")));
        }
        if self.counts.no_checksum > 0 {
            text.push_str(&format!("; {} NOT verified", without_checksum(self.counts.no_checksum)));
        }
        text
    }
}

/// Blocks of files that were written in mode `none`, and how much that is.
pub(crate) fn without_checksum(blocks: u64) -> String {
    let bytes = size::show(blocks.saturating_mul(PAGE_SIZE as u64));
    format!("{} of files without a checksum ({bytes})", count(blocks, "block", "blocks"))
}

/// How what was written in mode `none` gets a checksum. There is no way to make one of what is there: whatever that has become would count as right.
/// It is written again in its place, as another file would take its name alone, and none of its other ones.
pub(crate) const CHECKSUM_REMEDY: &str = "written in mode none, so nothing tells whether they are as they were; to give a file checksums write it again in its place, \
     in a mount that has another mode (-o protection=auto, which a store made with none needs at each mount): dd if=FILE of=FILE bs=1M conv=notrunc";

/// `1 h 4 min`, `12 s`.
fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

impl Report for ScrubReport {
    fn words(&self) -> String {
        let mut text: String = self.findings.iter().map(|found| format!("{found}\n")).collect();
        match self.found.saturating_sub(self.findings.len() as u64) {
            0 => {}
            more => text.push_str(&format!("and {more} more; the mount's log has them all\n")),
        }
        let ScrubCounts { labels, system, tree, names, data, no_checksum, lost_before, .. } = self.counts;
        let mut rows = vec![("scrub", self.line())];
        if self.condition != ScrubCondition::Never {
            let bytes = |blocks: u64| size::show(blocks.saturating_mul(PAGE_SIZE as u64));
            rows.push((
                "read",
                format!(
                    "{}: {labels} labels and superblocks, {system} blocks of the store itself, {tree} of trees, {names} \
                     of directories, links and attributes, {data} of files",
                    bytes(self.counts.blocks())
                ),
            ));
            rows.extend(self.shared().map(|shared| ("shared", shared)));
            if no_checksum > 0 {
                rows.push(("no checksum", format!("{CHECKSUM_REMEDY}; `holdfast check` names the files")));
            }
            if lost_before > 0 {
                let what =
                    "found by an earlier scrub or mount, and not written again: `holdfast check` names files and bytes";
                rows.push(("lost before", what.to_string()));
            }
            if self.rate_bytes_per_s > 0 {
                rows.push(("rate", format!("at most {} a second", size::show(self.rate_bytes_per_s))));
            }
        }
        text + &table(&rows)
    }
}

/// What the mount is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScrubRequest {
    Begin {
        /// 0: as fast as it goes. Nothing: as it is, and a new one as fast as it goes.
        rate_bytes_per_s: Option<u64>,
    },
    Status,
    Pause,
    Resume,
    Cancel,
}

/// What it answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScrubReply {
    Done(Box<ScrubReport>),
    Refused(String),
}

impl ScrubReply {
    /// As JSON of at most so many bytes: the last findings are left out if it would be longer.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Vec<u8> {
        output::json_within(self, bytes_max, |reply| {
            if let ScrubReply::Done(report) = reply {
                report.findings.truncate(report.findings.len() / 2);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Fate, Place};

    fn report() -> ScrubReport {
        let finding = ScrubFinding { place: Place::default(), what: "checksum".into(), fate: Fate::Lost, block: None };
        ScrubReport {
            condition: ScrubCondition::Running,
            running_ms: 10_000,
            blocks_in_use: 400,
            counts: ScrubCounts { data: 100, lost: 1, ..ScrubCounts::default() },
            found: 1,
            findings: vec![Found { finding, path: Some("/a/b".into()) }],
            ..ScrubReport::default()
        }
    }

    #[test]
    fn progress_and_estimate_follow_from_what_was_read() {
        let mut report = report();
        assert_eq!(report.estimate_s(), Some(30));
        let words = report.words();
        for part in ["running, 25%, some 30 s to go", "1 page of files LOST", "(LOST), in /a/b", "100 of files"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("shared"), "{words}");
        report.findings[0].finding.place.address = Some(7);
        report.findings.push(report.findings[0].clone());
        assert!(report.words().contains("shared  1 block in all: one that"), "{}", report.words());
        report.counts.data = 4000;
        assert!(report.part() < 1.0 && report.estimate_s().is_none());
        assert!(report.line().starts_with("running, 99%; "), "{}", report.line());
        report.condition = ScrubCondition::Done;
        report.ended_s = Some(1_795_237_203);
        assert_eq!(report.line(), "done on 2026-11-21 05:00:03 UTC in 10 s; 1 page of files LOST");
        report.ended_s = Some(u64::MAX);
        assert_eq!(report.line(), "done in 10 s; 1 page of files LOST", "nonsense of a record is left out");
        report.counts.no_checksum = 25;
        let line = report.line();
        assert!(line.ends_with("; 25 blocks of files without a checksum (100 KiB) NOT verified"), "{line}");
        assert!(report.part() == 1.0 && report.estimate_s().is_none() && report.has_losses());
    }

    #[test]
    fn a_reply_fits() {
        let mut report = report();
        report.findings = vec![report.findings[0].clone(); 100];
        let reply = ScrubReply::Done(Box::new(report.clone()));
        let json = reply.to_json(4000);
        assert!(json.len() <= 4000);
        let ScrubReply::Done(got) = serde_json::from_slice(&json).unwrap() else { panic!("refused") };
        assert!(!got.findings.is_empty() && got.findings.len() < 100);
        assert_eq!(serde_json::from_slice::<ScrubReply>(&reply.to_json(1 << 20)).unwrap(), reply);
    }

    #[test]
    fn times_are_short() {
        assert_eq!([0, 119, 120, 7200, 90_061].map(time), ["0 s", "119 s", "2 min", "2 h 0 min", "25 h 1 min"]);
    }
}
