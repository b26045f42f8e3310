//! Holdfast: cache.
