//! cephx on a connection to a monitor, the client's side.
//!
//! ```text
//! client                                        monitor
//!   u8 10, entity, u64 global id (0: a new one)   ->
//!                                                 <-  challenge (AUTH_REPLY_MORE)
//!   0x100 authenticate: proof, old ticket, kinds  ->
//!                                                 <-  tickets, secret, more tickets (AUTH_DONE)
//! ```
//!
//! The client's ticket for the monitors is encrypted by the client's key; a client with another key
//! cannot read it. If the client keeps its global id, the blob of the new ticket is encrypted by
//! the old ticket's session key as well. The secret of the connection and the tickets of services
//! are encrypted by the new session key.

use bytes::Bytes;

use super::aes256::Usage;
use super::credentials::{SERVICES, Shared};
use super::wire::{
    Authenticate, GET_AUTH_SESSION_KEY, MODE_MONITOR, NamedTicket, TicketBlob, WireError,
    decode_challenge, decode_reply_header, decode_tickets, kinds_bits, open_blob,
};
use super::{
    AuthDone, AuthError, AuthErrorKind, AuthRequest, ClientAuth, Credentials, CryptoKey,
    METHOD_CEPHX, Mode, accept_mode, refusal,
};
use crate::encoding::{DecodeError, Decoder, Encoder, EntityKind, Time};
use crate::errno::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    /// The client named itself, and waits for the challenge.
    Named,
    /// The client proved that it has the key.
    Proved {
        server_challenge: u64,
    },
    Over,
}

/// cephx on a connection to a monitor.
pub struct MonitorAuth {
    credentials: Credentials,
    modes: Vec<Mode>,
    /// The ticket that proves that the client owns the global id that it named, and its session
    /// key. `None` if the client asked for a new global id.
    old: Option<OldTicket>,
    state: State,
    /// What the monitor gave, until the connection is chosen.
    granted: Option<Granted>,
}

/// What a monitor gave at the end of the handshake.
struct Granted {
    global_id: u64,
    server_challenge: u64,
    tickets: Vec<NamedTicket>,
    /// When it came, by the clock of the credentials.
    at: Time,
}

/// A ticket for monitors that a client shows, and its session key.
pub(super) type OldTicket = (TicketBlob, CryptoKey);

/// What a monitor gives to a client that has proved itself.
pub(super) struct Grant {
    pub(super) tickets: Vec<NamedTicket>,
    pub(super) session_key: CryptoKey,
    pub(super) connection_secret: Vec<u8>,
}

/// The payload that proves to a monitor that the client has the key, and asks for all tickets. A
/// client with a global id has to show its old ticket; one without must not.
pub(super) fn prove(
    shared: &mut Shared,
    server_challenge: u64,
    old: Option<&OldTicket>,
) -> Result<Bytes, AuthError> {
    let client_challenge = shared.random();
    let key = shared.key.as_ref().ok_or_else(|| AuthError::other("there is no key"))?;
    let request = Authenticate {
        version: 3,
        client_challenge,
        proof: key.prove(server_challenge, client_challenge),
        old_ticket: old.map(|(blob, _)| blob.clone()).unwrap_or_default(),
        // Not the ticket for the monitors: that one comes first in any case.
        other_kinds: kinds_bits(&SERVICES),
    };
    let mut into = Encoder::new();
    into.u16(GET_AUTH_SESSION_KEY);
    request.encode(&mut into);
    Ok(into.finish())
}

/// Reads what a monitor answers to a proof, behind the head of the reply.
pub(super) fn read_grant(
    from: &mut Decoder,
    key: &CryptoKey,
    old_key: Option<&CryptoKey>,
) -> Result<Grant, WireError> {
    let mut tickets = decode_tickets(from, key, old_key)?;
    let ours = |(kind, ..): &&NamedTicket| *kind == EntityKind::Auth as u32;
    let Some((_, service, _)) = tickets.iter().find(ours) else {
        let what = "the number of tickets without one for monitors";
        return Err(Decoder::refused(from.offset(), tickets.len() as u64, what).into());
    };
    let session_key = service.session_key.clone();
    let mut connection_secret = Vec::new();
    if !from.is_empty() {
        let secret = from.blob("the secret of a connection")?;
        let extra = from.blob("more tickets")?;
        if !secret.is_empty() {
            let (mut secret, what) = (Decoder::new(secret), "the secret of a connection");
            let mut plain = open_blob(&mut secret, &session_key, Usage::ConnectionSecret, what)?;
            connection_secret = plain.blob(what)?.to_vec();
        }
        if !extra.is_empty() {
            let more = decode_tickets(&mut Decoder::new(extra), &session_key, None)?;
            // The ticket for monitors that came first is the one of this session.
            tickets.extend(more.into_iter().filter(|(kind, ..)| *kind != EntityKind::Auth as u32));
        }
    }
    Ok(Grant { tickets, session_key, connection_secret })
}

/// A reply that cannot be read, in words.
pub(super) fn unreadable(shared: &Shared, error: &WireError) -> AuthError {
    let entity = &shared.entity;
    match error {
        WireError::Sealed { what: "a ticket", .. } => AuthError::refused(format!(
            "the key of {entity} does not fit the monitors' key: {error}"
        )),
        other => AuthError::other(format!("a monitor's answer to {entity} is damaged: {other}")),
    }
}

pub(super) fn damaged(error: &DecodeError) -> AuthError {
    AuthError::other(format!("a server's answer is damaged: {error}"))
}

impl MonitorAuth {
    /// Authentication with the modes that the client accepts, the best first.
    #[must_use]
    pub fn new(credentials: Credentials, modes: &[Mode]) -> Self {
        Self { credentials, modes: modes.to_vec(), old: None, state: State::New, granted: None }
    }
}

impl ClientAuth for MonitorAuth {
    fn begin(&mut self) -> Result<AuthRequest, AuthError> {
        if self.modes.is_empty() {
            return Err(AuthError::refused("no mode is allowed on connections to monitors"));
        }
        let shared = self.credentials.0.borrow();
        // A global id without a ticket would be refused: better a new one.
        self.old = shared.old_ticket();
        let global_id = if self.old.is_some() { shared.global_id } else { 0 };
        let mut into = Encoder::new();
        into.u8(MODE_MONITOR);
        shared.entity.encode(&mut into);
        into.u64(global_id);
        self.state = State::Named;
        let modes = self.modes.clone();
        Ok(AuthRequest { method: METHOD_CEPHX, modes, payload: into.finish() })
    }

    fn more(&mut self, payload: Bytes) -> Result<Bytes, AuthError> {
        if std::mem::replace(&mut self.state, State::Over) != State::Named {
            return Err(AuthError::other("a monitor sent a challenge at the wrong time"));
        }
        let mut shared = self.credentials.0.borrow_mut();
        let challenge = decode_challenge(&mut Decoder::new(payload));
        let server_challenge = challenge.map_err(|error| damaged(&error))?;
        let payload = prove(&mut shared, server_challenge, self.old.as_ref())?;
        self.state = State::Proved { server_challenge };
        Ok(payload)
    }

    fn done(&mut self, global_id: u64, mode: Mode, payload: Bytes) -> Result<AuthDone, AuthError> {
        let state = std::mem::replace(&mut self.state, State::Over);
        let State::Proved { server_challenge } = state else {
            return Err(AuthError::other("a monitor ended the handshake before its challenge"));
        };
        let shared = self.credentials.0.borrow();
        let mut from = Decoder::new(payload);
        let (kind, status) = decode_reply_header(&mut from).map_err(|error| damaged(&error))?;
        if kind != GET_AUTH_SESSION_KEY {
            return Err(AuthError::other(format!(
                "a monitor answers a request of the kind {kind:#x}"
            )));
        }
        if status < 0 {
            let (entity, errno) = (&shared.entity, Errno(status.saturating_abs()));
            let text = format!("a monitor refuses {entity}: {errno}");
            return Err(AuthError::of_number(status, text));
        }
        if global_id == 0 {
            return Err(AuthError::other("a monitor gave no global id"));
        }
        let key = shared.key.clone().ok_or_else(|| AuthError::other("there is no key"))?;
        let grant = read_grant(&mut from, &key, self.old.as_ref().map(|(_, key)| key)).map_err(
            |error| {
                // A client that was let in before has the right key: this is damage.
                let AuthError { kind, text } = unreadable(&shared, &error);
                let kind = if self.old.is_some() { AuthErrorKind::Other } else { kind };
                AuthError { kind, text }
            },
        )?;
        let connection_secret = accept_mode(&self.modes, mode, grant.connection_secret)?;
        let (tickets, at) = (grant.tickets, shared.clock);
        self.granted = Some(Granted { global_id, server_challenge, tickets, at });
        Ok(AuthDone { session_key: grant.session_key.secret().to_vec(), connection_secret })
    }

    fn commit(&mut self) {
        let Some(granted) = self.granted.take() else { return };
        let mut shared = self.credentials.0.borrow_mut();
        shared.global_id = granted.global_id;
        shared.server_challenge = granted.server_challenge;
        shared.renewal_began = None;
        shared.take_tickets(granted.tickets, &SERVICES, granted.at);
    }

    fn refused(&mut self, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
        let state = std::mem::replace(&mut self.state, State::Over);
        let mut shared = self.credentials.0.borrow_mut();
        let entity = shared.entity.clone();
        let why = refusal(result, methods, modes);
        let has_proved = matches!(state, State::Proved { .. });
        if let Some((blob, _)) = &self.old
            && has_proved
            && Errno(result.saturating_abs()) == Errno::EACCES
        {
            // The old ticket does not count any more: its secret has been replaced. Or the key
            // was: the next try tells, without the old ticket.
            if shared.old_ticket().is_some_and(|(present, _)| present == *blob) {
                shared.forget();
            }
            let text = format!("a monitor refuses the old ticket of {entity}: {why}");
            return AuthError::old_ticket(text);
        }
        if !methods.is_empty() && !methods.contains(&METHOD_CEPHX) {
            let text = format!("the monitors do not offer cephx to {entity}: {why}");
            return AuthError::refused(text);
        }
        if !has_proved {
            let text = format!("a monitor does not accept {entity}: {why}");
            return AuthError::of_number(result, text);
        }
        let text = format!(
            "the key of {entity} does not fit the monitors' key, or they do not know {entity}: \
             {why}"
        );
        AuthError::of_number(result, text)
    }
}
