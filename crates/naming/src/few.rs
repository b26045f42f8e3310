//! A list that takes no memory of its own while it is short.

use std::ops::{Deref, DerefMut};

/// What stands where nothing is yet.
pub(crate) trait Nothing {
    const NOTHING: Self;
}

/// The first `N` are in place; when there are more, all are in a vector.
pub(crate) struct Few<T, const N: usize> {
    near: [T; N],
    count: usize,
    far: Vec<T>,
}

impl<T: Nothing, const N: usize> Few<T, N> {
    #[inline]
    pub(crate) const fn new() -> Few<T, N> {
        Few { near: [const { T::NOTHING }; N], count: 0, far: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        match self.near.get_mut(self.count) {
            Some(place) => *place = item,
            None => self.push_far(item),
        }
        self.count += 1;
    }

    #[cold]
    fn push_far(&mut self, item: T) {
        if self.count == N {
            self.far.extend(self.near.iter_mut().map(|item| std::mem::replace(item, T::NOTHING)));
        }
        self.far.push(item);
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.near.get(..self.count).unwrap_or(&self.far)
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.near.get_mut(..self.count).unwrap_or(&mut self.far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Nothing for usize {
        const NOTHING: usize = 0;
    }

    #[test]
    fn many_are_in_their_order_too() {
        let mut few = Few::<usize, 2>::new();
        for count in 0..5 {
            assert_eq!(*few, (1..=count).collect::<Vec<_>>());
            few.push(count);
            few[count] += 1;
        }
        assert_eq!(*few, [1, 2, 3, 4, 5]);
    }
}
