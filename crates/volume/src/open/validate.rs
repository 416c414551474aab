//! Decides which listed shards are valid when a volume is opened.
//!
//! A node lists its slot headers. A header does not prove that the data is valid. The header of a
//! shard that was not synced may have survived a power loss without its data. A shard that was
//! found damaged and rebuilt on another node is still there if its node was away, or if the power
//! failed before its deletion was stable. Only the earlier writer knew which shards were valid, so
//! the next writer verifies them. Otherwise it could take a damaged segment for whole, and the next
//! loss of a node would lose data.
//!
//! So the checkpoint *names* the node of every shard that was known to be stable when the
//! checkpoint was written. A listed copy of a shard is *proven* if the checkpoint names it, no
//! other node lists the same shard, and its node lists no other shard of the segment. Every other
//! copy is *unproven*: the opening takes it as valid only after its node has verified it. No
//! checkpoint names the segments after it, so all their shards are unproven. If two copies of a
//! shard are good, the named one is valid: the header of the other may be wrong, although its data
//! fit it.
//!
//! A node may list two shards of a segment: one was deleted there, and its header came back. Only
//! one of them counts, the named one if it is good. The segment is to survive the loss of m nodes,
//! and the node cannot delete one of the two alone. Both count only if the segment is unreadable
//! otherwise.
//!
//! The opening deletes invalid copies: stably before it commits, or after that if the copy may hold
//! rows of a segment that the journal still backs (`copies`). If too few good shards are left to
//! read a segment, all copies stay: some of their blocks may still be good.
//!
//! The names alone are not enough: a shard may rot on the node that the checkpoint names. While the
//! volume serves, `damage` makes sure that a bad shard is gone before the volume is whole again.

use std::collections::BTreeMap;

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId, ShardIndex, ShardInfo};

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::segment::{Segment, SegmentIndex};

/// Most verifications in flight.
const VERIFIES_MAX: usize = 64;

/// The shards that nodes list, by segment.
pub type Listed = BTreeMap<SegmentId, Vec<(NodeIndex, ShardInfo)>>;

/// A copy of a shard on one node's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCopy {
    handle: SegmentIndex,
    segment: SegmentId,
    shard: ShardIndex,
    node: NodeIndex,
}

impl VolumeCore {
    /// The listed copies of a segment's shards that are valid only if their nodes verify them.
    pub fn unproven(
        &self,
        handle: SegmentIndex,
        listed: &[(NodeIndex, ShardInfo)],
        named: &[Option<NodeIndex>],
    ) -> Vec<ShardCopy> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        unproven(segment, listed, named)
            .into_iter()
            .map(|(shard, node)| ShardCopy { handle, segment: segment.id, shard, node })
            .collect()
    }

    /// Takes the results on all unproven copies of one segment. Returns how many shards are good.
    fn apply_results(&mut self, results: &[(ShardCopy, bool)]) -> usize {
        let k = self.shape.code().k();
        let Some((copy, _)) = results.first() else { return 0 };
        let Some(segment) = self.segments.get_mut(copy.handle) else { return 0 };
        let mut shards = segment.shards.clone();
        for (copy, _) in results {
            shards[usize::from(copy.shard.0)] = None;
        }
        let copies: Vec<(usize, NodeIndex)> = (results.iter().filter(|(_, good)| *good))
            .map(|(copy, _)| (usize::from(copy.shard.0), copy.node))
            .collect();
        add_copies(&mut shards, &copies, k);
        let good = shards.iter().flatten().count();
        if good >= k {
            segment.shards = shards;
        }
        good
    }
}

fn unproven(
    segment: &Segment,
    listed: &[(NodeIndex, ShardInfo)],
    named: &[Option<NodeIndex>],
) -> Vec<(ShardIndex, NodeIndex)> {
    let fits: Vec<(ShardIndex, NodeIndex)> = listed
        .iter()
        .filter(|(_, info)| segment.fits(info))
        .map(|(node, info)| (info.shard, *node))
        .collect();
    let is_named = |(shard, node): &(ShardIndex, NodeIndex)| {
        named.get(usize::from(shard.0)) == Some(&Some(*node))
    };
    let several = |node: NodeIndex| fits.iter().filter(|(_, other)| *other == node).count() > 1;
    let proven = |copy: &(ShardIndex, NodeIndex)| {
        let copies = fits.iter().filter(|(other, _)| *other == copy.0).count();
        copies == 1 && is_named(copy) && !several(copy.1)
    };
    let mut unproven: Vec<_> = fits.iter().filter(|copy| !proven(copy)).copied().collect();
    // The first good copy of a shard is valid. Of a node with several shards, any may count.
    unproven.sort_by_key(|copy| (!is_named(copy), several(copy.1)));
    unproven
}

/// Adds good copies to the shards of a segment. A node counts for one shard. Only if fewer than `k`
/// shards are there otherwise, nodes count for more.
fn add_copies(shards: &mut [Option<NodeIndex>], copies: &[(usize, NodeIndex)], k: usize) {
    for (shard, node) in copies {
        if !shards.contains(&Some(*node)) {
            shards[*shard].get_or_insert(*node);
        }
    }
    for (shard, node) in copies {
        if shards.iter().flatten().count() < k {
            shards[*shard].get_or_insert(*node);
        }
    }
}

/// Verifies unproven copies. Keeps only the good ones in the table of segments, if these are enough
/// to read the segment. Copies of one segment are next to each other in `copies`. Returns the
/// number of good shards for each segment that has such copies.
///
/// # Errors
/// A node could not verify now. The error names the node and the reason.
pub async fn verify_copies(
    ctx: &Ctx,
    copies: &[ShardCopy],
) -> Result<BTreeMap<SegmentIndex, usize>, (NodeIndex, NodeError)> {
    let mut results = Vec::with_capacity(copies.len());
    for copies in copies.chunks(VERIFIES_MAX) {
        let calls = ctx.with(|core| {
            let verify = |copy: &ShardCopy| {
                let (segment, shard) = (copy.segment, copy.shard);
                core.call(copy.node, RequestBody::ShardVerify { segment, shard }, Vec::new())
            };
            copies.iter().map(verify).collect()
        });
        let answers = fieldstone_tasks::all(calls).await;
        for (copy, answer) in copies.iter().zip(answers) {
            let good = is_valid(answer).map_err(|error| (copy.node, error))?;
            results.push((*copy, good));
        }
    }
    Ok(ctx.with(|core| {
        let segments = results.chunk_by(|a, b| a.0.handle == b.0.handle);
        segments.map(|some| (some[0].0.handle, core.apply_results(some))).collect()
    }))
}

fn is_valid(answer: CallResult) -> Result<bool, NodeError> {
    match answer {
        Ok(_) => Ok(true),
        Err(NodeError::Corrupt { .. } | NodeError::NotFound | NodeError::Io(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::State;
    use fieldstone_proto::{Lsn, SealMeta, SegmentKind};

    const A: NodeIndex = NodeIndex(0);
    const B: NodeIndex = NodeIndex(1);
    const C: NodeIndex = NodeIndex(2);

    fn segment() -> Segment {
        Segment {
            lsn_end: Lsn(5),
            shard_bytes: 8192,
            ..Segment::new(SegmentId(1), SegmentKind::Data, State::Durable, 2)
        }
    }

    fn info(shard: u8, shard_bytes: u32) -> ShardInfo {
        let meta = SealMeta { shard_bytes, kind: SegmentKind::Data, ..SealMeta::default() };
        ShardInfo { segment: SegmentId(1), shard: ShardIndex(shard), meta }
    }

    #[test]
    fn only_what_is_named_and_listed_once_is_sure() {
        let named = [Some(A), Some(B)];
        let sound = [(A, info(0, 8192)), (B, info(1, 8192))];
        assert_eq!(unproven(&segment(), &sound, &named), vec![]);
        let moved = [(A, info(0, 8192)), (C, info(1, 8192))];
        assert_eq!(unproven(&segment(), &moved, &named), vec![(ShardIndex(1), C)]);
        let twice = [(A, info(0, 8192)), (C, info(0, 8192))];
        let both = vec![(ShardIndex(0), A), (ShardIndex(0), C)];
        assert_eq!(unproven(&segment(), &twice, &named), both);
        let other = [(C, info(0, 8192)), (A, info(0, 8192))];
        assert_eq!(unproven(&segment(), &other, &named), both, "the named one comes first");
        assert_eq!(unproven(&segment(), &sound, &[]).len(), 2, "a chain's segment is not named");
    }

    /// Seed 3873723: a node had two of three copies, one of which a power loss had brought back.
    #[test]
    fn no_copy_of_a_node_with_two_shards_is_sure() {
        let named = [Some(A), Some(B)];
        let listed = [(A, info(0, 8192)), (A, info(1, 8192)), (B, info(1, 8192))];
        let all = vec![(ShardIndex(1), B), (ShardIndex(0), A), (ShardIndex(1), A)];
        assert_eq!(unproven(&segment(), &listed, &named), all);
        let alone = [(A, info(0, 8192)), (A, info(1, 8192))];
        let both = vec![(ShardIndex(1), A), (ShardIndex(0), A)];
        assert_eq!(unproven(&segment(), &alone, &[None, Some(A)]), both, "the named one first");
    }

    #[test]
    fn a_node_counts_for_one_shard_unless_the_segment_is_unreadable_then() {
        let added = |copies: &[(usize, NodeIndex)], k| {
            let mut shards = [None; 3];
            add_copies(&mut shards, copies, k);
            shards
        };
        let copies = [(0, C), (1, A), (2, A)];
        assert_eq!(added(&copies, 1), [Some(C), Some(A), None]);
        assert_eq!(added(&copies, 2), [Some(C), Some(A), None]);
        assert_eq!(added(&copies, 3), [Some(C), Some(A), Some(A)]);
        assert_eq!(added(&[(0, C), (1, A), (2, A), (2, B)], 1), [Some(C), Some(A), Some(B)]);
        assert_eq!(added(&[(0, C), (0, B), (1, B)], 1), [Some(C), Some(B), None]);
    }

    #[test]
    fn what_does_not_fit_the_segment_is_no_form_of_it() {
        let listed = [(A, info(0, 4096)), (B, info(7, 8192)), (C, info(0, 8192))];
        assert_eq!(unproven(&segment(), &listed, &[Some(C), None]), vec![]);
    }
}
