//! The method none: a client only names itself.
//!
//! To a monitor it sends what cephx sends first. To a service it sends u8 1, its entity and its
//! global id. There is no key, so the only mode is crc.

use bytes::Bytes;

use super::wire::MODE_MONITOR;
use super::{
    AuthDone, AuthError, AuthRequest, ClientAuth, Credentials, METHOD_CEPHX, METHOD_NONE, Mode,
    ServerAnswer, ServerAuth, accept_mode, refusal,
};
use crate::encoding::{Decoder, Encoder, EntityKind};
use crate::errno::Errno;

use super::Entity;

/// The method none, on a connection to a monitor.
pub struct NoneAuth {
    credentials: Credentials,
    modes: Vec<Mode>,
    /// The global id that the monitor gave, until the connection is chosen.
    granted: Option<u64>,
}

impl NoneAuth {
    /// For a connection to a monitor.
    #[must_use]
    pub fn monitor(credentials: Credentials, modes: &[Mode]) -> Self {
        Self { credentials, modes: modes.to_vec(), granted: None }
    }
}

/// The method none, on a connection to a service. Like the authorizer of cephx, it shares nothing
/// with the credentials.
pub struct NoneServiceAuth {
    entity: Entity,
    global_id: u64,
    modes: Vec<Mode>,
}

impl NoneServiceAuth {
    /// For a client of this name and global id.
    #[must_use]
    pub fn new(entity: Entity, global_id: u64, modes: &[Mode]) -> Self {
        Self { entity, global_id, modes: modes.to_vec() }
    }
}

fn begin(
    first: u8,
    entity: &Entity,
    global_id: u64,
    modes: &[Mode],
) -> Result<AuthRequest, AuthError> {
    if !modes.contains(&Mode::Crc) {
        return Err(AuthError::refused(format!(
            "{entity} has no key, and the mode secure is demanded, which needs one"
        )));
    }
    let mut into = Encoder::new();
    into.u8(first);
    entity.encode(&mut into);
    into.u64(global_id);
    Ok(AuthRequest { method: METHOD_NONE, modes: vec![Mode::Crc], payload: into.finish() })
}

fn done(mode: Mode) -> Result<AuthDone, AuthError> {
    accept_mode(&[Mode::Crc], mode, Vec::new())?;
    Ok(AuthDone { session_key: Vec::new(), connection_secret: Vec::new() })
}

fn refused(entity: &Entity, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
    let why = refusal(result, methods, modes);
    if methods.contains(&METHOD_CEPHX) {
        let text = format!("the server demands cephx, and {entity} has no key: {why}");
        return AuthError::refused(text);
    }
    AuthError::of_number(result, format!("the server does not accept {entity}: {why}"))
}

fn no_challenge() -> AuthError {
    AuthError::other("the server sent a challenge, and the method none has none")
}

impl ClientAuth for NoneAuth {
    fn begin(&mut self) -> Result<AuthRequest, AuthError> {
        let shared = self.credentials.0.borrow();
        begin(MODE_MONITOR, &shared.entity, shared.global_id, &self.modes)
    }

    fn more(&mut self, _: Bytes) -> Result<Bytes, AuthError> {
        Err(no_challenge())
    }

    fn done(&mut self, global_id: u64, mode: Mode, _: Bytes) -> Result<AuthDone, AuthError> {
        let done = done(mode)?;
        self.granted = Some(global_id);
        Ok(done)
    }

    fn commit(&mut self) {
        if let Some(global_id) = self.granted.take() {
            self.credentials.0.borrow_mut().global_id = global_id;
        }
    }

    fn refused(&mut self, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
        refused(&self.credentials.entity(), result, methods, modes)
    }
}

impl ClientAuth for NoneServiceAuth {
    fn begin(&mut self) -> Result<AuthRequest, AuthError> {
        begin(1, &self.entity, self.global_id, &self.modes)
    }

    fn more(&mut self, _: Bytes) -> Result<Bytes, AuthError> {
        Err(no_challenge())
    }

    fn done(&mut self, _: u64, mode: Mode, _: Bytes) -> Result<AuthDone, AuthError> {
        done(mode)
    }

    fn refused(&mut self, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
        refused(&self.entity, result, methods, modes)
    }
}

/// The server's side of the method none, for models of clusters.
pub struct NoneServer {
    /// The global id of the next client that has none.
    pub new_global_id: u64,
}

impl ServerAuth for NoneServer {
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
        let refused = ServerAnswer::BadMethod {
            errno: Errno::EOPNOTSUPP.0,
            methods: vec![METHOD_NONE],
            modes: vec![Mode::Crc],
        };
        let mut from = Decoder::new(request.payload.clone());
        let mut named = || {
            from.u8("the mode of authentication")?;
            let entity = Entity::decode(&mut from)?;
            Ok::<_, crate::encoding::DecodeError>((entity, from.u64("a global id")?))
        };
        match named() {
            Ok((entity, global_id))
                if entity.kind == EntityKind::Client
                    && request.method == METHOD_NONE
                    && request.modes.contains(&Mode::Crc) =>
            {
                ServerAnswer::Done {
                    global_id: if global_id == 0 { self.new_global_id } else { global_id },
                    mode: Mode::Crc,
                    payload: Bytes::new(),
                    done: AuthDone { session_key: Vec::new(), connection_secret: Vec::new() },
                }
            }
            _ => refused,
        }
    }

    fn more(&mut self, _: Bytes) -> ServerAnswer {
        ServerAnswer::BadMethod {
            errno: Errno::EINVAL.0,
            methods: vec![METHOD_NONE],
            modes: vec![Mode::Crc],
        }
    }
}
