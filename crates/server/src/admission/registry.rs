//! The file `clients.json`: the clients that a pool admits, and the capabilities that they have.
//!
//! ```text
//! { "format": 1,
//!   "pool": "…",                      32 hexadecimal digits; a file of another pool is refused
//!   "clients": [
//!     { "name": "web1",
//!       "secret": "91be…",            32 hexadecimal digits
//!       "volumes": ["disk1"],         the volumes that it may open; null for all
//!       "admitted": 1764547200 } ],   seconds since 1970
//!   "grants": [
//!     { "volume": "…", "name": "disk1", "client": "web1",
//!       "epoch": 7,                   the highest that it has a capability for
//!       "generation": 0,              the oldest of the pool's secret that it may use
//!       "expires": 1764550800 } ] }   when the last of its capabilities does
//! ```
//!
//! Only the owner may read it (mode 0600). A file that is damaged admits no client, and is not
//! replaced: then the owner restores it. Whoever changes it holds the pool's lock
//! ([`record::lock_pool`]), and replaces it at once.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fieldstone_proto::{ClientSecret, Epoch, KeyGeneration, PoolId, VolumeId};
use fieldstone_uring::sync_directory;
use serde::{Deserialize, Serialize};

use crate::paths::check_name;
use crate::pool::{random, record, write_new};

/// The name of the file.
pub const CLIENTS_FILE: &str = "clients.json";
const FORMAT: u32 = 1;

/// A client that a pool admits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its name.
    pub name: String,
    secret: String,
    /// The names of the volumes that it may open; `None` for all.
    pub volumes: Option<Vec<String>>,
    /// When it was admitted, in seconds since 1970.
    pub admitted: u64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, volumes, admitted, .. } = self;
        write!(f, "Client({name}, {volumes:?}, {admitted})")
    }
}

impl Client {
    /// Its secret.
    ///
    /// # Errors
    /// The file has no 32 hexadecimal digits.
    pub fn secret(&self) -> anyhow::Result<ClientSecret> {
        secret_of_hex(&self.secret).with_context(|| format!("the secret of {}", self.name))
    }

    /// Whether it may open the volume of this name.
    #[must_use]
    pub fn may_open(&self, volume: &str) -> bool {
        self.volumes.as_ref().is_none_or(|names| names.iter().any(|name| name == volume))
    }
}

/// The capabilities of a client for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    volume: String,
    /// The name of the volume.
    pub name: String,
    /// The name of the client.
    pub client: String,
    epoch: u64,
    generation: u16,
    /// When the last of them expires, in seconds since 1970.
    pub expires: u64,
}

impl Grant {
    /// The volume.
    ///
    /// # Errors
    /// The file has no 32 hexadecimal digits.
    pub fn volume(&self) -> anyhow::Result<VolumeId> {
        Ok(VolumeId(parse_hex(&self.volume).with_context(|| format!("volume {}", self.volume))?))
    }

    /// The highest epoch that the client has a capability for.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// The oldest generation of the pool's secret that the client may use.
    #[must_use]
    pub fn generation(&self) -> KeyGeneration {
        KeyGeneration(self.generation)
    }

    /// Whether all its capabilities have expired.
    #[must_use]
    pub fn is_over(&self) -> bool {
        unix_seconds() >= self.expires
    }
}

/// The content of `clients.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    format: u32,
    pool: String,
    clients: Vec<Client>,
    #[serde(default)]
    grants: Vec<Grant>,
}

impl Registry {
    /// Reads the file of the pool at `folder`. A pool without the file admits no client.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, is of a newer release or of another pool.
    pub fn read(folder: &Path, pool: PoolId) -> anyhow::Result<Self> {
        let path = folder.join(CLIENTS_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (clients, grants) = (Vec::new(), Vec::new());
                return Ok(Self { format: FORMAT, pool: pool.to_string(), clients, grants });
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Self::parse(&text, pool).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str, pool: PoolId) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            format: u32,
        }
        if let Ok(Versioned { format }) = serde_json::from_str(text)
            && format > FORMAT
        {
            bail!("format {format} is of a newer version of fieldstone");
        }
        let registry: Self = serde_json::from_str(text).context(
            "it is damaged; restore it from a copy, or remove it and admit clients anew",
        )?;
        if registry.pool != pool.to_string() {
            bail!("it is of another pool ({}); restore the pool's own", registry.pool);
        }
        for client in &registry.clients {
            client.secret()?;
        }
        Ok(registry)
    }

    /// The clients, by name.
    #[must_use]
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// The client of this name.
    #[must_use]
    pub fn client(&self, name: &str) -> Option<&Client> {
        self.clients.iter().find(|client| client.name == name)
    }

    /// What clients have. Some of it may have expired.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Admits a client, and returns its secret.
    ///
    /// # Errors
    /// The name is not allowed or taken, or the name of a volume is not allowed.
    pub fn admit(
        &mut self,
        name: &str,
        volumes: Option<Vec<String>>,
    ) -> anyhow::Result<ClientSecret> {
        check_name(name)?;
        volumes.iter().flatten().try_for_each(|volume| check_name(volume))?;
        if self.client(name).is_some() {
            bail!("the pool admits a client {name:?} already; evict it first (`pool evict`)");
        }
        let secret = ClientSecret(random()?.to_le_bytes());
        self.clients.push(Client {
            name: name.to_owned(),
            secret: hex(secret),
            volumes,
            admitted: unix_seconds(),
        });
        self.clients.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(secret)
    }

    /// Removes a client. Returns what it has. This stays in the registry until it is
    /// [forgotten](Self::forget): an eviction that is interrupted can be repeated.
    ///
    /// # Errors
    /// There is no such client. The error names those that there are.
    pub fn evict(&mut self, name: &str) -> anyhow::Result<Vec<Grant>> {
        let before = self.clients.len();
        self.clients.retain(|client| client.name != name);
        let has: Vec<Grant> =
            self.grants.iter().filter(|grant| grant.client == name).cloned().collect();
        if self.clients.len() == before && has.is_empty() {
            let names: Vec<&str> = self.clients.iter().map(|client| &*client.name).collect();
            match names[..] {
                [] => bail!("the pool admits no client {name:?} and no other"),
                _ => bail!("the pool admits no client {name:?}; there are: {}", names.join(", ")),
            }
        }
        Ok(has)
    }

    /// Forgets what a client has: it is of no use any more.
    pub fn forget(&mut self, grant: &Grant) {
        self.grants.retain(|other| other != grant);
    }

    /// The highest epoch of a volume for which any client has a capability.
    #[must_use]
    pub fn highest_epoch(&self, volume: VolumeId) -> Option<Epoch> {
        let volume = volume.to_string();
        let of_it = self.grants.iter().filter(|grant| grant.volume == volume);
        of_it.map(|grant| Epoch(grant.epoch)).max()
    }

    /// What a client has of a volume.
    #[must_use]
    pub fn grant(&self, client: &str, volume: VolumeId) -> Option<&Grant> {
        let volume = volume.to_string();
        self.grants.iter().find(|grant| grant.client == client && grant.volume == volume)
    }

    /// Notes that a client gets a capability for an epoch of a volume, which a secret of this
    /// generation signs. Forgets what has expired.
    pub fn note_issue(
        &mut self,
        client: &str,
        (volume, name): (VolumeId, &str),
        (epoch, generation): (Epoch, KeyGeneration),
        expires: u64,
    ) {
        self.grants.retain(|grant| !grant.is_over());
        let id = volume.to_string();
        let of_it = |grant: &&mut Grant| grant.client == client && grant.volume == id;
        match self.grants.iter_mut().find(of_it) {
            Some(grant) => {
                grant.epoch = grant.epoch.max(epoch.0);
                grant.generation = grant.generation.min(generation.0);
                grant.expires = grant.expires.max(expires);
            }
            None => self.grants.push(Grant {
                volume: id,
                name: name.to_owned(),
                client: client.to_owned(),
                epoch: epoch.0,
                generation: generation.0,
                expires,
            }),
        }
    }

    /// Notes the oldest generation that a client still uses for a volume.
    pub fn note_oldest(&mut self, client: &str, volume: VolumeId, oldest: KeyGeneration) {
        let volume = volume.to_string();
        let of_it = |grant: &&mut Grant| grant.client == client && grant.volume == volume;
        if let Some(grant) = self.grants.iter_mut().find(of_it) {
            grant.generation = grant.generation.max(oldest.0);
        }
    }

    fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(CLIENTS_FILE);
        let partial = folder.join(format!("{CLIENTS_FILE}.partial"));
        // A process that was killed may have left a file of another mode.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", partial.display()));
            }
            _ => {}
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        write_new(&partial, text.as_bytes(), 0o600)?;
        fs::rename(&partial, &path)
            .and_then(|()| sync_directory(folder))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Changes the registry of the pool at `folder`, under the pool's lock. Writes the file only if the
/// registry changes and `make` succeeds.
///
/// # Errors
/// Those of `make`, or the file cannot be locked, read or written.
pub fn change<T>(
    folder: &Path,
    pool: PoolId,
    make: impl FnOnce(&mut Registry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let _locked = record::lock_pool(folder)?;
    let before = Registry::read(folder, pool)?;
    let mut after = before.clone();
    let made = make(&mut after)?;
    if after != before {
        after.write(folder)?;
    }
    Ok(made)
}

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn hex(secret: ClientSecret) -> String {
    format!("{:032x}", u128::from_be_bytes(secret.0))
}

pub(super) fn secret_of_hex(digits: &str) -> anyhow::Result<ClientSecret> {
    Ok(ClientSecret(parse_hex(digits)?.to_be_bytes()))
}

/// Reads 32 hexadecimal digits. An error does not show them: they may be a secret.
pub(super) fn parse_hex(digits: &str) -> anyhow::Result<u128> {
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_hex);
    number.context("these are no 32 hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::pool::POOL_FILE;

    const POOL: PoolId = PoolId(7);
    const VOLUME: VolumeId = VolumeId(0xabc);

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(POOL_FILE), "{}").expect("writable");
        folder
    }

    #[test]
    fn who_is_admitted_is_read_back_and_the_file_is_private() {
        let folder = folder();
        let dir = folder.path();
        assert!(Registry::read(dir, POOL).expect("no file").clients().is_empty());
        let names = Some(vec!["disk".to_owned()]);
        let secret = change(dir, POOL, |all| all.admit("web", names)).expect("free");
        change(dir, POOL, |all| all.admit("app", None)).expect("free");
        let error = change(dir, POOL, |all| all.admit("web", None)).expect_err("taken").to_string();
        assert!(error.contains("evict it first"), "{error}");
        assert!(change(dir, POOL, |all| all.admit("a/b", None)).is_err());
        let all = Registry::read(dir, POOL).expect("readable");
        let web = all.client("web").expect("admitted");
        assert_eq!(web.secret().expect("valid"), secret);
        assert!(web.may_open("disk") && !web.may_open("other"));
        assert!(all.client("app").expect("admitted").may_open("other"));
        assert!(!format!("{all:?}").contains(&hex(secret)), "no secret in a log");
        let mode = fs::metadata(dir.join(CLIENTS_FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_eviction_returns_what_the_client_has_and_leaves_the_others() {
        let folder = folder();
        let dir = folder.path();
        let later = unix_seconds() + 1000;
        let issue = |all: &mut Registry, client: &str, epoch: u64, generation: u16| {
            let signed = (Epoch(epoch), KeyGeneration(generation));
            all.note_issue(client, (VOLUME, "disk"), signed, later);
        };
        change(dir, POOL, |all| {
            all.admit("web", None)?;
            all.admit("app", None)?;
            issue(all, "web", 5, 0);
            issue(all, "web", 4, 1);
            issue(all, "app", 6, 1);
            all.note_issue("app", (VolumeId(1), "old"), (Epoch(1), KeyGeneration(0)), 1);
            issue(all, "app", 6, 1);
            Ok(())
        })
        .expect("writable");
        let all = Registry::read(dir, POOL).expect("readable");
        assert_eq!(all.highest_epoch(VOLUME), Some(Epoch(6)));
        assert_eq!(all.grants().len(), 2, "what has expired is forgotten");
        let web = all.grant("web", VOLUME).expect("it has one");
        assert_eq!((web.epoch(), web.generation()), (Epoch(5), KeyGeneration(0)));
        assert_eq!((web.volume().expect("valid"), &*web.name), (VOLUME, "disk"));
        change(dir, POOL, |all| {
            all.note_oldest("web", VOLUME, KeyGeneration(1));
            Ok(())
        })
        .expect("writable");
        let evicted = change(dir, POOL, |all| all.evict("web")).expect("admitted");
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0].generation(), KeyGeneration(1));
        let again = change(dir, POOL, |all| all.evict("web")).expect("it still has something");
        assert_eq!(again, evicted);
        let forget = |all: &mut Registry| {
            all.forget(&evicted[0]);
            Ok(())
        };
        change(dir, POOL, forget).expect("writable");
        let all = Registry::read(dir, POOL).expect("readable");
        assert!(all.client("web").is_none() && all.client("app").is_some());
        assert!(all.grant("web", VOLUME).is_none() && all.grant("app", VOLUME).is_some());
        let error = change(dir, POOL, |all| all.evict("web")).expect_err("gone").to_string();
        assert!(error.contains("there are: app"), "{error}");
    }

    /// With a damaged file the pool must not look as if it had no clients: a change would end all.
    #[test]
    fn a_file_that_cannot_be_believed_admits_no_client_and_is_left_alone() {
        let folder = folder();
        let (dir, path) = (folder.path(), folder.path().join(CLIENTS_FILE));
        change(dir, POOL, |all| all.admit("web", None)).expect("free");
        let good = fs::read_to_string(&path).expect("readable");
        assert!(
            format!("{:#}", Registry::read(dir, PoolId(8)).expect_err("another pool's"))
                .contains("of another pool")
        );
        let newer = good.replace("\"format\": 1", "\"format\": 2");
        let bad_secret = good.replace("\"secret\": \"", "\"secret\": \"x");
        for (text, why) in [
            (&good[..good.len() / 2], "it is damaged"),
            ("", "it is damaged"),
            (&newer, "newer version"),
            (&bad_secret, "the secret of web"),
        ] {
            fs::write(&path, text).expect("writable");
            let error = change(dir, POOL, |all| all.admit("app", None)).expect_err("refused");
            assert!(format!("{error:#}").contains(why), "{error:#}");
            assert_eq!(fs::read_to_string(&path).expect("readable"), text);
        }
    }
}
