//! Holdfast: logical.
