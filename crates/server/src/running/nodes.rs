//! Finds a pool's nodes: in this process or in another process.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fieldstone_host::{
    FOLDERS_TIMEOUT, FolderError, LocalNodeConfig, LocalNodeId, NodePlace, NodeRegistry,
    NodeSession, Opening, folder,
};
use fieldstone_proto::disk::Superblock;
use fieldstone_proto::{Capability, CapabilityKey, Epoch, NodeIndex, Rights, VolumeId};
use fieldstone_uring::{Address, Endpoint, Holder};

use super::RunningPool;
use super::folders::{PendingFolder, lock_in_order};
use crate::pool::{Pool, PoolRegistry};
use crate::runtime::RuntimeOptions;

/// How long a capability of a command is valid. A command makes a capability for each conversation
/// with a node, which takes seconds. The rest of the time is for clocks that differ, as with the
/// capabilities of volumes.
const CAPABILITY_LIFETIME: Duration = Duration::from_secs(3600);

/// A node at a given address.
#[derive(Clone, Debug)]
pub struct FixedNode {
    /// The node.
    pub node: NodeIndex,
    /// The address at which it listens.
    pub address: Address,
}

impl FromStr for FixedNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, address) =
            text.split_once('=').ok_or("write I=ADDR, for example 3=tcp:10.0.0.5:7000")?;
        let node = node.parse().map_err(|_| format!("{node:?} is not the number of a node"))?;
        let address = address.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { node: NodeIndex(node), address })
    }
}

/// The nodes of a pool that were found, in order.
pub(crate) struct DiscoveredNodes {
    pub places: Vec<NodePlace>,
    pub names: Vec<String>,
}

impl Pool {
    /// The superblock that the pool expects at a node. Its incarnation is random: a node that is
    /// made here gets it.
    pub fn superblock(&self, node: NodeIndex) -> Superblock {
        Superblock {
            pool: self.id,
            node,
            nodes: self.nodes,
            incarnation: folder::random(),
            key: self.keys.get().origin(),
            slot_bytes: self.layout.slot_bytes,
            slots: self.layout.slots,
            code: self.profile.to_string(),
        }
    }

    /// How to open a node's folder, without making a node. The pool's record gets the result.
    ///
    /// # Errors
    /// `pool.json` cannot be examined.
    pub fn opening(&self, node: NodeIndex, holder: Holder) -> anyhow::Result<Opening> {
        let registry = Arc::new(PoolRegistry::new(self, Vec::new())?);
        Ok(self.opening_with(node, holder, registry, false))
    }

    fn opening_with(
        &self,
        node: NodeIndex,
        holder: Holder,
        registry: Arc<dyn NodeRegistry>,
        replace_missing: bool,
    ) -> Opening {
        Opening {
            path: self.node_folder(node),
            expected: self.superblock(node),
            keys: self.keys.clone(),
            holder,
            registry: Some(registry),
            replace_missing,
        }
    }
}

/// Finds all nodes of a pool. Opens the folders of nodes that run in this process, and adds them to
/// `local`.
pub(crate) fn open(
    pool: &Pool,
    options: &RuntimeOptions,
    local: &mut Vec<LocalNodeConfig>,
) -> anyhow::Result<DiscoveredNodes> {
    for fixed in &options.fixed {
        if fixed.node.0 >= pool.nodes {
            bail!(
                "the pool {} has no {}: its nodes are 0 to {}",
                pool.folder.display(),
                fixed.node,
                pool.nodes - 1
            );
        }
    }
    let elsewhere = options.fixed.iter().map(|fixed| fixed.node).collect();
    let registry: Arc<dyn NodeRegistry> = Arc::new(PoolRegistry::new(pool, elsewhere)?);
    let start = |node: NodeIndex| -> anyhow::Result<NodeLocation> {
        if let Some(fixed) = options.fixed.iter().find(|fixed| fixed.node == node) {
            return Ok(NodeLocation::Fixed(fixed.address.clone()));
        }
        let (registry, replace) = (Arc::clone(&registry), options.replace_missing);
        let opening = pool.opening_with(node, options.holder, registry, replace);
        Ok(NodeLocation::Folder(Box::new(PendingFolder::start(opening)?)))
    };
    let mut locations =
        pool.node_indices().map(start).collect::<anyhow::Result<Vec<NodeLocation>>>()?;
    let deadline =
        lock_in_order(locations.iter_mut().filter_map(NodeLocation::folder), FOLDERS_TIMEOUT);
    let mut found = DiscoveredNodes { places: Vec::new(), names: Vec::new() };
    for (node, location) in pool.node_indices().zip(locations) {
        match location {
            NodeLocation::Fixed(address) => {
                let endpoint = Endpoint::resolve(&address).with_context(|| format!("{node}"))?;
                found.places.push(NodePlace::At(Box::new(endpoint)));
                found.names.push(address.to_string());
            }
            NodeLocation::Folder(folder) => found.take(node, *folder, deadline, local)?,
        }
    }
    Ok(found)
}

/// The place at which to look for a node.
enum NodeLocation {
    /// The address of the node.
    Fixed(Address),
    /// The folder of the node.
    Folder(Box<PendingFolder>),
}

impl NodeLocation {
    fn folder(&mut self) -> Option<&mut PendingFolder> {
        match self {
            Self::Folder(folder) => Some(&mut **folder),
            Self::Fixed(_) => None,
        }
    }
}

impl DiscoveredNodes {
    /// Waits for a folder and adds its node. Reports on stderr if the node is down or was made.
    fn take(
        &mut self,
        node: NodeIndex,
        folder: PendingFolder,
        deadline: Instant,
        local: &mut Vec<LocalNodeConfig>,
    ) -> anyhow::Result<()> {
        let path = folder.path().to_path_buf();
        let config = match folder.finish(deadline) {
            Err(FolderError::Node { address, .. }) => {
                self.places.push(NodePlace::Announced(path));
                self.names.push(address.to_string());
                return Ok(());
            }
            // The node process may be waiting for its disk. Later it announces its address.
            Err(FolderError::InUse { holder: Some(Holder::Node), pid, .. }) => {
                let pid = pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string());
                eprint_line!("fieldstone: {node}: process {pid} runs it, and does not listen yet");
                self.names.push(path.display().to_string());
                self.places.push(NodePlace::Announced(path));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
            Ok(config) => config,
        };
        match &config.folder {
            Err(error) => eprint_line!("fieldstone: {node} is down: {error}"),
            Ok(folder) if folder.created => eprint_line!(
                "fieldstone: {} was missing; made an empty node there: its shards will be rebuilt",
                path.display()
            ),
            Ok(_) => {}
        }
        self.names.push(path.display().to_string());
        let number = u32::try_from(local.len()).context("too many nodes")?;
        self.places.push(NodePlace::Here(LocalNodeId { number, index: node }));
        local.push(config);
        Ok(())
    }
}

/// How long a node may take to accept a connection, and how long for each answer.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most nodes that [`RunningPool::ask_nodes`] asks at a time.
pub const NODES_AT_A_TIME: usize = 16;

impl RunningPool {
    /// Connects to a node for requests that do not belong to an open volume.
    ///
    /// # Errors
    /// The node does not exist or does not answer.
    pub fn node_session(&self, node: NodeIndex) -> anyhow::Result<NodeSession> {
        let place = self.places.get(usize::from(node.0)).context("no such node")?;
        Ok(NodeSession::connect(self.runtime.handle(), node, place, NODE_TIMEOUT)?)
    }

    /// Makes a capability for requests to nodes, for `volume` or for no volume (0). The capability
    /// expires after `CAPABILITY_LIFETIME`, so make a new one for each conversation.
    pub fn capability(&self, volume: VolumeId, epoch: Epoch) -> Capability {
        Self::capability_of(&self.pool.keys.get().derive(volume, epoch), volume, epoch)
    }

    /// The same, signed with this key.
    pub(crate) fn capability_of(key: &CapabilityKey, volume: VolumeId, epoch: Epoch) -> Capability {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let expires = now.saturating_add(CAPABILITY_LIFETIME).as_nanos();
        let expires_ns = u64::try_from(expires).unwrap_or(u64::MAX);
        Capability::issue(key, volume, epoch, Rights::ALL, expires_ns)
    }

    /// Asks up to [`NODES_AT_A_TIME`] nodes at the same time, then the next nodes. So a silent node
    /// does not delay the other nodes of its group.
    pub fn ask_nodes<T: Send>(
        &self,
        ask: impl Fn(NodeIndex, &mut NodeSession) -> anyhow::Result<T> + Sync,
    ) -> Vec<(NodeIndex, anyhow::Result<T>)> {
        let nodes: Vec<NodeIndex> = self.pool.node_indices().collect();
        let one = |node: NodeIndex| {
            let mut session = self.node_session(node)?;
            ask(node, &mut session)
        };
        let mut answers = Vec::new();
        for some in nodes.chunks(NODES_AT_A_TIME) {
            std::thread::scope(|scope| {
                let asked: Vec<_> =
                    some.iter().map(|node| (*node, scope.spawn(|| one(*node)))).collect();
                for (node, thread) in asked {
                    let answer = thread.join();
                    let answer = answer.unwrap_or_else(|_| bail!("the call to {node} failed"));
                    answers.push((node, answer));
                }
            });
        }
        answers
    }
}
