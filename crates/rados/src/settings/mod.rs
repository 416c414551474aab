//! The settings of a client, from the places where clients of Ceph look for them.
//!
//! Nothing here touches a file. The caller reads files, this module says which and what they mean:
//!
//! ```text
//! let mut sources = Sources::default();
//! sources.command_line = Arguments::parse(&words, "the command line")?;
//! sources.environment = Environment::read(|name| std::env::var(name).ok())?;
//! // Read the first of sources.conf_paths() that exists:
//! sources.conf = Some(ConfFile::parse(path, &text)?);
//! let settings = Settings::new(&sources)?;
//! match settings.key_source()? { … }   // a key, or files to read
//! ```
//!
//! **Precedence**, the first wins: command line, `CEPH_ARGS`, `CEPH_KEYRING`, then of the file
//! `[client.NAME]`, `[client]`, `[global]`, then Ceph's default. Options that monitors keep in
//! their own database are not read.
//!
//! **Variables.** Values may contain `$cluster`, `$type`, `$id`, `$name`, `$host`, `$pid`, and the
//! names of other options.

pub mod conf;
pub mod environment;
pub mod keyring;
pub mod monitors;
#[cfg(test)]
mod tests;
mod values;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use conf::ConfFile;
pub use environment::{Arguments, Environment};
pub use monitors::{MonitorAddress, MonitorsError};
pub use values::ReadPolicy;

use crate::auth::{CryptoKey, Entity, Mode};
use crate::encoding::EntityKind;
use conf::{expand, normal_name};

/// How deep values may refer to other options.
const EXPANSION_MAX: usize = 8;
/// How many variables of one value are replaced, those in other options included.
const VARIABLES_MAX: usize = 64;
/// Variables of longer values are not replaced.
const VALUE_MAX_BYTES: usize = 16 << 10;

/// The option that has the key itself. Its value is never shown.
const KEY: &str = "key";
/// Stands for it.
const HIDDEN: &str = "(hidden)";

/// Ceph's defaults for the options that this crate reads.
const DEFAULTS: [(&str, &str); 9] = [
    ("auth_client_required", "cephx, none"),
    (
        "keyring",
        "/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,\
         /etc/ceph/keyring,/etc/ceph/keyring.bin",
    ),
    ("ms_client_mode", "crc secure"),
    ("ms_mon_client_mode", "secure crc"),
    ("rados_mon_op_timeout", "0"),
    ("rados_osd_op_timeout", "0"),
    ("rbd_read_from_replica_policy", "default"),
    ("crush_location", ""),
    ("mon_host", ""),
];

/// Why settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// A file, or another place of settings.
    pub origin: String,
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub fault: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.origin, self.fault),
            None => write!(f, "{}: {}", self.origin, self.fault),
        }
    }
}

impl std::error::Error for SettingsError {}

impl SettingsError {
    fn new(origin: &str, fault: String) -> Self {
        Self { origin: origin.to_owned(), line: None, fault }
    }

    fn at_line(origin: &str, line: usize, fault: &str) -> Self {
        Self { origin: origin.to_owned(), line: Some(line), fault: fault.to_owned() }
    }
}

/// All places of settings. Its `Debug` shows no option, since each place may have a key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// The command line's options.
    pub command_line: Arguments,
    /// The variables of the environment.
    pub environment: Environment,
    /// The configuration file, if there is one.
    pub conf: Option<ConfFile>,
    /// The name of this host, for `$host`.
    pub host: String,
    /// The number of this process, for `$pid`.
    pub pid: u32,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("entity", &self.entity())
            .field("conf", &self.conf.as_ref().map(|conf| &conf.name))
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Sources {
    /// The entity that the client is.
    #[must_use]
    pub fn entity(&self) -> Entity {
        let named = self.command_line.entity.clone();
        named
            .or_else(|| self.environment.arguments.entity.clone())
            .unwrap_or_else(|| Entity { kind: EntityKind::Client, id: "admin".into() })
    }

    /// The name of the cluster: `ceph`, unless an option names another.
    #[must_use]
    pub fn cluster(&self) -> &str {
        let named = self.command_line.cluster.as_deref();
        named.or(self.environment.arguments.cluster.as_deref()).unwrap_or("ceph")
    }

    /// The files where the configuration may be; the first that exists counts. True if the user
    /// named them: then one of them has to exist.
    #[must_use]
    pub fn conf_paths(&self) -> (Vec<String>, bool) {
        let named = self.command_line.conf.as_deref();
        let named = named.or(self.environment.arguments.conf.as_deref());
        let named = named.or(self.environment.conf.as_deref());
        if let Some(named) = named {
            let paths = named.split(',').map(str::trim).filter(|path| !path.is_empty());
            return (paths.map(|path| self.expand_plain(path)).collect(), true);
        }
        let cluster = self.cluster();
        let mut paths = vec![format!("/etc/ceph/{cluster}.conf")];
        if let Some(home) = &self.environment.home {
            paths.push(format!("{home}/.ceph/{cluster}.conf"));
        }
        paths.push(format!("{cluster}.conf"));
        (paths, false)
    }

    /// The value of a variable that is not an option.
    fn variable(&self, name: &str) -> Option<String> {
        let entity = self.entity();
        match name {
            "cluster" => Some(self.cluster().to_owned()),
            "type" => Some(entity.kind.name().to_owned()),
            "id" => Some(entity.id),
            "name" => Some(entity.to_string()),
            "host" => Some(self.host.clone()),
            "pid" => Some(self.pid.to_string()),
            _ => None,
        }
    }

    fn expand_plain(&self, text: &str) -> String {
        expand(text, |name| self.variable(name))
    }
}

/// A value and where it comes from.
#[derive(Clone, PartialEq, Eq)]
struct Setting {
    text: String,
    origin: String,
    line: Option<usize>,
}

/// Where a client finds its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The option `key` has it.
    Key(CryptoKey),
    /// This file has nothing but the key, as base64: [`CryptoKey::from_base64`].
    KeyFile(String),
    /// The first of these files that exists is the keyring: [`keyring::find`].
    Keyrings(Vec<String>),
}

/// The settings of a client. Its `Debug` does not show the option `key`.
#[derive(Clone)]
pub struct Settings {
    /// Who the client is.
    pub entity: Entity,
    /// The name of the cluster.
    pub cluster: String,
    /// The monitors to begin with.
    pub monitors: Vec<MonitorAddress>,
    /// The modes of connections to monitors, the best first.
    pub monitor_modes: Vec<Mode>,
    /// The modes of connections to OSDs and managers, the best first.
    pub service_modes: Vec<Mode>,
    /// The methods of authentication that the client accepts, the best first.
    pub methods: Vec<u32>,
    /// How long a request to the monitors may take; `None` for ever.
    pub monitor_timeout: Option<Duration>,
    /// How long a request to an OSD may take; `None` for ever.
    pub osd_timeout: Option<Duration>,
    /// The client's place in the CRUSH map, as (kind, name).
    pub crush_location: Vec<(String, String)>,
    /// Where reads of images may go.
    pub read_policy: ReadPolicy,
    options: BTreeMap<String, Setting>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("entity", &self.entity)
            .field("cluster", &self.cluster)
            .field("monitors", &self.monitors)
            .field("monitor_modes", &self.monitor_modes)
            .field("service_modes", &self.service_modes)
            .field("methods", &self.methods)
            .field("monitor_timeout", &self.monitor_timeout)
            .field("osd_timeout", &self.osd_timeout)
            .field("crush_location", &self.crush_location)
            .field("read_policy", &self.read_policy)
            .field("options", &Shown(&self.options))
            .finish()
    }
}

/// Options for people: without the key.
struct Shown<'a>(&'a BTreeMap<String, Setting>);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &str, text| if name == KEY { HIDDEN } else { text };
        f.debug_map().entries(self.0.iter().map(|(name, s)| (name, shown(name, &s.text)))).finish()
    }
}

impl Settings {
    /// Puts the settings of all sources together.
    ///
    /// # Errors
    /// An option that this crate reads has a value that it cannot have, or no monitor is named. The
    /// error says where the value is.
    pub fn new(sources: &Sources) -> Result<Self, SettingsError> {
        let raw = collect(sources);
        let options: BTreeMap<String, Setting> = raw
            .iter()
            .map(|(name, setting)| {
                let left = Cell::new(VARIABLES_MAX);
                let text = resolve(sources, &raw, &setting.text, EXPANSION_MAX, &left);
                (name.clone(), Setting { text, ..setting.clone() })
            })
            .collect();
        let methods_option = match options.get("auth_supported") {
            Some(setting) if !setting.text.trim().is_empty() => "auth_supported",
            _ => "auth_client_required",
        };
        Ok(Self {
            entity: sources.entity(),
            cluster: sources.cluster().to_owned(),
            monitors: read_monitors(&options)?,
            monitor_modes: read(&options, "ms_mon_client_mode", values::modes)?,
            service_modes: read(&options, "ms_client_mode", values::modes)?,
            methods: read(&options, methods_option, values::methods)?,
            monitor_timeout: read(&options, "rados_mon_op_timeout", values::time)?,
            osd_timeout: read(&options, "rados_osd_op_timeout", values::time)?,
            crush_location: read(&options, "crush_location", values::crush_location)?,
            read_policy: read(&options, "rbd_read_from_replica_policy", values::read_policy)?,
            options,
        })
    }

    /// The value of an option, with its variables replaced; a default for the options that this
    /// crate reads. Blanks, dashes and underscores in the name are equal.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(&normal_name(name)).map(|setting| setting.text.as_str())
    }

    /// The yes or no of an option; `None` if it is not set.
    ///
    /// # Errors
    /// It is neither yes nor no.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, SettingsError> {
        match self.options.get(&normal_name(name)) {
            None => Ok(None),
            Some(_) => read(&self.options, &normal_name(name), values::boolean).map(Some),
        }
    }

    /// All options that are set or have a default here, as (name, value).
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(name, setting)| (name.as_str(), setting.text.as_str()))
    }

    /// Where the client's key is: the option `key`, else `keyfile`, else `keyring`.
    ///
    /// # Errors
    /// The option `key` is not a key.
    pub fn key_source(&self) -> Result<KeySource, SettingsError> {
        let set = |name: &str| self.options.get(name).filter(|s| !s.text.trim().is_empty());
        if let Some(setting) = set(KEY) {
            let key = CryptoKey::from_base64(&setting.text);
            // The error does not show the key.
            return key.map(KeySource::Key).map_err(|error| fault(setting, &error.to_string()));
        }
        if let Some(setting) = set("keyfile") {
            return Ok(KeySource::KeyFile(setting.text.trim().to_owned()));
        }
        let paths = self.option("keyring").unwrap_or_default();
        let separates = |letter: char| letter.is_whitespace() || matches!(letter, ',' | ';');
        let paths = paths.split(separates).filter(|path| !path.is_empty());
        Ok(KeySource::Keyrings(paths.map(str::to_owned).collect()))
    }
}

/// All options of all sources, of each the one that counts.
fn collect(sources: &Sources) -> BTreeMap<String, Setting> {
    let mut options = BTreeMap::new();
    let mut set = |name: &str, text: &str, origin: &str, line| {
        let setting = Setting { text: text.to_owned(), origin: origin.to_owned(), line };
        options.insert(name.to_owned(), setting);
    };
    for (name, text) in DEFAULTS {
        set(name, text, "the default", None);
    }
    if let Some(conf) = &sources.conf {
        let entity = sources.entity();
        for section in ["global", entity.kind.name(), &entity.to_string()] {
            for (name, value) in conf.options(section) {
                set(name, &value.text, &conf.name, Some(value.line));
            }
        }
    }
    if let Some(keyring) = &sources.environment.keyring {
        set("keyring", keyring, "CEPH_KEYRING", None);
    }
    for (name, text) in &sources.environment.arguments.options {
        set(name, text, "CEPH_ARGS", None);
    }
    for (name, text) in &sources.command_line.options {
        set(name, text, "the command line", None);
    }
    options
}

/// Replaces the variables of a value. Variables beyond the depth or the number stay as they are,
/// and long values as well.
fn resolve(
    sources: &Sources,
    options: &BTreeMap<String, Setting>,
    text: &str,
    depth: usize,
    left: &Cell<usize>,
) -> String {
    if text.len() > VALUE_MAX_BYTES {
        return text.to_owned();
    }
    expand(text, |name| {
        left.set(left.get().checked_sub(1)?);
        if let Some(value) = sources.variable(name) {
            return Some(value);
        }
        let other = options.get(name).filter(|other| {
            // A key has no place in other values, such as names of files.
            depth > 0 && name != KEY && other.text.len() <= VALUE_MAX_BYTES
        })?;
        Some(resolve(sources, options, &other.text, depth - 1, left))
    })
}

fn fault(setting: &Setting, fault: &str) -> SettingsError {
    let (origin, line) = (setting.origin.clone(), setting.line);
    SettingsError { origin, line, fault: fault.to_owned() }
}

fn read<T>(
    options: &BTreeMap<String, Setting>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, SettingsError> {
    let missing = || SettingsError::new("settings", format!("the option {name} is not set"));
    let setting = options.get(name).ok_or_else(missing)?;
    parse(&setting.text).ok_or_else(|| {
        let text = if name == KEY { HIDDEN } else { &setting.text };
        fault(setting, &format!("the option {name} cannot have the value `{text}`"))
    })
}

fn read_monitors(
    options: &BTreeMap<String, Setting>,
) -> Result<Vec<MonitorAddress>, SettingsError> {
    let setting = options.get("mon_host");
    let Some(setting) = setting.filter(|setting| !setting.text.trim().is_empty()) else {
        let why = "no monitor is named: mon_host is not set (option -m, or in ceph.conf)";
        return Err(SettingsError::new("settings", why.into()));
    };
    monitors::parse(&setting.text).map_err(|error| fault(setting, &format!("mon_host: {error}")))
}
