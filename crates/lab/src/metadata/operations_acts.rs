//! What an application does, one thing at a time: on what, after what, and whether the answer is right.

use super::operations::Way;
use super::script::Run;
use super::script::SCRIPTS;
use crate::maker::STEP_NS;
use crate::model::{Action, Data, Node, Reply};
use holdfast_block::BLOCK_SIZE;
use holdfast_integrity::crc64;
use holdfast_naming::{Access, RenameMode, Request, SetAttr, SpaceMode, XattrMode};
use holdfast_object::{Clock, ObjectId, Seek, SnapshotId, Snapshots};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What is read and written: pages of which nothing is in the cache unless all is.
const READ_AT: u64 = 20 * BLOCK + 100;
const READ_BYTES: usize = 3 * BLOCK_SIZE;

/// What is not as it should be.
pub(super) enum Wrong {
    /// The operation failed.
    Failed(String),
    /// It had another answer.
    Answer(String),
}

type Answer = Result<String, Wrong>;

/// Operations: each with its name, and what stands at the head of its column.
macro_rules! operations {
    ($(#[doc = $doc:literal] $variant:ident $name:literal $column:literal),+ $(,)?) => {
        /// What an application does.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Operation {
            $(#[doc = $doc] $variant,)+
        }

        impl Operation {
            /// All of them.
            pub const ALL: &[Operation] = &[$(Operation::$variant,)+];

            /// As it is written.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$variant => $name,)+
                }
            }

            /// In a sentence.
            pub(super) fn meaning(self) -> &'static str {
                match self {
                    $(Operation::$variant => $doc.trim_ascii(),)+
                }
            }

            /// At the head of its column.
            pub(super) fn column(self) -> &'static str {
                match self {
                    $(Operation::$variant => $column,)+
                }
            }
        }
    };
}

operations! {
    /// Attributes of a file are asked for.
    Stat "stat" "st",
    /// May it be read and written?
    Access "access" "ac",
    /// A name is looked for.
    Lookup "lookup" "lo",
    /// A directory is listed.
    ReadDir "readdir" "ls",
    /// A file is opened.
    Open "open" "op",
    /// It is closed.
    Close "close" "cl",
    /// Four pages of a file are read, none of them whole.
    Read "read" "re",
    /// The next hole is looked for.
    Seek "seek" "se",
    /// The target of a link is asked for.
    Readlink "readlink" "rl",
    /// The value of an extended attribute is asked for.
    GetXattr "getxattr" "gx",
    /// The room in the store is asked for.
    Statfs "statfs" "df",
    /// Two pages are written, both in part.
    Write "write" "wr",
    /// A file is cut off.
    Truncate "truncate" "tr",
    /// A hole is made.
    Punch "punch" "pu",
    /// A part of a file is shared with another one.
    Copy "copy" "cp",
    /// The mode of a file is changed.
    Chmod "chmod" "cm",
    /// An extended attribute gets another value.
    SetXattr "setxattr" "sx",
    /// A file is made and opened.
    Create "create" "cr",
    /// A directory is made.
    Mkdir "mkdir" "md",
    /// A symbolic link is made.
    Symlink "symlink" "sl",
    /// A file gets a name more.
    Link "link" "ln",
    /// A file is moved to another directory.
    Rename "rename" "mv",
    /// A file of 70 pages goes.
    Unlink "unlink" "rm",
    /// A directory goes.
    Rmdir "rmdir" "rd",
    /// A write, and it goes into the intent log.
    Fsync "fsync" "fs",
    /// A write, and a recovery point.
    Sync "sync" "sy",
    /// Snapshots are listed.
    SnapshotList "snapshot-list" "Sl",
    /// A file is read in a snapshot.
    SnapshotRead "snapshot-read" "Sr",
    /// Two snapshots are compared.
    SnapshotDiff "snapshot-diff" "Sd",
    /// A snapshot is made.
    SnapshotCreate "snapshot-create" "Sc",
    /// A snapshot is deleted.
    SnapshotDelete "snapshot-delete" "Sx",
    /// The store is closed.
    Unmount "unmount" "um",
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Operation {
    /// Its answer is bytes that somebody has stored.
    pub(super) fn gives_bytes(self) -> bool {
        matches!(self, Operation::Read | Operation::Readlink | Operation::GetXattr | Operation::SnapshotRead)
    }

    /// It looks at snapshots, and not at what is now.
    pub(super) fn reads_snapshots(self) -> bool {
        matches!(self, Operation::SnapshotRead | Operation::SnapshotDiff)
    }

    /// The script that fits: what makes its recovery point, and whether the store is closed in the end.
    pub(super) fn script(self, way: Way) -> u64 {
        let point = match self {
            Operation::SnapshotCreate => 1,
            Operation::SnapshotDelete => 2,
            _ => 0,
        };
        // It is closed by the operation itself.
        let is_closed = way == Way::Clean && self != Operation::Unmount;
        if is_closed { SCRIPTS / 2 + point } else { point }
    }

    /// What has to be there before the strike.
    pub(super) fn prepare(self, run: &mut Run, way: Way) -> Result<(), String> {
        match self {
            Operation::Close => {
                let node = run.node(&["large"])?;
                run.maker.act(Action::Open { node, truncate: false })
            }
            Operation::Rmdir => {
                let parent = run.node(&["directory 0"])?;
                run.maker.act(Action::Mkdir { parent, name: b"empty directory".to_vec(), mode: 0o755 })?;
                if way == Way::Clean { run.maker.act(Action::SyncAll) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// What it is done to: what is struck is of this, if it is of anything that has a name.
    fn paths(self) -> &'static [&'static [&'static str]] {
        match self {
            Operation::Stat
            | Operation::Access
            | Operation::Open
            | Operation::Close
            | Operation::Read
            | Operation::Seek
            | Operation::Write
            | Operation::Truncate
            | Operation::Punch
            | Operation::Chmod
            | Operation::Sync
            | Operation::SnapshotRead => &[&["large"]],
            Operation::ReadDir | Operation::Create | Operation::Mkdir | Operation::Symlink => &[&["directory 0"]],
            Operation::Lookup | Operation::Link => &[&["directory 0"], &["directory 0", "small"]],
            Operation::GetXattr | Operation::SetXattr | Operation::Fsync => &[&["directory 0", "small"]],
            Operation::Readlink => &[&["directory 0", "link"]],
            Operation::Copy => &[&["large too"], &["copy"]],
            Operation::Rename => &[&[], &["directory 0"], &["file 2"]],
            Operation::Unlink => &[&[], &["large too"]],
            Operation::Rmdir => &[&["directory 0"], &["directory 0", "empty directory"]],
            Operation::Statfs
            | Operation::SnapshotList
            | Operation::SnapshotDiff
            | Operation::SnapshotCreate
            | Operation::SnapshotDelete
            | Operation::Unmount => &[],
        }
    }

    /// The same as objects.
    pub(super) fn about(self, run: &Run) -> Result<Vec<ObjectId>, String> {
        let object = |path: &&[&str]| run.maker.driver.object(run.node(path)?).ok_or(format!("{path:?} has no object"));
        self.paths().iter().map(object).collect()
    }

    /// Does it; gives the answer, which is the same each time that nothing has gone wrong.
    pub(super) fn act(self, run: &mut Run, snapshots: [SnapshotId; 2]) -> Answer {
        let failed = |error: &dyn std::fmt::Display| Wrong::Failed(format!("{}: {error}", self.name()));
        let large = |run: &Run| {
            let node = run.node(&["large"]).map_err(|error| failed(&error))?;
            run.maker.driver.object(node).ok_or(Wrong::Failed("it has no object".into()))
        };
        run.maker.stack.clock.advance_ns(STEP_NS);
        let space = run.maker.driver.namespace().clone();
        match self {
            Operation::Stat => {
                let of = space.getattr(large(run)?).map_err(|error| failed(&error))?;
                let (owner, times) = ((of.uid, of.gid), (of.atime, of.mtime, of.ctime, of.btime));
                let told = (of.kind, of.mode, of.nlink, of.size, of.blocks, of.rdev, of.flags);
                Ok(format!("{told:?} {owner:?} {times:?}"))
            }
            Operation::Access => {
                let wanted = Access::READ.and(Access::WRITE);
                let may = space.access(&Request::ROOT, large(run)?, wanted);
                may.map(|()| String::new()).map_err(|error| failed(&error))
            }
            Operation::Seek => {
                let found = space.seek(large(run)?, 5 * BLOCK, Seek::Hole);
                found.map(|position| position.to_string()).map_err(|error| failed(&error))
            }
            Operation::Statfs => Ok(format!("{:?}", space.statfs())),
            Operation::SnapshotList => {
                let listed = run.maker.stack.cache.snapshots();
                listed.map(|listed| format!("{listed:?}")).map_err(|error| failed(&error))
            }
            Operation::SnapshotRead => {
                let object = large(run)?.in_snapshot(snapshots[0]);
                let read = space.read(object, READ_AT, READ_BYTES).map_err(|error| failed(&error))?;
                Ok(format!("{:#x} of {} bytes", crc64(&read.to_vec()), read.len()))
            }
            Operation::SnapshotDiff => {
                let changes = space.diff(snapshots[0], snapshots[1]);
                changes.map(|changes| format!("{changes:?}")).map_err(|error| failed(&error))
            }
            Operation::SnapshotCreate | Operation::SnapshotDelete => {
                run.make_recovery_point().map(|()| String::new()).map_err(|error| failed(&error))
            }
            Operation::Unmount => run.maker.stack.close().map(|()| String::new()).map_err(|error| failed(&error)),
            _ => {
                let actions = self.actions(run).map_err(|error| failed(&error))?;
                actions.into_iter().try_for_each(|action| ask(run, &action)).map(|()| String::new())
            }
        }
    }

    /// What the model knows the answers to.
    fn actions(self, run: &Run) -> Result<Vec<Action>, String> {
        let large = run.node(&["large"])?;
        let directory = run.node(&["directory 0"])?;
        let small = run.node(&["directory 0", "small"])?;
        let write = |node, page: u64, length| Action::Write {
            node,
            offset: page * BLOCK + 77,
            data: Data { seed: 4000 + page, length },
            clear_set_ids: false,
        };
        let name = |name: &str| name.as_bytes().to_vec();
        let action = match self {
            Operation::Lookup => Action::Lookup { parent: directory, name: name("small") },
            Operation::ReadDir => Action::ReadDir { node: directory },
            Operation::Open => Action::Open { node: large, truncate: false },
            Operation::Close => Action::Release { node: large },
            Operation::Read => Action::Read { node: large, offset: READ_AT, length: READ_BYTES },
            Operation::Readlink => Action::Readlink { node: run.node(&["directory 0", "link"])? },
            Operation::GetXattr => Action::GetXattr { node: small, name: name("user.note") },
            Operation::Write => write(large, 24, 5000),
            Operation::Truncate => {
                let size = Some(40 * BLOCK - 50);
                Action::SetAttr { node: large, set: SetAttr { size, ..SetAttr::default() } }
            }
            Operation::Punch => {
                let (offset, length, mode) = (26 * BLOCK, 3 * BLOCK, SpaceMode::Punch);
                Action::Allocate { node: large, offset, length, mode }
            }
            Operation::Copy => Action::Copy {
                source: run.node(&["large too"])?,
                source_offset: 8 * BLOCK,
                target: run.node(&["copy"])?,
                target_offset: 16 * BLOCK,
                length: 2 * BLOCK,
            },
            Operation::Chmod => {
                Action::SetAttr { node: large, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } }
            }
            Operation::SetXattr => {
                let (value, mode) = (Data { seed: 4100, length: 250 }, XattrMode::Set);
                Action::SetXattr { node: small, name: name("user.note"), value, mode }
            }
            Operation::Create => {
                let (mode, exclusive, truncate) = (0o640, true, false);
                Action::Create { parent: directory, name: name("created"), mode, exclusive, truncate }
            }
            Operation::Mkdir => Action::Mkdir { parent: directory, name: name("subdirectory"), mode: 0o755 },
            Operation::Symlink => {
                Action::Symlink { parent: directory, name: name("pointing"), target: name("../large") }
            }
            Operation::Link => Action::Link { node: small, parent: directory, name: name("also small") },
            Operation::Rename => Action::Rename {
                parent: Node::ROOT,
                name: name("file 2"),
                new_parent: directory,
                new_name: name("moved here"),
                mode: RenameMode::Replace,
            },
            Operation::Unlink => Action::Unlink { parent: Node::ROOT, name: name("large too") },
            Operation::Rmdir => Action::Rmdir { parent: directory, name: name("empty directory") },
            Operation::Fsync => {
                return Ok(vec![write(small, 0, 3000), Action::Sync { node: small, data_only: false }]);
            }
            Operation::Sync => return Ok(vec![write(large, 24, 5000), Action::SyncAll]),
            other => return Err(format!("the model knows nothing of {}", other.name())),
        };
        Ok(vec![action])
    }
}

/// Does what must succeed, and has the answer that the model has.
fn ask(run: &mut Run, action: &Action) -> Result<(), Wrong> {
    let got = run.maker.driver.apply(action);
    let expected = run.maker.model.apply(action, run.maker.stack.clock.now());
    match (got, expected) {
        (Err(error), _) => Err(Wrong::Failed(format!("{action:?}: {error}"))),
        (Ok(got), Ok(expected)) if got == expected => Ok(()),
        (Ok(Reply::Bytes(_)), Ok(_)) => Err(Wrong::Answer(format!("{action:?}: other bytes"))),
        (Ok(got), expected) => Err(Wrong::Answer(format!("{action:?}: {got:?}, expected {expected:?}"))),
    }
}
