//! A panic of the code that is tried is a finding, and is told as one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How the text of a panic begins.
pub(crate) const PANIC: &str = "panic: ";

/// What `act` gives; a panic is an error.
pub(crate) fn caught<T>(act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

/// What it said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("{PANIC}{}", text.unwrap_or("of unknown kind"))
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_is_told_with_what_it_said() {
        assert_eq!(caught(|| Ok(7)), Ok(7));
        assert_eq!(caught(|| Err::<(), _>("no".to_string())), Err("no".to_string()));
        assert_eq!(caught::<()>(|| panic!("at {}", 3)), Err("panic: at 3".to_string()));
        assert_eq!(caught::<()>(|| panic!("plain")), Err("panic: plain".to_string()));
    }
}
