//! Makes, opens, grows and removes the volumes of a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_block::layers::LayerOptions;
use fieldstone_codes::Profile;
use fieldstone_host::{
    DeviceSpec, NodeSession, SessionError, VolumeAuthority, VolumeCall, VolumeSpec, VolumeStatus,
};
use fieldstone_proto::{
    Encode, Epoch, FRAGMENT_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody, Strategy, VolumeId,
};
pub use fieldstone_volume::ReadPolicy;
use fieldstone_volume::{Authority, OpenMode, Provisioning, VolumeConfig};

use super::{Known, Listing, RunningPool};
use crate::admission::{self, Grant, Registry};
use crate::pool::{Pool, Provision, check_fits, geometry, needed_slots, random};
use crate::runtime::{OpenDevice, OpenWait};
use fieldstone_units as units;
use fieldstone_uring::wall_offset_ns;

/// A node that does not answer for this long counts as down.
const NODE_TIMEOUT_MS: u64 = 10_000;

/// How long an open volume may take to grow.
const GROW_TIMEOUT: Duration = Duration::from_secs(60);

/// Checks that a volume of `before` bytes may grow to `size_bytes`.
fn check_larger(name: &str, before: u64, size_bytes: u64) -> anyhow::Result<()> {
    const BLOCK: u64 = fieldstone_proto::BLOCK_BYTES as u64;
    if !size_bytes.is_multiple_of(BLOCK) {
        bail!("the size of {size_bytes} bytes is not a multiple of {BLOCK}");
    }
    if size_bytes <= before {
        bail!(
            "{name} has {} already; it can grow, not shrink (asked for {})",
            units::size_argument(before),
            units::size_argument(size_bytes)
        );
    }
    Ok(())
}

/// How a volume is removed from nodes.
#[derive(Clone, Copy, Debug)]
struct Removal {
    /// The highest epoch that nodes or clients have.
    epoch: Epoch,
    /// Also from a writer that is still connected.
    takeover: bool,
    /// Also if nodes are down.
    force: bool,
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Take the volume over even from a writer that is still connected.
    pub takeover: bool,
    /// Only find out the volume's state: fence and write nothing.
    pub inspect: bool,
    /// Rebuild missing shards without a request.
    pub auto_rebuild: bool,
    /// Largest rate of the reads of rebuild and scrub in bytes per second; 0 for no limit.
    pub rebuild_limit: u64,
    /// Which copy answers a read of a volume whose shards are copies.
    pub reads: ReadPolicy,
    /// The layers in front of the volume.
    pub layers: LayerOptions,
}

impl VolumeOptions {
    /// The options of a command that only inspects a volume.
    pub fn inspect() -> Self {
        Self { inspect: true, ..Self::offline() }
    }

    /// The options of a command that does its work and ends.
    pub fn offline() -> Self {
        Self {
            takeover: false,
            inspect: false,
            auto_rebuild: false,
            rebuild_limit: 0,
            reads: ReadPolicy::Primary,
            layers: LayerOptions::default(),
        }
    }
}

/// A volume, as its pool has it.
#[derive(Clone, Copy, Debug)]
pub struct PooledVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its code.
    pub profile: Profile,
    /// Number of nodes of the pool.
    pub nodes: u16,
    /// How records of journals reach their nodes.
    pub replicate: Strategy,
    /// Who makes the parity of new segments.
    pub encode: Encode,
}

impl VolumeOptions {
    /// The configuration of an opening.
    pub fn config(
        &self,
        volume: &PooledVolume,
        opening: OpenMode,
        authority: Authority,
    ) -> VolumeConfig {
        let missing_max = u16::try_from(volume.profile.m()).unwrap_or(u16::MAX);
        VolumeConfig {
            volume: volume.id,
            opening,
            nodes: volume.nodes,
            missing_max: missing_max.min(volume.nodes.saturating_sub(1)),
            authority,
            wall_offset_ns: wall_offset_ns(),
            node_timeout_ms: NODE_TIMEOUT_MS,
            fragment_bytes: FRAGMENT_BYTES,
            replicate: volume.replicate,
            encode: volume.encode,
            reads: self.reads,
            auto_rebuild: self.auto_rebuild,
            rebuild_limit_bytes_per_second: self.rebuild_limit,
        }
    }
}

impl RunningPool {
    fn config(
        &self,
        id: VolumeId,
        profile: Profile,
        opening: OpenMode,
        options: &VolumeOptions,
    ) -> VolumeConfig {
        let Pool { nodes, replicate, encode, .. } = self.pool;
        let volume = PooledVolume { id, profile, nodes, replicate, encode };
        options.config(&volume, opening, Authority::Secrets(self.pool.keys.get()))
    }

    /// A volume on the pool's nodes, with its own accelerator engine.
    fn store(&self, config: VolumeConfig) -> anyhow::Result<Box<VolumeSpec>> {
        let engine = self.runtime.accelerator().engine()?;
        let authority = VolumeAuthority::Secrets(self.pool.keys.clone());
        Ok(Box::new(VolumeSpec { config, authority, places: Arc::clone(&self.places), engine }))
    }

    /// Opens a volume and waits until it serves, as long as `wait` says.
    ///
    /// # Errors
    /// The volume cannot be opened: for example, too many nodes are missing or another writer has
    /// it.
    pub fn open_volume(
        &self,
        known: &Known,
        options: &VolumeOptions,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<OpenDevice> {
        self.open_exported(known, &known.name, options, wait)
    }

    /// As [`RunningPool::open_volume`], but with `export` as the name of the export.
    ///
    /// # Errors
    /// As [`RunningPool::open_volume`].
    pub fn open_exported(
        &self,
        known: &Known,
        export: &str,
        options: &VolumeOptions,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<OpenDevice> {
        let opening = match options.inspect {
            true => OpenMode::Inspect,
            false => OpenMode::Open { takeover: options.takeover },
        };
        let config = self.config(known.id, known.profile, opening, options);
        let store = self.store(config)?;
        let spec = DeviceSpec { name: export.to_owned(), store, layers: options.layers.clone() };
        let name = self.device_name(&known.name);
        let opened = self.runtime.open_device(name, spec, Some(known.id), wait);
        opened.map_err(|error| self.name_client(error, known.id, known.epoch))
    }

    /// Adds the client that may have the volume open to an error about it.
    fn name_client(
        &self,
        error: anyhow::Error,
        volume: VolumeId,
        nodes_know: Epoch,
    ) -> anyhow::Error {
        let registry = Registry::read(&self.pool.folder, self.pool.id);
        let holder = registry.as_ref().ok().and_then(|all| all.holder(volume));
        match holder.filter(|grant| grant.epoch() >= nodes_know) {
            Some(Grant { client, name, .. }) => {
                error.context(format!("the client {client} may have {name} open"))
            }
            None => error,
        }
    }

    /// Compares the slots that the volumes of a listing need when they are full with the pool's
    /// slots.
    pub fn provision(&self, volumes: &[Known]) -> Provision {
        let pool = &self.pool;
        let needed =
            volumes.iter().map(|known| needed_slots(&known.geometry, known.profile, pool.nodes));
        Provision {
            needed_slots: needed.fold(0, u64::saturating_add),
            slots: u64::from(pool.layout.slots) * u64::from(pool.nodes),
            slot_bytes: pool.layout.slot_bytes,
        }
    }

    /// Checks that the pool has room for these volumes when all are full. If it has not, returns a
    /// warning if `thin` is given, and an error otherwise.
    fn check_provision(
        &self,
        volumes: &[Known],
        what: &str,
        thin: bool,
    ) -> anyhow::Result<Option<String>> {
        let provision = self.provision(volumes);
        if !provision.is_thin() {
            return Ok(None);
        }
        let dir = self.folder();
        let text = format!("with {what}, full volumes of {} would take {provision}", dir.display());
        if thin {
            return Ok(Some(format!("{text}: writes fail when the pool is full")));
        }
        bail!("{text}; pass --thin to let the pool run full")
    }

    /// Makes a volume. Also returns a warning if the pool may run full now.
    ///
    /// # Errors
    /// The name is taken, the code does not fit the pool, the size is invalid, or nodes are
    /// missing. Or the pool has no room for the volume and `thin` is not given.
    pub fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        profile: Option<Profile>,
        thin: bool,
    ) -> anyhow::Result<(Known, Option<String>)> {
        const BLOCK: u64 = fieldstone_proto::BLOCK_BYTES as u64;
        let pool = &self.pool;
        let profile = profile.unwrap_or(pool.profile);
        check_fits(profile, pool.nodes)?;
        if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK) {
            bail!("the size of {size_bytes} bytes is not a positive multiple of {BLOCK}");
        }
        let listing = self.list_volumes()?;
        if listing.find(name).is_some() {
            bail!("the pool {} has a volume {name:?} already", pool.folder.display());
        }
        if listing.find_hidden(name).is_some() {
            bail!(
                "the pool {} has a volume {name:?} already, which cannot be read",
                pool.folder.display()
            );
        }
        // Another hidden volume may have the same name.
        listing.check_names_known()?;
        self.remove_unfinished(&listing);
        let mut volumes = listing.volumes;
        let geometry = geometry(size_bytes, profile, pool.layout)?;
        let known = Known {
            id: VolumeId(random()?),
            name: name.to_owned(),
            profile,
            size_bytes,
            geometry,
            epoch: Epoch(0),
            nodes: usize::from(pool.nodes),
        };
        volumes.push(known.clone());
        let what = format!("{name} of {}", units::size(size_bytes));
        let warning = self.check_provision(&volumes, &what, thin)?;
        let provisioning = if thin { Provisioning::Thin } else { Provisioning::Thick };
        let (name, id) = (name.to_owned(), known.id);
        let opening = OpenMode::Create { name: name.clone(), profile, geometry, provisioning };
        let options = VolumeOptions::offline();
        let config = self.config(id, profile, opening, &options);
        let store = self.store(config)?;
        let spec = DeviceSpec { name, store, layers: options.layers.clone() };
        let (name, wait) = (self.device_name(&known.name), OpenWait::default());
        let open = self.runtime.open_device(name, spec, Some(id), wait)?;
        self.close(&open)?;
        Ok((known, warning))
    }

    /// Removes the volumes that were removed before, and that are there again: a client with a
    /// valid capability has made them anew, or a node was away when they were removed.
    pub fn remove_again(&self, listing: &Listing) {
        for (id, epoch) in &listing.removed {
            let registry = Registry::read(&self.pool.folder, self.pool.id);
            let granted = registry.ok().and_then(|all| all.highest_epoch(*id)).unwrap_or_default();
            let removal = Removal { epoch: granted.max(*epoch), takeover: true, force: true };
            match self.remove_from_nodes(*id, "a volume that was removed before", removal) {
                Ok(()) => tracing::warn!("removed {id} again: a client had made it anew"),
                Err(error) => tracing::warn!("{id} was removed, and is there again: {error:#}"),
            }
        }
    }

    /// Removes the rest of volumes whose `volume create` was killed, and shards that a `volume rm`
    /// missed because their headers could not be read. Also [the other](Self::remove_again) volumes
    /// that are of no use.
    fn remove_unfinished(&self, listing: &Listing) {
        self.remove_again(listing);
        if !listing.is_complete() {
            // A node that does not answer may have a root of the volume.
            return;
        }
        for (id, epoch) in &listing.without_root {
            let removed = self.check_without_root(*id, *epoch).and_then(|epoch| {
                let removal = Removal { epoch, takeover: false, force: false };
                self.remove_from_nodes(*id, "a volume without a root", removal)
            });
            match removed {
                Ok(()) => tracing::warn!("removed the rest of {id}, a volume without a root"),
                // For example, the volume is being made at this moment.
                Err(error) => tracing::debug!("{id} has no root yet: {error:#}"),
            }
        }
    }

    /// Fences a volume on every node. Checks that no node has a root of the volume or an unreadable
    /// record of it. Returns the epoch.
    fn check_without_root(&self, id: VolumeId, epoch: Epoch) -> anyhow::Result<Epoch> {
        let mut epoch = Epoch(epoch.0 + 1);
        let mut fenced = 0;
        while fenced < self.pool.nodes {
            let node = NodeIndex(fenced);
            let capability = self.capability(id, epoch);
            let mut session = self.node_session(node)?;
            match session.ask(capability, &RequestBody::Fence { takeover: false }) {
                Ok(ReplyBody::VolumeState(state)) if state.root_version == 0 => fenced += 1,
                Ok(_) => bail!("{node} has a root of it"),
                // The node remembers a later epoch: of the removal that missed the shards.
                Err(SessionError::Refused {
                    source: NodeError::Fenced { current, .. }, ..
                }) if current >= epoch => {
                    (epoch, fenced) = (Epoch(current.0 + 1), 0);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(epoch)
    }

    /// Checks that the pool has room for a volume that grows to `size_bytes`. If it has not,
    /// returns a warning if `thin` is given, and an error otherwise.
    ///
    /// # Errors
    /// There is no volume of this name, or no room for it.
    pub fn check_growth(
        &self,
        name: &str,
        size_bytes: u64,
        thin: bool,
    ) -> anyhow::Result<(Known, Option<String>)> {
        let listing = self.list_volumes()?;
        let grown = self.find_in(&listing, name)?;
        let mut volumes = listing.volumes;
        for known in volumes.iter_mut().filter(|known| known.id == grown.id) {
            known.geometry.size_bytes = known.geometry.size_bytes.max(size_bytes);
        }
        // If the size is not larger, a later check refuses it with that reason.
        let thin = thin || size_bytes <= grown.size_bytes;
        let what = format!("{name} of {}", units::size(size_bytes));
        let warning = self.check_provision(&volumes, &what, thin)?;
        Ok((grown, warning))
    }

    /// Makes an open volume larger and waits until it is. With `thin`, also makes it thin.
    ///
    /// # Errors
    /// The device is not a volume, the size is not larger or not whole blocks, the volume or its
    /// nodes refuse, or the volume has not grown within 60 seconds.
    pub fn grow(&self, open: &OpenDevice, size_bytes: u64, thin: bool) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_millis(20);
        let name = &open.name.name;
        let size_now = || {
            let snapshot = self.runtime.snapshot();
            let mut devices = snapshot.iter().flat_map(|core| &core.devices);
            devices.find(|found| found.device == open.device).map(|found| found.info.size_bytes)
        };
        let before = size_now().with_context(|| format!("{name} is not open any more"))?;
        check_larger(name, before, size_bytes)?;
        self.call_store(name, VolumeCall::Grow { size_bytes, thin })?;
        let start = Instant::now();
        while size_now() != Some(size_bytes) {
            if let Some(why) = self.grow_refused(open) {
                bail!("{name} was not made larger: {why}");
            }
            if start.elapsed() > GROW_TIMEOUT {
                bail!("{name} has not grown within {GROW_TIMEOUT:?}; see `fieldstone status`");
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Makes a volume larger that a client serves, and waits until it is. With `thin`, also makes
    /// it thin.
    ///
    /// # Errors
    /// As [`RunningPool::grow`], and the client may end or not answer.
    pub fn grow_at_client(&self, known: &Known, size_bytes: u64, thin: bool) -> anyhow::Result<()> {
        let name = &known.name;
        let id = known.id.to_string();
        let report = || {
            let reports = self.client_volumes().reports();
            let found = reports.into_iter().find(|report| report.id == id);
            found.with_context(|| format!("no client serves {name} any more"))
        };
        check_larger(name, report()?.size_bytes, size_bytes)?;
        self.client_volumes().call(known.id, VolumeCall::Grow { size_bytes, thin }.into())?;
        let start = Instant::now();
        loop {
            // At least as new as the client's answer to the call.
            let report = report()?;
            if report.size_bytes == size_bytes {
                return Ok(());
            }
            if !report.grow_refused.is_empty() {
                bail!("{name} was not made larger: {}", report.grow_refused);
            }
            if start.elapsed() > GROW_TIMEOUT {
                bail!("{name} has not grown within {GROW_TIMEOUT:?}; see `fieldstone status`");
            }
            self.client_volumes().wait(Duration::from_secs(1));
        }
    }

    /// The reason why the last growth of an open volume was refused.
    fn grow_refused(&self, open: &OpenDevice) -> Option<String> {
        let snapshot = self.runtime.snapshot();
        let mut devices = snapshot.iter().flat_map(|core| &core.devices);
        let found = devices.find(|found| found.device == open.device)?;
        found.status_of::<VolumeStatus>()?.volume.grow_refused.clone()
    }

    /// Opens a volume, makes it larger and closes it.
    ///
    /// # Errors
    /// As [`RunningPool::open_volume`] and [`RunningPool::grow`].
    pub fn grow_closed(&self, known: &Known, size_bytes: u64, thin: bool) -> anyhow::Result<()> {
        self.runtime.check_not_opening(&self.device_name(&known.name))?;
        let open = self.open_volume(known, &VolumeOptions::offline(), OpenWait::default())?;
        let grown = self.grow(&open, size_bytes, thin);
        let closed = self.close(&open);
        grown.and(closed)
    }

    /// Removes the volume of this name and all its data from every node.
    ///
    /// # Errors
    /// There is no such volume, or it is in use. Or a node is down and `force` is not given: that
    /// node would bring the volume back.
    pub fn remove_volume(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let listing = self.list_volumes()?;
        // A volume that a client has made unreadable has no other way to go.
        let (id, epoch) = match listing.find_hidden(name) {
            Some((id, hidden)) if listing.find(name).is_none() => (id, hidden.epoch),
            _ => {
                let known = self.find_in(&listing, name)?;
                (known.id, known.epoch)
            }
        };
        if self.open_volumes().iter().any(|open| open.volume == Some(id)) {
            bail!("the volume {name:?} is being served; stop serving it first");
        }
        self.runtime.check_not_opening(&self.device_name(name))?;
        // A client may have a capability for a later epoch than the nodes know.
        let registry = Registry::read(&self.pool.folder, self.pool.id)?;
        let granted = registry.highest_epoch(id).unwrap_or_default();
        let removal = Removal { epoch: epoch.max(granted), takeover: false, force };
        self.remove_from_nodes(id, name, removal)
            .map_err(|error| self.name_client(error, id, epoch))?;
        self.client_volumes.end_volume(id);
        admission::change(&self.pool.folder, self.pool.id, |registry| {
            registry.note_removed(id);
            Ok(())
        })
    }

    fn remove_from_nodes(&self, id: VolumeId, name: &str, how: Removal) -> anyhow::Result<()> {
        let Removal { epoch, takeover, force } = how;
        let pool = &self.pool;
        let capability = || self.capability(id, Epoch(epoch.0 + 1));
        let mut sessions = Vec::new();
        // Fences all nodes before any node removes data. So a volume that is in use stays whole.
        for node in pool.node_indices() {
            let fence = || -> Result<NodeSession, anyhow::Error> {
                let mut session = self.node_session(node)?;
                match session.ask(capability(), &RequestBody::Fence { takeover }) {
                    // A damaged record cannot be fenced, but it can be removed.
                    Ok(_) | Err(SessionError::Refused { source: NodeError::Io(_), .. }) => {
                        Ok(session)
                    }
                    Err(error) => Err(error.into()),
                }
            };
            let error = match fence() {
                Ok(session) => {
                    sessions.push((node, session));
                    continue;
                }
                Err(error) => error,
            };
            if !matches!(error.downcast_ref(), Some(SessionError::Unreachable { .. })) {
                return Err(error).with_context(|| format!("cannot remove {name:?}: {node}"));
            }
            if !force {
                return Err(error).with_context(|| {
                    format!(
                        "cannot remove {name:?} from {node}; bring the node back, or pass --force"
                    )
                });
            }
            eprint_line!("fieldstone: leaving {node} out: {error:#}");
        }
        let mut failed = None;
        for (node, session) in &mut sessions {
            // If one node fails, the others still remove the volume.
            if let Err(error) = session.ask(capability(), &RequestBody::RemoveVolume) {
                let error = anyhow::Error::from(error);
                failed = failed.or(Some(
                    error.context(format!("cannot remove {name:?} from {node}; remove it again")),
                ));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
