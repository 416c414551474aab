//! What profiles are allowed: numbers with which every loss of m shards can be repaired, and with
//! which programs stay within the engine's bounds.

use fieldstone_gf::WordField;

use super::{MAX_COPIES, MAX_PACKET_BYTES, MAX_SHARDS, Profile, ProfileError};
use crate::isa::{
    VANDERMONDE_MAX_K, VANDERMONDE_MAX_K_OF_4, VANDERMONDE_MAX_M, vandermonde_is_mds,
};
use crate::{clay, zigzag};

/// Most terms of a code over bits, counted as if half of the bits of its matrix were ones.
const MAX_BIT_TERMS: usize = 1 << 22;

impl Profile {
    /// The profile itself, if its numbers are allowed.
    ///
    /// # Errors
    /// [`ProfileError::Bounds`] with the reason.
    pub fn checked(self) -> Result<Self, ProfileError> {
        let refusal = self.shards_refusal().or_else(|| match self {
            Self::Rs { .. } => None,
            Self::RsVan { k, m } => (!vandermonde_is_mds(k, m)).then(|| {
                format!(
                    "K must be at most {VANDERMONDE_MAX_K} and M at most {VANDERMONDE_MAX_M}, and \
                     with M = 4, K at most {VANDERMONDE_MAX_K_OF_4}: beyond that some losses of M \
                     shards cannot be repaired (rs:K+M has no such bounds)"
                )
            }),
            Self::JerasureVan { w: WordField::W8, .. }
            | Self::JerasureR6 { w: WordField::W8, .. } => None,
            Self::JerasureVan { w, .. } | Self::JerasureR6 { w, .. } => self.bit_refusal(w),
            Self::CauchyOrig { w, packet_bytes, .. } | Self::CauchyGood { w, packet_bytes, .. } => {
                packet_refusal(packet_bytes).or_else(|| self.bit_refusal(w))
            }
            Self::Zigzag { k, m, n } => zigzag::refusal(k, m, n),
            Self::Clay { k, m, d, mds } => clay::refusal(k, m, d, mds),
            Self::Copies { n } => {
                (!(1..=MAX_COPIES).contains(&n)).then(|| format!("N must be 1 to {MAX_COPIES}"))
            }
        });
        match refusal {
            None => Ok(self),
            Some(reason) => Err(ProfileError::Bounds { code: self.to_string(), reason }),
        }
    }

    fn shards_refusal(self) -> Option<String> {
        let (k, m) = (self.k(), self.m());
        let fits = k >= 1 && m >= 1 && self.shards() <= MAX_SHARDS;
        let refused = !fits && !matches!(self, Self::Copies { .. });
        refused.then(|| format!("K and M must be at least 1 and K + M at most {MAX_SHARDS}"))
    }

    fn bit_refusal(self, w: WordField) -> Option<String> {
        let most = MAX_BIT_TERMS * 2 / (w.bits() * w.bits());
        (self.k() * self.m() > most)
            .then(|| format!("with w={w}, K times M must be at most {most}"))
    }
}

fn packet_refusal(packet_bytes: usize) -> Option<String> {
    let fits = packet_bytes.is_multiple_of(4) && (4..=MAX_PACKET_BYTES).contains(&packet_bytes);
    (!fits).then(|| format!("ps must be a multiple of 4 from 4 to {MAX_PACKET_BYTES}"))
}
