//! What is in the options that carry data, taken apart.

use super::protocol::{Fields, LONGEST_STRING};

/// INFO and GO: an export, and what the client wants to know of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wish<'a> {
    pub(super) export: &'a str,
    pub(super) information: Vec<u16>,
}

/// LIST_META_CONTEXT and SET_META_CONTEXT: an export, and queries for contexts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queries<'a> {
    pub(super) export: &'a str,
    pub(super) queries: Vec<&'a str>,
}

/// Why an option was not understood, for the client's user.
pub(super) type Fault = &'static str;

/// Name of an export: UTF-8 without NUL, not too long.
pub(super) fn name(bytes: &[u8]) -> Result<&str, Fault> {
    if bytes.len() > LONGEST_STRING {
        return Err("a string longer than 4096 bytes");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err("a string that is not UTF-8, or has NUL in it"),
    }
}

pub(super) fn wish(data: &[u8]) -> Result<Wish<'_>, Fault> {
    let mut fields = Fields(data);
    let export = name(fields.string().ok_or("the name is longer than the option")?)?;
    let count = fields.u16().ok_or("the option ends before the number of information requests")?;
    let information: Vec<u16> = std::iter::from_fn(|| fields.u16()).take(usize::from(count)).collect();
    if information.len() != usize::from(count) || !fields.0.is_empty() {
        return Err("the number of information requests does not fit the option's length");
    }
    Ok(Wish { export, information })
}

pub(super) fn queries(data: &[u8]) -> Result<Queries<'_>, Fault> {
    let mut fields = Fields(data);
    let export = name(fields.string().ok_or("the name is longer than the option")?)?;
    let count = fields.u32().ok_or("the option ends before the number of queries")?;
    let mut queries = Vec::new();
    // No room is made for the count: each query has four bytes at least, and the option's length is limited.
    for _ in 0..count {
        queries.push(name(fields.string().ok_or("a query is longer than the option")?)?);
    }
    if !fields.0.is_empty() {
        return Err("there are bytes behind the last query");
    }
    if let Some(_without) = queries.iter().find(|query| !query.contains(':')) {
        return Err("a query without a namespace and a colon");
    }
    Ok(Queries { export, queries })
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Put;
    use super::*;

    #[test]
    fn what_fits_is_taken_apart() {
        let mut data = Vec::new();
        data.u32(2).raw(b"ab").u16(2).u16(3).u16(0);
        assert_eq!(wish(&data), Ok(Wish { export: "ab", information: vec![3, 0] }));
        let mut data = Vec::new();
        data.u32(0).u32(2).u32(5).raw(b"base:").u32(3).raw(b"x:y");
        assert_eq!(queries(&data), Ok(Queries { export: "", queries: vec!["base:", "x:y"] }));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut long = Vec::new();
        long.u32(4097).raw(&[b'a'; 4097]).u16(0);
        let mut nul = Vec::new();
        nul.u32(1).raw(&[0]).u16(0);
        for data in [&[][..], &[0, 0, 0], &[0xff; 6], &[0, 0, 0, 0, 0, 1], &[0, 0, 0, 0, 0, 0, 1], &long, &nul] {
            assert!(wish(data).is_err(), "{data:?}");
        }
        for data in [&[][..], &[0; 4], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; 9]] {
            assert!(queries(data).is_err(), "{data:?}");
        }
        let mut bare = Vec::new();
        bare.u32(0).u32(1).u32(1).raw(b"x");
        assert!(queries(&bare).is_err());
    }
}
