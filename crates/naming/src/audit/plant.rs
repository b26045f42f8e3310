//! Logic bugs for tests: what this thread's transactions do wrong.

use crate::bugs::NameBug;
use crate::directory::layout::Image;
use crate::rolled::Rolled;
use crate::stage::Staged;
use holdfast_object::{ObjectId, Op};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

type Pages = BTreeMap<u64, Box<Image>>;

/// A wrong change of something.
type Plant<T> = RefCell<Option<Box<dyn FnMut(&mut T)>>>;

thread_local! {
    static OPERATIONS: Plant<Vec<Op>> = const { RefCell::new(None) };
    static PAGES: Plant<Pages> = const { RefCell::new(None) };
    static BUG: Cell<Option<NameBug>> = const { Cell::new(None) };
    static SCRIBBLE: Cell<Option<(usize, bool)>> = const { Cell::new(None) };
}

/// Transactions that are submitted have other operations than the request thinks, also when it is done anew, until that is [over](over).
pub(super) fn operations(plant: impl FnMut(&mut Vec<Op>) + 'static) {
    OPERATIONS.set(Some(Box::new(plant)));
}

/// The same of pages of directories that are staged.
pub(super) fn pages(plant: impl FnMut(&mut Pages) + 'static) {
    PAGES.set(Some(Box::new(plant)));
}

/// The same of one of the bugs that can be asked for.
pub(super) fn bug(bug: NameBug) {
    BUG.set(Some(bug));
}

/// Requests are right again.
pub(super) fn over() {
    OPERATIONS.set(None);
    PAGES.set(None);
    BUG.set(None);
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

pub(crate) fn in_operations(mut staged: Staged<'_>) -> Staged<'_> {
    OPERATIONS.with_borrow_mut(|plant| plant.iter_mut().for_each(|plant| plant(staged.ops())));
    if let Some(bug) = BUG.get() {
        bug.plant(staged.ops());
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
    if let Some(bug) = BUG.get() {
        bug.plant_in_pages(pages);
    }
    PAGES.with_borrow_mut(|plant| {
        let Some(plant) = plant else { return };
        let mut planted: Pages = pages.iter().map(|(page, image)| (*page, Box::new(**image))).collect();
        plant(&mut planted);
        pages.retain(|page, _| planted.contains_key(page));
        for (page, image) in planted {
            // Legally: it is a bug of whoever makes pages.
            pages.entry(page).or_insert_with(|| Rolled::zeroes(id, page)).put(0, &image[..]);
        }
    });
}
