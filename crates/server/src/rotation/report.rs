//! Which secrets of a pool a process and the nodes that it reaches have.

use fieldstone_host::{NodeSession, SessionError, VolumeStatus};
use fieldstone_proto::{
    Capability, CapabilityError, Epoch, KeyGeneration, MasterKey, NodeError, NodeIndex, PoolKeys,
    RequestBody, Rights, Rotation, VolumeId,
};
use serde::{Deserialize, Serialize};

use super::watch::refresh;
use crate::admission::{Grant, Registry};
use crate::pool::record;
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
    /// It is of a release that knows no generations of secrets.
    Outdated,
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
    /// The client of the pool that has it open; `None` for this process.
    #[serde(default)]
    pub client: Option<String>,
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
        let mut volumes = self.volume_keys();
        volumes.extend(self.client_keys());
        let nodes = answers.into_iter().map(|(node, answer)| node_keys(node, answer)).collect();
        Ok(KeysReport {
            pid: std::process::id(),
            oldest: keys.oldest().0.0,
            newest: keys.newest().0.0,
            issuing: keys.issuing().0.0,
            nodes,
            volumes,
        })
    }

    /// What clients of the pool may still use. A client that closes its volume, or that is told of
    /// a new secret, says so; of another one, the last capability expires.
    fn client_keys(&self) -> Vec<VolumeKeys> {
        // The lock, because a service may be about to note what it signs with the secret of before.
        let read = || {
            let _locked = record::lock_pool(&self.pool.folder)?;
            Registry::read(&self.pool.folder, self.pool.id)
        };
        let registry = match read() {
            Ok(registry) => registry,
            Err(error) => {
                let client = Some(format!("(which one is not known: {error:#})"));
                return vec![VolumeKeys {
                    volume: "of any name".to_owned(),
                    client,
                    generation: 0,
                }];
            }
        };
        // What a retired secret signed is refused already.
        let accepted = self.pool.keys.get().oldest().0;
        let oldest = |grant: &Grant| {
            let in_use = grant.generations().filter(|generation| *generation >= accepted);
            let generation = in_use.min()?.0;
            let (volume, client) = (grant.name.clone(), Some(grant.client.clone()));
            Some(VolumeKeys { volume, client, generation })
        };
        registry.grants().iter().filter_map(oldest).collect()
    }

    fn volume_keys(&self) -> Vec<VolumeKeys> {
        let cores = self.runtime().handle().snapshot(true);
        let devices = cores.iter().flat_map(|core| &core.devices);
        let of_pool = devices.filter_map(|device| {
            let name = self.runtime().name_of(device.device)?;
            let status = device.status_of::<VolumeStatus>()?;
            let generation = status.volume.key_generation.0;
            let client = None;
            (name.pool == Some(self.pool.id)).then_some(VolumeKeys {
                volume: name.name,
                client,
                generation,
            })
        });
        of_pool.collect()
    }

    /// Asks a node with capabilities of the generations in question.
    fn ask_for_keys(
        session: &mut NodeSession,
        keys: &PoolKeys,
        retired: bool,
    ) -> anyhow::Result<Verdict> {
        let (none, epoch) = (VolumeId(0), Epoch(0));
        let key = keys.derive_for(keys.newest().0, none, epoch)?;
        let capability = Self::capability_of(&key, none, epoch);
        match session.ask(capability, &RequestBody::Stat) {
            Ok(_) => {}
            Err(SessionError::Refused { source: NodeError::Capability(error), .. }) => {
                return Ok(Verdict::Behind(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        // The node looks at the generation before the signature, so the signature does not matter.
        let mut refusal = |generation| match session
            .ask(unsigned(KeyGeneration(generation)), &RequestBody::Stat)
        {
            Ok(_) => Ok(None),
            Err(SessionError::Refused { source, .. }) => Ok(Some(source)),
            Err(error) => Err(error),
        };
        // Once a rotation is under way, nodes may know more than this process.
        let settled = keys.rotation() == Rotation::Settled;
        if let Some(next) = keys.newest().0.0.checked_add(1).filter(|_| settled)
            && let outdated @ Verdict::Outdated = of_next(refusal(next)?.as_ref())
        {
            return Ok(outdated);
        }
        match keys.oldest().0.0.checked_sub(1).filter(|_| retired) {
            Some(before) => Ok(of_retired(before, refusal(before)?.as_ref())),
            None => Ok(Verdict::Current),
        }
    }
}

/// What a node's answers show.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Current,
    /// With the reason.
    Behind(String),
    Outdated,
}

/// What it shows how a node refused a capability of the generation after the newest one. Releases
/// that know no generations look at the signature only.
fn of_next(refusal: Option<&NodeError>) -> Verdict {
    match refusal {
        Some(NodeError::Capability(CapabilityError::Forged)) => Verdict::Outdated,
        _ => Verdict::Current,
    }
}

/// What it shows how a node refused a capability of a retired generation.
fn of_retired(generation: u16, refusal: Option<&NodeError>) -> Verdict {
    match refusal {
        Some(NodeError::Capability(CapabilityError::Retired)) => Verdict::Current,
        _ => Verdict::Behind(format!("it still accepts the secret of generation {generation}")),
    }
}

/// A capability that names a generation, and for which no right comes from its signature.
fn unsigned(generation: KeyGeneration) -> Capability {
    let key = MasterKey([0; 16]).derive(VolumeId(0), Epoch(0));
    let rights = Rights(0).of_generation(generation);
    let capability = Capability::issue(&key, VolumeId(0), Epoch(0), Rights(0), 0);
    Capability { rights, ..capability }
}

fn node_keys(node: NodeIndex, answer: anyhow::Result<Verdict>) -> NodeKeys {
    let (state, reason) = match answer {
        Ok(Verdict::Current) => (NodeKeyState::Current, String::new()),
        Ok(Verdict::Behind(reason)) => (NodeKeyState::Behind, reason),
        Ok(Verdict::Outdated) => (
            NodeKeyState::Outdated,
            "its process is of an older release, or has later secrets than pool.key".to_owned(),
        ),
        Err(error) => (NodeKeyState::Down, format!("{error:#}")),
    };
    NodeKeys { node: node.0, state, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release without generations takes the high bits of the rights for rights, and refuses what
    /// no secret signed. A release with generations looks at them first.
    #[test]
    fn a_node_of_an_older_release_is_known_by_its_refusal() {
        let refused = |error| Some(NodeError::Capability(error));
        let unknown = refused(CapabilityError::UnknownGeneration);
        let forged = refused(CapabilityError::Forged);
        assert_eq!(of_next(unknown.as_ref()), Verdict::Current);
        assert_eq!(of_next(forged.as_ref()), Verdict::Outdated);
        let found = node_keys(NodeIndex(3), Ok(Verdict::Outdated));
        assert_eq!((found.node, found.state), (3, NodeKeyState::Outdated));
        assert!(found.reason.contains("older release"), "{}", found.reason);
        assert_eq!(of_retired(4, refused(CapabilityError::Retired).as_ref()), Verdict::Current);
        for other in [None, forged, unknown] {
            assert!(matches!(of_retired(4, other.as_ref()), Verdict::Behind(_)));
        }
    }
}
