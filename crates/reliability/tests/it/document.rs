//! `docs/reliability.md` and `docs/flashlog-model.md` say what the models say.

use holdfast_reliability::{
    Bars, ChecksumData, Devices, Figure, Goal, Prices, draw, draw_bars, renewed, renewed_schemes,
};
use std::fs;
use std::path::{Path, PathBuf};

const ANEW: &str = "make them anew: cargo run -p holdfast-reliability --bin reliability-document -- --write";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn tables_are_those_of_the_model() {
    for (name, renew) in [("reliability.md", renewed as fn(&str) -> _), ("flashlog-model.md", renewed_schemes)] {
        let text = fs::read_to_string(docs().join(name)).unwrap();
        let new = renew(&text).unwrap();
        for (line, expected) in text.lines().zip(new.lines()) {
            assert_eq!(line, expected, "{name}: {ANEW}");
        }
        assert_eq!(text.lines().count(), new.lines().count(), "{name}: {ANEW}");
    }
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
    let text = fs::read_to_string(docs().join("flashlog-model.md")).unwrap();
    for bars in Bars::ALL {
        let name = format!("figures/flashlog-{}.svg", bars.name());
        assert!(text.contains(&format!("]({name})")), "{name} is not shown");
        let svg = draw_bars(bars, &Devices::default(), &Prices::default()).unwrap();
        assert!(fs::read_to_string(docs().join(&name)).unwrap() == svg, "{name}: {ANEW}");
    }
}

#[test]
fn the_program_has_help_and_then_does_nothing() {
    let run = |argument: &str| {
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_reliability-document")).arg(argument).output();
        let done = program.unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    for argument in ["-h", "--help"] {
        let (is_fine, out, _) = run(argument);
        assert!(is_fine && out.contains("Usage: reliability-document [--write]") && out.lines().count() < 10, "{out}");
    }
    let (is_fine, out, err) = run("--wirte");
    assert!(!is_fine && out.is_empty() && err.contains("usage: reliability-document [--write]"), "{err}");
}
