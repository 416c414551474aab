//! Makes reply bytes from completions.
//!
//! Without structured replies every request gets a simple reply. With them, reads, block status and
//! all errors get chunks. Other successes keep the simple reply, which is shorter and allowed. The
//! last chunk of a successful reply has the DONE flag. The session knows that the whole reply is
//! right before it queues the first byte, so it needs no closing chunk.
//!
//! If a backend breaks its own contract (wrong length, no extents), the client gets an `EIO` and
//! the server goes on.

use fieldstone_block::{BlockError, Extent, ExtentKind, Payload, Piece};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::errors::Errno;
use crate::negotiation::ALLOCATION_CONTEXT_ID;
use crate::outbox::Outbox;
use crate::slots::{InFlightRequest, Kind};
use crate::wire::{CHUNK_MAGIC, ChunkHeader, SIMPLE_REPLY_MAGIC, SimpleReply, chunk, state};

/// A hole shorter than this is sent as zero bytes: the specification asks for chunks in multiples
/// of 512, and a separate chunk would hardly be shorter.
const MIN_HOLE_BYTES: u32 = 512;

/// The longest error message in a reply; the specification allows 4096.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Queues replies in the agreed form.
pub(crate) struct Replier<'a> {
    pub outbox: &'a mut Outbox,
    pub structured: bool,
    pub max_extents: u32,
}

impl Replier<'_> {
    pub fn complete(&mut self, request: &InFlightRequest, result: Result<Payload, BlockError>) {
        let payload = match result {
            Ok(payload) => payload,
            Err(error) => {
                let errno = Errno::for_block_error(&error, request.kind);
                return self.fail(request.cookie, errno, &error.to_string());
            }
        };
        match (request.kind, payload) {
            (Kind::Read { whole }, Payload::Data(pieces)) => self.read(request, &pieces, whole),
            (Kind::BlockStatus { one }, Payload::Extents(extents)) => {
                self.block_status(request, &extents, one);
            }
            (Kind::Read { .. } | Kind::BlockStatus { .. }, _) => {
                self.fail(request.cookie, Errno::Io, "the backend answered with something else");
            }
            _ => self.simple(request.cookie, 0),
        }
    }

    /// Answers a request that succeeds without any work.
    pub fn done(&mut self, cookie: u64, kind: Kind) {
        if self.structured && matches!(kind, Kind::Read { .. }) {
            self.chunk(cookie, chunk::NONE, true, 0);
        } else {
            self.simple(cookie, 0);
        }
    }

    pub fn fail(&mut self, cookie: u64, errno: Errno, message: &str) {
        if !self.structured {
            return self.simple(cookie, errno.code());
        }
        let message = cut(message, MAX_MESSAGE_BYTES);
        let len = u16::try_from(message.len()).expect("cut to MAX_MESSAGE_BYTES");
        self.chunk(cookie, chunk::ERROR, true, 6 + u32::from(len));
        self.outbox.copy(&errno.code().to_be_bytes());
        self.outbox.copy(&len.to_be_bytes());
        self.outbox.copy(message.as_bytes());
    }

    fn simple(&mut self, cookie: u64, error: u32) {
        self.outbox.push(&SimpleReply {
            magic: U32::new(SIMPLE_REPLY_MAGIC),
            error: U32::new(error),
            cookie: U64::new(cookie),
        });
    }

    fn chunk(&mut self, cookie: u64, chunk_type: u16, last: bool, length: u32) {
        self.outbox.push(&ChunkHeader {
            magic: U32::new(CHUNK_MAGIC),
            flags: U16::new(if last { chunk::DONE } else { 0 }),
            chunk_type: U16::new(chunk_type),
            cookie: U64::new(cookie),
            length: U32::new(length),
        });
    }

    fn read(&mut self, request: &InFlightRequest, pieces: &[Piece], whole: bool) {
        let total: u64 = pieces.iter().map(piece_len).sum();
        if total != u64::from(request.len_bytes) {
            return self.fail(request.cookie, Errno::Io, "the backend read another length");
        }
        if !self.structured {
            self.simple(request.cookie, 0);
            return self.contents(pieces);
        }
        let holes_only = pieces.iter().all(|piece| matches!(piece, Piece::Zeroes(_)));
        let mut left = pieces;
        let mut offset = request.offset_bytes;
        while !left.is_empty() {
            let hole = holes_only || (!whole && is_hole(&left[0]));
            let count = if holes_only || whole {
                left.len()
            } else {
                left.iter().take_while(|piece| is_hole(piece) == hole).count()
            };
            let (run, rest) = left.split_at(count);
            let run_len: u64 = run.iter().map(piece_len).sum();
            // A run of empty pieces makes no chunk, but the last chunk must be the last one in the
            // reply.
            let last = rest.iter().all(|piece| piece_len(piece) == 0);
            if run_len > 0 {
                self.content_chunk(request.cookie, offset, run, hole, last);
            }
            offset += run_len;
            left = if last { &[] } else { rest };
        }
    }

    fn content_chunk(&mut self, cookie: u64, offset: u64, run: &[Piece], hole: bool, last: bool) {
        let run_len: u64 = run.iter().map(piece_len).sum();
        let run_len = u32::try_from(run_len).expect("the pieces sum to the request's u32 length");
        if hole {
            self.chunk(cookie, chunk::OFFSET_HOLE, last, 12);
            self.outbox.copy(&offset.to_be_bytes());
            self.outbox.copy(&run_len.to_be_bytes());
        } else {
            self.chunk(cookie, chunk::OFFSET_DATA, last, 8 + run_len);
            self.outbox.copy(&offset.to_be_bytes());
            self.contents(run);
        }
    }

    fn contents(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Data(data) => self.outbox.data(data.clone()),
                Piece::Zeroes(len_bytes) => self.outbox.zeroes(*len_bytes),
            }
        }
    }

    fn block_status(&mut self, request: &InFlightRequest, extents: &[Extent], one: bool) {
        let limit = if one { 1 } else { self.max_extents as usize };
        let mut descriptors: Vec<(u32, u32)> = Vec::with_capacity(extents.len().min(limit));
        let mut left = u64::from(request.len_bytes);
        for extent in extents {
            let len = u32::try_from(extent.len_bytes.min(left)).expect("at most request.len_bytes");
            if len == 0 {
                continue;
            }
            let flags = state_flags(extent.kind);
            let full = descriptors.len() == limit;
            match descriptors.last_mut() {
                Some((last_len, last_flags)) if *last_flags == flags => *last_len += len,
                _ if full => break,
                _ => descriptors.push((len, flags)),
            }
            left -= u64::from(len);
        }
        if descriptors.is_empty() {
            return self.fail(
                request.cookie,
                Errno::Io,
                "the backend knows no extent of the range",
            );
        }
        let count = u32::try_from(descriptors.len()).expect("bounded by max_extents");
        self.chunk(request.cookie, chunk::BLOCK_STATUS, true, 4 + 8 * count);
        self.outbox.copy(&ALLOCATION_CONTEXT_ID.to_be_bytes());
        for (len, flags) in descriptors {
            self.outbox.copy(&len.to_be_bytes());
            self.outbox.copy(&flags.to_be_bytes());
        }
    }
}

/// The longest prefix of `text` that has at most `max_bytes` bytes and whole characters.
fn cut(text: &str, max_bytes: usize) -> &str {
    let mut end = max_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The length of a piece, even of one that breaks the 32 MiB contract.
fn piece_len(piece: &Piece) -> u64 {
    match piece {
        Piece::Data(data) => data.len() as u64,
        Piece::Zeroes(len_bytes) => u64::from(*len_bytes),
    }
}

fn is_hole(piece: &Piece) -> bool {
    matches!(piece, Piece::Zeroes(len_bytes) if *len_bytes >= MIN_HOLE_BYTES)
}

fn state_flags(kind: ExtentKind) -> u32 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => state::ZERO,
        ExtentKind::Hole => state::HOLE | state::ZERO,
    }
}
