//! Prints `docs/reliability.md` with its tables made anew; with `--write`, writes it and its figures.

use holdfast_reliability::{ChecksumData, Figure, Goal, draw, renewed};
use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let is_written = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_] => false,
        [_, "--write"] => true,
        _ => return Err("usage: reliability-document [--write]".into()),
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = docs.join("reliability.md");
    let text = renewed(&fs::read_to_string(&page)?)?;
    if !is_written {
        print!("{text}");
        return Ok(());
    }
    fs::write(&page, text)?;
    fs::create_dir_all(docs.join("figures"))?;
    for figure in Figure::ALL {
        let svg = draw(figure, ChecksumData::Published, Goal::Zettabyte)?;
        fs::write(docs.join(format!("figures/reliability-{}.svg", figure.number())), svg)?;
    }
    Ok(())
}
