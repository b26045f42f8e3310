//! Holdfast: lab.

pub mod device;
pub mod explorer;
pub mod model;
pub mod stack;
