//! Paths for messages.

use crate::support::{ROOT, World, device_fault};
use holdfast_naming::Request;

const REQUEST: &Request = &Request::ROOT;

#[test]
fn a_directory_that_cannot_be_read_is_asked_once_for_a_path() {
    let world = World::new();
    let (bad, good) = (world.directory(ROOT, "bad"), world.directory(ROOT, "good"));
    let file = world.file(bad, "1");
    world.space.link(REQUEST, file, bad, b"2").unwrap();
    world.cache.fail(bad, device_fault());
    assert_eq!(world.space.path_of(file), format!("/bad/{file}").into_bytes());
    assert_eq!(world.cache.failed(bad), 1);
    world.space.link(REQUEST, file, good, b"3").unwrap();
    assert_eq!(world.space.path_of(file), b"/good/3", "another name will do");
    assert_eq!(world.cache.failed(bad), 2);
}
