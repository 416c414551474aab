//! A socket that carries messages of the `proto::wire` format: what both ends of a connection to a
//! node share.
//!
//! At most one receive and one send are in flight. Messages that are queued while a send is under
//! way leave together in the next one. The receive buffer is one for the life of the connection.
//!
//! The owner gives each connection a token of its own for receives and for sends, so that events of
//! a connection that was closed never reach its successor.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_proto::wire::{Decoder, Message, WireError};

use crate::{Event, Payload, Reactor, Socket, Token, Want};

/// Size of the receive buffer.
const RECEIVE_BYTES: usize = 256 << 10;
/// While more than this waits to be sent, nothing is received: the peer must read first.
const QUEUED_BYTES_MAX: usize = 32 << 20;

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// The system reports an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer does not keep to the format.
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// A connection that carries messages; `M` is what comes in.
pub(super) struct WireSocket<M: Message> {
    socket: Socket,
    decoder: Decoder<M>,
    input: Option<AlignedBuf>,
    out: Vec<Bytes>,
    queued_bytes: usize,
    sending_bytes: usize,
    receive: Token,
    send: Token,
}

impl<M: Message> WireSocket<M> {
    pub(super) fn new(socket: Socket, receive: Token, send: Token) -> Self {
        Self {
            socket,
            decoder: Decoder::new(),
            input: Some(AlignedBuf::zeroed(RECEIVE_BYTES)),
            out: Vec::new(),
            queued_bytes: 0,
            sending_bytes: 0,
            receive,
            send,
        }
    }

    /// Queues an encoded message.
    pub(super) fn push(&mut self, parts: Vec<Bytes>) {
        self.queued_bytes += parts.iter().map(Bytes::len).sum::<usize>();
        self.out.extend(parts);
    }

    /// Starts what can be started.
    pub(super) fn start_io(&mut self, reactor: &mut Reactor) {
        if self.sending_bytes == 0 && !self.out.is_empty() {
            self.sending_bytes = std::mem::take(&mut self.queued_bytes);
            reactor.send(&self.socket, std::mem::take(&mut self.out), self.send);
        }
        if self.queued_bytes + self.sending_bytes <= QUEUED_BYTES_MAX
            && let Some(input) = self.input.take()
        {
            reactor.recv(&self.socket, input, Want::Any, self.receive);
        }
    }

    /// A receive came back; messages go to `each`.
    pub(super) fn received(&mut self, event: Event, mut each: impl FnMut(M)) -> Result<(), Broken> {
        let count = event.result?;
        let Payload::Buffer(input) = event.payload else { return Err(Broken::Closed) };
        if count == 0 {
            return Err(Broken::Closed);
        }
        let mut bytes = &input[..count as usize];
        while let Some(message) = self.decoder.feed(&mut bytes)? {
            each(message);
        }
        self.input = Some(input);
        Ok(())
    }

    /// A send came back.
    pub(super) fn sent(&mut self, event: Event) -> Result<(), Broken> {
        self.sending_bytes = 0;
        event.result?;
        Ok(())
    }

    /// Ends the connection; events of what was in flight still come.
    pub(super) fn close(self, reactor: &mut Reactor) {
        reactor.close(self.socket);
    }
}
