//! `ceph:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:OPTION=VALUE…]`: an image of a Ceph cluster as a store.
//!
//! ```text
//! Opening: a thread reads ceph.conf and the keyring -> the client connects -> the image opens
//! Serving: requests -> Image -> Cluster (calls) -> Client -> sockets, all on the store's core,
//!          except sockets that moved to another core
//! Closing: writes in flight end, the lock of the image is given up
//! ```
//!
//! Options are those of Ceph's command line, `id`, `conf`, `keyring` and `mon-host`; `exclusive`,
//! which takes the lock of the image at once and keeps it; `reads`, which lets other members of a
//! placement group than the primary answer reads (`balance`, `localize`); `cache`, the caches in
//! front of the image (module `cache`); and `luks`, the file with the passphrase of an encrypted
//! image, for the layer of that name. A colon or backslash in a name or value is written behind a
//! backslash.
//!
//! Layers may keep data of the image while this client has its lock: see
//! [`Backend::shared`](fieldstone_block::Backend::shared).
//!
//! An image that begins with a LUKS header, and is opened without `luks`, is served as the bytes
//! that are stored. The store reads the first bytes, and says so in the log.
//!
//! With several cores, the other cores have branches of the client (module `branches`): when the
//! store's core is busy, connections to OSDs move there.
//!
//! A client that is blocked by the cluster, because another one took the image over, fails: the
//! store says so, and has to be opened again.

mod branches;
mod cache;

use std::fmt;

use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{
    Backend, BlockError, Completion, Counter, Info, Nanos, Op, Payload, Piece, Request, RequestId,
    Settings, Sharing,
};
use fieldstone_luks::{PREFIX_BYTES, Probe};
use fieldstone_rados::client::{self, Client};
use fieldstone_rados::settings::ReadPolicy;
use fieldstone_rbd::{Image, ImageSpec};
use fieldstone_uring::Event;

pub use branches::HandedOver;
pub use cache::ImageCache;

use branches::{Branches, ReportsMail};

use super::{StoreKind, StoreOptions};
use crate::ceph::{Carrier, CephSettings};
use crate::store::{Call, Mail, Phase, Store, StoreIo, StoreSpec};
use crate::timed_call;

/// The kind `ceph:POOL/IMAGE`.
pub const KIND: StoreKind = StoreKind {
    scheme: "ceph",
    argument: "POOL/IMAGE[@SNAP]",
    about: "an RBD image of a Ceph cluster (options as in docs/ceph.md)",
    layers: |argument, _| {
        let spec = RbdSpec::parse(argument)?;
        // If ceph.conf cannot be read, the opening says so.
        let settings = CephSettings::read_options(&spec.words).ok();
        let mut layers = cache::layers(spec.cache, settings.as_ref())?;
        layers.merge(&spec.luks_layer()?);
        Ok(layers)
    },
    name: |argument, _| {
        let parsed = RbdSpec::parse(argument);
        parsed.map_or_else(|_| "ceph".to_owned(), |spec| spec.image.image)
    },
    spec: |argument, options| {
        let StoreOptions { read_only, .. } = options;
        let mut spec = RbdSpec::parse(argument)?;
        spec.image.read_only = read_only;
        spec.image.has_layers = true;
        Ok(Box::new(spec))
    },
};

/// An image of a Ceph cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdSpec {
    /// The image.
    pub image: ImageSpec,
    /// Words of a command line of Ceph: how to reach the cluster.
    pub words: Vec<String>,
    /// The members of a placement group that may answer reads; `None` for what ceph.conf says
    /// (`rbd_read_from_replica_policy`).
    pub reads: Option<ReadPolicy>,
    /// The caches in front of the image; `None` for what ceph.conf says.
    pub cache: Option<ImageCache>,
    /// The file with the passphrase of an encrypted image.
    pub luks: Option<String>,
}

/// The status of an image's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdStatus {
    /// The image, as `pool/image@snapshot`.
    pub image: String,
    /// This server has the lock of the image.
    pub owns_lock: bool,
    /// The epoch of the newest map of the OSDs.
    pub map_epoch: u32,
    /// The number of connections to OSDs on the store's core, and on each other core.
    pub connections: Vec<usize>,
    /// How many connections have moved to another core since the start.
    pub moves: u64,
    /// What the store's core and the others handed over to each other.
    pub handed: HandedOver,
}

impl RbdSpec {
    /// Reads `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:OPTION=VALUE…]`.
    ///
    /// # Errors
    /// The reason why the text is refused.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = split(text);
        let path = parts.remove(0);
        let (path, snapshot) = match path.split_once('@') {
            Some((path, snapshot)) if !snapshot.is_empty() => (path, Some(snapshot.to_owned())),
            Some(_) => return Err("the name of the snapshot after @ is missing".to_owned()),
            None => (path.as_str(), None),
        };
        let names: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match names[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, namespace, image),
            _ => return Err(format!("{path:?} is not POOL/IMAGE or POOL/NAMESPACE/IMAGE")),
        };
        if pool.is_empty() || image.is_empty() {
            return Err(format!("{path:?} is not POOL/IMAGE: a name is empty"));
        }
        let mut spec = Self {
            image: ImageSpec {
                pool: pool.to_owned(),
                namespace: namespace.to_owned(),
                image: image.to_owned(),
                snapshot,
                ..ImageSpec::default()
            },
            words: Vec::new(),
            reads: None,
            cache: None,
            luks: None,
        };
        for option in parts {
            spec.option(&option)?;
        }
        Ok(spec)
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            None if option == "exclusive" => self.image.exclusive = true,
            Some((name @ ("id" | "conf" | "keyring" | "mon-host"), value)) => {
                self.words.extend([format!("--{name}"), value.to_owned()]);
            }
            Some(("reads", value)) => self.reads = Some(policy(value)?),
            Some(("cache", mode)) => self.cache = Some(ImageCache::parse(mode)?),
            Some(("luks", file)) => {
                self.luks = Some(file.to_owned());
                self.luks_layer()?;
            }
            _ => {
                return Err(format!(
                    "{option:?} is no option; there are id=, conf=, keyring=, mon-host=, reads=, \
                     cache=, luks= and exclusive"
                ));
            }
        }
        Ok(())
    }

    /// The layer that the option `luks` asks for. The file's name is no text of `--layer`, where
    /// commas divide options.
    fn luks_layer(&self) -> Result<LayerOptions, String> {
        let mut layers = LayerOptions::default();
        if let Some(file) = &self.luks {
            let mut settings = Settings::none("luks");
            settings.set("passphrase-file", file);
            layers.add_settings(settings).map_err(|error| error.to_string())?;
        }
        Ok(layers)
    }
}

fn policy(text: &str) -> Result<ReadPolicy, String> {
    match text {
        "primary" => Ok(ReadPolicy::Primary),
        "balance" => Ok(ReadPolicy::Balance),
        "localize" => Ok(ReadPolicy::Localize),
        _ => Err(format!("reads={text}: it is primary, balance or localize")),
    }
}

impl fmt::Display for RbdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.image.path())
    }
}

/// Splits a text at colons. A backslash takes the meaning of the letter behind it.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let part = parts.last_mut().expect("there is always a part");
        match letter {
            ':' => parts.push(String::new()),
            '\\' => part.extend(letters.next()),
            other => part.push(other),
        }
    }
    parts
}

impl StoreSpec for RbdSpec {
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store> {
        let (words, mailer) = (self.words.clone(), io.mailer());
        let read = move || CephSettings::read(&words);
        let answered = move |settings: Result<CephSettings, String>| {
            mailer.send(Box::new(SettingsMail(settings)));
        };
        let state = match timed_call::begin("ceph.conf", read, answered) {
            Ok(()) => State::Reading,
            Err(error) => State::Failed(format!("ceph.conf cannot be read: {error}")),
        };
        Box::new(RbdStore { spec: *self, state, arrived: Vec::new(), refused: Vec::new() })
    }
}

/// The name of the store's own read of an image's first bytes.
const PROBE_READ: RequestId = RequestId(u64::MAX);

/// The read of an image's first bytes, which finds a LUKS header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    /// When the image is open.
    Due,
    Begun,
    Over,
}

/// A message from the thread that reads the settings.
struct SettingsMail(Result<CephSettings, String>);

enum State {
    /// A thread reads the settings.
    Reading,
    /// There is a client.
    Running(Box<Running>),
    Closed,
    Failed(String),
}

struct Running {
    carrier: Carrier,
    branches: Branches,
    image: Image,
    closing: bool,
    /// The phase, the size and who shares the image at the last turn: the host looks again when
    /// they change.
    seen: (Phase, u64, Option<Sharing>),
    probe: ProbeState,
}

struct RbdStore {
    spec: RbdSpec,
    state: State,
    /// Requests that came before there was a client.
    arrived: Vec<Request>,
    refused: Vec<Completion>,
}

impl Running {
    /// Reads the first bytes of the image.
    fn begin_probe(&mut self, now: Nanos) {
        let first = PREFIX_BYTES as u32;
        self.probe = ProbeState::Over;
        if self.image.info().size_bytes >= u64::from(first) {
            self.probe = ProbeState::Begun;
            self.image.submit(Request::own(PROBE_READ, Op::Read, 0, first), now);
        }
    }

    /// Takes the first bytes out of the completions, and says what they are.
    fn end_probe(&mut self, out: &mut Vec<Completion>, image: &str) {
        let Some(at) = out.iter().position(|completion| completion.id == PROBE_READ) else {
            return;
        };
        self.probe = ProbeState::Over;
        let first = match out.swap_remove(at).result {
            Ok(Payload::Data(pieces)) => pieces.into_iter().next(),
            _ => None,
        };
        if let Some(Piece::Data(first)) = first
            && fieldstone_luks::probe(&first) != Probe::Nothing
        {
            tracing::warn!(
                "{image}: the image begins with a LUKS header, and its stored bytes are served; \
                 serve it with the option luks=PASSPHRASE-FILE"
            );
        }
    }

    fn phase(&self) -> Phase {
        if let client::Phase::Failed(why) = self.carrier.machine.phase() {
            return Phase::Failed(why);
        }
        match self.image.phase() {
            fieldstone_rbd::Phase::Failed(error) => Phase::Failed(error.to_string()),
            fieldstone_rbd::Phase::Closed => Phase::Closed,
            fieldstone_rbd::Phase::Closing => Phase::Closing,
            _ if self.closing => Phase::Closing,
            fieldstone_rbd::Phase::Opening => Phase::Opening,
            fieldstone_rbd::Phase::Open => Phase::Serving,
        }
    }
}

impl RbdStore {
    fn begin(&mut self, settings: &CephSettings, io: &mut StoreIo<'_>) {
        let (mut client, cluster) = Client::new(settings.client_options(io.now), io.now);
        let branches = Branches::open(&mut client, io);
        let reads = self.spec.reads.unwrap_or(settings.settings().read_policy);
        let mut image = Image::open(cluster, ImageSpec { reads, ..self.spec.image.clone() });
        for request in self.arrived.drain(..) {
            image.submit(request, io.now);
        }
        let carrier = Carrier::new(client);
        let seen = (Phase::Opening, 0, None);
        let probe = if self.spec.luks.is_some() { ProbeState::Over } else { ProbeState::Due };
        let running = Running { carrier, branches, image, closing: false, probe, seen };
        self.state = State::Running(Box::new(running));
    }

    fn refuse(&mut self, request: &Request) {
        let error = match &self.state {
            State::Failed(why) => BlockError::Io(why.clone()),
            _ => BlockError::ShuttingDown,
        };
        self.refused.push(Completion::of(request, Err(error)));
    }
}

impl Backend for RbdStore {
    fn info(&self) -> Info {
        match &self.state {
            State::Running(running) => running.image.info(),
            _ => Info {
                size_bytes: 0,
                block_bytes: 1,
                preferred_bytes: 4096,
                read_ahead_bytes: 0,
                read_only: self.spec.image.is_read_only(),
            },
        }
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        match &mut self.state {
            State::Running(running) => running.image.submit(request, now),
            State::Reading => self.arrived.push(request),
            State::Closed | State::Failed(_) => self.refuse(&request),
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        if let State::Running(running) = &mut self.state {
            running.image.poll(now, out);
            if running.probe == ProbeState::Begun {
                running.end_probe(out, &self.spec.image.path());
            }
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        match &self.state {
            State::Running(running) => running.image.deadline(),
            _ => None,
        }
    }

    fn shared(&self) -> Option<Sharing> {
        match &self.state {
            State::Running(running) => running.image.shared(),
            _ => Some(Sharing { why: "the image is not open", for_good: false }),
        }
    }

    fn settled(&mut self) {
        if let State::Running(running) = &mut self.state {
            running.image.settled();
        }
    }
}

impl Store for RbdStore {
    fn kind(&self) -> &'static str {
        KIND.scheme
    }

    fn phase(&self) -> Phase {
        match &self.state {
            State::Reading => Phase::Opening,
            State::Running(running) => running.phase(),
            State::Closed => Phase::Closed,
            State::Failed(why) => Phase::Failed(why.clone()),
        }
    }

    fn close(&mut self) {
        match &mut self.state {
            State::Running(running) => {
                running.closing = true;
                running.image.close();
            }
            State::Reading => {
                for request in std::mem::take(&mut self.arrived) {
                    self.refuse(&request);
                }
                self.state = State::Closed;
            }
            State::Closed | State::Failed(_) => {}
        }
    }

    fn release(&mut self, io: &mut StoreIo<'_>) {
        if let State::Running(mut running) = std::mem::replace(&mut self.state, State::Closed) {
            running.carrier.machine.close();
            running.branches.close(&self.spec.image.path(), &running.carrier.machine, io);
            let device = io.device;
            running.carrier.release(io.reactor, |index| StoreIo::token_of(device, index));
        }
    }

    fn event(&mut self, index: u32, event: Event, io: &mut StoreIo<'_>) {
        if let State::Running(running) = &mut self.state {
            let device = io.device;
            let token = |index| StoreIo::token_of(device, index);
            running.carrier.event(index, event, io.reactor, token);
        }
    }

    fn mail(&mut self, mail: Mail, io: &mut StoreIo<'_>) {
        let mail = match mail.downcast::<ReportsMail>() {
            Ok(mail) => {
                if let State::Running(running) = &mut self.state {
                    running.branches.reported(*mail, &mut running.carrier.machine);
                }
                return;
            }
            Err(mail) => mail,
        };
        let Ok(mail) = mail.downcast::<SettingsMail>() else { return };
        // The store may have been closed meanwhile.
        if !matches!(self.state, State::Reading) {
            return;
        }
        match mail.0 {
            Ok(settings) => self.begin(&settings, io),
            Err(why) => {
                self.state = State::Failed(why);
                for request in std::mem::take(&mut self.arrived) {
                    self.refuse(&request);
                }
            }
        }
    }

    fn act(&mut self, io: &mut StoreIo<'_>) -> bool {
        let State::Running(running) = &mut self.state else { return false };
        let device = io.device;
        running.image.run(io.now);
        let mut did = running.branches.begin_moves(&mut running.carrier.machine, io.now);
        did |= running.carrier.act(io.reactor, |index| StoreIo::token_of(device, index));
        if did {
            running.image.run(io.now);
        }
        if running.probe == ProbeState::Due && running.phase() == Phase::Serving {
            running.begin_probe(io.now);
            did = true;
        }
        let image = &running.image;
        let seen = (running.phase(), image.info().size_bytes, image.shared());
        did |= seen != running.seen;
        running.seen = seen;
        did
    }

    fn flush(&mut self, io: &mut StoreIo<'_>) {
        if let State::Running(running) = &mut self.state {
            let device = io.device;
            running.branches.flush(&mut running.carrier.machine, io);
            running.carrier.flush(io.reactor, |index| StoreIo::token_of(device, index));
        }
    }

    fn waits_for(&self, now: Nanos) -> String {
        match &self.state {
            State::Reading => "ceph.conf and the keyring".to_owned(),
            State::Running(running) => running.carrier.machine.waits_for(now),
            State::Closed | State::Failed(_) => String::new(),
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let State::Running(running) = &self.state else { return Vec::new() };
        let machine = &running.carrier.machine;
        let HandedOver { messages_out, errands, messages_in, reports } = running.branches.handed;
        let connections: usize = machine.link_counts().iter().sum();
        let counters = [
            ("owns_lock", u64::from(running.image.owns_lock())),
            ("osdmap_epoch", machine.map().map_or(0, |map| u64::from(map.epoch))),
            ("osd_connections", connections as u64),
            ("osd_connections_moved", machine.moves()),
            ("core_messages_sent", messages_out),
            ("core_errands_sent", errands),
            ("core_messages_received", messages_in),
            ("core_reports_received", reports),
        ];
        counters.map(|(name, value)| Counter { name, value }).to_vec()
    }

    fn status(&self, _now: Nanos) -> Option<Mail> {
        let State::Running(running) = &self.state else { return None };
        Some(Box::new(RbdStatus {
            image: self.spec.image.path(),
            owns_lock: running.image.owns_lock(),
            map_epoch: running.carrier.machine.map().map_or(0, |map| map.epoch),
            connections: running.carrier.machine.link_counts(),
            moves: running.carrier.machine.moves(),
            handed: running.branches.handed,
        }))
    }

    fn calls(&self) -> &'static [Call] {
        branches::CALLS
    }

    fn call(&mut self, call: Settings) -> Result<(), String> {
        match &mut self.state {
            State::Running(running) => running.branches.call(call),
            _ => Err("the image is not open".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let spec = RbdSpec::parse("rbd/tenant/disk@monday:id=backup:exclusive").unwrap();
        assert_eq!(spec.image.path(), "rbd/tenant/disk@monday");
        assert!(spec.image.exclusive);
        assert_eq!(spec.words, ["--id", "backup"]);
        let spec = RbdSpec::parse(r"rbd/a\:b:conf=/etc/c\:d.conf").unwrap();
        assert_eq!(spec.image.image, "a:b");
        assert_eq!(spec.words, ["--conf", "/etc/c:d.conf"]);
        assert_eq!(RbdSpec::parse("a/b:reads=balance").unwrap().reads, Some(ReadPolicy::Balance));
        assert!(RbdSpec::parse("a/b:reads=x").is_err());
        let spec = RbdSpec::parse("rbd/disk:cache=writeback").unwrap();
        assert_eq!(spec.cache, Some(ImageCache::Writeback));
        let spec = RbdSpec::parse(r"rbd/disk:luks=/etc/a\:b,c=d").unwrap();
        let luks = spec.luks_layer().unwrap().make().unwrap().pop().unwrap();
        assert_eq!(luks.name(), "luks");
        assert_eq!(luks.options()[0], ("passphrase-file", "/etc/a:b,c=d".to_owned()));
        let mut bad = vec!["", "rbd", "rbd/", "/disk", "a/b/c/d", "a/b@", "a/b:fast", "a/b:id"];
        bad.extend(["a/b:luks=", "a/b:cache=x"]);
        for bad in bad {
            assert!(RbdSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
