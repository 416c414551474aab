//! The links of a client: each is a connection to a monitor or an OSD.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use fieldstone_crush::OsdId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slab::Slab;

use crate::Nanos;
use crate::auth::ClientAuth;
use crate::encoding::{Addresses, EntityAddress, EntityKind, EntityName};
use crate::message::Message;
use crate::message::features::SUPPORTED;
use crate::monitors::MonitorSession;
use crate::msgr::ClientOptions as ConnectionOptions;
use crate::msgr::{Connection, ConnectionEvent};

/// The most links at a time. Objecter and monitors have lower bounds of their own.
const LINKS_MAX: usize = 1 << 15;

/// Names a link. A number is used again after the link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// The party at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Peer {
    Monitor(MonitorSession),
    Osd(OsdId),
}

/// An event of a link that is in use.
#[derive(Debug)]
pub(super) struct PeerEvent {
    pub(super) peer: Peer,
    pub(super) event: ConnectionEvent,
}

struct Link {
    peer: Peer,
    connection: Connection,
    /// The features that both parties have; 0 before the connection is ready.
    features: u64,
    /// The owner has closed the transport.
    is_broken: bool,
}

/// What a link to an OSD needs to be opened, on this core or another.
pub(super) struct Opening {
    pub(super) osd: OsdId,
    pub(super) addresses: Addresses,
    own_address: EntityAddress,
    own_name: EntityName,
    /// Also the number of the session.
    pub(super) global_seq: u64,
    cookie: u64,
    auth: Box<dyn ClientAuth + Send>,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opening(osd.{}, session {})", self.osd.0, self.global_seq)
    }
}

pub(super) struct Links {
    links: Slab<Link>,
    by_peer: BTreeMap<Peer, LinkId>,
    /// Links that may have events, and links that may have output.
    with_events: BTreeSet<LinkId>,
    with_output: BTreeSet<LinkId>,
    deadline: Option<Nanos>,
    rng: ChaCha8Rng,
    own_address: EntityAddress,
    global_seq: u64,
}

impl Links {
    pub(super) fn new(seed: u64, own_address: EntityAddress) -> Self {
        Self {
            links: Slab::new(),
            by_peer: BTreeMap::new(),
            with_events: BTreeSet::new(),
            with_output: BTreeSet::new(),
            deadline: None,
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x006c_696e_6b73),
            own_address,
            global_seq: 0,
        }
    }

    /// Opens a link to a monitor; there is none to it. `None` if the monitor has no address for
    /// messenger 2, or there are too many links.
    pub(super) fn open_monitor(
        &mut self,
        session: MonitorSession,
        (peer_name, own_name): (EntityName, EntityName),
        addresses: &Addresses,
        auth: Box<dyn ClientAuth>,
        now: Nanos,
    ) -> Option<(LinkId, SocketAddr)> {
        let (global_seq, cookie) = self.next_numbers();
        let options = ConnectionOptions {
            peer: peer_name,
            peer_addresses: addresses.clone(),
            own_address: self.own_address,
            own_name,
            global_seq,
            cookie,
            features: SUPPORTED,
            auth,
        };
        self.connect(Peer::Monitor(session), options, now)
    }

    /// What a new link to an OSD needs.
    pub(super) fn opening(
        &mut self,
        osd: OsdId,
        own_name: EntityName,
        addresses: &Addresses,
        auth: Box<dyn ClientAuth + Send>,
    ) -> Opening {
        let (global_seq, cookie) = self.next_numbers();
        let (addresses, own_address) = (addresses.clone(), self.own_address);
        Opening { osd, addresses, own_address, own_name, global_seq, cookie, auth }
    }

    /// Opens a link to an OSD; there is none to it. `None` if the OSD has no address for messenger
    /// 2, or there are too many links.
    pub(super) fn open_osd(
        &mut self,
        opening: Opening,
        now: Nanos,
    ) -> Option<(LinkId, SocketAddr)> {
        let osd = opening.osd;
        let options = ConnectionOptions {
            peer: EntityName { kind: EntityKind::Osd, number: i64::from(osd.0) },
            peer_addresses: opening.addresses,
            own_address: opening.own_address,
            own_name: opening.own_name,
            global_seq: opening.global_seq,
            cookie: opening.cookie,
            features: SUPPORTED,
            auth: opening.auth,
        };
        self.connect(Peer::Osd(osd), options, now)
    }

    fn next_numbers(&mut self) -> (u64, u64) {
        self.global_seq += 1;
        (self.global_seq, self.rng.random_range(1..u64::MAX))
    }

    fn connect(
        &mut self,
        peer: Peer,
        options: ConnectionOptions,
        now: Nanos,
    ) -> Option<(LinkId, SocketAddr)> {
        debug_assert!(!self.by_peer.contains_key(&peer), "{peer:?} has a link already");
        let socket = options.peer_addresses.msgr2()?.socket?;
        if self.links.len() >= LINKS_MAX {
            return None;
        }
        let connection = Connection::client(options, now);
        let key = self.links.insert(Link { peer, connection, features: 0, is_broken: false });
        let link = LinkId(u16::try_from(key).expect("links are bounded"));
        self.by_peer.insert(peer, link);
        self.with_output.insert(link);
        self.with_events.insert(link);
        self.note_deadline(link);
        Some((link, socket))
    }

    /// This client's address.
    pub(super) fn own_address(&self) -> EntityAddress {
        self.own_address
    }

    /// The first peer has told this client its address. All later connections name this one, also
    /// to peers that see another: the cluster blocks a client by the address that the client names,
    /// and has to block all of its connections.
    pub(super) fn learn_address(&mut self, seen: IpAddr) {
        let is_known = self.own_address.socket.is_some_and(|own| !own.ip().is_unspecified());
        if !is_known {
            self.own_address.socket = Some(SocketAddr::new(seen, 0));
        }
    }

    fn note_deadline(&mut self, link: LinkId) {
        let deadline = self.links.get(link.0.into()).and_then(|link| link.connection.deadline());
        self.deadline = [self.deadline, deadline].into_iter().flatten().min();
    }

    pub(super) fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos) {
        if let Some(state) = self.links.get_mut(link.0.into()) {
            state.connection.received(bytes, now);
            self.with_events.insert(link);
            self.with_output.insert(link);
            self.note_deadline(link);
        }
    }

    pub(super) fn broken(&mut self, link: LinkId, why: String) {
        if let Some(state) = self.links.get_mut(link.0.into()) {
            state.is_broken = true;
            state.connection.transport_lost(why);
            self.with_events.insert(link);
        }
    }

    /// The connection to a peer is ready, and both parties have these features.
    pub(super) fn ready(&mut self, peer: Peer, features: u64) {
        if let Some(&link) = self.by_peer.get(&peer)
            && let Some(state) = self.links.get_mut(link.0.into())
        {
            state.features = features;
        }
    }

    /// The features of the connection to a peer; 0 without a ready connection. Messages are encoded
    /// for them: Ceph 18 drops a request in the encoding of Ceph 19.
    pub(super) fn features(&self, peer: Peer) -> u64 {
        let link = self.by_peer.get(&peer).and_then(|link| self.links.get(link.0.into()));
        link.map_or(0, |link| link.features)
    }

    /// True if there is a link to this peer.
    pub(super) fn has(&self, peer: Peer) -> bool {
        self.by_peer.contains_key(&peer)
    }

    /// Queues a message. It is lost if there is no link.
    pub(super) fn send(&mut self, peer: Peer, message: Message) {
        if let Some(&link) = self.by_peer.get(&peer)
            && let Some(state) = self.links.get_mut(link.0.into())
        {
            state.connection.send(message);
            self.with_output.insert(link);
            // A message that is too long ends the connection.
            self.with_events.insert(link);
        }
    }

    /// What a peer gave in authentication counts from now on.
    pub(super) fn commit_auth(&mut self, peer: Peer) {
        if let Some(&link) = self.by_peer.get(&peer)
            && let Some(state) = self.links.get_mut(link.0.into())
        {
            state.connection.commit_auth();
        }
    }

    /// The next event of any link.
    pub(super) fn poll_event(&mut self) -> Option<PeerEvent> {
        while let Some(&link) = self.with_events.first() {
            if let Some(state) = self.links.get_mut(link.0.into())
                && let Some(event) = state.connection.poll_event()
            {
                return Some(PeerEvent { peer: state.peer, event });
            }
            self.with_events.remove(&link);
        }
        None
    }

    /// Drops a link. Gives it if the owner has to close its transport.
    pub(super) fn close(&mut self, peer: Peer) -> Option<LinkId> {
        let link = self.by_peer.remove(&peer)?;
        self.with_events.remove(&link);
        self.with_output.remove(&link);
        let state = self.links.try_remove(link.0.into())?;
        (!state.is_broken).then_some(link)
    }

    /// Drops all links. Gives those whose transport the owner has to close.
    pub(super) fn close_all(&mut self) -> Vec<LinkId> {
        let peers: Vec<Peer> = self.by_peer.keys().copied().collect();
        peers.into_iter().filter_map(|peer| self.close(peer)).collect()
    }

    pub(super) fn outgoing(
        &mut self,
        parts: &mut Vec<Bytes>,
        mut send: impl FnMut(LinkId, &mut Vec<Bytes>),
    ) {
        for link in std::mem::take(&mut self.with_output) {
            let Some(state) = self.links.get_mut(link.0.into()) else { continue };
            state.connection.take_output(parts);
            if !parts.is_empty() && !state.is_broken {
                send(link, parts);
            }
            parts.clear();
        }
    }

    pub(super) fn tick(&mut self, now: Nanos) {
        for (key, state) in &mut self.links {
            if state.connection.deadline().is_some_and(|deadline| deadline <= now) {
                state.connection.tick(now);
                let link = LinkId(key as u16);
                self.with_events.insert(link);
                self.with_output.insert(link);
            }
        }
        self.deadline = self.links.iter().filter_map(|(_, s)| s.connection.deadline()).min();
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }
}
