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
//! Bounds: requests on their way to a branch are requests in flight, which the objecter bounds.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fieldstone_crush::OsdId;

use super::Action;
use super::links::{LinkId, Links, Opening, Peer, PeerEvent};
use crate::Nanos;
use crate::encoding::{DecodeError, EntityAddress};
use crate::message::MessageKind;
use crate::message::osd::{OsdBackoff, OsdOp, OsdOpReply};
use crate::msgr::{ConnectionError, ConnectionEvent};

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
}

/// What a branch tells its client. Only the two of them look inside.
#[derive(Debug)]
pub struct Report(pub(super) ReportKind);

#[derive(Debug)]
pub(super) enum ReportKind {
    /// An event of the link of this session, but no answer to a request.
    Link { osd: OsdId, session: u64, event: ConnectionEvent },
    /// The answer to the request of this number.
    Replied { osd: OsdId, session: u64, tid: u64, reply: Result<OsdOpReply, DecodeError> },
    /// The load of the branch's core.
    Load(CoreLoad),
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
        while let Some(PeerEvent { peer, event }) = self.links.poll_event() {
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

    fn hear(&mut self, osd: OsdId, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Message(message) if message.kind == MessageKind::OsdOpReply as u16 => {
                if let Some(&session) = self.sessions.get(&osd) {
                    let (tid, reply) = (message.tid, OsdOpReply::decode(&message));
                    self.reports.push(Report(ReportKind::Replied { osd, session, tid, reply }));
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
            self.reports.push(Report(ReportKind::Link { osd, session, event }));
        }
    }

    /// Reports the load of this core, if the client has asked. `used` gives the CPU time that the
    /// core's thread has used.
    pub fn measure(&mut self, now: Nanos, used: impl FnOnce() -> Nanos) {
        if std::mem::take(&mut self.measures) {
            let load = CoreLoad { at: now, used: used() };
            self.reports.push(Report(ReportKind::Load(load)));
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
