//! `status --metrics`: the text format of Prometheus, read by a strict parser, and figures that move as they should.

use crate::rig::{Rig, fuse};
use std::collections::BTreeMap;
use std::fs::{self, File};

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
struct Family {
    kind: String,
    samples: Vec<(Labels, f64)>,
}

/// The exposition format 0.0.4, without what it allows and nobody needs: every family has HELP and TYPE, in this order, and
/// then its samples; no blank lines, no time stamps.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n') && !text.contains("\n\n") && !text.contains('\r'), "{text:?}");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
        assert!(!help.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{line}");
        let line = lines.next().unwrap();
        let kind = line.strip_prefix(&format!("# TYPE {name} ")).expect(line).to_string();
        assert!(["gauge", "counter"].contains(&kind.as_str()), "{line}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        let mut samples: Vec<(Labels, f64)> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (labels, value) = sample(line.strip_prefix(name).expect(line));
            assert!(samples.iter().all(|(others, _)| *others != labels), "twice: {line}");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            samples.push((labels, value));
        }
        assert!(!samples.is_empty(), "{name} has no samples");
        assert!(families.insert(name.to_string(), Family { kind, samples }).is_none(), "{name} is there twice");
    }
    families
}

/// `{name="value",…} number`
fn sample(line: &str) -> (Labels, f64) {
    let mut labels = Labels::new();
    let mut rest = line.strip_prefix('{').expect(line);
    loop {
        let (name, after) = rest.split_once("=\"").expect(line);
        assert!(!name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{line}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect(line) {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect(line).1 {
                    'n' => '\n',
                    plain @ ('\\' | '"') => plain,
                    other => panic!("\\{other} in {line}"),
                }),
                (_, plain) => value.push(plain),
            }
        };
        assert!(labels.insert(name.to_string(), value).is_none(), "{line}");
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    (labels, rest.strip_prefix("} ").expect(line).parse().expect(line))
}

/// The figures of one store, by family.
fn figures(rig: &Rig, path: &str) -> BTreeMap<String, f64> {
    let families = parse(&rig.run(["status", path, "--metrics"]).exits(0).out);
    families.into_iter().map(|(name, family)| (name, family.samples[0].1)).collect()
}

#[test]
fn the_figures_of_a_mount_count_what_was_done() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("epoch=60000,cache=16M");
    let before = figures(&rig, "m");
    assert_eq!(before["holdfast_mounted"], 1.0);
    fs::write(mount.join("f"), vec![0x5a; 1 << 20]).unwrap();
    fs::write(mount.join("g"), vec![0xa5; 64 << 10]).unwrap();
    File::open(mount.join("g")).unwrap().sync_all().unwrap();
    assert_eq!(figures(&rig, "m")["holdfast_cache_twins_bytes"], 4096.0, "of the page that has both names");
    rig.run(["sync", "m"]).exits(0);
    fs::read(mount.join("f")).unwrap();
    let after = figures(&rig, "m");
    let grown = |name: &str| after[&format!("holdfast_{name}")] - before[&format!("holdfast_{name}")];
    assert!(grown("device_written_bytes_total") >= (1 << 20).into(), "{}", grown("device_written_bytes_total"));
    let logged = grown("intent_log_bytes_total");
    assert!((f64::from(64 << 10)..f64::from(128 << 10)).contains(&logged), "{logged}");
    assert!(grown("device_flushes_total") >= 3.0 && grown("device_writes_total") >= 3.0);
    assert_eq!((grown("fsyncs_total"), grown("intent_log_batches_total")), (1.0, 1.0));
    assert_eq!((grown("epochs_total"), grown("recovery_point_epoch")), (1.0, 1.0));
    assert!(grown("cache_page_hits_total") >= 256.0, "it was in memory");
    assert_eq!((grown("objects"), grown("cache_page_misses_total")), (2.0, 0.0));
    assert!(grown("space_used_bytes") >= (1 << 20).into());
    for name in [
        "blocks_repaired_total",
        "blocks_unrepaired_total",
        "latched",
        "read_only",
        "cache_dirty_bytes",
        "cache_twins_bytes",
    ] {
        assert_eq!(after[&format!("holdfast_{name}")], 0.0, "{name}");
    }

    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    fs::read(mount.join("f")).unwrap();
    let again = figures(&rig, "m");
    assert!(again["holdfast_cache_page_misses_total"] >= 256.0 && again["holdfast_read_only"] == 1.0);
    assert!(again["holdfast_device_read_bytes_total"] >= f64::from(1 << 20));
    assert_eq!((again["holdfast_device_written_bytes_total"], again["holdfast_latched"]), (0.0, 0.0));
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn every_store_has_its_samples_and_every_figure_of_status_is_there() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    rig.store("odd \"name\\", "4M");
    rig.directory("n");
    rig.run(["mount", "odd \"name\\", "n"]).exits(0);
    let families = parse(&rig.run(["status", "--metrics"]).out);
    let odd = rig.path("odd \"name\\").to_str().unwrap().to_string();
    for (name, family) in &families {
        let mine = |store: &str| {
            family
                .samples
                .iter()
                .filter(|(labels, _)| labels["store"] == store)
                .map(|(_, value)| *value)
                .collect::<Vec<_>>()
        };
        assert_eq!(mine(rig.path("s").to_str().unwrap()).len(), 1, "{name}");
        assert_eq!(mine(&odd).len(), 1, "{name}");
        assert!(family.kind == "gauge" || family.kind == "counter");
    }
    let status = rig.run(["status", "n", "--json"]).exits(0).json();
    let of_odd = |name: &str| {
        let found = families[name].samples.iter().find(|(labels, _)| labels["store"] == odd);
        found.unwrap_or_else(|| panic!("{name}")).clone()
    };
    assert_eq!(of_odd("holdfast_info").0["uuid"], status["uuid"].as_str().unwrap());
    assert_eq!(of_odd("holdfast_space_total_bytes").1, status["space"]["total_bytes"].as_f64().unwrap());
    assert_eq!(of_odd("holdfast_cache_size_bytes").1, status["cache"]["total_bytes"].as_f64().unwrap());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["unmount", "n"]).exits(0);
}

#[test]
fn a_store_that_is_not_mounted_has_metrics_without_a_daemon() {
    let rig = Rig::new();
    rig.store("s", "4M");
    let figures = figures(&rig, "s");
    assert_eq!((figures["holdfast_mounted"], figures["holdfast_clean"], figures["holdfast_objects"]), (0.0, 1.0, 1.0));
    assert!(!figures.contains_key("holdfast_cache_size_bytes"));
    rig.run(["status", "s", "--metrics", "--json"]).exits(2);
    rig.run(["status", "absent", "--metrics"]).exits(1);
}
