//! Integration tests of the lab, one binary.

mod model;
