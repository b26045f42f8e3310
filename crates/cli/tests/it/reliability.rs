//! `holdfast reliability`.

use crate::rig::Rig;
use serde_json::Value;

fn score(report: &Value, mode: &str) -> f64 {
    let modes = report["modes"].as_array().unwrap();
    let found = modes.iter().find(|judged| judged["mode"] == mode).unwrap_or_else(|| panic!("{mode}: {report}"));
    found["score"].as_f64().unwrap()
}

#[test]
fn sample_configurations_give_the_published_figures() {
    let rig = Rig::new();
    let of = |number: &str| {
        let published = ["--checksum-data", "published", "--costs", "published"];
        let arguments = [&["reliability", "--config", number, "--json"], &published[..]].concat();
        rig.run(arguments).exits(0).json()
    };
    // z2fs §II-D to §III-B.
    for (number, mode, published) in [
        ("3", "none", 7.4),
        ("4", "disk", 12.8),
        ("2", "end-to-end=xor64", 17.1),
        ("1", "end-to-end=fletcher256", 36.6),
    ] {
        let score = score(&of(number), mode);
        assert!((score - published).abs() <= 0.1, "{mode}: {score}");
    }
    let consumer = of("2");
    assert_eq!(consumer["t_switch"]["seconds"].as_f64().unwrap().round(), 92.0);
    assert_eq!(consumer["recommendation"]["mode"], "dynamic");
    assert_eq!(consumer["recommendation"]["t_switch_s"], consumer["t_switch"]["seconds"]);
    assert_eq!(of("1")["t_switch"]["held"], "never");
    // By what modes cost here, xor and a switch save nothing.
    let here = rig.run(["reliability", "--config", "2", "--checksum-data", "published", "--json"]).exits(0).json();
    let here = &here["recommendation"];
    assert_eq!((here["mode"].as_str(), here["costs"].as_str()), (Some("uniform"), Some("measured")));
    assert_eq!(of("1")["recommendation"]["mode"], "static=strong");
    let low_end = rig.run(["reliability", "--config", "1"]).exits(0).out;
    assert!(low_end.contains("xor is never strong enough") && low_end.contains("Recommended: uniform"), "{low_end}");
}

#[test]
fn ones_own_figures_count() {
    let rig = Rig::new();
    let ask = |more: &[&str]| rig.run([&["reliability", "--json"], more].concat()).exits(0).json();
    let (with, without) = (ask(&["--ecc", "yes"]), ask(&["--ecc", "no"]));
    assert!(score(&with, "static") > score(&without, "static"));
    assert_eq!(with["machine"]["memory"]["from"], "with ECC, as given");
    let given = ask(&["--memory-fit", "25000", "--uber", "1e-12", "--config", "1", "--flush", "5s"]);
    assert_eq!(given["machine"]["disk"]["uber"], 1e-12);
    assert!((given["machine"]["memory"]["fit_per_mbit"].as_f64().unwrap() - 25000.0).abs() < 1e-6);
    // Less time in the writer's memory is better.
    assert!(score(&given, "disk") > score(&without, "disk"));
    assert!(score(&ask(&["--ecc", "no", "--residency", "5m"]), "disk") < score(&without, "disk"));
    assert_eq!(ask(&["--ecc", "yes", "--uptime", "30d", "--costs", "published"])["recommendation"]["mode"], "static");
    assert_eq!(ask(&["--ecc", "yes", "--uptime", "1h", "--goal", "terabyte"])["recommendation"]["mode"], "disk");
    // However good the memory is, one sees which figure it was.
    for (given, shown) in [("0.00001", " 1e-5 FIT/Mbit"), ("0.0123", " 1.23e-2 FIT/Mbit"), ("0.56", " 0.56 FIT/Mbit")] {
        let words = rig.run(["reliability", "--memory-fit", given]).exits(0).out;
        assert!(words.contains(shown), "{words}");
    }
    // As bad as can be given: CRC-64 is enough all the same.
    let worst = ask(&["--uber", "0.1", "--memory-fit", "1e12", "--uptime", "1000000y"]);
    assert_eq!(worst["recommendation"]["mode"], "uniform");
}

#[test]
fn the_machine_at_hand_is_looked_at_and_what_is_assumed_is_said() {
    let rig = Rig::new();
    let report = rig.run(["reliability", "--json"]).exits(0).json();
    let from = report["machine"]["memory"]["from"].as_str().unwrap();
    assert!(
        ["with ECC (", "without ECC (", "taken to have no ECC ("].iter().any(|start| from.starts_with(start)),
        "{from}"
    );
    assert_eq!(report["machine"]["disk"]["from"], "assumed of a regular disk");
    let words = rig.run(["reliability"]).exits(0).out;
    assert!(words.contains(from), "{words}");
    let headings: Vec<_> =
        words.lines().skip_while(|line| !line.ends_with("keeps the goal for pages up to so long in memory")).collect();
    let columns: Vec<_> = headings[1].split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
    assert_eq!(columns, ["mode", "score at 1 s", "terabyte", "petabyte", "exabyte", "zettabyte"]);
    // The first line of them stands above its columns, and ends with them.
    assert_eq!(headings[0].len(), headings[1].len());
    assert!(headings[0].find("keeps") >= headings[1].find("1 s"), "{words}");
    let mode = report["recommendation"]["mode"].as_str().unwrap();
    assert!(words.contains(&format!("Recommended: {mode}")), "{words}");
    for judged in report["modes"].as_array().unwrap() {
        assert!(words.contains(judged["mode"].as_str().unwrap()), "{words}");
    }
}

#[test]
fn nonsense_is_refused() {
    let rig = Rig::new();
    for arguments in [
        &["--config", "5"][..],
        &["--uber", "2"],
        &["--uber", "nan"],
        &["--memory-fit", "-1"],
        &["--goal", "yottabyte"],
        &["--costs", "low"],
        &["--uptime", "5 fortnights"],
        &["--ecc", "yes", "--memory-fit", "1"],
        &["--figure", "2"],
        &["--figure", "1", "--out", "f"],
        &["--out", "f"],
        &["--figure", "2", "--out", "f", "--ecc", "no"],
    ] {
        rig.run([&["reliability"], arguments].concat()).exits(2);
    }
    let negative = rig.run(["reliability", "--memory-fit", "-1"]).exits(2);
    assert!(negative.err.contains("-1.0 is out of range: from 1e-12 to"), "{negative:?}");
}

#[test]
fn figures_are_drawn() {
    let rig = Rig::new();
    for number in 2..=5 {
        let (number, file) = (number.to_string(), format!("figure-{number}.svg"));
        rig.run(["reliability", "--figure", &number, "--out", &file]).exits(0);
        let svg = std::fs::read_to_string(rig.path(&file)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }
    let drawn = rig.run(["reliability", "--figure", "2", "--out", "other", "--checksum-data", "measured", "--json"]);
    assert_eq!(drawn.exits(0).json()["file"], "other");
    let published = ["reliability", "--figure", "2", "--out", "paper", "--checksum-data", "published"];
    rig.run(published).exits(0);
    let read = |file| std::fs::read(rig.path(file)).unwrap();
    assert!(read("other") == read("figure-2.svg") && read("other") != read("paper"));
    let shown = rig.run(["reliability", "--figure", "2", "--out", "-"]).exits(0).out;
    assert!(shown.as_bytes() == read("figure-2.svg") && !rig.path("-").exists(), "{shown}");
    rig.run(["reliability", "--figure", "2", "--out", "no/such/place"]).exits(1).says("no/such/place");
}
