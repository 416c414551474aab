//! Negotiation of options: from the client's flags to the start of transmission.
//!
//! The server answers every option except `EXPORT_NAME` with replies that name the option. Errors
//! carry a sentence for people. The session finds the options in the stream and bounds their number
//! and length; this module only answers them. Important rules:
//!
//! - `SET_META_CONTEXT` replaces the earlier selection even when it fails. It counts only if it
//!   names the export with which transmission starts.
//! - `base:` lists contexts but selects none. The server ignores unknown namespaces and leaves.
//! - The server refuses TLS with `ERR_POLICY`: run NBD on a UNIX socket, or behind a tunnel.
//! - While the server shuts down, every option except `ABORT` gets `ERR_SHUTDOWN`.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::errors::Violation;
use crate::export::{Export, ExportIndex, ExportList};
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::outbox::Outbox;
use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_ZEROES, Fields, Greeting, INIT_MAGIC, MAX_STRING_BYTES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeader, handshake, info, opt, rep,
};

/// The id of `base:allocation` in replies; any number works.
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// The agreed options when transmission starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub export: ExportIndex,
    pub structured: bool,
    /// `base:allocation` is selected for this export.
    pub allocation: bool,
}

/// The next step after an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// More options.
    Continue,
    /// Requests.
    Start(Agreed),
    /// Nothing: the client ends the session.
    Abort,
}

#[derive(Debug, Default)]
pub(crate) struct Negotiation {
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` is selected.
    allocation: Option<ExportIndex>,
}

/// Why an option is refused: the reply type and a sentence.
type Refusal = (u32, &'static str);

const TRUNCATED: Refusal = (rep::ERR_INVALID, "the option's data ends early or goes on too long");
const UNEXPECTED_DATA: Refusal = (rep::ERR_INVALID, "this option takes no data");
const UNKNOWN_EXPORT: Refusal = (rep::ERR_UNKNOWN, "no export has this name");
const NEEDS_STRUCTURED: Refusal = (rep::ERR_INVALID, "negotiate structured replies first");

pub(crate) fn greet(outbox: &mut Outbox) {
    outbox.push(&Greeting {
        init_magic: U64::new(INIT_MAGIC),
        option_magic: U64::new(OPTION_MAGIC),
        flags: U16::new(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES),
    });
}

impl Negotiation {
    pub fn client_flags(&mut self, flags: u32) -> Result<(), Violation> {
        let offered = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !offered != 0 {
            return Err(Violation::ClientFlags { flags });
        }
        self.fixed_newstyle = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        Ok(())
    }

    /// Checks that this client may use `option` at all.
    pub fn check_style(&self, option: u32) -> Result<(), Violation> {
        if self.fixed_newstyle || option == opt::EXPORT_NAME {
            Ok(())
        } else {
            Err(Violation::NotFixedNewstyle { option })
        }
    }

    pub fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &ExportList,
        shutting_down: bool,
        outbox: &mut Outbox,
    ) -> Result<After, Violation> {
        if option == opt::EXPORT_NAME {
            return self.export_name(data, exports, shutting_down, outbox);
        }
        let mut replies = Replies { option, outbox };
        let answer = match option {
            opt::ABORT => Ok(After::Abort),
            _ if shutting_down => Err((rep::ERR_SHUTDOWN, "the server is shutting down")),
            opt::LIST => list(data, exports, &mut replies),
            opt::STARTTLS if !data.is_empty() => Err(UNEXPECTED_DATA),
            opt::STARTTLS => Err((rep::ERR_POLICY, "this server does not offer TLS")),
            opt::INFO | opt::GO => self.describe(option, data, exports, &mut replies),
            opt::STRUCTURED_REPLY if !data.is_empty() => Err(UNEXPECTED_DATA),
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                Ok(After::Continue)
            }
            opt::LIST_META_CONTEXT => self.list_contexts(data, exports, &mut replies),
            opt::SET_META_CONTEXT => self.set_contexts(data, exports, &mut replies),
            _ => Err((rep::ERR_UNSUP, "this server does not know the option")),
        };
        match answer {
            Ok(after) => {
                replies.send(rep::ACK, &[]);
                Ok(after)
            }
            Err((reply_type, message)) => {
                replies.send(reply_type, &[message.as_bytes()]);
                Ok(After::Continue)
            }
        }
    }

    fn agreed(&self, export: ExportIndex) -> Agreed {
        let allocation = self.structured && self.allocation == Some(export);
        Agreed { export, structured: self.structured, allocation }
    }

    fn export_name(
        &self,
        name: &[u8],
        exports: &ExportList,
        shutting_down: bool,
        outbox: &mut Outbox,
    ) -> Result<After, Violation> {
        if shutting_down {
            return Err(Violation::ShuttingDown);
        }
        let found = exports.find(name).and_then(|index| Some((index, exports.get(index)?)));
        let Some((index, export)) = found else {
            let shown = &name[..name.len().min(64)];
            return Err(Violation::UnknownExport {
                name: String::from_utf8_lossy(shown).into_owned(),
            });
        };
        outbox.copy(&export.size_bytes.to_be_bytes());
        outbox.copy(&export.transmission_flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            outbox.copy(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(After::Start(self.agreed(index)))
    }

    /// `INFO` and `GO`.
    fn describe(
        &self,
        option: u32,
        data: &[u8],
        exports: &ExportList,
        replies: &mut Replies,
    ) -> Result<After, Refusal> {
        let mut fields = Fields(data);
        let name = fields.string().ok_or(TRUNCATED)?;
        let count = fields.u16().ok_or(TRUNCATED)?;
        if fields.0.len() != usize::from(count) * 2 {
            return Err(TRUNCATED);
        }
        let (index, export) = find(exports, name)?;
        let mut requested = InfoRequests::default();
        while let Some(item) = fields.u16() {
            requested.name |= item == info::NAME;
            requested.description |= item == info::DESCRIPTION;
        }
        replies.send_infos(export, self.structured, requested);
        Ok(if option == opt::GO { After::Start(self.agreed(index)) } else { After::Continue })
    }

    fn list_contexts(
        &self,
        data: &[u8],
        exports: &ExportList,
        replies: &mut Replies,
    ) -> Result<After, Refusal> {
        if !self.structured {
            return Err(NEEDS_STRUCTURED);
        }
        let query = ContextQuery::parse(data)?;
        find(exports, query.export)?;
        if query.count == 0 || query.wildcard || query.allocation {
            // This reply reserves the id.
            replies.send(rep::META_CONTEXT, &[&0u32.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
        }
        Ok(After::Continue)
    }

    fn set_contexts(
        &mut self,
        data: &[u8],
        exports: &ExportList,
        replies: &mut Replies,
    ) -> Result<After, Refusal> {
        self.allocation = None;
        if !self.structured {
            return Err(NEEDS_STRUCTURED);
        }
        let query = ContextQuery::parse(data)?;
        let (index, _) = find(exports, query.export)?;
        if query.allocation {
            self.allocation = Some(index);
            let id = ALLOCATION_CONTEXT_ID.to_be_bytes();
            replies.send(rep::META_CONTEXT, &[&id, BASE_ALLOCATION.as_bytes()]);
        }
        Ok(After::Continue)
    }
}

fn find<'a>(exports: &'a ExportList, name: &[u8]) -> Result<(ExportIndex, &'a Export), Refusal> {
    let index = exports.find(name).ok_or(UNKNOWN_EXPORT)?;
    Ok((index, exports.get(index).ok_or(UNKNOWN_EXPORT)?))
}

fn list(data: &[u8], exports: &ExportList, replies: &mut Replies) -> Result<After, Refusal> {
    if !data.is_empty() {
        return Err(UNEXPECTED_DATA);
    }
    for export in exports.as_slice() {
        let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
        replies.send(rep::SERVER, &[&wire_len(name.len()).to_be_bytes(), name, description]);
    }
    Ok(After::Continue)
}

/// The optional pieces of information that the client asked for.
#[derive(Clone, Copy, Default)]
struct InfoRequests {
    name: bool,
    description: bool,
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`, reduced to the parts that the server
/// supports.
struct ContextQuery<'a> {
    export: &'a [u8],
    count: u32,
    wildcard: bool,
    allocation: bool,
}

impl<'a> ContextQuery<'a> {
    fn parse(data: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields(data);
        let export = fields.string().ok_or(TRUNCATED)?;
        let count = fields.u32().ok_or(TRUNCATED)?;
        let mut parsed = Self { export, count, wildcard: false, allocation: false };
        // The client chose the count. Each round takes at least four bytes or ends the loop.
        for _ in 0..count {
            let query = fields.string().ok_or(TRUNCATED)?;
            if query.len() > MAX_STRING_BYTES {
                return Err((rep::ERR_INVALID, "a query is longer than 4096 bytes"));
            }
            if !query.contains(&b':') {
                return Err((rep::ERR_INVALID, "a query lacks the colon behind its namespace"));
            }
            parsed.wildcard |= query == b"base:";
            parsed.allocation |= query == BASE_ALLOCATION.as_bytes();
        }
        if fields.0.is_empty() { Ok(parsed) } else { Err(TRUNCATED) }
    }
}

/// Sends the replies to one option.
pub(crate) struct Replies<'a> {
    pub option: u32,
    pub outbox: &'a mut Outbox,
}

impl Replies<'_> {
    /// Sends one reply whose data is `parts` in a row.
    pub fn send(&mut self, reply_type: u32, parts: &[&[u8]]) {
        let length = wire_len(parts.iter().map(|part| part.len()).sum());
        self.outbox.push(&OptionReplyHeader {
            magic: U64::new(OPTION_REPLY_MAGIC),
            option: U32::new(self.option),
            reply_type: U32::new(reply_type),
            length: U32::new(length),
        });
        for part in parts {
            self.outbox.copy(part);
        }
    }

    fn send_infos(&mut self, export: &Export, structured: bool, requested: InfoRequests) {
        let flags = U16::new(export.transmission_flags(structured));
        self.info(info::EXPORT, &[&export.size_bytes.to_be_bytes(), flags.as_bytes()]);
        if requested.name {
            self.info(info::NAME, &[export.name.as_bytes()]);
        }
        if requested.description && !export.description.is_empty() {
            self.info(info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        // Sent even if the client did not ask. The session checks no alignment: a device that takes
        // whole blocks only fails an unaligned request itself.
        let (minimum, preferred) = (export.minimum_block_bytes, export.preferred_block_bytes);
        let sizes = [minimum, preferred, MAX_PAYLOAD_BYTES].map(u32::to_be_bytes);
        self.info(info::BLOCK_SIZE, &[sizes.as_flattened()]);
    }

    fn info(&mut self, item: u16, parts: &[&[u8]]) {
        let item = item.to_be_bytes();
        match parts {
            [one] => self.send(rep::INFO, &[&item, one]),
            [one, two] => self.send(rep::INFO, &[&item, one, two]),
            _ => self.send(rep::INFO, &[&item, &parts.concat()]),
        }
    }
}

fn wire_len(len_bytes: usize) -> u32 {
    u32::try_from(len_bytes).expect("names and descriptions are bounded by the export list")
}
