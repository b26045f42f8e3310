//! Flashlog for the commands: devices, the server, and how commands find it and talk to it.
//!
//! | file | job |
//! |---|---|
//! | `ground` | where a device of a set is made: a new file, or what is there and may go |
//! | `places` | where devices are that go and come back |
//! | `sets` | opening devices and sets, and what to say when that fails |
//! | `attach` | giving main a log while it is used, and letting it go |
//! | `grow` | making a set larger that is served |
//! | `backup` | bringing a backup up to date |
//! | `scrub` | comparing main with its backup, or with its log |
//! | `past` | moments of a set, and serving the state at one |
//! | `in_use` | a set in use by a server or a mount: its log comes and goes, its past can be looked at |
//! | `apart` | whether devices can fail one without the other |
//! | `control` | how a command asks the server of a set |
//! | `server` | serving a set |
//! | `report` | how a set is doing, in words and as data |

pub(crate) mod apart;
pub(crate) mod attach;
pub(crate) mod backup;
pub(crate) mod catch_up;
pub(crate) mod control;
pub(crate) mod ground;
pub(crate) mod grow;
pub(crate) mod in_use;
pub(crate) mod past;
pub(crate) mod places;
pub(crate) mod report;
pub(crate) mod scrub;
pub(crate) mod server;
pub(crate) mod sets;
