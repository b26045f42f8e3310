//! `docs/reliability.md` says what the model says.

use holdfast_reliability::{ChecksumData, Figure, Goal, draw, renewed};
use std::fs;
use std::path::{Path, PathBuf};

const ANEW: &str = "make them anew: cargo run -p holdfast-reliability --bin reliability-document -- --write";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn tables_are_those_of_the_model() {
    let text = fs::read_to_string(docs().join("reliability.md")).unwrap();
    let new = renewed(&text).unwrap();
    for (line, expected) in text.lines().zip(new.lines()) {
        assert_eq!(line, expected, "{ANEW}");
    }
    assert_eq!(text.lines().count(), new.lines().count(), "{ANEW}");
}

// Elsewhere a last digit of a logarithm, and then a pixel, may be another.
#[cfg(target_arch = "x86_64")]
#[test]
fn figures_are_those_of_the_model() {
    let text = fs::read_to_string(docs().join("reliability.md")).unwrap();
    for figure in Figure::ALL {
        let name = format!("figures/reliability-{}.svg", figure.number());
        assert!(text.contains(&format!("]({name})")), "{name} is not shown");
        let svg = draw(figure, ChecksumData::Published, Goal::Zettabyte).unwrap();
        assert!(fs::read_to_string(docs().join(&name)).unwrap() == svg, "{name}: {ANEW}");
    }
}
