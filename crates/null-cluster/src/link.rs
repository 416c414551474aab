//! One connection: its bytes, its socket.
//!
//! At most one receive and one send are in flight. What a turn causes leaves in one send.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_buf::AlignedBuf;
use fieldstone_cluster_model::wire::{PlainRequest, Server, SessionId, WireCluster};
use fieldstone_rados::auth::Mode;
use fieldstone_rados::message::{Message, MessageKind, PRIORITY_DEFAULT};
use fieldstone_rados::msgr::Connection;
use fieldstone_uring::{Reactor, Socket, Token, Want};

use crate::faults::Harm;
use crate::frames::{Asked, Broken, Header, Incoming, Reader, Writer};

/// Size of the first receive buffer of a link.
const RECEIVE_BYTES_MIN: usize = 64 << 10;
/// Largest size of a receive buffer.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// While more than this waits to be sent, no receive starts: the client must read first.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// How a connection's bytes are read and written.
pub(crate) enum Carrier {
    /// A handshake, a monitor, or the mode secure.
    Messenger(Box<Connection>),
    /// An OSD in mode crc.
    Frames(Box<Frames>),
}

/// Both sides of a connection in frames.
#[derive(Default)]
pub(crate) struct Frames {
    reader: Reader,
    writer: Writer,
    /// Memory for fronts.
    front: Vec<u8>,
}

/// A connection of a client.
pub(crate) struct Link {
    pub(crate) carrier: Carrier,
    pub(crate) server: Server,
    pub(crate) session: Option<SessionId>,
    /// Distinguishes this link from earlier ones with the same key.
    pub(crate) generation: u32,
    /// The mode in which the handshake has ended.
    mode: Rc<Cell<Option<Mode>>>,
    /// What goes wrong.
    harm: Option<Harm>,
    /// The connection ends when the present send has ended.
    ends: bool,
    socket: Socket,
    out: Vec<Bytes>,
    is_sending: bool,
    is_receiving: bool,
    receive_bytes: usize,
    /// The receive buffer, between two receives.
    buffer: Option<AlignedBuf>,
}

/// The tokens of a link's operations.
pub(crate) struct Tokens {
    pub(crate) send: Token,
    pub(crate) receive: Token,
    pub(crate) wake: Token,
}

impl Link {
    pub(crate) fn new(
        connection: Connection,
        mode: Rc<Cell<Option<Mode>>>,
        server: Server,
        socket: Socket,
        generation: u32,
        harm: Option<Harm>,
    ) -> Self {
        Self {
            carrier: Carrier::Messenger(Box::new(connection)),
            server,
            session: None,
            generation,
            mode,
            harm,
            ends: false,
            socket,
            out: Vec::new(),
            is_sending: false,
            is_receiving: false,
            receive_bytes: RECEIVE_BYTES_MIN,
            buffer: None,
        }
    }

    /// The messenger, unless the link has gone over to frames.
    pub(crate) fn messenger(&mut self) -> Option<&mut Connection> {
        match &mut self.carrier {
            Carrier::Messenger(connection) => Some(connection),
            Carrier::Frames(_) => None,
        }
    }

    /// The handshake has ended. In mode crc the link goes on in frames.
    pub(crate) fn go_over(&mut self) {
        if let Carrier::Messenger(connection) = &mut self.carrier
            && self.mode.get() == Some(Mode::Crc)
        {
            connection.take_output(&mut self.out);
            self.carrier = Carrier::Frames(Box::default());
        }
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: Message) {
        match &mut self.carrier {
            Carrier::Messenger(connection) => connection.send(message),
            Carrier::Frames(frames) => frames.writer.message(&message),
        }
    }

    /// Notes the end of a receive.
    fn note_received(&mut self, buffer: &AlignedBuf, count: usize) {
        self.is_receiving = false;
        // A full buffer means that more could have come at once.
        if count == buffer.len() {
            self.receive_bytes = (self.receive_bytes * 2).min(RECEIVE_BYTES_MAX);
        } else if count < self.receive_bytes / 16 {
            self.receive_bytes = (self.receive_bytes / 2).max(RECEIVE_BYTES_MIN);
        }
    }

    /// Takes the end of a receive. In frames, the requests are carried out.
    pub(crate) fn received(
        &mut self,
        mut buffer: AlignedBuf,
        count: usize,
        cluster: &mut WireCluster,
        now: Nanos,
    ) -> Result<(), Broken> {
        self.note_received(&buffer, count);
        match (&mut self.carrier, self.session, self.server) {
            (Carrier::Frames(frames), Some(session), Server::Osd(osd)) => {
                let Frames { reader, writer, front } = &mut **frames;
                let result = reader.read(&buffer[..count], |asked| match asked {
                    Asked::Keepalive(time) => writer.keepalive_answer(time),
                    Asked::Message(message) => {
                        let place = Osd { cluster: &mut *cluster, session, osd, now };
                        place.handle(&message, writer, front);
                    }
                });
                self.buffer = Some(buffer);
                result
            }
            (Carrier::Messenger(connection), ..) => {
                buffer.truncate(count);
                connection.received(buffer.freeze(), now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes the end of a send. False if the connection ends with it.
    pub(crate) fn sent(&mut self) -> bool {
        self.is_sending = false;
        !self.ends
    }

    /// Starts a send and a receive, as far as possible.
    pub(crate) fn start(&mut self, reactor: &mut Reactor, tokens: &Tokens) {
        match &mut self.carrier {
            Carrier::Messenger(connection) => connection.take_output(&mut self.out),
            Carrier::Frames(frames) => frames.writer.take(&mut self.out),
        }
        if self.ends {
            return;
        }
        if let Some(harm) = self.harm.as_mut().filter(|_| self.session.is_some()) {
            harm.pass(&mut self.out, reactor.now());
            if let Some(due) = harm.deadline() {
                reactor.timer(due, tokens.wake);
            }
        }
        if !self.is_sending && !self.out.is_empty() {
            let mut parts = std::mem::take(&mut self.out);
            if let Some(harm) = self.harm.as_mut().filter(|_| self.session.is_some()) {
                self.ends = harm.send(&mut parts);
            }
            self.is_sending = true;
            reactor.send(&self.socket, parts, tokens.send);
        }
        let queued = || self.out.iter().map(Bytes::len).sum::<usize>();
        if !self.is_receiving && (self.out.is_empty() || queued() <= QUEUED_BYTES_MAX) {
            self.is_receiving = true;
            let buffer = self.buffer.take().filter(|buffer| buffer.len() == self.receive_bytes);
            let buffer = buffer.unwrap_or_else(|| AlignedBuf::stale(self.receive_bytes));
            reactor.recv(&self.socket, buffer, Want::Any, tokens.receive);
        }
    }

    /// Closes the connection.
    pub(crate) fn close(self, reactor: &mut Reactor, wake: Token) {
        reactor.cancel_timer(wake);
        reactor.close(self.socket);
    }
}

/// An OSD to which a message has come.
struct Osd<'a> {
    cluster: &'a mut WireCluster,
    session: SessionId,
    osd: u32,
    now: Nanos,
}

impl Osd<'_> {
    fn handle(self, message: &Incoming<'_>, writer: &mut Writer, front: &mut Vec<u8>) {
        let Incoming { kind, version, tid, data, sums, .. } = message;
        if *kind == MessageKind::OsdOp as u16
            && let Some(request) = PlainRequest::read(*version, *tid, message.front, data.len())
            && let Some(answer) =
                self.cluster.plain(self.session, self.osd, &request, (data, sums), self.now)
        {
            front.clear();
            answer.encode_front(&request, front);
            let header = Header {
                tid: *tid,
                kind: MessageKind::OsdOpReply as u16,
                priority: PRIORITY_DEFAULT,
                version: answer.version(),
                compat_version: answer.compat_version(),
            };
            writer.plain(header, front, &answer.data);
        } else {
            self.cluster.receive(self.session, &message.to_message(), self.now);
        }
    }
}
