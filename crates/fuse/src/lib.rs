//! FUSE: the wire between the kernel and naming, and the only place with error numbers.
//!
//! ```text
//!  /dev/fuse ─ session.rs (receive) ─ decode.rs ─ dispatch.rs ─ Handler ─ adapter/ ─► naming
//!            ◄──────────── reply.rs (writev of many slices) ◄──────────┘
//! ```
//!
//! A thin layer of our own (docs/decisions/0002-fuse-wire.md): a session can be taken over on an inherited descriptor without
//! INIT and ask for a resend, replies are sent from the pages that hold the bytes, and every request is decoded with
//! bounds checks.
//!
//! - `abi`: structures and flags as in the kernel's UAPI;
//! - `decode`: bytes to [`Request`];
//! - `handler`: the [`Handler`] of a request and the [`Service`] that has one for each, neutral, so that a library could replace the wire;
//! - `session`, `negotiate`, `mount`, `notify`: the connection;
//! - [`adapter`]: the service that serves a name space;
//! - [`control`]: ioctls for what FUSE has no request for.
#![warn(missing_docs)]

pub mod abi;
pub mod adapter;
mod buffer;
pub mod control;
mod decode;
mod dispatch;
mod errno;
mod handler;
mod mount;
mod negotiate;
pub mod notify;
mod reply;
mod session;
#[cfg(test)]
mod test_support;

pub use decode::{Body, Context, DecodeError, Request, header, request};
pub use errno::Errno;
pub use handler::{Answer, Attributes, Change, Entry, Handler, Opened, Service};
pub use mount::{Flags, MountError, MountOptions, TYPE, mount, ready, remount, unmount};
pub use negotiate::{Caching, Negotiated, Unsupported, WRITE_BYTES_MAX, negotiate};
pub use reply::{DirBuffer, Slices};
pub use session::{Session, Worker, open_device};
