//! The log leaves, main is changed without it, the log comes back or a new one does, and a backup is made: what `detach`, `attach` and `backup` do.

use super::super::lasting::{bytes, copy, open};
use super::super::life::{BLOCKS, Life, MAIN_BLOCKS, Unread, contents_or_torn};
use super::super::state::{Images, judge, judge_disk};
use super::super::watch::{BACKUP, LOG, MAIN, Moment};
use super::cut::{Cut, cut_off};
use super::{Three, has_backup, says, what_it_has};
use crate::numbered::block;
use holdfast_block::flashlog::{self, Flashlog, Lasting, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use parking_lot::Mutex;
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What is written while main is alone.
struct Change {
    at: usize,
    content: u64,
}

impl Change {
    /// The set has what it had, and of the change each sector or not.
    fn judge_by(&self, had: &[u8], set: &dyn Device) -> Result<(), String> {
        let found = bytes(set).map_err(says("it cannot be read"))?;
        let mut changed = had.to_vec();
        changed[self.at * BLOCK_SIZE..(self.at + 1) * BLOCK_SIZE].copy_from_slice(&block(self.content));
        let sectors = found.chunks(512).zip(had.chunks(512).zip(changed.chunks(512)));
        let wrong = sectors.filter(|(found, (had, changed))| found != had && found != changed).count();
        if wrong == 0 { Ok(()) } else { Err(format!("{wrong} sectors are not as they were")) }
    }

    /// The set has each block as it was flushed or later, and the change, a part of it, or not.
    fn judge_disk(&self, life: &Life, moment: &Moment, set: &dyn Device) -> Result<(), String> {
        let mut writes = life.writes[..moment.progress.begun.min(life.writes.len())].to_vec();
        writes.push((self.at, self.content));
        judge_disk(&life.base, &writes, moment.progress.flushed, &contents_or_torn(set)?)
    }

    /// The set is at a state that there was, with what was flushed, with the change, without it, or with a part of it: a write to main alone that was
    /// not flushed may be torn, as on any disk.
    fn judge(&self, life: &Life, moment: &Moment, set: &dyn Device) -> Result<(), String> {
        let mut found = contents_or_torn(set)?;
        let is_changed = found[self.at].is_none_or(|found| found == self.content);
        found[self.at].get_or_insert(self.content);
        let found = found.into_iter().enumerate().map(|(at, found)| found.ok_or(Unread::Foreign(at)));
        let mut found = found.collect::<Result<Vec<u64>, Unread>>()?;
        let (flushed, begun) = (moment.progress.flushed, moment.progress.begun);
        if !is_changed {
            return judge(life, flushed, begun, &found);
        }
        let written = life.writes.iter().filter(|(at, _)| *at == self.at).map(|(_, content)| *content);
        let had: Vec<u64> = std::iter::once(life.base[self.at]).chain(written).collect();
        let mut judged = Err("nothing was there".to_string());
        for content in had {
            found[self.at] = content;
            judged = judge(life, flushed, begun, &found);
            if judged.is_ok() {
                break;
            }
        }
        judged
    }
}

pub(super) fn exchange(life: &Life, moment: &Moment, images: &Images, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let (is_new, has_backup) = (rng.random(), has_backup(life, moment));
    let change = Change { at: rng.random_range(0..BLOCKS), content: life.next_content + 1 };
    let had = if life.is_lasting { Some(what_it_has(life, images)?) } else { None };
    let (new_logs, end) = (AtomicU8::new(0), Mutex::new(Vec::new()));
    let attach = |set: &Lasting, log: &Arc<dyn Device>| match is_new {
        true => {
            let name = Uuid([30 + new_logs.fetch_add(1, Ordering::Relaxed); 16]);
            set.attach_new_log(Arc::clone(log), name)
        }
        false => set.attach_log(Arc::clone(log)),
    };
    let back_up = |set: &Lasting, backup: &Arc<dyn Device>| -> Result<(), String> {
        let with_log = set.set().ok_or("main is alone")?;
        if has_backup {
            with_log.backup(Arc::clone(backup)).map_err(says("backup"))?;
        }
        Ok(())
    };
    let act = |[main, log, backup]: Three| {
        let set = open(&main, &log, &life.options, is_new).map_err(says("opened"))?;
        if set.set().is_some() {
            back_up(&set, &backup)?;
            set.detach_log().map_err(says("detached"))?;
        }
        let written = set.write(change.at as u64, &[IoSlice::new(&block(change.content))]);
        written.and_then(|()| set.flush()).map_err(says("alone"))?;
        attach(&set, &log).map_err(says("attached"))?;
        back_up(&set, &backup)?;
        *end.lock() = bytes(&set).map_err(says("in the end"))?;
        Ok(())
    };
    let found = [MAIN, LOG, BACKUP].map(|at| images.left(at));
    let Cut { left: [main, log, backup], what, is_done } = cut_off(found, life, rng, act)?;
    let what = format!("{}, {what}", if is_new { "another log" } else { "the same log" });
    if is_done {
        Flashlog::open(copy(&main), copy(&log), &life.options).map_err(says(&what))?;
    }
    let (main, log): (Arc<dyn Device>, Arc<dyn Device>) = (main, log);
    let set = open(&main, &log, &life.options, is_new).map_err(says(&what))?;
    match &had {
        Some(_) if images.is_cached() => change.judge_disk(life, moment, &set),
        Some(had) => change.judge_by(had, &set),
        None => change.judge(life, moment, &set),
    }
    .map_err(says(&what))?;
    if set.set().is_none() {
        attach(&set, &log).map_err(says(&what))?;
    }
    let before = bytes(&set).map_err(says(&what))?;
    if is_done && before != *end.lock() {
        return Err(format!("{what}: the set is not as it was"));
    }
    if !has_backup {
        return Ok(());
    }
    let backup_device: Arc<dyn Device> = backup.clone();
    back_up(&set, &backup_device).map_err(says(&what))?;
    drop(set);
    let new_main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    flashlog::rebuild(backup, Arc::clone(&log), new_main.clone(), Uuid([7; 16])).map_err(says(&what))?;
    let (set, _) = Flashlog::open(new_main, log, &life.options).map_err(says(&what))?;
    match bytes(&set).map_err(says(&what))? == before {
        true => Ok(()),
        false => Err(format!("{what}: backup and log make something else")),
    }
}
