//! What the newest snapshot keeps of metadata.

use super::*;

/// In numbers without a sign, less than none is more than all, and the superblock may say all.
#[test]
fn less_than_none_is_not_taken_for_all() {
    let rig = Rig::with(MetadataProtection::Audited);
    let epoch = rig.module.epoch() + 1;
    rig.module.snapshot_create(DomainId::MAIN, epoch, "now", Timestamp { secs: 1, nanos: 0 }).unwrap();
    let mut trees = rig.module.trees.write();
    trees.audit.sums.change(|sums| sums.kept = sums.kept.wrapping_sub(1 << 20));
    assert_eq!(trees.metadata_kept(), Some(trees.metadata.get()));
    drop(trees);
    let error = rig.commit().unwrap_err().to_string();
    assert!(error.contains("\"metadata kept\": ") && error.contains("a logic bug"), "{error}");
}
