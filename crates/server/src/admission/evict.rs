//! The eviction of a client: it gets no further capability, and those that it has become invalid.

use std::collections::BTreeMap;

use fieldstone_host::{NodeSession, SessionError};
use fieldstone_proto::{Epoch, NodeError, NodeIndex, ReplyBody, RequestBody, VolumeId};
use serde::{Deserialize, Serialize};

use super::{Grant, Registry, change};
use crate::pool::record::{self, Record};
use crate::running::RunningPool;

/// The result of an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// The volumes that were fenced: the client was their last writer.
    pub fenced: Vec<String>,
    /// What could not be fenced.
    pub unfenced: Vec<Unfenced>,
}

/// A node that accepts capabilities of an evicted client until they expire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfenced {
    /// The volume.
    pub volume: String,
    /// The node.
    pub node: u16,
    /// Why the node could not be fenced.
    pub reason: String,
    /// When the last of the capabilities expires, in seconds since 1970.
    pub expires: u64,
}

/// What an eviction did on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnNode {
    /// The node is fenced now.
    Fenced,
    /// The node has a higher epoch than the client, or does not have the volume.
    NotNeeded,
}

impl RunningPool {
    /// Evicts a client: the pool admits it no more, and the volumes that it may have open get
    /// epochs above its own. The command can be repeated, for nodes that did not answer.
    ///
    /// # Errors
    /// There is no such client, or the registry of clients cannot be changed.
    pub fn evict(&self, client: &str) -> anyhow::Result<Evicted> {
        let (folder, pool) = (&self.pool.folder, self.pool.id);
        let grants = change(folder, pool, |all| all.evict(client))?;
        // Several processes of the client may have had the same volume, one after the other.
        let mut volumes: BTreeMap<VolumeId, Vec<Grant>> = BTreeMap::new();
        for grant in grants {
            volumes.entry(grant.volume()?).or_default().push(grant);
        }
        let ids: Vec<String> = volumes.keys().map(ToString::to_string).collect();
        let mut evicted = Evicted::default();
        let mut done = Vec::new();
        for (volume, grants) in volumes {
            let valid = grants.iter().filter(|grant| !grant.is_long_over());
            let is_fenced = match valid.max_by_key(|grant| grant.epoch()) {
                Some(highest) => self.fence(volume, highest, &mut evicted),
                None => true,
            };
            if is_fenced {
                done.extend(grants);
            }
        }
        self.client_volumes().end_client(client);
        // What the client said of its volumes counts for nothing.
        let forget = |record: &mut Record| ids.iter().for_each(|id| record.forget_whole(id));
        record::update(folder, pool, forget)?;
        change(folder, pool, |all: &mut Registry| {
            done.iter().for_each(|grant| all.forget(grant));
            Ok(())
        })?;
        Ok(evicted)
    }

    /// Fences a volume above the highest that a client has. True if no node was left out.
    fn fence(&self, volume: VolumeId, grant: &Grant, evicted: &mut Evicted) -> bool {
        let above = Epoch(grant.epoch().0 + 1);
        let answers = self.ask_nodes(|_, session| self.fence_node(session, volume, above));
        let mut whole = true;
        let mut fenced = false;
        for (NodeIndex(node), answer) in answers {
            match answer {
                Ok(done) => fenced |= done == OnNode::Fenced,
                Err(error) => {
                    whole = false;
                    evicted.unfenced.push(Unfenced {
                        volume: grant.name.clone(),
                        node,
                        reason: format!("{error:#}"),
                        expires: grant.expires,
                    });
                }
            }
        }
        if fenced {
            evicted.fenced.push(grant.name.clone());
        }
        whole
    }

    fn fence_node(
        &self,
        session: &mut NodeSession,
        volume: VolumeId,
        above: Epoch,
    ) -> anyhow::Result<OnNode> {
        let known = session.ask(self.capability(volume, above), &RequestBody::ListVolumes)?;
        let ReplyBody::Volumes(volumes) = known else {
            anyhow::bail!("the node answered out of turn: {known:?}");
        };
        let found = volumes.iter().find(|summary| summary.volume == volume);
        if found.is_some_and(|summary| summary.epoch >= above) {
            return Ok(OnNode::NotNeeded);
        }
        let fence = RequestBody::Fence { takeover: true };
        match session.ask(self.capability(volume, above), &fence) {
            // The client could create the volume on this node. A node remembers the epochs of
            // removed volumes until it restarts.
            Ok(_) if found.is_none() => {
                session.ask(self.capability(volume, above), &RequestBody::RemoveVolume)?;
                Ok(OnNode::NotNeeded)
            }
            Ok(_) => Ok(OnNode::Fenced),
            // Another writer was faster.
            Err(SessionError::Refused { source: NodeError::Fenced { .. }, .. }) => {
                Ok(OnNode::NotNeeded)
            }
            Err(error) => Err(error.into()),
        }
    }
}
