//! Of which sources a program is, for the pages that it writes.

use std::process::Command;

/// The commit of the sources that this was built from, with its date, if they are what was built, and whether they have other changes. Whoever runs for
/// long asks at its beginning: somebody may go on with the sources.
pub fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let done = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
    };
    let commit = git(&["show", "--no-patch", "--abbrev=12", "--format=%h of %cs", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--", "..", "../../Cargo.lock"])?.is_empty();
    Some(if is_changed { format!("{commit} with changes") } else { commit })
}
