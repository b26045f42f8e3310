//! Reading everything in a store that may be damaged, and telling errors, which must have a place, from what must never be.

use crate::model::{Driver, Inode, Model, Node};
use holdfast_block::BLOCK_SIZE;
use holdfast_naming::{Namespace, Request};
use holdfast_object::{Kind, ObjectId, SnapshotId};

/// What was met on a way through the store.
#[derive(Default)]
pub(crate) struct Seen {
    /// Errors with a place, in words.
    pub(crate) errors: Vec<String>,
    /// Changes were refused.
    pub(crate) read_only: bool,
    /// What must never be: wrong bytes, errors without a place.
    pub(crate) wrong: Vec<String>,
}

/// What the messages of errors without a path can be about.
const STRUCTURES: [&str; 11] = [
    "label",
    "superblock",
    "intent log",
    "system objects",
    "bitmap",
    "reference table",
    "of domain ",
    "a lost page",
    // Whatever is there: it cannot be read or written, and the message has its block.
    "read failed at ",
    "write failed at ",
    // The device as a whole.
    "no Holdfast store",
];

/// What a message lacks that tells of damage: the path of the object of a domain that it is about, a place; and the name of the
/// structure if there is no path.
fn lacking(message: &str) -> Option<&'static str> {
    let words: Vec<&str> = message.split([' ', ',', ':', '(']).collect();
    let has_number = |after: &str| {
        words.windows(2).any(|pair| {
            let digits = pair[1].trim_end_matches(|end: char| !end.is_ascii_digit());
            pair[0] == after && !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
        })
    };
    let has_place = has_number("block") || has_number("page") || has_number("byte");
    let is_about_structure = STRUCTURES.iter().any(|name| message.contains(name));
    let is_about_domain = message.contains("object 1:") || message.contains("directory #");
    match () {
        () if is_about_domain && !message.starts_with('/') => Some("a path"),
        () if !message.starts_with('/') && !is_about_structure => Some("a path or the name of a structure"),
        () if !has_place && !message.contains("no Holdfast store") => Some("a place"),
        () => None,
    }
}

impl Seen {
    /// An error that was met at nothing in particular, or before there is a name space.
    pub(crate) fn error(&mut self, what: &str, error: &holdfast_naming::Error) {
        self.told(what, None, error);
    }

    /// An error that was met in a name space: told with the path that it is about, as the FUSE layer does.
    pub(crate) fn error_in(&mut self, namespace: &Namespace, what: &str, error: &holdfast_naming::Error) {
        self.told(what, namespace.path_of_error(error), error);
    }

    /// An error that was met at an object: with its path if the error is about none.
    fn error_of(&mut self, namespace: &Namespace, id: ObjectId, what: &str, error: &holdfast_naming::Error) {
        let path = namespace.path_of_error(error).unwrap_or_else(|| namespace.path_of(id));
        self.told(what, Some(path), error);
    }

    fn told(&mut self, what: &str, path: Option<Vec<u8>>, error: &holdfast_naming::Error) {
        use holdfast_naming::Error;
        use holdfast_object::Error as Below;
        match error {
            Error::Object(Below::ReadOnly(_)) => self.read_only = true,
            Error::Object(Below::Corrupt(_) | Below::Lost { .. } | Below::Device(_) | Below::NoStore(_))
            | Error::CorruptDirectory { .. }
            | Error::CorruptAttributes { .. }
            | Error::CorruptTree { .. } => {
                let path = path.map(|path| format!("{}: ", path.escape_ascii())).unwrap_or_default();
                self.message(what, format!("{path}{error}"));
            }
            _ => self.wrong.push(format!("{what}: not an error about damage: {error}")),
        }
    }

    /// What a user is told.
    pub(crate) fn message(&mut self, what: &str, message: String) {
        match lacking(&message) {
            None => self.errors.push(message),
            Some(lacks) => self.wrong.push(format!("{what}: an error without {lacks}: {message}")),
        }
    }
}

/// Reads everything that has a name, now or in a snapshot, and compares it with the model.
pub(crate) fn walk(namespace: &Namespace, model: &Model, driver: &Driver, snapshot: SnapshotId) -> Seen {
    let mut seen = Seen::default();
    for (node, inode) in model.nodes().filter(|(_, inode)| inode.nlink > 0) {
        let Some(id) = driver.object(node).map(|id| id.in_snapshot(snapshot)) else {
            seen.wrong.push(format!("{node:?} has no object"));
            continue;
        };
        let attributes = match namespace.getattr(id) {
            Ok(attributes) => attributes,
            Err(error) => {
                seen.error_of(namespace, id, &format!("attributes of {node:?}"), &error);
                continue;
            }
        };
        let size = if inode.kind == Kind::Directory { attributes.size } else { inode.data.len() as u64 };
        let got = (attributes.kind, attributes.mode, attributes.nlink, attributes.size, attributes.mtime);
        if got != (inode.kind, inode.mode, inode.nlink, size, inode.mtime) {
            let what = format!("attributes of {node:?}");
            match namespace.root_damage().filter(|_| id == ObjectId::ROOT) {
                // Those of a root directory that cannot be read are no file's: whoever asks for it is told.
                Some(error) => seen.error_of(namespace, id, &what, &error),
                None => seen.wrong.push(format!("{what} ({id}): {got:?}")),
            }
        }
        contents(namespace, driver, node, inode, id, &mut seen);
        for (name, value) in &inode.xattrs {
            match namespace.getxattr(&Request::ROOT, id, name) {
                Ok(got) if got == *value => {}
                Ok(_) => seen.wrong.push(format!("extended attribute of {node:?}")),
                Err(error) => seen.error_of(namespace, id, &format!("extended attribute of {node:?}"), &error),
            }
        }
    }
    seen
}

fn contents(namespace: &Namespace, driver: &Driver, node: Node, inode: &Inode, id: ObjectId, seen: &mut Seen) {
    match inode.kind {
        Kind::Regular => {
            for (index, page) in inode.data.chunks(BLOCK_SIZE).enumerate() {
                match namespace.read(id, (index * BLOCK_SIZE) as u64, BLOCK_SIZE) {
                    Ok(got) if got.to_vec() == page => {}
                    Ok(_) => seen.wrong.push(format!("wrong bytes in page {index} of {node:?} ({id})")),
                    Err(error) => seen.error_of(namespace, id, &format!("page {index} of {node:?}"), &error),
                }
            }
        }
        Kind::Directory => match namespace.entries(&Request::ROOT, id) {
            Ok(entries) => {
                let got = entries.into_iter().map(|(name, object, _)| (name, Some(object)));
                let here = |node| driver.object(node).map(|object| object.in_snapshot(id.snapshot()));
                let expected = inode.entries.iter().map(|(name, node)| (name.clone(), here(*node)));
                let mut differences: Vec<_> = got.collect();
                let mut expected: Vec<_> = expected.collect();
                differences.sort();
                expected.sort();
                if differences != expected {
                    seen.wrong.push(format!("entries of {node:?} ({id})"));
                }
            }
            Err(error) => seen.error_of(namespace, id, &format!("entries of {node:?}"), &error),
        },
        Kind::Symlink => match namespace.readlink(id) {
            Ok(got) if got == inode.data => {}
            Ok(_) => seen.wrong.push(format!("target of {node:?} ({id})")),
            Err(error) => seen.error_of(namespace, id, &format!("target of {node:?}"), &error),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_path_or_place_is_seen() {
        let sums = "checksum: expected 0x1, got 0x2";
        for (message, lacks) in [
            (format!("/large: corrupt: object 1:26, page 0, device memory, block 398: {sums}"), None),
            ("/large: lost block: object 1:26, page 0".into(), None),
            (format!("corrupt: object 1:26, page 0, device memory, block 398: {sums}"), Some("a path")),
            (format!("the mount (corrupt: object 1:26, page 0, block 398: {sums})"), Some("a path")),
            (format!("/large: corrupt: object 1:26, device memory: {sums}"), Some("a place")),
            (format!("corrupt: device memory, block 0: label {sums}"), None),
            (format!("corrupt: device memory, block 0: {sums}"), Some("a path or the name of a structure")),
            (format!("corrupt: system object #2 (reference table), page 0, block 3: {sums}"), None),
            (format!("corrupt: system object #2 (reference table): {sums}"), Some("a place")),
        ] {
            assert_eq!(lacking(&message), lacks, "{message}");
            let mut seen = Seen::default();
            seen.message("reading", message.clone());
            assert_eq!(
                (seen.errors.len(), seen.wrong.len()),
                (usize::from(lacks.is_none()), usize::from(lacks.is_some()))
            );
        }
    }

    /// As if the FUSE layer told an error as it is.
    #[test]
    fn an_error_that_is_told_without_its_path_is_seen() {
        let key = holdfast_object::ObjectKey { domain: holdfast_object::DomainId::MAIN, object: ObjectId(8) };
        let place =
            holdfast_object::Place { object: Some(key), index: Some(0), address: Some(9), ..Default::default() };
        let mut seen = Seen::default();
        seen.error("reading", &holdfast_object::Error::corrupt(place, "checksum", 1, 2).into());
        assert!(seen.errors.is_empty() && seen.wrong[0].contains("without a path"), "{:?}", seen.wrong);
    }
}
