//! Keys, and what they encrypt.
//!
//! A key of kind 1 is 16 bytes for AES-128. Ceph encrypts in CBC mode with padding of PKCS #7 and
//! always the same initial vector. The plain bytes begin with u8 1 and a magic number; a reader
//! that does not find it has another key. There is no other protection against changes: a
//! changed byte can pass if it lies behind the magic number.
//!
//! Encoded, a key is u16 kind, the time of its creation, u16 length, and the bytes. The text of a
//! key in a keyring is the base64 of that.

use std::fmt;

use aes::Aes128;
use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use bytes::Bytes;
use rand_chacha::rand_core::RngCore;

use super::base64;
use crate::encoding::{DecodeError, Decoder, Encoder, Time};

/// The kind of a key for AES-128.
const KIND_AES: u16 = 1;
/// The length of a key for AES-128.
pub const KEY_LEN: usize = 16;
/// The initial vector of all encryption.
const INITIAL_VECTOR: &[u8; 16] = b"cephsageyudagreg";
/// Begins the plain bytes, behind a version.
const MAGIC: u64 = 0xff00_9cad_8826_aa55;

/// A secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct CryptoKey {
    /// When it was made.
    created: Time,
    secret: [u8; KEY_LEN],
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
    /// A key with these bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_LEN], created: Time) -> Self {
        Self { created, secret }
    }

    /// A random key.
    pub fn generate(rng: &mut impl RngCore) -> Self {
        let mut secret = [0; KEY_LEN];
        rng.fill_bytes(&mut secret);
        Self { created: Time::default(), secret }
    }

    /// The key of a text as in keyrings.
    ///
    /// # Errors
    /// It is not base64, or is not a key of AES-128.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        let bytes = base64::decode(text.trim()).ok_or(KeyError::NotBase64)?;
        let mut from = Decoder::new(bytes.into());
        let key = Self::decode(&mut from)?;
        if !from.is_empty() {
            let left = from.remaining() as u64;
            return Err(Decoder::refused(from.offset(), left, "bytes behind a key").into());
        }
        Ok(key)
    }

    /// The text of the key as in keyrings. It is the secret: show it to nobody.
    #[must_use]
    pub fn to_base64(&self) -> String {
        let mut into = Encoder::new();
        self.encode(&mut into);
        base64::encode(&into.into_vec())
    }

    /// The bytes of the key. They are the secret.
    #[must_use]
    pub fn secret(&self) -> &[u8; KEY_LEN] {
        &self.secret
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes end, or the kind or the length is not that of AES-128.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        let kind = from.u16("the kind of a key")?;
        if kind != KIND_AES {
            return Err(Decoder::refused(offset, kind.into(), "the kind of a key (1 is AES-128)"));
        }
        let created = Time::decode(from)?;
        let offset = from.offset();
        let len = from.u16("the length of a key")?;
        if usize::from(len) != KEY_LEN {
            return Err(Decoder::refused(offset, len.into(), "the length of a key"));
        }
        Ok(Self { created, secret: from.array("a key")? })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.u16(KIND_AES);
        self.created.encode(into);
        into.u16(KEY_LEN as u16).bytes(&self.secret);
    }

    /// Encrypts what `plain` writes, behind the magic number.
    #[must_use]
    pub fn seal(&self, plain: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let mut into = Encoder::new();
        into.u8(1).u64(MAGIC);
        plain(&mut into);
        let cipher = cbc::Encryptor::<Aes128>::new(&self.secret.into(), INITIAL_VECTOR.into());
        cipher.encrypt_padded_vec_mut::<Pkcs7>(&into.into_vec())
    }

    /// Decrypts what [`seal`](Self::seal) made.
    ///
    /// # Errors
    /// Another key encrypted the bytes, or they are damaged.
    pub fn open(&self, sealed: &[u8]) -> Result<Decoder, OpenError> {
        let cipher = cbc::Decryptor::<Aes128>::new(&self.secret.into(), INITIAL_VECTOR.into());
        let plain = cipher.decrypt_padded_vec_mut::<Pkcs7>(sealed);
        let mut plain = Decoder::new(Bytes::from(plain.map_err(|_| OpenError::OtherKey)?));
        let what = "the magic number";
        let found =
            plain.u8(what).and_then(|_| plain.u64(what)).map_err(|_| OpenError::OtherKey)?;
        if found != MAGIC {
            return Err(OpenError::OtherKey);
        }
        Ok(plain)
    }

    /// What a client answers to a monitor's challenge: both challenges, encrypted, with the length
    /// in front, and then all whole words of 64 bits of that XORed.
    #[must_use]
    pub fn prove(&self, server_challenge: u64, client_challenge: u64) -> u64 {
        let sealed = self.seal(|into| {
            into.u64(server_challenge).u64(client_challenge);
        });
        let mut blob = Encoder::with_capacity(4 + sealed.len());
        blob.blob(&sealed);
        let blob = blob.into_vec();
        let words = blob.as_chunks::<8>().0;
        words.iter().fold(0, |folded, word| folded ^ u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// From `ceph-authtool --gen-print-key` of Ceph 16.2.15.
    const TEXT: &str = "AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==";

    #[test]
    fn reads_and_writes_keys_of_ceph_authtool() {
        let key = CryptoKey::from_base64(TEXT).expect("a key");
        assert_eq!(key.created.seconds, 0x6b09_b99c);
        assert_eq!(&key.secret[..4], &[0x6c, 0xc8, 0x1e, 0xec]);
        assert_eq!(key.to_base64(), TEXT);
        assert_eq!(format!("{key:?}"), "CryptoKey(hidden)");
    }

    #[test]
    fn refuses_texts_that_are_no_keys() {
        assert_eq!(CryptoKey::from_base64("hello"), Err(KeyError::NotBase64));
        let cut = CryptoKey::from_base64("AQCcuQlr2rZeHxAAbMge7JV2");
        assert!(matches!(cut, Err(KeyError::Damaged(_))));
        let bytes = base64::decode(TEXT).expect("base64");
        for (at, value) in [(0, 2), (10, 32)] {
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

    #[test]
    fn golden_vectors_of_openssl() {
        // From `openssl enc -aes-128-cbc` over the plain bytes, with key and vector.
        let key = CryptoKey::new(*b"1234567890123456", Time::default());
        let sealed = key.seal(|into| {
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn opens_only_with_the_same_key(
            one: [u8; KEY_LEN],
            other: [u8; KEY_LEN],
            plain in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let (key, stranger) =
                (CryptoKey::new(one, Time::default()), CryptoKey::new(other, Time::default()));
            let sealed = key.seal(|into| { into.bytes(&plain); });
            prop_assert_eq!(&key.open(&sealed).expect("own key").take_rest()[..], &plain[..]);
            prop_assert!(one == other || stranger.open(&sealed).is_err());
            for len in 0..sealed.len() {
                // Cut bytes fail or, at a whole block, give other bytes; they never panic.
                let _ = key.open(&sealed[..len]);
            }
        }
    }
}
