//! The fields of structures by name, for whoever tells of single bytes in them.

/// The fields of a structure in order, each with its first byte; it ends where the next one begins.
#[derive(Clone, Copy)]
pub(crate) struct Fields {
    pub(crate) bytes: usize,
    pub(crate) list: &'static [(&'static str, usize)],
}

impl Fields {
    /// Each field: name, first byte, length.
    pub(crate) fn each(self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let behind = self.list.get(1..).unwrap_or_default();
        let ends = behind.iter().map(|(_, at)| *at).chain([self.bytes]);
        self.list.iter().zip(ends).map(|((name, at), end)| (*name, *at, end - at))
    }

    /// The first byte of a field.
    pub(crate) fn at(self, name: &str) -> usize {
        self.list.iter().find(|field| field.0 == name).map(|field| field.1).expect("a field of the structure")
    }
}

/// [`Fields`] of a structure; all of them, or it does not compile.
macro_rules! fields {
    ($raw:ident { $($name:ident),* $(,)? }) => {{
        const _: fn($raw) = |raw| {
            let $raw { $($name: _),* } = raw;
        };
        $crate::format::fields::Fields {
            bytes: size_of::<$raw>(),
            list: &[$((stringify!($name), std::mem::offset_of!($raw, $name))),*],
        }
    }};
}
pub(crate) use fields;

#[cfg(test)]
mod tests {
    use crate::format::{blockptr, label, record, snapshot, superblock};

    #[test]
    fn fields_follow_each_other_without_gaps() {
        let all = [
            blockptr::FIELDS,
            label::FIELDS,
            record::FIELDS,
            snapshot::FIELDS,
            snapshot::DEAD_FIELDS,
            superblock::FIELDS,
        ];
        for fields in all {
            let end = fields.each().fold(0, |end, (name, at, length)| {
                assert_eq!(at, end, "{name}");
                assert!(length > 0, "{name}");
                at + length
            });
            assert_eq!(end, fields.bytes);
        }
        assert_eq!(record::FIELDS.at("root"), 384);
    }
}
