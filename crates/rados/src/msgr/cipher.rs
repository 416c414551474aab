//! The encryption of one direction of a connection: AES-128-GCM.
//!
//! A nonce has four fixed bytes and a 64-bit counter, which grows by one with each sealed block. It
//! does not repeat: a connection would have to seal 2^64 blocks. Both nonces come from the
//! connection's secret. Its first 16 bytes are the key, the next 12 are the first nonce of what the
//! *server* sends, the next 12 that of what the *client* sends. (Ceph: `crypto_onwire.cc`.)

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes128Gcm, Nonce, Tag};

/// The length of the seal behind each block.
pub(super) const SEAL_BYTES: usize = 16;

const KEY_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
/// The part of a connection's secret that is used; Ceph's cephx gives more.
const SECRET_BYTES: usize = KEY_BYTES + 2 * NONCE_BYTES;

/// Seals or opens the blocks of one direction, in order.
pub(super) struct Cipher {
    key: Aes128Gcm,
    fixed: [u8; 4],
    counter: u64,
}

impl Cipher {
    /// The ciphers for what the server sends and for what the client sends; none if the secret is
    /// too short.
    pub(super) fn pair(secret: &[u8]) -> Option<(Self, Self)> {
        if secret.len() < SECRET_BYTES {
            return None;
        }
        let (key, nonces) = secret.split_at(KEY_BYTES);
        let from_server = Self::new(key, &nonces[..NONCE_BYTES])?;
        let from_client = Self::new(key, &nonces[NONCE_BYTES..2 * NONCE_BYTES])?;
        Some((from_server, from_client))
    }

    fn new(key: &[u8], nonce: &[u8]) -> Option<Self> {
        let key = Aes128Gcm::new_from_slice(key).ok()?;
        let fixed = nonce[..4].try_into().ok()?;
        let counter = u64::from_le_bytes(nonce[4..].try_into().ok()?);
        Some(Self { key, fixed, counter })
    }

    fn next_nonce(&mut self) -> [u8; NONCE_BYTES] {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..4].copy_from_slice(&self.fixed);
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        nonce
    }

    /// Encrypts a block in place, and gives its seal.
    pub(super) fn seal(&mut self, block: &mut [u8]) -> [u8; SEAL_BYTES] {
        let nonce = self.next_nonce();
        self.key
            .encrypt_in_place_detached(Nonce::from_slice(&nonce), &[], block)
            .expect("frames are far shorter than the 64 GiB that GCM allows")
            .into()
    }

    /// Decrypts a block in place. False, with the block unchanged, if its seal is wrong.
    #[must_use]
    pub(super) fn open(&mut self, block: &mut [u8], seal: [u8; SEAL_BYTES]) -> bool {
        let nonce = self.next_nonce();
        let (nonce, seal) = (Nonce::from_slice(&nonce), Tag::from_slice(&seal));
        self.key.decrypt_in_place_detached(nonce, &[], block, seal).is_ok()
    }
}
