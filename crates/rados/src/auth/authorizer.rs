//! cephx on a connection to a service (OSD or manager), the client's side.
//!
//! ```text
//! client                                        service
//!   authorizer: ticket, sealed(nonce)             ->
//!                                                 <-  challenge, encrypted (AUTH_REPLY_MORE)
//!   authorizer: ticket, sealed(nonce, challenge + 1) ->
//!                                                 <-  sealed(nonce + 1, secret) (AUTH_DONE)
//! ```
//!
//! The challenge is encrypted like the other parts, but no length stands in front of it. A service
//! may leave the challenge out.
//!
//! It shares nothing with the client's credentials, so it may go to another core with its
//! connection. If the service refuses the ticket, the owner of the credentials has to tell them:
//! [`Credentials::ticket_refused`](super::Credentials::ticket_refused).

use bytes::Bytes;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::RngCore;

use super::aes256::Usage;
use super::monitor::damaged;
use super::ticket::Ticket;
use super::wire::{Authorize, AuthorizeReply, Authorizer, decode_challenge, open_blob};
use super::{
    AuthDone, AuthError, AuthRequest, ClientAuth, Entity, METHOD_CEPHX, Mode, accept_mode, refusal,
};
use crate::encoding::{Decoder, Encoder, EntityKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    /// The client showed its ticket.
    Shown,
    /// The client answered a challenge.
    Answered,
    Over,
}

/// cephx on a connection to a service.
pub struct AuthorizerAuth {
    entity: Entity,
    global_id: u64,
    rng: ChaCha20Rng,
    kind: EntityKind,
    ticket: Ticket,
    modes: Vec<Mode>,
    nonce: u64,
    state: State,
}

impl AuthorizerAuth {
    /// Authentication of a client, by its name and global id, with this ticket and the modes that
    /// the client accepts, the best first. `rng` must be secret and new for each connection.
    #[must_use]
    pub fn new(
        (entity, global_id): (Entity, u64),
        rng: ChaCha20Rng,
        kind: EntityKind,
        ticket: Ticket,
        modes: &[Mode],
    ) -> Self {
        let modes = modes.to_vec();
        Self { entity, global_id, rng, kind, ticket, modes, nonce: 0, state: State::New }
    }

    fn authorizer(&mut self, challenge_plus_one: Option<u64>) -> Bytes {
        let (kind, blob) = (self.kind as u32, self.ticket.blob.clone());
        let authorizer = Authorizer { global_id: self.global_id, kind, blob };
        let authorize = Authorize { nonce: self.nonce, challenge_plus_one };
        let mut into = Encoder::new();
        authorizer.encode(&self.ticket.session_key, authorize, &mut self.rng, &mut into);
        into.finish()
    }
}

impl ClientAuth for AuthorizerAuth {
    fn begin(&mut self) -> Result<AuthRequest, AuthError> {
        if self.modes.is_empty() {
            return Err(AuthError::other("no mode is allowed on connections to services"));
        }
        self.nonce = self.rng.next_u64();
        self.state = State::Shown;
        let (modes, payload) = (self.modes.clone(), self.authorizer(None));
        Ok(AuthRequest { method: METHOD_CEPHX, modes, payload })
    }

    fn more(&mut self, payload: Bytes) -> Result<Bytes, AuthError> {
        if std::mem::replace(&mut self.state, State::Over) != State::Shown {
            return Err(AuthError::other("a service sent a challenge at the wrong time"));
        }
        let mut plain =
            self.ticket.session_key.open(Usage::Challenge, &payload).map_err(|error| {
                AuthError::other(format!("the challenge of a service cannot be read: {error}"))
            })?;
        let challenge = decode_challenge(&mut plain).map_err(|error| damaged(&error))?;
        self.state = State::Answered;
        Ok(self.authorizer(Some(challenge.wrapping_add(1))))
    }

    fn done(&mut self, _: u64, mode: Mode, payload: Bytes) -> Result<AuthDone, AuthError> {
        let state = std::mem::replace(&mut self.state, State::Over);
        if !matches!(state, State::Shown | State::Answered) {
            return Err(AuthError::other("a service ended the handshake at the wrong time"));
        }
        let key = &self.ticket.session_key;
        let what = "a service's reply to an authorizer";
        let mut plain = open_blob(&mut Decoder::new(payload), key, Usage::AuthorizeReply, what)
            .map_err(|error| {
                AuthError::other(format!("the service does not prove itself: {error}"))
            })?;
        let reply = AuthorizeReply::decode(&mut plain).map_err(|error| damaged(&error))?;
        if reply.nonce_plus_one != self.nonce.wrapping_add(1) {
            let name = self.kind.name();
            return Err(AuthError::other(format!(
                "the service {name} does not prove itself: it answers another request"
            )));
        }
        let connection_secret = accept_mode(&self.modes, mode, reply.connection_secret)?;
        Ok(AuthDone { session_key: key.secret().to_vec(), connection_secret })
    }

    fn refused(&mut self, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
        self.state = State::Over;
        let (entity, name) = (&self.entity, self.kind.name());
        let why = refusal(result, methods, modes);
        AuthError::old_ticket(format!("the service {name} refuses the ticket of {entity}: {why}"))
    }
}
