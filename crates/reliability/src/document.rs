//! The tables of `docs/reliability.md`, which is written by hand but for them.
//!
//! In the document a table is what is between `<!-- table: NAME -->` and `<!-- end -->`.

use crate::checksum::{ChecksumData, strength};
use crate::goal::Goal;
use crate::machine::Config;
use crate::mode::Mode;
use crate::model::Model;
use crate::recommend::{Costs, recommend};
use holdfast_integrity::Algorithm;
use std::fmt::Write;

const XOR: Mode = Mode::EndToEnd(Mode::WEAK);
const FLETCHER: Mode = Mode::EndToEnd(Mode::STRONG);
/// Residency for which scores are, in seconds: z2fs §II-D.
const RESIDENCY_S: f64 = 1.0;
const DAY_S: f64 = 86400.0;

/// Scores that the text of z2fs gives (§II-D to §III-B), for configurations by number.
const IN_THE_PAPER: [(Mode, u8, &str); 9] = [
    (Mode::None, 2, "7.4"),
    (Mode::None, 3, "7.4"),
    (Mode::None, 4, "12.8"),
    (Mode::Disk, 3, "12.8"),
    (Mode::Disk, 4, "12.8"),
    (XOR, 2, "17.1"),
    (XOR, 3, "17.1"),
    (XOR, 4, "27.8"),
    (FLETCHER, 1, "36.6"),
];

/// A table has no place in the document, or no end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the document has no complete table {0:?}")]
pub struct MissingMark(&'static str);

/// The document with its tables as the model has them now.
///
/// # Errors
/// [`MissingMark`] if the place of a table is not there.
pub fn renewed(document: &str) -> Result<String, MissingMark> {
    let tables = [
        ("scores", scores()),
        ("strengths", strengths()),
        ("measured scores", measured_scores()),
        ("residencies", residencies()),
        ("advice", advice()),
    ];
    put_tables(document, tables)
}

/// The document with these tables in their places.
pub(crate) fn put_tables(
    document: &str,
    tables: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<String, MissingMark> {
    let mut document = document.to_string();
    for (name, table) in tables {
        let begin = format!("<!-- table: {name} -->\n");
        let from = document.find(&begin).ok_or(MissingMark(name))? + begin.len();
        let to = from + document[from..].find("<!-- end -->").ok_or(MissingMark(name))?;
        document.replace_range(from..to, &table);
    }
    Ok(document)
}

pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut out = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out
}

fn model(config: Config, data: ChecksumData) -> Model {
    Model { machine: config.machine(), data, goal: Goal::Zettabyte }
}

fn row(first: impl Into<String>, cell: impl Fn(Config) -> String) -> Vec<String> {
    std::iter::once(first.into()).chain(Config::ALL.map(cell)).collect()
}

const CONFIGS: [&str; 5] = ["", "1: low-end", "2: consumer", "3: enterprise", "4: server"];

/// With the published strengths; what the paper says of it in brackets.
fn scores() -> String {
    let modes = [Mode::None, Mode::Disk, XOR, FLETCHER, Mode::Static, Mode::Dynamic, Mode::Uniform];
    let rows = modes.map(|mode| {
        row(format!("`{mode}`: {}", mode.stands_for()), |config| {
            let score = format!("{:.2}", model(config, ChecksumData::Published).score(mode, RESIDENCY_S));
            let there = IN_THE_PAPER.iter().find(|(of, number, _)| (*of, *number) == (mode, config.number()));
            there.map_or(score.clone(), |(_, _, paper)| format!("{score} ({paper})"))
        })
    });
    let switch = row("t_switch", |config| model(config, ChecksumData::Published).t_switch().to_string());
    table(&CONFIGS, rows.into_iter().chain([switch]))
}

fn strengths() -> String {
    let all = [
        (Algorithm::Xor64, ChecksumData::Measured, "xor64"),
        (Algorithm::Fletcher256, ChecksumData::Published, "Fletcher-256, published"),
        (Algorithm::Fletcher256, ChecksumData::Measured, "Fletcher-256 mod 2^128 − 1 (ours), measured"),
        (Algorithm::Fletcher256, ChecksumData::MeasuredPlain, "Fletcher-256 mod 2^128, measured"),
        (Algorithm::Crc32c, ChecksumData::Measured, "CRC-32C"),
        (Algorithm::Crc64Nvme, ChecksumData::Measured, "CRC-64/NVME"),
        (Algorithm::Xxh3, ChecksumData::Measured, "XXH3-64"),
        (Algorithm::Blake3, ChecksumData::Measured, "BLAKE3"),
    ];
    let rows = all.map(|(algorithm, data, name)| {
        let strength = strength(algorithm, data);
        vec![
            name.to_string(),
            strength.hamming_distance.to_string(),
            format!("{:.2e}", strength.unseen_fraction),
            strength.source.to_string(),
        ]
    });
    table(&["checksum over 4 KiB", "HD", "F", "from"], rows)
}

/// Where measured strengths change something: modes with Fletcher, and hashes for comparison.
fn measured_scores() -> String {
    let fletchers = [FLETCHER, Mode::Static].into_iter().flat_map(|mode| {
        ChecksumData::ALL.map(|data| {
            row(format!("`{mode}`, {data}"), |config| format!("{:.2}", model(config, data).score(mode, RESIDENCY_S)))
        })
    });
    let others = [Algorithm::Crc64Nvme, Algorithm::Xxh3, Algorithm::Crc32c, Algorithm::Blake3].map(|algorithm| {
        let mode = Mode::EndToEnd(algorithm);
        row(format!("`{mode}`"), |config| {
            format!("{:.2}", model(config, ChecksumData::Measured).score(mode, RESIDENCY_S))
        })
    });
    table(&CONFIGS, fletchers.chain(others))
}

/// Until the Zettabyte goal is missed.
fn residencies() -> String {
    let kept = |mode: Mode, data: ChecksumData| {
        row(format!("`{mode}`, {data}"), |config| model(config, data).keeps_goal(mode, Goal::Zettabyte).to_string())
    };
    let one = [Mode::None, Mode::Disk, XOR, Mode::Static].map(|mode| kept(mode, ChecksumData::Measured));
    let fletchers =
        [FLETCHER, Mode::Dynamic].into_iter().flat_map(|mode| ChecksumData::ALL.map(|data| kept(mode, data)));
    table(&CONFIGS, one.into_iter().chain(fletchers).chain([kept(Mode::Uniform, ChecksumData::Measured)]))
}

fn advice() -> String {
    let times = [("30 days", 30.0 * DAY_S), ("a year", 365.25 * DAY_S)];
    let rows = times.into_iter().flat_map(|(name, uptime_s)| {
        let both = [
            (ChecksumData::Published, Costs::Published),
            (ChecksumData::Measured, Costs::Published),
            (ChecksumData::Measured, Costs::Measured),
        ];
        both.map(|(data, costs)| {
            let of = |config| recommend(&model(config, data), costs, uptime_s).mode.to_string();
            row(format!("{name}, strength {data}, costs {costs}"), of)
        })
    });
    table(&CONFIGS, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_table_says_of_the_paper_is_near_what_the_model_says() {
        for (mode, number, score) in IN_THE_PAPER {
            let model = model(Config::of_number(number).unwrap(), ChecksumData::Published);
            assert!((model.score(mode, RESIDENCY_S) - score.parse::<f64>().unwrap()).abs() <= 0.1, "{mode}, {number}");
        }
    }

    #[test]
    fn only_tables_are_renewed() {
        let names = ["scores", "strengths", "measured scores", "residencies", "advice"];
        let document: String = names
            .iter()
            .map(|name| format!("Before.\n<!-- table: {name} -->\nstale\n<!-- end -->\nAfter.\n"))
            .collect();
        let new = renewed(&document).unwrap();
        assert!(
            !new.contains("stale") && new.matches("Before.\n").count() == 5 && new.matches("After.\n").count() == 5
        );
        assert!(new.contains("| `uniform`: Holdfast |"), "{new}");
        assert_eq!(renewed(&new).unwrap(), new);
        assert_eq!(renewed(&document.replace("advice", "x")), Err(MissingMark("advice")));
        let cut = document.rsplit_once("<!-- end -->").unwrap().0;
        assert_eq!(renewed(cut), Err(MissingMark("advice")));
    }
}
