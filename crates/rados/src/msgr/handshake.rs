//! The steps of a connection up to the first message.

use bytes::Bytes;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::cipher::Cipher;
use super::connection::{Connection, Role, Step, unexpected};
use super::payload::{self, AuthBadMethod, Hello, Ident};
use super::reader::Frame;
use super::tag::Tag;
use super::{
    ConnectionError, ConnectionEvent, FEATURE_MSG_ADDR2, MAX_AUTH_ROUNDS, MAX_FRAME_BYTES,
};
use crate::Nanos;
use crate::auth::{AuthDone, AuthError, AuthRequest, Mode, ServerAnswer};
use crate::encoding::{AddressKind, Addresses, DecodeError, EntityAddress, EntityKind, EntityName};
use crate::message::features;

/// The length of a signature.
const SIGNATURE_BYTES: usize = 32;
/// The flag of a session that does not outlive its connection.
const FLAG_LOSSY: u64 = 1;

impl From<DecodeError> for ConnectionError {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<AuthError> for ConnectionError {
    fn from(error: AuthError) -> Self {
        Self::Auth(error)
    }
}

impl Connection {
    /// The peer's banner is good.
    pub(super) fn say_hello(&mut self) {
        let hello = match &self.role {
            Role::Client(options) => Hello {
                kind: options.own_name.kind as u8,
                seen_as: options.peer_addresses.msgr2().unwrap_or_default(),
            },
            // A server without a transport does not see its client's address.
            Role::Server(options) => {
                Hello { kind: options.own_name.kind as u8, seen_as: EntityAddress::default() }
            }
        };
        self.writer.control(Tag::Hello, &hello.encode());
        self.step = Step::Hello;
    }

    pub(super) fn handshake_frame(
        &mut self,
        frame: Frame,
        now: Nanos,
    ) -> Result<(), ConnectionError> {
        let Frame { tag, segments: [payload, ..] } = frame;
        let client = matches!(self.role, Role::Client(_));
        match (self.step, tag, client) {
            (Step::Hello, Tag::Hello, _) => self.hello(payload),
            (Step::Auth, Tag::AuthReplyMore, true) => self.auth_reply_more(payload),
            (Step::Auth, Tag::AuthBadMethod, true) => self.auth_bad_method(payload),
            (Step::Auth, Tag::AuthDone, true) => self.auth_done(payload),
            (Step::Auth, Tag::AuthRequest, false) => self.auth_request(payload),
            (Step::AuthMore, Tag::AuthRequestMore, false) => self.auth_request_more(payload),
            (Step::Signature, Tag::AuthSignature, _) => self.signature(&payload),
            (Step::Ident, Tag::ServerIdent, true) => self.server_ident(payload, now),
            (Step::Ident, Tag::IdentMissingFeatures, true) => {
                let missing = payload::decode_number(payload, "missing features")?;
                Err(ConnectionError::Peer(unknown_features("the peer", missing)))
            }
            (Step::Ident, Tag::SessionReset, true) => Err(ConnectionError::Reset),
            (Step::Ident, Tag::Wait, true) => {
                Err(ConnectionError::Transport("the peer replaces another connection".into()))
            }
            (Step::Ident, Tag::ClientIdent, false) => self.client_ident(payload, now),
            (Step::Ident, Tag::SessionReconnect, false) => {
                // There are no sessions that can be gone on with. The client begins a new one.
                self.writer.control(Tag::SessionReset, &[1]);
                Ok(())
            }
            (step, tag, _) => Err(unexpected(tag, step)),
        }
    }

    fn hello(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        let hello = Hello::decode(payload)?;
        self.auth.seen_as = hello.seen_as.socket.is_some().then_some(hello.seen_as);
        self.step = Step::Auth;
        match &mut self.role {
            Role::Client(options) => {
                if hello.kind != options.peer.kind as u8 {
                    let (wanted, kind) = (options.peer, hello.kind);
                    let what = format!("{wanted} should answer, but the peer has kind {kind:#x}");
                    return Err(ConnectionError::Peer(what));
                }
                let request = options.auth.begin()?;
                self.auth.method = request.method;
                let payload = payload::AuthRequest::encode(&request);
                self.writer.control(Tag::AuthRequest, &payload);
                self.auth.offered = request.modes;
            }
            Role::Server(_) => {
                self.peer.kind = EntityKind::of(hello.kind).ok_or_else(|| {
                    ConnectionError::Protocol(format!("there is no kind {:#x}", hello.kind))
                })?;
            }
        }
        Ok(())
    }

    /// Counts a message of authentication.
    fn auth_round(&mut self) -> Result<(), ConnectionError> {
        self.auth.rounds += 1;
        if self.auth.rounds > MAX_AUTH_ROUNDS {
            return Err(AuthError::other(format!("no end after {MAX_AUTH_ROUNDS} rounds")).into());
        }
        Ok(())
    }

    fn auth_reply_more(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        self.auth_round()?;
        if let Role::Client(options) = &mut self.role {
            let answer = options.auth.more(payload::decode_blob(payload)?)?;
            self.writer.control(Tag::AuthRequestMore, &payload::encode_blob(&answer));
        }
        Ok(())
    }

    fn auth_bad_method(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        let AuthBadMethod { method, result, methods, modes } = AuthBadMethod::decode(payload)?;
        let why = match &mut self.role {
            Role::Client(options) => options.auth.refused(result, &methods, &modes),
            Role::Server(_) => AuthError::other(format!("the client refuses method {method}")),
        };
        Err(ConnectionError::Auth(why))
    }

    fn auth_done(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        let payload::AuthDone { global_id, mode, payload } = payload::AuthDone::decode(payload)?;
        let Some(mode) = Mode::of(mode).filter(|mode| self.auth.offered.contains(mode)) else {
            let what = format!("the peer chose mode {mode}, which was not offered");
            return Err(AuthError::other(what).into());
        };
        if let Role::Client(options) = &mut self.role {
            let done = options.auth.done(global_id, mode, payload)?;
            self.auth.global_id = global_id;
            self.finish_auth(mode, done, true)?;
        }
        Ok(())
    }

    fn auth_request(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        self.auth_round()?;
        let payload::AuthRequest { method, modes, payload } =
            payload::AuthRequest::decode(payload)?;
        self.auth.method = method;
        let modes = modes.into_iter().filter_map(Mode::of).collect();
        let request = AuthRequest { method, modes, payload };
        let Role::Server(options) = &mut self.role else { return Ok(()) };
        let answer = options.auth.begin(&request);
        self.answer(answer)
    }

    fn auth_request_more(&mut self, payload: Bytes) -> Result<(), ConnectionError> {
        self.auth_round()?;
        let Role::Server(options) = &mut self.role else { return Ok(()) };
        let answer = options.auth.more(payload::decode_blob(payload)?);
        self.answer(answer)
    }

    fn answer(&mut self, answer: ServerAnswer) -> Result<(), ConnectionError> {
        match answer {
            ServerAnswer::More(payload) => {
                self.writer.control(Tag::AuthReplyMore, &payload::encode_blob(&payload));
                self.step = Step::AuthMore;
                Ok(())
            }
            ServerAnswer::BadMethod { errno, methods, modes } => {
                let (method, modes) = (self.auth.method, modes.iter().map(|&mode| mode as u32));
                let bad = AuthBadMethod { method, result: -errno, methods, modes: modes.collect() };
                self.writer.control(Tag::AuthBadMethod, &bad.encode());
                self.step = Step::Auth;
                Ok(())
            }
            ServerAnswer::Done { global_id, mode, payload, done } => {
                let frame = payload::AuthDone { global_id, mode: mode as u32, payload };
                self.writer.control(Tag::AuthDone, &frame.encode());
                self.auth.global_id = global_id;
                self.finish_auth(mode, done, false)
            }
        }
    }

    /// Both sides have the keys. Each signs what it received so far, and in secure mode everything
    /// is encrypted from here on.
    fn finish_auth(
        &mut self,
        mode: Mode,
        done: AuthDone,
        client: bool,
    ) -> Result<(), ConnectionError> {
        let received = self.reader.input.record.take().unwrap_or_default();
        self.auth.sent = self.writer.record.take().unwrap_or_default();
        if mode == Mode::Secure {
            let Some((from_server, from_client)) = Cipher::pair(&done.connection_secret) else {
                return Err(AuthError::other("there are no keys for secure mode").into());
            };
            let (reads, writes) =
                if client { (from_server, from_client) } else { (from_client, from_server) };
            self.reader.cipher = Some(reads);
            self.writer.cipher = Some(writes);
        }
        self.auth.session_key = done.session_key;
        let signature = sign(&self.auth.session_key, &received)
            .map_or([0; SIGNATURE_BYTES], |mac| mac.finalize().into_bytes().into());
        self.writer.control(Tag::AuthSignature, &signature);
        self.step = Step::Signature;
        Ok(())
    }

    fn signature(&mut self, signature: &[u8]) -> Result<(), ConnectionError> {
        let sent = std::mem::take(&mut self.auth.sent);
        let good = match sign(&self.auth.session_key, &sent) {
            Some(mac) => mac.verify_slice(signature).is_ok(),
            None => signature == [0; SIGNATURE_BYTES],
        };
        if !good {
            return Err(AuthError::other("the peer's signature is wrong").into());
        }
        self.step = Step::Ident;
        if let Role::Client(options) = &self.role {
            let Some(target) = options.peer_addresses.msgr2() else {
                let what = format!("{} has no address for messenger 2", options.peer);
                return Err(ConnectionError::Peer(what));
            };
            let own = own_address(options.own_address, self.auth.seen_as);
            let ident = Ident {
                addresses: Addresses(vec![own]),
                target: Some(target),
                number: options.own_name.number,
                global_seq: options.global_seq,
                supported: options.features,
                required: FEATURE_MSG_ADDR2,
                flags: FLAG_LOSSY,
                cookie: options.cookie,
            };
            self.writer.control(Tag::ClientIdent, &ident.encode());
        }
        Ok(())
    }

    fn server_ident(&mut self, payload: Bytes, now: Nanos) -> Result<(), ConnectionError> {
        let ident = Ident::decode_server(payload)?;
        let Role::Client(options) = &self.role else { return Ok(()) };
        let peer = EntityName { kind: options.peer.kind, number: ident.number };
        let target = options.peer_addresses.msgr2();
        if !target.is_some_and(|target| ident.addresses.0.contains(&target)) {
            let (wanted, addresses) = (&options.peer_addresses, &ident.addresses);
            let what = format!("the peer has addresses {addresses}, and not {wanted}");
            return Err(ConnectionError::Peer(what));
        }
        // A monitor's number is its rank, and changes with the map.
        if peer.kind == EntityKind::Osd && options.peer.number >= 0 && peer != options.peer {
            let what = format!("{} should answer, and {peer} did", options.peer);
            return Err(ConnectionError::Peer(what));
        }
        let unknown = ident.required & !options.features;
        if unknown != 0 {
            return Err(ConnectionError::Peer(unknown_features(&peer.to_string(), unknown)));
        }
        if ident.supported & FEATURE_MSG_ADDR2 == 0 {
            let lacks = features::names(FEATURE_MSG_ADDR2);
            let what = format!("{peer} lacks the feature {lacks}, which Ceph 14 and newer have");
            return Err(ConnectionError::Peer(what));
        }
        let features = options.features & ident.supported;
        self.peer_addresses = ident.addresses;
        self.ready(peer, features, now);
        Ok(())
    }

    fn client_ident(&mut self, payload: Bytes, now: Nanos) -> Result<(), ConnectionError> {
        let ident = Ident::decode_client(payload)?;
        let Role::Server(options) = &self.role else { return Ok(()) };
        if ident.addresses.0.first().is_none_or(|first| first.socket.is_none()) {
            return Err(ConnectionError::Protocol("a client has no address".into()));
        }
        let target = ident.target.unwrap_or_default();
        if !options.own_addresses.0.contains(&target) {
            let what = format!("a client wants {target}; here is {}", options.own_addresses);
            return Err(ConnectionError::Peer(what));
        }
        let missing = FEATURE_MSG_ADDR2 & !ident.supported;
        if missing != 0 {
            self.writer.control(Tag::IdentMissingFeatures, &missing.to_le_bytes());
            return Ok(());
        }
        let answer = Ident {
            addresses: options.own_addresses.clone(),
            target: None,
            number: options.own_name.number,
            global_seq: ident.global_seq,
            supported: options.features,
            required: FEATURE_MSG_ADDR2,
            flags: FLAG_LOSSY,
            cookie: options.cookie,
        };
        self.writer.control(Tag::ServerIdent, &answer.encode());
        let features = options.features & ident.supported;
        let number = i64::try_from(self.auth.global_id).unwrap_or(ident.number);
        self.peer_addresses = ident.addresses;
        self.ready(EntityName { kind: self.peer.kind, number }, features, now);
        Ok(())
    }

    fn ready(&mut self, peer: EntityName, features: u64, now: Nanos) {
        self.peer = peer;
        self.step = Step::Ready;
        self.reader.limit = MAX_FRAME_BYTES;
        self.life.ready(now, matches!(self.role, Role::Client(_)));
        let seen_as = self.auth.seen_as;
        self.events.push_back(ConnectionEvent::Ready { peer, features, seen_as });
    }
}

/// Why a peer cannot be used that demands features that this client does not announce.
fn unknown_features(peer: &str, features: u64) -> String {
    let names = features::names(features);
    format!("{peer} demands features that this client does not know: {names}")
}

/// The signature's state after `bytes`; none without a key: then signatures are zeros.
fn sign(key: &[u8], bytes: &[u8]) -> Option<Hmac<Sha256>> {
    if key.is_empty() {
        return None;
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(bytes);
    Some(mac)
}

/// The address that a client names as its own: where it does not know its IP address, the one that
/// the peer sees, with port 0.
fn own_address(own: EntityAddress, seen_as: Option<EntityAddress>) -> EntityAddress {
    let known = own.socket.is_some_and(|socket| !socket.ip().is_unspecified());
    let socket = if known {
        own.socket
    } else {
        let seen = seen_as.and_then(|seen| seen.socket);
        seen.map(|socket| (socket.ip(), 0).into()).or(own.socket)
    };
    let kind = if own.kind == AddressKind::None { AddressKind::Any } else { own.kind };
    EntityAddress { kind, nonce: own.nonce, socket }
}
