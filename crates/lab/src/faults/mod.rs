//! The fault matrix: every kind of block × every way in which a disk goes wrong without saying so, and what the stack makes
//! of it when the store is mounted, read and changed.
//!
//! | file | job |
//! |---|---|
//! | `reference` | a store with blocks of every kind, what is in it, and where they are |
//! | `damage` | what the medium looks like after a fault |
//! | `trial` | mounting, reading and changing a damaged store |
//! | `table` | the results for people |
//!
//! What must never happen is checked in each trial: wrong bytes, a panic, an error without a place.

mod damage;
mod reference;
mod table;
mod trial;

pub use damage::{Copies, Fault};
pub use reference::BlockKind;
pub use table::{markdown, text};
pub use trial::{Cell, Phase};

/// Does all trials.
///
/// # Errors
/// In words, if the reference stores cannot be made.
pub fn run() -> Result<Vec<Cell>, String> {
    let stores = reference::Reference::make_all()?;
    let mut cells = Vec::new();
    for kind in BlockKind::ALL {
        let store = stores.iter().find(|store| store.targets.contains_key(&kind));
        let store = store.ok_or_else(|| format!("no reference store has a block of the kind {}", kind.name()))?;
        for fault in Fault::ALL {
            for copies in Copies::ALL {
                if store.targets[&kind].copies.len() > 1 || copies == Copies::One {
                    cells.push(trial::run(store, kind, fault, copies));
                }
            }
        }
    }
    Ok(cells)
}
