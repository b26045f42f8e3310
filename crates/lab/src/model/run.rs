//! A random run: a name space and the model, step by step, compared whole after each.

use super::action::{Action, Reply};
use super::compare::compare;
use super::drive::Driver;
use super::generate::{Generator, Profile};
use super::tree::Model;
use holdfast_naming::{Atime, Namespace, Options, Request};
use holdfast_object::{Clock, ManualClock, ObjectCache, RequestId};
use std::fmt;
use std::sync::Arc;

/// How a run goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Number of actions.
    pub steps: usize,
    /// How large things get.
    pub profile: Profile,
    /// Every so many steps naming dies and another one goes on; 0: never.
    pub naming_dies_each: usize,
    /// Every so many steps an action that was done is asked for a second time, as after such a death; 0: never.
    pub repeat_each: usize,
}

/// A run that went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Of the run.
    pub plan: Plan,
    /// Number of the action, from 0.
    pub step: usize,
    /// The action.
    pub action: Action,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {:?}\n{}", self.plan.seed, self.step, self.action, self.what)
    }
}

/// Runs on an empty cache whose clock stands still unless told. Gives the model as it is in the end.
pub fn run(cache: Arc<dyn ObjectCache>, clock: Arc<ManualClock>, plan: Plan) -> Result<Model, Box<Failure>> {
    let options = Options { seed: plan.seed, ..Options::default() };
    let naming = || Arc::new(Namespace::new(cache.clone(), clock.clone(), options));
    let onlooker = Namespace::new(cache.clone(), clock.clone(), Options { atime: Atime::Never, ..options });
    let fail = |step, action: &Action, what: String| Box::new(Failure { plan, step, action: action.clone(), what });

    let mut driver = Driver::new(naming());
    let mut model = Model::new(0o755, clock.now());
    let mut generator = Generator::new(plan.seed, plan.profile);
    driver.namespace().initialise(0, 0, 0o755).map_err(|error| fail(0, &Action::SyncAll, error.to_string()))?;
    let due = |step: usize, each: usize| each != 0 && step % each == each - 1;
    for step in 0..plan.steps {
        // Sometimes a moment, sometimes days, so that times of access get old.
        clock.advance_ns(if step % 97 == 96 { 100_000_000_000_000 } else { 1_000_003 });
        if due(step, plan.naming_dies_each) {
            driver.replace_namespace(naming());
        }
        let action = generator.next(&model);
        let before = model.clone();
        let expected = model.apply(&action, clock.now());
        model.check();
        let request = Request { id: Some(RequestId { client: 1, unique: step as u64 }), ..Request::ROOT };
        let got = driver.apply_as(&request, &action);
        if let Err(error) = &got
            && expected != Err(error.kind())
        {
            return Err(fail(step, &action, format!("expected {expected:?}, got {error}")));
        }
        let got = got.map_err(|error| error.kind());
        if got != expected {
            return Err(fail(step, &action, format!("expected {expected:?}, got {got:?}")));
        }
        if due(step, plan.repeat_each) && got.is_ok() && changes_names(&action) && model != before {
            clock.advance_ns(1_000_003);
            let again = driver.apply_as(&request, &action).map_err(|error| error.kind());
            if again != got {
                return Err(fail(step, &action, format!("asked twice: first {got:?}, then {again:?}")));
            }
            if let Ok(Reply::Node(node)) = again {
                model.asked_again(node);
            }
        }
        let differences = compare(&onlooker, &model);
        if !differences.is_empty() {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            return Err(fail(step, &action, lines.join("\n")));
        }
    }
    Ok(model)
}

/// Whether the action is one that must not be done twice, and whose second answer is known.
fn changes_names(action: &Action) -> bool {
    matches!(
        action,
        Action::Mknod { .. }
            | Action::Mkdir { .. }
            | Action::Symlink { .. }
            | Action::Link { .. }
            | Action::Unlink { .. }
            | Action::Rmdir { .. }
            | Action::Rename { .. }
            | Action::Write { .. }
            | Action::Copy { .. }
            | Action::SetXattr { .. }
            | Action::RemoveXattr { .. }
    )
}
