//! The service's side: one thread accepts, and each client has a thread.
//!
//! A connection whose client has not shown its secret yet gives way to newer ones. One whose client
//! has, stays ([`Callers`]). The nodes that run in this process listen for clients, too, each at a
//! port that the system chooses.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fieldstone_block::Nanos;
use fieldstone_host::notices::{Cause, Limiter};
use fieldstone_host::{Destination, NodePlace, folder, timed_call};
use fieldstone_proto::{
    Capability, ClientSecret, Epoch, KeyGeneration, NodeIndex, PoolId, Rights, SessionKey, Side,
    VolumeId,
};
use fieldstone_uring::Address;
use fieldstone_volume::WallClock;

use super::lines::{Sealed, hex, number, read_line};
use super::{Hello, Layout, Request, Response, VERSION, Welcome};
use crate::admission::{self, Client, Holder, Registry};
use crate::client_limits::{Caller, Callers, Timed};
use crate::listen;
use crate::paths::check_name;
use crate::pool::random;
use crate::running::RunningPool;

/// Largest number of sessions at a time. A client has one for each volume that it has open.
const SESSIONS_MAX: usize = 512;
/// Largest number of sessions of one client.
const SESSIONS_PER_CLIENT_MAX: usize = 64;
/// A client must show its secret within this time. It must also take each answer within this time.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// A client that sends nothing for this time is disconnected. It sends a request each second.
const SILENCE: Duration = Duration::from_secs(30);
/// Characters of a warning about a client.
const TEXT_CHARS_MAX: usize = 500;
/// Pause before the next accept after a failure, for example without free descriptors.
const RETRY_ACCEPT: Duration = Duration::from_millis(100);
/// How long the service waits for the folders of nodes that run in other processes.
const FOLDERS_LIMIT: Duration = Duration::from_secs(2);

/// A listening metadata service. Dropping this ends it.
pub struct MetadataServer {
    address: SocketAddr,
    ending: Arc<AtomicBool>,
    callers: Arc<Callers<TcpStream>>,
}

impl MetadataServer {
    /// Listens at `address`, for clients of these pools. Their capabilities are valid for
    /// `lifetime`. The pools' nodes in this process listen at the same host.
    ///
    /// # Errors
    /// The address is not of TCP or cannot be used, or the system refuses a thread.
    pub fn start(
        address: &Address,
        pools: &[Arc<RunningPool>],
        lifetime: Duration,
    ) -> anyhow::Result<Self> {
        let Address::Tcp { host, port } = address else {
            bail!("the metadata service listens at tcp:HOST:PORT, not at {address}");
        };
        let listener = TcpListener::bind((host.as_str(), *port))
            .with_context(|| format!("cannot serve metadata on {address}"))?;
        let local = pools.iter().map(|pool| listen_for_nodes(pool, host));
        let local = local.collect::<anyhow::Result<Vec<_>>>()?;
        let pools = pools.iter().cloned().zip(local);
        let pools = pools.map(|(running, local)| ServedPool { running, local }).collect();
        let (ending, callers) = (Arc::new(AtomicBool::new(false)), Callers::new(SESSIONS_MAX));
        let server = Self {
            address: listener.local_addr()?,
            ending: Arc::clone(&ending),
            callers: Arc::clone(&callers),
        };
        let service = Arc::new(Service {
            pools,
            lifetime,
            clock: IssueClock::default(),
            sessions: Mutex::default(),
            notices: Mutex::new((Instant::now(), Limiter::default())),
            ending,
        });
        std::thread::Builder::new()
            .name("metadata".to_owned())
            .spawn(move || accept(&listener, &service, &callers))?;
        Ok(server)
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.callers.end();
        // Wakes the accepting thread. If that fails, the thread ends with the process.
        let _ = TcpStream::connect_timeout(&self.address, RETRY_ACCEPT);
    }
}

/// Lets the nodes of a pool that run in this process listen at `host`. Returns their addresses.
fn listen_for_nodes(
    running: &RunningPool,
    host: &str,
) -> anyhow::Result<BTreeMap<NodeIndex, Address>> {
    let mut addresses = BTreeMap::new();
    for (node, place) in running.pool.node_indices().zip(running.places()) {
        if let NodePlace::Here(id) = place {
            let any_port = Address::Tcp { host: host.to_owned(), port: 0 };
            let listener = listen::bind(&any_port).with_context(|| format!("{node}"))?;
            addresses.insert(node, listener.address().clone());
            running.runtime().handle().listen(listener, Destination::Node(*id));
        }
    }
    Ok(addresses)
}

fn accept(listener: &TcpListener, service: &Arc<Service>, callers: &Arc<Callers<TcpStream>>) {
    for stream in listener.incoming() {
        if service.ending.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            callers.evict_oldest();
            std::thread::sleep(RETRY_ACCEPT);
            continue;
        };
        let Some(caller) = callers.take_on(stream) else { continue };
        let service = Arc::clone(service);
        let serve = move || {
            if let Err(error) = service.converse(caller) {
                tracing::debug!("a client of the metadata service went away: {error:#}");
            }
        };
        if let Err(error) =
            std::thread::Builder::new().name("metadata client".to_owned()).spawn(serve)
        {
            tracing::debug!("no thread for a client of the metadata service: {error}");
        }
    }
}

/// A pool whose volumes the service hands out.
struct ServedPool {
    running: Arc<RunningPool>,
    /// The addresses of the nodes that run in this process.
    local: BTreeMap<NodeIndex, Address>,
}

struct Service {
    pools: Vec<ServedPool>,
    lifetime: Duration,
    clock: IssueClock,
    /// The sessions of each client of each pool.
    sessions: Mutex<BTreeMap<(PoolId, String), usize>>,
    notices: Mutex<(Instant, Limiter)>,
    ending: Arc<AtomicBool>,
}

/// The time of day by which the service issues.
struct IssueClock {
    began: Instant,
    /// By the time since `began`.
    clock: Mutex<WallClock>,
}

impl Default for IssueClock {
    fn default() -> Self {
        let clock = Mutex::new(WallClock::new(unix_ns(SystemTime::now())));
        Self { began: Instant::now(), clock }
    }
}

impl IssueClock {
    /// In nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        let since = Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let offset_ns = unix_ns(SystemTime::now()).saturating_sub(since.0);
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.set(since, offset_ns);
        clock.for_issue(since)
    }
}

fn unix_ns(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A session with a client that has shown its secret, or is to show it with its first message.
struct Session<'a> {
    pool: &'a ServedPool,
    client: String,
    secret: ClientSecret,
    /// The address at which the client has reached this machine.
    reached_at: IpAddr,
    /// The client runs on this machine.
    is_here: bool,
    /// The volume that was opened last.
    volume: Option<OpenedVolume>,
    /// The addresses of nodes that the client was told last.
    told: Vec<Option<String>>,
}

/// A volume that a session has opened.
struct OpenedVolume {
    id: VolumeId,
    name: String,
    /// The number that the client's process has chosen.
    instance: String,
}

impl Service {
    fn converse(&self, mut caller: Caller<TcpStream>) -> anyhow::Result<()> {
        let line = Arc::clone(caller.line());
        line.set_nodelay(true)?;
        let ends = (line.local_addr()?.ip(), line.peer_addr()?.ip());
        let mut writer = Timed::new(&line, CLIENT_LIMIT);
        let mut reader = BufReader::new(Timed::new(&line, CLIENT_LIMIT));
        let Some(first) = read_line(&mut reader)? else { return Ok(()) };
        let (welcome, session) = self.welcome(&first, ends);
        writer.write_all((serde_json::to_string(&welcome)? + "\n").as_bytes())?;
        let Some((mut sealed, mut session)) = session else { return Ok(()) };
        let mut place = None;
        while let Some(text) = read_line(&mut reader)? {
            if self.ending.load(Ordering::Acquire) {
                return Ok(());
            }
            writer.limit(CLIENT_LIMIT);
            let Some(request) = sealed.open(&text)? else {
                let client = &session.client;
                let what = format!("a peer that calls itself {client:?} does not have its secret");
                self.warn(session.pool, &what);
                let refused = Welcome::Refused(not_admitted(client));
                writer.write_all((serde_json::to_string(&refused)? + "\n").as_bytes())?;
                return Ok(());
            };
            if place.is_none() {
                if !caller.busy() {
                    return Ok(());
                }
                place = Place::take(self, &session);
            }
            if place.is_none() {
                let reason = format!("{} has {SESSIONS_PER_CLIENT_MAX} sessions", session.client);
                let answer = sealed.seal(&Response::Failed { reason })?;
                writer.write_all(answer.as_bytes())?;
                return Ok(());
            }
            let response = session.answer(request, self);
            writer.limit(CLIENT_LIMIT);
            writer.write_all(sealed.seal(&response)?.as_bytes())?;
            if matches!(response, Response::Refused { .. }) {
                return Ok(());
            }
            reader.get_mut().limit(SILENCE);
        }
        Ok(())
    }

    /// The answer to the first line of a client, and the session if it may begin.
    fn welcome(
        &self,
        first: &str,
        ends: (IpAddr, IpAddr),
    ) -> (Welcome, Option<(Sealed, Session<'_>)>) {
        match self.begin(first, ends) {
            Ok(Ok((number, sealed, session))) => {
                (Welcome::Random(hex(number)), Some((sealed, session)))
            }
            Ok(Err(refusal)) => (refusal, None),
            Err(error) => (Welcome::Failed(format!("{error:#}")), None),
        }
    }

    fn begin(
        &self,
        first: &str,
        (reached_at, from): (IpAddr, IpAddr),
    ) -> anyhow::Result<Result<(u128, Sealed, Session<'_>), Welcome>> {
        let hello: Hello = serde_json::from_str(first).context("the request is not understood")?;
        if hello.version != VERSION {
            bail!("the service speaks version {VERSION}, the client version {}", hello.version);
        }
        let (id, by_client) = (PoolId(number(&hello.pool)?), number(&hello.random)?);
        let Some(pool) = self.pools.iter().find(|pool| pool.running.pool.id == id) else {
            return Ok(Err(Welcome::OtherPool(format!("there is no pool {} here", hello.pool))));
        };
        let registry = match Registry::read(&pool.running.pool.folder, id) {
            Ok(registry) => registry,
            Err(error) => {
                self.warn(pool, &format!("no client is served: {error:#}"));
                let reason = "the service cannot read its list of clients; its log says why";
                return Ok(Err(Welcome::Failed(reason.to_owned())));
            }
        };
        let Some(client) = registry.client(&hello.client) else {
            return Ok(Err(Welcome::Refused(not_admitted(&hello.client))));
        };
        let (secret, by_service) = (client.secret()?, random()?);
        let key = SessionKey::derive(&secret, id, &hello.client, (by_client, by_service));
        let session = Session {
            pool,
            client: hello.client,
            secret,
            reached_at,
            is_here: from.is_loopback() || from == reached_at,
            volume: None,
            told: Vec::new(),
        };
        Ok(Ok((by_service, Sealed::new(key, Side::Service), session)))
    }
}

impl Service {
    /// Warns of something that a client causes as often as it likes.
    fn warn(&self, pool: &ServedPool, what: &str) {
        let (began, limiter) = &mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if limiter.admit(Cause::Capability, now) {
            let what: String = what.chars().take(TEXT_CHARS_MAX).collect();
            tracing::warn!("{}: {what}", pool.running.folder().display());
        }
    }
}

/// A place among the sessions of a client.
struct Place<'a> {
    service: &'a Service,
    of: (PoolId, String),
}

impl<'a> Place<'a> {
    fn take(service: &'a Service, session: &Session<'_>) -> Option<Self> {
        let of = (session.pool.running.pool.id, session.client.clone());
        let mut sessions = service.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let count = sessions.entry(of.clone()).or_default();
        if *count == SESSIONS_PER_CLIENT_MAX {
            return None;
        }
        *count += 1;
        Some(Self { service, of })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut sessions = self.service.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = sessions.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&self.of);
            }
        }
    }
}

fn not_admitted(client: &str) -> String {
    format!("the pool does not admit the client {client:?} with this credential")
}

/// Why a request is not carried out.
enum Denial {
    /// The client may not do it, now and later.
    Refused(String),
    /// It may be possible later.
    Failed(String),
    /// It may be possible later. The reason is not for the client.
    Internal(anyhow::Error),
}

impl From<anyhow::Error> for Denial {
    fn from(error: anyhow::Error) -> Self {
        Self::Internal(error)
    }
}

impl Session<'_> {
    fn answer(&mut self, request: Request, service: &Service) -> Response {
        let answer = match request {
            Request::Open { volume, instance } => self.open(&volume, instance),
            Request::Issue { epoch } => self.issue(Epoch(epoch), service),
            Request::Watch { oldest } => self.watch(oldest),
        };
        answer.unwrap_or_else(|denial| match denial {
            Denial::Refused(reason) => {
                service.warn(self.pool, &format!("client {}: {reason}", self.client));
                Response::Refused { reason }
            }
            Denial::Failed(reason) => Response::Failed { reason },
            Denial::Internal(error) => {
                // The reasons may name other volumes, and files of this machine.
                service.warn(self.pool, &format!("client {} waits: {error:#}", self.client));
                let reason = "the service cannot tell at the moment; its log says why".to_owned();
                Response::Failed { reason }
            }
        })
    }

    /// The client's entry in the registry.
    fn admitted<'a>(&self, registry: &'a Registry) -> Result<&'a Client, Denial> {
        let client = registry.client(&self.client);
        // A client of the same name may have been admitted anew.
        let same = |client: &&Client| client.secret().is_ok_and(|secret| secret == self.secret);
        client.filter(same).ok_or_else(|| Denial::Refused(not_admitted(&self.client)))
    }

    fn read(&self) -> Result<Registry, Denial> {
        let pool = &self.pool.running.pool;
        Ok(Registry::read(&pool.folder, pool.id)?)
    }

    fn open(&mut self, name: &str, instance: String) -> Result<Response, Denial> {
        if check_name(name).is_err() || number(&instance).is_err() {
            return Err(Denial::Refused("this is no name of a volume".to_owned()));
        }
        self.may_open(&self.read()?, name)?;
        let running = &self.pool.running;
        let listing = running.list_volumes()?;
        if listing.find(name).is_none() && listing.is_complete() {
            return Err(Denial::Refused(format!("the pool has no volume {name:?}")));
        }
        let known = running.find_in(&listing, name)?;
        self.volume = Some(OpenedVolume { id: known.id, name: known.name.clone(), instance });
        self.told = self.addresses();
        Ok(Response::Layout(Layout {
            volume: known.id.to_string(),
            code: known.profile.to_string(),
            replicate: running.pool.replicate.to_string(),
            encode: running.pool.encode.to_string(),
            nodes: self.told.clone(),
        }))
    }

    fn may_open(&self, registry: &Registry, name: &str) -> Result<(), Denial> {
        let client = self.admitted(registry)?;
        if client.may_open(name) {
            return Ok(());
        }
        let allowed = client.volumes.clone().unwrap_or_default().join(", ");
        let client = &self.client;
        Err(Denial::Refused(format!("the client {client} may open {allowed} only, not {name:?}")))
    }

    fn issue(&mut self, epoch: Epoch, service: &Service) -> Result<Response, Denial> {
        let running = &self.pool.running;
        let Some(OpenedVolume { id, name, instance }) = &self.volume else {
            return Err(Denial::Refused("no volume is open in this session".to_owned()));
        };
        let (volume, holder) = (*id, Holder { client: &self.client, instance });
        let registry = self.read()?;
        self.may_open(&registry, name)?;
        // Asking all nodes takes long, so it is not done under the lock. A renewal needs no answer.
        let known = match registry.epoch_of(&holder, volume) == Some(epoch) {
            true => epoch,
            false => {
                let listing = running.list_volumes()?;
                let found = listing.volumes.iter().find(|known| known.id == volume);
                if found.is_none() && listing.is_complete() {
                    return Err(Denial::Refused(format!("the volume {name:?} is gone")));
                }
                found.map(|known| known.epoch).with_context(|| format!("{name:?} is not found"))?
            }
        };
        let lifetime_ns = u64::try_from(service.lifetime.as_nanos()).unwrap_or(u64::MAX);
        let issued = admission::change(&running.pool.folder, running.pool.id, |registry| {
            if let Err(denial) = self.may_open(registry, name) {
                return Ok(Err(denial));
            }
            // An opening takes the next epoch, and a few more in a small pool.
            let highest = registry.highest_epoch(volume).unwrap_or_default().max(known);
            if epoch.0 > highest.0.saturating_add(u64::from(running.pool.nodes) + 1) {
                let reason = format!("no opening takes epoch {epoch} after epoch {highest}");
                return Ok(Err(Denial::Failed(reason)));
            }
            // Under the lock: a rotation that has seen the registry has seen this.
            let key = running.pool.keys.get().derive(volume, epoch);
            let expires_ns = service.clock.now_ns().saturating_add(lifetime_ns);
            let signed = (epoch, key.generation());
            let until = expires_ns.div_ceil(1_000_000_000);
            if let Err(error) = registry.note_issue(&holder, (volume, name), signed, until) {
                return Ok(Err(Denial::Failed(error.to_string())));
            }
            Ok(Ok(Capability::issue(&key, volume, epoch, Rights::ALL, expires_ns)))
        })?;
        let capability = issued?;
        Ok(Response::Issued { capability: capability.into(), lifetime_ns })
    }

    fn watch(&mut self, oldest: Option<u16>) -> Result<Response, Denial> {
        let registry = self.read()?;
        self.admitted(&registry)?;
        let pool = &self.pool.running.pool;
        if let (Some(oldest), Some(OpenedVolume { id, name, instance })) = (oldest, &self.volume) {
            self.may_open(&registry, name)?;
            let holder = Holder { client: &self.client, instance };
            admission::change(&pool.folder, pool.id, |registry| {
                registry.note_oldest(&holder, *id, KeyGeneration(oldest));
                Ok(())
            })?;
        }
        let addresses = self.addresses();
        let nodes = (addresses != self.told).then(|| addresses.clone());
        self.told = addresses;
        Ok(Response::Present { generation: pool.keys.get().issuing().0.0, nodes })
    }

    /// The addresses of the pool's nodes for this client. Where a folder does not answer, the
    /// address that the client was told before.
    fn addresses(&self) -> Vec<Option<String>> {
        let deadline = Instant::now() + FOLDERS_LIMIT;
        let running = &self.pool.running;
        let address = |(node, place): (NodeIndex, &NodePlace)| match place {
            NodePlace::Here(_) => Some(self.as_seen_by_client(self.pool.local.get(&node)?)),
            NodePlace::At(endpoint) => Some(endpoint.address().to_string()),
            NodePlace::Listed(directory, node) => Some(directory.address(*node)?.to_string()),
            NodePlace::Announced(path) => {
                let path = path.clone();
                let name = path.to_string_lossy().into_owned();
                let read = move || folder::announced(&path);
                let announced = timed_call::within(deadline, &name, read).ok().flatten();
                announced.map(|address| self.as_seen_by_client(&address))
            }
        };
        let before = |node: NodeIndex| self.told.get(usize::from(node.0)).cloned().flatten();
        let nodes = running.pool.node_indices().zip(running.places());
        let all = nodes.map(|(node, place)| address((node, place)).or_else(|| before(node)));
        all.map(|address| address.filter(|address| self.can_reach(address))).collect()
    }

    /// Whether the client may reach this address: a client on another machine reaches no unix
    /// socket here, and nothing at the loopback address.
    fn can_reach(&self, address: &str) -> bool {
        let is_local = match address.parse() {
            Ok(Address::Tcp { host, .. }) => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Ok(Address::Unix(_)) | Err(_) => true,
        };
        self.is_here || !is_local
    }

    /// An address of this machine, as the client can reach it: a process that listens at all
    /// addresses is at the one where the client has reached the service.
    fn as_seen_by_client(&self, address: &Address) -> String {
        match address {
            Address::Tcp { host, port }
                if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) =>
            {
                Address::from(SocketAddr::new(self.reached_at, *port)).to_string()
            }
            other => other.to_string(),
        }
    }
}
