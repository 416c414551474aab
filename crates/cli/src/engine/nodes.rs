//! Finding a pool's nodes: in this process, in another one, or not at all.

use std::time::Duration;

use anyhow::{Context, bail};
use fieldstone_proto::disk::Superblock;
use fieldstone_proto::{
    Capability, Epoch, NodeIndex, NodeStat, ReplyBody, RequestBody, Rights, VolumeId,
};
use fieldstone_uring::host::{
    FolderError, LocalNodeConfig, NodePlace, NodeSession, Opening, folder,
};
use fieldstone_uring::{Address, Endpoint};

use super::{Engine, EngineOptions};
use crate::pool::Pool;

/// A node at a given address.
#[derive(Clone, Debug)]
pub struct FixedNode {
    /// Which node.
    pub node: NodeIndex,
    /// Where it listens.
    pub address: Address,
}

/// What to do about a node whose folder is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingNode {
    /// Make an empty node in its place, so that its shards can be rebuilt.
    Replace,
    /// Nothing: it is down.
    Leave,
}

/// What was found.
pub(super) struct Found {
    pub local: Vec<LocalNodeConfig>,
    pub places: Vec<NodePlace>,
    pub names: Vec<String>,
}

/// How a node answered, or why it did not.
#[derive(Clone, Debug)]
pub struct NodeSight {
    /// The node.
    pub node: NodeIndex,
    /// What it says about itself.
    pub stat: Result<NodeStat, String>,
}

impl Pool {
    /// Who the node at a place is; an empty one, with a fresh incarnation.
    ///
    /// # Errors
    /// Never in practice.
    pub fn superblock(&self, node: NodeIndex) -> anyhow::Result<Superblock> {
        Ok(Superblock {
            pool: self.id,
            node,
            nodes: self.nodes,
            incarnation: folder::random(),
            key: self.key,
            slot_bytes: self.layout.slot_bytes,
            slots: self.layout.slots,
            code: self.profile.to_string(),
        })
    }

    /// How the folder of a node is opened.
    ///
    /// # Errors
    /// Never in practice.
    pub fn opening(&self, node: NodeIndex, missing: MissingNode) -> anyhow::Result<Opening> {
        Ok(Opening {
            path: self.node_folder(node),
            expected: self.superblock(node)?,
            create: missing == MissingNode::Replace,
        })
    }
}

/// Opens what is here and finds what is elsewhere.
pub(super) fn open(pool: &Pool, options: &EngineOptions) -> anyhow::Result<Found> {
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
    let mut found = Found { local: Vec::new(), places: Vec::new(), names: Vec::new() };
    for node in pool.node_indices() {
        let fixed = options.fixed.iter().find(|fixed| fixed.node == node);
        if let Some(FixedNode { address, .. }) = fixed {
            let endpoint = Endpoint::resolve(address).with_context(|| format!("{node}"))?;
            found.places.push(NodePlace::At(Box::new(endpoint)));
            found.names.push(address.to_string());
            continue;
        }
        let opening = pool.opening(node, options.missing)?;
        let path = opening.path.clone();
        found.names.push(path.display().to_string());
        let folder = match opening.run() {
            Err(FolderError::Node { address, .. }) => {
                found.places.push(NodePlace::Announced(path));
                if let Some(name) = found.names.last_mut() {
                    *name = address.to_string();
                }
                continue;
            }
            Err(error @ FolderError::InUse { .. }) => return Err(error.into()),
            Err(error) => {
                eprintln!("fieldstone: {node} is down: {error}");
                Err(error.to_string())
            }
            Ok(folder) => {
                if folder.created {
                    eprintln!(
                        "fieldstone: {} was missing; made it anew, empty: its shards will be rebuilt",
                        path.display()
                    );
                }
                Ok(folder)
            }
        };
        found.local.push(LocalNodeConfig { opening, folder });
        found.places.push(NodePlace::Here);
    }
    Ok(found)
}

impl Engine {
    /// Connects to a node, to ask it things that no volume asks.
    ///
    /// # Errors
    /// When it is down.
    pub fn node_session(&self, node: NodeIndex) -> anyhow::Result<NodeSession> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let place = self.places.get(usize::from(node.0)).context("no such node")?;
        Ok(NodeSession::connect(&self.handle, node, place, PATIENCE)?)
    }

    /// A capability for what is asked of nodes on behalf of a volume, or of none.
    ///
    /// # Errors
    /// When there is no pool.
    pub fn capability(&self, volume: VolumeId, epoch: Epoch) -> anyhow::Result<Capability> {
        let key = self.pool()?.key.derive(volume, epoch);
        Ok(Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX))
    }

    /// Asks every node who it is.
    ///
    /// # Errors
    /// When there is no pool.
    pub fn see_nodes(&self) -> anyhow::Result<Vec<NodeSight>> {
        let capability = self.capability(VolumeId(0), Epoch(0))?;
        let sights = self.pool()?.node_indices().map(|node| {
            let ask = || -> anyhow::Result<NodeStat> {
                let mut session = self.node_session(node)?;
                match session.ask(capability, &RequestBody::Stat)? {
                    ReplyBody::Stat(stat) => Ok(stat),
                    other => bail!("{node} answered out of turn: {other:?}"),
                }
            };
            NodeSight { node, stat: ask().map_err(|error| format!("{error:#}")) }
        });
        Ok(sights.collect())
    }
}
