//! Why a header is refused or does not open.

/// Why a header is refused or does not open. The texts name no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LuksError {
    /// The device does not begin with a LUKS header, nor has a second copy of one.
    #[error("there is no LUKS header")]
    NoHeader,
    /// The header of a clone that Ceph formatted with a key of its own.
    #[error(
        "the header is that of a clone with a key of its own (RBDL, Ceph 17 or newer), over a \
         parent with another key or none; flatten the clone with `rbd flatten \
         --encryption-passphrase-file` first"
    )]
    Clone,
    /// The version is neither 1 nor 2.
    #[error("version {0} of LUKS is not supported")]
    Version(u16),
    /// A field has a value that the format does not allow, or that is beyond a bound.
    #[error("the LUKS header is damaged: {0}")]
    Damaged(String),
    /// The header is correct, but uses something that is not supported.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// No slot opened.
    #[error("no key slot opens with this passphrase{}", because(refused))]
    NoSlotOpens {
        /// Slots that were not tried, and the reason.
        refused: Vec<String>,
    },
    /// The passphrase is empty, too long, or cannot be read.
    #[error("{0}")]
    Passphrase(String),
}

fn because(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!(" (not tried: {})", refused.join("; ")) }
}

/// A refusal of a damaged field.
pub(crate) fn damaged(what: impl Into<String>) -> LuksError {
    LuksError::Damaged(what.into())
}

/// A refusal of something that is not supported.
pub(crate) fn unsupported(what: impl Into<String>) -> LuksError {
    LuksError::NotSupported(what.into())
}
