//! An NBD server for any [`Device`](crate::Device): over unix sockets and TCP, with TLS (feature `tls`), as the protocol's
//! document has it (fixed newstyle, structured replies, block status). See `docs/nbd.md` for what clients get, and decision 0018.
//!
//! The rooms: [`protocol`] is bytes and nothing else, [`option`] and [`negotiation`] the talk before the first request,
//! [`transmission`] the requests of one connection, [`export`] what they do to the device, [`server`] and [`listen`] the
//! life of the whole. Nothing that a client sends is believed before it is checked, and no client makes the others wait.

mod asking;
mod buffer;
mod edges;
mod export;
mod extents;
mod link;
mod listen;
mod negotiation;
mod option;
mod protocol;
mod reader;
mod replies;
mod server;
mod speed;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transmission;

pub use edges::Edges;
pub use export::Export;
pub use extents::{AllData, Context, Extent, Extents, HOLE, NOT_BACKED_UP, ZERO};
pub use listen::{DEFAULT_PORT, Listener};
pub use server::{Limits, Server, Stop};
#[cfg(feature = "tls")]
pub use tls::Tls;
