//! A session with a client: what it may ask for, and the answers.
//!
//! Each request looks at the registry of clients again. So a client that is evicted gets nothing
//! more, also in a session that goes on.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_host::{NodePlace, folder, timed_call};
use fieldstone_proto::{
    Capability, ClientSecret, Epoch, KeyGeneration, NodeIndex, Rights, VolumeId,
};
use fieldstone_uring::Address;

use super::lines::number;
use super::service::{ServedPool, Service};
use super::{Layout, NodeAddresses, Request, Response};
use crate::admission::{self, Client, Holder, Registry};
use crate::paths::check_name;
use crate::running::client_volumes::{ClientAnswer, ClientSeat};

/// How long the service waits for the folders of nodes that run in other processes.
const FOLDERS_LIMIT: Duration = Duration::from_secs(2);

/// A session with a client that has shown its secret, or is to show it with its first message.
pub(super) struct Session<'a> {
    pub pool: &'a ServedPool,
    pub client: String,
    secret: ClientSecret,
    /// The address at which the client has reached this machine.
    reached_at: IpAddr,
    /// The client runs on this machine.
    is_here: bool,
    /// The volume that was opened last.
    volume: Option<OpenedVolume>,
    /// The addresses of nodes that the client was told last.
    told: NodeAddresses,
}

/// A volume that a session has opened.
struct OpenedVolume {
    id: VolumeId,
    name: String,
    /// The number that the client's process has chosen.
    instance: String,
    /// Its place among the volumes that clients have open.
    seat: ClientSeat,
}

impl<'a> Session<'a> {
    /// A session in which no volume is open. The client connected from `from`, to `reached_at`.
    pub fn new(
        pool: &'a ServedPool,
        (client, secret): (String, ClientSecret),
        (reached_at, from): (IpAddr, IpAddr),
    ) -> Self {
        let is_here = from.is_loopback() || from == reached_at;
        Self { pool, client, secret, reached_at, is_here, volume: None, told: Vec::new() }
    }
}

/// The refusal of a client, in words.
pub(super) fn not_admitted(client: &str) -> String {
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
    /// Carries out a request.
    pub fn answer(&mut self, request: Request, service: &Service) -> Response {
        let answer = match request {
            Request::Open { volume, instance } => self.open(&volume, instance),
            Request::Issue { epoch } => self.issue(Epoch(epoch), service),
            Request::Watch { oldest, report, answers } => self.watch(oldest, report, answers),
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
        let seat = running.client_volumes().enter(&self.client, known.id, &known.name);
        self.volume = Some(OpenedVolume { id: known.id, name: known.name.clone(), instance, seat });
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
        let Some(OpenedVolume { id, name, instance, .. }) = &self.volume else {
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
            if registry.is_removed(volume) {
                return Ok(Err(Denial::Refused(format!("the volume {name:?} was removed"))));
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

    fn watch(
        &mut self,
        oldest: Option<u16>,
        report: Option<serde_json::Value>,
        answers: Vec<ClientAnswer>,
    ) -> Result<Response, Denial> {
        let registry = self.read()?;
        self.admitted(&registry)?;
        let pool = &self.pool.running.pool;
        if let (Some(oldest), Some(opened)) = (oldest, &self.volume) {
            let OpenedVolume { id, name, instance, .. } = opened;
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
        let generation = pool.keys.get().issuing().0.0;
        let mut calls = Vec::new();
        if let Some(OpenedVolume { id, name, instance, seat }) = &self.volume {
            if registry.is_removed(*id) {
                return Err(Denial::Refused(format!("the volume {name:?} was removed")));
            }
            let granted = registry.epoch_of(&Holder { client: &self.client, instance }, *id);
            let heard = seat.hear(report, granted.unwrap_or_default(), answers);
            if let Some(volume) = heard.report {
                self.pool.running.note_client_whole(volume);
            }
            calls = heard.calls;
        }
        Ok(Response::Present { generation, nodes, calls })
    }

    /// The addresses of the pool's nodes for this client. Where a folder does not answer, the
    /// address that the client was told before.
    fn addresses(&self) -> NodeAddresses {
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
