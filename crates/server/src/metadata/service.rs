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
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_block::Nanos;
use fieldstone_host::notices::{Cause, Limiter};
use fieldstone_host::{Destination, NodePlace};
use fieldstone_proto::{NodeIndex, PoolId, SessionKey, Side};
use fieldstone_uring::Address;

use super::issue_clock::IssueClock;
use super::lines::{Sealed, hex, number, read_line};
use super::session::{Session, not_admitted};
use super::{Hello, Response, VERSION, Welcome};
use crate::admission::Registry;
use crate::client_limits::{Caller, Callers, Timed};
use crate::listen;
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
/// How long the call may take that wakes the accepting thread.
const WAKE_LIMIT: Duration = Duration::from_millis(100);

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
        std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let ending = Arc::clone(&service.ending);
            let serve = move |caller| service.converse(caller);
            callers.serve_each(listener.incoming(), &ending, "metadata client", serve);
        })?;
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
        let _ = TcpStream::connect_timeout(&self.address, WAKE_LIMIT);
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

/// A pool whose volumes the service hands out.
pub(super) struct ServedPool {
    pub running: Arc<RunningPool>,
    /// The addresses of the nodes that run in this process.
    pub local: BTreeMap<NodeIndex, Address>,
}

/// The service, as its sessions see it.
pub(super) struct Service {
    pools: Vec<ServedPool>,
    /// How long capabilities are valid.
    pub lifetime: Duration,
    pub clock: IssueClock,
    /// The sessions of each client of each pool.
    sessions: Mutex<BTreeMap<(PoolId, String), usize>>,
    notices: Mutex<(Instant, Limiter)>,
    ending: Arc<AtomicBool>,
}

impl Service {
    /// Serves a client until it goes, or is refused.
    fn converse(&self, mut caller: Caller<TcpStream>) -> anyhow::Result<()> {
        let line = Arc::clone(caller.line());
        line.set_nodelay(true)?;
        let ends = (line.local_addr()?.ip(), line.peer_addr()?.ip());
        let mut writer = Timed::new(&line, CLIENT_LIMIT);
        let mut reader = BufReader::new(Timed::new(&line, CLIENT_LIMIT));
        let Some(first) = read_line(&mut reader)? else { return Ok(()) };
        let begun = self.begin(&first, ends);
        let welcome = match &begun {
            Ok((number, ..)) => Welcome::Random(hex(*number)),
            Err(refusal) => refusal.clone(),
        };
        writer.write_all((serde_json::to_string(&welcome)? + "\n").as_bytes())?;
        let Ok((_, mut sealed, mut session)) = begun else { return Ok(()) };
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

    /// Begins a session with the client that sent this first line, over a connection with these
    /// ends: ours, and its. Returns our random number.
    ///
    /// # Errors
    /// The answer to a client with which no session begins.
    fn begin(
        &self,
        first: &str,
        ends: (IpAddr, IpAddr),
    ) -> Result<(u128, Sealed, Session<'_>), Welcome> {
        let failed = |error: anyhow::Error| Welcome::Failed(format!("{error:#}"));
        let hello: Hello = serde_json::from_str(first)
            .map_err(|_| Welcome::Failed("the request is not understood".to_owned()))?;
        if hello.version != VERSION {
            let versions = format!("version {VERSION}, the client version {}", hello.version);
            return Err(Welcome::Failed(format!("the service speaks {versions}")));
        }
        let id = PoolId(number(&hello.pool).map_err(failed)?);
        let by_client = number(&hello.random).map_err(failed)?;
        let Some(pool) = self.pools.iter().find(|pool| pool.running.pool.id == id) else {
            return Err(Welcome::OtherPool(format!("there is no pool {} here", hello.pool)));
        };
        let registry = Registry::read(&pool.running.pool.folder, id).map_err(|error| {
            self.warn(pool, &format!("no client is served: {error:#}"));
            let reason = "the service cannot read its list of clients; its log says why";
            Welcome::Failed(reason.to_owned())
        })?;
        let Some(client) = registry.client(&hello.client) else {
            return Err(Welcome::Refused(not_admitted(&hello.client)));
        };
        let (secret, by_service) = (client.secret().map_err(failed)?, random().map_err(failed)?);
        let key = SessionKey::derive(&secret, id, &hello.client, (by_client, by_service));
        let session = Session::new(pool, (hello.client, secret), ends);
        Ok((by_service, Sealed::new(key, Side::Service), session))
    }
}

impl Service {
    /// Warns of something that a client causes as often as it likes.
    pub fn warn(&self, pool: &ServedPool, what: &str) {
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
