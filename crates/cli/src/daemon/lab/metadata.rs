//! Metadata in the memory of a mount made for it: listed, and damaged on purpose.

use crate::audited::Audited;
use crate::commands::inject::find;
use crate::daemon::State;
use crate::failure::{Failure, Result};
use crate::lab::{
    FormListed, InjectReply, ListedTarget, MetadataBlow, MetadataListed, MetadataRequest, MetadataStruck,
    MetadataTarget, Scribble, Step, Struggle, When,
};
use crate::stack::{Stack, says};
use holdfast_object::{DomainId, Durability, ObjectCache, ObjectId, ObjectKey, StoreCounters};
use holdfast_physical::inject::BlockClass;
use holdfast_physical::scribble::{
    BATCH_PARTS, Blow, Blown, Choice, Lab, MetaKind, Missed, State as MetaState, Struck, Target,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How long to wait for who reads metadata at this moment.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pieces of a kind that are listed one by one.
const LISTED_MAX: usize = 40;

pub(super) fn answer(state: &State, request: MetadataRequest) -> Result<InjectReply> {
    let live = state.up()?;
    let stack = &*live.stack;
    match request {
        MetadataRequest::List { kind, object, path } => {
            let mut choice = Choice { object, ..Choice::of(kind.unwrap_or(MetaKind::Label), Default::default(), 0) };
            if let Some(path) = &path {
                of_file(stack, &mut choice, path)?;
            }
            Ok(InjectReply::Listed(list(stack, kind.map(|_| &choice))))
        }
        MetadataRequest::Strike { blow: Blow::Scribble(mut choice), path, when, times, step } => {
            if choice.astray {
                super::can_go_astray(state)?;
            }
            if let Some(path) = &path {
                of_file(stack, &mut choice, path)?;
            }
            choice.states = states(&choice, when)?;
            match when {
                When::Dirty if live.read_only => Err(no_recovery_points()),
                When::Dirty => ambush(state, stack, Blow::Scribble(choice), times, step),
                _ if times > 1 => Err(Failure::usage(
                    "--times is for what a recovery point is struck with: --memory=dirty, or --logic-bug",
                )),
                When::Clean | When::Any => now(stack, choice, when),
            }
        }
        MetadataRequest::Strike { .. } if live.read_only => Err(no_recovery_points()),
        MetadataRequest::Strike { blow, times, step, .. } => ambush(state, stack, blow, times, step),
    }
}

/// What it is to be in, to be struck.
fn states(choice: &Choice, when: When) -> Result<Vec<MetaState>> {
    let kind = choice.kind;
    if kind == MetaKind::WrittenAhead {
        return Err(Failure::usage(format!("a mount has nothing of the kind {kind}: it writes no blocks ahead")));
    }
    let of = |wanted: &[MetaState]| -> Vec<MetaState> {
        kind.states().iter().copied().filter(|state| wanted.contains(state)).collect()
    };
    if kind == MetaKind::LogBatch {
        if when != When::Dirty {
            return Err(Failure::usage(format!("{kind} is in memory only while a sync goes into the intent log"))
                .hint("--memory=dirty waits for that"));
        }
        if let Some(field) = choice.field.as_deref().filter(|field| !BATCH_PARTS.contains(field)) {
            let parts = BATCH_PARTS.join(", ");
            return Err(Failure::new(format!("{kind} has no field {field}; there are: {parts}")));
        }
    }
    match when {
        When::Any => Ok(Vec::new()),
        When::Clean => match of(&[MetaState::Clean, MetaState::InUse]) {
            none if none.is_empty() => {
                Err(Failure::usage(format!("{kind} is never clean: it is of what the next recovery point changes"))
                    .hint("--memory=dirty strikes it while one is made"))
            }
            some => Ok(some),
        },
        When::Dirty => Ok(match of(&[MetaState::Changed, MetaState::Freed, MetaState::Ahead, MetaState::Prepared]) {
            // In use all the time: while a recovery point is made as well.
            none if none.is_empty() => kind.states().to_vec(),
            some => some,
        }),
    }
}

fn no_recovery_points() -> Failure {
    Failure::new("it is mounted read-only, and makes no recovery point that could be struck")
}

/// Chooses what there is of a file.
fn of_file(stack: &Stack, choice: &mut Choice, path: &Path) -> Result<()> {
    let key = find(stack, path, BlockClass::FileData)?;
    match choice.kind {
        MetaKind::BlockTree | MetaKind::Record => choice.object = Some((key.domain.0, key.object.0)),
        MetaKind::ObjectTable => {
            let (table, index, slot) = stack.module.lab().place_in_table(key);
            (choice.object, choice.index, choice.slot) = (Some(table), Some(index), Some(slot));
        }
        kind => {
            let message = format!("{kind} is not of one file: --path chooses block-tree, record and object-table");
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}

fn lab(stack: &Stack) -> Lab<'_> {
    stack.module.lab().patient(PATIENCE)
}

fn list(stack: &Stack, choice: Option<&Choice>) -> MetadataListed {
    // What a recovery point is made of would go while it is looked at.
    let quiet = stack.cache.quiet();
    let lab = lab(stack);
    let mut counts: BTreeMap<(MetaKind, MetaState), u64> = BTreeMap::new();
    for kind in MetaKind::ALL.into_iter().filter(|kind| choice.is_none_or(|choice| choice.kind == *kind)) {
        lab.targets(kind).iter().for_each(|target| *counts.entry((kind, target.state)).or_default() += 1);
    }
    let targets: Vec<Target> = choice.map(|choice| lab.chosen(choice)).unwrap_or_default();
    let form = targets.first().and_then(|target| lab.layout(target));
    drop(quiet);
    let listed = |target: &Target| ListedTarget { target: shown(target), path: path_of(stack, target) };
    MetadataListed {
        counts: counts.into_iter().map(|((kind, state), count)| (kind, state.name().into(), count)).collect(),
        targets: targets.iter().take(LISTED_MAX).map(listed).collect(),
        form: form.map(|form| FormListed { slots: form.slots, slot_bytes: form.slot_bytes, fields: form.fields }),
    }
}

fn shown(target: &Target) -> MetadataTarget {
    let Target { kind, state, object, level, index, .. } = *target;
    let key = |(domain, object)| ObjectKey { domain: DomainId(domain), object: ObjectId(object) };
    MetadataTarget {
        kind,
        state: state.name().into(),
        object: object.map(|object| key(object).to_string()),
        object_number: object.map(|(domain, object)| format!("{domain}:{object}")),
        level,
        index,
    }
}

fn path_of(stack: &Stack, target: &Target) -> Option<String> {
    let (domain, object) = target.object?;
    (domain == DomainId::MAIN.0)
        .then(|| String::from_utf8_lossy(&stack.namespace.path_of(ObjectId(object))).into_owned())
}

fn told(stack: &Stack, blown: &Blown) -> MetadataBlow {
    match blown {
        Blown::Bug(bug, what) => {
            MetadataBlow { logic_bug: Some(*bug), what: Some(what.clone()), ..MetadataBlow::default() }
        }
        Blown::Scribble(struck) => {
            let (before, after) = (hex(&struck.before), hex(&struck.after));
            MetadataBlow {
                target: Some(shown(&struck.target)),
                path: path_of(stack, &struck.target),
                scribble: Some(Scribble { offset: struck.offset, field: struck.field.clone(), before, after }),
                ..MetadataBlow::default()
            }
        }
    }
}

/// Strikes what is there now, between two recovery points.
fn now(stack: &Stack, choice: Choice, when: When) -> Result<InjectReply> {
    let quiet = stack.cache.quiet();
    let lab_of = lab(stack);
    let outcome = lab_of.blow(&Blow::Scribble(choice.clone()));
    // Of some there are several versions, which nothing but their address tells apart.
    let is_only = match &outcome {
        Ok(Blown::Scribble(Struck { target, .. })) => {
            let Target { object, level, index, .. } = *target;
            let level = object.map(|_| level);
            let same = Choice { object, level, index: Some(index), states: choice.states.clone(), ..choice.clone() };
            lab_of.chosen(&same).len() == 1
        }
        _ => false,
    };
    drop(quiet);
    let blown = outcome.map_err(|missed| failure(stack, &missed, Some(&choice), when, "is in memory now"))?;
    tracing::warn!(%blown, "metadata in memory was damaged on purpose");
    Ok(InjectReply::Metadata(MetadataStruck { struck: vec![told(stack, &blown)], is_only, recovery_point: None }))
}

/// Makes a recovery point, and strikes it on its way; or the next one that has what is to be struck.
fn ambush(state: &State, stack: &Stack, blow: Blow, times: u32, step: Step) -> Result<InjectReply> {
    let is_of_log = blow.is_of_log();
    let mut outcome = Ok(());
    if let Step::Once | Step::Begin { .. } = step {
        let within = match step {
            Step::Begin { within_ms } => Duration::from_millis(within_ms),
            _ => Duration::MAX,
        };
        lab(stack).lay_ambush(blow.clone(), times, within);
        outcome = match is_of_log {
            // All changes of names that are not durable yet: if there are none, those of somebody else.
            true => stack.cache.sync(ObjectId::ROOT, Durability::All),
            false => stack.cache.make_recovery_point().map(drop),
        };
    }
    let laid = lab(stack).look_at_ambush(&blow);
    let laid = laid.ok_or_else(|| Failure::new("somebody else has had something struck meanwhile"))?;
    // Where it is there, and is not as it was said to be, no other will be.
    let may_come = matches!(laid.missed, None | Some(Missed::NoSuch(_) | Missed::NothingFor(_) | Missed::Nothing(_)));
    let may_wait = matches!(step, Step::Begin { .. } | Step::Look) && may_come;
    let is_over = !laid.blown.is_empty() || outcome.is_err() || !may_wait;
    if !is_over {
        return Ok(InjectReply::Waiting(awaited(&blow)));
    }
    // What has been struck is made by now, or given up. Where a sync was, it goes another way, and has come to its end.
    let quiet = match is_of_log {
        true => {
            outcome = outcome.and(stack.cache.sync(ObjectId::ROOT, Durability::All));
            None
        }
        false => Some(stack.cache.quiet()),
    };
    // Before: what is counted of others' work afterwards, the ambush knows nothing of.
    let status = stack.status();
    let fallen = lab(stack).lift_ambush();
    drop(quiet);
    if fallen.blown.is_empty() {
        // Nothing has been done, so whatever else went wrong is of another kind.
        outcome.map_err(says)?;
        return Err(nothing_came(stack, &blow, fallen.missed.as_ref(), step));
    }
    let StoreCounters { scribbles, audit_failures, restarts, .. } = status.counters;
    let recovery_point = Some(Struggle {
        epoch: status.epoch,
        scribbles: scribbles - fallen.before.scribbles,
        audit_failures: audit_failures - fallen.before.audit_failures,
        restarts: restarts - fallen.before.restarts,
        found: fallen.found,
        read_only: outcome.err().map(|error| error.to_string()).or(status.read_only),
        is_unaudited: matches!(blow, Blow::Bug { .. }) && state.mounting.options.audit == Audited::Nothing,
    });
    let struck = fallen.blown.iter().map(|blown| told(stack, blown)).collect();
    Ok(InjectReply::Metadata(MetadataStruck { struck, is_only: false, recovery_point }))
}

/// What a strike waits for.
fn awaited(blow: &Blow) -> String {
    match blow {
        blow if blow.is_of_log() => "an fsync that goes into the intent log".into(),
        Blow::Scribble(choice) => format!("a recovery point that has something {}", asked(choice, When::Dirty)),
        Blow::Bug { bug, .. } => format!("a recovery point to which {bug} could happen"),
    }
}

/// Nothing was struck.
fn nothing_came(stack: &Stack, blow: &Blow, missed: Option<&Missed>, step: Step) -> Failure {
    let choice = match blow {
        Blow::Scribble(choice) => Some(choice),
        Blow::Bug { .. } => None,
    };
    let when = match step {
        Step::End => "was in memory while any recovery point was made meanwhile",
        _ => "was in memory while a recovery point was made",
    };
    match missed {
        Some(missed) => failure(stack, missed, choice, When::Dirty, when),
        None => Failure::new(format!("nothing was struck: there was not {}", awaited(blow)))
            .hint("have something written and synced (fsync) meanwhile; --wait SECONDS waits for longer"),
    }
}

/// What was asked for.
fn asked(choice: &Choice, when: When) -> String {
    let mut asked = vec![format!("of the kind {}", choice.kind)];
    match when {
        When::Any => {}
        When::Clean => asked.push("clean or in use".into()),
        When::Dirty => asked.push("changed for it".into()),
    }
    if let Some((domain, object)) = choice.object {
        asked.push(ObjectKey { domain: DomainId(domain), object: ObjectId(object) }.to_string());
    }
    asked.extend(choice.level.map(|level| format!("level {level}")));
    asked.extend(choice.index.map(|index| format!("index {index}")));
    asked.join(", ")
}

/// Why nothing was struck, and what to do about it.
fn failure(stack: &Stack, missed: &Missed, choice: Option<&Choice>, when: When, then: &str) -> Failure {
    let (Missed::NoSuch(kind), Some(choice)) = (missed, choice) else {
        let failure = says(missed);
        return match missed {
            Missed::Nothing(_) => failure.hint("try another --offset, --field or --seed"),
            Missed::NothingFor(_) => failure
                .hint("write a file of some pages and sync it; some need a snapshot, or a copy that shares blocks"),
            _ => failure,
        };
    };
    let failure = Failure::new(format!("nothing {} {then}", asked(choice, when)));
    let there = lab(stack).targets(*kind).len();
    failure.hint(match when {
        When::Dirty => {
            "have something changed meanwhile that it is needed for; --wait SECONDS waits for longer, and --memory \
             strikes what is there now"
                .into()
        }
        _ if there > 0 => format!("there are {there} others: --memory --list --kind {kind}"),
        _ => "it comes into memory when it is used; or --memory=dirty strikes it while a recovery point is made".into(),
    })
}

/// Two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
