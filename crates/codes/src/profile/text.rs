//! Printing and parsing profiles.

use std::fmt;
use std::str::FromStr;

use fieldstone_gf::WordField;

use super::{DEFAULT_PACKET_BYTES, Profile, ProfileError, ScalarMds};
use crate::zigzag;

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Rs { .. } => "rs",
            Self::RsVan { .. } => "rs-van",
            Self::JerasureVan { .. } => "jerasure-van",
            Self::JerasureR6 { .. } => "jerasure-r6",
            Self::CauchyOrig { .. } => "cauchy-orig",
            Self::CauchyGood { .. } => "cauchy-good",
            Self::Zigzag { .. } => "zigzag",
            Self::Clay { .. } => "clay",
            Self::Copies { n } => return write!(f, "copies:{n}"),
        };
        write!(f, "{name}:{}+{}", self.k(), self.m())?;
        match *self {
            Self::JerasureVan { w, .. } | Self::JerasureR6 { w, .. } => print_w(f, w),
            Self::CauchyOrig { w, packet_bytes, .. } | Self::CauchyGood { w, packet_bytes, .. } => {
                print_w(f, w)?;
                if packet_bytes == DEFAULT_PACKET_BYTES {
                    return Ok(());
                }
                write!(f, ",ps={packet_bytes}")
            }
            Self::Zigzag { k, m, n } if n != zigzag::default_elements(k, m) => write!(f, ",n={n}"),
            Self::Clay { k, m, d, mds } => {
                if k.saturating_add(m) != d.saturating_add(1) {
                    write!(f, ",d={d}")?;
                }
                if mds == ScalarMds::default() {
                    return Ok(());
                }
                write!(f, ",mds={}", mds.name())
            }
            _ => Ok(()),
        }
    }
}

fn print_w(f: &mut fmt::Formatter<'_>, w: WordField) -> fmt::Result {
    if w == WordField::W8 { Ok(()) } else { write!(f, ",w={w}") }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let unknown = || ProfileError::Unknown(text.to_owned());
        let (name, parameters) = text.split_once(':').ok_or_else(unknown)?;
        let form = form(name).ok_or_else(unknown)?;
        let parsed = parse(name, parameters);
        parsed.ok_or_else(|| ProfileError::Syntax { given: text.to_owned(), form })?.checked()
    }
}

/// The form of a profile with this name.
fn form(name: &str) -> Option<&'static str> {
    Some(match name {
        "rs" => "rs:K+M",
        "rs-van" => "rs-van:K+M",
        "jerasure-van" => "jerasure-van:K+M or jerasure-van:K+M,w=W (W is 8, 16 or 32)",
        "jerasure-r6" => "jerasure-r6:K+2 or jerasure-r6:K+2,w=W (W is 8, 16 or 32)",
        "cauchy-orig" => "cauchy-orig:K+M or cauchy-orig:K+M,w=W,ps=BYTES (W is 8, 16 or 32)",
        "cauchy-good" => "cauchy-good:K+M or cauchy-good:K+M,w=W,ps=BYTES (W is 8, 16 or 32)",
        "zigzag" => "zigzag:K+M or zigzag:K+M,n=ELEMENTS",
        "clay" => "clay:K+M or clay:K+M,d=D,mds=CODE (CODE is jerasure-van, rs-van or rs)",
        "copies" => "copies:N",
        _ => return None,
    })
}

/// A profile whose numbers are not checked yet, or `None` if the text has another form.
fn parse(name: &str, parameters: &str) -> Option<Profile> {
    if name == "copies" {
        return Some(Profile::Copies { n: number(parameters)? });
    }
    let mut parts = parameters.split(',');
    let (k, m) = parts.next()?.split_once('+')?;
    let (k, m) = (number(k)?, number(m)?);
    let mut options = Options::default();
    for part in parts {
        let (key, value) = part.split_once('=')?;
        let kept = options.0.iter().any(|(known, _)| *known == key);
        if kept {
            return None;
        }
        options.0.push((key, value));
    }
    let profile = match name {
        "rs" => Profile::Rs { k, m },
        "rs-van" => Profile::RsVan { k, m },
        "jerasure-van" => Profile::JerasureVan { k, m, w: options.w()? },
        "jerasure-r6" => Profile::JerasureR6 { k, w: (m == 2).then(|| options.w())?? },
        "cauchy-orig" => {
            Profile::CauchyOrig { k, m, w: options.w()?, packet_bytes: options.packet_bytes()? }
        }
        "cauchy-good" => {
            Profile::CauchyGood { k, m, w: options.w()?, packet_bytes: options.packet_bytes()? }
        }
        "zigzag" => {
            let n = options.number("n", zigzag::default_elements(k, m) as usize)?;
            Profile::Zigzag { k, m, n: u32::try_from(n).ok()? }
        }
        "clay" => {
            let d = options.number("d", k.saturating_add(m).saturating_sub(1))?;
            Profile::Clay { k, m, d, mds: options.mds()? }
        }
        _ => return None,
    };
    // Any option left is one that this code does not have.
    options.0.is_empty().then_some(profile)
}

/// Options that the parser has not used yet.
#[derive(Default)]
struct Options<'a>(Vec<(&'a str, &'a str)>);

impl Options<'_> {
    fn take(&mut self, key: &str) -> Option<&str> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn number(&mut self, key: &str, default: usize) -> Option<usize> {
        self.take(key).map_or(Some(default), number)
    }

    fn w(&mut self) -> Option<WordField> {
        WordField::from_bits(self.number("w", 8)?)
    }

    fn packet_bytes(&mut self) -> Option<usize> {
        self.number("ps", DEFAULT_PACKET_BYTES)
    }

    fn mds(&mut self) -> Option<ScalarMds> {
        let Some(name) = self.take("mds") else { return Some(ScalarMds::default()) };
        ScalarMds::ALL.into_iter().find(|mds| mds.name() == name)
    }
}

/// Plain decimal digits without a leading zero, so every number has exactly one spelling.
fn number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    (plain && canonical).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_SHARDS;
    use proptest::prelude::*;

    #[test]
    fn names_round_trip() {
        let (w16, w32) = (WordField::W16, WordField::W32);
        for (text, profile) in [
            ("rs:4+2", Profile::Rs { k: 4, m: 2 }),
            ("rs:1+1", Profile::Rs { k: 1, m: 1 }),
            ("rs:251+4", Profile::Rs { k: 251, m: 4 }),
            ("rs-van:21+4", Profile::RsVan { k: 21, m: 4 }),
            ("jerasure-van:4+2", Profile::JerasureVan { k: 4, m: 2, w: WordField::W8 }),
            ("jerasure-van:4+2,w=16", Profile::JerasureVan { k: 4, m: 2, w: w16 }),
            ("jerasure-r6:8+2,w=32", Profile::JerasureR6 { k: 8, w: w32 }),
            (
                "cauchy-good:4+2",
                Profile::CauchyGood { k: 4, m: 2, w: WordField::W8, packet_bytes: 2048 },
            ),
            (
                "cauchy-orig:4+2,w=16,ps=8",
                Profile::CauchyOrig { k: 4, m: 2, w: w16, packet_bytes: 8 },
            ),
            ("zigzag:4+2", Profile::Zigzag { k: 4, m: 2, n: 8 }),
            ("zigzag:4+2,n=4", Profile::Zigzag { k: 4, m: 2, n: 4 }),
            ("clay:4+2", Profile::Clay { k: 4, m: 2, d: 5, mds: ScalarMds::JerasureVan }),
            ("clay:8+4,d=10,mds=rs", Profile::Clay { k: 8, m: 4, d: 10, mds: ScalarMds::Rs }),
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
    fn options_may_be_defaults_and_in_any_order() {
        for (text, canonical) in [
            ("jerasure-van:4+2,w=8", "jerasure-van:4+2"),
            ("cauchy-good:6+3,ps=8,w=32", "cauchy-good:6+3,w=32,ps=8"),
            ("zigzag:4+2,n=8", "zigzag:4+2"),
            ("clay:8+3,mds=jerasure-van,d=10", "clay:8+3"),
        ] {
            assert_eq!(text.parse::<Profile>().unwrap().to_string(), canonical);
        }
        assert_eq!(Profile::zigzag(4, 2), "zigzag:4+2".parse());
        assert_eq!(Profile::clay(4, 2), "clay:4+2".parse());
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let message = |text: &str| text.parse::<Profile>().unwrap_err().to_string();
        for text in ["rs:0+2", "rs:4+0", "rs:252+4", "rs:18446744073709551615+1", "clay:252+4"] {
            assert!(message(text).contains("at least 1 and K + M at most 255"), "{text}");
        }
        for text in ["copies:0", "copies:17"] {
            assert!(message(text).contains("1 to 16"), "{text}");
        }
        for text in [
            "rs:4",
            "rs:+",
            "rs:a+b",
            "rs:4+2+1",
            "rs:+4+2",
            "rs:04+2",
            "rs: 4+2",
            "rs:",
            "rs:4+2,",
            "rs:4+2,w=8",
            "rs:4+2,=",
            "rs:4+2 ",
        ] {
            assert!(message(text).contains("of the form rs:K+M"), "{text}");
        }
        for text in ["copies:", "copies:x", "copies:-1", "copies:99999999999999999999"] {
            assert!(message(text).contains("of the form copies:N"), "{text}");
        }
        for (text, reason) in [
            ("rs-van:22+4", "with M = 4, K at most 21"),
            ("rs-van:33+2", "some losses of M shards cannot be repaired"),
            ("rs-van:4+5", "M at most 4"),
            ("jerasure-van:4+2,w=12", "W is 8, 16 or 32"),
            ("jerasure-van:4+2,w=8,w=8", "of the form"),
            ("jerasure-van:200+55,w=32", "K times M must be at most 8192"),
            ("jerasure-r6:4+3", "jerasure-r6:K+2"),
            ("cauchy-good:4+2,ps=0", "multiple of 4"),
            ("cauchy-good:4+2,ps=10", "multiple of 4"),
            ("cauchy-good:4+2,ps=2097152", "to 1048576"),
            ("zigzag:4+1", "M must be 2, 3 or 4"),
            ("zigzag:4+5", "M must be 2, 3 or 4"),
            ("zigzag:1+2", "K must be 2 to 253"),
            ("zigzag:86+3", "K must be 2 to 85"),
            ("zigzag:22+4", "K must be 2 to 21"),
            ("zigzag:4+2,n=6", "power of 2 from 2 to 1024"),
            ("zigzag:4+2,n=1", "power of 2 from 2 to 1024"),
            ("zigzag:4+2,n=16", "at most 2^3"),
            ("zigzag:12+2,n=2048", "power of 2 from 2 to 1024"),
            ("zigzag:12+4,n=1024", "power of 4 from 4 to 256"),
            ("clay:4+2,d=6", "d must be 4 to 5"),
            ("clay:4+2,d=3", "d must be 4 to 5"),
            ("clay:1+2", "K must be at least 2"),
            ("clay:30+4", "it has 4^9 elements, and 4096 are the most"),
            ("clay:4+5,mds=rs-van", "rs-van:5+5 inside it"),
            ("clay:4+2,mds=raid", "jerasure-van, rs-van or rs"),
        ] {
            let message = message(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
        for text in ["", "rs", "raid:5", "RS:4+2"] {
            assert!(message(text).contains("unknown code"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_itself(
            text in "(rs|rs-van|jerasure-van|jerasure-r6|cauchy-good|zigzag|clay|copies|.{0,4})\
                     :?[0-9]{0,3}\\+?[0-9]{0,3}(,(w|ps|n|d|mds)=[0-9a-z]{0,4}){0,3}[0-9+ .]{0,8}",
        ) {
            if let Ok(profile) = text.parse::<Profile>() {
                let printed = profile.to_string();
                prop_assert!(printed.len() <= text.len());
                prop_assert_eq!(printed.parse(), Ok(profile));
                prop_assert!(profile.shards() <= MAX_SHARDS);
            }
        }
    }
}
