//! What is said before the first request: which export, which kind of replies, which contexts, TLS.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Context;
use super::export::Export;
use super::link::Link;
use super::option::{self, Fault};
use super::protocol::{
    self, Fields, MAGIC, OPTION_MAGIC, Put, handshake, info, option as number, option_reply, reply, transmission,
};
use super::reader::Reader;

/// Options whose data is longer are refused without a look.
const LONGEST_OPTION: u32 = 64 << 10;
/// Those longer than this are no mistake.
const LONGEST_SKIPPED: u32 = 1 << 20;
/// Who asks more often is not going to use an export.
const MOST_OPTIONS: usize = 1000;

/// Smallest unit, best unit, and largest payload of requests, in bytes.
const MINIMUM: u32 = 1;
const PREFERRED: u32 = crate::BLOCK_SIZE as u32;
pub(super) const LARGEST: u32 = 32 << 20;

/// What a server has to offer.
pub(super) struct Offer {
    pub(super) exports: Vec<Arc<Export>>,
    /// With it, nothing is said without TLS.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<super::Tls>,
}

/// What client and server have agreed on.
pub(super) struct Agreed {
    pub(super) export: Arc<Export>,
    pub(super) is_structured: bool,
    pub(super) contexts: Vec<Context>,
}

/// The state of one talk.
struct Talk<'a> {
    link: &'a mut Link,
    reader: &'a mut Reader,
    offer: &'a Offer,
    no_zeroes: bool,
    is_structured: bool,
    /// The contexts that the client has chosen, and of which export.
    contexts: Option<(Arc<Export>, Vec<Context>)>,
}

/// How an option ends.
enum Next {
    /// The client may send another one.
    Another,
    /// The export is in use from now on.
    Use(Arc<Export>),
    /// The client leaves.
    Leave,
}

/// Talks to a client until it uses an export; `None` if it leaves without.
pub(super) fn negotiate(link: &mut Link, reader: &mut Reader, offer: &Offer) -> io::Result<Option<Agreed>> {
    let mut greeting = Vec::new();
    greeting.u64(MAGIC).u64(OPTION_MAGIC).u16(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    link.send(&mut [IoSlice::new(&greeting)])?;
    let Some(flags) = reader.message::<4>(link)? else { return Ok(None) };
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
        return violation(format!("client flags {flags:#x}"));
    }
    let no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
    let mut talk = Talk { link, reader, offer, no_zeroes, is_structured: false, contexts: None };
    for _ in 0..MOST_OPTIONS {
        let Some(head) = talk.reader.message::<16>(talk.link)? else { return Ok(None) };
        match talk.option(head)? {
            Next::Another => {}
            Next::Leave => return Ok(None),
            Next::Use(export) => {
                // Contexts count only for the export that they were chosen for.
                let contexts = talk.contexts.filter(|(chosen, _)| Arc::ptr_eq(chosen, &export));
                let contexts = contexts.map(|(_, contexts)| contexts).unwrap_or_default();
                return Ok(Some(Agreed { export, is_structured: talk.is_structured, contexts }));
            }
        }
    }
    violation(format!("more than {MOST_OPTIONS} options"))
}

fn violation<T>(what: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl Talk<'_> {
    fn option(&mut self, head: [u8; 16]) -> io::Result<Next> {
        let mut fields = Fields(&head);
        let (magic, option, length) = (fields.u64(), fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
        if magic != Some(OPTION_MAGIC) {
            return violation("an option that does not begin with IHAVEOPT".into());
        }
        if length > LONGEST_SKIPPED {
            return violation(format!("option {option} with {length} bytes"));
        }
        if option == number::SET_META_CONTEXT {
            // Those chosen before are forgotten whatever becomes of this one.
            self.contexts = None;
        }
        if length > LONGEST_OPTION {
            if option == number::EXPORT_NAME {
                return violation(format!("the name of an export with {length} bytes"));
            }
            self.reader.pass_over(self.link, length.into())?;
            return self.refuse(option, reply::ERR_TOO_BIG, "more than 64 KiB of data with an option");
        }
        let mut data = vec![0; length as usize];
        self.reader.fill(self.link, &mut data)?;
        if !self.is_private_enough() && !matches!(option, number::STARTTLS | number::ABORT) {
            if option == number::EXPORT_NAME {
                return violation("an export without TLS".into());
            }
            return self.refuse(option, reply::ERR_TLS_REQD, "this server wants TLS first");
        }
        match option {
            number::EXPORT_NAME => self.export_name(&data),
            number::ABORT => {
                // Some clients do not wait for it.
                let _ = self.acknowledge(option);
                Ok(Next::Leave)
            }
            number::LIST if data.is_empty() => self.list(),
            number::STARTTLS if data.is_empty() => self.start_tls(),
            number::STRUCTURED_REPLY if data.is_empty() => {
                self.is_structured = true;
                self.acknowledge(option)
            }
            number::LIST | number::STARTTLS | number::STRUCTURED_REPLY => {
                self.refuse(option, reply::ERR_INVALID, "this option has no data")
            }
            number::INFO | number::GO => match option::wish(&data) {
                Ok(wish) => self.information(option, &wish),
                Err(fault) => self.invalid(option, fault),
            },
            number::LIST_META_CONTEXT | number::SET_META_CONTEXT => match option::queries(&data) {
                Ok(queries) => self.meta_contexts(option, &queries),
                Err(fault) => self.invalid(option, fault),
            },
            _ => self.refuse(option, reply::ERR_UNSUP, "this server does not know the option"),
        }
    }

    #[cfg(feature = "tls")]
    fn is_private_enough(&self) -> bool {
        self.offer.tls.is_none() || self.link.has_tls()
    }

    #[cfg(not(feature = "tls"))]
    fn is_private_enough(&self) -> bool {
        let _ = &self.link;
        true
    }

    #[cfg(feature = "tls")]
    fn start_tls(&mut self) -> io::Result<Next> {
        let option = number::STARTTLS;
        let Some(tls) = &self.offer.tls else {
            return self.refuse(option, reply::ERR_POLICY, "this server has no certificate");
        };
        if self.link.has_tls() {
            return self.refuse(option, reply::ERR_INVALID, "TLS has been started already");
        }
        if self.reader.buffered() != 0 {
            // It would count as if it had come through TLS, whoever put it there.
            return violation("bytes between STARTTLS and its answer".into());
        }
        self.acknowledge(option)?;
        self.link.start_tls(tls)?;
        // Nothing of what was said before is believed.
        (self.is_structured, self.contexts) = (false, None);
        Ok(Next::Another)
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&mut self) -> io::Result<Next> {
        self.refuse(number::STARTTLS, reply::ERR_PLATFORM, "this server was built without TLS")
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<Next> {
        self.link.send(&mut [IoSlice::new(bytes)])?;
        Ok(Next::Another)
    }

    fn acknowledge(&mut self, option: u32) -> io::Result<Next> {
        let mut out = Vec::new();
        option_reply(&mut out, option, reply::ACK, &[]);
        self.send(&out)
    }

    fn refuse(&mut self, option: u32, kind: u32, message: &str) -> io::Result<Next> {
        let mut out = Vec::new();
        option_reply(&mut out, option, kind, message.as_bytes());
        self.send(&out)
    }

    fn invalid(&mut self, option: u32, fault: Fault) -> io::Result<Next> {
        self.refuse(option, reply::ERR_INVALID, fault)
    }

    /// The export of that name; the first one for no name.
    fn find(&self, name: &str) -> Option<Arc<Export>> {
        let exports = &self.offer.exports;
        let named = exports.iter().find(|export| export.name() == name);
        named.or(if name.is_empty() { exports.first() } else { None }).cloned()
    }

    fn flags(&self, export: &Export) -> u16 {
        use transmission::*;
        // All connections go to the same device, and its flush is for all that it was given.
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
        flags |= if export.is_read_only() { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
        if self.is_structured {
            flags |= SEND_DF;
        }
        flags
    }

    /// No error can be told here: the connection ends instead.
    fn export_name(&mut self, data: &[u8]) -> io::Result<Next> {
        let Some(export) = option::name(data).ok().and_then(|name| self.find(name)) else {
            return violation(format!("no export {:?}", String::from_utf8_lossy(&data[..data.len().min(100)])));
        };
        let mut out = Vec::new();
        out.u64(export.size_bytes()).u16(self.flags(&export));
        if !self.no_zeroes {
            out.raw(&[0; 124]);
        }
        self.send(&out)?;
        Ok(Next::Use(export))
    }

    fn list(&mut self) -> io::Result<Next> {
        let mut out = Vec::new();
        for export in &self.offer.exports {
            let mut payload = Vec::new();
            payload.u32(export.name().len() as u32).raw(export.name().as_bytes()).raw(export.description().as_bytes());
            option_reply(&mut out, number::LIST, reply::SERVER, &payload);
        }
        option_reply(&mut out, number::LIST, reply::ACK, &[]);
        self.send(&out)
    }

    fn information(&mut self, option: u32, wish: &option::Wish<'_>) -> io::Result<Next> {
        let Some(export) = self.find(wish.export) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "there is no export of this name");
        };
        let mut out = Vec::new();
        let mut tell = |kind: u16, rest: &[u8]| {
            let mut payload = Vec::new();
            payload.u16(kind).raw(rest);
            option_reply(&mut out, option, reply::INFO, &payload);
        };
        let mut rest = Vec::new();
        tell(info::EXPORT, rest.u64(export.size_bytes()).u16(self.flags(&export)));
        if wish.information.contains(&info::NAME) {
            tell(info::NAME, export.name().as_bytes());
        }
        if wish.information.contains(&info::DESCRIPTION) && !export.description().is_empty() {
            tell(info::DESCRIPTION, export.description().as_bytes());
        }
        if wish.information.contains(&info::BLOCK_SIZE) {
            tell(info::BLOCK_SIZE, Vec::new().u32(MINIMUM).u32(PREFERRED).u32(LARGEST));
        }
        option_reply(&mut out, option, reply::ACK, &[]);
        self.send(&out)?;
        Ok(if option == number::GO { Next::Use(export) } else { Next::Another })
    }

    fn meta_contexts(&mut self, option: u32, asked: &option::Queries<'_>) -> io::Result<Next> {
        let listing = option == number::LIST_META_CONTEXT;
        if !self.is_structured {
            return self.invalid(option, "structured replies have to be agreed on first");
        }
        let Some(export) = self.find(asked.export) else {
            return self.refuse(option, reply::ERR_UNKNOWN, "there is no export of this name");
        };
        let all = listing && asked.queries.is_empty();
        let is_wanted =
            |context: &Context| all || asked.queries.iter().any(|query| context.is_asked_for(query, listing));
        let contexts: Vec<Context> = export.contexts().iter().copied().filter(is_wanted).collect();
        let mut out = Vec::new();
        for context in &contexts {
            let mut payload = Vec::new();
            payload.u32(if listing { 0 } else { context_id(*context) }).raw(context.name().as_bytes());
            option_reply(&mut out, option, reply::META_CONTEXT, &payload);
        }
        option_reply(&mut out, option, reply::ACK, &[]);
        if !listing {
            self.contexts = Some((export, contexts));
        }
        self.send(&out)
    }
}

/// The number by which replies name a context.
pub(super) fn context_id(context: Context) -> u32 {
    match context {
        Context::Allocation => 1,
        Context::BackUp => 2,
    }
}

// The protocol allows no smaller ones.
const _: () = assert!(PREFERRED >= 512 && LARGEST as usize >= 1 << 20 && protocol::LONGEST_STRING == 4096);
