//! The cipher of sectors: AES in XTS mode (IEEE 1619), with `plain64` sector numbers.
//!
//! AES itself is that of the crate `aes`, which uses the processor's instructions. The mode stands
//! here, because it decides the speed: a sector is handed to AES in batches of blocks, and copied
//! on the way. The number of a sector counts units of 512 bytes, also if sectors are larger.

use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockCipher, BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use zeroize::Zeroize;

use crate::error::{LuksError, unsupported};

/// The unit of sector numbers.
const UNIT_BYTES: usize = 512;
/// Bytes of a block of AES.
const BLOCK_BYTES: usize = 16;
/// Blocks that are handed to AES at once.
const BATCH: usize = 32;

/// One key of AES for data, one for the tweaks.
struct Xts<C> {
    data: C,
    tweak: C,
}

enum Keys {
    Aes128(Box<Xts<Aes128>>),
    Aes256(Box<Xts<Aes256>>),
}

/// The cipher of a device's sectors. The keys are wiped when it is dropped.
pub struct SectorCipher {
    keys: Keys,
    sector_bytes: usize,
    /// Added to the number of every sector.
    first: u64,
}

impl std::fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sector_bytes, .. } = self;
        write!(f, "SectorCipher({}, sectors of {sector_bytes} bytes)", self.name())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl<C> Xts<C>
where
    C: BlockCipher
        + BlockEncrypt
        + BlockDecrypt
        + KeyInit
        + aes::cipher::BlockSizeUser<BlockSize = aes::cipher::consts::U16>,
{
    fn new(key: &[u8]) -> Option<Box<Self>> {
        let (data, tweak) = key.split_at(key.len() / 2);
        let (data, tweak) = (C::new_from_slice(data).ok()?, C::new_from_slice(tweak).ok()?);
        Some(Box::new(Self { data, tweak }))
    }

    /// Encrypts or decrypts one sector from `source` to `target`.
    fn sector(&self, number: u64, source: &[u8], target: &mut [u8], direction: Direction) {
        let mut block = Block::default();
        block[..8].copy_from_slice(&number.to_le_bytes());
        self.tweak.encrypt_block(&mut block);
        let mut tweak = u128::from_le_bytes(block.into());
        let batches = source.chunks(BATCH * BLOCK_BYTES);
        for (source, target) in batches.zip(target.chunks_mut(BATCH * BLOCK_BYTES)) {
            let mut tweaks = [0u128; BATCH];
            let blocks = source.chunks_exact(BLOCK_BYTES).zip(target.chunks_exact_mut(BLOCK_BYTES));
            for ((source, target), kept) in blocks.zip(&mut tweaks) {
                *kept = tweak;
                let block: &[u8; BLOCK_BYTES] = source.try_into().expect("a whole block");
                let mixed = u128::from_le_bytes(*block) ^ tweak;
                target.copy_from_slice(&mixed.to_le_bytes());
                tweak = double(tweak);
            }
            let (blocks, _) = InOutBuf::from(&mut *target).into_chunks();
            match direction {
                Direction::Encrypt => self.data.encrypt_blocks_inout(blocks),
                Direction::Decrypt => self.data.decrypt_blocks_inout(blocks),
            }
            for (target, tweak) in target.chunks_exact_mut(BLOCK_BYTES).zip(&tweaks) {
                let block: &mut [u8; BLOCK_BYTES] = target.try_into().expect("a whole block");
                *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
            }
        }
    }
}

/// The next tweak: the product with x in GF(2^128).
fn double(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

impl SectorCipher {
    /// The cipher with a key of 32 bytes (AES-128) or 64 bytes (AES-256). The first sector has the
    /// number `first`.
    ///
    /// # Errors
    /// The key has another length.
    ///
    /// # Panics
    /// `sector_bytes` is no power of two of at least 512.
    pub fn new(key: &[u8], sector_bytes: u32, first: u64) -> Result<Self, LuksError> {
        assert!(sector_bytes.is_power_of_two() && sector_bytes as usize >= UNIT_BYTES);
        let keys = match key.len() {
            32 => Xts::new(key).map(Keys::Aes128),
            64 => Xts::new(key).map(Keys::Aes256),
            _ => None,
        };
        let wrong = || unsupported(format!("a key of {} bits for AES in XTS mode", key.len() * 8));
        Ok(Self { keys: keys.ok_or_else(wrong)?, sector_bytes: sector_bytes as usize, first })
    }

    /// The name of the cipher, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.keys {
            Keys::Aes128(_) => "aes-128-xts-plain64",
            Keys::Aes256(_) => "aes-256-xts-plain64",
        }
    }

    /// The size of a sector in bytes.
    #[must_use]
    pub fn sector_bytes(&self) -> usize {
        self.sector_bytes
    }

    fn crypt(&self, offset_bytes: u64, source: &[u8], target: &mut [u8], direction: Direction) {
        assert_eq!(source.len(), target.len(), "source and target differ in length");
        let sector = self.sector_bytes;
        assert!(offset_bytes.is_multiple_of(sector as u64) && source.len().is_multiple_of(sector));
        let mut number = self.first.wrapping_add(offset_bytes / UNIT_BYTES as u64);
        for (source, target) in source.chunks_exact(sector).zip(target.chunks_exact_mut(sector)) {
            match &self.keys {
                Keys::Aes128(keys) => keys.sector(number, source, target, direction),
                Keys::Aes256(keys) => keys.sector(number, source, target, direction),
            }
            number = number.wrapping_add((sector / UNIT_BYTES) as u64);
        }
    }

    /// Encrypts whole sectors from `plain` to `stored`. The first one begins `offset_bytes` behind
    /// the start of the data.
    ///
    /// # Panics
    /// The lengths differ, or the range is not one of whole sectors.
    pub fn encrypt(&self, offset_bytes: u64, plain: &[u8], stored: &mut [u8]) {
        self.crypt(offset_bytes, plain, stored, Direction::Encrypt);
    }

    /// Decrypts whole sectors from `stored` to `plain`, the reverse of [`SectorCipher::encrypt`].
    ///
    /// # Panics
    /// As there.
    pub fn decrypt(&self, offset_bytes: u64, stored: &[u8], plain: &mut [u8]) {
        self.crypt(offset_bytes, stored, plain, Direction::Decrypt);
    }

    /// As [`SectorCipher::decrypt`], in place.
    pub(crate) fn decrypt_in_place(&self, bytes: &mut [u8]) {
        let mut stored = bytes.to_vec();
        self.decrypt(0, &stored, bytes);
        stored.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xts_mode::{Xts128, get_tweak_default};

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// IEEE 1619-2007, annex B, vectors 4 and 10: keys of 256 and 512 bits, sectors of 512 bytes of
    /// the values 0 to 255; the first block of the result.
    #[test]
    fn the_standard_vectors_hold() {
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        let halves = [
            "2718281828459045235360287471352631415926535897932384626433832795",
            "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462\
             643383279502884197169399375105820974944592",
        ];
        let firsts = ["27a7479befa1d476489f308cd4cfa6e2", "1c3b3a102f770386e4836c99e370cf9b"];
        for ((key, first), number) in halves.into_iter().zip(firsts).zip([0, 0xff]) {
            let cipher = SectorCipher::new(&bytes(key), 512, number).unwrap();
            let mut stored = vec![0; 512];
            cipher.encrypt(0, &plain, &mut stored);
            assert_eq!(stored[..16], bytes(first)[..]);
            let mut again = vec![0; 512];
            cipher.decrypt(0, &stored, &mut again);
            assert_eq!(again, plain);
        }
    }

    #[test]
    fn only_keys_of_two_lengths_are_taken() {
        for bits in [0, 16, 48, 63, 65, 128] {
            assert!(SectorCipher::new(&vec![1; bits], 512, 0).is_err());
        }
        let text = format!("{:?}", SectorCipher::new(&[7; 64], 4096, 0).unwrap());
        assert_eq!(text, "SectorCipher(aes-256-xts-plain64, sectors of 4096 bytes)");
    }

    proptest! {
        /// The crate `xts-mode` is the reference.
        #[test]
        fn sectors_are_encrypted_as_the_reference_does(
            key in prop_oneof![
                proptest::collection::vec(any::<u8>(), 32),
                proptest::collection::vec(any::<u8>(), 64),
            ],
            shift in 0u32..4, count in 1usize..4, first in 0u64..1 << 40, at in 0u64..1 << 30,
            seed in any::<u8>(),
        ) {
            let sector = 512usize << shift;
            let plain: Vec<u8> =
                (0..sector * count).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
            let cipher = SectorCipher::new(&key, sector as u32, first).unwrap();
            let mut stored = vec![0; plain.len()];
            cipher.encrypt(at * sector as u64, &plain, &mut stored);
            let mut expected = plain.clone();
            for (index, sector_bytes) in expected.chunks_mut(sector).enumerate() {
                let number = first + (at + index as u64) * (sector as u64 / 512);
                let tweak = get_tweak_default(u128::from(number));
                let half = key.len() / 2;
                if half == 16 {
                    let new = |key| Aes128::new_from_slice(key).unwrap();
                    Xts128::new(new(&key[..half]), new(&key[half..]))
                        .encrypt_sector(sector_bytes, tweak);
                } else {
                    let new = |key| Aes256::new_from_slice(key).unwrap();
                    Xts128::new(new(&key[..half]), new(&key[half..]))
                        .encrypt_sector(sector_bytes, tweak);
                }
            }
            prop_assert_eq!(&stored, &expected);
            let mut again = vec![0; plain.len()];
            cipher.decrypt(at * sector as u64, &stored, &mut again);
            prop_assert_eq!(again, plain);
        }
    }
}
