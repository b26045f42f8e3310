//! Whoever looks after a mount.

use crate::stack::Stack;
use holdfast_cache::Cache;
use holdfast_fuse::control::{Control, Trimmed};
use holdfast_object::{Epoch, ObjectCache, ObjectStore, PAGE_SIZE, Result};
use holdfast_physical::Module;
use std::sync::Arc;

/// What the command line does for a mount, as far as requests can ask for it.
pub struct Operator(Arc<Cache>, Arc<Module>);

impl Operator {
    /// For a mount of this stack.
    pub fn new(stack: &Stack) -> Operator {
        Operator(stack.cache.clone(), stack.module.clone())
    }
}

impl Control for Operator {
    fn sync(&self) -> Result<Epoch> {
        self.0.sync_all()
    }

    fn status_json(&self) -> Vec<u8> {
        b"{}".to_vec()
    }

    fn scrub_json(&self, request: &[u8]) -> Vec<u8> {
        request.to_vec()
    }

    fn check_json(&self, _uid: u32, request: &[u8]) -> Vec<u8> {
        request.to_vec()
    }

    fn snapshot_json(&self, _uid: u32, request: &[u8]) -> Vec<u8> {
        request.to_vec()
    }

    fn grow_json(&self, _uid: u32, request: &[u8]) -> Vec<u8> {
        request.to_vec()
    }

    fn remount_json(&self, _uid: u32, request: &[u8]) -> Vec<u8> {
        request.to_vec()
    }

    fn trim(&self, from_bytes: u64) -> Result<Trimmed> {
        let page = PAGE_SIZE as u64;
        let size_bytes = self.1.status().space.total * page;
        let next_bytes = from_bytes.saturating_add(size_bytes / 4);
        let discarded_bytes = self.1.trim(from_bytes / page..next_bytes / page)? * page;
        Ok(Trimmed { next_bytes, size_bytes, discarded_bytes })
    }

    fn shut_down(&self, _uid: u32) -> Result<bool> {
        Ok(false)
    }

    fn is_down(&self) -> bool {
        false
    }
}
