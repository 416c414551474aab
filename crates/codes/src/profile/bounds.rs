//! The bounds of profiles. With accepted numbers, every loss of m shards can be repaired, and
//! programs stay within the engine's bounds.
//!
//! A code is a program, and so is every repair plan. The number of terms decides how long it takes
//! to make a program, and how much memory it needs: a term takes about 70 bytes with its tables. So
//! a profile is refused if a program of its code could have more than [`MAX_CODE_TERMS`] terms.
//! [`Profile::most_terms`] computes that number without making the code. `tests/profiles.rs`
//! compares the number with codes that are made, and checks every accepted profile against the
//! bounds of [`LinearMap`](fieldstone_gf::LinearMap).

use fieldstone_gf::WordField;

use super::{MAX_COPIES, MAX_PACKET_BYTES, MAX_SHARDS, Profile, ProfileError};
use crate::isa::{
    VANDERMONDE_MAX_K, VANDERMONDE_MAX_K_OF_4, VANDERMONDE_MAX_M, vandermonde_is_mds,
};
use crate::{clay, zigzag};

/// Most terms of one program of a code: of its encoder, and of a repair plan for any losses.
pub const MAX_CODE_TERMS: usize = fieldstone_gf::MAX_TERMS;
/// Most terms of a code over bits. The count assumes that half of the bits of its matrix are ones.
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
        let refusal = refusal.or_else(|| self.terms_refusal());
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

    /// An upper bound for the terms of every program of the code: encoder, repair plan or update.
    /// For profiles whose other numbers are allowed.
    #[must_use]
    pub fn most_terms(self) -> usize {
        let bits = |w: WordField| self.k() * self.m() * w.bits() * w.bits();
        match self {
            Self::Rs { k, m }
            | Self::RsVan { k, m }
            | Self::JerasureVan { k, m, w: WordField::W8 } => k * m,
            Self::JerasureR6 { k, w: WordField::W8 } => 2 * k,
            Self::JerasureVan { w, .. }
            | Self::JerasureR6 { w, .. }
            | Self::CauchyOrig { w, .. }
            | Self::CauchyGood { w, .. } => bits(w),
            Self::Zigzag { k, m, n } => zigzag::most_terms(k, m, n),
            Self::Clay { k, m, d, .. } => clay::most_terms(k, m, d),
            // A lost copy is one term, and n copies can be lost.
            Self::Copies { n } => n,
        }
    }

    fn terms_refusal(self) -> Option<String> {
        let terms = self.most_terms();
        (terms > MAX_CODE_TERMS).then(|| {
            format!(
                "its programs have up to {terms} terms, and {MAX_CODE_TERMS} are the most; use \
                 fewer shards, or fewer elements in each"
            )
        })
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
