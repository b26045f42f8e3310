//! Logic bugs of names. Where the store begins an epoch anew, a request is done anew, and whoever made it notices nothing. All else is as with the
//! others.

use super::script::Run;
use super::trial::{mount_again, what_check_finds};
use super::{Cell, Trial, Verdict};
use crate::caught::caught;
use crate::enemy::reference::Reference;
use crate::maker::Maker;
use crate::model::{Action, Data, Node};
use holdfast_block::MemoryDevice;
use holdfast_naming::{NameBug, NewNode, XattrMode};
use holdfast_object::ObjectStore;
use holdfast_physical::MetadataProtection;

const NAME: &[u8] = b"meant";

fn make(parent: Node, node: NewNode) -> Action {
    Action::Mknod { parent, name: NAME.into(), node, mode: 0o640 }
}

/// The request that has the bug, after what it needs.
fn request(maker: &mut Maker, bug: NameBug, parent: Node) -> Result<Action, String> {
    let unlink = Action::Unlink { parent, name: NAME.into() };
    let made = |maker: &mut Maker| {
        let node = Node(maker.model.created());
        maker.act(make(parent, NewNode::Regular)).map(|()| node)
    };
    Ok(match bug {
        NameBug::LinkCount => {
            let node = made(maker)?;
            Action::Link { node, parent, name: b"meant as well".to_vec() }
        }
        NameBug::ObjectWithoutEntry | NameBug::KeptUnheld => {
            let node = made(maker)?;
            maker.act(Action::Forget { node, count: 1 })?;
            unlink
        }
        NameBug::DeletedInUse => {
            let node = made(maker)?;
            maker.act(Action::Link { node, parent, name: b"meant as well".to_vec() })?;
            unlink
        }
        NameBug::LostXattr => {
            let (node, value) = (made(maker)?, Data { seed: 5, length: 70 });
            Action::SetXattr { node, name: b"user.meant".to_vec(), value, mode: XattrMode::Set }
        }
        NameBug::EntryWithoutObject | NameBug::WrongKind => make(parent, NewNode::Fifo),
        NameBug::DirectoryLinks => Action::Mkdir { parent, name: NAME.into(), mode: 0o750 },
        NameBug::EntryCount
        | NameBug::WrongName
        | NameBug::WrongParent
        | NameBug::DirectorySize
        | NameBug::PageForm
        | NameBug::NodeCount
        | NameBug::FreePage
        | NameBug::FreePageCount
        | NameBug::WrongKey => make(parent, NewNode::Regular),
    })
}

/// Does it wrongly. How many equations have found it, and what has not gone as it should: whoever asks notices nothing.
pub(super) fn do_wrongly(maker: &mut Maker, bug: NameBug, parent: Node) -> Result<(u64, Vec<String>), String> {
    let action = request(maker, bug, parent)?;
    let space = maker.driver.namespace().clone();
    let before = space.audit_failures();
    space.do_wrongly(bug);
    let told = format!("{action:?}");
    let wrong = maker.act(action).err().map(|wrong| format!("{wrong} (it had a logic bug once: {bug})"));
    if !space.has_done_wrongly() {
        return Err(format!("{bug}: there is nothing of the sort in {told}"));
    }
    Ok((space.audit_failures() - before, wrong.into_iter().collect()))
}

/// One trial, with a new store.
pub(super) fn run(
    store: &Reference,
    script: u64,
    (cell, bug): (&Cell, NameBug),
    event: usize,
    choice: u64,
    metadata: MetadataProtection,
) -> Trial {
    let mut trial = Trial::new(cell, (script, event, choice));
    trial.struck = bug.to_string();
    let outcome = caught(|| {
        let mut run = Run::open(store, script, metadata)?;
        let found = run.with_name_bug(bug, cell.moment, choice)?;
        trial.verdict = if found == 0 { Verdict::Harmless } else { Verdict::Logic };
        trial.stored = what_check_finds(&MemoryDevice::clone(&run.device));
        let went_on = run.go_on();
        let counters = run.module.status().counters;
        if counters.scribbles + counters.audit_failures > 0 {
            run.errors.push("the store below has noticed something, too".into());
        }
        trial.begun_anew = counters.restarts > 0;
        trial.errors.append(&mut run.errors);
        went_on?;
        trial.stored.extend(mount_again(run)?);
        Ok(())
    });
    trial.errors.extend(outcome.err());
    trial
}
