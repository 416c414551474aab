//! The anti-forensic splitter: a key as many stripes, all of which are needed to get it back.
//!
//! A disk may keep old copies of sectors that were overwritten. A key that is spread over 4000
//! stripes is gone when any one of its bits is gone. All stripes but the last are random. The last
//! one is the key combined with what the others hash to.

use zeroize::{Zeroize, Zeroizing};

use crate::kdf::Hash;

/// The number of stripes. Both versions of the format demand it.
pub const STRIPES: usize = 4000;

/// Hashes each piece of the block in place, together with the number of the piece.
fn diffuse(block: &mut [u8], hash: Hash) {
    for (number, piece) in block.chunks_mut(hash.bytes()).enumerate() {
        let number = u32::try_from(number).expect("a key has few pieces");
        let mut digest = hash.digest(&[&number.to_be_bytes(), piece]);
        piece.copy_from_slice(&digest[..piece.len()]);
        digest.zeroize();
    }
}

fn xor(target: &mut [u8], source: &[u8]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target ^= source);
}

/// What all stripes but the last combine to.
fn combine(stripes: &[u8], key_bytes: usize, hash: Hash) -> Zeroizing<Vec<u8>> {
    let mut block = Zeroizing::new(vec![0; key_bytes]);
    for stripe in stripes.chunks_exact(key_bytes) {
        xor(&mut block, stripe);
        diffuse(&mut block, hash);
    }
    block
}

/// The key that these stripes hold.
///
/// # Panics
/// There are not [`STRIPES`] times `key_bytes` bytes.
#[must_use]
pub fn merge(stripes: &[u8], key_bytes: usize, hash: Hash) -> Zeroizing<Vec<u8>> {
    assert_eq!(stripes.len(), key_bytes * STRIPES, "key material of a wrong length");
    let (random, last) = stripes.split_at(key_bytes * (STRIPES - 1));
    let mut key = combine(random, key_bytes, hash);
    xor(&mut key, last);
    key
}

/// The stripes of a key. `random` fills memory with random bytes.
#[must_use]
pub fn split(key: &[u8], hash: Hash, random: impl FnOnce(&mut [u8])) -> Zeroizing<Vec<u8>> {
    let mut stripes = Zeroizing::new(vec![0; key.len() * STRIPES]);
    let at = key.len() * (STRIPES - 1);
    random(&mut stripes[..at]);
    let mut last = combine(&stripes[..at], key.len(), hash);
    xor(&mut last, key);
    stripes[at..].copy_from_slice(&last);
    stripes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_and_every_bit_counts() {
        for (hash, key_bytes) in [(Hash::Sha256, 64), (Hash::Sha1, 32), (Hash::Sha512, 32)] {
            let key: Vec<u8> = (0..key_bytes as u8).collect();
            let fill = |bytes: &mut [u8]| {
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 % 251) as u8);
            };
            let mut stripes = split(&key, hash, fill);
            assert_eq!(*merge(&stripes, key_bytes, hash), key);
            for at in [0, stripes.len() / 2, stripes.len() - 1] {
                stripes[at] ^= 1;
                assert_ne!(*merge(&stripes, key_bytes, hash), key);
                stripes[at] ^= 1;
            }
        }
    }
}
