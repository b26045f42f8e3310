//! Pages of directories, links and extended attributes that somebody has written to in memory: told as a scribble upon a block of metadata
//! is, with the bytes that differ from the good copy that takes their place, and the epoch for which they were last changed legally.

use crate::object::Residence;
use crate::state::State;
use holdfast_object::{Corruption, Difference, Epoch, ObjectId, PageIndex, PinnedPage, Place};

/// Where the good copy comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mend {
    /// The store: the page is clean.
    Device,
    /// Its twin: the store does not have it yet.
    Twin,
}

impl Mend {
    fn done(self) -> &'static str {
        match self {
            Mend::Device => "the page is read again",
            Mend::Twin => "the page's twin takes its place",
        }
    }

    /// How the two differ, in words.
    fn differs(self, good: &PinnedPage, bad: &PinnedPage) -> String {
        let whose = match self {
            Mend::Device => "on the device",
            Mend::Twin => "in its twin",
        };
        match Difference::between(good.bytes(), bad.bytes()) {
            None => format!("no byte differs from those {whose}: its checksum has gone bad"),
            Some(Difference { count, first, last, good, bad }) => {
                format!("{count} bytes differ, from byte {first} to {last}: expected {good}, as {whose}, got {bad}")
            }
        }
    }
}

impl State {
    /// For which epoch a page was last changed legally, if it is this object's newest version.
    pub(crate) fn changed_for(&self, id: ObjectId, index: PageIndex) -> Option<Epoch> {
        Some(match self.objects.get(&id)?.pages.get(&index)?.residence {
            Residence::Clean(identity) => identity.birth,
            Residence::Frozen => self.freezing?,
            Residence::Dirty => self.open.epoch,
        })
    }

    /// Counts and tells a page of metadata that has gone bad in memory, in whose place a good one is.
    pub(crate) fn tell_scribble(
        &mut self,
        (id, index): (ObjectId, PageIndex),
        bad: &PinnedPage,
        (good, mend): (&PinnedPage, Mend),
        changed: Option<Epoch>,
    ) {
        self.scribbles += 1;
        let (expected, got) = match bad.verify() {
            Err(mismatch) => mismatch.expected_and_got(),
            Ok(_) => (good.sum().to_string(), "another one, a moment ago".into()),
        };
        let error = Corruption {
            place: Place { object: Some(self.key(id)), index: Some(index), ..Place::default() },
            what: "checksum of a page of metadata in memory, to which somebody has written who must not".into(),
            expected,
            got,
        };
        let mut differs = mend.differs(good, bad);
        if let Some(epoch) = changed {
            differs += &format!("; last changed legally for epoch {epoch}");
        }
        tracing::error!(%error, differs, "{}", mend.done());
    }
}
