//! The numbers in an operation, which a neighbour may have got wrong.

use crate::format::PAGES_MAX;
use crate::objects::OBJECT_END;
use holdfast_object::{
    Error, MAX_OBJECT_BYTES, NAMES_LISTED_MAX, NamePlace, ObjectId, Op, PageIndex, Result, Timestamp,
};

/// Whether an object can have the id.
pub(crate) fn check_id(id: ObjectId) -> Result<()> {
    if id.0 == 0 || id.0 >= OBJECT_END {
        return Err(Error::Limit { what: "object id", limit: OBJECT_END - 1, got: id.0 });
    }
    Ok(())
}

/// `Err` for a number out of range, pages out of order, a part of a page.
pub(crate) fn check_limits(op: &Op) -> Result<()> {
    let page = |index: PageIndex| match index {
        0..PAGES_MAX => Ok(()),
        got => Err(Error::Limit { what: "page of an object", limit: PAGES_MAX - 1, got }),
    };
    let size = |size: u64| match size {
        0..=MAX_OBJECT_BYTES => Ok(()),
        got => Err(Error::Limit { what: "size of an object", limit: MAX_OBJECT_BYTES, got }),
    };
    let ascending = |ascends: bool| match ascends {
        true => Ok(()),
        false => Err(Error::Protocol("pages of an operation are not in ascending order".to_string())),
    };
    let valid = |times: &[Timestamp], ids: &[ObjectId]| match times.iter().all(|time| time.nanos < 1_000_000_000)
        && ids.iter().all(|id| *id <= ObjectId::MAX)
    {
        true => Ok(()),
        false => Err(Error::Protocol("attributes with a time or an object id out of range".to_string())),
    };
    let valid_names = |others: &[NamePlace]| match others.len() < NAMES_LISTED_MAX
        && others.iter().all(|name| name.key > 0 && (1..=ObjectId::MAX.0).contains(&name.directory.0))
    {
        true => Ok(()),
        false => Err(Error::Protocol("attributes with too many names, or one that is nowhere".to_string())),
    };
    let possible = |are_possible: bool| match are_possible {
        true => Ok(()),
        false => {
            Err(Error::Protocol("attributes with a name without a directory, or names without a first".to_string()))
        }
    };
    match op {
        Op::Create { attributes: a, .. } => {
            valid_names(&a.other_names)?;
            possible(a.has_possible_names())?;
            valid(&[a.atime, a.mtime, a.ctime, a.btime], &[a.parent, a.xattr])
        }
        Op::Delete { .. } => Ok(()),
        Op::SetAttributes { set, .. } => {
            set.other_names.as_deref().map_or(Ok(()), valid_names)?;
            possible(set.has_possible_names())?;
            let times: Vec<Timestamp> = [set.atime, set.mtime, set.ctime, set.btime].into_iter().flatten().collect();
            valid(&times, &[set.parent, set.xattr].into_iter().flatten().collect::<Vec<_>>())
        }
        Op::Write { fragments, size_min, .. } => {
            if fragments.iter().any(|fragment| !fragment.is_whole()) {
                return Err(Error::Protocol("a part of a page below the cache".to_string()));
            }
            ascending(fragments.is_sorted_by(|a, b| a.index < b.index))?;
            fragments.last().map_or(Ok(()), |last| page(last.index))?;
            size(*size_min)
        }
        Op::Adopt { pages, size_min, .. } => {
            ascending(pages.is_sorted_by(|a, b| a.0 < b.0))?;
            pages.last().map_or(Ok(()), |last| page(last.0))?;
            size(*size_min)
        }
        Op::Lose { pages, .. } => {
            ascending(pages.is_sorted_by(|a, b| a < b))?;
            pages.last().map_or(Ok(()), |last| page(*last))
        }
        Op::Truncate { size: to, .. } => size(*to),
        Op::Zero { offset, length, .. } => size(offset.saturating_add(*length)),
        Op::Copy { source, source_first, target, target_first, pages, size_min } => {
            if pages > &0 {
                page(source_first.saturating_add(pages - 1))?;
                page(target_first.saturating_add(pages - 1))?;
            }
            let apart = source_first.abs_diff(*target_first) >= *pages;
            if source == target && !apart {
                return Err(Error::Protocol("a copy within an object overlaps itself".to_string()));
            }
            size(*size_min)
        }
    }
}
