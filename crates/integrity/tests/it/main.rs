//! Integration tests of `holdfast-integrity`, in one binary.

mod random;
mod rolling;
mod strength;
