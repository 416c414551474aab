//! Connections in bytes: messenger and authentication around a [`WireCluster`].
//!
//! The owner accepts a connection for a server, hands in the bytes that the client sends, and sends
//! the bytes that come out. A connection that has failed is closed, and its session with it.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_rados::Nanos;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::encoding::{Addresses, EntityAddress, EntityKind, EntityName};
use fieldstone_rados::message::monitor::{Auth, AuthReply};
use fieldstone_rados::message::{Message, MessageKind};
use fieldstone_rados::msgr::{Connection, ConnectionEvent, ServerOptions};

use super::{Server, SessionId, WireCluster};
use crate::objects::Caller;

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

struct Link {
    connection: Connection,
    server: Server,
    session: Option<SessionId>,
}

/// Changes messages of servers before they are sent.
pub type Tamper = Box<dyn FnMut(&mut Message)>;

/// All connections of a cluster.
pub struct Links {
    cluster: WireCluster,
    keys: KeyServer,
    features: u64,
    links: BTreeMap<LinkId, Link>,
    of_session: BTreeMap<SessionId, LinkId>,
    newest: u64,
    duplicates: u32,
    tamper: Option<Tamper>,
}

impl Links {
    /// No connections yet. `features` are those of the servers.
    #[must_use]
    pub fn new(cluster: WireCluster, keys: KeyServer, features: u64) -> Self {
        let (links, of_session) = (BTreeMap::new(), BTreeMap::new());
        Self { cluster, keys, features, links, of_session, newest: 0, duplicates: 0, tamper: None }
    }

    /// The servers behind the connections. Call [`Links::flush`] after a change.
    pub fn cluster(&mut self) -> &mut WireCluster {
        &mut self.cluster
    }

    /// Sends the next answers of OSDs twice.
    pub fn duplicate_replies(&mut self, count: u32) {
        self.duplicates = count;
    }

    /// From now on the servers are hostile: `tamper` may change each message that they send,
    /// renewed tickets left out.
    pub fn tamper_with(&mut self, tamper: Tamper) {
        self.tamper = Some(tamper);
    }

    /// A client connects to a server at one of its addresses.
    pub fn accept(&mut self, server: Server, addresses: Addresses, now: Nanos) -> LinkId {
        self.newest += 1;
        let id = LinkId(self.newest);
        let (kind, number) = match server {
            Server::Monitor(rank) => (EntityKind::Monitor, rank),
            Server::Osd(osd) => (EntityKind::Osd, osd),
        };
        let auth = match server {
            Server::Monitor(_) => self.keys.monitor_auth(),
            Server::Osd(_) => self.keys.service_auth(EntityKind::Osd),
        };
        let options = ServerOptions {
            own_name: EntityName { kind, number: number.into() },
            own_addresses: addresses,
            features: self.features,
            cookie: self.newest,
            auth,
        };
        let connection = Connection::server(options, now);
        self.links.insert(id, Link { connection, server, session: None });
        id
    }

    /// Bytes have come from a client.
    pub fn received(&mut self, id: LinkId, bytes: Bytes, now: Nanos) {
        if let Some(link) = self.links.get_mut(&id) {
            link.connection.received(bytes, now);
        }
        self.handle_events(id, now);
        self.flush();
    }

    /// Appends the bytes to send to a client. Returns false if the connection is closed.
    pub fn take_output(&mut self, id: LinkId, output: &mut Vec<Bytes>) -> bool {
        let Some(link) = self.links.get_mut(&id) else { return false };
        link.connection.take_output(output);
        true
    }

    /// The transport has ended.
    pub fn lost(&mut self, id: LinkId, now: Nanos) {
        if let Some(link) = self.links.get_mut(&id) {
            link.connection.transport_lost("the client has closed it".to_owned());
        }
        self.handle_events(id, now);
    }

    /// Ends what has reached its time.
    pub fn tick(&mut self, now: Nanos) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for id in links {
            if let Some(link) = self.links.get_mut(&id) {
                link.connection.tick(now);
            }
            self.handle_events(id, now);
        }
        self.cluster.tick(now);
        self.flush();
    }

    /// Hands the servers' messages to the connections.
    pub fn flush(&mut self) {
        while let Some((session, mut message)) = self.cluster.poll_output() {
            if let Some(tamper) = &mut self.tamper {
                tamper(&mut message);
            }
            let link = self.of_session.get(&session).and_then(|id| self.links.get_mut(id));
            let Some(link) = link else { continue };
            if self.duplicates > 0 && message.kind == MessageKind::OsdOpReply as u16 {
                self.duplicates -= 1;
                link.connection.send(message.clone());
            }
            link.connection.send(message);
        }
    }

    fn handle_events(&mut self, id: LinkId, now: Nanos) {
        while let Some(event) =
            self.links.get_mut(&id).and_then(|link| link.connection.poll_event())
        {
            match event {
                ConnectionEvent::Ready { peer, features, .. } => self.ready(id, peer, features),
                ConnectionEvent::Message(message) => self.message(id, &message, now),
                ConnectionEvent::Closed(_) => {
                    let link = self.links.remove(&id);
                    if let Some(session) = link.and_then(|link| link.session) {
                        self.of_session.remove(&session);
                        self.cluster.disconnected(session, now);
                    }
                }
            }
        }
    }

    fn ready(&mut self, id: LinkId, peer: EntityName, features: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let address: EntityAddress =
            link.connection.peer_addresses().0.first().copied().unwrap_or_default();
        let caller = Caller { client: u64::try_from(peer.number).unwrap_or(0), address };
        let session = self.cluster.connected(link.server, caller, features);
        link.session = Some(session);
        self.of_session.insert(session, id);
    }

    fn message(&mut self, id: LinkId, message: &Message, now: Nanos) {
        let Some(session) = self.links.get(&id).and_then(|link| link.session) else { return };
        if message.kind == MessageKind::Auth as u16 {
            return self.renew(id, session, message);
        }
        self.cluster.receive(session, message, now);
    }

    /// Tickets run out; a client asks its monitor for new ones.
    fn renew(&mut self, id: LinkId, session: SessionId, message: &Message) {
        let Ok(auth) = Auth::decode(message) else { return };
        let Some(client) = self.cluster.client_of(session) else { return };
        let (result, payload) = self.keys.renew(client, auth.payload);
        let reply = AuthReply {
            method: auth.method,
            result,
            global_id: client,
            payload,
            status: String::new(),
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.connection.send(reply.encode());
        }
    }
}
