//! A socket that carries messages of the `proto::wire` format, for both ends of a connection to a
//! node.
//!
//! At most one receive and one send are in flight. Messages that are queued during a send leave
//! together in the next one, up to [`SEND_BYTES_MAX`]. There is one receive buffer. The received
//! bytes stay there until the owner has taken all messages, and only then the next receive starts.
//! So an owner that takes no messages makes the peer wait.
//!
//! The owner gives each connection its own tokens for receives and sends. So events of a closed
//! connection never reach a later one.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_buf::{AlignedBuf, Lease};
use fieldstone_proto::wire::{Decoder, Message, WireError, encode_request};
use fieldstone_proto::{Request, Tag, fragments};

use crate::connection_table::SEND_BYTES_MAX;
use fieldstone_uring::{Event, Payload, Reactor, Socket, Token, Want};

/// Size of the receive buffer.
const RECEIVE_BYTES: usize = 256 << 10;
/// Size of the receive buffer of a pending connection.
const PENDING_RECEIVE_BYTES: usize = 16 << 10;
/// While more than this waits to be sent, no receive starts: the peer must read first.
pub(crate) const QUEUED_BYTES_MAX: usize = 32 << 20;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The peer has closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The system reports an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer breaks the format.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// Two requests of the peer have the same tag.
    #[error("a request has the tag {0} of an earlier one, which is not answered")]
    TagInUse(u64),
}

/// A connection that carries messages. `M` is the type of incoming messages.
pub(crate) struct WireSocket<M: Message> {
    socket: Socket,
    decoder: Decoder<M>,
    /// The receive buffer; `None` while a receive is under way.
    input: Option<AlignedBuf>,
    /// The range of received bytes that are not decoded yet.
    undecoded: Range<usize>,
    receive_bytes: usize,
    out: Vec<Bytes>,
    queued_bytes: usize,
    sending_bytes: usize,
    receive: Token,
    send: Token,
}

impl<M: Message> WireSocket<M> {
    pub(crate) fn new(socket: Socket, receive: Token, send: Token) -> Self {
        Self {
            socket,
            decoder: Decoder::new(),
            input: Some(AlignedBuf::stale(0)),
            undecoded: 0..0,
            receive_bytes: RECEIVE_BYTES,
            out: Vec::new(),
            queued_bytes: 0,
            sending_bytes: 0,
            receive,
            send,
        }
    }

    /// A pending connection: it has a small buffer, and its payloads count against a budget.
    pub(crate) fn pending(socket: Socket, receive: Token, send: Token, lease: Lease) -> Self {
        let mut new = Self::new(socket, receive, send);
        new.receive_bytes = PENDING_RECEIVE_BYTES;
        new.decoder.set_lease(lease);
        new
    }

    /// A connection over which this process only sends, and gets short answers without payloads. An
    /// answer whose body is longer than this many bytes breaks the connection.
    pub(crate) fn short_answers(
        socket: Socket,
        receive: Token,
        send: Token,
        body_bytes_max: usize,
    ) -> Self {
        let mut new = Self::new(socket, receive, send);
        new.receive_bytes = PENDING_RECEIVE_BYTES;
        new.decoder.limit(body_bytes_max, 0);
        new
    }

    /// The peer has introduced itself. Later payloads count against the budget of `lease`.
    pub(crate) fn introduce(&mut self, lease: Lease) {
        self.receive_bytes = RECEIVE_BYTES;
        self.decoder.set_lease(lease);
    }

    /// Queues an encoded message.
    pub(crate) fn push(&mut self, parts: Vec<Bytes>) {
        self.queued_bytes += parts.iter().map(Bytes::len).sum::<usize>();
        self.out.extend(parts);
    }

    /// Queues a request, in fragments if its route allows them.
    ///
    /// # Errors
    /// The request is too long for a message. Nothing is queued.
    pub(crate) fn push_request(&mut self, request: Request) -> Result<(), WireError> {
        for request in fragments::cut(request) {
            self.push(encode_request(&request)?);
        }
        Ok(())
    }

    /// Bytes that the peer has not taken yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.queued_bytes + self.sending_bytes
    }

    /// True while a send is under way.
    pub(crate) fn is_sending(&self) -> bool {
        self.sending_bytes > 0
    }

    /// True while the owner has not taken all received bytes, or a message waits for room.
    pub(crate) fn has_input(&self) -> bool {
        !self.undecoded.is_empty() || self.decoder.waits_for_room()
    }

    /// True while a payload finds no room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.decoder.waits_for_room()
    }

    /// True while the peer has not sent the rest of a payload that has room.
    pub(crate) fn awaits_payload(&self) -> bool {
        self.decoder.holds_room() && self.undecoded.is_empty()
    }

    /// No more fragments of the message with this tag are wanted: it is answered.
    pub(crate) fn forget_fragments(&mut self, tag: Tag) {
        self.decoder.forget_fragments(tag);
    }

    /// Starts a send and a receive, as far as possible.
    pub(crate) fn start_io(&mut self, reactor: &mut Reactor) {
        if self.sending_bytes == 0 && !self.out.is_empty() {
            let rest = split_after(&mut self.out, SEND_BYTES_MAX);
            let parts = std::mem::replace(&mut self.out, rest);
            self.sending_bytes = match self.out.is_empty() {
                true => self.queued_bytes,
                false => parts.iter().map(Bytes::len).sum(),
            };
            self.queued_bytes -= self.sending_bytes;
            reactor.send(&self.socket, parts, self.send);
        }
        if !self.has_input()
            && self.unsent_bytes() <= QUEUED_BYTES_MAX
            && let Some(mut input) = self.input.take()
        {
            if input.len() < self.receive_bytes {
                input = AlignedBuf::stale(self.receive_bytes);
            }
            reactor.recv(&self.socket, input, Want::Any, self.receive);
        }
    }

    /// Takes the end of a receive. The caller then takes messages with
    /// [`WireSocket::next_message`].
    pub(crate) fn received(&mut self, event: Event) -> Result<(), Broken> {
        let count = event.result?;
        let Payload::Buffer(input) = event.payload else { return Err(Broken::Closed) };
        if count == 0 {
            return Err(Broken::Closed);
        }
        self.input = Some(input);
        self.undecoded = 0..count as usize;
        Ok(())
    }

    /// The next message from the received bytes; `None` if it is incomplete or waits for room.
    pub(crate) fn next_message(&mut self) -> Result<Option<M>, Broken> {
        let Some(input) = &self.input else { return Ok(None) };
        let mut bytes = &input[self.undecoded.clone()];
        let message = self.decoder.feed(&mut bytes)?;
        self.undecoded.start = self.undecoded.end - bytes.len();
        Ok(message)
    }

    /// Takes the end of a send.
    pub(crate) fn sent(&mut self, event: Event) -> Result<(), Broken> {
        self.sending_bytes = 0;
        event.result?;
        Ok(())
    }

    /// Closes the connection. Events of operations in flight still come.
    pub(crate) fn close(self, reactor: &mut Reactor) {
        reactor.close(self.socket);
    }
}

/// Cuts a gather list after its first `max_bytes`, and returns the rest.
pub(crate) fn split_after(parts: &mut Vec<Bytes>, max_bytes: usize) -> Vec<Bytes> {
    let mut left = max_bytes;
    let Some(at) = parts.iter().position(|part| match left.checked_sub(part.len()) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    }) else {
        return Vec::new();
    };
    let mut rest = parts.split_off(at);
    if left > 0 {
        parts.push(rest[0].split_to(left));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_list_is_cut_where_it_shall_be(
            lens in proptest::collection::vec(0usize..50, 0..20),
            max_bytes in 0usize..600,
        ) {
            let mut byte = 0u8;
            let mut parts: Vec<Bytes> = lens.iter().map(|len| {
                (0..*len).map(|_| { byte = byte.wrapping_add(1); byte }).collect()
            }).collect();
            let whole = parts.concat();
            let rest = split_after(&mut parts, max_bytes);
            prop_assert_eq!(parts.concat().len(), whole.len().min(max_bytes));
            prop_assert_eq!([parts.concat(), rest.concat()].concat(), whole);
        }
    }
}
