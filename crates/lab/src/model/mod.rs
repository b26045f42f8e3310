//! A POSIX tree in plain memory, to compare a real name space with: random actions by seed, what they must answer, and
//! what the whole tree must look like afterwards.
//!
//! The model knows nothing of pages, transactions or objects. Nodes have numbers of the model's own, in order of their
//! creation and never used again, so that a list of actions means the same to every run; [`Driver`] keeps which object a
//! node is. Time is what the caller says: with a [`holdfast_object::ManualClock`] that stands still during an action, all
//! times are compared too.
//!
//! A model is a value: clone it to keep the state after each action, as the crash explorer does.

mod action;
mod apply;
mod compare;
mod drive;
mod generate;
mod run;
mod tree;

pub use action::{Action, Data, Reply};
pub use compare::{Difference, compare, compare_below};
pub use drive::Driver;
pub use generate::{Generator, Profile};
pub use run::{Failure, Plan, run};
pub use tree::{Inode, Model, Node};
