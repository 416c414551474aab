//! Names of codes, as users write them and as pools store them.
//!
//! The text form is a contract (command line, pool description): `rs:K+M` and `copies:N`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::Code;
use crate::copies::Copies;
use crate::rs::ReedSolomon;

/// Most shards of one stripe (k + m).
pub const MAX_SHARDS: usize = 255;
/// Most copies.
pub const MAX_COPIES: usize = 16;

/// Which code protects the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Reed-Solomon: `k` data and `m` parity shards, any `k` of which are enough.
    Rs {
        /// Data shards, at least 1.
        k: usize,
        /// Parity shards, at least 1; k + m <= [`MAX_SHARDS`].
        m: usize,
    },
    /// `n` identical shards.
    Copies {
        /// 1 to [`MAX_COPIES`].
        n: usize,
    },
}

/// Why a text or a pair of numbers names no code.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProfileError {
    /// Not in the form `name:parameters`, or of an unknown name.
    #[error(
        "unknown code {0:?}: write rs:K+M (for example rs:4+2) or copies:N (for example copies:3)"
    )]
    Unknown(String),
    /// A code that this version does not have yet.
    #[error("the code {0:?} comes in a later version; today there are rs:K+M and copies:N")]
    Later(String),
    /// The name is known, but what follows is not of its form.
    #[error("{given:?} is not of the form {form} with whole numbers")]
    Syntax {
        /// What was written.
        given: String,
        /// What is expected.
        form: &'static str,
    },
    /// Reed-Solomon numbers outside the bounds.
    #[error(
        "rs:{k}+{m} is out of bounds: K and M must be at least 1 and K + M at most {MAX_SHARDS}"
    )]
    RsBounds {
        /// Data shards asked for.
        k: usize,
        /// Parity shards asked for.
        m: usize,
    },
    /// A number of copies outside the bounds.
    #[error("copies:{n} is out of bounds: N must be 1 to {MAX_COPIES}")]
    CopiesBounds {
        /// Copies asked for.
        n: usize,
    },
}

impl Profile {
    /// Reed-Solomon with checked bounds.
    pub fn rs(k: usize, m: usize) -> Result<Self, ProfileError> {
        if k >= 1 && m >= 1 && k.saturating_add(m) <= MAX_SHARDS {
            Ok(Self::Rs { k, m })
        } else {
            Err(ProfileError::RsBounds { k, m })
        }
    }

    /// Copies with checked bounds.
    pub fn copies(n: usize) -> Result<Self, ProfileError> {
        if (1..=MAX_COPIES).contains(&n) {
            Ok(Self::Copies { n })
        } else {
            Err(ProfileError::CopiesBounds { n })
        }
    }

    /// Data shards.
    #[must_use]
    pub fn k(&self) -> usize {
        match *self {
            Self::Rs { k, .. } => k,
            Self::Copies { .. } => 1,
        }
    }

    /// Parity shards: the number of losses that can be repaired.
    #[must_use]
    pub fn m(&self) -> usize {
        match *self {
            Self::Rs { m, .. } => m,
            Self::Copies { n } => n - 1,
        }
    }

    /// All shards of a stripe.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.k() + self.m()
    }

    /// The code itself. Make it once and share it: it holds the cache of repair plans.
    ///
    /// # Panics
    /// When the numbers are outside the documented bounds, which profiles from [`Profile::rs`],
    /// [`Profile::copies`] and [`str::parse`] never are.
    #[must_use]
    pub fn code(&self) -> Arc<dyn Code> {
        match *self {
            Self::Rs { k, m } => {
                Self::rs(k, m).expect("profiles are made with checked bounds");
                Arc::new(ReedSolomon::new(k, m))
            }
            Self::Copies { n } => {
                Self::copies(n).expect("profiles are made with checked bounds");
                Arc::new(Copies::new(n))
            }
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rs { k, m } => write!(f, "rs:{k}+{m}"),
            Self::Copies { n } => write!(f, "copies:{n}"),
        }
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let (name, parameters) =
            text.split_once(':').ok_or_else(|| ProfileError::Unknown(text.to_owned()))?;
        let syntax = |form| ProfileError::Syntax { given: text.to_owned(), form };
        match name {
            "rs" => {
                let numbers = parameters.split_once('+');
                let numbers = numbers.and_then(|(k, m)| Some((number(k)?, number(m)?)));
                let (k, m) = numbers.ok_or_else(|| syntax("rs:K+M"))?;
                Self::rs(k, m)
            }
            "copies" => Self::copies(number(parameters).ok_or_else(|| syntax("copies:N"))?),
            "zigzag" | "clay" => Err(ProfileError::Later(text.to_owned())),
            _ => Err(ProfileError::Unknown(text.to_owned())),
        }
    }
}

/// Plain decimal digits without leading zero, so that every profile has exactly one spelling.
fn number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    (plain && canonical).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_round_trip() {
        for (text, profile) in [
            ("rs:4+2", Profile::Rs { k: 4, m: 2 }),
            ("rs:1+1", Profile::Rs { k: 1, m: 1 }),
            ("rs:251+4", Profile::Rs { k: 251, m: 4 }),
            ("copies:1", Profile::Copies { n: 1 }),
            ("copies:16", Profile::Copies { n: 16 }),
        ] {
            assert_eq!(text.parse(), Ok(profile));
            assert_eq!(profile.to_string(), text);
            let code = profile.code();
            assert_eq!((code.k() + code.m(), code.profile()), (profile.shards(), profile));
        }
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let message = |text: &str| text.parse::<Profile>().unwrap_err().to_string();
        for text in ["rs:0+2", "rs:4+0", "rs:252+4", "rs:18446744073709551615+1"] {
            assert!(message(text).contains("at least 1 and K + M at most 255"), "{text}");
        }
        for text in ["copies:0", "copies:17"] {
            assert!(message(text).contains("1 to 16"), "{text}");
        }
        for text in ["rs:4", "rs:+", "rs:a+b", "rs:4+2+1", "rs:+4+2", "rs:04+2", "rs: 4+2", "rs:"] {
            assert!(message(text).contains("of the form rs:K+M"), "{text}");
        }
        for text in ["copies:", "copies:x", "copies:-1", "copies:99999999999999999999"] {
            assert!(message(text).contains("of the form copies:N"), "{text}");
        }
        assert!(message("zigzag:4+2").contains("later version"));
        for text in ["", "rs", "raid:5", "RS:4+2"] {
            assert!(message(text).contains("unknown code"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_itself(text in "(rs|copies|.{0,4}):?[0-9+ .]{0,8}") {
            if let Ok(profile) = text.parse::<Profile>() {
                prop_assert_eq!(profile.to_string(), text);
                prop_assert!(profile.shards() <= MAX_SHARDS);
            }
        }
    }
}
