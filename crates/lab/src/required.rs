//! What tests need of the machine.

/// A test that cannot run here says so and passes, unless this is required: `CI=true` requires everything, `HOLDFAST_REQUIRE` what it names
/// (`root,fuse,program`), as `tests/run.sh` does with what it has looked for itself.
pub(crate) fn lacks(what: &str, why: &str) {
    let is_required = std::env::var("HOLDFAST_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == what));
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!is_required && !is_ci, "{why}, and {what} is required");
    eprintln!("SKIPPED: {why}");
}
