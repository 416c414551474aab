//! Makes messages from a stream of bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_buf::{AlignedBuf, Lease};
use zerocopy::{FromZeros, IntoBytes};

use super::{Header, UNLEASED_PAYLOAD_BYTES, WIRE_HEADER_BYTES, WireError, WireErrorKind};
use crate::{FragmentRole, PAYLOAD_BYTES_MAX, Reply, Request, Tag, crc32c};

/// A message that a [`Decoder`] can make: [`Request`] or [`Reply`].
pub trait Message: Sized + sealed::Parts {}

impl Message for Request {}
impl Message for Reply {}

pub(super) mod sealed {
    use super::super::{Header, WireError};
    use crate::{FragmentRole, PAYLOAD_BYTES_MAX};
    use bytes::Bytes;

    /// The decoder's knowledge about a kind of message.
    pub trait Parts: Sized {
        /// The header's direction byte.
        const DIRECTION: u8;
        /// Longest body.
        const BODY_BYTES_MAX: usize;
        /// The version of the protocol that has this operation.
        fn version_of(op: u8) -> u16;
        /// A message with this operation may have this version.
        fn has_version(op: u8, version: u16) -> bool {
            version == Self::version_of(op)
        }
        /// The longest payload of a message with this operation and version.
        fn payload_bytes_max(_op: u8, _version: u16) -> usize {
            PAYLOAD_BYTES_MAX
        }
        /// The operation is a fragment of an earlier message with the same tag.
        fn is_fragment(_op: u8) -> bool {
            false
        }
        /// What the message says about fragments.
        fn role(&self) -> FragmentRole {
            FragmentRole::None
        }
        /// Notes that there is no memory for the payload of the message. False if the message
        /// cannot say so.
        fn no_room(&mut self) -> bool {
            false
        }
        /// Makes the message from its parts.
        fn decode(header: &Header, body: &[u8], payload: Bytes) -> Result<Self, WireError>;
    }
}

/// Takes a connection's bytes in pieces of any size, and gives messages.
///
/// The decoder copies a payload once, from the piece in which it arrived to its own aligned buffer.
/// That buffer can go to a file with `O_DIRECT` as it is. The decoder makes the buffer when the
/// first byte of the payload arrives: a header alone takes no memory.
///
/// With a lease, a payload of more than [`UNLEASED_PAYLOAD_BYTES`] holds its length of the lease's
/// budget until its last byte is dropped. Without room in the budget, the decoder takes no more
/// bytes; see [`Decoder::waits_for_room`].
///
/// Such a payload in fragments ([`crate::fragments`]) holds its whole length from the request on,
/// so each write whose fragments come has room for all of them. Fragments of several writes may
/// come in turns. If a payload finds no room while fragments of earlier ones are missing, the
/// decoder does not wait: these fragments are behind the payload, and the room may be theirs. It
/// drops the payload, and returns the request with [`crate::Fragments::NoRoom`]. A request without
/// a route cannot say so: then the stream is invalid. A writer that sends each write without a
/// break never meets this.
#[derive(Debug)]
pub struct Decoder<M> {
    state: ParseState,
    header: Header,
    /// Bytes of the current part that have arrived.
    filled: usize,
    body: Vec<u8>,
    payload: AlignedBuf,
    body_bytes_max: usize,
    payload_bytes_max: usize,
    /// The budget for payloads.
    lease: Option<Lease>,
    /// The present payload's part of the budget.
    held: Option<Lease>,
    /// The fragments that are missing, by tag.
    missing: BTreeMap<Tag, Missing>,
    /// There is no room for the present payload, and its bytes are dropped.
    skips: bool,
    /// A message that waits for room for its fragments.
    begun: Option<M>,
    waiting: bool,
    failed: Option<WireError>,
    message: std::marker::PhantomData<M>,
}

/// The fragments of a message that have not come.
#[derive(Debug)]
struct Missing {
    len_bytes: usize,
    /// Their part of the budget, if the payload counts.
    room: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseState {
    Header,
    Body,
    Payload,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder at the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: ParseState::Header,
            header: Header::new_zeroed(),
            filled: 0,
            body: Vec::new(),
            payload: AlignedBuf::zeroed(0),
            body_bytes_max: M::BODY_BYTES_MAX,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            lease: None,
            held: None,
            missing: BTreeMap::new(),
            skips: false,
            begun: None,
            waiting: false,
            failed: None,
            message: std::marker::PhantomData,
        }
    }

    /// Takes only messages whose body and payload are at most this long, in bytes. A longer message
    /// is an error, as soon as its header is there.
    pub fn limit(&mut self, body_bytes_max: usize, payload_bytes_max: usize) {
        self.body_bytes_max = body_bytes_max.min(M::BODY_BYTES_MAX);
        self.payload_bytes_max = payload_bytes_max.min(PAYLOAD_BYTES_MAX);
    }

    /// True between two messages: the connection may end here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == ParseState::Header && self.filled == 0 && self.begun.is_none()
    }

    /// Counts payloads against this budget from now on.
    pub fn set_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
        self.waiting = self.begun.is_some();
    }

    /// True when a payload finds no room in the budget. The caller must keep the rest of the input,
    /// and give it again when [`fieldstone_buf::Budget::returns`] has changed.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.waiting
    }

    /// True while a payload that holds a part of the budget is incomplete.
    #[must_use]
    pub fn holds_room(&self) -> bool {
        self.held.is_some()
    }

    /// Gives back the part of the budget for fragments that the receiver does not want any more:
    /// the message with this tag is answered.
    pub fn forget_fragments(&mut self, tag: Tag) {
        self.missing.remove(&tag);
    }

    /// Takes bytes from the front of `input` until a message is complete, `input` is used up, or a
    /// payload must wait for room. After a message, call this again with the rest of `input`. While
    /// a message waits for room, `input` may be empty.
    ///
    /// # Errors
    /// The reason why the stream is invalid. After an error the decoder decodes no more, and
    /// returns the error again.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<M>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = match self.begun.take() {
            Some(message) => self.make_room(message),
            None => self.advance(input),
        };
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<M>, WireError> {
        loop {
            match self.state {
                ParseState::Header => {
                    let header = &mut self.header.as_mut_bytes()[self.filled..];
                    self.filled += fill(header, input);
                    self.check_magic_early()?;
                    if self.filled < WIRE_HEADER_BYTES {
                        return Ok(None);
                    }
                    self.header.check(M::DIRECTION, self.body_bytes_max, self.payload_bytes_max)?;
                    self.header.check_op::<M>()?;
                    self.body.clear();
                    self.state = ParseState::Body;
                }
                ParseState::Body => {
                    let missing = self.header.body_len() - self.body.len();
                    let piece = split_front(input, missing);
                    self.body.extend_from_slice(piece);
                    if self.body.len() < self.header.body_len() {
                        return Ok(None);
                    }
                    let at = WIRE_HEADER_BYTES;
                    check_crc("body", self.header.body_crc.get(), &self.body, at)?;
                    self.filled = 0;
                    self.state = ParseState::Payload;
                }
                ParseState::Payload => {
                    if self.filled == 0 && !self.begin_payload(!input.is_empty())? {
                        return Ok(None);
                    }
                    self.filled += match self.skips {
                        true => split_front(input, self.header.payload_len() - self.filled).len(),
                        false => fill(&mut self.payload[self.filled..], input),
                    };
                    if self.filled < self.header.payload_len() {
                        return Ok(None);
                    }
                    let message = self.finish()?;
                    return self.make_room(message);
                }
            }
        }
    }

    /// Makes the buffer of a payload once its first bytes are there, and room in the budget.
    fn begin_payload(&mut self, is_there: bool) -> Result<bool, WireError> {
        let len_bytes = self.header.payload_len();
        if len_bytes == 0 {
            return Ok(true);
        }
        if !is_there {
            return Ok(false);
        }
        if M::is_fragment(self.header.op) {
            let tag = Tag(self.header.tag.get());
            if let Some(missing) = self.missing.get_mut(&tag) {
                missing.len_bytes = missing.len_bytes.saturating_sub(len_bytes);
                self.held = missing.room.as_mut().map(|room| room.split(len_bytes));
                if missing.len_bytes == 0 {
                    self.missing.remove(&tag);
                }
            }
        } else if let Some(lease) = &mut self.lease
            && len_bytes > UNLEASED_PAYLOAD_BYTES
        {
            let total_bytes = lease.budget().total_bytes();
            super::check_len("payload", len_bytes, total_bytes).map_err(|kind| kind.at(24))?;
            self.waiting = !lease.grow_to(len_bytes);
            if self.waiting && !self.missing.is_empty() {
                lease.stop_waiting();
                (self.waiting, self.skips) = (false, true);
                return Ok(true);
            }
            if self.waiting {
                return Ok(false);
            }
            self.held = Some(lease.split_off());
        }
        self.payload = AlignedBuf::stale(len_bytes);
        Ok(true)
    }

    /// Takes room for the fragments of a message, if some follow. `None` if the message waits for
    /// it.
    fn make_room(&mut self, mut message: M) -> Result<Option<M>, WireError> {
        let tag = Tag(self.header.tag.get());
        match message.role() {
            FragmentRole::Begins(len_bytes) => {
                let mut room = None;
                if let Some(lease) = &mut self.lease
                    && len_bytes > UNLEASED_PAYLOAD_BYTES
                {
                    let total_bytes = lease.budget().total_bytes();
                    super::check_len("payload", len_bytes, total_bytes)
                        .map_err(|kind| kind.at(WIRE_HEADER_BYTES))?;
                    if lease.grow_to(len_bytes) {
                        room = Some(lease.split_off());
                    } else if self.missing.is_empty() {
                        self.waiting = true;
                        self.begun = Some(message);
                        return Ok(None);
                    } else {
                        lease.stop_waiting();
                        message.no_room();
                    }
                }
                if matches!(message.role(), FragmentRole::Begins(_)) {
                    self.missing.insert(tag, Missing { len_bytes, room });
                }
            }
            FragmentRole::Ends => self.forget_fragments(tag),
            _ => {}
        }
        self.waiting = false;
        self.header = Header::new_zeroed();
        Ok(Some(message))
    }

    /// A peer that speaks another protocol may wait for an answer before it sends 40 bytes.
    fn check_magic_early(&self) -> Result<(), WireError> {
        let there = self.filled.min(4);
        if self.header.magic[..there] == super::MAGIC[..there] {
            Ok(())
        } else {
            Err(WireErrorKind::Magic(self.header.magic).at(0))
        }
    }

    fn finish(&mut self) -> Result<M, WireError> {
        let at = WIRE_HEADER_BYTES + self.body.len();
        let skipped = std::mem::take(&mut self.skips);
        if !skipped {
            check_crc("payload", self.header.payload_crc.get(), &self.payload, at)?;
        }
        let payload = match self.payload.len() {
            0 => Bytes::new(),
            _ => {
                let buffer = std::mem::replace(&mut self.payload, AlignedBuf::zeroed(0));
                match self.held.take() {
                    Some(lease) => buffer.freeze_leased(lease),
                    None => buffer.freeze(),
                }
            }
        };
        let mut message = M::decode(&self.header, &self.body, payload)?;
        if skipped && !message.no_room() {
            let what = "the length of a payload between fragments, without memory for it,";
            let value = self.header.payload_len() as u64;
            return Err(WireErrorKind::Value { what, value }.at(24));
        }
        self.state = ParseState::Header;
        self.filled = 0;
        // A long body is rare, so the decoder does not keep its memory.
        if self.body.capacity() > super::REQUEST_BODY_BYTES_MAX {
            self.body = Vec::new();
        }
        Ok(message)
    }
}

fn check_crc(what: &'static str, found: u32, bytes: &[u8], at: usize) -> Result<(), WireError> {
    let computed = crc32c(bytes);
    if found == computed {
        Ok(())
    } else {
        Err(WireErrorKind::Checksum { what, found, computed }.at(at))
    }
}

fn split_front<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    front
}

/// Copies as many bytes as fit from the front of `input`. Returns the number.
fn fill(space: &mut [u8], input: &mut &[u8]) -> usize {
    let piece = split_front(input, space.len());
    space[..piece.len()].copy_from_slice(piece);
    piece.len()
}
