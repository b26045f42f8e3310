//! A store in use, together with what should be in it: each action is done on both and must have the same answer.

use crate::model::{Action, Data, Driver, Model, Node};
use crate::stack::Stack;
use holdfast_block::BLOCK_SIZE;
use holdfast_naming::{Atime, NewNode};
use holdfast_object::Clock;

/// Between two actions, in nanoseconds.
pub(crate) const STEP_NS: u64 = 1_000_003;

pub(crate) struct Maker {
    pub(crate) driver: Driver,
    pub(crate) model: Model,
    pub(crate) stack: Stack,
}

impl Maker {
    /// On a stack whose store has an empty root directory.
    pub(crate) fn new(stack: Stack) -> Maker {
        let driver = Driver::new(stack.namespace(Atime::Never));
        let model = Model::new(0o755, stack.clock.now());
        Maker { driver, model, stack }
    }

    /// Does what must succeed.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), String> {
        self.stack.clock.advance_ns(STEP_NS);
        let got = self.driver.reply(&action);
        let expected = self.model.apply(&action, self.stack.clock.now());
        if got.is_ok() && got == expected { Ok(()) } else { Err(format!("{action:?}: {got:?}, expected {expected:?}")) }
    }

    /// A new file of so many pages, the last one not full.
    pub(crate) fn file(&mut self, parent: Node, name: &str, pages: usize) -> Result<Node, String> {
        let node = Node(self.model.created());
        self.act(Action::Mknod { parent, name: name.into(), node: NewNode::Regular, mode: 0o644 })?;
        self.write(node, 0, u64::from(node.0), pages * BLOCK_SIZE - 100)?;
        Ok(node)
    }

    /// Writes bytes that follow from `seed`, from a page on.
    pub(crate) fn write(&mut self, node: Node, page: usize, seed: u64, length: usize) -> Result<(), String> {
        let data = Data { seed, length };
        self.act(Action::Write { node, offset: (page * BLOCK_SIZE) as u64, data, clear_set_ids: false })
    }
}
