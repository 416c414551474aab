//! Keys, and what they encrypt.
//!
//! There are two kinds of keys:
//!
//! | Number | Ceph's name | Key | Encryption |
//! |---|---|---|---|
//! | 1 | `aes` | 16 bytes | AES-128 in CBC mode, with padding of PKCS #7 and always the same initial vector |
//! | 2 | `aes256k` | 32 bytes | AES-256 with authentication, as in RFC 8009: see [`aes256`](super::aes256) |
//!
//! Keys of kind 1 are what all Ceph before 20.2.4 uses. Nothing but a magic number protects what
//! they encrypt against changes: a changed byte can pass if it lies behind the magic number
//! (CVE-2025-30156). Keys of kind 2 authenticate all bytes, and a message of one
//! [usage](super::aes256::Usage) does not pass as one of another.
//!
//! With both kinds, the plain bytes begin with u8 1 and the magic number. A reader that does not
//! find it has another key.
//!
//! Encoded, a key is u16 kind, the time of its creation, u16 length, and the bytes. The text of a
//! key in a keyring is the base64 of that.

use std::fmt;

use aes::Aes128;
use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use bytes::Bytes;
use hmac::{Hmac, Mac};
use rand_chacha::rand_core::RngCore;
use sha2::Sha256;

use super::aes256::{self, Usage};
use super::base64;
use crate::encoding::{DecodeError, Decoder, Encoder, Time};

/// The length of a key for AES-128.
pub const KEY_LEN: usize = 16;
/// The initial vector of all encryption.
const INITIAL_VECTOR: &[u8; 16] = b"cephsageyudagreg";
/// Begins the plain bytes, behind a version.
const MAGIC: u64 = 0xff00_9cad_8826_aa55;

/// The kinds of keys that this client knows, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum KeyKind {
    /// AES-128; Ceph calls it `aes`.
    Aes128 = 1,
    /// AES-256 with authentication; Ceph calls it `aes256k`.
    Aes256 = 2,
}

impl KeyKind {
    /// The kind with this number.
    #[must_use]
    pub fn of(number: u16) -> Option<Self> {
        [Self::Aes128, Self::Aes256].into_iter().find(|&kind| kind as u16 == number)
    }
}

#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Aes128([u8; KEY_LEN]),
    Aes256([u8; aes256::KEY_LEN]),
}

/// A secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct CryptoKey {
    /// When it was made.
    created: Time,
    secret: Secret,
}

impl fmt::Debug for CryptoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CryptoKey(hidden)")
    }
}

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not base64.
    #[error("the key is not base64")]
    NotBase64,
    /// It is a key for another cipher.
    #[error(
        "the key has kind {0}, and this client knows the kinds 1 (AES-128, Ceph's `aes`) and 2 \
         (AES-256, Ceph's `aes256k`)"
    )]
    UnknownKind(u16),
    /// The bytes are not those of a key.
    #[error("the key is damaged: {0}")]
    Damaged(#[from] DecodeError),
}

/// Why encrypted bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// They do not decrypt: another key encrypted them, or they are damaged.
    #[error("they are damaged, or another key encrypted them")]
    OtherKey,
    /// They decrypt to other values than expected.
    #[error("{0}")]
    Damaged(#[from] DecodeError),
}

impl CryptoKey {
    /// A key for AES-128 with these bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_LEN], created: Time) -> Self {
        Self { created, secret: Secret::Aes128(secret) }
    }

    /// A random key for AES-128.
    pub fn generate(rng: &mut impl RngCore) -> Self {
        Self::generate_kind(KeyKind::Aes128, rng)
    }

    /// A random key.
    pub fn generate_kind(kind: KeyKind, rng: &mut impl RngCore) -> Self {
        let mut secret = match kind {
            KeyKind::Aes128 => Secret::Aes128([0; KEY_LEN]),
            KeyKind::Aes256 => Secret::Aes256([0; aes256::KEY_LEN]),
        };
        match &mut secret {
            Secret::Aes128(bytes) => rng.fill_bytes(bytes),
            Secret::Aes256(bytes) => rng.fill_bytes(bytes),
        }
        Self { created: Time::default(), secret }
    }

    /// The key of a text as in keyrings.
    ///
    /// # Errors
    /// It is not base64, or is not a key of a kind that this client knows.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let bytes = base64::decode(text.trim()).ok_or(KeyError::NotBase64)?;
        if let Some(&kind) = bytes.first_chunk()
            && KeyKind::of(u16::from_le_bytes(kind)).is_none()
        {
            return Err(KeyError::UnknownKind(u16::from_le_bytes(kind)));
        }
        let mut from = Decoder::new(bytes.into());
        let key = Self::decode(&mut from)?;
        if !from.is_empty() {
            let left = from.remaining() as u64;
            return Err(Decoder::refused(from.offset(), left, "bytes behind a key").into());
        }
        Ok(key)
    }

    /// The text of the key as in keyrings. It is the secret: do not show it.
    #[must_use]
    pub fn to_base64(&self) -> String {
        let mut into = Encoder::new();
        self.encode(&mut into);
        base64::encode(&into.into_vec())
    }

    /// The kind of the key.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        match self.secret {
            Secret::Aes128(_) => KeyKind::Aes128,
            Secret::Aes256(_) => KeyKind::Aes256,
        }
    }

    /// The bytes of the key. They are the secret.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        match &self.secret {
            Secret::Aes128(bytes) => bytes,
            Secret::Aes256(bytes) => bytes,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes end, the kind is not known, or the length is not that of the kind.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        let number = from.u16("the kind of a key")?;
        let Some(kind) = KeyKind::of(number) else {
            let what = "the kind of a key (1 is AES-128, 2 is AES-256)";
            return Err(Decoder::refused(offset, number.into(), what));
        };
        let created = Time::decode(from)?;
        let offset = from.offset();
        let len = from.u16("the length of a key")?;
        let secret = match (kind, usize::from(len)) {
            (KeyKind::Aes128, KEY_LEN) => Secret::Aes128(from.array("a key")?),
            (KeyKind::Aes256, aes256::KEY_LEN) => Secret::Aes256(from.array("a key")?),
            _ => return Err(Decoder::refused(offset, len.into(), "the length of a key")),
        };
        Ok(Self { created, secret })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.u16(self.kind() as u16);
        self.created.encode(into);
        into.u16(self.secret().len() as u16).bytes(self.secret());
    }

    /// Encrypts what `plain` writes, behind the magic number. AES-256 begins with random bytes and
    /// binds the message to its usage; AES-128 uses neither.
    #[must_use]
    pub fn seal(
        &self,
        usage: Usage,
        rng: &mut impl RngCore,
        plain: impl FnOnce(&mut Encoder),
    ) -> Vec<u8> {
        let mut into = Encoder::new();
        into.u8(1).u64(MAGIC);
        plain(&mut into);
        let plain = into.into_vec();
        match &self.secret {
            Secret::Aes128(secret) => encrypt(secret, &plain),
            Secret::Aes256(secret) => {
                let mut random = [0; aes256::BLOCK_LEN];
                rng.fill_bytes(&mut random);
                aes256::seal(secret, usage as u32, random, &plain)
            }
        }
    }

    /// Decrypts what [`seal`](Self::seal) made for the same usage.
    ///
    /// # Errors
    /// Another key encrypted the bytes, or they are damaged.
    pub fn open(&self, usage: Usage, sealed: &[u8]) -> Result<Decoder, OpenError> {
        let plain = match &self.secret {
            Secret::Aes128(secret) => {
                cbc::Decryptor::<Aes128>::new(secret.into(), INITIAL_VECTOR.into())
                    .decrypt_padded_vec_mut::<Pkcs7>(sealed)
                    .ok()
            }
            Secret::Aes256(secret) => aes256::open(secret, usage as u32, sealed),
        };
        let mut plain = Decoder::new(Bytes::from(plain.ok_or(OpenError::OtherKey)?));
        let what = "the magic number";
        let found =
            plain.u8(what).and_then(|_| plain.u64(what)).map_err(|_| OpenError::OtherKey)?;
        if found != MAGIC {
            return Err(OpenError::OtherKey);
        }
        Ok(plain)
    }

    /// What a client answers to a monitor's challenge: a digest of both challenges, all of whose
    /// words of 64 bits are XORed.
    ///
    /// With AES-128 the digest is the encrypted challenges, with u32 length in front. With AES-256
    /// it is HMAC-SHA-256 of the challenges.
    #[must_use]
    pub fn prove(&self, server_challenge: u64, client_challenge: u64) -> u64 {
        let mut digest = Encoder::new();
        let mut plain = Encoder::new();
        match &self.secret {
            Secret::Aes128(secret) => {
                plain.u8(1).u64(MAGIC).u64(server_challenge).u64(client_challenge);
                digest.blob(&encrypt(secret, &plain.into_vec()));
            }
            Secret::Aes256(secret) => {
                plain.u64(server_challenge).u64(client_challenge);
                let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret)
                    .expect("HMAC takes keys of any length");
                mac.update(&plain.into_vec());
                digest.bytes(&mac.finalize().into_bytes());
            }
        }
        let digest = digest.into_vec();
        let words = digest.as_chunks::<8>().0;
        words.iter().fold(0, |folded, word| folded ^ u64::from_le_bytes(*word))
    }
}

/// Encrypts with AES-128.
fn encrypt(secret: &[u8; KEY_LEN], plain: &[u8]) -> Vec<u8> {
    cbc::Encryptor::<Aes128>::new(secret.into(), INITIAL_VECTOR.into())
        .encrypt_padded_vec_mut::<Pkcs7>(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    /// From `ceph-authtool --gen-print-key` of Ceph 16.2.15.
    const TEXT: &str = "AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==";
    /// The same of Ceph 20.2.4.
    const TEXT_256: &str = "AgBz7wlrA7g3OSAAn6ERBqY+uUJEUbrOzOPqSD9Zxzj84oOCYdHJGlmT8oE=";

    fn rng() -> ChaCha20Rng {
        ChaCha20Rng::from_seed([5; 32])
    }

    #[test]
    fn reads_and_writes_keys_of_ceph_authtool() {
        let key = CryptoKey::from_base64(TEXT).expect("a key");
        assert_eq!(key.created.seconds, 0x6b09_b99c);
        assert_eq!(&key.secret()[..4], &[0x6c, 0xc8, 0x1e, 0xec]);
        assert_eq!(key.to_base64(), TEXT);
        let key = CryptoKey::from_base64(TEXT_256).expect("a key");
        assert_eq!((key.kind(), key.created.seconds), (KeyKind::Aes256, 0x6b09_ef73));
        assert_eq!((&key.secret()[..3], key.secret().len()), (&[0x9f, 0xa1, 0x11][..], 32));
        assert_eq!(key.to_base64(), TEXT_256);
        assert_eq!(format!("{key:?}"), "CryptoKey(hidden)");
    }

    #[test]
    fn refuses_texts_that_are_no_keys() {
        assert_eq!(CryptoKey::from_base64("hello"), Err(KeyError::NotBase64));
        let cut = CryptoKey::from_base64("AQCcuQlr2rZeHxAAbMge7JV2");
        assert!(matches!(cut, Err(KeyError::Damaged(_))));
        for text in [TEXT, TEXT_256] {
            let bytes = base64::decode(text).expect("base64");
            for (at, value) in [(0, 3 - bytes[0]), (10, 48 - bytes[10])] {
                let mut other = bytes.clone();
                other[at] = value;
                assert!(CryptoKey::from_base64(&base64::encode(&other)).is_err());
            }
            let long = [&bytes[..], &[0, 0]].concat();
            assert!(CryptoKey::from_base64(&base64::encode(&long)).is_err());
            for len in 0..bytes.len() {
                assert!(CryptoKey::from_base64(&base64::encode(&bytes[..len])).is_err());
            }
        }
    }

    #[test]
    fn names_a_kind_that_it_does_not_know() {
        let mut bytes = base64::decode(TEXT).expect("base64");
        bytes[0] = 3;
        let error = CryptoKey::from_base64(&base64::encode(&bytes)).expect_err("unknown");
        assert_eq!(error, KeyError::UnknownKind(3));
        let text = error.to_string();
        assert!(text.starts_with("the key has kind 3") && text.contains("aes256k"), "{text}");
    }

    #[test]
    fn golden_vectors_of_openssl() {
        // From `openssl enc -aes-128-cbc` over the plain bytes, with key and vector.
        let key = CryptoKey::new(*b"1234567890123456", Time::default());
        let sealed = key.seal(Usage::TicketKey, &mut rng(), |into| {
            into.u64(0x1122_3344_5566_7788).u64(0x99aa_bbcc_ddee_ff00);
        });
        assert_eq!(hex(&sealed), GOLDEN_SEALED);
        assert_eq!(key.prove(0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00), GOLDEN_PROOF);
    }

    const GOLDEN_SEALED: &str = "2ba3af0e183275c7bf7ebc021638ca0d193716b6c7efa491eef7697bc06d721e";
    const GOLDEN_PROOF: u64 = 0xc16c_1d63_5b1b_e5e9;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From `openssl dgst -sha256 -mac HMAC` over both challenges, folded by hand.
    #[test]
    fn golden_proof_of_a_key_of_256_bits() {
        let key = CryptoKey::from_base64(TEXT_256).expect("a key");
        assert_eq!(key.prove(0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00), GOLDEN_PROOF_256);
    }

    const GOLDEN_PROOF_256: u64 = 0x2ea2_6674_07e0_da73;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn opens_only_with_the_same_key(
            seeds in [any::<[u8; 32]>(), any::<[u8; 32]>()],
            wide: bool,
            plain in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let kind = if wide { KeyKind::Aes256 } else { KeyKind::Aes128 };
            let [key, stranger] =
                seeds.map(|seed| CryptoKey::generate_kind(kind, &mut ChaCha20Rng::from_seed(seed)));
            let usage = Usage::Authorize;
            let sealed = key.seal(usage, &mut rng(), |into| { into.bytes(&plain); });
            let opened = key.open(usage, &sealed).expect("own key").take_rest();
            prop_assert_eq!(&opened[..], &plain[..]);
            prop_assert!(key == stranger || stranger.open(usage, &sealed).is_err());
            // Only keys of 256 bits tell a message of another usage.
            prop_assert_eq!(key.open(Usage::AuthorizeReply, &sealed).is_err(), wide);
            for len in 0..sealed.len() {
                // Cut bytes fail or, with AES-128 at a whole block, give other bytes; they never
                // panic.
                let opened = key.open(usage, &sealed[..len]);
                prop_assert!(!wide || opened.is_err());
            }
        }
    }
}
