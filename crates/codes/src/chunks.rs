//! The lengths of the shards of an object.
//!
//! An object of k data shards is cut into k *chunks*: chunk i is bytes i c .. (i+1) c. Each of
//! Ceph's plugins rounds the chunk length c in a different way. Bytes beyond the object's end are
//! zeros, which may be whole chunks. Writer and reader must use the same c.
//!
//! - `jerasure`: the object is rounded up to k w 4 bytes, or to k w packetsize 4 for codes over
//!   packets, and divided by k. (Where w 4 is not a multiple of 16, another rule holds; for every w
//!   here it is a multiple.) With `jerasure-per-chunk-alignment=true` the chunk itself is rounded
//!   up, to w 16 bytes or to w packetsize, rounded up to 16.
//! - `isa`: the chunk is rounded up to 32 bytes.
//! - `clay`: the object is rounded up to k times 32 bytes for each element.
//! - Zigzag is not in Ceph; it uses the rule of `clay`. Copies are as long as the object.

use fieldstone_gf::WordField;

use crate::Profile;

/// Alignment of the chunks of ISA-L's plugin, and of Clay elements, in bytes.
const ALIGN_BYTES: u64 = 32;

impl Profile {
    /// Bytes of each shard of an object of `object_bytes` bytes, by the rule of the Ceph plugin for
    /// this code. `None` if the number exceeds 64 bits.
    ///
    /// # Panics
    /// When [`Profile::checked`] refuses the profile.
    #[must_use]
    pub fn chunk_bytes(&self, object_bytes: u64) -> Option<u64> {
        let k = self.k() as u64;
        let stripe_bytes = match *self {
            Self::Copies { .. } => return Some(object_bytes),
            Self::Rs { .. } | Self::RsVan { .. } => {
                return object_bytes.div_ceil(k).checked_next_multiple_of(ALIGN_BYTES);
            }
            Self::JerasureVan { w, .. } | Self::JerasureR6 { w, .. } => k * bits(w) * 4,
            Self::CauchyOrig { w, packet_bytes, .. } | Self::CauchyGood { w, packet_bytes, .. } => {
                k * bits(w) * packet_bytes as u64 * 4
            }
            Self::Zigzag { n, .. } => k * u64::from(n) * ALIGN_BYTES,
            Self::Clay { k, m, d, .. } => {
                k as u64 * u64::from(crate::clay::elements(k, m, d)) * ALIGN_BYTES
            }
        };
        Some(object_bytes.checked_next_multiple_of(stripe_bytes)? / k)
    }

    /// As [`Profile::chunk_bytes`], for Ceph profiles with `jerasure-per-chunk-alignment=true`.
    /// Only Jerasure's codes have that option; for other codes the result is the same.
    ///
    /// # Panics
    /// When [`Profile::checked`] refuses the profile.
    #[must_use]
    pub fn chunk_bytes_aligned_per_chunk(&self, object_bytes: u64) -> Option<u64> {
        let align_bytes = match *self {
            Self::JerasureVan { w, .. } | Self::JerasureR6 { w, .. } => bits(w) * 16,
            Self::CauchyOrig { w, packet_bytes, .. } | Self::CauchyGood { w, packet_bytes, .. } => {
                (bits(w) * packet_bytes as u64).next_multiple_of(16)
            }
            _ => return self.chunk_bytes(object_bytes),
        };
        object_bytes.div_ceil(self.k() as u64).checked_next_multiple_of(align_bytes)
    }
}

fn bits(w: WordField) -> u64 {
    w.bits() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of `ceph-erasure-code-tool calc-chunk-size` of Ceph 16.2.15.
    #[test]
    fn chunks_are_as_long_as_the_plugins_make_them() {
        for (profile, object_bytes, chunk_bytes) in [
            ("jerasure-van:4+2", 10_000, 2528),
            ("jerasure-van:4+2,w=16", 10_000, 2560),
            ("jerasure-van:4+2,w=32", 10_000, 2560),
            ("cauchy-good:4+2", 10_000, 65_536),
            ("cauchy-good:4+2,ps=32", 10_000, 3072),
            ("rs:3+2", 1, 32),
            ("rs:3+2", 100, 64),
            ("rs-van:3+2", 4096, 1376),
            ("rs:3+2", 10_000, 3360),
            ("rs:3+2", 4 << 20, 1_398_112),
            ("clay:4+2", 4096, 1024),
            ("clay:8+4", 10_000, 2048),
            ("clay:8+4", 4 << 20, 524_288),
            ("clay:8+3", 4 << 20, 526_176),
        ] {
            let parsed: Profile = profile.parse().unwrap();
            assert_eq!(parsed.chunk_bytes(object_bytes), Some(chunk_bytes), "{profile}");
        }
        for (profile, chunk_bytes) in [
            ("jerasure-van:3+2", 3456),
            ("cauchy-good:3+2,ps=32", 3584),
            ("jerasure-van:3+2,w=16", 3584),
            ("rs:3+2", 3360),
        ] {
            let parsed: Profile = profile.parse().unwrap();
            assert_eq!(
                parsed.chunk_bytes_aligned_per_chunk(10_000),
                Some(chunk_bytes),
                "{profile}"
            );
        }
    }

    #[test]
    fn chunks_hold_the_object_and_fit_the_layout() {
        for text in [
            "rs:5+2",
            "rs-van:7+3",
            "jerasure-van:3+2,w=32",
            "jerasure-r6:5+2,w=16",
            "copies:3",
            "cauchy-orig:5+3,w=16,ps=12",
            "cauchy-good:3+2,ps=4",
            "zigzag:6+3",
            "clay:5+3",
        ] {
            let profile: Profile = text.parse().unwrap();
            let code = profile.code();
            let granule_bytes = code.layout().granule_bytes(code.elements()) as u64;
            for object_bytes in [0, 1, 31, 4096, 99_999] {
                for chunk_bytes in [
                    profile.chunk_bytes(object_bytes).unwrap(),
                    profile.chunk_bytes_aligned_per_chunk(object_bytes).unwrap(),
                ] {
                    assert!(chunk_bytes * profile.k() as u64 >= object_bytes, "{text}");
                    assert!(chunk_bytes.is_multiple_of(granule_bytes), "{text}");
                }
            }
            let most = profile.chunk_bytes(u64::MAX);
            assert!(most.is_none_or(|bytes| bytes >= u64::MAX / profile.k() as u64), "{text}");
        }
    }
}
