//! The model against the papers' figures, against the code whose strength it claims to know, and against itself.

mod checksums;
mod document;
mod properties;
mod published;
