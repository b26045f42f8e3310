//! The scrub of a mount: a thread that takes one step after the other, at a rate, and can be told to pause, go on or stop.
//!
//! Where it is, is kept in a record beside the mount's log (`$XDG_STATE_HOME/holdfast/scrub-UUID.json`), written every few
//! seconds and when something is decided; the next mount of the store goes on from there, also after a crash. The record is
//! no part of the store: without it a scrub begins anew, and nothing else is lost.

use super::record::RecordFile;
use crate::failure::{Failure, Result};
use crate::scrub::{Found, ScrubCondition, ScrubReport};
use crate::stack::Stack;
use holdfast_object::{DomainId, ObjectCache, PAGE_SIZE, ScrubCursor, ScrubFinding};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Blocks of a step: 1 MiB, or less where the rate is low.
const STEP_BLOCKS: u64 = 256;
/// Steps taken in a second at least, so that a slow scrub is an even one.
const STEPS_PER_SECOND: u64 = 10;
/// How often the record is written at least.
const RECORD_PERIOD: Duration = Duration::from_secs(5);
/// Findings kept with their paths; all of them are in the log.
const FINDINGS_MAX: usize = 200;

/// What is kept of a scrub.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Record {
    report: ScrubReport,
    cursor: ScrubCursor,
}

struct Shared {
    record: Mutex<(Record, Wanted)>,
    wake: Condvar,
}

/// What the thread is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Run,
    Rest,
    End,
}

/// A mount's scrub.
pub(crate) struct Scrubber {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stack: Arc<Stack>,
    file: Option<Arc<RecordFile>>,
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Scrubber {
    /// Goes on with what an earlier mount left, if that was running. To be called before the mount is made. The record is of the store, and not
    /// of a copy of it, which has the same UUID.
    pub(crate) fn start(stack: &Arc<Stack>, is_copy: bool) -> Scrubber {
        let file = if is_copy { Ok(None) } else { RecordFile::of("scrub", &stack.module.store_uuid()) };
        let file = file.unwrap_or_else(|error| {
            tracing::warn!(%error, "there is no place for the record of a scrub: it would begin anew after a restart");
            None
        });
        let file = file.map(Arc::new);
        let record = file.as_deref().and_then(RecordFile::load_or_warn::<Record>).unwrap_or_default();
        Scrubber::with(stack, file, record)
    }

    /// On another stack of the same store, after [`Scrubber::halt`].
    pub(crate) fn moved_to(&self, stack: &Arc<Stack>) -> Scrubber {
        Scrubber::with(stack, self.file.clone(), self.shared.record.lock().0.clone())
    }

    fn with(stack: &Arc<Stack>, file: Option<Arc<RecordFile>>, record: Record) -> Scrubber {
        let scrubber = Scrubber {
            shared: Arc::new(Shared { record: Mutex::new((record.clone(), Wanted::Rest)), wake: Condvar::new() }),
            thread: Mutex::new(None),
            stack: stack.clone(),
            file,
        };
        if record.report.condition == ScrubCondition::Running {
            tracing::info!(blocks = record.report.counts.blocks(), "the scrub goes on where it was");
            if let Err(failure) = scrubber.run() {
                tracing::error!("{failure}");
            }
        }
        scrubber
    }

    pub(crate) fn report(&self) -> ScrubReport {
        self.shared.record.lock().0.report.clone()
    }

    /// Begins a scrub; one that is there goes on, at the new rate if there is one.
    pub(crate) fn begin(&self, rate_bytes_per_s: Option<u64>) -> Result<ScrubReport> {
        {
            let (record, wanted) = &mut *self.shared.record.lock();
            if !matches!(record.report.condition, ScrubCondition::Running | ScrubCondition::Paused) {
                *record = Record::default();
                record.report.started_s = now_s();
            }
            record.report.condition = ScrubCondition::Running;
            if let Some(rate) = rate_bytes_per_s {
                record.report.rate_bytes_per_s = rate;
            }
            *wanted = Wanted::Run;
            keep(self.file.as_deref(), record);
        }
        self.run()?;
        Ok(self.report())
    }

    /// Goes on with a scrub that rests.
    pub(crate) fn resume(&self) -> Result<ScrubReport> {
        let report = self.decide(ScrubCondition::Paused, ScrubCondition::Running, "no scrub is paused")?;
        self.run()?;
        Ok(report)
    }

    pub(crate) fn pause(&self) -> Result<ScrubReport> {
        self.decide(ScrubCondition::Running, ScrubCondition::Paused, "no scrub is running")
    }

    pub(crate) fn cancel(&self) -> Result<ScrubReport> {
        let from = self.report().condition;
        let from = if from == ScrubCondition::Paused { from } else { ScrubCondition::Running };
        self.decide(from, ScrubCondition::Cancelled, "no scrub is running or paused")
    }

    fn decide(&self, from: ScrubCondition, to: ScrubCondition, otherwise: &str) -> Result<ScrubReport> {
        let (record, wanted) = &mut *self.shared.record.lock();
        if record.report.condition != from {
            return Err(Failure::new(otherwise));
        }
        record.report.condition = to;
        record.report.ended_s = (to == ScrubCondition::Cancelled).then(now_s);
        *wanted = if to == ScrubCondition::Running { Wanted::Run } else { Wanted::Rest };
        self.shared.wake.notify_all();
        keep(self.file.as_deref(), record);
        Ok(record.report.clone())
    }

    /// Sees to it that a thread takes the steps.
    fn run(&self) -> Result<()> {
        self.shared.record.lock().1 = Wanted::Run;
        self.shared.wake.notify_all();
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, stack, file) = (self.shared.clone(), self.stack.clone(), self.file.clone());
            let steps = move || take_steps(&shared, &stack, file.as_deref());
            let started = std::thread::Builder::new().name("scrub".into()).spawn(steps);
            *thread = Some(started.map_err(|error| Failure::new(format!("no thread for the scrub: {error}")))?);
        }
        Ok(())
    }

    /// Ends the thread; the next mount goes on from here.
    pub(crate) fn stop(&self) {
        if self.halt() {
            keep(self.file.as_deref(), &self.shared.record.lock().0);
        }
    }

    /// Ends the thread and writes no record: what comes in the place of this has it in memory. Whether there was one.
    pub(crate) fn halt(&self) -> bool {
        self.shared.record.lock().1 = Wanted::End;
        self.shared.wake.notify_all();
        // A panic has aborted the process.
        self.thread.lock().take().map(JoinHandle::join).is_some()
    }
}

/// With the record locked, as two at once would write the same file.
fn keep(file: Option<&RecordFile>, record: &Record) {
    if let Some(file) = file
        && let Err(error) = file.save(record)
    {
        tracing::warn!(file = %file.path.display(), %error, "a scrub would begin anew after a restart");
    }
}

/// Until the mount ends.
fn take_steps(shared: &Shared, stack: &Stack, file: Option<&RecordFile>) {
    let mut kept = Instant::now();
    loop {
        let (cursor, rate) = {
            let mut guard = shared.record.lock();
            loop {
                match guard.1 {
                    Wanted::End => return,
                    Wanted::Run => break (guard.0.cursor, guard.0.report.rate_bytes_per_s),
                    Wanted::Rest => shared.wake.wait(&mut guard),
                }
            }
        };
        let began = Instant::now();
        let blocks = match rate {
            0 => STEP_BLOCKS,
            rate => (rate / PAGE_SIZE as u64 / STEPS_PER_SECOND).clamp(1, STEP_BLOCKS),
        };
        if cursor == ScrubCursor::Start {
            // So that what was written again is read, and not what it has replaced. Where that fails, the store as it is is read.
            if let Err(error) = stack.cache.sync_all() {
                tracing::debug!(%error, "a scrub begins without a new recovery point");
            }
        }
        let outcome = stack.cache.scrub_step(&cursor, blocks);
        let found = outcome.as_ref().map_or_else(|_| Vec::new(), |step| named(stack, &step.findings));
        let mut guard = shared.record.lock();
        let (record, wanted) = &mut *guard;
        if record.cursor != cursor {
            // A new one has been begun.
            continue;
        }
        let step = match outcome {
            Ok(step) => step,
            Err(error) => {
                tracing::error!(%error, "the scrub cannot go on");
                record.report.condition = ScrubCondition::Failed;
                record.report.ended_s = Some(now_s());
                record.report.error = Some(error.to_string());
                *wanted = if *wanted == Wanted::End { Wanted::End } else { Wanted::Rest };
                keep(file, record);
                continue;
            }
        };
        let report = &mut record.report;
        let step_blocks = step.counts.blocks();
        report.counts.add(&step.counts);
        report.blocks_in_use = step.blocks_in_use;
        report.found += found.len() as u64;
        let room = FINDINGS_MAX.saturating_sub(report.findings.len());
        report.findings.extend(found.into_iter().take(room));
        record.cursor = step.cursor;
        let is_done = step.cursor == ScrubCursor::End;
        if is_done && report.condition == ScrubCondition::Running {
            report.condition = ScrubCondition::Done;
            report.ended_s = Some(now_s());
        }
        let due = match rate {
            0 => began,
            rate => began + Duration::from_secs_f64((step_blocks * PAGE_SIZE as u64) as f64 / rate as f64),
        };
        while guard.1 == Wanted::Run && !is_done && !shared.wake.wait_until(&mut guard, due).timed_out() {}
        guard.0.report.running_ms += began.elapsed().as_millis() as u64;
        if is_done {
            finish(stack, &guard.0.report);
            if guard.1 == Wanted::Run {
                guard.1 = Wanted::Rest;
            }
        }
        if is_done || kept.elapsed() >= RECORD_PERIOD {
            keep(file, &guard.0);
            kept = Instant::now();
        }
    }
}

/// What was marked or written again gets into a recovery point.
fn finish(stack: &Stack, report: &ScrubReport) {
    let counts = &report.counts;
    tracing::info!(
        blocks = counts.blocks(),
        repaired = counts.repaired,
        lost = counts.lost,
        unrepaired = counts.unrepaired,
        "the scrub has read everything"
    );
    if counts.lost + counts.repaired > 0
        && let Err(error) = stack.cache.sync_all()
    {
        tracing::error!(%error, "what the scrub changed is not durable");
    }
}

/// The findings with the names of the files that they are about.
fn named(stack: &Stack, findings: &[ScrubFinding]) -> Vec<Found> {
    let name = |finding: &ScrubFinding| {
        let key = finding.place.object.filter(|key| key.domain == DomainId::MAIN)?;
        Some(String::from_utf8_lossy(&stack.namespace.path_of(key.object)).into_owned())
    };
    let found: Vec<Found> =
        findings.iter().map(|finding| Found { finding: finding.clone(), path: name(finding) }).collect();
    found.iter().for_each(|found| tracing::warn!("scrub: {found}"));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::{Settings, tests::made_in};

    /// As each attempt at a remount does while all requests wait.
    #[test]
    fn a_scrub_that_moves_to_another_stack_writes_no_record_until_it_stops() {
        let directory = tempfile::tempdir().unwrap();
        let device = made_in(directory.path());
        let stack = Arc::new(Stack::open_watched(device(), &Settings::to_look(), &mut |_| {}).unwrap());
        let path = directory.path().join("scrub-x.json");
        let file = Arc::new(RecordFile::open(path.clone()).unwrap());
        let scrubber = Scrubber::with(&stack, Some(file.clone()), Record::default());
        // One block, and the next one after an hour.
        scrubber.begin(Some(1)).unwrap();
        assert_eq!(file.load::<Record>().unwrap().unwrap().report.condition, ScrubCondition::Running);
        std::fs::remove_file(&path).unwrap();
        assert!(scrubber.halt());
        let moved = scrubber.moved_to(&stack);
        assert!(!path.exists());
        let report = moved.report();
        assert_eq!((report.condition, report.rate_bytes_per_s), (ScrubCondition::Running, 1));
        moved.stop();
        assert_eq!(file.load::<Record>().unwrap().unwrap().report.condition, ScrubCondition::Running);
    }
}
