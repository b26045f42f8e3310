//! A set that outlasts its log: main goes on alone, the log, or a new one, comes while writes go on, and it goes again.

use super::life::{BLOCKS, Life, Living, MAIN_BLOCKS, Start, contents};
use super::lost::Recovered;
use super::patient::Patient;
use super::state::{Images, Seen, as_disk, back_up, is_whole, judge, judge_backup, judge_main, last, nearest, rebuild};
use super::watch::{LOG, Mishap, Moment, Progress, Watched};
use crate::numbered::block;
use holdfast_block::flashlog::{self, Attached, Condition, Error, Flashlog, Lasting, Opened, Policy, Role, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A name for each new log.
fn name(number: u8) -> Uuid {
    Uuid([100 + number; 16])
}

pub(super) fn policy() -> Policy {
    "log=alone".parse().expect("a policy")
}

/// A life of such a set. With a loss, the log is pulled out at that request, and put back when it is attached again: at once, if the set takes no
/// changes without it, and when a process that follows a killed one does not come up without it.
pub(super) fn live(start: &Start, steps: usize, mishap: Mishap<'_>, rng: &mut Pcg64Mcg) -> Result<Life, String> {
    let watched = Watched::of_life(start, mishap);
    let [main, log, backup] = Watched::devices(&watched);
    let patient = &Patient::of(&watched, &start.options);
    let open = || {
        let main = patient.over(Role::Main, &main)?;
        match watched.has_lost(LOG) && says_alone(&*main) {
            true => Lasting::open_alone(main, &patient.options, policy(), false),
            false => open(&main, &patient.over(Role::Log, &log)?, &patient.options, watched.now().is_new),
        }
    };
    let mut trace = Vec::new();
    let (mut writes, mut next_content) = (Vec::new(), start.next_content);
    match watched.taken_up(open) {
        Ok(set) => {
            watched.progress(|progress| progress.is_open = true);
            let (start, watched) = (start, &*watched);
            let mut changing = Changing {
                start,
                watched,
                patient,
                set,
                log: Arc::clone(&log),
                backup,
                writes,
                answered: 0,
                next_content,
                new_logs: 0,
                is_spoiled: false,
                number: None,
            };
            for step in 0..steps {
                watched.progress(|progress| progress.step = step);
                let done = match changing.act(rng) {
                    Ok(None) if !watched.is_killed() => changing.put_back().map(Some),
                    done => done,
                };
                let text = match done {
                    _ if watched.is_killed() => changing.take_up(started_again(watched, open))?,
                    done => done?.unwrap_or_default(),
                };
                watched.note();
                trace.push(format!("{step}: {text}; {} blocks written", changing.writes.len()));
            }
            (writes, next_content) = (changing.writes, changing.next_content);
        }
        Err(_) if watched.lost_at().is_some() => trace.push("the opening failed".to_string()),
        Err(error) => return Err(format!("opening: {error}")),
    }
    Ok(Life { is_lasting: true, ..Life::recorded(start, &watched, mishap, writes, next_content, trace) })
}

/// The next process. If it does not come up without the log, which was pulled out before the last one was killed, that is put back.
fn started_again(watched: &Watched, open: impl Fn() -> Result<Lasting, Error>) -> Result<Lasting, Error> {
    match watched.taken_up(&open) {
        Err(_) if watched.has_lost(LOG) => {
            watched.put_back();
            watched.taken_up(open)
        }
        opened => opened,
    }
}

/// As a server is started: with the log, or main alone if it says so. With `is_new`, the log may have the beginnings of a new one.
pub(super) fn open(
    main: &Arc<dyn Device>,
    log: &Arc<dyn Device>,
    options: &flashlog::Options,
    is_new: bool,
) -> Result<Lasting, Error> {
    match Flashlog::open(Arc::clone(main), Arc::clone(log), options) {
        Ok((set, _)) => Ok(Lasting::of(set, policy())),
        Err(error) if is_alone(&error) || is_new && is_no_log(&error, &**log) => {
            Lasting::open_alone(Arc::clone(main), options, policy(), true)
        }
        Err(error) => Err(error),
    }
}

/// Main's label does: it can be served without a log that is not there.
fn says_alone(main: &dyn Device) -> bool {
    matches!(flashlog::inspect(main), Ok(Some(label)) if label.condition == Condition::Alone)
}

fn is_alone(error: &Error) -> bool {
    matches!(error, Error::Alone { .. })
}

/// What is said of a log that is being made another one: it is none yet, or not main's, or has of its labels only older ones, or torn ones.
fn is_no_log(error: &Error, log: &dyn Device) -> bool {
    match error {
        Error::NoLabel { .. }
        | Error::GivenUp { .. }
        | Error::OtherSet { .. }
        | Error::Replaced { .. }
        | Error::Older { .. } => true,
        Error::Damaged { .. } => flashlog::inspect(log).is_err(),
        _ => false,
    }
}

/// Such a life while it goes on.
struct Changing<'a> {
    start: &'a Start,
    watched: &'a Watched,
    patient: &'a Patient,
    set: Lasting,
    log: Arc<dyn Device>,
    backup: Arc<dyn Device>,
    writes: Vec<(usize, u64)>,
    /// So many of them were answered.
    answered: usize,
    next_content: u64,
    new_logs: u8,
    /// The log has the beginnings of a new one: it is nobody's any more.
    is_spoiled: bool,
    /// Which action comes next, if that is known.
    number: Option<u32>,
}

impl Changing<'_> {
    /// Does something. What it was, as text; none if the set takes no changes any more, as the log that failed has what main has not.
    fn act(&mut self, rng: &mut Pcg64Mcg) -> Result<Option<String>, String> {
        let number = self.number.take().unwrap_or_else(|| rng.random_range(0..100));
        let done = self.act_as(number, rng);
        if self.watched.is_killed() && rng.random() {
            // Whoever was killed at it is told to do it again.
            self.number = Some(number);
        }
        done
    }

    fn act_as(&mut self, number: u32, rng: &mut Pcg64Mcg) -> Result<Option<String>, String> {
        match number {
            0..51 => self.write(rng),
            51..60 => self.zeros(rng),
            60..76 => self.flush(),
            76..80 => {
                let (what, done) =
                    if rng.random_bool(0.5) { ("close", self.set.close()) } else { ("settle", self.set.settle()) };
                match done {
                    Ok(()) => {
                        let on_both = self.writes.len();
                        self.has(on_both, true);
                        Ok(Some(what.to_string()))
                    }
                    Err(error) => self.failed(what, &error),
                }
            }
            80..86 => self.back_up(),
            86..90 => self.read(),
            _ if self.set.set().is_some() => self.detach(),
            _ => self.attach(rng.random_ratio(1, 4)),
        }
    }

    /// Another process has opened what the killed one has left: a state that there was, with all that was flushed.
    fn take_up(&mut self, opened: Result<Lasting, Error>) -> Result<String, String> {
        let was_rescued = self.set.set().is_none();
        self.set = opened.map_err(says("opened by the next process"))?;
        let found = contents(&self.set)?;
        if self.watched.has_lost(LOG) && !was_rescued && self.set.set().is_none() {
            as_disk(&self.start.contents, &mut self.writes, self.watched.now().flushed, &found)
                .map_err(|what| format!("what the next process finds, alone: {what}"))?;
        }
        let there = last(&self.start.contents, &self.writes, self.watched.now().flushed, &found)
            .map_err(|what| format!("what the next process finds: {what}"))?;
        self.writes.truncate(there);
        self.answered = there;
        self.watched.is_there(there);
        let is_alone = self.set.set().is_none();
        self.watched.progress(|progress| progress.is_taken_up_alone |= is_alone);
        if !is_alone {
            // Whichever log it is, main knows it.
            self.is_spoiled = false;
            self.watched.progress(|progress| progress.is_new = false);
        }
        Ok(format!("killed, and taken up by the next process{}", if is_alone { ", alone" } else { "" }))
    }

    /// So many of the writes are durable; `on_main` if main alone has them.
    fn has(&mut self, count: usize, on_main: bool) {
        let is_together = self.set.set().is_some();
        self.watched.progress(|progress| {
            progress.flushed = count;
            if on_main || !is_together {
                progress.on_main = count;
            }
            if is_together {
                progress.in_log = count;
            }
        });
    }

    /// A call that failed: that is allowed if the log did, in asynchronous mode, where it may have had what main had not.
    fn failed(&self, what: &str, error: &dyn std::fmt::Display) -> Result<Option<String>, String> {
        match self.watched.has_lost(LOG) && !self.is_synchronous() {
            true => Ok(None),
            false => Err(format!("{what}: {error}")),
        }
    }

    fn is_synchronous(&self) -> bool {
        self.start.options.mode == flashlog::Mode::Synchronous
    }

    fn write(&mut self, rng: &mut Pcg64Mcg) -> Result<Option<String>, String> {
        let (first, content) = Living::random_write(&mut self.next_content, rng);
        let bytes: Vec<u8> = content.iter().flat_map(|content| block(*content)).collect();
        self.change("write", first, &content, |set| set.write(first as u64, &[IoSlice::new(&bytes)]))
    }

    fn zeros(&mut self, rng: &mut Pcg64Mcg) -> Result<Option<String>, String> {
        let (first, count, how) = Living::random_zeros(rng);
        self.change(how.name(), first as usize, &vec![0; count as usize], |set| how.make(set, first, count))
    }

    fn change(
        &mut self,
        what: &str,
        first: usize,
        content: &[u64],
        change: impl FnOnce(&Lasting) -> Result<(), holdfast_block::Error>,
    ) -> Result<Option<String>, String> {
        self.writes.extend((first..).zip(content.iter().copied()));
        let begun = self.writes.len();
        self.watched.progress(|progress| progress.begun = begun);
        match change(&self.set) {
            Ok(()) => {
                self.answered = begun;
                Ok(Some(format!("{what} {} from {first}", content.len())))
            }
            Err(error) => self.failed(what, &error),
        }
    }

    fn flush(&mut self) -> Result<Option<String>, String> {
        match self.set.flush() {
            Ok(()) => {
                let count = self.writes.len();
                let is_synchronous = self.is_synchronous();
                self.has(count, is_synchronous);
                Ok(Some("flush".to_string()))
            }
            Err(error) => self.failed("flush", &error),
        }
    }

    fn back_up(&mut self) -> Result<Option<String>, String> {
        let Some(set) = self.set.set() else { return self.read() };
        match self.patient.over(Role::Backup, &self.backup).and_then(|backup| set.backup(backup)) {
            Ok(done) => Ok(Some(format!("backup of {} blocks in {} steps", done.blocks, done.steps))),
            // Whoever asks next goes on without it.
            Err(_) if self.watched.has_lost(LOG) => Ok(Some("backup, failed".to_string())),
            Err(error) => Err(format!("backup: {error}")),
        }
    }

    fn read(&mut self) -> Result<Option<String>, String> {
        let mut expected = self.start.contents.clone();
        self.writes.iter().for_each(|(at, content)| expected[*at] = *content);
        let found = match bytes(&self.set) {
            Ok(found) => found,
            Err(error) => return self.failed("read", &error),
        };
        let (blocks, _none) = found.as_chunks::<BLOCK_SIZE>();
        let wrong = blocks.iter().zip(&expected).filter(|(found, expected)| **found != block(**expected)).count();
        if wrong == 0 {
            Ok(Some("read".to_string()))
        } else {
            Err(format!("{wrong} blocks are not as they were written"))
        }
    }

    fn detach(&mut self) -> Result<Option<String>, String> {
        match self.set.detach_log() {
            Ok(()) => {
                let count = self.writes.len();
                self.watched.progress(|progress| {
                    (progress.flushed, progress.on_main, progress.in_log) = (count, count, count);
                });
                Ok(Some("detach".to_string()))
            }
            Err(_) if self.watched.has_lost(LOG) => Ok(Some("detach, failed".to_string())),
            Err(error) => Err(format!("detach: {error}")),
        }
    }

    /// The log that was pulled out while it had what main has not is there again: the set goes on with it, and has all that was answered. What was
    /// refused may be there in part.
    fn put_back(&mut self) -> Result<String, String> {
        self.watched.put_back();
        let log = self.patient.over(Role::Log, &self.log).map_err(says("a log is put back"))?;
        let attached = self.set.attach_log(log).map_err(says("a log is put back"))?;
        let found = contents(&self.set)?;
        let there = nearest(&self.start.contents, &self.writes, self.answered, &found)
            .map_err(|what| format!("with its log put back: {what}"))?;
        self.writes.truncate(there);
        self.answered = there;
        self.watched.progress(|progress| {
            (progress.begun, progress.flushed, progress.in_log) = (there, there, there);
        });
        Ok(format!("the log is put back: {attached:?}"))
    }

    fn attach(&mut self, is_new: bool) -> Result<Option<String>, String> {
        self.watched.put_back();
        let is_new = is_new || self.is_spoiled;
        let log = self.patient.over(Role::Log, &self.log);
        let done = if is_new {
            self.is_spoiled = true;
            self.watched.progress(|progress| progress.is_new = true);
            self.new_logs += 1;
            log.and_then(|log| self.set.attach_new_log(log, name(self.new_logs)))
        } else {
            log.and_then(|log| self.set.attach_log(log))
        };
        match done {
            Ok(attached) => {
                self.is_spoiled = false;
                let count = self.writes.len();
                self.watched.progress(|progress| {
                    (progress.flushed, progress.on_main, progress.in_log) = (count, count, count);
                    progress.is_new = false;
                });
                Ok(Some(format!("attach: {attached:?}")))
            }
            // One that is just being made another log is not recognised, and not waited for then.
            Err(_) if self.watched.has_lost(LOG) || is_new && self.watched.back_at().is_some() => {
                Ok(Some("attach, failed".to_string()))
            }
            Err(error) => Err(format!("attach, new {is_new}: {error}")),
        }
    }
}

/// What a device has where a set's is.
pub(super) fn bytes(device: &dyn Device) -> Result<Vec<u8>, holdfast_block::Error> {
    let mut bytes = vec![0; BLOCKS * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).map(|()| bytes)
}

pub(super) fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(device.clone())
}

fn says(what: &str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

/// What must hold after a power cut: main alone has what it must; the set opens with its log, or says that main is alone; and a main that
/// is opened alone, changed, and gets its log back is everything, with the backup.
pub(super) fn examine(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<Seen, String> {
    let progress = moment.progress;
    if is_whole(moment, &images.main) {
        judge_main(life, moment, progress.on_main, &images.main)?;
    }
    let mut is_rebuilt = false;
    if !progress.is_new {
        // What backup and log have by themselves.
        let of_log = Moment { progress: Progress { flushed: progress.in_log, ..progress }, ..*moment };
        is_rebuilt = rebuild(life, &of_log, images, rng)?.is_some();
    }
    let mut recovered = Recovered::default();
    let opened = match Flashlog::open(copy(&images.main), copy(&images.log), &life.options) {
        Ok((set, opened)) => {
            let found = contents(&set)?;
            judge(life, progress.flushed, progress.begun, &found)?;
            drop(set);
            back_up(life, images)?;
            opened
        }
        Err(Error::Alone { .. }) => {
            recovered.is_alone = true;
            Opened::default()
        }
        // The log is neither the old one nor the new one.
        Err(error) if progress.is_new && is_no_log(&error, &images.log) => Opened::default(),
        Err(error) => return Err(format!("cannot be opened: {error}")),
    };
    // The backup by itself is one state or the next, also while a new log's is on its way.
    let alone = copy(&images.backup);
    if flashlog::finish_backup(alone.clone()).is_ok() {
        judge_backup(life, moment, &*alone)?;
    }
    recovered.is_new_log = go_on_alone(life, moment, images, recovered.is_alone, rng)?;
    let left = Start {
        main: images.main.clone(),
        log: images.log.clone(),
        backup: images.backup.clone(),
        has_backup: true,
        contents: life.base.clone(),
        backed_up: life.base.clone(),
        since_backed_up: Vec::new(),
        next_content: life.next_content,
        written: life.written,
        options: life.options.clone(),
        plant: life.plant,
    };
    Ok(Seen { opened, nested: 0, procedure: None, is_rebuilt, recovered, left })
}

/// Main is opened without its log and changed; then it gets it back.
fn go_on_alone(
    life: &Life,
    moment: &Moment,
    images: &Images,
    is_alone: bool,
    rng: &mut Pcg64Mcg,
) -> Result<bool, String> {
    let (main, mut log, backup) = (copy(&images.main), copy(&images.log), copy(&images.backup));
    let set = match Lasting::open_alone(main.clone(), &life.options, policy(), true) {
        Ok(set) => set,
        // It is being brought from one state to another, by the log.
        Err(Error::Mixture { .. }) if !(is_alone || life.is_synchronous() && is_whole(moment, &images.main)) => {
            return Ok(false);
        }
        Err(error) => return Err(format!("main alone cannot be opened: {error}")),
    };
    let read = || bytes(&set).map_err(|error| format!("main alone cannot be read: {error}"));
    let before = read()?;
    if bytes(&*main).is_ok_and(|on_main| on_main != before) {
        return Err("main alone is not what main has".to_string());
    }
    if rng.random() {
        let number = life.next_content + 1;
        let written = set.write(rng.random_range(0..BLOCKS as u64), &[IoSlice::new(&block(number))]);
        written.and_then(|()| set.flush()).map_err(|error| format!("main alone cannot be written: {error}"))?;
    }
    let before = read()?;
    let attached = if rng.random_ratio(1, 3) {
        // The log is lost for good.
        log = Arc::new(MemoryDevice::new(flashlog::log_blocks_least()));
        set.attach_new_log(log.clone(), name(98)).map_err(says("a new log cannot be attached"))?
    } else {
        match set.attach_log(log.clone()) {
            Err(_) if moment.progress.is_new => {
                set.attach_new_log(log.clone(), name(99)).map_err(says("a new log cannot be attached"))?
            }
            attached => attached.map_err(says("the log cannot be attached again"))?,
        }
    };
    let is_known = matches!(attached, Attached::New { changed_blocks: Some(_) });
    if read()? != before {
        return Err(format!("the set has something else when it has its log again ({attached:?})"));
    }
    let is_right = |found: Vec<u8>, what: &str| match found == before {
        true => Ok(()),
        false => Err(format!("when the log is back ({attached:?}), {what} something else than the set")),
    };
    let new_main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    let now = copy(&log);
    match flashlog::rebuild(copy(&backup), now.clone(), new_main.clone(), Uuid([7; 16])) {
        Ok(_) => {
            let (device, _) = Flashlog::open(new_main, now, &life.options).map_err(says("a main made anew"))?;
            is_right(bytes(&device).map_err(|error| error.to_string())?, "backup and log make")?;
        }
        Err(Error::Incomplete { .. } | Error::Gap { .. } | Error::Replaced { .. }) => {}
        Err(error) => return Err(format!("when the log is back, main cannot be made anew: {error}")),
    }
    let with_log = set.set().ok_or("the set has no log when it was attached")?;
    with_log.backup(backup.clone()).map_err(says("the next backup"))?;
    is_right(bytes(&*backup).map_err(|error| error.to_string())?, "the next backup has")?;
    // And goes with the log from then on.
    let new_main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    drop(with_log);
    drop(set);
    flashlog::rebuild(backup, log.clone(), new_main.clone(), Uuid([7; 16])).map_err(says("after the next backup"))?;
    let (device, _) = Flashlog::open(new_main, log, &life.options).map_err(says("after the next backup"))?;
    if bytes(&device).map_err(|error| error.to_string())? != before {
        return Err(format!("after the next backup ({attached:?}), it and the log make something else than the set"));
    }
    Ok(is_known)
}
