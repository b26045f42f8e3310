//! What a bug in the product would have a trial report, and that it is not let through.

use super::*;
use holdfast_physical::check::{Finding, FindingKind};

/// The first copy of a directory's block, struck, and judged after a read of everything that met `met`.
fn judged(met: Met, repaired: bool) -> Trial {
    let store = Reference::make_all().unwrap().into_iter().next().unwrap();
    let (class, fault) = (BlockClass::Directory, Fault::Flip { bits: 1 });
    let injection = plan(&store.image, &store.catalogue, class, fault, false, 0).unwrap().unwrap();
    let device = Arc::new(store.image.clone());
    if !repaired {
        strike(&device, &injection).unwrap();
    }
    let (all_copies, work, verdict) = (false, Work::Read, Verdict::NotMet);
    let mut trial = Trial { class, fault, all_copies, work, seed: 0, verdict, message: None, wrong: Vec::new() };
    let foresight = Foresight { is_told: true, untold: Vec::new() };
    judge(&device, &injection, &foresight, met, &mut trial).unwrap();
    trial
}

/// Promises broken in trials of a kind in all stores, if the check before the work forgets what `forgets` says.
fn broken(class: BlockClass, fault: Fault, all_copies: bool, forgets: &dyn Fn(&Finding) -> bool) -> Vec<String> {
    broken_in(&Reference::make_all().unwrap(), class, fault, all_copies, forgets)
}

fn broken_in(
    stores: &[Reference],
    class: BlockClass,
    fault: Fault,
    all_copies: bool,
    forgets: &dyn Fn(&Finding) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for store in stores {
        if store.catalogue.of_class(class).next().is_none() {
            continue;
        }
        for seed in 0..8 {
            let with_bug = |device: Arc<dyn Device>| {
                let mut report = check(device, &CheckOptions::default())?;
                report.findings.retain(|finding| !forgets(finding));
                report.remarks.retain(|finding| !forgets(finding));
                Ok(report)
            };
            let trial = run_with(store, (class, fault, all_copies, Work::Mount, seed), &with_bug).unwrap();
            wrong.extend(trial.into_iter().flat_map(|trial| trial.wrong));
        }
    }
    wrong
}

#[test]
fn a_check_that_does_not_look_at_pages_of_the_log_is_seen() {
    let of_page = |finding: &Finding| finding.what.contains("intent log") && finding.place.object.is_some();
    assert_eq!(broken(BlockClass::IntentLog, Fault::Drop, false, &|_| false), Vec::<String>::new());
    let wrong = broken(BlockClass::IntentLog, Fault::Drop, false, &of_page);
    assert!(wrong.iter().any(|wrong| wrong.contains("says nothing of blocks that were struck")), "{wrong:?}");
    // Without a seal, a page that is gone may be a power cut's work, and its batch is left out.
    let unsealed = [Reference::make_unsealed().unwrap()];
    assert_eq!(broken_in(&unsealed, BlockClass::IntentLog, Fault::Drop, false, &|_| false), Vec::<String>::new());
    let wrong = broken_in(&unsealed, BlockClass::IntentLog, Fault::Drop, false, &of_page);
    assert!(wrong.iter().any(|wrong| wrong.contains("an older one, and a check had found nothing")), "{wrong:?}");
}

#[test]
fn a_check_that_takes_an_empty_superblock_for_one_never_written_is_seen() {
    let of_superblock = |finding: &Finding| finding.kind == FindingKind::Superblock;
    assert_eq!(broken(BlockClass::Superblock, Fault::Drop, true, &|_| false), Vec::<String>::new());
    let wrong = broken(BlockClass::Superblock, Fault::Drop, true, &of_superblock);
    assert!(wrong.iter().any(|wrong| wrong.contains("says nothing of blocks that were struck")), "{wrong:?}");
    assert!(wrong.iter().any(|wrong| wrong.contains("an older one, and a check had found nothing")), "{wrong:?}");
}

/// As if no seal were ever written.
#[test]
fn a_log_without_a_seal_is_seen() {
    assert_eq!(broken(BlockClass::IntentLog, Fault::Drop, true, &|_| false), Vec::<String>::new());
    let unsealed = [Reference::make_unsealed().unwrap()];
    let wrong = broken_in(&unsealed, BlockClass::IntentLog, Fault::Drop, true, &|_| false);
    assert!(wrong.iter().any(|wrong| wrong.contains("says nothing of blocks that were struck")), "{wrong:?}");
    assert!(wrong.iter().any(|wrong| wrong.contains("an older one, and a check had found nothing")), "{wrong:?}");
    assert!(wrong.iter().any(|wrong| wrong.contains("an older one, and the mount has not said so")), "{wrong:?}");
}

/// As if the mount had said nothing of an older state.
#[test]
fn an_older_state_that_the_mount_does_not_tell_of_is_seen() {
    let trial = judged(Met { older: true, ..Met::default() }, true);
    assert!(trial.wrong.iter().any(|wrong| wrong.contains("the mount has not said so")), "{trial:?}");
}

#[test]
fn a_repair_is_accepted() {
    let trial = judged(Met { repaired: 1, ..Met::default() }, true);
    assert_eq!((trial.verdict, trial.wrong), (Verdict::Recovered, Vec::new()));
}

#[test]
fn a_repair_that_writes_the_bad_copy_is_seen() {
    let trial = judged(Met { repaired: 1, ..Met::default() }, false);
    assert!(trial.wrong.iter().any(|wrong| wrong.contains("every block that was struck is bad")), "{trial:?}");
}

#[test]
fn a_block_that_is_read_unverified_is_seen() {
    let trial = judged(Met::default(), false);
    assert!(trial.wrong.iter().any(|wrong| wrong.contains("it was read, the other copy was good")), "{trial:?}");
}

#[test]
fn an_error_although_a_copy_is_good_is_seen() {
    let mut met = Met::default();
    met.seen.errors.push("corrupt".into());
    let trial = judged(met, false);
    assert!(trial.wrong.iter().any(|wrong| wrong.contains("a copy was good, and yet: corrupt")), "{trial:?}");
}
