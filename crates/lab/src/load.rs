//! Loads after filebench's personalities of the same names, `oltp` after sysbench's: what one does in each round, whoever does it and
//! however it judges what it reads.

use std::fmt;

const KIB: u64 = 1024;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Load {
    /// Reads many small files, appends to a log.
    Webserver,
    /// Whole files come, grow, are read and go.
    Fileserver,
    /// A file per message, and an fsync for each change.
    Varmail,
    /// Reads and writes pages of one large file, with an fsync for each transaction.
    Oltp,
}

/// A part of a round. Which file it is about is drawn at random, unless it says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads a whole file.
    Read,
    /// Reads a whole file, then appends to it with an fsync.
    ReadAndAppend,
    /// Makes a file and writes it.
    Create,
    /// The same with an fsync.
    CreateSynced,
    /// Appends to a file.
    Append,
    /// Appends to the log, of which there is one.
    Log,
    /// Removes a file.
    Delete,
    /// Asks what is known of a file.
    Look,
    /// Reads a page of a file.
    ReadPage,
    /// Writes a page of a file.
    WritePage,
    /// Makes a file durable.
    Sync,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 4] = [Load::Webserver, Load::Fileserver, Load::Varmail, Load::Oltp];

    /// One round: each action, and how often in a row.
    pub fn round(self) -> &'static [(Action, u32)] {
        match self {
            Load::Webserver => &[(Action::Read, 10), (Action::Log, 1)],
            Load::Fileserver => {
                &[(Action::Create, 1), (Action::Append, 1), (Action::Read, 1), (Action::Delete, 1), (Action::Look, 1)]
            }
            Load::Varmail => {
                &[(Action::Delete, 1), (Action::CreateSynced, 1), (Action::ReadAndAppend, 1), (Action::Read, 1)]
            }
            Load::Oltp => &[(Action::ReadPage, 20), (Action::WritePage, 5), (Action::Sync, 1)],
        }
    }

    /// Mean bytes of a file; the one file of `oltp` has all of `bytes`.
    pub fn file_bytes(self, bytes: u64) -> u64 {
        match self {
            Load::Webserver | Load::Varmail => 16 * KIB,
            Load::Fileserver => 128 * KIB,
            Load::Oltp => bytes,
        }
    }

    /// Whether one file has more bytes than another, from half of the mean to one and a half.
    pub fn sizes_vary(self) -> bool {
        self != Load::Oltp
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Load::Webserver => "webserver",
            Load::Fileserver => "fileserver",
            Load::Varmail => "varmail",
            Load::Oltp => "oltp",
        })
    }
}
