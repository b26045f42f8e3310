//! Names all decoders, and writes sound structures for each into a directory of its own: what fuzzing starts from.

use holdfast_lab::foreign::decoders;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from).expect("usage: decoder-seeds DIRECTORY");
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
