//! `holdfast flashlog model`.

use crate::rig::Rig;
use serde_json::Value;

fn of<'a>(report: &'a Value, list: &str, scheme: &str) -> &'a Value {
    let all = report[list].as_array().unwrap();
    all.iter().find(|entry| entry["scheme"] == scheme).unwrap_or_else(|| panic!("{scheme}: {report}"))
}

#[test]
fn the_model_gives_the_figures_of_the_thesis_and_ones_own() {
    let rig = Rig::new();
    let report = rig.run(["flashlog", "model", "--json"]).exits(0).json();
    // Table 6.17.
    assert_eq!(format!("{:.2}", of(&report, "costs", "Flashlog (stick)")["total"].as_f64().unwrap()), "154.57");
    let life = |report: &Value, scheme: &str| of(report, "schemes", scheme)["mttf_h"].as_f64().unwrap();
    assert_eq!(life(&report, "disk"), 300_000.0);
    let longer = rig.run(["flashlog", "model", "--json", "--repair", "36h", "--disk-mttf", "600000h"]).exits(0).json();
    assert_eq!(life(&longer, "RAID 1") / life(&report, "RAID 1"), 8.0);
    let words = rig.run(["flashlog", "model"]).exits(0).out;
    assert!(words.contains("154.57") && words.lines().all(|line| line.len() <= 80), "{words}");
    for wrong in [["--repair", "0s"], ["--disk-price", "free"], ["--disks", "0"], ["--figure", "mttf"]] {
        rig.run([&["flashlog", "model"], &wrong[..]].concat()).exits(2);
    }
}

#[test]
fn figures_are_drawn() {
    let rig = Rig::new();
    for figure in ["mttf", "failures", "costs"] {
        let file = rig.path(&format!("{figure}.svg"));
        rig.run(["flashlog", "model", "--figure", figure, "--out", file.to_str().unwrap()]).exits(0);
        let drawn = std::fs::read_to_string(file).unwrap();
        assert!(drawn.contains("Flashlog (SSD)"));
        let shown = rig.run(["flashlog", "model", "--figure", figure, "--out", "-"]).exits(0).out;
        assert!(shown == drawn && !rig.path("-").exists(), "{shown}");
    }
    // Nothing else is put into a file that promises something else.
    for command in [&["flashlog", "model", "--figure", "costs"][..], &["reliability", "--figure", "5"]] {
        let file = rig.path("figure.png");
        let refused = rig.run(command.iter().copied().chain(["--out", file.to_str().unwrap()])).exits(2);
        assert!(refused.err.contains("figures are SVG") && !file.exists(), "{}", refused.err);
    }
}
