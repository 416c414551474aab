//! Names of codes, as users write them and as pools store them.
//!
//! The text form is a contract (command line, pool description). K and M are the numbers of data
//! and parity shards. Options may be left out and come in any order. A profile prints an option
//! only if it differs from the default, so every profile prints in exactly one way.
//!
//! | text | code | in Ceph |
//! |---|---|---|
//! | `rs:K+M` | Reed-Solomon, ISA-L's Cauchy matrix | `isa`, `cauchy` |
//! | `rs-van:K+M` | Reed-Solomon, ISA-L's Vandermonde matrix | `isa`, `reed_sol_van` |
//! | `jerasure-van:K+M[,w=W]` | Reed-Solomon over words of W bits | `jerasure`, `reed_sol_van` |
//! | `jerasure-r6:K+2[,w=W]` | the same for two parities | `jerasure`, `reed_sol_r6_op` |
//! | `cauchy-orig:K+M[,w=W][,ps=P]` | XORs of packets of P bytes | `jerasure`, `cauchy_orig` |
//! | `cauchy-good:K+M[,w=W][,ps=P]` | the same with fewer XORs | `jerasure`, `cauchy_good` |
//! | `zigzag:K+M[,n=N]` | Zigzag with N elements per shard | none |
//! | `clay:K+M[,d=D][,mds=S]` | Clay with D helpers over code S | `clay` |
//! | `copies:N` | N identical shards | replicated pools |
//!
//! Defaults: W = 8 (or 16, 32); P = 2048; N = M^(K-1) or the largest power of M up to 64;
//! D = K + M - 1; S = `jerasure-van` (or `rs-van`, `rs`). The parser refuses some numbers, and
//! gives the reason: some loss of M shards could not be repaired, or the number is out of bounds.

mod bounds;
mod text;

pub use bounds::MAX_CODE_TERMS;

use std::sync::Arc;

use fieldstone_gf::WordField;
use thiserror::Error;

use crate::clay::Clay;
pub use crate::clay::ScalarMds;
use crate::construction::ConstructedCode;
use crate::copies::Copies;
use crate::rs::ReedSolomon;
use crate::words::BitCode;
use crate::zigzag::Zigzag;
use crate::{Code, Layout, clay, isa, jerasure, zigzag};

/// Most shards of one stripe (k + m).
pub const MAX_SHARDS: usize = 255;
/// Most copies.
pub const MAX_COPIES: usize = 16;
/// Default bytes of a packet, as in Ceph.
pub const DEFAULT_PACKET_BYTES: usize = 2048;
/// Most bytes of a packet.
pub const MAX_PACKET_BYTES: usize = 1 << 20;

/// The code that protects the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Reed-Solomon with ISA-L's Cauchy matrix: `k` data and `m` parity shards, any `k` of which
    /// are enough.
    Rs {
        /// Data shards, at least 1.
        k: usize,
        /// Parity shards, at least 1; k + m <= [`MAX_SHARDS`].
        m: usize,
    },
    /// Reed-Solomon with ISA-L's Vandermonde matrix.
    RsVan {
        /// Data shards, 1 to 32; with m = 4 to 21.
        k: usize,
        /// Parity shards, 1 to 4.
        m: usize,
    },
    /// Jerasure's `reed_sol_van`.
    JerasureVan {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
        /// The field of the words.
        w: WordField,
    },
    /// Jerasure's `reed_sol_r6_op`, with two parities.
    JerasureR6 {
        /// Data shards.
        k: usize,
        /// The field of the words.
        w: WordField,
    },
    /// Jerasure's `cauchy_orig`.
    CauchyOrig {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
        /// The field of the words.
        w: WordField,
        /// A multiple of 4, up to [`MAX_PACKET_BYTES`].
        packet_bytes: usize,
    },
    /// Jerasure's `cauchy_good`.
    CauchyGood {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
        /// The field of the words.
        w: WordField,
        /// A multiple of 4, up to [`MAX_PACKET_BYTES`].
        packet_bytes: usize,
    },
    /// Zigzag: one lost data shard is rebuilt from 1/m of each survivor.
    Zigzag {
        /// Data shards, at least 2.
        k: usize,
        /// Parity shards, 2 to 4.
        m: usize,
        /// Elements per shard, a power of m.
        n: u32,
    },
    /// Clay: any one lost shard is rebuilt from 1 / (d - k + 1) of each of d others.
    Clay {
        /// Data shards, at least 2.
        k: usize,
        /// Parity shards.
        m: usize,
        /// Helpers, k to k + m - 1.
        d: usize,
        /// The MDS code inside.
        mds: ScalarMds,
    },
    /// `n` identical shards.
    Copies {
        /// 1 to [`MAX_COPIES`].
        n: usize,
    },
}

/// Why a text or a set of numbers is no code.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProfileError {
    /// The text is not of the form `name:parameters`, or the name is unknown.
    #[error(
        "unknown code {0:?}: there are rs:K+M (for example rs:4+2), copies:N, zigzag:K+M, \
         clay:K+M, rs-van:K+M, jerasure-van:K+M, jerasure-r6:K+2, cauchy-orig:K+M and \
         cauchy-good:K+M"
    )]
    Unknown(String),
    /// The name is known, but its parameters have another form.
    #[error("{given:?} is not of the form {form} with whole numbers")]
    Syntax {
        /// The given text.
        given: String,
        /// The expected form.
        form: &'static str,
    },
    /// Numbers outside the bounds, or numbers with which the code could not repair every loss.
    #[error("{code} is out of bounds: {reason}")]
    Bounds {
        /// The requested code.
        code: String,
        /// The reason.
        reason: String,
    },
}

impl Profile {
    /// Reed-Solomon with checked bounds.
    pub fn rs(k: usize, m: usize) -> Result<Self, ProfileError> {
        Self::Rs { k, m }.checked()
    }

    /// Copies with checked bounds.
    pub fn copies(n: usize) -> Result<Self, ProfileError> {
        Self::Copies { n }.checked()
    }

    /// Zigzag with its default number of elements and checked bounds.
    pub fn zigzag(k: usize, m: usize) -> Result<Self, ProfileError> {
        Self::Zigzag { k, m, n: zigzag::default_elements(k, m) }.checked()
    }

    /// Clay with all other shards as helpers, Ceph's default code inside, and checked bounds.
    pub fn clay(k: usize, m: usize) -> Result<Self, ProfileError> {
        let d = k.saturating_add(m).saturating_sub(1);
        Self::Clay { k, m, d, mds: ScalarMds::default() }.checked()
    }

    /// Data shards.
    #[must_use]
    pub fn k(&self) -> usize {
        match *self {
            Self::Rs { k, .. }
            | Self::RsVan { k, .. }
            | Self::JerasureVan { k, .. }
            | Self::JerasureR6 { k, .. }
            | Self::CauchyOrig { k, .. }
            | Self::CauchyGood { k, .. }
            | Self::Zigzag { k, .. }
            | Self::Clay { k, .. } => k,
            Self::Copies { .. } => 1,
        }
    }

    /// Parity shards: the number of losses that can be repaired.
    #[must_use]
    pub fn m(&self) -> usize {
        match *self {
            Self::Rs { m, .. }
            | Self::RsVan { m, .. }
            | Self::JerasureVan { m, .. }
            | Self::CauchyOrig { m, .. }
            | Self::CauchyGood { m, .. }
            | Self::Zigzag { m, .. }
            | Self::Clay { m, .. } => m,
            Self::JerasureR6 { .. } => 2,
            Self::Copies { n } => n.saturating_sub(1),
        }
    }

    /// All shards of a stripe.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.k().saturating_add(self.m())
    }

    /// Elements per shard, without making the code.
    ///
    /// # Panics
    /// When [`Profile::checked`] refuses the profile.
    #[must_use]
    pub fn elements(&self) -> u32 {
        match *self {
            Self::JerasureVan { w, .. } | Self::JerasureR6 { w, .. } if w == WordField::W8 => 1,
            Self::JerasureVan { w, .. }
            | Self::JerasureR6 { w, .. }
            | Self::CauchyOrig { w, .. }
            | Self::CauchyGood { w, .. } => w.bits() as u32,
            Self::Zigzag { n, .. } => n,
            Self::Clay { k, m, d, .. } => clay::elements(k, m, d),
            Self::Rs { .. } | Self::RsVan { .. } | Self::Copies { .. } => 1,
        }
    }

    /// The layout of a shard's elements, without making the code.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match *self {
            Self::JerasureVan { w: field, .. } | Self::JerasureR6 { w: field, .. }
                if field != WordField::W8 =>
            {
                Layout::Words { field }
            }
            Self::CauchyOrig { packet_bytes, .. } | Self::CauchyGood { packet_bytes, .. } => {
                Layout::Packets { packet_bytes }
            }
            _ => Layout::Contiguous,
        }
    }

    /// The code itself. Make it once and share it, because it holds the cache of repair plans.
    ///
    /// # Panics
    /// When [`Profile::checked`] refuses the profile. It accepts all profiles from [`str::parse`]
    /// and the constructors.
    #[must_use]
    pub fn code(&self) -> Arc<dyn Code> {
        let profile = self.checked().expect("profiles are made with checked bounds");
        match profile {
            Self::Rs { k, m } => constructed(profile, ReedSolomon::new(&isa::cauchy(k, m))),
            Self::RsVan { k, m } => constructed(profile, ReedSolomon::new(&isa::vandermonde(k, m))),
            Self::JerasureVan { k, m, w } => words(profile, w, jerasure::vandermonde(w, k, m)),
            Self::JerasureR6 { k, w } => words(profile, w, jerasure::raid6(w, k)),
            Self::CauchyOrig { k, m, w, packet_bytes } => {
                let layout = Layout::Packets { packet_bytes };
                constructed(profile, BitCode::new(w, jerasure::cauchy_orig(w, k, m), layout))
            }
            Self::CauchyGood { k, m, w, packet_bytes } => {
                let layout = Layout::Packets { packet_bytes };
                constructed(profile, BitCode::new(w, jerasure::cauchy_good(w, k, m), layout))
            }
            Self::Zigzag { k, m, n } => constructed(profile, Zigzag::new(k, m, n)),
            Self::Clay { k, m, d, mds } => constructed(profile, Clay::new(k, m, d, mds)),
            Self::Copies { n } => constructed(profile, Copies { n }),
        }
    }
}

fn constructed(
    profile: Profile,
    construction: impl crate::construction::Construction + 'static,
) -> Arc<dyn Code> {
    Arc::new(ConstructedCode::new(profile, construction))
}

/// Words of 8 bits are bytes, which the engine can multiply directly.
fn words(profile: Profile, field: WordField, parities: jerasure::WordMatrix) -> Arc<dyn Code> {
    if field == WordField::W8 {
        constructed(profile, ReedSolomon::of_words(&parities))
    } else {
        constructed(profile, BitCode::new(field, parities, Layout::Words { field }))
    }
}
