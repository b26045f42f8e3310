//! What a bug in the product would have a trial report, and that it is not let through.

use super::*;

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
    judge(&device, &injection, met, &mut trial).unwrap();
    trial
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
