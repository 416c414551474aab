//! Encryption by keys of kind 2: `aes256-cts-hmac-sha384-192` of RFC 8009.
//!
//! Ceph calls these keys `aes256k`. Ceph 20.2.4 makes no others, and accepts no others, unless its
//! monitors are told to.
//!
//! **Keys for a usage.** Each kind of message has a number, its *usage* ([`Usage`]). From the key
//! and the usage come two keys: one encrypts, one authenticates. So no message can be taken for one
//! of another kind. Each is the start of
//! HMAC-SHA-384(key, u32 1, u32 usage, u8 label, u8 0, u32 length in bits), with numbers in
//! big-endian order. The label is 0xaa for encryption (256 bits) and 0x55 for authentication (192
//! bits).
//!
//! **A sealed message** is the ciphertext and 24 bytes of authentication. The plain bytes have a
//! random block in front, so equal messages differ. The cipher is AES-256 in CBC mode with an
//! initial vector of zeros. The authentication is the start of HMAC-SHA-384(zeros, ciphertext).
//!
//! **Ciphertext stealing** makes the ciphertext as long as the plain bytes. The last block is
//! filled with zeros and encrypted. Then the last two blocks change places, and the end is cut off.
//! What is cut off is in the block before, for the reader that decrypts it.

use aes::Aes256;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha384;

/// The length of a key.
pub(super) const KEY_LEN: usize = 32;
/// The length of a block, and of the random start of a message.
pub(super) const BLOCK_LEN: usize = 16;
/// The length of the authentication of a message.
const TAG_LEN: usize = 24;

type Block = [u8; BLOCK_LEN];

/// What a message is for. The numbers are Ceph's (`CEPHX_KEY_USAGE_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Usage {
    /// The secret of a connection to a monitor, by the session key.
    ConnectionSecret = 0x03,
    /// The client's half of a ticket, by the client's key or the session key.
    TicketKey = 0x04,
    /// The blob of a ticket, by the session key of the ticket before.
    TicketBlob = 0x05,
    /// What a client shows to a service, by the session key.
    Authorize = 0x10,
    /// The challenge of a service, by the session key.
    Challenge = 0x11,
    /// The answer of a service, by the session key.
    AuthorizeReply = 0x12,
    /// The service's half of a ticket, by the service's secret.
    TicketContent = 0x30,
}

fn mac(key: &[u8]) -> Hmac<Sha384> {
    <Hmac<Sha384> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The key for a usage: `LEN` bytes, at most 48.
fn derive<const LEN: usize>(key: &[u8; KEY_LEN], usage: u32, label: u8) -> [u8; LEN] {
    let mut mac = mac(key);
    mac.update(&1_u32.to_be_bytes());
    mac.update(&usage.to_be_bytes());
    mac.update(&[label, 0]);
    mac.update(&(8 * LEN as u32).to_be_bytes());
    let all = mac.finalize().into_bytes();
    std::array::from_fn(|at| all[at])
}

fn encryption_key(key: &[u8; KEY_LEN], usage: u32) -> Aes256 {
    Aes256::new(&derive::<KEY_LEN>(key, usage, 0xaa).into())
}

/// The authentication of a ciphertext, before its end is cut off.
fn authenticate(key: &[u8; KEY_LEN], usage: u32, ciphertext: &[u8]) -> Hmac<Sha384> {
    let mut mac = mac(&derive::<TAG_LEN>(key, usage, 0x55));
    mac.update(&[0; BLOCK_LEN]);
    mac.update(ciphertext);
    mac
}

fn xor(block: &mut Block, other: &[u8]) {
    block.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// Seals plain bytes, behind a random block.
pub(super) fn seal(key: &[u8; KEY_LEN], usage: u32, random: Block, plain: &[u8]) -> Vec<u8> {
    let mut bytes = [&random[..], plain].concat();
    encrypt(&encryption_key(key, usage), &mut bytes);
    let tag = authenticate(key, usage, &bytes).finalize().into_bytes();
    bytes.extend_from_slice(&tag[..TAG_LEN]);
    bytes
}

/// Opens what [`seal`] made; `None` if another key made it, or for another usage, or if it is
/// damaged.
pub(super) fn open(key: &[u8; KEY_LEN], usage: u32, sealed: &[u8]) -> Option<Vec<u8>> {
    let (ciphertext, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG_LEN)?)?;
    if ciphertext.len() < BLOCK_LEN {
        return None;
    }
    authenticate(key, usage, ciphertext).verify_truncated_left(tag).ok()?;
    let mut plain = decrypt(&encryption_key(key, usage), ciphertext);
    plain.drain(..BLOCK_LEN);
    Some(plain)
}

/// Encrypts at least one block of bytes in place.
fn encrypt(cipher: &Aes256, bytes: &mut Vec<u8>) {
    let len = bytes.len();
    bytes.resize(len.next_multiple_of(BLOCK_LEN), 0);
    let blocks = bytes.as_chunks_mut::<BLOCK_LEN>().0;
    let mut before = [0; BLOCK_LEN];
    for block in &mut *blocks {
        xor(block, &before);
        cipher.encrypt_block(GenericArray::from_mut_slice(block));
        before = *block;
    }
    if let [.., last_but_one, last] = blocks {
        std::mem::swap(last_but_one, last);
    }
    bytes.truncate(len);
}

/// Decrypts at least one block of bytes.
fn decrypt(cipher: &Aes256, ciphertext: &[u8]) -> Vec<u8> {
    let decrypted = |block: &Block| {
        let mut block = *block;
        cipher.decrypt_block(GenericArray::from_mut_slice(&mut block));
        block
    };
    let len = ciphertext.len();
    let mut bytes = ciphertext.to_vec();
    bytes.resize(len.next_multiple_of(BLOCK_LEN), 0);
    let blocks = bytes.as_chunks_mut::<BLOCK_LEN>().0;
    if let [.., last, last_but_one] = &mut *blocks {
        // The end of the last block but one was cut off. It is what the last one, which comes
        // first, decrypts to, as the bytes there were zeros.
        let kept = BLOCK_LEN - (len.next_multiple_of(BLOCK_LEN) - len);
        last_but_one[kept..].copy_from_slice(&decrypted(last)[kept..]);
        std::mem::swap(last, last_but_one);
    }
    let mut before = [0; BLOCK_LEN];
    for block in blocks {
        let next = *block;
        *block = decrypted(block);
        xor(block, &before);
        before = next;
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    /// The key of RFC 8009, appendix A, for `aes256-cts-hmac-sha384-192`.
    fn key() -> [u8; KEY_LEN] {
        let hex = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
        bytes(hex).try_into().expect("32 bytes")
    }

    /// RFC 8009, appendix A.
    #[test]
    fn golden_keys_for_a_usage() {
        let encryption = "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49";
        let authentication = "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f";
        assert_eq!(derive::<32>(&key(), 2, 0xaa)[..], bytes(encryption));
        assert_eq!(derive::<24>(&key(), 2, 0x55)[..], bytes(authentication));
    }

    /// RFC 8009, appendix A: random block, length of the plain bytes 0, 1, 2…, sealed bytes.
    const GOLDEN: [(&str, u8, &str); 4] = [
        (
            "f764e9fa15c276478b2c7d0c4e5f58e4",
            0,
            "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
        ),
        (
            "b80d3251c1f6471494256ffe712d0b9a",
            6,
            "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d6\
             9d10f2",
        ),
        (
            "53bf8a0d105265d4e276428624ce5e63",
            16,
            "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df\
             574d1f932e40c4ff255b36a266",
        ),
        (
            "763e65367e864f02f55153c7e3b58af1",
            21,
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6\
             295fae077a1feb517508d2c16b4192e01f62",
        ),
    ];

    #[test]
    fn golden_messages() {
        for (random, len, sealed) in GOLDEN {
            let random = bytes(random).try_into().expect("16 bytes");
            let plain: Vec<u8> = (0..len).collect();
            assert_eq!(seal(&key(), 2, random, &plain), bytes(sealed), "{len} bytes");
            assert_eq!(open(&key(), 2, &bytes(sealed)), Some(plain));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn opens_only_what_it_sealed(
            key: [u8; KEY_LEN],
            usage in 0_u32..0x40,
            random: Block,
            plain in proptest::collection::vec(any::<u8>(), 0..70),
            flipped: proptest::sample::Index,
        ) {
            let sealed = seal(&key, usage, random, &plain);
            prop_assert_eq!(sealed.len(), BLOCK_LEN + plain.len() + TAG_LEN);
            prop_assert_eq!(open(&key, usage, &sealed), Some(plain));
            prop_assert_eq!(open(&key, usage + 1, &sealed), None);
            for len in 0..sealed.len() {
                prop_assert_eq!(open(&key, usage, &sealed[..len]), None);
            }
            let mut damaged = sealed.clone();
            damaged[flipped.index(sealed.len())] ^= 1;
            prop_assert_eq!(open(&key, usage, &damaged), None);
        }
    }
}
