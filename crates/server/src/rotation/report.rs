//! Which secrets of a pool a process and the nodes that it reaches have.

use fieldstone_host::{NodeSession, SessionError, VolumeStatus};
use fieldstone_proto::{
    Capability, CapabilityError, Epoch, KeyGeneration, MasterKey, NodeError, NodeIndex, PoolKeys,
    RequestBody, Rights, VolumeId,
};
use serde::{Deserialize, Serialize};

use super::watch::refresh;
use crate::running::RunningPool;

/// The secrets of a pool as a process has them. Generations are numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// The process.
    pub pid: u32,
    /// The oldest generation that it accepts.
    pub oldest: u16,
    /// The newest generation that it accepts.
    pub newest: u16,
    /// The generation that it signs with.
    pub issuing: u16,
    /// The nodes, as the process sees them.
    pub nodes: Vec<NodeKeys>,
    /// The volumes that the process has open.
    pub volumes: Vec<VolumeKeys>,
}

/// Whether a node has the secrets that the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKeyState {
    /// It accepts the newest generation and, if that was asked, refuses retired ones.
    Current,
    /// It answers, and does not have these secrets yet.
    Behind,
    /// It does not answer.
    Down,
}

/// The secrets of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeKeys {
    /// The node.
    pub node: u16,
    /// Whether it is up to date.
    pub state: NodeKeyState,
    /// Why not; empty if it is.
    #[serde(default)]
    pub reason: String,
}

/// The secrets that the requests of a volume need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeKeys {
    /// The volume.
    pub volume: String,
    /// The oldest generation that signs one of its requests under way, or its next one.
    pub generation: u16,
}

impl RunningPool {
    /// Reads the pool's secrets again, and reports who has them. With `retired`, asks each node
    /// also whether it refuses the generation before the oldest.
    ///
    /// # Errors
    /// The file with the secrets cannot be used, or a core hangs.
    pub fn keys_report(&self, retired: bool) -> anyhow::Result<KeysReport> {
        refresh(&self.pool.folder, &self.pool.keys, self.runtime().handle())?;
        let keys = self.pool.keys.get();
        let answers = self.ask_nodes(|_, session| Self::ask_for_keys(session, &keys, retired));
        let nodes = answers.into_iter().map(|(node, answer)| node_keys(node, answer)).collect();
        Ok(KeysReport {
            pid: std::process::id(),
            oldest: keys.oldest().0.0,
            newest: keys.newest().0.0,
            issuing: keys.issuing().0.0,
            nodes,
            volumes: self.volume_keys(),
        })
    }

    fn volume_keys(&self) -> Vec<VolumeKeys> {
        let cores = self.runtime().handle().snapshot(true);
        let devices = cores.iter().flat_map(|core| &core.devices);
        let of_pool = devices.filter_map(|device| {
            let name = self.runtime().name_of(device.device)?;
            let status = device.status_of::<VolumeStatus>()?;
            let generation = status.volume.key_generation.0;
            (name.pool == Some(self.pool.id))
                .then_some(VolumeKeys { volume: name.name, generation })
        });
        of_pool.collect()
    }

    /// Asks a node with capabilities of the generations in question. `Some` has the reason if the
    /// node is behind.
    fn ask_for_keys(
        session: &mut NodeSession,
        keys: &PoolKeys,
        retired: bool,
    ) -> anyhow::Result<Option<String>> {
        let (none, epoch) = (VolumeId(0), Epoch(0));
        let key = keys.derive_for(keys.newest().0, none, epoch)?;
        let capability = Self::capability_of(&key, none, epoch);
        match session.ask(capability, &RequestBody::Stat) {
            Ok(_) => {}
            Err(SessionError::Refused { source: NodeError::Capability(error), .. }) => {
                return Ok(Some(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        let before = keys.oldest().0.0.checked_sub(1).filter(|_| retired);
        let Some(before) = before else { return Ok(None) };
        // The node looks at the generation before the signature, so the signature does not matter.
        match session.ask(unsigned(KeyGeneration(before)), &RequestBody::Stat) {
            Err(SessionError::Refused {
                source: NodeError::Capability(CapabilityError::Retired),
                ..
            }) => Ok(None),
            Ok(_) | Err(SessionError::Refused { .. }) => {
                Ok(Some(format!("it still accepts the secret of generation {before}")))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A capability that names a generation, and for which no right comes from its signature.
fn unsigned(generation: KeyGeneration) -> Capability {
    let key = MasterKey([0; 16]).derive(VolumeId(0), Epoch(0));
    let rights = Rights(0).of_generation(generation);
    let capability = Capability::issue(&key, VolumeId(0), Epoch(0), Rights(0), 0);
    Capability { rights, ..capability }
}

fn node_keys(node: NodeIndex, answer: anyhow::Result<Option<String>>) -> NodeKeys {
    let (state, reason) = match answer {
        Ok(None) => (NodeKeyState::Current, String::new()),
        Ok(Some(reason)) => (NodeKeyState::Behind, reason),
        Err(error) => (NodeKeyState::Down, format!("{error:#}")),
    };
    NodeKeys { node: node.0, state, reason }
}
