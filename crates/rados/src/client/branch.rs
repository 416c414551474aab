//! The links of a client that live on another core.
//!
//! A client has one name, one number and one address in its cluster, and an OSD accepts one
//! connection of them. So a client that shall use several cores divides the OSDs among them. A
//! [`Branch`] has the links to some OSDs, on a core of its own: it makes frames and reads them,
//! with their checksums and encryption. What needs the whole client stays with the client:
//! monitors, maps, tickets, and which request goes to which OSD.
//!
//! ```text
//!      client's core                                  branch's core
//!   +---------------------+     [Errand], a turn's  +-----------------+
//!   | calls, objecter     | ----------------------> | links: frames,  | <--> OSDs 1, 3
//!   | links of OSDs 0, 2  | <---------------------- | answers decoded |
//!   +---------------------+     [Report], a turn's  +-----------------+
//! ```
//!
//! # Rules
//!
//! - Errands arrive in order, and reports, too. So a `Send` belongs to the `Open` before it. If
//!   that link has broken meanwhile, the request is dropped: the objecter learns of the end from
//!   the report, and sends the request again.
//! - A report names its session. The client drops reports of a session that it has closed: the
//!   objecter hears nothing of an old connection.
//! - All links name the address of the client. A cluster that blocks the address blocks the links
//!   of all cores.
//! - Whatever a turn causes is one message to the other core, however many requests there are.
//!
//! # Bounds
//!
//! Requests on their way to a branch are requests in flight, which the objecter bounds. Reports on
//! their way to the client are bounded in bytes: a branch that has told
//! [`UNACKNOWLEDGED_BYTES_MAX`] more than the client has acknowledged takes nothing more from its
//! links, and wants no input ([`Branch::wants_input`]). So an OSD that floods the branch is held
//! back by its own connection. The client tells in an errand which reports it has handled. A
//! message is a slice of a receive buffer, and keeps the whole buffer in memory. So while many
//! bytes are not handled, short messages are copied. Then the memory is at most twice what is
//! counted. An answer counts with all bytes of its message: a faulty OSD may send data that belong
//! to no operation, and a result of one byte keeps them all.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fieldstone_crush::OsdId;

use super::Action;
use super::links::{LinkId, Links, Opening, Peer, PeerEvent};
use crate::Nanos;
use crate::encoding::{DecodeError, EntityAddress};
use crate::message::osd::{OsdBackoff, OsdOp, OsdOpReply};
use crate::message::{Message, MessageKind};
use crate::msgr::{ConnectionError, ConnectionEvent};

/// Most bytes of reports that the client has not acknowledged; one report more may come. It is more
/// than the data that the objecter lets be in flight, so a client that is slow holds no honest OSD
/// back.
const UNACKNOWLEDGED_BYTES_MAX: u64 = 256 << 20;
/// The client acknowledges reports when it has taken so many bytes.
pub(super) const ACKNOWLEDGED_STEP_BYTES: u64 = 32 << 20;
/// What a report takes at least. A short message is a slice of a receive buffer, and keeps it.
const REPORT_BYTES_MIN: u64 = 64 << 10;
/// While so many bytes of reports are not handled, short parts of messages are copied: one byte
/// that is kept keeps a whole receive buffer, of up to 1 MiB.
const COPY_UNACKNOWLEDGED_BYTES: u64 = 16 << 20;
/// Shorter parts are copied.
const COPY_BYTES_MAX: usize = 512 << 10;

/// Names a branch of a client, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(pub u16);

/// How much CPU time a core has used so far, at a time of its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreLoad {
    /// The time.
    pub at: Nanos,
    /// CPU time of the core's thread since its start.
    pub used: Nanos,
}

/// What a client wants of a branch. Only the two of them look inside.
#[derive(Debug)]
pub struct Errand(pub(super) ErrandKind);

#[derive(Debug)]
pub(super) enum ErrandKind {
    Open(Box<Opening>),
    Close(OsdId),
    Send(OsdId, OsdOp),
    AcknowledgeBackoff(OsdId, OsdBackoff),
    /// Report the load of the core.
    Measure,
    /// The client has acknowledged reports of so many bytes.
    Acknowledged(u64),
}

/// What a branch tells its client. Only the two of them look inside.
#[derive(Debug)]
pub struct Report {
    pub(super) kind: ReportKind,
    /// What it takes of the bytes that the client may leave unacknowledged.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) enum ReportKind {
    /// An event of the link of this session, but no answer to a request.
    Link { osd: OsdId, session: u64, event: ConnectionEvent },
    /// The answer to the request of this number.
    Replied { osd: OsdId, session: u64, tid: u64, reply: Result<OsdOpReply, DecodeError> },
    /// The load of the branch's core.
    Load(CoreLoad),
}

impl Report {
    /// A report made of a message of so many bytes; 0 if there was none.
    fn new(kind: ReportKind, message_bytes: u64) -> Self {
        let bytes = match &kind {
            ReportKind::Link { .. } | ReportKind::Replied { .. } => {
                REPORT_BYTES_MIN.saturating_add(message_bytes)
            }
            ReportKind::Load(_) => 0,
        };
        Self { kind, bytes }
    }
}

/// The short parts of a message get memory of their own.
fn copy_short_parts(message: &mut Message) {
    let parts = [&mut message.front, &mut message.middle].into_iter().chain(&mut message.data);
    for part in parts.filter(|part| part.len() < COPY_BYTES_MAX) {
        *part = Bytes::copy_from_slice(part);
    }
}

fn message_bytes(message: &Message) -> u64 {
    let data: usize = message.data.iter().map(Bytes::len).sum();
    (message.front.len() + message.middle.len() + data) as u64
}

/// The links of a client on a core. The owner treats it like a [`Client`](super::Client): bytes and
/// errands go in, it [runs](Branch::run), and actions, bytes and reports come out.
pub struct Branch {
    links: Links,
    /// The session of each link.
    sessions: BTreeMap<OsdId, u64>,
    errands: VecDeque<Errand>,
    reports: Vec<Report>,
    actions: VecDeque<Action>,
    measures: bool,
    /// Bytes of reports that the client has not acknowledged.
    unacknowledged_bytes: u64,
}

impl Default for Branch {
    fn default() -> Self {
        Self {
            // Numbers and addresses come with each opening, from the client.
            links: Links::new(0, EntityAddress::default()),
            sessions: BTreeMap::new(),
            errands: VecDeque::new(),
            reports: Vec::new(),
            actions: VecDeque::new(),
            measures: false,
            unacknowledged_bytes: 0,
        }
    }
}

impl Branch {
    /// Takes what the client wants. It is done in [`Branch::run`].
    pub fn take(&mut self, errands: Vec<Errand>) {
        self.errands.extend(errands);
    }

    /// Bytes arrived on a link.
    pub fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos) {
        self.links.received(link, bytes, now);
    }

    /// The transport of a link broke, or could not be made. The owner has closed it.
    pub fn broken(&mut self, link: LinkId, why: String) {
        self.links.broken(link, why);
    }

    /// Does the errands, handles what has arrived, and does what is due. True if there was anything
    /// to do.
    pub fn run(&mut self, now: Nanos) -> bool {
        let mut did = false;
        if self.links.deadline().is_some_and(|deadline| deadline <= now) {
            self.links.tick(now);
            did = true;
        }
        while let Some(Errand(errand)) = self.errands.pop_front() {
            did = true;
            self.do_errand(errand, now);
        }
        while self.wants_input()
            && let Some(PeerEvent { peer, event }) = self.links.poll_event()
        {
            did = true;
            if let Peer::Osd(osd) = peer {
                self.hear(osd, event);
            }
        }
        did
    }

    fn do_errand(&mut self, errand: ErrandKind, now: Nanos) {
        match errand {
            ErrandKind::Open(opening) => self.open(*opening, now),
            ErrandKind::Close(osd) => self.close(osd),
            ErrandKind::Send(osd, op) => {
                let peer = Peer::Osd(osd);
                if self.links.has(peer) {
                    self.links.send(peer, op.encode(self.links.features(peer)));
                }
            }
            ErrandKind::AcknowledgeBackoff(osd, backoff) => {
                let peer = Peer::Osd(osd);
                self.links.send(peer, backoff.encode(self.links.features(peer)));
            }
            ErrandKind::Measure => self.measures = true,
            ErrandKind::Acknowledged(bytes) => {
                self.unacknowledged_bytes = self.unacknowledged_bytes.saturating_sub(bytes);
            }
        }
    }

    fn open(&mut self, opening: Opening, now: Nanos) {
        let (osd, session) = (opening.osd, opening.global_seq);
        self.close(osd);
        self.sessions.insert(osd, session);
        match self.links.open_osd(opening, now) {
            Some((link, socket)) => self.actions.push_back(Action::Connect(link, socket)),
            None => {
                let why = "the core has too many connections".to_owned();
                self.report(osd, ConnectionEvent::Closed(ConnectionError::Transport(why)));
                self.sessions.remove(&osd);
            }
        }
    }

    fn close(&mut self, osd: OsdId) {
        self.sessions.remove(&osd);
        if let Some(link) = self.links.close(Peer::Osd(osd)) {
            self.actions.push_back(Action::Close(link));
        }
    }

    fn hear(&mut self, osd: OsdId, mut event: ConnectionEvent) {
        if self.unacknowledged_bytes >= COPY_UNACKNOWLEDGED_BYTES
            && let ConnectionEvent::Message(message) = &mut event
        {
            copy_short_parts(message);
        }
        match event {
            ConnectionEvent::Message(message) if message.kind == MessageKind::OsdOpReply as u16 => {
                if let Some(&session) = self.sessions.get(&osd) {
                    let (tid, reply) = (message.tid, OsdOpReply::decode(&message));
                    let kind = ReportKind::Replied { osd, session, tid, reply };
                    self.tell(kind, message_bytes(&message));
                }
            }
            ConnectionEvent::Ready { features, .. } => {
                self.links.ready(Peer::Osd(osd), features);
                self.report(osd, event);
            }
            ConnectionEvent::Closed(_) => {
                self.report(osd, event);
                self.close(osd);
            }
            ConnectionEvent::Message(_) => self.report(osd, event),
        }
    }

    fn report(&mut self, osd: OsdId, event: ConnectionEvent) {
        if let Some(&session) = self.sessions.get(&osd) {
            let bytes = match &event {
                ConnectionEvent::Message(message) => message_bytes(message),
                _ => 0,
            };
            self.tell(ReportKind::Link { osd, session, event }, bytes);
        }
    }

    fn tell(&mut self, kind: ReportKind, message_bytes: u64) {
        let report = Report::new(kind, message_bytes);
        self.unacknowledged_bytes = self.unacknowledged_bytes.saturating_add(report.bytes);
        self.reports.push(report);
    }

    /// False while the client has too much to hear: then the owner receives no more bytes for the
    /// links. Those that it is receiving already are taken.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.unacknowledged_bytes < UNACKNOWLEDGED_BYTES_MAX
    }

    /// Reports the load of this core, if the client has asked. `used` gives the CPU time that the
    /// core's thread has used.
    pub fn measure(&mut self, now: Nanos, used: impl FnOnce() -> Nanos) {
        if std::mem::take(&mut self.measures) {
            let load = CoreLoad { at: now, used: used() };
            self.tell(ReportKind::Load(load), 0);
        }
    }

    /// What the client has to hear. The owner takes it once in a turn, at the end.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// The next thing for the owner to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Gives the bytes to send, link by link. `parts` is a buffer to use; `send` takes its content.
    pub fn outgoing(&mut self, parts: &mut Vec<Bytes>, send: impl FnMut(LinkId, &mut Vec<Bytes>)) {
        self.links.outgoing(parts, send);
    }

    /// When to [run](Self::run) the branch even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.links.deadline()
    }

    /// The number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests;
