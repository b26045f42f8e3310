//! Full stores, emptied and filled again. More of it: the program space-torture.

use holdfast_lab::torture::{Options, run};

#[test]
fn space_comes_back_when_all_is_deleted() {
    for seed in 1..4 {
        let options = Options { seed, blocks: 512 + 200 * seed, frames: 256, rounds: 2, time: None };
        let report = run(options).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.rounds == 2 && report.refused > 50 && report.files_read > 20, "{report:?}");
        assert!(report.kept > 0 && report.given_up > 0, "{report:?}");
    }
}
