//! Capabilities: signed rights of requests (network-accelerated DFS paper, section IV).
//!
//! A capability names a volume, an epoch, rights, a range of segments and an expiry time.
//! SipHash-2-4-128 signs it. The signing key is derived per volume and epoch from the pool's master
//! key, so a higher epoch invalidates every capability of the epoch before. Threat model, as in the
//! paper: clients are not trusted, the network is.
//!
//! Layout of the signed bytes, little endian: volume 16, epoch 8, rights 2, generation of the
//! secret 2, segment_first 8, segment_last 8, expires_ns 8 (52 bytes).

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::ConstantTimeEq;

use crate::ids::{Epoch, SegmentId, VolumeId};
use crate::keys::KeyGeneration;

/// The rights that a capability grants, as a set of bits: the low 16. The high 16 bits have the
/// generation of the pool's secret that signs it. They were always zero before there were
/// generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(pub u32);

impl Rights {
    /// Read shards, journals and lists.
    pub const READ: Rights = Rights(1);
    /// Append to journals, write and delete shards.
    pub const WRITE: Rights = Rights(2);
    /// Fence, replace the root, remove the volume, list volumes.
    pub const ADMIN: Rights = Rights(4);
    /// All three rights.
    pub const ALL: Rights = Rights(7);

    /// True when every bit of `needed` is in `self`.
    #[must_use]
    pub fn contains(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// The generation of the pool's secret that signs the capability.
    #[must_use]
    pub fn generation(self) -> KeyGeneration {
        KeyGeneration((self.0 >> 16) as u16)
    }

    /// The same rights, signed with the secret of `generation`.
    #[must_use]
    pub fn of_generation(self, generation: KeyGeneration) -> Self {
        Self(self.0 & 0xffff | u32::from(generation.0) << 16)
    }
}

/// A secret of the pool. The pool's nodes know it, and every program that may issue capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MasterKey(pub [u8; 16]);

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(secret)")
    }
}

/// Signs and checks the capabilities of one volume and epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CapabilityKey {
    secret: [u8; 16],
    generation: KeyGeneration,
}

impl CapabilityKey {
    /// The same key, derived from the secret of `generation`.
    pub(crate) fn of_generation(self, generation: KeyGeneration) -> Self {
        Self { generation, ..self }
    }

    /// The generation of the secret that it is derived from.
    #[must_use]
    pub fn generation(&self) -> KeyGeneration {
        self.generation
    }
}

impl std::fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapabilityKey(secret)")
    }
}

impl MasterKey {
    /// The key of `volume` at `epoch`, as one of generation 0.
    #[must_use]
    pub fn derive(&self, volume: VolumeId, epoch: Epoch) -> CapabilityKey {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(b"fieldstone capability key");
        hasher.write(&volume.0.to_le_bytes());
        hasher.write(&epoch.0.to_le_bytes());
        CapabilityKey { secret: hasher.finish128().as_bytes(), generation: KeyGeneration(0) }
    }
}

/// A signed right to act on a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capability {
    /// The volume that it applies to.
    pub volume: VolumeId,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// The granted rights, and the generation of the secret.
    pub rights: Rights,
    /// The first segment in its range.
    pub segment_first: SegmentId,
    /// The last segment in its range.
    pub segment_last: SegmentId,
    /// When it expires by the nodes' clocks, in nanoseconds since 1970; `u64::MAX` for never.
    pub expires_ns: u64,
    /// The signature.
    pub mac: [u8; 16],
}

/// Why a node refused a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// The signature does not match: it is forged, or made with the key of another pool or epoch.
    #[error("the signature does not match")]
    Forged,
    /// The capability has expired.
    #[error("it has expired")]
    Expired,
    /// The capability lacks a right that the operation needs.
    #[error("it does not allow this operation")]
    Rights,
    /// The segment is outside the capability's range.
    #[error("it does not cover the segment")]
    Range,
    /// The secret that signed it is retired, and with it all its capabilities.
    #[error("it is signed with a secret of the pool that is retired (`pool rotate-key`)")]
    Retired,
    /// The node does not know the generation of the secret that signed it.
    #[error(
        "it is signed with a generation of the pool's secret that this node does not know; the \
         copy of pool.key where the node runs may be old"
    )]
    UnknownGeneration,
}

impl Capability {
    /// Issues a capability for every segment.
    #[must_use]
    pub fn issue(
        key: &CapabilityKey,
        volume: VolumeId,
        epoch: Epoch,
        rights: Rights,
        expires_ns: u64,
    ) -> Self {
        Self {
            volume,
            epoch,
            rights: rights.of_generation(key.generation),
            segment_first: SegmentId(0),
            segment_last: SegmentId(u64::MAX),
            expires_ns,
            mac: [0; 16],
        }
        .signed(key)
    }

    /// The same capability with a fresh signature.
    #[must_use]
    pub fn signed(mut self, key: &CapabilityKey) -> Self {
        self.mac = self.sign(key);
        self
    }

    fn sign(&self, key: &CapabilityKey) -> [u8; 16] {
        let mut bytes = [0u8; 52];
        bytes[0..16].copy_from_slice(&self.volume.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rights.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.segment_first.0.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.segment_last.0.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.expires_ns.to_le_bytes());
        let mut hasher = SipHasher24::new_with_key(&key.secret);
        hasher.write(&bytes);
        hasher.finish128().as_bytes()
    }

    /// Checks the signature (in constant time), the expiry and the rights.
    ///
    /// # Errors
    /// The first check that fails. The signature comes first, so that a wrong one reveals nothing
    /// else.
    pub fn check(
        &self,
        key: &CapabilityKey,
        needed: Rights,
        now_ns: u64,
    ) -> Result<(), CapabilityError> {
        if !bool::from(self.sign(key).ct_eq(&self.mac)) {
            return Err(CapabilityError::Forged);
        }
        if now_ns >= self.expires_ns {
            return Err(CapabilityError::Expired);
        }
        if !self.rights.contains(needed) {
            return Err(CapabilityError::Rights);
        }
        Ok(())
    }

    /// Checks that the capability's range includes `segment`.
    ///
    /// # Errors
    /// [`CapabilityError::Range`] if it does not.
    pub fn check_segment(&self, segment: SegmentId) -> Result<(), CapabilityError> {
        if self.segment_first <= segment && segment <= self.segment_last {
            Ok(())
        } else {
            Err(CapabilityError::Range)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (CapabilityKey, Capability) {
        let key = MasterKey([7; 16]).derive(VolumeId(9), Epoch(3));
        (key, Capability::issue(&key, VolumeId(9), Epoch(3), Rights::READ, 100))
    }

    #[test]
    fn every_field_is_signed() {
        let (key, good) = sample();
        assert_eq!(good.check(&key, Rights::READ, 99), Ok(()));
        let changes: [fn(&mut Capability); 8] = [
            |c| c.volume.0 ^= 1,
            |c| c.epoch.0 += 1,
            |c| c.rights.0 |= 2,
            |c| c.rights = c.rights.of_generation(KeyGeneration(1)),
            |c| c.segment_first.0 += 1,
            |c| c.segment_last.0 -= 1,
            |c| c.expires_ns += 1,
            |c| c.mac[15] ^= 0x80,
        ];
        for change in changes {
            let mut forged = good;
            change(&mut forged);
            assert_eq!(forged.check(&key, Rights::READ, 99), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn expiry_rights_range_and_epoch_are_enforced() {
        let (key, good) = sample();
        assert_eq!(good.check(&key, Rights::READ, 100), Err(CapabilityError::Expired));
        assert_eq!(good.check(&key, Rights::WRITE, 99), Err(CapabilityError::Rights));
        let next = MasterKey([7; 16]).derive(VolumeId(9), Epoch(4));
        assert_eq!(good.check(&next, Rights::READ, 99), Err(CapabilityError::Forged));
        let mut narrow = good;
        narrow.segment_first = SegmentId(5);
        narrow.segment_last = SegmentId(6);
        let narrow = narrow.signed(&key);
        assert_eq!(narrow.check_segment(SegmentId(4)), Err(CapabilityError::Range));
        assert_eq!(narrow.check_segment(SegmentId(6)), Ok(()));
        assert_eq!(narrow.check_segment(SegmentId(7)), Err(CapabilityError::Range));
    }

    #[test]
    fn the_generation_is_beside_the_rights() {
        let (_, old) = sample();
        assert_eq!(old.rights, Rights::READ, "generation 0 is as before there were generations");
        let key = MasterKey([7; 16]).derive(VolumeId(9), Epoch(3));
        let key = key.of_generation(KeyGeneration(0xfedc));
        let new = Capability::issue(&key, VolumeId(9), Epoch(3), Rights::ALL, 100);
        assert_eq!(new.rights.0, 0xfedc_0007);
        assert_eq!(new.rights.generation(), KeyGeneration(0xfedc));
        assert_eq!(new.check(&key, Rights::ADMIN, 99), Ok(()));
        assert!(!Rights(0xffff_0001).contains(Rights::WRITE), "a generation grants nothing");
    }
}
