//! Sums that are kept twice, so that what has gone bad in them is told as that, and not as an equation that does not hold.
//!
//! A checksum of them would be made anew with each change, from sums that may have gone bad by then. So both of a pair change by what is done, each
//! from nothing but itself: what somebody has written to one of them stays to be seen until both are compared, which they are before anything is
//! made of them.

use super::Digest;
use crate::meta_block::Scribble;
use crate::scribble::Cells;

/// A sum, or a few that belong together.
pub(crate) trait Sum {
    /// The first word that is another one there, and that.
    fn other(&self, there: &Self) -> Option<[u64; 2]>;

    /// What nobody may do: see [`crate::scribble`].
    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>);
}

impl Sum for u64 {
    fn other(&self, there: &u64) -> Option<[u64; 2]> {
        (self != there).then_some([*self, *there])
    }

    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        cells.own(name, self);
    }
}

impl Sum for u16 {
    fn other(&self, there: &u16) -> Option<[u64; 2]> {
        (self != there).then_some([*self, *there].map(u64::from))
    }

    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        cells.own(name, self);
    }
}

impl Sum for Digest {
    fn other(&self, there: &Digest) -> Option<[u64; 2]> {
        self.words().into_iter().zip(there.words()).find(|(mine, other)| mine != other).map(Into::into)
    }

    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        for (what, word) in ["count", "sum", "squares"].into_iter().zip(self.words_mut()) {
            cells.own(&format!("{name}.{what}"), word);
        }
    }
}

impl<T: Sum> Sum for Option<T> {
    fn other(&self, there: &Option<T>) -> Option<[u64; 2]> {
        match (self, there) {
            (Some(mine), Some(other)) => mine.other(other),
            _ => u64::from(self.is_some()).other(&u64::from(there.is_some())),
        }
    }

    fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        if let Some(sum) = self {
            sum.cells(name, cells);
        }
    }
}

/// Sums with names.
pub(crate) trait Named: PartialEq {
    /// The first that is another one there: what it is, and a word of both.
    fn first_other(&self, there: &Self) -> Option<(&'static str, [u64; 2])>;

    /// What nobody may do: see [`crate::scribble`].
    fn all_cells<'a>(&'a mut self, prefix: &str, cells: &mut Cells<'a>);
}

/// A struct of sums, all of which are compared and can be struck: one that is added is as well.
macro_rules! sums {
    ($(#[$about:meta])* $visible:vis struct $name:ident { $($(#[$what:meta])* $of:vis $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        $visible struct $name { $($(#[$what])* $of $field: $type,)* }

        impl $crate::audit::twin::Sum for $name {
            fn other(&self, there: &Self) -> Option<[u64; 2]> {
                $crate::audit::twin::Named::first_other(self, there).map(|(_, words)| words)
            }

            fn cells<'a>(&'a mut self, name: &str, cells: &mut $crate::scribble::Cells<'a>) {
                $crate::audit::twin::Named::all_cells(self, &format!("{name}."), cells);
            }
        }

        impl $crate::audit::twin::Named for $name {
            fn first_other(&self, there: &Self) -> Option<(&'static str, [u64; 2])> {
                $(
                    if let Some(words) = $crate::audit::twin::Sum::other(&self.$field, &there.$field) {
                        return Some((concat!("sum \"", stringify!($field), "\" of the audit"), words));
                    }
                )*
                None
            }

            fn all_cells<'a>(&'a mut self, prefix: &str, cells: &mut $crate::scribble::Cells<'a>) {
                $(
                    let name = format!("{prefix}{}", stringify!($field));
                    $crate::audit::twin::Sum::cells(&mut self.$field, &name, cells);
                )*
            }
        }
    };
}
pub(super) use sums;

/// Sums, twice.
#[derive(Clone, Default, Debug)]
pub(crate) struct Twin<T>([T; 2]);

impl<T: Clone> Twin<T> {
    pub(crate) fn new(sums: T) -> Twin<T> {
        Twin([sums.clone(), sums])
    }

    /// As they are.
    pub(crate) fn get(&self) -> &T {
        &self.0[0]
    }

    /// Changes both, each from itself.
    #[inline]
    pub(crate) fn change(&mut self, change: impl Fn(&mut T)) {
        let [here, there] = &mut self.0;
        change(here);
        change(there);
    }
}

impl<T: Named> Twin<T> {
    /// As they should be.
    ///
    /// # Errors
    /// Somebody has written to one of them who must not.
    pub(crate) fn verified(&self) -> Result<&T, Scribble> {
        let [here, there] = &self.0;
        if here == there {
            return Ok(here);
        }
        match here.first_other(there) {
            Some((what, [got, expected])) => Scribble::unless_equal(what, expected, got).map(|()| here),
            None => Ok(here),
        }
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn cells<'a>(&'a mut self, cells: &mut Cells<'a>) {
        let [here, there] = &mut self.0;
        here.all_cells("", cells);
        there.all_cells("twin of ", cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    sums! {
        #[derive(Clone, Default, PartialEq, Debug)]
        struct Few {
            some: u64,
            digest: Digest,
            perhaps: Option<u64>,
        }
    }

    #[test]
    fn no_change_makes_a_scribble_right() {
        let all = || {
            let mut twin = Twin::new(Few { perhaps: Some(3), ..Few::default() });
            twin.change(|sums| sums.digest += Digest::of(7));
            twin
        };
        let mut form = all();
        let mut cells = Cells::default();
        form.cells(&mut cells);
        let names: Vec<String> = cells.parts().into_iter().map(|part| part.0).collect();
        assert_eq!(names[..5], ["some", "digest.count", "digest.sum", "digest.squares", "perhaps"]);
        for (at, name) in names.iter().enumerate() {
            let mut twin = all();
            assert_eq!(twin.verified(), Ok(&all().0[0]));
            let mut cells = Cells::default();
            twin.cells(&mut cells);
            cells.flip(8 * at, &[1 << 4]);
            twin.change(|sums| {
                sums.some += 1;
                sums.digest += Digest::of(9);
            });
            let told = twin.verified().unwrap_err().at(holdfast_object::Place::default()).what;
            let sum = name.trim_start_matches("twin of ").split('.').next().unwrap();
            assert!(told.starts_with(&format!("sum \"{sum}\" of the audit in memory")), "{name}: {told}");
        }
    }
}
