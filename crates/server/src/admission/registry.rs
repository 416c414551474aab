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
//!       "instance": "…",              which process of the client
//!       "epoch": 7,                   the highest that it has a capability for
//!       "expires": 1764550800,        when the last of its capabilities does
//!       "signed": [                   the generations of the secret that it may still use
//!         { "generation": 0,
//!           "expires": 1764550800 } ] } ],
//!   "volumes": [
//!     { "volume": "…", "name": "disk1",
//!       "epoch": 7,                   the highest for which a client ever got a capability
//!       "expires": 1764550800,        when the last of these does
//!       "removed_until": null } ] }   seconds since 1970, if the volume was removed
//! ```
//!
//! `volumes` has each volume that a client ever got a capability for. A client that may write a
//! volume also writes the root, which has the volume's name. So the name of such a volume is the
//! one that it had before, whatever its root says: no client can give its volume the name of
//! another. When the volume is removed, its entry stays for a day longer than its capabilities: a
//! client with a valid one could make the volume anew on a node. Such a volume counts as removed.
//!
//! Only the owner may read the file (mode 0600). Its owner is that of `pool.json`. A damaged file
//! admits no client, and no process replaces it: the pool's owner restores it. A process that
//! changes the file holds the pool's lock ([`record::lock_pool`]), and replaces the whole file.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fieldstone_proto::{ClientSecret, Epoch, KeyGeneration, PoolId, VolumeId};
use fieldstone_uring::sync_directory;
use serde::{Deserialize, Serialize};

use crate::json_format;
use crate::paths::check_name;
use crate::pool::key_file::keep_owner;
use crate::pool::{POOL_FILE, random, record, write_new};

/// The name of the file.
pub const CLIENTS_FILE: &str = "clients.json";
const FORMAT: u32 = 1;
/// The most entries of a client. Each process of it has one for each volume that it opens, until
/// the capabilities expire.
const GRANTS_PER_CLIENT_MAX: usize = 256;
/// The clocks of a pool's machines differ by less, in seconds.
const CLOCKS_DIFFER_SECONDS: u64 = 600;
/// How much longer than its capabilities a removed volume is known, in seconds.
const REMOVED_KEPT_SECONDS: u64 = 24 * 3600;

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
    /// Which process of the client, 32 hexadecimal digits.
    instance: String,
    epoch: u64,
    /// When the last of them expires, in seconds since 1970.
    pub expires: u64,
    signed: Vec<Signed>,
}

/// A generation of the pool's secret, and when the last capability that it signed expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Signed {
    generation: u16,
    expires: u64,
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

    /// The generations of the pool's secret that the client may still use.
    pub fn generations(&self) -> impl Iterator<Item = KeyGeneration> + '_ {
        let now = unix_seconds();
        let valid = self.signed.iter().filter(move |signed| signed.expires > now);
        valid.map(|signed| KeyGeneration(signed.generation))
    }

    /// A secret of this generation signs a further capability.
    fn note_signed(&mut self, generation: KeyGeneration, expires: u64) {
        self.expires = self.expires.max(expires);
        let mut signed = self.signed.iter_mut();
        match signed.find(|signed| signed.generation == generation.0) {
            Some(signed) => signed.expires = signed.expires.max(expires),
            None => self.signed.push(Signed { generation: generation.0, expires }),
        }
        // A rotation has two generations at a time.
        let now = unix_seconds();
        self.signed.retain(|signed| signed.expires > now || signed.generation == generation.0);
    }

    /// Whether all its capabilities have expired.
    #[must_use]
    pub fn is_over(&self) -> bool {
        unix_seconds() >= self.expires
    }

    /// Whether they have expired by each clock of the pool's machines.
    #[must_use]
    pub fn is_long_over(&self) -> bool {
        unix_seconds() >= self.expires.saturating_add(CLOCKS_DIFFER_SECONDS)
    }

    fn is_of(&self, holder: &Holder<'_>, volume: &str) -> bool {
        self.client == holder.client && self.instance == holder.instance && self.volume == volume
    }
}

/// A process of a client.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The name of the client.
    pub client: &'a str,
    /// The number that the process has chosen, 32 hexadecimal digits.
    pub instance: &'a str,
}

/// A volume that clients have or had capabilities for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GrantedVolume {
    volume: String,
    name: String,
    /// The highest epoch for which a client ever got a capability, and when the last of them
    /// expires, in seconds since 1970.
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    expires: u64,
    /// The volume was removed, and its entry stays until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    removed_until: Option<u64>,
}

/// The content of `clients.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    format: u32,
    pool: String,
    clients: Vec<Client>,
    #[serde(default)]
    grants: Vec<Grant>,
    #[serde(default)]
    volumes: Vec<GrantedVolume>,
}

impl Registry {
    /// The registry of a pool that admits no client.
    #[must_use]
    pub fn empty(pool: PoolId) -> Self {
        let pool = pool.to_string();
        let (clients, grants, volumes) = (Vec::new(), Vec::new(), Vec::new());
        Self { format: FORMAT, pool, clients, grants, volumes }
    }

    /// Reads the file of the pool at `folder`. A pool without the file admits no client.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, is of a newer release or of another pool.
    pub fn read(folder: &Path, pool: PoolId) -> anyhow::Result<Self> {
        let path = folder.join(CLIENTS_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::empty(pool));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Self::parse(&text, pool).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str, pool: PoolId) -> anyhow::Result<Self> {
        json_format::check(text, FORMAT)?;
        let registry: Self = serde_json::from_str(text).context(
            "it is damaged; restore it from a copy, or remove it and admit clients anew",
        )?;
        if registry.pool != pool.to_string() {
            bail!("it is of another pool ({}); restore the pool's own", registry.pool);
        }
        for client in &registry.clients {
            client.secret()?;
        }
        for grant in &registry.grants {
            grant.volume()?;
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
        if self.grants.iter().any(|grant| grant.client == name && !grant.is_over()) {
            bail!(
                "an evicted client {name:?} has capabilities that a node accepts; repeat `pool \
                 evict`, or choose another name"
            );
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

    /// The highest epoch of a volume for which any client ever got a capability.
    #[must_use]
    pub fn highest_epoch(&self, volume: VolumeId) -> Option<Epoch> {
        let volume = volume.to_string();
        let of_it = self.grants.iter().filter(|grant| grant.volume == volume);
        let granted = self.volumes.iter().filter(|granted| granted.volume == volume);
        let epochs = of_it.map(|grant| grant.epoch).chain(granted.map(|granted| granted.epoch));
        epochs.map(Epoch).max()
    }

    /// The highest epoch of a volume for which a process of a client has a capability.
    #[must_use]
    pub fn epoch_of(&self, holder: &Holder<'_>, volume: VolumeId) -> Option<Epoch> {
        let volume = volume.to_string();
        let grant = self.grants.iter().find(|grant| grant.is_of(holder, &volume));
        grant.map(Grant::epoch)
    }

    /// Notes that a process of a client gets a capability for an epoch of a volume, which a secret
    /// of this generation signs. Forgets what has expired.
    ///
    /// # Errors
    /// The client has too many capabilities.
    pub fn note_issue(
        &mut self,
        holder: &Holder<'_>,
        (volume, name): (VolumeId, &str),
        (epoch, generation): (Epoch, KeyGeneration),
        expires: u64,
    ) -> anyhow::Result<()> {
        self.grants.retain(|grant| !grant.is_long_over());
        self.prune();
        let id = volume.to_string();
        if self.is_removed(volume) {
            bail!("the volume {name:?} was removed");
        }
        self.note_granted(&id, name, epoch, expires);
        if let Some(grant) = self.grants.iter_mut().find(|grant| grant.is_of(holder, &id)) {
            grant.epoch = grant.epoch.max(epoch.0);
            grant.note_signed(generation, expires);
            return Ok(());
        }
        let of_client = self.grants.iter().filter(|grant| grant.client == holder.client).count();
        if of_client >= GRANTS_PER_CLIENT_MAX {
            bail!(
                "the client has opened volumes {GRANTS_PER_CLIENT_MAX} times; its capabilities \
                 must expire first"
            );
        }
        self.grants.push(Grant {
            volume: id,
            name: name.to_owned(),
            client: holder.client.to_owned(),
            instance: holder.instance.to_owned(),
            epoch: epoch.0,
            expires,
            signed: vec![Signed { generation: generation.0, expires }],
        });
        Ok(())
    }

    fn note_granted(&mut self, id: &str, name: &str, epoch: Epoch, expires: u64) {
        let at = self.volumes.iter().position(|granted| granted.volume == id);
        let at = at.unwrap_or_else(|| {
            let (volume, name) = (id.to_owned(), name.to_owned());
            let (epoch, expires, removed_until) = (0, 0, None);
            self.volumes.push(GrantedVolume { volume, name, epoch, expires, removed_until });
            self.volumes.len() - 1
        });
        let granted = &mut self.volumes[at];
        (granted.epoch, granted.expires) =
            (granted.epoch.max(epoch.0), granted.expires.max(expires));
    }

    /// Notes the oldest generation that a process of a client still uses for a volume.
    pub fn note_oldest(&mut self, holder: &Holder<'_>, volume: VolumeId, oldest: KeyGeneration) {
        let volume = volume.to_string();
        if let Some(grant) = self.grants.iter_mut().find(|grant| grant.is_of(holder, &volume)) {
            grant.signed.retain(|signed| signed.generation >= oldest.0);
        }
    }

    /// The name of a volume that a client has or had a capability for.
    #[must_use]
    pub fn name_of(&self, volume: VolumeId) -> Option<&str> {
        let id = volume.to_string();
        self.volumes.iter().find(|granted| granted.volume == id).map(|granted| &*granted.name)
    }

    /// Notes that a volume was removed.
    pub fn note_removed(&mut self, volume: VolumeId) {
        let id = volume.to_string();
        for granted in self.volumes.iter_mut().filter(|granted| granted.volume == id) {
            // Also if the client was evicted since, and has no entry among the grants any more.
            let until = granted.expires.saturating_add(REMOVED_KEPT_SECONDS);
            granted.removed_until = Some(until);
        }
        self.prune();
    }

    /// Forgets removed volumes that no client can make anew.
    fn prune(&mut self) {
        let now = unix_seconds();
        self.volumes.retain(|granted| granted.removed_until.is_none_or(|until| until > now));
    }

    /// Whether a volume was removed that a client with a valid capability could make anew.
    #[must_use]
    pub fn is_removed(&self, volume: VolumeId) -> bool {
        let (id, now) = (volume.to_string(), unix_seconds());
        let mut of_it = self.volumes.iter().filter(|granted| granted.volume == id);
        of_it.any(|granted| granted.removed_until.is_some_and(|until| until > now))
    }

    /// The grant of the process that opened the volume last, if it may have the volume open: it
    /// has a valid capability, and has not taken leave.
    #[must_use]
    pub fn holder(&self, volume: VolumeId) -> Option<&Grant> {
        let id = volume.to_string();
        let of_it = self.grants.iter().filter(|grant| grant.volume == id);
        let newest = of_it.max_by_key(|grant| grant.epoch)?;
        let is_open = newest.epoch > 0 && newest.generations().next().is_some();
        is_open.then_some(newest)
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
        // A command of root's must not take the file away from the user of the server.
        keep_owner(&folder.join(POOL_FILE), &partial)
            .and_then(|()| fs::rename(&partial, &path))
            .inspect_err(|_| drop(fs::remove_file(&partial)))
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

    fn generations(grant: &Grant) -> Vec<u16> {
        grant.generations().map(|generation| generation.0).collect()
    }

    #[test]
    fn an_eviction_returns_what_the_client_has_and_leaves_the_others() {
        let folder = folder();
        let dir = folder.path();
        let later = unix_seconds() + 1000;
        fn of(client: &str) -> Holder<'_> {
            Holder { client, instance: "1" }
        }
        let issue = |all: &mut Registry, client: &str, epoch: u64, generation: u16| {
            let signed = (Epoch(epoch), KeyGeneration(generation));
            all.note_issue(&of(client), (VOLUME, "disk"), signed, later)
        };
        change(dir, POOL, |all| {
            all.admit("web", None)?;
            all.admit("app", None)?;
            issue(all, "web", 5, 0)?;
            issue(all, "web", 4, 1)?;
            issue(all, "app", 6, 1)?;
            let signed = (Epoch(1), KeyGeneration(0));
            all.note_issue(&of("app"), (VolumeId(1), "old"), signed, 1)?;
            issue(all, "app", 6, 1)
        })
        .expect("writable");
        let all = Registry::read(dir, POOL).expect("readable");
        assert_eq!(all.highest_epoch(VOLUME), Some(Epoch(6)));
        assert_eq!(all.grants().len(), 2, "what has expired is forgotten");
        assert_eq!(all.epoch_of(&of("web"), VOLUME), Some(Epoch(5)));
        let web = all.grants().iter().find(|grant| grant.client == "web").expect("it has one");
        assert_eq!((web.epoch(), generations(web)), (Epoch(5), vec![0, 1]));
        assert_eq!((web.volume().expect("valid"), &*web.name), (VOLUME, "disk"));
        // Another process of the same client says nothing about this one.
        let other = Holder { client: "web", instance: "2" };
        assert_eq!(all.epoch_of(&other, VOLUME), None);
        change(dir, POOL, |all| {
            all.note_oldest(&other, VOLUME, KeyGeneration(9));
            all.note_oldest(&of("web"), VOLUME, KeyGeneration(1));
            Ok(())
        })
        .expect("writable");
        let evicted = change(dir, POOL, |all| all.evict("web")).expect("admitted");
        assert_eq!(evicted.len(), 1);
        assert_eq!(generations(&evicted[0]), [1]);
        let error = change(dir, POOL, |all| all.admit("web", None)).expect_err("it has something");
        assert!(error.to_string().contains("repeat `pool evict`"), "{error}");
        let again = change(dir, POOL, |all| all.evict("web")).expect("it still has something");
        assert_eq!(again, evicted);
        let forget = |all: &mut Registry| {
            all.forget(&evicted[0]);
            Ok(())
        };
        change(dir, POOL, forget).expect("writable");
        let all = Registry::read(dir, POOL).expect("readable");
        assert!(all.client("web").is_none() && all.client("app").is_some());
        assert!(all.epoch_of(&of("web"), VOLUME).is_none());
        assert!(all.epoch_of(&of("app"), VOLUME).is_some());
        let error = change(dir, POOL, |all| all.evict("web")).expect_err("gone").to_string();
        assert!(error.contains("there are: app"), "{error}");
    }

    /// A client can write another name into the root of its volume, and can open the volume any
    /// number of times.
    #[test]
    fn a_volume_keeps_its_first_name_and_a_client_has_bounded_entries() {
        let folder = folder();
        let dir = folder.path();
        let later = unix_seconds() + 1000;
        let signed = (Epoch(1), KeyGeneration(0));
        let issue = |instance: &str, name: &str| {
            let holder = Holder { client: "web", instance };
            change(dir, POOL, |all| all.note_issue(&holder, (VOLUME, name), signed, later))
        };
        issue("0", "disk").expect("the first");
        issue("0", "other").expect("the same");
        let all = Registry::read(dir, POOL).expect("readable");
        assert_eq!(all.name_of(VOLUME), Some("disk"));
        for instance in 1..GRANTS_PER_CLIENT_MAX {
            issue(&instance.to_string(), "disk").expect("room");
        }
        let error = issue("more", "disk").expect_err("too many").to_string();
        assert!(error.contains("must expire first"), "{error}");
        issue("1", "disk").expect("a renewal");
    }

    /// A client with a valid capability can make a removed volume anew.
    #[test]
    fn a_removed_volume_is_known_as_long_as_a_client_can_bring_it_back() {
        let folder = folder();
        let dir = folder.path();
        let issue = |volume: VolumeId, expires: u64| {
            let holder = Holder { client: "web", instance: "0" };
            let signed = (Epoch(1), KeyGeneration(0));
            change(dir, POOL, |all| all.note_issue(&holder, (volume, "disk"), signed, expires))
                .expect("room");
        };
        let remove = |volume| {
            change(dir, POOL, |all| {
                all.note_removed(volume);
                Ok(())
            })
            .expect("writable");
        };
        let read = || Registry::read(dir, POOL).expect("readable");
        issue(VOLUME, unix_seconds() + 1000);
        assert!(!read().is_removed(VOLUME));
        remove(VOLUME);
        assert!(read().is_removed(VOLUME) && read().name_of(VOLUME) == Some("disk"));
        // Another issue forgets what is long over only.
        let other = VolumeId(1);
        issue(other, unix_seconds() + 1000);
        assert!(read().is_removed(VOLUME) && !read().is_removed(other));
        // The capabilities of this one have expired more than a day ago.
        let old = VolumeId(2);
        issue(old, 1);
        remove(old);
        assert!(!read().is_removed(old) && read().name_of(old).is_none());
        // Nothing more is issued for a removed one. The eviction of its client changes nothing.
        change(dir, POOL, |all| {
            let holder = Holder { client: "web", instance: "0" };
            let signed = (Epoch(9), KeyGeneration(0));
            let later = unix_seconds() + 9000;
            all.note_issue(&holder, (VOLUME, "disk"), signed, later).expect_err("it is gone");
            let grants: Vec<Grant> = all.grants().to_vec();
            grants.iter().for_each(|grant| all.forget(grant));
            Ok(())
        })
        .expect("writable");
        assert!(read().is_removed(VOLUME) && read().highest_epoch(VOLUME) == Some(Epoch(1)));
        remove(other);
        assert!(read().is_removed(other), "its client was evicted, and has a valid capability");
    }

    #[test]
    fn the_holder_of_a_volume_is_the_process_that_opened_it_last_and_has_not_closed_it() {
        let folder = folder();
        let dir = folder.path();
        let later = unix_seconds() + 1000;
        let holder = |client: &'static str| Holder { client, instance: "0" };
        let issue = |client, epoch| {
            let signed = (Epoch(epoch), KeyGeneration(0));
            let name = (VOLUME, "disk");
            change(dir, POOL, |all| all.note_issue(&holder(client), name, signed, later))
                .expect("room");
        };
        let found = || {
            let all = Registry::read(dir, POOL).expect("readable");
            all.holder(VOLUME).map(|grant| grant.client.clone())
        };
        assert_eq!(found(), None);
        // Epoch 0 is for a look at the nodes.
        issue("web", 0);
        assert_eq!(found(), None);
        issue("web", 4);
        issue("app", 5);
        assert_eq!(found().as_deref(), Some("app"));
        change(dir, POOL, |all| {
            all.note_oldest(&holder("app"), VOLUME, KeyGeneration(u16::MAX));
            Ok(())
        })
        .expect("writable");
        assert_eq!(found(), None, "it has closed the volume, and web was fenced before");
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
