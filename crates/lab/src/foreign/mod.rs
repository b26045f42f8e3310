//! Foreign bytes: a store in which some structure says something else than it should, with all checksums made to fit again up to
//! the superblock, as a hostile or a buggy writer would leave it. Everything that reads disk bytes then meets them.
//!
//! What must hold for any such store: no panic, no hang, bounded memory; what cannot be had is an error. What was read before
//! may be wrong, of course: the checksums say that it is right.
//!
//! | file | job |
//! |---|---|
//! | `sample` | a store with every structure of the format in it |
//! | `image` | its blocks, who points to whom, and the checksums made to fit |
//! | `decoders` | all decoders of single structures by name, and what they start from |
//! | `flashlog` | a set of main, log and backup, edited in the same way, and everything that is done with it |
//! | `edit` | changes of bytes, at random or from a file |
//! | `visit` | everything that is done with the store then |
//! | `trial` | that, watched for panics and hangs |

pub mod decoders;
mod edit;
mod flashlog;
mod image;
mod sample;
mod trial;
mod visit;

pub use edit::{Edit, Pool, parse, random, render};
pub use image::{BlockName, Image, Part};
pub(crate) use sample::acl;
pub use sample::sample;
pub use trial::{Failure, try_edits};
pub use visit::{Visit, visit};
