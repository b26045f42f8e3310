//! The decoders of what naming keeps in pages, as functions of bytes alone, for fuzzing: any bytes are an error or a value, and a
//! value is written as the bytes that it was read from.

use crate::acl::Acl;
use crate::directory;
use crate::permission::{Access, Caller};
use crate::xattr::Xattrs;
use holdfast_object::{Attributes, Class, Kind, ObjectId, Timestamp};

/// A decoder: its name, and a function that panics if it does not keep to the rule above, and says whether the bytes are a value.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// All of them.
pub const DECODERS: [Decoder; 3] = [("directory", directory::decode_page), ("xattrs", xattrs), ("acl", acl)];

fn xattrs(bytes: &[u8]) -> bool {
    let mut owner = [0; 8];
    if let Some(stored) = bytes.get(8..16) {
        owner.copy_from_slice(stored);
    }
    let owner = ObjectId(u64::from_le_bytes(owner));
    if let Ok(xattrs) = Xattrs::decode(bytes, ObjectId(9), owner)
        && !bytes.is_empty()
    {
        assert!(xattrs.encode(owner) == bytes);
        assert!(xattrs.names().all(|name| xattrs.get(name).is_some()));
        return true;
    }
    false
}

fn acl(bytes: &[u8]) -> bool {
    let Ok(Some(mut acl)) = Acl::decode(bytes) else { return false };
    // As in Linux, numbers of entries that name nobody are passed over, so only the rest comes back as it was.
    assert!(acl.encode().len() == bytes.len() && Acl::decode(&acl.encode()) == Ok(Some(acl.clone())));
    let attributes = Attributes::new(Kind::Regular, Class::Names, 0o640, 1, 2, Timestamp::default());
    for caller in [1, 2, 10] {
        let caller = Caller { uid: caller, gid: caller, groups: vec![2, 20] };
        acl.permits(&attributes, &caller, Access::CHANGE);
    }
    assert!(acl.mode_without_list() <= 0o777 && acl.is_mode() == (bytes.len() == 4 + 3 * 8));
    for mode in [0, 0o751, 0o777] {
        acl.set_mode(mode);
        assert!(acl.mode() == mode);
        assert!(acl.inherited(0o70).mode() & !0o70 == 0);
    }
    true
}
