//! Logic bugs for tests: what this thread's next transaction does wrong.

use crate::directory::layout::Image;
use crate::rolled::Rolled;
use crate::stage::Staged;
use holdfast_object::{ObjectId, Op};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

type Pages = BTreeMap<u64, Box<Image>>;

/// A wrong change of something.
type Plant<T> = RefCell<Option<Box<dyn FnOnce(&mut T)>>>;

thread_local! {
    static OPERATIONS: Plant<Vec<Op>> = const { RefCell::new(None) };
    static PAGES: Plant<Pages> = const { RefCell::new(None) };
    static SCRIBBLE: Cell<Option<(usize, bool)>> = const { Cell::new(None) };
}

/// The next transaction that is submitted has other operations than the request thinks.
pub(super) fn operations(plant: impl FnOnce(&mut Vec<Op>) + 'static) {
    OPERATIONS.set(Some(Box::new(plant)));
}

/// The first page of the next directory that is staged is scribbled upon, at this byte.
pub(super) fn scribble(at: usize) {
    SCRIBBLE.set(Some((at, false)));
}

/// Each directory that is staged from now on is, or no more.
pub(super) fn scribble_always(is_so: bool) {
    SCRIBBLE.set(is_so.then_some((0, true)));
}

/// Whether none has been yet.
pub(super) fn is_scribble_left() -> bool {
    SCRIBBLE.get().is_some()
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

pub(crate) fn in_pages(id: ObjectId, pages: &mut BTreeMap<u64, Rolled>) {
    if let Some((at, again)) = SCRIBBLE.take()
        && let Some(mut page) = pages.first_entry()
    {
        page.get_mut().scribble(at);
        SCRIBBLE.set(again.then_some((at, again)));
    }
    let Some(plant) = PAGES.take() else { return };
    let mut planted: Pages = pages.iter().map(|(page, image)| (*page, Box::new(**image))).collect();
    plant(&mut planted);
    pages.retain(|page, _| planted.contains_key(page));
    for (page, image) in planted {
        // Legally: it is a bug of whoever makes pages.
        pages.entry(page).or_insert_with(|| Rolled::zeroes(id, page)).put(0, &image[..]);
    }
}
