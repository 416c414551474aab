//! The settings of a Ceph client, from the files and variables where clients of Ceph look for them.
//!
//! Reading them may block: files may lie on a network, and names of monitors are resolved.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fieldstone_block::Nanos;
use fieldstone_rados::auth::{Credentials, CryptoKey, METHOD_CEPHX, METHOD_NONE};
use fieldstone_rados::client::ClientOptions;
use fieldstone_rados::encoding::{Addresses, EntityAddress};
use fieldstone_rados::settings::{
    Arguments, ConfFile, Environment, KeySource, MonitorAddress, Settings, Sources, keyring,
};

/// The longest configuration file or keyring that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A client fails if it has no map after this many seconds, unless `client_mount_timeout` is set.
/// Ceph's own default is 300.
const CONNECT_SECONDS: u64 = 30;

/// The settings of a client, with all files read and names resolved.
#[derive(Clone, Debug)]
pub struct CephSettings {
    settings: Settings,
    key: Option<CryptoKey>,
    /// Why there is no key, if there is none.
    note: String,
    monitors: Vec<Addresses>,
    hostname: String,
}

impl CephSettings {
    /// Reads the settings: of the command line's words (`--id NAME`, `--conf FILE`, `--keyring
    /// FILE`, `-m MONITORS`, `--OPTION=VALUE`), the environment (`CEPH_CONF`, `CEPH_ARGS`,
    /// `CEPH_KEYRING`) and ceph.conf.
    ///
    /// # Errors
    /// A file cannot be read, or a setting is missing or wrong. The text says which.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let settings = Self::read_options(words)?;
        let (key, note) = read_key(&settings)?;
        let monitors = resolve(&settings.monitors)?;
        Ok(Self { settings, key, note, monitors, hostname: hostname() })
    }

    /// Reads the options only: no key is looked for, and no name resolved.
    ///
    /// # Errors
    /// As [`CephSettings::read`].
    pub fn read_options(words: &[String]) -> Result<Settings, String> {
        let mut sources = Sources {
            command_line: Arguments::parse(words, "the command line")
                .map_err(|error| error.to_string())?,
            environment: Environment::read(|name| std::env::var(name).ok())
                .map_err(|error| error.to_string())?,
            host: hostname(),
            pid: std::process::id(),
            ..Sources::default()
        };
        sources.conf = read_conf(&sources)?;
        Settings::new(&sources).map_err(|error| error.to_string())
    }

    /// The value of an option of ceph.conf or of Ceph's defaults.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.settings.option(name)
    }

    /// All settings of librbd's and librados' clients.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn connect_seconds(&self) -> u64 {
        let set = self.settings.option("client_mount_timeout");
        set.and_then(|text| text.parse().ok()).unwrap_or(CONNECT_SECONDS)
    }

    /// The options of a client that begins `now`.
    #[must_use]
    pub fn client_options(&self, now: Nanos) -> ClientOptions {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let nanos = |time: Option<Duration>| {
            Nanos(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
        };
        let seed: [u8; 32] = random();
        let [nonce, ..] = seed_parts(&random::<32>());
        let entity = self.settings.entity.clone();
        ClientOptions {
            monitors: self.monitors.clone(),
            credentials: Credentials::new(entity, self.key.clone(), seed),
            monitor_modes: self.settings.monitor_modes.clone(),
            osd_modes: self.settings.service_modes.clone(),
            nonce: (nonce as u32).max(1),
            seed: nonce,
            monitor_timeout: nanos(self.settings.monitor_timeout),
            osd_timeout: nanos(self.settings.osd_timeout),
            connect_timeout: Nanos::from_ms(self.connect_seconds() * 1_000),
            unix_nanos_at_zero: unix_nanos.saturating_sub(now.0),
            hostname: self.hostname.clone(),
            crush_location: self.settings.crush_location.clone(),
            note: self.note.clone(),
        }
    }
}

fn seed_parts(bytes: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|part| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[part * 8..part * 8 + 8]);
        u64::from_le_bytes(word)
    })
}

/// Bytes from the system's source of randomness.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is writable memory of this length.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                assert!(
                    error.kind() == io::ErrorKind::Interrupted,
                    "the system has no randomness: {error}"
                );
            }
        }
    }
    bytes
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Reads a text file of bounded length.
fn read_text(path: &str) -> io::Result<String> {
    let len_bytes = fs::metadata(path)?.len();
    if len_bytes > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has {len_bytes} bytes: that is no such file")));
    }
    fs::read_to_string(path)
}

fn read_conf(sources: &Sources) -> Result<Option<ConfFile>, String> {
    let (paths, is_named) = sources.conf_paths();
    let mut missing = None;
    for path in &paths {
        match read_text(path) {
            Ok(text) => {
                return ConfFile::parse(path, &text).map(Some).map_err(|error| error.to_string());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing = Some(format!("{path}: {error}"));
            }
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    match missing {
        Some(missing) if is_named => Err(missing),
        _ => Ok(None),
    }
}

/// The client's key. If the client may do without, there may be none, and a text says why.
fn read_key(settings: &Settings) -> Result<(Option<CryptoKey>, String), String> {
    let found = |key| Ok((Some(key), String::new()));
    if !settings.methods.contains(&METHOD_CEPHX) {
        return Ok((None, String::new()));
    }
    let entity = &settings.entity;
    match settings.key_source().map_err(|error| error.to_string())? {
        KeySource::Key(key) => found(key),
        KeySource::KeyFile(path) => {
            let text = read_text(&path).map_err(|error| format!("{path}: {error}"))?;
            let key = CryptoKey::from_base64(text.trim());
            found(key.map_err(|error| format!("{path}: {error}"))?)
        }
        KeySource::Keyrings(paths) => {
            for path in &paths {
                match read_text(path) {
                    Ok(text) => {
                        let key = keyring::find(path, &text, entity);
                        let missing = || format!("{path}: it has no key of {entity}");
                        return found(key.map_err(|error| error.to_string())?.ok_or_else(missing)?);
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(format!("{path}: {error}")),
                }
            }
            let why = format!("no keyring of {entity} exists: looked for {}", paths.join(", "));
            match settings.methods.contains(&METHOD_NONE) {
                true => Ok((None, why)),
                false => Err(why),
            }
        }
    }
}

/// The addresses of monitors, with names resolved.
fn resolve(monitors: &[MonitorAddress]) -> Result<Vec<Addresses>, String> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut failure = None;
    for monitor in monitors {
        match monitor {
            MonitorAddress::Socket(socket) => found.push(*socket),
            MonitorAddress::Name { host, port } => match (host.as_str(), *port).to_socket_addrs() {
                Ok(addresses) => found.extend(addresses),
                Err(error) => failure = Some(format!("mon_host: {monitor}: {error}")),
            },
        }
    }
    match failure {
        Some(failure) if found.is_empty() => return Err(failure),
        Some(failure) => tracing::warn!("{failure}"),
        None => {}
    }
    let addresses = |socket| Addresses(vec![EntityAddress::msgr2(socket, 0)]);
    Ok(found.into_iter().map(addresses).collect())
}
