//! Prints `docs/reliability.md` and `docs/flashlog-model.md` with their tables made anew; with `--write`, writes them and their figures.

use holdfast_reliability::{
    Bars, ChecksumData, Devices, Figure, Goal, Prices, draw, draw_bars, renewed, renewed_schemes,
};
use std::error::Error;
use std::fs;
use std::path::Path;

const HELP: &str = "\
Prints docs/reliability.md and docs/flashlog-model.md with their tables made
anew by the model.

Usage: reliability-document [--write]

  --write     write them, and the figures in docs/figures, instead
  -h, --help  print this";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let is_written = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_] => false,
        [_, "--write"] => true,
        [_, "-h" | "--help"] => {
            println!("{HELP}");
            return Ok(());
        }
        _ => return Err("usage: reliability-document [--write]; --help says more".into()),
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, renew) in [("reliability.md", renewed as fn(&str) -> _), ("flashlog-model.md", renewed_schemes)] {
        let page = docs.join(name);
        let text = renew(&fs::read_to_string(&page)?)?;
        if is_written {
            fs::write(&page, text)?;
        } else {
            print!("{text}");
        }
    }
    if !is_written {
        return Ok(());
    }
    fs::create_dir_all(docs.join("figures"))?;
    for figure in Figure::ALL {
        let svg = draw(figure, ChecksumData::Published, Goal::Zettabyte)?;
        fs::write(docs.join(format!("figures/reliability-{}.svg", figure.number())), svg)?;
    }
    for bars in Bars::ALL {
        let svg = draw_bars(bars, &Devices::default(), &Prices::default())?;
        fs::write(docs.join(format!("figures/flashlog-{}.svg", bars.name())), svg)?;
    }
    Ok(())
}
