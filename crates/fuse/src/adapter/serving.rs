//! One request on its way: the name space that it works on, and what becomes of its errors.

use super::convert::{attr, entry_of, node_of};
use super::handle::Handle;
use super::{Filesystem, Synchronous};
use crate::abi::open_flags;
use crate::decode::Context;
use crate::errno::Errno;
use crate::handler::{Answer, Attributes, Entry, Opened};
use crate::negotiate::Caching;
use holdfast_naming::{Caller, Error, ErrorKind, Found, Namespace, Request, is_fleeting};
use holdfast_object::{Durability, ObjectId, RequestId};
use parking_lot::RwLockReadGuard;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A mounted name space, for one request.
pub struct Serving<'a> {
    pub(super) mount: &'a Filesystem,
    /// Taken when it is first needed, once, and kept until the reply is sent: what the kernel remembers by it is older than what it is
    /// told of an exchange. Not by requests that need none, of which one asks for an exchange and would wait for itself.
    namespace: OnceCell<RwLockReadGuard<'a, Arc<Namespace>>>,
}

/// What a request is about, for messages: errors of a device, or of the store's own structures, are about no object.
#[derive(Clone, Copy)]
pub(super) enum About<'a> {
    Object(ObjectId),
    /// A name in a directory.
    Name(ObjectId, &'a [u8]),
    /// From the one to the other.
    Names((ObjectId, &'a [u8]), (ObjectId, &'a [u8])),
    Objects(ObjectId, ObjectId),
}

impl<'a> Serving<'a> {
    pub(super) fn new(mount: &'a Filesystem) -> Serving<'a> {
        Serving { mount, namespace: OnceCell::new() }
    }

    pub(super) fn namespace(&self) -> &Namespace {
        self.namespace.get_or_init(|| self.mount.served.get())
    }

    pub(super) fn request(&self, context: &Context) -> Request {
        Request {
            id: Some(RequestId { client: self.mount.options.client, unique: context.unique }),
            caller: Caller { uid: context.uid, gid: context.gid, groups: context.groups.clone() },
            umask: 0,
        }
    }

    /// The request of a caller with this umask.
    pub(super) fn masked(&self, context: &Context, umask: u32) -> Request {
        Request { umask: umask as u16 & 0o777, ..self.request(context) }
    }

    /// The error's number. What is wrong with the store, not with the request, is also told in words, with the path that it is about: of
    /// the object that is bad, or of what the request is about. (That the store takes no changes was told when that began, or was asked
    /// for, or the caller writes in a snapshot.)
    pub(super) fn errno(&self, about: About<'_>, error: &Error) -> Errno {
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal) {
            self.tell(about, error);
        }
        Errno::from(error)
    }

    fn tell(&self, about: About<'_>, error: &Error) {
        let namespace = self.namespace();
        let named = |directory: ObjectId, name: &[u8]| {
            let mut path = namespace.path_of(directory);
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            path
        };
        let asked = || match about {
            About::Object(id) => (namespace.path_of(id), None),
            About::Name(directory, name) => (named(directory, name), None),
            About::Names(from, to) => (named(from.0, from.1), Some(named(to.0, to.1))),
            About::Objects(from, to) => (namespace.path_of(from), Some(namespace.path_of(to))),
        };
        let (path, to) = namespace.path_of_error(error).map_or_else(asked, |bad| (bad, None));
        match to {
            Some(to) => {
                tracing::error!(path = %path.escape_ascii(), to = %to.escape_ascii(), %error, "request failed");
            }
            None => tracing::error!(path = %path.escape_ascii(), %error, "request failed"),
        }
    }

    /// How long the kernel may remember an object.
    pub(super) fn valid(&self, id: ObjectId) -> Duration {
        if is_fleeting(id) { Duration::ZERO } else { self.mount.options.valid }
    }

    pub(super) fn entry(&self, about: About<'_>, found: Result<Found, Error>) -> Answer<Entry> {
        let found = found.map_err(|error| self.errno(about, &error))?;
        Ok(self.entry_of(&found))
    }

    pub(super) fn entry_of(&self, found: &Found) -> Entry {
        entry_of(found.id, &found.attributes, self.valid(found.id))
    }

    pub(super) fn attributes(
        &self,
        id: ObjectId,
        found: Result<holdfast_object::Attributes, Error>,
    ) -> Answer<Attributes> {
        let found = found.map_err(|error| self.errno(About::Object(id), &error))?;
        let btime = (found.btime.secs, found.btime.nanos);
        Ok(Attributes { attr: attr(id, &found), btime, valid: self.valid(id) })
    }

    pub(super) fn done<T>(&self, about: About<'_>, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.errno(about, &error))
    }

    pub(super) fn opened(&self, id: ObjectId, open_flags: u32) -> Opened {
        let handle = Handle::new(open_flags, self.mount.handles.fetch_add(1, Ordering::Relaxed));
        self.mount.told.open(self.namespace(), id, handle.raw());
        let flags = match self.mount.options.caching {
            Caching::Direct => open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES,
            // Everything that changes a file goes through the same kernel, so what it has stays right.
            Caching::Kernel => open_flags::KEEP_CACHE,
        };
        Opened { fh: handle.raw(), flags }
    }

    /// For requests without an answer.
    pub(super) fn note(&self, what: &str, id: ObjectId, result: Result<(), Error>) {
        if let Err(error) = result {
            let path = self.namespace().path_of(id);
            tracing::warn!(path = %path.escape_ascii(), %error, what, "failed");
        }
    }

    /// Makes a file durable for whoever has it open under `handle`, and tells it of bad pages.
    pub(super) fn sync_through(&self, id: ObjectId, handle: u64, durability: Durability) -> Result<(), Error> {
        let namespace = self.namespace();
        namespace.make_durable(id, durability)?;
        self.mount.told.tell(namespace, id, handle)
    }

    /// What a change of an object's contents or attributes has to make durable before it is answered, where the flags of the open ask
    /// for `asked`.
    pub(super) fn needs(&self, asked: Option<Durability>) -> Option<Durability> {
        if self.mount.options.synchronous == Synchronous::Everything { Some(Durability::All) } else { asked }
    }

    /// To be called after every write through a handle, of whatever kind, whose open asked for `asked`.
    pub(super) fn written(&self, id: ObjectId, handle: u64, asked: Option<Durability>) -> Result<(), Error> {
        self.needs(asked).map_or(Ok(()), |durability| self.sync_through(id, handle, durability))
    }

    pub(super) fn sync(&self, node: u64, data_only: bool) -> Answer<()> {
        let id = node_of(node)?;
        let durability = if data_only { Durability::Data } else { Durability::All };
        self.done(About::Object(id), self.namespace().sync(id, durability))
    }
}
