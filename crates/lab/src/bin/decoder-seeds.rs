//! What fuzzing starts from.

use clap::Parser;
use holdfast_lab::foreign::decoders;
use std::path::PathBuf;

/// Names all decoders, and writes sound structures for each into a directory of its own.
#[derive(Parser)]
struct Arguments {
    /// Directory for theirs; it is made if there is none.
    directory: PathBuf,
}

fn main() -> std::io::Result<()> {
    let Arguments { directory } = Arguments::parse();
    for (name, _) in decoders::all() {
        let own = directory.join(name);
        std::fs::create_dir_all(&own)?;
        for (number, bytes) in decoders::seeds(name).into_iter().enumerate() {
            std::fs::write(own.join(format!("sound-{number}")), bytes)?;
        }
        println!("{name}");
    }
    Ok(())
}
