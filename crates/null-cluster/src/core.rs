//! A core: a thread with a reactor, for some of the servers.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_cluster_model::objects::Caller;
use fieldstone_cluster_model::wire::{Server, SessionId};
use fieldstone_rados::auth::none::NoneServer;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{AuthRequest, CryptoKey, Entity, Mode, ServerAnswer, ServerAuth};
use fieldstone_rados::encoding::{Addresses, EntityAddress, EntityKind, EntityName};
use fieldstone_rados::message::features::SUPPORTED;
use fieldstone_rados::message::monitor::{Auth, AuthReply};
use fieldstone_rados::message::{Message, MessageKind};
use fieldstone_rados::msgr::{Connection, ConnectionEvent, ServerOptions};
use fieldstone_uring::{
    Event, Listener, Mailbox, Payload, Reactor, ReactorOptions, Sender, Socket, Token, start_thread,
};
use slab::Slab;

use crate::frames::Broken;
use crate::link::{Link, Tokens};
use crate::shared::{Cluster, Shared};
use crate::{Faults, Method};

/// Messages that a core's mailbox holds.
const MAILBOX: usize = 1 << 16;
/// The time between two looks at what has reached its end.
const TICK: Nanos = Nanos::from_ms(200);
/// The time between two changes of primaries.
const TURN: Nanos = Nanos::from_ms(1_000);

/// Mail for a core.
pub(crate) enum Mail {
    /// A message of a session of this core.
    Message(SessionId, Message),
    /// The end.
    Stop,
}

/// Who is let in.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) method: Method,
    /// All cores make the same secrets of it.
    pub(crate) seed: [u8; 32],
    /// The key of `client.admin`.
    pub(crate) key: Option<CryptoKey>,
}

/// A server and where it listens.
pub(crate) struct Place {
    server: Server,
    listener: Listener,
    addresses: Addresses,
}

impl Place {
    pub(crate) fn monitor(listener: Listener, socket: SocketAddr) -> Self {
        let addresses = Addresses(vec![EntityAddress::msgr2(socket, 0)]);
        Self { server: Server::Monitor(0), listener, addresses }
    }

    pub(crate) fn osd(osd: u32, listener: Listener, socket: SocketAddr) -> Self {
        let addresses = Addresses(vec![EntityAddress::msgr2(socket, 1)]);
        Self { server: Server::Osd(osd), listener, addresses }
    }
}

/// What an event is for.
///
/// ```text
///  63    56 55        32 31   0
/// +--------+------------+-----+
/// | kind   | generation | key |
/// +--------+------------+-----+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Accept(usize),
    Receive(usize, u32),
    Send(usize, u32),
    /// Bytes that were held back are due.
    Wake(usize, u32),
    Tick,
    Mail,
}

/// Generations are counted modulo this number.
const GENERATIONS: u32 = 1 << 24;

impl For {
    fn token(self) -> Token {
        let (kind, generation, key) = match self {
            For::Accept(place) => (0_u64, 0, place),
            For::Receive(key, generation) => (1, generation, key),
            For::Send(key, generation) => (2, generation, key),
            For::Tick => (3, 0, 0),
            For::Mail => (4, 0, 0),
            For::Wake(key, generation) => (5, generation, key),
        };
        Token(kind << 56 | u64::from(generation % GENERATIONS) << 32 | key as u64)
    }

    fn of(token: Token) -> Self {
        let key = (token.0 & u64::from(u32::MAX)) as usize;
        let generation = (token.0 >> 32) as u32 % GENERATIONS;
        match token.0 >> 56 {
            0 => For::Accept(key),
            1 => For::Receive(key, generation),
            2 => For::Send(key, generation),
            3 => For::Tick,
            5 => For::Wake(key, generation),
            _ => For::Mail,
        }
    }
}

struct Core {
    index: usize,
    reactor: Reactor,
    places: Vec<Place>,
    links: Slab<Link>,
    of_session: HashMap<SessionId, usize>,
    /// Links with bytes to send, or without a receive.
    busy: Vec<usize>,
    newest_link: u32,
    shared: Shared,
    method: Method,
    keys: KeyServer,
    mail: Mailbox<Mail>,
    others: Vec<Sender<Mail>>,
    faults: Faults,
    /// When the primaries change next, if they do.
    turns: Option<Nanos>,
}

/// Notes in which mode a handshake ends.
struct Noting {
    auth: Box<dyn ServerAuth>,
    mode: Rc<Cell<Option<Mode>>>,
}

impl Noting {
    fn note(&self, answer: ServerAnswer) -> ServerAnswer {
        if let ServerAnswer::Done { mode, .. } = answer {
            self.mode.set(Some(mode));
        }
        answer
    }
}

impl ServerAuth for Noting {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        let answer = self.auth.begin(request);
        self.note(answer)
    }

    fn more(&mut self, payload: Bytes) -> ServerAnswer {
        let answer = self.auth.more(payload);
        self.note(answer)
    }
}

type Started = Vec<(Sender<Mail>, JoinHandle<()>)>;

/// Starts the cores. Each has the places of its index.
pub(crate) fn start(
    places: Vec<Vec<Place>>,
    shared: &Shared,
    access: &Access,
    faults: &Faults,
) -> io::Result<Started> {
    let mut started = Vec::new();
    let mut tells = Vec::new();
    for (index, places) in places.into_iter().enumerate() {
        let (ready, is_ready) = mpsc::channel();
        let (tell, others) = mpsc::channel::<Vec<Sender<Mail>>>();
        let (shared, access, faults) = (shared.clone(), access.clone(), faults.clone());
        let thread = start_thread(format!("core {index}"), move || {
            let made = Core::new(index, places, shared, &access, faults);
            let (mut core, sender) = match made {
                Ok(made) => made,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok(sender));
            // No message comes if another core cannot start.
            let Ok(others) = others.recv() else { return };
            core.others = others;
            if let Err(error) = core.run() {
                tracing::error!("core {index} ends: {error}");
            }
        })?;
        let gone = |_| io::Error::other("a core ended at its start");
        started.push((is_ready.recv().map_err(gone)??, thread));
        tells.push(tell);
    }
    let senders: Vec<Sender<Mail>> = started.iter().map(|(sender, _)| sender.clone()).collect();
    for tell in tells {
        let _ = tell.send(senders.clone());
    }
    Ok(started)
}

impl Core {
    fn new(
        index: usize,
        places: Vec<Place>,
        shared: Shared,
        access: &Access,
        faults: Faults,
    ) -> io::Result<(Self, Sender<Mail>)> {
        let mut reactor = Reactor::new(ReactorOptions::default())?;
        let (sender, mail) = reactor.mailbox(MAILBOX, For::Mail.token())?;
        let keys = KeyServer::new(access.seed);
        // Ceph's own clients do not go on without a ticket for this service, too.
        keys.rotate(EntityKind::Monitor);
        if let Some(key) = &access.key {
            keys.add_entity(Entity::client("admin"), key.clone());
        }
        let core = Self {
            index,
            reactor,
            places,
            links: Slab::new(),
            of_session: HashMap::new(),
            busy: Vec::new(),
            newest_link: 0,
            shared,
            method: access.method,
            keys,
            mail,
            others: Vec::new(),
            turns: (faults.stale_maps && index == 0).then_some(Nanos(0)),
            faults,
        };
        Ok((core, sender))
    }

    fn run(&mut self) -> io::Result<()> {
        for (index, place) in self.places.iter().enumerate() {
            self.reactor.accept(&place.listener, For::Accept(index).token());
        }
        self.arm_tick();
        let mut events = Vec::new();
        loop {
            self.reactor.turn(&mut events)?;
            let shared = self.shared.clone();
            let mut cluster = shared.lock();
            for event in events.drain(..) {
                if !self.event(event, &mut cluster) {
                    return Ok(());
                }
            }
            self.pass_output(&mut cluster);
            drop(cluster);
            self.start_io();
        }
    }

    fn arm_tick(&mut self) {
        let next = self.reactor.fresh_now().plus(TICK);
        self.reactor.timer(next, For::Tick.token());
    }

    /// Handles an event. False if it is the end.
    fn event(&mut self, event: Event, cluster: &mut Cluster) -> bool {
        match (For::of(event.token), event.payload) {
            (For::Accept(place), Payload::Socket(socket)) => self.accepted(place, socket),
            (For::Accept(place), _) => {
                let listener = &self.places[place].listener;
                self.reactor.accept(listener, For::Accept(place).token());
            }
            (For::Receive(key, generation), payload) if self.is_here(key, generation) => {
                match (event.result, payload) {
                    (Ok(count), Payload::Buffer(buffer)) if count > 0 => {
                        let (now, count) = (self.reactor.now(), count as usize);
                        let link = &mut self.links[key];
                        match link.received(buffer, count, &mut cluster.wire, now) {
                            Ok(()) => self.connection_events(key, cluster),
                            Err(Broken(why)) => {
                                tracing::debug!("a connection ends: {why}");
                                self.lost(key, cluster);
                            }
                        }
                    }
                    _ => self.lost(key, cluster),
                }
            }
            (For::Send(key, generation), _) if self.is_here(key, generation) => {
                if self.links[key].sent() && event.result.is_ok() {
                    self.busy.push(key);
                } else {
                    self.lost(key, cluster);
                }
            }
            (For::Wake(key, generation), _) if self.is_here(key, generation) => self.busy.push(key),
            (For::Receive(..) | For::Send(..) | For::Wake(..), _) => {}
            (For::Tick, _) => self.tick(cluster),
            (For::Mail, _) => return self.mail(),
        }
        true
    }

    fn is_here(&self, key: usize, generation: u32) -> bool {
        self.links.get(key).is_some_and(|link| link.generation == generation)
    }

    fn accepted(&mut self, place: usize, socket: Socket) {
        let Place { server, ref addresses, .. } = self.places[place];
        self.newest_link = (self.newest_link + 1) % GENERATIONS;
        let (kind, number) = match server {
            Server::Monitor(rank) => (EntityKind::Monitor, rank),
            Server::Osd(osd) => (EntityKind::Osd, osd),
        };
        let auth: Box<dyn ServerAuth> = match (self.method, server) {
            (Method::None, _) => Box::new(NoneServer { new_global_id: self.shared.new_client() }),
            (Method::Cephx, Server::Monitor(_)) => self.keys.monitor_auth(),
            (Method::Cephx, Server::Osd(_)) => self.keys.service_auth(EntityKind::Osd),
        };
        let mode = Rc::new(Cell::new(None));
        let options = ServerOptions {
            own_name: EntityName { kind, number: number.into() },
            own_addresses: addresses.clone(),
            features: SUPPORTED,
            cookie: u64::from(self.newest_link) + 1,
            auth: Box::new(Noting { auth, mode: Rc::clone(&mode) }),
        };
        let harm = match server {
            Server::Osd(osd) => self.faults.of_osd(osd),
            Server::Monitor(_) => None,
        };
        let connection = Connection::server(options, self.reactor.now());
        let link = Link::new(connection, mode, server, socket, self.newest_link, harm);
        let key = self.links.insert(link);
        self.busy.push(key);
    }

    fn connection_events(&mut self, key: usize, cluster: &mut Cluster) {
        while let Some(event) =
            self.links.get_mut(key).and_then(|link| link.messenger()?.poll_event())
        {
            match event {
                ConnectionEvent::Ready { peer, features, .. } => {
                    self.ready(key, peer, features, cluster);
                }
                ConnectionEvent::Message(message) => self.message(key, &message, cluster),
                ConnectionEvent::Closed(error) => {
                    tracing::debug!("a connection ends: {error}");
                    self.lost(key, cluster);
                }
            }
        }
        self.busy.push(key);
    }

    fn ready(&mut self, key: usize, peer: EntityName, features: u64, cluster: &mut Cluster) {
        let link = &mut self.links[key];
        let addresses = link.messenger().and_then(|link| link.peer_addresses().0.first());
        let address = addresses.copied().unwrap_or_default();
        let caller = Caller { client: u64::try_from(peer.number).unwrap_or(0), address };
        let session = cluster.wire.connected(link.server, caller, features);
        link.session = Some(session);
        self.of_session.insert(session, key);
        cluster.core_of.insert(session, self.index);
        // Answers that come twice are made of messages.
        if matches!(link.server, Server::Osd(_)) && !self.faults.duplicate_replies {
            link.go_over();
        }
    }

    fn message(&mut self, key: usize, message: &Message, cluster: &mut Cluster) {
        let Some(session) = self.links[key].session else { return };
        if message.kind == MessageKind::Auth as u16 {
            return self.renew(key, session, message, cluster);
        }
        cluster.wire.receive(session, message, self.reactor.now());
    }

    /// Tickets run out; a client asks the monitor for new ones.
    fn renew(&mut self, key: usize, session: SessionId, message: &Message, cluster: &Cluster) {
        let Ok(auth) = Auth::decode(message) else { return };
        let Some(client) = cluster.wire.client_of(session) else { return };
        let (result, payload) = self.keys.renew(client, auth.payload);
        let status = String::new();
        let reply = AuthReply { method: auth.method, result, global_id: client, payload, status };
        self.links[key].send(reply.encode());
    }

    /// A connection has ended, from whichever side.
    fn lost(&mut self, key: usize, cluster: &mut Cluster) {
        let link = self.links.remove(key);
        if let Some(session) = link.session {
            self.of_session.remove(&session);
            cluster.core_of.remove(&session);
            cluster.wire.disconnected(session, self.reactor.now());
        }
        let wake = For::Wake(key, link.generation).token();
        link.close(&mut self.reactor, wake);
    }

    fn tick(&mut self, cluster: &mut Cluster) {
        self.arm_tick();
        let now = self.reactor.now();
        let due: Vec<usize> = self
            .links
            .iter_mut()
            .filter_map(|(key, link)| {
                let due = link.messenger()?.deadline()?;
                (due <= now).then_some(key)
            })
            .collect();
        for key in due {
            if let Some(connection) = self.links[key].messenger() {
                connection.tick(now);
            }
            self.connection_events(key, cluster);
        }
        cluster.wire.tick(now);
        if self.turns.is_some_and(|due| due <= now) {
            self.turns = Some(now.plus(TURN));
            cluster.wire.keep_maps_quiet(true);
            cluster.maps.turn_primaries(&mut cluster.wire);
        }
    }

    fn mail(&mut self) -> bool {
        let mut mail = Vec::new();
        self.mail.drain(&mut mail);
        for mail in mail {
            match mail {
                Mail::Message(session, message) => self.deliver(session, message),
                Mail::Stop => return false,
            }
        }
        true
    }

    fn deliver(&mut self, session: SessionId, message: Message) {
        let Some(&key) = self.of_session.get(&session) else { return };
        let link = &mut self.links[key];
        if self.faults.duplicate_replies && message.kind == MessageKind::OsdOpReply as u16 {
            link.send(message.clone());
        }
        link.send(message);
        self.busy.push(key);
    }

    /// Passes on what the model has to say.
    fn pass_output(&mut self, cluster: &mut Cluster) {
        while let Some(change) = cluster.wire.take_change() {
            cluster.maps.publish(&mut cluster.wire, &change);
        }
        while let Some((session, message)) = cluster.wire.poll_output() {
            match cluster.core_of.get(&session) {
                Some(&core) if core == self.index => self.deliver(session, message),
                Some(&core) => {
                    // A core that has ended, or is swamped, gets no more.
                    let _ = self.others[core].send(Mail::Message(session, message));
                }
                None => {}
            }
        }
    }

    fn start_io(&mut self) {
        let Self { busy, links, reactor, .. } = self;
        for key in busy.drain(..) {
            let Some(link) = links.get_mut(key) else { continue };
            let tokens = Tokens {
                send: For::Send(key, link.generation).token(),
                receive: For::Receive(key, link.generation).token(),
                wake: For::Wake(key, link.generation).token(),
            };
            link.start(reactor, &tokens);
        }
    }
}
