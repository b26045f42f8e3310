//! Integration tests of `holdfast-integrity`, in one binary.

mod strength;
