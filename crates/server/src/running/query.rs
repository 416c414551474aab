//! Asks all nodes of a pool for their status and their volumes, with one deadline for all.
//!
//! Reports contain these answers. A silent node delays a report by the timeout of its reader, and
//! does not change the other nodes' part of the report. So a separate thread asks each node. A
//! thread whose node is late goes on without a reader, and ends when its conversation ends.

use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::bail;
use fieldstone_host::{Handle, NodePlace, NodeSession};
use fieldstone_proto::{
    Capability, Epoch, NodeIndex, NodeStat, ReplyBody, RequestBody, VolumeId, VolumeSummary,
};

use super::RunningPool;
use super::listing::Listing;

/// How long the query waits for nodes beyond the timeout. A conversation that ends at its own
/// deadline gives a better reason than this wait.
const GRACE: Duration = Duration::from_millis(200);
/// Stack of a thread that asks a node. The stack is small, because each node has such a thread.
const STACK_BYTES: usize = 256 << 10;

/// The answer of a node to a status request, or the reason why there is none.
#[derive(Clone, Debug)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeIndex,
    /// The status of the node, or the reason.
    pub stat: Result<NodeStat, String>,
}

/// The answers of all nodes of a pool.
pub struct PoolStatus {
    /// The status of each node, in order.
    pub nodes: Vec<NodeAnswer>,
    /// The volumes that the nodes know, or an error if no node answers.
    pub listing: anyhow::Result<Listing>,
}

/// A part of the answer of a node.
enum NodeAnswerPart {
    Stat(NodeIndex, Result<NodeStat, String>),
    Volumes(NodeIndex, Result<Vec<VolumeSummary>, String>),
}

/// The query of one node.
struct NodeQuery {
    node: NodeIndex,
    place: NodePlace,
    capability: Capability,
    timeout: Duration,
}

impl RunningPool {
    /// Asks all nodes at the same time, for at most `timeout` and a moment.
    pub fn query_nodes(&self, timeout: Duration) -> PoolStatus {
        let deadline = Instant::now() + timeout + GRACE;
        let (sender, parts) = mpsc::channel();
        let late = format!("it has not answered within {timeout:?}");
        let mut stats = vec![Err(late.clone()); self.places.len()];
        let mut volumes = vec![Err(late); self.places.len()];
        for (node, place) in self.pool.node_indices().zip(self.places.iter()) {
            let query = NodeQuery {
                node,
                place: place.clone(),
                capability: self.capability(VolumeId(0), Epoch(0)),
                timeout,
            };
            let (handle, sender) = (self.runtime.handle().clone(), sender.clone());
            let thread = std::thread::Builder::new().name("query".to_owned());
            let ask = move || query.ask(&handle, &sender);
            if let Err(error) = thread.stack_size(STACK_BYTES).spawn(ask) {
                let reason = format!("there is no thread to ask it: {error}");
                stats[usize::from(node.0)] = Err(reason.clone());
                volumes[usize::from(node.0)] = Err(reason);
            }
        }
        drop(sender);
        let rest = || deadline.saturating_duration_since(Instant::now());
        // Ends at the deadline, or when every thread has ended.
        while let Ok(part) = parts.recv_timeout(rest()) {
            match part {
                NodeAnswerPart::Stat(node, answer) => stats[usize::from(node.0)] = answer,
                NodeAnswerPart::Volumes(node, answer) => volumes[usize::from(node.0)] = answer,
            }
        }
        let nodes = self.pool.node_indices().zip(stats);
        PoolStatus {
            nodes: nodes.map(|(node, stat)| NodeAnswer { node, stat }).collect(),
            listing: self.listing(self.pool.node_indices().zip(volumes)),
        }
    }
}

impl NodeQuery {
    /// Asks the node, and sends its answers. Late answers are dropped.
    fn ask(self, handle: &Handle, sender: &Sender<NodeAnswerPart>) {
        let node = self.node;
        let session = NodeSession::connect(handle, node, &self.place, self.timeout);
        let mut session = match session {
            Ok(session) => session,
            Err(error) => return Self::failed(node, &error.into(), sender),
        };
        match self.stat(&mut session) {
            Ok(stat) => drop(sender.send(NodeAnswerPart::Stat(node, Ok(stat)))),
            Err(error) => return Self::failed(node, &error, sender),
        }
        let volumes = self.volumes(&mut session).map_err(|error| format!("{error:#}"));
        let _ = sender.send(NodeAnswerPart::Volumes(node, volumes));
    }

    fn failed(node: NodeIndex, error: &anyhow::Error, sender: &Sender<NodeAnswerPart>) {
        let reason = format!("{error:#}");
        let _ = sender.send(NodeAnswerPart::Stat(node, Err(reason.clone())));
        let _ = sender.send(NodeAnswerPart::Volumes(node, Err(reason)));
    }

    fn stat(&self, session: &mut NodeSession) -> anyhow::Result<NodeStat> {
        match session.ask(self.capability, &RequestBody::Stat)? {
            ReplyBody::Stat(stat) => Ok(stat),
            other => bail!("{} answered out of turn: {other:?}", self.node),
        }
    }

    fn volumes(&self, session: &mut NodeSession) -> anyhow::Result<Vec<VolumeSummary>> {
        match session.ask(self.capability, &RequestBody::ListVolumes)? {
            ReplyBody::Volumes(volumes) => Ok(volumes),
            other => bail!("{} answered out of turn: {other:?}", self.node),
        }
    }
}
