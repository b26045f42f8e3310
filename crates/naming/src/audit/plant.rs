//! Logic bugs for tests: what this thread's next transaction does wrong.

use crate::directory::layout::Image;
use crate::stage::Staged;
use holdfast_object::Op;
use std::cell::RefCell;
use std::collections::BTreeMap;

type Pages = BTreeMap<u64, Box<Image>>;

/// A wrong change of something.
type Plant<T> = RefCell<Option<Box<dyn FnOnce(&mut T)>>>;

thread_local! {
    static OPERATIONS: Plant<Vec<Op>> = const { RefCell::new(None) };
    static PAGES: Plant<Pages> = const { RefCell::new(None) };
}

/// The next transaction that is submitted has other operations than the request thinks.
pub(super) fn operations(plant: impl FnOnce(&mut Vec<Op>) + 'static) {
    OPERATIONS.set(Some(Box::new(plant)));
}

/// The next directory that is staged has other pages.
pub(super) fn pages(plant: impl FnOnce(&mut Pages) + 'static) {
    PAGES.set(Some(Box::new(plant)));
}

pub(crate) fn in_operations(mut staged: Staged<'_>) -> Staged<'_> {
    if let Some(plant) = OPERATIONS.take() {
        plant(staged.ops());
    }
    staged
}

pub(crate) fn in_pages(pages: &mut Pages) {
    if let Some(plant) = PAGES.take() {
        plant(pages);
    }
}
