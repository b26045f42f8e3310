//! Metadata in the memory of a mount made for it: listed, and damaged on purpose.

use crate::commands::inject::find;
use crate::daemon::State;
use crate::failure::{Failure, Result};
use crate::lab::{
    FormListed, InjectReply, ListedTarget, MetadataBlow, MetadataListed, MetadataRequest, MetadataStruck,
    MetadataTarget, Scribble, Struggle, When,
};
use crate::stack::{Stack, says};
use holdfast_object::{DomainId, ObjectId, ObjectKey, StoreCounters};
use holdfast_physical::inject::BlockClass;
use holdfast_physical::scribble::{Blow, Blown, Choice, Lab, MetaKind, Missed, State as MetaState, Struck, Target};
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
        MetadataRequest::Strike { blow: Blow::Scribble(mut choice), path, when, times } => {
            if choice.astray {
                super::can_go_astray(state)?;
            }
            if let Some(path) = &path {
                of_file(stack, &mut choice, path)?;
            }
            match when {
                When::Dirty if live.read_only => Err(no_recovery_points()),
                When::Dirty => {
                    choice.states = match choice.kind {
                        MetaKind::Superblock => vec![MetaState::Prepared],
                        _ => vec![MetaState::Changed, MetaState::Freed, MetaState::Ahead],
                    };
                    ambush(stack, Blow::Scribble(choice), times)
                }
                _ if times > 1 => Err(Failure::usage(
                    "--times is for what a recovery point is struck with: --memory=dirty, or --logic-bug",
                )),
                When::Clean | When::Any => {
                    if when == When::Clean {
                        choice.states = vec![MetaState::Clean, MetaState::InUse];
                    }
                    now(stack, choice)
                }
            }
        }
        MetadataRequest::Strike { .. } if live.read_only => Err(no_recovery_points()),
        MetadataRequest::Strike { blow, times, .. } => ambush(stack, blow, times),
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
fn now(stack: &Stack, choice: Choice) -> Result<InjectReply> {
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
    let blown = outcome.map_err(|missed| failure(stack, &missed, Some(&choice), "is in memory now"))?;
    tracing::warn!(%blown, "metadata in memory was damaged on purpose");
    Ok(InjectReply::Metadata(MetadataStruck { struck: vec![told(stack, &blown)], is_only, recovery_point: None }))
}

/// Makes a recovery point, and strikes it on its way.
fn ambush(stack: &Stack, blow: Blow, times: u32) -> Result<InjectReply> {
    let choice = match &blow {
        Blow::Scribble(choice) => Some(choice.clone()),
        Blow::Bug { .. } => None,
    };
    let counters = || stack.status().counters;
    let before = counters();
    lab(stack).lay_ambush(blow, times);
    let outcome = stack.cache.make_recovery_point();
    let fallen = lab(stack).lift_ambush();
    let StoreCounters { scribbles, audit_failures, restarts, .. } = counters();
    if fallen.blown.is_empty() {
        // Nothing has been done, so whatever else went wrong is of another kind.
        outcome.map_err(says)?;
        let missed = fallen.missed.ok_or_else(|| Failure::new("nothing was struck: no recovery point was made"))?;
        return Err(failure(stack, &missed, choice.as_ref(), "was in memory while a recovery point was made"));
    }
    let recovery_point = Some(Struggle {
        epoch: stack.status().epoch,
        scribbles: scribbles - before.scribbles,
        audit_failures: audit_failures - before.audit_failures,
        restarts: restarts - before.restarts,
        found: fallen.found,
        read_only: outcome.err().map(|error| error.to_string()),
    });
    let struck = fallen.blown.iter().map(|blown| told(stack, blown)).collect();
    Ok(InjectReply::Metadata(MetadataStruck { struck, is_only: false, recovery_point }))
}

/// Why nothing was struck, and what to do about it.
fn failure(stack: &Stack, missed: &Missed, choice: Option<&Choice>, when: &str) -> Failure {
    let (Missed::NoSuch(kind), Some(choice)) = (missed, choice) else {
        let failure = says(missed);
        return match missed {
            Missed::Nothing(_) => failure.hint("try another --offset, --field or --seed"),
            Missed::NothingFor(_) => failure
                .hint("write a file of some pages and sync it; some need a snapshot, or a copy that shares blocks"),
            _ => failure,
        };
    };
    let mut asked = vec![format!("of the kind {kind}")];
    match choice.states[..] {
        [] => {}
        [MetaState::Clean, ..] => asked.push("clean or in use".into()),
        _ => asked.push("changed for it".into()),
    }
    if let Some((domain, object)) = choice.object {
        asked.push(ObjectKey { domain: DomainId(domain), object: ObjectId(object) }.to_string());
    }
    asked.extend(choice.level.map(|level| format!("level {level}")));
    asked.extend(choice.index.map(|index| format!("index {index}")));
    let failure = Failure::new(format!("nothing {} {when}", asked.join(", ")));
    let there = lab(stack).targets(*kind).len();
    failure.hint(match choice.states[..] {
        [] | [MetaState::Clean, ..] if there > 0 => format!("there are {there} others: --memory --list --kind {kind}"),
        [] | [MetaState::Clean, ..] => {
            "it comes into memory when it is used; or --memory=dirty strikes it while a recovery point is made".into()
        }
        _ => "change something first that it is needed for; or --memory=clean strikes what is as on the disk".into(),
    })
}

/// Two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
