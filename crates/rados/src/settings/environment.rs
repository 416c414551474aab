//! Options from a command line and from the variables `CEPH_CONF`, `CEPH_KEYRING` and `CEPH_ARGS`.
//!
//! | Option | Meaning |
//! |---|---|
//! | `-c`, `--conf FILE` | the configuration file |
//! | `-n`, `--name TYPE.ID` | the entity |
//! | `-i`, `--id`, `--user ID` | the entity `client.ID` |
//! | `-m`, `--mon-host LIST` | the monitors |
//! | `-k`, `--keyring FILES` | the keyrings |
//! | `-K`, `--keyfile FILE` | the file with the key |
//! | `--cluster NAME` | the name of the cluster |
//! | `--OPTION=VALUE`, `--OPTION VALUE` | any other option |
//! | `--OPTION` | the option is `true`, if another option or nothing follows |

use std::collections::BTreeMap;

use super::SettingsError;
use super::conf::normal_name;
use crate::auth::Entity;
use crate::encoding::EntityKind;

/// Options that never have a value behind them.
const FLAGS: [&str; 3] = ["no_mon_config", "no_config_file", "log_early"];

/// The options of a command line, or of `CEPH_ARGS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The configuration file.
    pub conf: Option<String>,
    /// The entity.
    pub entity: Option<Entity>,
    /// The name of the cluster.
    pub cluster: Option<String>,
    /// All other options, by their usual names.
    pub options: BTreeMap<String, String>,
}

impl Arguments {
    /// Reads options. `origin` names their place in errors, e.g. `CEPH_ARGS`.
    ///
    /// # Errors
    /// A word is no option, or an option has no value or a wrong one.
    pub fn parse<S: AsRef<str>>(words: &[S], origin: &str) -> Result<Self, SettingsError> {
        let mut arguments = Self::default();
        let mut words = words.iter().map(AsRef::as_ref).peekable();
        while let Some(word) = words.next() {
            let error = |why: String| SettingsError::new(origin, why);
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if word.starts_with('-') => (name, Some(value)),
                _ => (word, None),
            };
            let name = match name.strip_prefix("--") {
                Some(name) => normal_name(name),
                None => match name {
                    "-c" | "-n" | "-i" | "-m" | "-k" | "-K" => name.to_owned(),
                    _ => return Err(error(format!("`{word}` is no option"))),
                },
            };
            if name.is_empty() {
                return Err(error(format!("`{word}` is no option")));
            }
            let is_long = word.starts_with("--");
            let needs_value = !is_long
                || matches!(&*name, "conf" | "name" | "id" | "user" | "mon_host" | "cluster")
                || matches!(&*name, "keyring" | "keyfile" | "key");
            let value = match attached {
                Some(value) => value.to_owned(),
                None if FLAGS.contains(&&*name) => "true".to_owned(),
                None => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => value.to_owned(),
                    None if needs_value => {
                        return Err(error(format!("the option `{word}` has no value")));
                    }
                    None => "true".to_owned(),
                },
            };
            arguments.set(&name, value).map_err(error)?;
        }
        Ok(arguments)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "-c" | "conf" => self.conf = Some(value),
            "-n" | "name" => {
                let entity: Result<Entity, _> = value.parse();
                self.entity = Some(entity.map_err(|error| error.to_string())?);
            }
            "-i" | "id" | "user" => {
                if value.is_empty() {
                    return Err("the id of the client is empty".into());
                }
                self.entity = Some(Entity { kind: EntityKind::Client, id: value });
            }
            "cluster" => self.cluster = Some(value),
            "-m" => drop(self.options.insert("mon_host".into(), value)),
            "-k" => drop(self.options.insert("keyring".into(), value)),
            "-K" => drop(self.options.insert("keyfile".into(), value)),
            other => drop(self.options.insert(other.to_owned(), value)),
        }
        Ok(())
    }
}

/// The variables of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CEPH_CONF`: the configuration file.
    pub conf: Option<String>,
    /// `CEPH_KEYRING`: the keyrings.
    pub keyring: Option<String>,
    /// `CEPH_ARGS`: options.
    pub arguments: Arguments,
    /// `HOME`: the place of the user's own configuration file.
    pub home: Option<String>,
}

impl Environment {
    /// Reads the variables that `variable` gives. Empty variables count as not set.
    ///
    /// # Errors
    /// `CEPH_ARGS` cannot be read.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let words = split_words(&set("CEPH_ARGS").unwrap_or_default())
            .ok_or_else(|| SettingsError::new("CEPH_ARGS", "the quotes are not closed".into()))?;
        Ok(Self {
            conf: set("CEPH_CONF"),
            keyring: set("CEPH_KEYRING"),
            arguments: Arguments::parse(&words, "CEPH_ARGS")?,
            home: set("HOME"),
        })
    }
}

/// The words of a text. Quotes keep blanks; they have to be closed.
fn split_words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in text.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Arguments, SettingsError> {
        Arguments::parse(&split_words(text).expect("quotes are closed"), "here")
    }

    #[test]
    fn reads_all_options() {
        let arguments = parse(
            "--conf a.conf -n client.x --cluster=west -m 'v2:1.2.3.4, v2:1.2.3.5' \
             --rbd-cache=false --log-to-stderr --keyring /k --rados_osd_op_timeout 5 \
             --no-mon-config --debug-ms=1=2",
        );
        let arguments = arguments.expect("sound");
        assert_eq!(arguments.conf.as_deref(), Some("a.conf"));
        assert_eq!(arguments.entity, Some(Entity::client("x")));
        assert_eq!(arguments.cluster.as_deref(), Some("west"));
        let options: Vec<(&str, &str)> =
            arguments.options.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("debug_ms", "1=2"),
            ("keyring", "/k"),
            ("log_to_stderr", "true"),
            ("mon_host", "v2:1.2.3.4, v2:1.2.3.5"),
            ("no_mon_config", "true"),
            ("rados_osd_op_timeout", "5"),
            ("rbd_cache", "false"),
        ];
        assert_eq!(options, expected);
        for text in ["--id y", "--user=y", "-i y", "-n osd.1 --id y", "-n client.y"] {
            assert_eq!(parse(text).expect("sound").entity, Some(Entity::client("y")), "{text}");
        }
        assert_eq!(parse("-k a -K b").expect("sound").options.len(), 2);
        assert_eq!(parse(""), Ok(Arguments::default()));
    }

    #[test]
    fn refuses_by_name() {
        for (text, error) in [
            ("word", "here: `word` is no option"),
            ("a=b", "here: `a=b` is no option"),
            ("-x 1", "here: `-x` is no option"),
            ("--", "here: `--` is no option"),
            ("--id", "here: the option `--id` has no value"),
            ("-m --id x", "here: the option `-m` has no value"),
            ("-n admin", "here: `admin` is not a name such as client.admin"),
            ("--id=", "here: the id of the client is empty"),
        ] {
            assert_eq!(parse(text).expect_err(text).to_string(), error);
        }
    }

    #[test]
    fn reads_the_environment() {
        let environment = Environment::read(|name| match name {
            "CEPH_CONF" => Some("/c".into()),
            "CEPH_KEYRING" => Some(String::new()),
            "CEPH_ARGS" => Some("--id \"a b\"".into()),
            _ => None,
        });
        let environment = environment.expect("sound");
        assert_eq!(environment.conf.as_deref(), Some("/c"));
        assert_eq!(environment.keyring, None);
        assert_eq!(environment.arguments.entity, Some(Entity::client("a b")));
        let open = Environment::read(|name| (name == "CEPH_ARGS").then(|| "--id 'a".into()));
        assert_eq!(open.expect_err("open").to_string(), "CEPH_ARGS: the quotes are not closed");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn never_panics(text in r#"[-a-z='" .ä]{0,40}"#) {
            if let Some(words) = split_words(&text) {
                let _ = Arguments::parse(&words, "here");
            }
        }
    }
}
