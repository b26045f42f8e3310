//! Redundancy policies.

use holdfast_object::PolicyId;

/// How an object is spread over modules. The number of a policy is stored in the records of its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Each object on one module; metadata twice on it.
    Single,
}

impl Policy {
    /// The policy with this number.
    pub fn by_id(id: PolicyId) -> Option<Policy> {
        match id {
            PolicyId(0) => Some(Policy::Single),
            _ => None,
        }
    }
}
