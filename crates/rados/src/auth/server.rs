//! The server's side of cephx, for models of clusters.
//!
//! A [`KeyServer`] has what monitors know: the keys of entities, and the secrets that they share
//! with services. [`KeyServer::monitor_auth`] authenticates a client to a monitor,
//! [`KeyServer::service_auth`] to a service, and [`KeyServer::renew`] answers the payload of an
//! `MAuth`. It is as strict as Ceph with `auth_allow_insecure_global_id_reclaim = false`:
//!
//! * A client without a global id must not show an old ticket. It gets a new global id.
//! * A client with a global id must show a ticket of that global id, by a secret that still exists.
//!
//! Each service keeps its last [`SECRETS_KEPT`] secrets, so a ticket outlives two rotations.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::aes256::Usage;
use super::wire::{
    Authenticate, Authorize, AuthorizeReply, Authorizer, GET_AUTH_SESSION_KEY,
    GET_PRINCIPAL_SESSION_KEY, MODE_MONITOR, NamedTicket, ServiceTicket, TicketBlob,
    encode_challenge, encode_tickets, open_blob,
};
use super::{
    AuthDone, AuthRequest, CryptoKey, Entity, KeyKind, METHOD_CEPHX, Mode, ServerAnswer, ServerAuth,
};
use crate::encoding::{DecodeError, Decoder, Encoder, EntityKind, Time};
use crate::errno::Errno;

/// Secrets of a service that are kept: a ticket by an older one is refused.
pub const SECRETS_KEPT: usize = 3;
/// Sessions that are remembered for renewals. Beyond it, that of the lowest global id is forgotten.
pub const SESSIONS_KEPT: usize = 1 << 16;
/// Handshakes of one client that are kept for renewals.
const SESSIONS_OF_CLIENT: usize = 8;
/// Bytes of a connection's secret in mode secure, as Ceph sends them. 40 of them are used.
pub const SECRET_LEN: usize = 64;

/// What a service reads in a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketContent {
    /// The client.
    pub entity: Entity,
    /// Its global id.
    pub global_id: u64,
    /// The key that client and service share.
    pub session_key: CryptoKey,
}

impl TicketContent {
    /// Reads it.
    ///
    /// # Errors
    /// The bytes end, or a value is wrong.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        from.u8("the version of a ticket")?;
        let version = from.u8("the version of a ticket's client")?;
        let entity = Entity::decode(from)?;
        let global_id = from.u64("the global id of a ticket")?;
        if version >= 2 {
            from.u64("the user of a ticket")?;
        }
        Time::decode(from)?;
        Time::decode(from)?;
        from.u8("the version of capabilities")?;
        from.u8("whether all is allowed")?;
        from.blob("capabilities")?;
        from.u32("the flags of a ticket")?;
        Ok(Self { entity, global_id, session_key: CryptoKey::decode(from)? })
    }

    /// Writes it, with all capabilities.
    pub fn encode(&self, into: &mut Encoder) {
        into.u8(1).u8(2);
        self.entity.encode(into);
        into.u64(self.global_id).u64(u64::MAX).u64(0).u64(0);
        let mut capabilities = Encoder::new();
        capabilities.string("allow *");
        into.u8(1).u8(0).blob(&capabilities.into_vec()).u32(0);
        self.session_key.encode(into);
    }
}

#[derive(Default)]
struct Secrets {
    newest: u64,
    keys: BTreeMap<u64, CryptoKey>,
}

/// What is remembered of a client's session, for its renewals.
#[derive(Clone)]
struct Session {
    entity: Entity,
    challenge: u64,
}

struct Inner {
    rng: ChaCha20Rng,
    entities: BTreeMap<Entity, CryptoKey>,
    services: BTreeMap<EntityKind, Secrets>,
    /// The newest handshakes of each client: it may try several monitors at once, and uses one.
    sessions: BTreeMap<u64, VecDeque<Session>>,
    next_global_id: u64,
    auth_validity_s: u32,
    service_validity_s: u32,
    modes: Vec<Mode>,
    /// The kind of all keys that this server makes.
    key_kind: KeyKind,
}

/// What the monitors of a model know. Copies are the same object.
#[derive(Clone)]
pub struct KeyServer(Rc<RefCell<Inner>>);

impl Inner {
    fn pick_mode(&self, request: &AuthRequest) -> Option<Mode> {
        request.modes.iter().copied().find(|mode| self.modes.contains(mode))
    }

    fn connection_secret(&mut self, mode: Mode) -> Vec<u8> {
        let mut secret = vec![0; if mode == Mode::Secure { SECRET_LEN } else { 0 }];
        self.rng.fill_bytes(&mut secret);
        secret
    }

    fn refuse(&self, errno: Errno) -> ServerAnswer {
        let modes = self.modes.clone();
        ServerAnswer::BadMethod { errno: errno.0, methods: vec![METHOD_CEPHX], modes }
    }

    fn rotate(&mut self, kind: EntityKind) {
        let key = CryptoKey::generate_kind(self.key_kind, &mut self.rng);
        let secrets = self.services.entry(kind).or_default();
        secrets.newest += 1;
        secrets.keys.insert(secrets.newest, key);
        while secrets.keys.len() > SECRETS_KEPT {
            secrets.keys.pop_first();
        }
    }

    /// A new ticket; `None` for a kind without secrets.
    fn ticket(
        &mut self,
        kind: EntityKind,
        entity: &Entity,
        global_id: u64,
    ) -> Option<(NamedTicket, CryptoKey)> {
        let session_key = CryptoKey::generate_kind(self.key_kind, &mut self.rng);
        let secrets = self.services.get(&kind)?;
        let seconds = match kind {
            EntityKind::Auth => self.auth_validity_s,
            _ => self.service_validity_s,
        };
        let content =
            TicketContent { entity: entity.clone(), global_id, session_key: session_key.clone() };
        let secret = secrets.keys.get(&secrets.newest)?;
        let sealed = secret.seal(Usage::TicketContent, &mut self.rng, |into| content.encode(into));
        let blob = TicketBlob { secret_id: secrets.newest, bytes: sealed.into() };
        let validity = Time { seconds, nanos: 0 };
        let service = ServiceTicket { session_key: session_key.clone(), validity };
        Some(((kind as u32, service, blob), session_key))
    }

    /// The tickets of these kinds. Unknown kinds are left out.
    fn tickets(&mut self, kinds: u32, entity: &Entity, global_id: u64) -> Vec<NamedTicket> {
        let kinds = (0..8).map(|bit| 1_u8 << bit).filter(|&kind| kinds & u32::from(kind) != 0);
        let kinds: Vec<EntityKind> = kinds.filter_map(EntityKind::of).collect();
        let tickets = kinds.into_iter().map(|kind| self.ticket(kind, entity, global_id));
        tickets.flatten().map(|(ticket, _)| ticket).collect()
    }

    /// Reads a ticket.
    fn read_ticket(&self, kind: EntityKind, blob: &TicketBlob) -> Option<TicketContent> {
        let key = self.services.get(&kind)?.keys.get(&blob.secret_id)?;
        TicketContent::decode(&mut key.open(Usage::TicketContent, &blob.bytes).ok()?).ok()
    }

    /// Reads an authorizer for a service.
    fn read_authorizer(
        &self,
        kind: EntityKind,
        from: &mut Decoder,
    ) -> Option<(TicketContent, Authorize)> {
        let authorizer = Authorizer::decode(from).ok()?;
        let content = self.read_ticket(kind, &authorizer.blob)?;
        if authorizer.kind != kind as u32 || content.global_id != authorizer.global_id {
            return None;
        }
        let key = &content.session_key;
        let mut sealed = open_blob(from, key, Usage::Authorize, "an authorizer").ok()?;
        Some((content, Authorize::decode(&mut sealed).ok()?))
    }

    /// Answers the proof of a client: tickets, and the secret of the connection if there is one.
    fn grant(
        &mut self,
        session: &Session,
        global_id: u64,
        is_new: bool,
        from: &mut Decoder,
        secret: Option<&[u8]>,
    ) -> Result<(Bytes, CryptoKey), Errno> {
        let request = Authenticate::decode(from).map_err(|_| Errno::EPERM)?;
        let entity = &session.entity;
        let key = self.entities.get(entity).cloned().ok_or(Errno::EPERM)?;
        if key.prove(session.challenge, request.client_challenge) != request.proof {
            return Err(Errno::EPERM);
        }
        let shows_ticket = !request.old_ticket.bytes.is_empty();
        let old_key = match (is_new, shows_ticket) {
            (true, true) => return Err(Errno::EINVAL),
            (true, false) => None,
            (false, _) => {
                let old = self.read_ticket(EntityKind::Auth, &request.old_ticket);
                let old = old.filter(|old| old.global_id == global_id && old.entity == *entity);
                Some(old.ok_or(Errno::EACCES)?.session_key)
            }
        };
        let ours = self.ticket(EntityKind::Auth, entity, global_id);
        let (ticket, session_key) = ours.ok_or(Errno::EIO)?;
        let mut into = Encoder::new();
        into.u16(GET_AUTH_SESSION_KEY).i32(0);
        encode_tickets(&[ticket], &key, old_key.as_ref(), &mut self.rng, &mut into);
        if request.other_kinds != 0 {
            let mut blob = Encoder::new();
            if let Some(secret) = secret {
                blob.blob(&session_key.seal(Usage::ConnectionSecret, &mut self.rng, |into| {
                    into.blob(secret);
                }));
            }
            into.blob(&blob.into_vec());
            let tickets = self.tickets(request.other_kinds, entity, global_id);
            let mut extra = Encoder::new();
            if !tickets.is_empty() {
                encode_tickets(&tickets, &session_key, None, &mut self.rng, &mut extra);
            }
            into.blob(&extra.into_vec());
        }
        Ok((into.finish(), session_key))
    }

    /// Answers a request for tickets by the ticket for monitors.
    fn more_tickets(&mut self, from: &mut Decoder) -> Result<Bytes, Errno> {
        let authorizer = self.read_authorizer(EntityKind::Auth, from).ok_or(Errno::EPERM)?;
        let TicketContent { entity, global_id, session_key } = authorizer.0;
        let mut kinds = || {
            from.u8("the version of a request for tickets")?;
            from.u32("the kinds of tickets")
        };
        let kinds = kinds().map_err(|_: DecodeError| Errno::EPERM)?;
        let tickets = self.tickets(kinds, &entity, global_id);
        if tickets.is_empty() {
            return Err(Errno::EACCES);
        }
        let mut into = Encoder::new();
        into.u16(GET_PRINCIPAL_SESSION_KEY).i32(0);
        encode_tickets(&tickets, &session_key, None, &mut self.rng, &mut into);
        Ok(into.finish())
    }
}

impl KeyServer {
    /// A server that knows no entity yet, and has secrets of the services `auth`, `osd` and `mgr`.
    /// All keys are for AES-128. All random numbers come from the seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self::with_keys(seed, KeyKind::Aes128)
    }

    /// As [`new`](Self::new), with keys of this kind.
    #[must_use]
    pub fn with_keys(seed: [u8; 32], key_kind: KeyKind) -> Self {
        let mut inner = Inner {
            rng: ChaCha20Rng::from_seed(seed),
            entities: BTreeMap::new(),
            services: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_global_id: 4100,
            auth_validity_s: 72 * 3600,
            service_validity_s: 3600,
            modes: vec![Mode::Secure, Mode::Crc],
            key_kind,
        };
        for kind in [EntityKind::Auth, EntityKind::Osd, EntityKind::Manager] {
            inner.rotate(kind);
        }
        Self(Rc::new(RefCell::new(inner)))
    }

    /// Gives an entity a key.
    pub fn add_entity(&self, entity: Entity, key: CryptoKey) {
        self.0.borrow_mut().entities.insert(entity, key);
    }

    /// Makes a key, and gives it to an entity.
    #[must_use]
    pub fn create_entity(&self, entity: Entity) -> CryptoKey {
        let mut inner = self.0.borrow_mut();
        let inner = &mut *inner;
        let key = CryptoKey::generate_kind(inner.key_kind, &mut inner.rng);
        inner.entities.insert(entity, key.clone());
        key
    }

    /// Makes an entity unknown.
    pub fn remove_entity(&self, entity: &Entity) {
        self.0.borrow_mut().entities.remove(entity);
    }

    /// Gives a service a new secret, and forgets the oldest one.
    pub fn rotate(&self, kind: EntityKind) {
        self.0.borrow_mut().rotate(kind);
    }

    /// Makes a service unknown: clients get no tickets for it.
    pub fn remove_service(&self, kind: EntityKind) {
        self.0.borrow_mut().services.remove(&kind);
    }

    /// Sets how long new tickets are good, in seconds: those for monitors and those for services.
    pub fn set_validity(&self, auth_s: u32, service_s: u32) {
        let mut inner = self.0.borrow_mut();
        (inner.auth_validity_s, inner.service_validity_s) = (auth_s, service_s);
    }

    /// Sets the modes that monitors and services accept.
    pub fn set_modes(&self, modes: &[Mode]) {
        self.0.borrow_mut().modes = modes.to_vec();
    }

    /// The authentication of a connection that a monitor accepts.
    #[must_use]
    pub fn monitor_auth(&self) -> Box<dyn ServerAuth> {
        Box::new(MonitorServer { server: self.clone(), state: None })
    }

    /// The authentication of a connection that a service of this kind accepts.
    #[must_use]
    pub fn service_auth(&self, kind: EntityKind) -> Box<dyn ServerAuth> {
        Box::new(ServiceServer { server: self.clone(), kind, state: None })
    }

    /// Answers the payload of a client's `MAuth` on an open session: result and payload of the
    /// `MAuthReply`.
    #[must_use]
    pub fn renew(&self, global_id: u64, payload: Bytes) -> (i32, Bytes) {
        let mut inner = self.0.borrow_mut();
        let body = payload.slice(payload.len().min(2)..);
        let mut from = Decoder::new(payload);
        let answer = match from.u16("the kind of a request") {
            Ok(GET_PRINCIPAL_SESSION_KEY) => inner.more_tickets(&mut from),
            Ok(GET_AUTH_SESSION_KEY) => {
                let sessions = inner.sessions.get(&global_id).cloned().unwrap_or_default();
                let mut answer = Err(Errno::EPERM);
                for session in sessions {
                    let mut from = Decoder::new(body.clone());
                    let granted = inner.grant(&session, global_id, false, &mut from, None);
                    answer = granted.map(|(payload, _)| payload);
                    if answer.is_ok() {
                        break;
                    }
                }
                answer
            }
            _ => Err(Errno::EINVAL),
        };
        match answer {
            Ok(payload) => (0, payload),
            Err(errno) => (-errno.0, Bytes::new()),
        }
    }
}

struct MonitorState {
    session: Session,
    global_id: u64,
    is_new: bool,
    mode: Mode,
}

/// The server's side of cephx on a connection to a monitor.
struct MonitorServer {
    server: KeyServer,
    state: Option<MonitorState>,
}

impl ServerAuth for MonitorServer {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        let mut inner = self.server.0.borrow_mut();
        let Some(mode) = inner.pick_mode(request).filter(|_| request.method == METHOD_CEPHX) else {
            return inner.refuse(Errno::EOPNOTSUPP);
        };
        let mut from = Decoder::new(request.payload.clone());
        let mut named = || {
            let mode = from.u8("the mode of authentication")?;
            let entity = Entity::decode(&mut from)?;
            Ok::<_, DecodeError>((mode, entity, from.u64("a global id")?))
        };
        let Ok((MODE_MONITOR, entity, mut global_id)) = named() else {
            return inner.refuse(Errno::EACCES);
        };
        let is_new = global_id == 0;
        if is_new {
            global_id = inner.next_global_id;
            inner.next_global_id += 1;
        }
        let challenge = inner.rng.next_u64().max(1);
        let session = Session { entity, challenge };
        self.state = Some(MonitorState { session, global_id, is_new, mode });
        let mut into = Encoder::new();
        encode_challenge(challenge, &mut into);
        ServerAnswer::More(into.finish())
    }

    fn more(&mut self, payload: Bytes) -> ServerAnswer {
        let mut inner = self.server.0.borrow_mut();
        let Some(MonitorState { session, global_id, is_new, mode }) = self.state.take() else {
            return inner.refuse(Errno::EINVAL);
        };
        let mut from = Decoder::new(payload);
        if from.u16("the kind of a request") != Ok(GET_AUTH_SESSION_KEY) {
            return inner.refuse(Errno::EPERM);
        }
        let secret = inner.connection_secret(mode);
        match inner.grant(&session, global_id, is_new, &mut from, Some(&secret)) {
            Err(errno) => inner.refuse(errno),
            Ok((payload, key)) => {
                let sessions = inner.sessions.entry(global_id).or_default();
                sessions.push_front(session);
                sessions.truncate(SESSIONS_OF_CLIENT);
                if inner.sessions.len() > SESSIONS_KEPT {
                    inner.sessions.pop_first();
                }
                let session_key = key.secret().to_vec();
                let done = AuthDone { session_key, connection_secret: secret };
                ServerAnswer::Done { global_id, mode, payload, done }
            }
        }
    }
}

/// The server's side of cephx on a connection to a service.
struct ServiceServer {
    server: KeyServer,
    kind: EntityKind,
    state: Option<(u64, Mode)>,
}

impl ServerAuth for ServiceServer {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        let mut inner = self.server.0.borrow_mut();
        let Some(mode) = inner.pick_mode(request).filter(|_| request.method == METHOD_CEPHX) else {
            return inner.refuse(Errno::EOPNOTSUPP);
        };
        let mut from = Decoder::new(request.payload.clone());
        let Some((content, _)) = inner.read_authorizer(self.kind, &mut from) else {
            return inner.refuse(Errno::EACCES);
        };
        let challenge = inner.rng.next_u64();
        self.state = Some((challenge, mode));
        let sealed = content.session_key.seal(Usage::Challenge, &mut inner.rng, |into| {
            encode_challenge(challenge, into);
        });
        ServerAnswer::More(sealed.into())
    }

    fn more(&mut self, payload: Bytes) -> ServerAnswer {
        let mut inner = self.server.0.borrow_mut();
        let Some((challenge, mode)) = self.state.take() else {
            return inner.refuse(Errno::EINVAL);
        };
        let Some((content, authorize)) =
            inner.read_authorizer(self.kind, &mut Decoder::new(payload))
        else {
            return inner.refuse(Errno::EACCES);
        };
        if authorize.challenge_plus_one != Some(challenge.wrapping_add(1)) {
            return inner.refuse(Errno::EACCES);
        }
        let connection_secret = inner.connection_secret(mode);
        let nonce_plus_one = authorize.nonce.wrapping_add(1);
        let reply = AuthorizeReply { nonce_plus_one, connection_secret: connection_secret.clone() };
        let mut into = Encoder::new();
        let sealed = content.session_key.seal(Usage::AuthorizeReply, &mut inner.rng, |into| {
            reply.encode(into);
        });
        into.blob(&sealed);
        let session_key = content.session_key.secret().to_vec();
        ServerAnswer::Done {
            global_id: content.global_id,
            mode,
            payload: into.finish(),
            done: AuthDone { session_key, connection_secret },
        }
    }
}
