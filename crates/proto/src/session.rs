//! The seals of messages between a client of a pool and the pool's metadata service.
//!
//! Both sides have the client's secret. At the beginning, each side names a random number. From
//! these, the secret, the pool and the client's name, both sides derive the key of the session. It
//! seals every message, together with its sender and its number in the session. So a message of
//! another session, of the other side, or from another place in the session has another seal. The
//! seals protect against forgery. They keep nothing secret: as with capabilities, the network is
//! trusted not to be read.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::ConstantTimeEq;

use crate::ids::PoolId;

/// The secret of a client, which it shares with the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClientSecret(pub [u8; 16]);

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(secret)")
    }
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client of the pool.
    Client,
    /// The pool's metadata service.
    Service,
}

/// The key of a session.
#[derive(Clone, Copy)]
pub struct SessionKey([u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(secret)")
    }
}

impl SessionKey {
    /// The key of the session in which the sides chose these numbers.
    #[must_use]
    pub fn derive(
        secret: &ClientSecret,
        pool: PoolId,
        client: &str,
        (by_client, by_service): (u128, u128),
    ) -> Self {
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        hasher.write(b"fieldstone metadata session");
        hasher.write(&pool.0.to_le_bytes());
        hasher.write(&by_client.to_le_bytes());
        hasher.write(&by_service.to_le_bytes());
        // The only part of variable length, so it is the last one.
        hasher.write(client.as_bytes());
        Self(hasher.finish128().as_bytes())
    }

    /// The seal of a message: of its sender, its number among the messages of this sender, from 0,
    /// and its bytes.
    #[must_use]
    pub fn seal(&self, sender: Side, number: u64, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[match sender {
            Side::Client => 0,
            Side::Service => 1,
        }]);
        hasher.write(&number.to_le_bytes());
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }

    /// True if `seal` is that of the message. The time for this does not depend on the seal.
    #[must_use]
    pub fn is_seal(&self, seal: &[u8; 16], sender: Side, number: u64, bytes: &[u8]) -> bool {
        self.seal(sender, number, bytes).ct_eq(seal).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: ClientSecret = ClientSecret([9; 16]);
    const POOL: PoolId = PoolId(0x77);

    #[test]
    fn a_seal_is_of_one_message_at_one_place_of_one_session() {
        let key = SessionKey::derive(&SECRET, POOL, "web", (1, 2));
        let seal = key.seal(Side::Client, 3, b"ping");
        assert!(key.is_seal(&seal, Side::Client, 3, b"ping"));
        assert!(!key.is_seal(&seal, Side::Service, 3, b"ping"), "sent back to its sender");
        assert!(!key.is_seal(&seal, Side::Client, 4, b"ping"), "sent again");
        assert!(!key.is_seal(&seal, Side::Client, 3, b"pong"));
        for other in [
            SessionKey::derive(&ClientSecret([8; 16]), POOL, "web", (1, 2)),
            SessionKey::derive(&SECRET, PoolId(0x78), "web", (1, 2)),
            SessionKey::derive(&SECRET, POOL, "wex", (1, 2)),
            SessionKey::derive(&SECRET, POOL, "web", (2, 2)),
            SessionKey::derive(&SECRET, POOL, "web", (1, 3)),
        ] {
            assert!(!other.is_seal(&seal, Side::Client, 3, b"ping"));
        }
    }

    #[test]
    fn secrets_are_in_no_log() {
        let key = SessionKey::derive(&SECRET, POOL, "web", (1, 2));
        assert_eq!(format!("{SECRET:?} {key:?}"), "ClientSecret(secret) SessionKey(secret)");
    }
}
