//! A header of either version, and its key slots.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::error::{LuksError, damaged, unsupported};
use crate::kdf::{Budget, Hash, Kdf, shortened};
use crate::metadata::{CLONE_MAGIC, MAGIC};
use crate::passphrase::Passphrase;
use crate::sectors::SectorCipher;
use crate::split::{STRIPES, merge};
use crate::{luks1, luks2};

/// How many bytes of the device [`probe`] wants to see.
pub const PREFIX_BYTES: usize = 4096;
/// The cipher of sectors that is supported.
const CIPHER: &str = "aes-xts-plain64";

/// What the first bytes of a device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No header. There may still be a second copy of one, in the first
    /// [`Probe::SEARCHED_BYTES`] of the device.
    Nothing,
    /// The header of a clone with a key of its own, as librbd of Ceph 17 writes it.
    Clone,
    /// A header, whose fields and copies lie in the first `metadata_bytes` of the device.
    Header {
        /// The version: 1 or 2, or another one, which [`Header::parse`] refuses.
        version: u16,
        /// How many bytes [`Header::parse`] needs.
        metadata_bytes: u64,
    },
}

impl Probe {
    /// Where a second copy can lie.
    pub const SEARCHED_BYTES: u64 = luks2::SEARCHED_BYTES;
}

/// Says what the first bytes of a device are. [`PREFIX_BYTES`] are enough.
#[must_use]
pub fn probe(first: &[u8]) -> Probe {
    if first.starts_with(&CLONE_MAGIC) {
        return Probe::Clone;
    }
    let Some(&[high, low]) = first.get(MAGIC.len()..MAGIC.len() + 2) else {
        return Probe::Nothing;
    };
    if !first.starts_with(&MAGIC) {
        return Probe::Nothing;
    }
    let version = u16::from_be_bytes([high, low]);
    let metadata_bytes = match version {
        2 => luks2::metadata_bytes(first),
        _ => PREFIX_BYTES as u64,
    };
    Probe::Header { version, metadata_bytes }
}

/// The part of the device that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the data begins on the device.
    pub offset_bytes: u64,
    /// The length, if the header fixes it; otherwise the data goes to the end of the device.
    pub len_bytes: Option<u64>,
    /// The size of a sector: a power of two from 512 to 4096.
    pub sector_bytes: u32,
    /// The number of the first sector, in units of 512 bytes.
    pub first_sector: u64,
}

/// A digest of the volume key.
pub(crate) struct Digest {
    pub kdf: Kdf,
    pub value: Vec<u8>,
}

/// A key slot in use.
pub(crate) struct Slot {
    pub number: u32,
    /// The length of the volume key.
    pub key_bytes: usize,
    /// The length of the key that encrypts the key material.
    pub area_key_bytes: usize,
    pub area_offset_bytes: u64,
    /// Or why the slot cannot be used.
    pub kdf: Result<Kdf, LuksError>,
    pub split: Hash,
    /// The index of the digest of its volume key.
    pub digest: usize,
}

impl Slot {
    fn material(&self) -> Range<u64> {
        let start = self.area_offset_bytes;
        start..start.saturating_add((self.key_bytes * STRIPES) as u64)
    }
}

/// The key material of a slot.
#[derive(Clone, Debug)]
pub struct Material {
    /// The number of the slot.
    pub slot: u32,
    /// Its bytes, as the device has them.
    pub bytes: Vec<u8>,
}

/// A correct header.
pub struct Header {
    pub(crate) version: u16,
    pub(crate) segment: Segment,
    /// In the order in which they are tried.
    pub(crate) slots: Vec<Slot>,
    pub(crate) digests: Vec<Digest>,
    /// Key material begins at this byte or later.
    pub(crate) first_area_bytes: u64,
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LUKS{} with {} key slots", self.version, self.slots.len())
    }
}

/// An opened header.
#[derive(Debug)]
pub struct Unlocked {
    /// Encrypts and decrypts sectors.
    pub cipher: SectorCipher,
    /// The part of the device with data.
    pub segment: Segment,
    /// The slot that opened.
    pub slot: u32,
}

/// Deriving keys takes much memory, so one header is opened at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Header {
    /// Reads a header from the first bytes of a device of `device_bytes`. [`probe`] says how many
    /// bytes are needed.
    ///
    /// # Errors
    /// There is none, no copy is whole, or it uses something that is not supported.
    pub fn parse(bytes: &[u8], device_bytes: u64) -> Result<Self, LuksError> {
        let header = match probe(bytes) {
            Probe::Clone => return Err(LuksError::Clone),
            Probe::Header { version: 1, .. } => luks1::parse(bytes)?,
            Probe::Nothing | Probe::Header { version: 2, .. } => luks2::parse(bytes)?,
            Probe::Header { version, .. } => return Err(LuksError::Version(version)),
        };
        header.check(device_bytes)?;
        Ok(header)
    }

    /// Checks what both versions have in common.
    fn check(&self, device_bytes: u64) -> Result<(), LuksError> {
        let Segment { offset_bytes, len_bytes, sector_bytes, .. } = self.segment;
        if offset_bytes == 0 {
            return Err(unsupported("a header apart from its data"));
        }
        let sector = u64::from(sector_bytes);
        if !offset_bytes.is_multiple_of(sector) || len_bytes.is_some_and(|len| len % sector != 0) {
            return Err(damaged("the data is not in whole sectors"));
        }
        let end = offset_bytes.checked_add(len_bytes.unwrap_or(0));
        if end.is_none_or(|end| end > device_bytes) {
            return Err(damaged(format!(
                "the data begins at byte {offset_bytes} or ends behind the device, which has \
                 {device_bytes} bytes"
            )));
        }
        for slot in &self.slots {
            let material = slot.material();
            if material.start < self.first_area_bytes || material.end > offset_bytes {
                return Err(damaged(format!("the place of key slot {}", slot.number)));
            }
        }
        Ok(())
    }

    /// The version of the format: 1 or 2.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The part of the device with data.
    #[must_use]
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// The key material that [`Header::unlock`] needs: numbers of slots, and ranges of the device.
    pub fn materials(&self) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let usable = self.slots.iter().filter(|slot| slot.kdf.is_ok());
        usable.map(|slot| (slot.number, slot.material()))
    }

    /// Tries the slots. It takes seconds. In one process, one header is opened at a time.
    ///
    /// # Errors
    /// No slot opens.
    pub fn unlock(
        &self,
        passphrase: &Passphrase,
        materials: &[Material],
    ) -> Result<Unlocked, LuksError> {
        // Nothing that the lock guards can be left half done.
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut budget = Budget::new();
        let mut refused = Vec::new();
        for slot in &self.slots {
            let found = materials.iter().find(|material| material.slot == slot.number);
            match self.try_slot(slot, found, passphrase, &mut budget) {
                Ok(Some(key)) => {
                    let Segment { sector_bytes, first_sector, .. } = self.segment;
                    let cipher = SectorCipher::new(&key, sector_bytes, first_sector)?;
                    return Ok(Unlocked { cipher, segment: self.segment, slot: slot.number });
                }
                Ok(None) => {}
                Err(why) => refused.push(format!("slot {}: {why}", slot.number)),
            }
        }
        Err(LuksError::NoSlotOpens { refused })
    }

    /// The volume key in a slot; `None` if the passphrase is not that of the slot.
    fn try_slot(
        &self,
        slot: &Slot,
        material: Option<&Material>,
        passphrase: &Passphrase,
        budget: &mut Budget,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, LuksError> {
        let kdf = slot.kdf.as_ref().map_err(Clone::clone)?;
        let material = material.ok_or_else(|| damaged("its key material was not read"))?;
        let digest = &self.digests[slot.digest];
        if material.bytes.len() != slot.key_bytes * STRIPES {
            return Err(damaged("its key material is cut"));
        }
        budget.take(kdf, slot.area_key_bytes)?;
        budget.take(&digest.kdf, digest.value.len())?;
        let area_key = kdf.derive(passphrase.bytes(), slot.area_key_bytes)?;
        let mut stripes = Zeroizing::new(material.bytes.clone());
        SectorCipher::new(&area_key, 512, 0)?.decrypt_in_place(&mut stripes);
        let key = merge(&stripes, slot.key_bytes, slot.split);
        let value = digest.kdf.derive(&key, digest.value.len())?;
        Ok(bool::from(value.ct_eq(&digest.value)).then_some(key))
    }
}

/// Checks the name of a cipher.
pub(crate) fn check_cipher(name: &str) -> Result<(), LuksError> {
    if name == CIPHER {
        return Ok(());
    }
    Err(unsupported(format!("the cipher {:?}; only {CIPHER} is", shortened(name))))
}
