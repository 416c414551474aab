//! Deriving keys from passphrases, with bounds on the time and the memory that a header may ask
//! for.

use argon2::{Algorithm, Argon2, Params, Version};
use hmac::digest::Digest;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

use crate::error::{LuksError, damaged, unsupported};

/// The most memory that Argon2 may use, in KiB: what cryptsetup asks for at most by default.
pub const MEMORY_MAX_KIB: u32 = 1 << 20;
/// The most lanes of Argon2.
pub const LANES_MAX: u32 = 16;
/// What all tries of one unlocking may cost, in units of [`Kdf::cost`]: some minutes.
pub const COST_MAX: u64 = 400_000_000;
/// The cost of one pass of Argon2 over one KiB of memory, compared with one iteration of PBKDF2.
const COST_OF_KIB: u64 = 3;
/// The longest salt of a LUKS2 slot or digest.
pub const SALT_BYTES_MAX: usize = 256;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-1: the default of very old versions of cryptsetup.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256: the default.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// The hash of this name.
    ///
    /// # Errors
    /// It is not supported.
    pub fn named(name: &str) -> Result<Self, LuksError> {
        match name {
            "sha1" => Ok(Self::Sha1),
            "sha224" => Ok(Self::Sha224),
            "sha256" => Ok(Self::Sha256),
            "sha384" => Ok(Self::Sha384),
            "sha512" => Ok(Self::Sha512),
            // Text of the header: only its start is shown.
            _ => Err(unsupported(format!("the hash {:?}", shortened(name)))),
        }
    }

    /// The length of a digest.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of these bytes, one behind the other.
    #[must_use]
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn of<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut state = D::new();
            parts.iter().for_each(|part| state.update(part));
            state.finalize().to_vec()
        }
        match self {
            Self::Sha1 => of::<Sha1>(parts),
            Self::Sha224 => of::<Sha224>(parts),
            Self::Sha256 => of::<Sha256>(parts),
            Self::Sha384 => of::<Sha384>(parts),
            Self::Sha512 => of::<Sha512>(parts),
        }
    }

    fn pbkdf2(self, secret: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
        use pbkdf2::pbkdf2_hmac;
        match self {
            Self::Sha1 => pbkdf2_hmac::<Sha1>(secret, salt, iterations, key),
            Self::Sha224 => pbkdf2_hmac::<Sha224>(secret, salt, iterations, key),
            Self::Sha256 => pbkdf2_hmac::<Sha256>(secret, salt, iterations, key),
            Self::Sha384 => pbkdf2_hmac::<Sha384>(secret, salt, iterations, key),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(secret, salt, iterations, key),
        }
    }
}

/// At most 32 letters of a text of the header, for messages.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(32).collect()
}

/// How a key is derived from a passphrase, or a digest from a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// The hash of the HMAC.
        hash: Hash,
        /// The number of iterations.
        iterations: u32,
        /// The salt.
        salt: Vec<u8>,
    },
    /// Argon2 version 1.3.
    Argon2 {
        /// Argon2id, otherwise Argon2i.
        is_id: bool,
        /// Passes over the memory.
        passes: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Lanes. They are computed one after the other here.
        lanes: u32,
        /// The salt.
        salt: Vec<u8>,
    },
}

impl Kdf {
    /// What deriving a key of this length costs: about the number of iterations of PBKDF2 that take
    /// the same time.
    ///
    /// # Errors
    /// A parameter is not allowed, or beyond its bound.
    pub fn cost(&self, key_bytes: usize) -> Result<u64, LuksError> {
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                if *iterations == 0 || salt.len() > SALT_BYTES_MAX {
                    return Err(damaged("PBKDF2 without iterations, or with a long salt"));
                }
                let blocks = key_bytes.div_ceil(hash.bytes()) as u64;
                Ok(u64::from(*iterations) * blocks)
            }
            Self::Argon2 { passes, memory_kib, lanes, salt, .. } => {
                if *memory_kib > MEMORY_MAX_KIB {
                    let text = format!(
                        "Argon2 with {memory_kib} KiB of memory; at most \
                                        {MEMORY_MAX_KIB} KiB are allowed"
                    );
                    return Err(unsupported(text));
                }
                if *lanes == 0 || *lanes > LANES_MAX || *passes == 0 || *memory_kib < 8 * lanes {
                    return Err(damaged("the passes, the memory or the lanes of Argon2"));
                }
                if salt.len() < argon2::MIN_SALT_LEN || salt.len() > SALT_BYTES_MAX {
                    return Err(damaged("the salt of Argon2 is too short or too long"));
                }
                Ok(u64::from(*passes) * u64::from(*memory_kib) * COST_OF_KIB)
            }
        }
    }

    /// Derives a key. It takes the time and the memory that the parameters say.
    ///
    /// # Errors
    /// As [`Kdf::cost`]; or there is not enough memory.
    pub fn derive(&self, secret: &[u8], key_bytes: usize) -> Result<Zeroizing<Vec<u8>>, LuksError> {
        self.cost(key_bytes)?;
        let mut key = Zeroizing::new(vec![0; key_bytes]);
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                hash.pbkdf2(secret, salt, *iterations, &mut key);
            }
            Self::Argon2 { is_id, passes, memory_kib, lanes, salt } => {
                let refused = |error: argon2::Error| damaged(format!("Argon2: {error}"));
                let params = Params::new(*memory_kib, *passes, *lanes, Some(key_bytes));
                let params = params.map_err(refused)?;
                let algorithm = if *is_id { Algorithm::Argon2id } else { Algorithm::Argon2i };
                let argon2 = Argon2::new(algorithm, Version::V0x13, params);
                let count = argon2.params().block_count();
                let mut memory: Vec<argon2::Block> = Vec::new();
                memory.try_reserve_exact(count).map_err(|_| {
                    unsupported(format!("{memory_kib} KiB of memory for Argon2 are not free"))
                })?;
                memory.resize(count, argon2::Block::new());
                let outcome =
                    argon2.hash_password_into_with_memory(secret, salt, &mut key, &mut memory);
                memory.iter_mut().for_each(zeroize::Zeroize::zeroize);
                outcome.map_err(refused)?;
            }
        }
        Ok(key)
    }
}

/// What the tries of one unlocking may still cost.
pub(crate) struct Budget(u64);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(COST_MAX)
    }

    /// Takes the cost of a derivation.
    ///
    /// # Errors
    /// The parameters are refused, or the tries cost too much together.
    pub(crate) fn take(&mut self, kdf: &Kdf, key_bytes: usize) -> Result<(), LuksError> {
        let cost = kdf.cost(key_bytes)?;
        self.0 = self.0.checked_sub(cost).ok_or_else(|| {
            unsupported(format!("deriving the key costs {cost}, more than is left of {COST_MAX}"))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6070 and RFC 7914. Argon2 is compared with cryptsetup, in `tests/golden.rs`.
    #[test]
    fn keys_are_derived_as_the_standards_say() {
        let kdf = Kdf::Pbkdf2 { hash: Hash::Sha1, iterations: 4096, salt: b"salt".to_vec() };
        let key = kdf.derive(b"password", 20).unwrap();
        assert_eq!(key[..6], [0x4b, 0x00, 0x79, 0x01, 0xb7, 0x65]);
        let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1, salt: b"salt".to_vec() };
        let key = kdf.derive(b"passwd", 64).unwrap();
        assert_eq!(key[..6], [0x55, 0xac, 0x04, 0x6e, 0x56, 0xe3]);
        assert_eq!(key[60..], [0xd3, 0xa1, 0x97, 0x83]);
    }

    #[test]
    fn what_a_header_may_ask_for_is_bounded() {
        let argon2 = |passes, memory_kib, lanes| Kdf::Argon2 {
            is_id: true,
            passes,
            memory_kib,
            lanes,
            salt: vec![1; 32],
        };
        assert!(argon2(4, MEMORY_MAX_KIB, 4).cost(32).is_ok());
        for bad in [
            argon2(4, MEMORY_MAX_KIB + 1, 4),
            argon2(0, 64, 1),
            argon2(1, 64, 0),
            argon2(1, 7, 1),
            argon2(1, 1 << 20, LANES_MAX + 1),
        ] {
            assert!(bad.cost(32).is_err(), "{bad:?}");
            assert!(bad.derive(b"x", 32).is_err(), "{bad:?}");
        }
        let mut budget = Budget::new();
        let dear = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: u32::MAX, salt: vec![] };
        assert!(budget.take(&dear, 32).is_err());
        let fair = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 100_000_000, salt: vec![] };
        let taken = (0..8).filter(|_| budget.take(&fair, 64).is_ok()).count();
        assert_eq!(taken, 2);
        assert!(Kdf::Pbkdf2 { hash: Hash::Sha1, iterations: 0, salt: vec![] }.cost(1).is_err());
    }
}
