//! Profiles as Ceph has them: keys and values.
//!
//! `ceph osd erasure-code-profile set NAME plugin=fieldstone technique=zigzag k=4 m=2` gives the
//! plug-in a map of texts. [`read`] makes a [`Profile`] of it, or says what is wrong; and it names
//! the keys that the plug-in adds, so that a stored profile shows every value that matters.
//!
//! # The keys
//!
//! | key | values | default |
//! |---|---|---|
//! | `technique` | see below | `reed_sol_van` |
//! | `k`, `m` | data and coding chunks | 4, 2 |
//! | `matrix` | `jerasure`, `isa`: whose plug-in makes the same bytes | `jerasure`; `isa` for `cauchy` |
//! | `w`, `packetsize`, `jerasure-per-chunk-alignment` | as in Ceph's `jerasure` | 8, 2048, false |
//! | `elements` | sub-chunks of a Zigzag chunk | the largest power of m up to 64 that fits k |
//! | `d` | helpers of a Clay repair | k + m - 1 |
//! | `scalar_mds`, `scalar_technique` | the code inside Clay | `jerasure`, `reed_sol_van` |
//!
//! | technique | the same bytes as |
//! |---|---|
//! | `reed_sol_van` | `jerasure` or `isa`, technique `reed_sol_van` |
//! | `reed_sol_r6_op`, `cauchy_orig`, `cauchy_good` | `jerasure` |
//! | `cauchy` | `isa`, technique `cauchy` |
//! | `clay` | plug-in `clay` |
//! | `zigzag` | nothing in Ceph |
//!
//! # Under the name of another plug-in
//!
//! Ceph finds a plug-in by the name of its file. If this library stands where `libec_jerasure.so`,
//! `libec_isa.so` or `libec_clay.so` is expected, the profile says `plugin=jerasure` and has the
//! keys and defaults of that plug-in. Then this module reads it as that plug-in does. So OSDs with
//! either library can serve one pool.
//!
//! # What is refused
//!
//! A key that no technique has is refused: a mistyped `elemnts=8` must not make a pool with other
//! properties than its owner believes. Keys of Ceph itself (`plugin`, `stripe_unit`, `crush-…`) are
//! left alone. Under the names of Ceph's plug-ins unknown keys are ignored, as they do.

use std::collections::BTreeMap;

use fieldstone_codes::{Profile, ScalarMds};
use fieldstone_gf::WordField;

use crate::Refusal;

/// Most bytes of the value of a key of ours.
pub const MAX_VALUE_BYTES: usize = 256;

/// A profile, keys to values.
pub type Keys = BTreeMap<String, String>;

/// What a profile asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The code.
    pub profile: Profile,
    /// `jerasure-per-chunk-alignment`: another rule for the lengths of chunks.
    pub aligned_per_chunk: bool,
    /// Keys that were absent or empty, with their defaults. The plug-in adds them to the profile.
    pub defaults: Keys,
}

/// Whose keys and defaults a profile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Fieldstone,
    Jerasure,
    Isa,
    Clay,
}

impl Dialect {
    fn of(plugin: &str) -> Self {
        // Ceph chooses one of several builds of a plug-in by such names.
        match plugin.split_once('_').map_or(plugin, |(name, _)| name) {
            "jerasure" => Self::Jerasure,
            "isa" => Self::Isa,
            "clay" => Self::Clay,
            _ => Self::Fieldstone,
        }
    }

    fn default_k_m(self) -> (usize, usize) {
        match self {
            Self::Fieldstone | Self::Clay => (4, 2),
            Self::Jerasure | Self::Isa => (7, 3),
        }
    }

    fn techniques(self) -> &'static [&'static str] {
        match self {
            Self::Fieldstone => &[
                "reed_sol_van",
                "reed_sol_r6_op",
                "cauchy",
                "cauchy_orig",
                "cauchy_good",
                "zigzag",
                "clay",
            ],
            Self::Jerasure => &["reed_sol_van", "reed_sol_r6_op", "cauchy_orig", "cauchy_good"],
            // Clay's technique is that of the code inside it.
            Self::Isa | Self::Clay => &["reed_sol_van", "cauchy"],
        }
    }
}

/// Keys of Ceph itself; the monitors and `create_rule` use them.
fn is_of_ceph(key: &str) -> bool {
    matches!(key, "plugin" | "stripe_unit" | "directory") || key.starts_with("crush-")
}

/// Reads a profile. `most_chunks` is the largest k + m that the daemon can place.
///
/// # Errors
/// The profile is no code; the message says which key is wrong and what it may be.
pub fn read(keys: &Keys, most_chunks: usize) -> Result<Request, Refusal> {
    let plugin = keys.get("plugin").map_or("fieldstone", String::as_str);
    let mut reader =
        Reader { keys, dialect: Dialect::of(plugin), used: Vec::new(), defaults: Keys::new() };
    let request = reader.read()?;
    let (k, m) = (request.profile.k(), request.profile.m());
    // As Ceph's plug-ins do. With k = 1 a replicated pool is the better choice.
    if k < 2 {
        return Err(Refusal::invalid(format!(
            "k={k} must be 2 or more; for copies, make a replicated pool"
        )));
    }
    if k + m > most_chunks {
        return Err(Refusal::invalid(format!(
            "k={k} and m={m} make {} chunks, and this release of Ceph can place at most \
             {most_chunks} chunks of a pool of this plug-in",
            k + m
        )));
    }
    Ok(request)
}

/// A profile that is being read.
struct Reader<'a> {
    keys: &'a Keys,
    dialect: Dialect,
    used: Vec<&'static str>,
    defaults: Keys,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<Request, Refusal> {
        if self.keys.contains_key("mapping") {
            return Err(Refusal::invalid(
                "mapping is not supported: chunks 0 to k-1 are the data; remove the key",
            ));
        }
        let technique = self.choice("technique", "reed_sol_van", self.dialect.techniques())?;
        // The code inside Clay is a technique of its own; Clay is the plug-in.
        let outer = if self.dialect == Dialect::Clay { "clay" } else { &technique };
        let (k, m) = self.dialect.default_k_m();
        let k = self.number("k", k)?;
        let m = self.number("m", if outer == "reed_sol_r6_op" { 2 } else { m })?;
        let profile = match outer {
            "zigzag" => self.zigzag(k, m)?,
            "clay" => self.clay(k, m, &technique)?,
            _ => self.reed_solomon(outer, k, m)?,
        };
        let aligned_per_chunk = match profile {
            Profile::JerasureVan { .. }
            | Profile::JerasureR6 { .. }
            | Profile::CauchyOrig { .. }
            | Profile::CauchyGood { .. } => self.flag("jerasure-per-chunk-alignment")?,
            _ => false,
        };
        self.placement();
        self.refuse_unknown(&technique)?;
        let profile = profile.checked().map_err(|error| Refusal::invalid(error.to_string()))?;
        let defaults = std::mem::take(&mut self.defaults);
        Ok(Request { profile, aligned_per_chunk, defaults })
    }

    /// Ceph's plug-ins also store where chunks are placed.
    fn placement(&mut self) {
        for (key, default) in [
            ("crush-root", "default"),
            ("crush-failure-domain", "host"),
            ("crush-device-class", ""),
        ] {
            if self.keys.get(key).is_none_or(String::is_empty) {
                self.defaults.insert(key.to_owned(), default.to_owned());
            }
        }
    }

    fn reed_solomon(&mut self, technique: &str, k: usize, m: usize) -> Result<Profile, Refusal> {
        let isa = match self.dialect {
            Dialect::Isa => true,
            Dialect::Fieldstone => {
                let default = if technique == "cauchy" { "isa" } else { "jerasure" };
                self.choice("matrix", default, &["jerasure", "isa"])? == "isa"
            }
            Dialect::Jerasure | Dialect::Clay => false,
        };
        if isa {
            return match technique {
                "reed_sol_van" => Ok(Profile::RsVan { k, m }),
                "cauchy" => Ok(Profile::Rs { k, m }),
                _ => Err(Refusal::invalid(format!(
                    "matrix=isa has no technique={technique}: choose reed_sol_van or cauchy, or \
                     matrix=jerasure"
                ))),
            };
        }
        let w = self.number("w", 8)?;
        let w = WordField::from_bits(w)
            .ok_or_else(|| Refusal::invalid(format!("w={w} must be 8, 16 or 32")))?;
        let packets = technique.starts_with("cauchy_");
        let packet_bytes = if packets { self.number("packetsize", 2048)? } else { 0 };
        match technique {
            "reed_sol_van" => Ok(Profile::JerasureVan { k, m, w }),
            "reed_sol_r6_op" if m == 2 => Ok(Profile::JerasureR6 { k, w }),
            "reed_sol_r6_op" => {
                Err(Refusal::invalid(format!("technique=reed_sol_r6_op has m=2, not m={m}")))
            }
            "cauchy_orig" => Ok(Profile::CauchyOrig { k, m, w, packet_bytes }),
            "cauchy_good" => Ok(Profile::CauchyGood { k, m, w, packet_bytes }),
            _ => Err(Refusal::invalid(format!(
                "matrix=jerasure has no technique={technique}: choose cauchy_good, or matrix=isa"
            ))),
        }
    }

    fn zigzag(&mut self, k: usize, m: usize) -> Result<Profile, Refusal> {
        let usual = Profile::zigzag(k, m).map_err(|error| Refusal::invalid(error.to_string()))?;
        let n = self.number("elements", usual.elements() as usize)?;
        let n =
            u32::try_from(n).map_err(|_| Refusal::invalid(format!("elements={n} is too large")))?;
        Ok(Profile::Zigzag { k, m, n })
    }

    fn clay(&mut self, k: usize, m: usize, technique: &str) -> Result<Profile, Refusal> {
        let d = self.number("d", k.saturating_add(m).saturating_sub(1))?;
        let mds = self.choice("scalar_mds", "jerasure", &["jerasure", "isa"])?;
        let inner = match self.dialect {
            Dialect::Clay => technique.to_owned(),
            _ => self.choice("scalar_technique", "reed_sol_van", &["reed_sol_van", "cauchy"])?,
        };
        let mds = match (mds.as_str(), inner.as_str()) {
            ("isa", "cauchy") => ScalarMds::Rs,
            ("isa", _) => ScalarMds::RsVan,
            (_, "reed_sol_van") => ScalarMds::JerasureVan,
            _ => {
                return Err(Refusal::invalid(format!(
                    "the code inside Clay cannot be {inner} of jerasure: choose reed_sol_van, or \
                     scalar_mds=isa"
                )));
            }
        };
        Ok(Profile::Clay { k, m, d, mds })
    }

    /// The value of a key, if it is there and not empty; otherwise the default is noted.
    fn value(&mut self, key: &'static str, default: &str) -> Result<String, Refusal> {
        self.used.push(key);
        match self.keys.get(key).filter(|value| !value.is_empty()) {
            Some(value) if value.len() > MAX_VALUE_BYTES => {
                Err(Refusal::invalid(format!("the value of {key} is too long")))
            }
            Some(value) => Ok(value.clone()),
            None => {
                self.defaults.insert(key.to_owned(), default.to_owned());
                Ok(default.to_owned())
            }
        }
    }

    fn choice(
        &mut self,
        key: &'static str,
        default: &str,
        choices: &[&str],
    ) -> Result<String, Refusal> {
        let value = self.value(key, default)?;
        if choices.contains(&value.as_str()) {
            return Ok(value);
        }
        Err(Refusal::invalid(format!("{key}={value} is none of {}", choices.join(", "))))
    }

    fn number(&mut self, key: &'static str, default: usize) -> Result<usize, Refusal> {
        let value = self.value(key, &default.to_string())?;
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { value.parse().ok() } else { None };
        number.ok_or_else(|| Refusal::invalid(format!("{key}={value} is no whole number")))
    }

    fn flag(&mut self, key: &'static str) -> Result<bool, Refusal> {
        let value = self.value(key, "false")?;
        match value.as_str() {
            "true" | "yes" => Ok(true),
            "false" | "no" => Ok(false),
            // Ceph's plug-in takes every other word for "no".
            _ if self.dialect != Dialect::Fieldstone => Ok(false),
            _ => Err(Refusal::invalid(format!("{key}={value} is neither true nor false"))),
        }
    }

    fn refuse_unknown(&self, technique: &str) -> Result<(), Refusal> {
        if self.dialect != Dialect::Fieldstone {
            return Ok(());
        }
        let known = |key: &String| is_of_ceph(key) || self.used.contains(&key.as_str());
        let Some(key) = self.keys.keys().find(|key| !known(key)) else { return Ok(()) };
        let shown: String = key.chars().take(40).collect();
        let own: Vec<&str> = self.used.iter().copied().filter(|key| *key != "technique").collect();
        Err(Refusal::invalid(format!(
            "technique={technique} has no key {shown}; its keys are {}",
            own.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Keys {
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').expect("key=value");
            (key.to_owned(), value.to_owned())
        };
        text.split_whitespace().map(pair).collect()
    }

    fn request(text: &str) -> Result<Request, String> {
        read(&keys(text), 20).map_err(|refusal| {
            assert_eq!(refusal.errno, crate::EINVAL);
            refusal.message
        })
    }

    #[test]
    fn profiles_become_codes() {
        for (text, code) in [
            ("plugin=fieldstone", "jerasure-van:4+2"),
            ("", "jerasure-van:4+2"),
            ("plugin=fieldstone technique=reed_sol_van k=8 m=3 w=16", "jerasure-van:8+3,w=16"),
            ("plugin=fieldstone matrix=isa k=8 m=3", "rs-van:8+3"),
            ("plugin=fieldstone technique=cauchy k=8 m=4", "rs:8+4"),
            ("plugin=fieldstone technique=reed_sol_r6_op k=8", "jerasure-r6:8+2"),
            ("plugin=fieldstone technique=cauchy_good packetsize=8", "cauchy-good:4+2,ps=8"),
            ("plugin=fieldstone technique=cauchy_orig w=16", "cauchy-orig:4+2,w=16"),
            ("plugin=fieldstone technique=zigzag", "zigzag:4+2"),
            ("plugin=fieldstone technique=zigzag k=8 m=2 elements=8", "zigzag:8+2,n=8"),
            ("plugin=fieldstone technique=clay k=8 m=4 d=10", "clay:8+4,d=10"),
            ("plugin=fieldstone technique=clay scalar_mds=isa", "clay:4+2,mds=rs-van"),
            (
                "plugin=fieldstone technique=clay scalar_mds=isa scalar_technique=cauchy",
                "clay:4+2,mds=rs",
            ),
            ("plugin=jerasure", "jerasure-van:7+3"),
            ("plugin=jerasure_generic k= m=2 elemnts=8", "jerasure-van:7+2"),
            ("plugin=isa technique=cauchy", "rs:7+3"),
            ("plugin=isa", "rs-van:7+3"),
            ("plugin=clay", "clay:4+2"),
            ("plugin=clay scalar_mds=isa technique=cauchy k=5 m=3", "clay:5+3,mds=rs"),
            (
                "plugin=fieldstone stripe_unit=16K crush-failure-domain=osd crush-new=1",
                "jerasure-van:4+2",
            ),
        ] {
            let found = request(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.profile.to_string(), code, "{text}");
            assert!(!found.aligned_per_chunk, "{text}");
        }
        let aligned = request("plugin=jerasure jerasure-per-chunk-alignment=true");
        assert!(aligned.expect("a profile").aligned_per_chunk);
    }

    #[test]
    fn what_was_not_said_is_added() {
        let found = request("plugin=fieldstone technique=zigzag k=6 m= crush-root=ssd").unwrap();
        let added = "m=2 elements=32 crush-failure-domain=host";
        let mut added = keys(added);
        added.insert("crush-device-class".into(), String::new());
        assert_eq!(found.defaults, added);
        // A profile with its defaults is the same profile, and complete.
        let mut all = keys("plugin=fieldstone technique=zigzag k=6 crush-root=ssd");
        all.extend(found.defaults);
        all.remove("crush-device-class");
        let again = read(&all, 20).unwrap();
        assert_eq!(again.profile, found.profile);
        assert_eq!(again.defaults.len(), 1);
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        for (text, reason) in [
            ("technique=raid5", "technique=raid5 is none of reed_sol_van, reed_sol_r6_op, cauchy"),
            ("plugin=jerasure technique=liberation", "is none of reed_sol_van, reed_sol_r6_op"),
            ("plugin=isa technique=zigzag", "is none of reed_sol_van, cauchy"),
            ("k=x", "k=x is no whole number"),
            ("k=-1", "k=-1 is no whole number"),
            ("m=99999999999999999999999", "is no whole number"),
            ("k=1", "k=1 must be 2 or more"),
            ("k=0", "K and M must be at least 1"),
            ("m=0", "K and M must be at least 1"),
            ("k=18 m=3", "21 chunks, and this release of Ceph can place at most 20"),
            ("k=18446744073709551615", "K + M at most 255"),
            ("w=12", "w=12 must be 8, 16 or 32"),
            ("matrix=isa technique=cauchy_good", "matrix=isa has no technique=cauchy_good"),
            ("matrix=jerasure technique=cauchy", "matrix=jerasure has no technique=cauchy"),
            ("matrix=intel", "matrix=intel is none of jerasure, isa"),
            ("matrix=isa k=4 m=5", "M at most 4"),
            ("technique=reed_sol_r6_op m=3", "has m=2, not m=3"),
            ("technique=cauchy_good packetsize=10", "multiple of 4"),
            ("technique=zigzag m=5", "M must be 2, 3 or 4"),
            ("technique=zigzag elements=6", "power of 2"),
            ("technique=zigzag elements=99999999999", "too large"),
            ("technique=zigzag packetsize=8", "no key packetsize; its keys are k, m, elements"),
            ("technique=zigzag elemnts=8", "has no key elemnts"),
            ("technique=clay d=9", "d must be 4 to 5"),
            ("technique=clay scalar_mds=shec", "scalar_mds=shec is none of jerasure, isa"),
            ("technique=clay scalar_technique=cauchy", "scalar_mds=isa"),
            ("mapping=_DD", "mapping is not supported"),
            ("jerasure-per-chunk-alignment=maybe", "neither true nor false"),
        ] {
            let message = request(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
        let long = Keys::from([("k".to_owned(), "1".repeat(MAX_VALUE_BYTES + 1))]);
        assert_eq!(read(&long, 20).unwrap_err().message, "the value of k is too long");
    }
}
