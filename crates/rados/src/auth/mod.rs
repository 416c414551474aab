//! Authentication: how a client proves who it is, to monitors and to OSDs.
//!
//! # cephx
//!
//! Ceph's method is *cephx*, in the manner of Kerberos. A client shares one secret key with the
//! monitors. It never sends the key.
//!
//! 1. **To a monitor.** The client names itself. The monitor sends a random challenge. The client
//!    adds a challenge of its own, and answers with both, encrypted by its key and folded to 64
//!    bits. The monitor computes the same. Then it gives a *ticket* for itself (kind `auth`), and
//!    further tickets for the services that the client asks for (`osd`, `mgr`).
//! 2. **A ticket** has two halves. The client can read one: a session key and how long it is valid.
//!    The other is a blob that only the service can read: the same session key, the client's name
//!    and what it may do. It is encrypted by a secret that monitors and service share, and that
//!    changes every hour.
//! 3. **To an OSD.** The client sends an *authorizer*: the blob, and a random number encrypted by
//!    the session key. The OSD sends a challenge, encrypted by the session key. The client sends
//!    the authorizer again, with the challenge plus one. The OSD proves itself by the client's
//!    number plus one.
//! 4. **Renewal.** Before a ticket ends, the client asks a monitor for the next one, over its open
//!    session: see [`renewal`].
//!
//! Each connection gets keys for the mode *secure* in the last message of the handshake.
//!
//! # Parts
//!
//! [`Credentials`] is what all connections of a client share. It makes the [`ClientAuth`] of each
//! connection: [`monitor`] and [`authorizer`] are the two sides of cephx, [`none`] is the method
//! without keys. [`server`] is the other side, for models of clusters. [`secret`] has keys,
//! [`aes256`] the encryption by the newer ones, [`ticket`] has tickets, [`wire`] has the encodings.
//!
//! # Failure rules
//!
//! * A wrong key shows in one of two ways: the monitor refuses the answer, or the client cannot
//!   read the ticket. Both give an [`AuthError`] that names the entity.
//! * A service that refuses an authorizer makes the ticket invalid
//!   ([`Credentials::ticket_refused`]). So the next step of a client is a renewal, and not the same
//!   refusal again.
//! * A monitor that refuses an old ticket makes the client forget its global id. The next
//!   connection asks for a new one. So this refusal is not one of the client
//!   ([`AuthErrorKind::OldTicket`]).
//! * A client may shake hands with several monitors at once. What each of them gave stays with its
//!   connection until the client says which one it uses ([`ClientAuth::commit`]).
//! * Bytes of a peer never cause a panic. Encrypted parts carry a magic number, so bytes of another
//!   key are recognised. Keys of 256 bits also authenticate them; those of 128 bits do not.

pub mod aes256;
pub mod authorizer;
mod base64;
pub mod credentials;
pub mod entity;
pub mod monitor;
pub mod none;
pub mod renewal;
pub mod secret;
pub mod server;
#[cfg(test)]
mod tests;
pub mod ticket;
pub mod wire;

use bytes::Bytes;

use crate::errno::Errno;
pub use credentials::{Credentials, Renewal};
pub use entity::Entity;
pub use none::NoneAuth;
pub use secret::{CryptoKey, KeyKind};

/// The number of the method without keys.
pub const METHOD_NONE: u32 = 1;
/// The number of cephx.
pub const METHOD_CEPHX: u32 = 2;

/// Bytes of a connection's secret that mode secure needs: a key and two nonces.
pub const SECURE_SECRET_LEN: usize = 16 + 12 + 12;

/// The modes of a connection, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Mode {
    /// Frames have checksums.
    Crc = 1,
    /// Frames are encrypted and authenticated.
    Secure = 2,
}

impl Mode {
    /// The mode with this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        [Mode::Crc, Mode::Secure].into_iter().find(|&mode| mode as u32 == number)
    }

    /// The name, as in options of Ceph.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Crc => "crc",
            Mode::Secure => "secure",
        }
    }
}

/// The first message of a client's authentication on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRequest {
    /// The method: 2 is cephx, 1 is none.
    pub method: u32,
    /// The modes that the client accepts, the best first.
    pub modes: Vec<Mode>,
    /// The method's bytes.
    pub payload: Bytes,
}

/// The outcome of authentication on a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthDone {
    /// The key that signs the rest of the handshake; empty with method none.
    pub session_key: Vec<u8>,
    /// Keys of secure mode: 16 bytes key, 12 bytes nonce of the server's direction, 12 bytes nonce
    /// of the client's; more bytes may follow. Empty in mode crc.
    pub connection_secret: Vec<u8>,
}

impl std::fmt::Debug for AuthDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, secret) = (self.session_key.len(), self.connection_secret.len());
        write!(f, "AuthDone(a key of {key} bytes, a secret of {secret} bytes)")
    }
}

/// What a failure of authentication says about the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthErrorKind {
    /// The client, as it is set up, is not let in: its key, its entity or its method is refused,
    /// and it did not show an old ticket. Another try at this server ends in the same way.
    Refused,
    /// A ticket is refused, because the secret that encrypts it has been replaced. The client has
    /// forgotten the ticket, so the next try may succeed.
    OldTicket,
    /// Anything else: damaged bytes, a message at the wrong time, a server that is busy.
    Other,
}

/// Why authentication fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AuthError {
    /// What it says about the next try.
    pub kind: AuthErrorKind,
    /// The reason, for a person.
    pub text: String,
}

impl AuthError {
    /// A failure of the kind [`AuthErrorKind::Other`].
    pub fn other(text: impl Into<String>) -> Self {
        Self { kind: AuthErrorKind::Other, text: text.into() }
    }

    /// A failure of the kind [`AuthErrorKind::Refused`].
    pub fn refused(text: impl Into<String>) -> Self {
        Self { kind: AuthErrorKind::Refused, text: text.into() }
    }

    /// A failure of the kind [`AuthErrorKind::OldTicket`].
    pub fn old_ticket(text: impl Into<String>) -> Self {
        Self { kind: AuthErrorKind::OldTicket, text: text.into() }
    }

    /// The refusal of a client by a server with this error number. Errors such as "busy" say
    /// nothing about the client.
    fn of_number(number: i32, text: String) -> Self {
        match Errno(number.saturating_abs()) {
            Errno::EACCES | Errno::EPERM | Errno::EOPNOTSUPP => Self::refused(text),
            _ => Self::other(text),
        }
    }
}

/// The client's side of authentication on one connection.
pub trait ClientAuth {
    /// The first message.
    fn begin(&mut self) -> Result<AuthRequest, AuthError>;

    /// The server wants more: the answer to its bytes.
    fn more(&mut self, payload: Bytes) -> Result<Bytes, AuthError>;

    /// The server is content, with this mode, and gave the client this global id.
    ///
    /// Nothing that other connections see changes before [`ClientAuth::commit`].
    fn done(&mut self, global_id: u64, mode: Mode, payload: Bytes) -> Result<AuthDone, AuthError>;

    /// The connection is used from now on: what the server gave (global id, tickets) becomes what
    /// all connections of the client share. A client that tries several monitors at once calls it
    /// for the one that it chose, and for no other.
    fn commit(&mut self) {}

    /// The server refuses (the frame `AUTH_BAD_METHOD`): its result, negative or positive, and the
    /// methods and modes that it takes. The answer says why, in words for a person. The connection
    /// is over.
    fn refused(&mut self, result: i32, methods: &[u32], modes: &[u32]) -> AuthError {
        AuthError::of_number(result, refusal(result, methods, modes))
    }
}

/// A refusal in words: the error, and what the server takes.
fn refusal(result: i32, methods: &[u32], modes: &[u32]) -> String {
    let errno = Errno(result.saturating_abs());
    let name = |number: &u32| match *number {
        METHOD_NONE => "none".to_owned(),
        METHOD_CEPHX => "cephx".to_owned(),
        4 => "gss".to_owned(),
        other => format!("method {other}"),
    };
    let methods: Vec<String> = methods.iter().take(8).map(name).collect();
    let modes: Vec<&str> =
        modes.iter().take(8).filter_map(|&m| Mode::of(m)).map(Mode::name).collect();
    format!(
        "the server refuses: {errno}; it takes the methods [{}] in the modes [{}]",
        methods.join(", "),
        modes.join(", ")
    )
}

/// Checks the mode that a server chose, and the secret that comes with it.
fn accept_mode(offered: &[Mode], mode: Mode, secret: Vec<u8>) -> Result<Vec<u8>, AuthError> {
    if !offered.contains(&mode) {
        let name = mode.name();
        return Err(AuthError::other(format!(
            "the server chose the mode {name}, which was not offered"
        )));
    }
    match mode {
        Mode::Crc => Ok(Vec::new()),
        Mode::Secure if secret.len() >= SECURE_SECRET_LEN => Ok(secret),
        Mode::Secure => Err(AuthError::other(format!(
            "the server's secret for mode secure has {} bytes, and {SECURE_SECRET_LEN} are needed",
            secret.len()
        ))),
    }
}

/// The answer of a server to a message of a client's authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAnswer {
    /// The server wants more.
    More(Bytes),
    /// The server is content.
    Done {
        /// The client's global id.
        global_id: u64,
        /// The mode of the connection.
        mode: Mode,
        /// The method's bytes for the client.
        payload: Bytes,
        /// The keys of the connection.
        done: AuthDone,
    },
    /// The server refuses the method, with an error number, and names what it takes.
    BadMethod {
        /// Positive error number.
        errno: i32,
        /// The methods that it takes.
        methods: Vec<u32>,
        /// The modes that it takes.
        modes: Vec<Mode>,
    },
}

/// The server's side of authentication on one connection, for models of clusters.
pub trait ServerAuth {
    /// The client's first message.
    fn begin(&mut self, request: &AuthRequest) -> ServerAnswer;
    /// A later message.
    fn more(&mut self, payload: Bytes) -> ServerAnswer;
}
