//! Parity that data nodes pass on: the write flow of DeLiBA-2 (section 5.3, Figure 10).
//!
//! With `encode: Client` the world makes the parity. If the volume replicates as *primary*, it
//! sends the parity of rows and of complete shards to data nodes, and these pass it on to the
//! parity nodes, all at the same time. A data node answers when its own shard is in its file and
//! each of its parity nodes has answered or is given up. The volume still sends all k + m shards,
//! but to the k data nodes only.
//!
//! - *Groups.* In the paper's figure one data node serves all parity nodes. Here data shard j
//!   passes on the parity shards k + j, k + j + k and so on. So with k = 1 one data node serves
//!   all, and with more data shards the work is spread. A data shard and its parity shards are a
//!   *group*, and go in one message ([`fieldstone_proto::Content::Parts`]).
//! - *When.* A group goes in one message while the volume serves, all nodes of the group are up,
//!   the data node reaches the others, and these have confirmed the volume's pass
//!   ([`relay`](crate::relay)). The message must also be short enough. Otherwise the volume sends
//!   each shard of this group itself, and other groups go on.
//! - *Waiting for parity.* A data shard of a group goes with its parity, so it waits until the
//!   world has made this. A data shard without parity to pass on goes at once.
//! - *What is carried.* Rows of large writes (`rows`), and complete shards of segments of data
//!   (`seal`). The rest of a segment with rows, checkpoints, rebuilds and openings are not.
//! - *Failures* are those of [`relay_shards`](crate::relay_shards). A data node whose connection
//!   ends with a group gets none for a while, longer after each time: a process of an older release
//!   does not know these messages, and closes the connection.

use fieldstone_proto::route::REPLICAS_MAX;
use fieldstone_proto::{Content, Encode, NodeIndex, PAYLOAD_BYTES_MAX, Route, Strategy};
use smallvec::SmallVec;

use crate::core::VolumeCore;
use crate::relay::{NewForm, Reach};

/// The numbers of a group's shards: a data shard, then the parity shards that its node passes on.
pub type Group = SmallVec<[usize; 3]>;

/// The groups of a code with k data shards and m parity shards.
fn groups(k: usize, m: usize) -> Vec<Group> {
    let parity = |data: usize| (k..k + m).filter(move |shard| (shard - k) % k == data);
    (0..k.min(m)).map(|data| std::iter::once(data).chain(parity(data)).collect()).collect()
}

impl VolumeCore {
    /// The groups of this volume's shards; none if no data node passes parity on.
    pub fn groups(&self) -> Vec<Group> {
        let carries = self.config.replicate == Strategy::Primary
            && self.config.encode == Encode::Client
            && !self.has_copies();
        let layout = self.shape.layout();
        let k = layout.k as usize;
        if carries { groups(k, layout.width() - k) } else { Vec::new() }
    }

    /// The groups that can go in one message each now, with pieces of `part_bytes` for shards on
    /// these nodes, by shard. Announces passes that this needs.
    pub fn groups_with_routes(&mut self, nodes: &[NodeIndex], part_bytes: usize) -> Vec<Group> {
        let mut groups = self.groups();
        groups.retain(|group| {
            let nodes: SmallVec<[NodeIndex; 8]> = group.iter().map(|shard| nodes[*shard]).collect();
            self.route_of_group(&nodes, part_bytes).is_some()
        });
        groups
    }

    /// The route of a group with pieces of `part_bytes` from its data node, which comes first, to
    /// the parity nodes, if there is one now. Announces passes that it needs.
    pub fn route_of_group(&mut self, nodes: &[NodeIndex], part_bytes: usize) -> Option<Route> {
        let possible = self.life.serves()
            && (2..=REPLICAS_MAX).contains(&nodes.len())
            && nodes.len() * part_bytes <= PAYLOAD_BYTES_MAX;
        if !possible || !nodes.iter().all(|node| self.may_relay(*node)) {
            return None;
        }
        let (head, others) = nodes.split_first()?;
        let here = |node: &NodeIndex| self.node(*node).relay.reach == Reach::Here;
        // A node of another process reaches no node of this one.
        if !self.may_get(*head, NewForm::Parts) || (!here(head) && others.iter().any(here)) {
            return None;
        }
        if !self.are_admitted(others) {
            return None;
        }
        let replicas = nodes.iter().map(|node| self.replica(*node)).collect();
        let (strategy, content, wait_ms) =
            (Strategy::Primary, Content::Parts, self.route_wait_ms());
        Some(Route { strategy, rank: 0, wait_ms, replicas, content, ..Route::default() })
    }
}

#[cfg(test)]
mod tests;
