//! The state machine of a connection.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;

use super::header::{HEADER_BYTES, Header};
use super::life::{Due, Life};
use super::payload;
use super::reader::{Frame, FrameReader};
use super::tag::Tag;
use super::writer::FrameWriter;
use super::{
    ClientOptions, ConnectionError, ConnectionEvent, MAX_FRAME_BYTES, MAX_HANDSHAKE_BYTES,
    ServerOptions, banner,
};
use crate::Nanos;
use crate::auth::Mode;
use crate::encoding::{Addresses, Decoder, Encoder, EntityKind, EntityName, Time};
use crate::message::Message;

/// One end of a connection. Its owner moves bytes between it and a transport:
///
/// * [`Connection::received`] takes bytes, [`Connection::take_output`] gives bytes;
/// * [`Connection::poll_event`] says what happened, until it gives nothing;
/// * [`Connection::tick`] has to be called when [`Connection::deadline`] is reached. The deadline
///   may change with each call of another method.
///
/// After each call there may be output and events.
pub struct Connection {
    pub(super) role: Role,
    pub(super) step: Step,
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    pub(super) peer: EntityName,
    pub(super) peer_addresses: Addresses,
    pub(super) auth: AuthState,
    pub(super) life: Life,
    pub(super) events: VecDeque<ConnectionEvent>,
    /// Messages that wait for the handshake, or for the next output.
    queue: VecDeque<Message>,
    /// The peer's keepalive frame that is not answered yet. Only the last one matters.
    keepalive_to_answer: Option<Time>,
    received_seq: u64,
    sent_seq: u64,
}

/// Which end this is.
pub(super) enum Role {
    Client(ClientOptions),
    Server(ServerOptions),
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Waits for the prefix of the banner.
    Banner,
    /// Waits for the rest of the banner, of this length.
    BannerRest(usize),
    Hello,
    Auth,
    /// A server waits for more from its client.
    AuthMore,
    Signature,
    Ident,
    Ready,
    Closed,
}

/// What authentication leaves for the steps after it.
#[derive(Default)]
pub(super) struct AuthState {
    /// Messages of authentication that this party received.
    pub(super) rounds: usize,
    /// The method of a client's request.
    pub(super) method: u32,
    /// The modes that this client offered.
    pub(super) offered: Vec<Mode>,
    pub(super) global_id: u64,
    pub(super) session_key: Vec<u8>,
    /// What this party sent up to the end of authentication. The peer's signature covers it.
    pub(super) sent: Vec<u8>,
    /// How the peer sees this party, as it says in its `HELLO`.
    pub(super) seen_as: Option<crate::encoding::EntityAddress>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// The client's end. It has output at once.
    #[must_use]
    pub fn client(options: ClientOptions, now: Nanos) -> Self {
        let (peer, addresses) = (options.peer, options.peer_addresses.clone());
        Self::new(Role::Client(options), peer, addresses, now)
    }

    /// The server's end. It has output at once.
    #[must_use]
    pub fn server(options: ServerOptions, now: Nanos) -> Self {
        let peer = EntityName { kind: EntityKind::Client, number: -1 };
        Self::new(Role::Server(options), peer, Addresses::default(), now)
    }

    fn new(role: Role, peer: EntityName, peer_addresses: Addresses, now: Nanos) -> Self {
        let mut writer = FrameWriter::new();
        writer.raw(&banner::encode());
        Self {
            role,
            step: Step::Banner,
            reader: FrameReader::new(),
            writer,
            peer,
            peer_addresses,
            auth: AuthState::default(),
            life: Life::new(now),
            events: VecDeque::new(),
            queue: VecDeque::new(),
            keepalive_to_answer: None,
            received_seq: 0,
            sent_seq: 0,
        }
    }

    /// Takes bytes from the transport. Messages that lie whole within `bytes` share its memory.
    pub fn received(&mut self, bytes: Bytes, now: Nanos) {
        if self.step == Step::Closed || bytes.is_empty() {
            return;
        }
        self.life.received(now);
        self.reader.input.push(bytes);
        if let Err(error) = self.advance(now) {
            self.fail(error);
        }
    }

    /// Sends a message, as soon as the handshake is over. Messages leave in this order.
    ///
    /// The owner bounds the number of messages that wait. A message that is, with its header,
    /// longer than [`MAX_FRAME_BYTES`] closes the connection. A closed connection drops messages.
    pub fn send(&mut self, message: Message) {
        let (front, middle) = (message.front.len(), message.middle.len());
        let parts = [HEADER_BYTES, front, middle, message.data_bytes()];
        let bytes: u64 = parts.iter().map(|&len| len as u64).sum();
        if self.step == Step::Closed {
        } else if bytes > MAX_FRAME_BYTES {
            let what = format!("a message of {bytes} bytes is too long to be sent");
            self.fail(ConnectionError::Protocol(what));
        } else {
            self.queue.push_back(message);
        }
    }

    /// Appends the bytes that have to be sent now to `output`.
    ///
    /// In mode crc the data of messages comes as the same `Bytes` that the messages have.
    pub fn take_output(&mut self, output: &mut Vec<Bytes>) {
        if self.step == Step::Ready {
            if let Some(time) = self.keepalive_to_answer.take() {
                self.keepalive_frame(Tag::Keepalive2Ack, time);
            }
            while let Some(message) = self.queue.pop_front() {
                self.sent_seq += 1;
                let header = Header::of(&message, self.sent_seq, self.received_seq);
                self.writer.message(&header.encode(), &message);
            }
        }
        self.writer.take(output);
    }

    /// True if [`Connection::take_output`] has something to give.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let ready = self.step == Step::Ready;
        let waits = self.keepalive_to_answer.is_some() || !self.queue.is_empty();
        (ready && waits) || !self.writer.is_empty()
    }

    /// What happened, in order. [`ConnectionEvent::Closed`] is the last event.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// Does what the time demands.
    pub fn tick(&mut self, now: Nanos) {
        if self.step == Step::Closed {
            return;
        }
        match self.life.tick(now) {
            Due::Nothing => {}
            Due::Keepalive => {
                let seconds = u32::try_from(now.0 / 1_000_000_000).unwrap_or(u32::MAX);
                let nanos = (now.0 % 1_000_000_000) as u32;
                self.keepalive_frame(Tag::Keepalive2, Time { seconds, nanos });
            }
            Due::Dead(ms) => self.fail(ConnectionError::Silent(ms)),
        }
    }

    /// When [`Connection::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        if self.step == Step::Closed { None } else { self.life.deadline() }
    }

    /// True if messages can flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.step == Step::Ready
    }

    /// True after the end of the connection, whatever its reason.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.step == Step::Closed
    }

    /// The client uses this connection from now on: what the peer gave in authentication becomes
    /// what all its connections share ([`crate::auth::ClientAuth::commit`]). Once the connection is
    /// ready.
    pub fn commit_auth(&mut self) {
        if let Role::Client(options) = &mut self.role {
            options.auth.commit();
        }
    }

    /// The addresses of the peer: those that a client was told, and of a server's client those that
    /// it names when the connection gets ready.
    #[must_use]
    pub fn peer_addresses(&self) -> &Addresses {
        &self.peer_addresses
    }

    /// The transport broke, or reached its end.
    pub fn transport_lost(&mut self, reason: String) {
        if self.step != Step::Closed {
            self.fail(ConnectionError::Transport(reason));
        }
    }

    /// The owner wants no more of the connection: drops output and events, and makes no new ones.
    pub fn close(&mut self) {
        self.shut();
        self.events.clear();
    }

    fn fail(&mut self, error: ConnectionError) {
        self.shut();
        self.events.push_back(ConnectionEvent::Closed(error));
    }

    fn shut(&mut self) {
        self.step = Step::Closed;
        self.reader = FrameReader::new();
        self.writer.clear();
        self.queue = VecDeque::new();
        self.keepalive_to_answer = None;
        self.auth = AuthState::default();
    }

    /// Handles all frames that are there.
    fn advance(&mut self, now: Nanos) -> Result<(), ConnectionError> {
        loop {
            let goes_on = match self.step {
                Step::Closed => false,
                Step::Banner => match self.reader.input.take_array() {
                    Some(prefix) => {
                        self.step = Step::BannerRest(banner::rest_bytes(prefix)?);
                        true
                    }
                    None => false,
                },
                Step::BannerRest(len) => match self.reader.input.take(len) {
                    Some(rest) => {
                        banner::check(&rest)?;
                        self.say_hello();
                        true
                    }
                    None => false,
                },
                Step::Ready => match self.reader.next()? {
                    Some(frame) => {
                        self.ready_frame(frame)?;
                        true
                    }
                    None => false,
                },
                _ => match self.reader.next()? {
                    Some(frame) => {
                        self.handshake_frame(frame, now)?;
                        self.check_record()?;
                        true
                    }
                    None => false,
                },
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// A handshake that does not end would grow its record.
    fn check_record(&self) -> Result<(), ConnectionError> {
        let recorded = self.reader.input.record.as_ref().map_or(0, Vec::len);
        if recorded > MAX_HANDSHAKE_BYTES {
            return Err(ConnectionError::Protocol("its handshake is too long".into()));
        }
        Ok(())
    }

    fn ready_frame(&mut self, frame: Frame) -> Result<(), ConnectionError> {
        let Frame { tag, segments } = frame;
        let [first, front, middle, data] = segments;
        match tag {
            Tag::Message => self.message(&first, front, middle, data)?,
            Tag::Keepalive2 => {
                self.keepalive_to_answer = Some(Time::decode(&mut Decoder::new(first))?);
            }
            Tag::Keepalive2Ack => {
                Time::decode(&mut Decoder::new(first))?;
            }
            // Both ends are lossy: neither keeps what it sent.
            Tag::Ack => {
                payload::decode_number(first, "an acknowledged sequence number")?;
            }
            tag => return Err(unexpected(tag, self.step)),
        }
        Ok(())
    }

    fn message(
        &mut self,
        header: &[u8],
        front: Bytes,
        middle: Bytes,
        data: Bytes,
    ) -> Result<(), ConnectionError> {
        let header = Header::decode(header)?;
        if header.seq <= self.received_seq {
            let (seq, last) = (header.seq, self.received_seq);
            let what = format!("message {seq} comes after message {last}");
            return Err(ConnectionError::Protocol(what));
        }
        self.received_seq = header.seq;
        let Header { tid, kind, priority, version, compat_version, .. } = header;
        let data = if data.is_empty() { [].into_iter().collect() } else { [data].into() };
        self.events.push_back(ConnectionEvent::Message(Message {
            kind,
            tid,
            priority,
            version,
            compat_version,
            front,
            middle,
            data,
        }));
        Ok(())
    }

    fn keepalive_frame(&mut self, tag: Tag, time: Time) {
        let mut payload = Encoder::with_capacity(8);
        time.encode(&mut payload);
        self.writer.control(tag, &payload.finish());
    }
}

pub(super) fn unexpected(tag: Tag, step: Step) -> ConnectionError {
    ConnectionError::Protocol(format!("a frame {tag} comes at step {step:?}"))
}
