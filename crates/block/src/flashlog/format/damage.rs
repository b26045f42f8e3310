//! What main's label says of damage.

use super::Fault;
use zerocopy::little_endian::U64;

/// What was found damaged, and was not found mended by whoever has looked again since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Damage {
    /// Blocks of main that nobody had as they were, and the first of them. Some may be counted twice.
    pub main: Bad,
    /// The log keeps what tells which these are.
    pub log_tells: bool,
    /// Blocks of the backup.
    pub backup: Bad,
}

impl Damage {
    pub(super) fn to_raw(self) -> [U64; 4] {
        let Damage { main, backup, .. } = self;
        [main.blocks, main.first, backup.blocks, backup.first].map(U64::new)
    }

    pub(super) fn from_raw(raw: [U64; 4], log_tells: u8) -> Damage {
        let [main_blocks, main_first, backup_blocks, backup_first] = raw.map(U64::get);
        let main = Bad { blocks: main_blocks, first: main_first };
        let backup = Bad { blocks: backup_blocks, first: backup_first };
        Damage { main, log_tells: log_tells == 1, backup }
    }

    pub(super) fn judge(&self, blocks: u64) -> Result<(), Fault> {
        for bad in [self.main, self.backup] {
            let is_there = bad.blocks > 0 && bad.first.checked_add(bad.blocks).is_some_and(|end| end <= blocks);
            if !is_there && bad != Bad::default() {
                return Err(Fault::new("damaged blocks", format!("some of {blocks}"), format!("{bad:?}")));
            }
        }
        Ok(())
    }
}

/// Blocks that are damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bad {
    /// How many.
    pub blocks: u64,
    /// Address of the first one; 0 if there are none.
    pub first: u64,
}
