//! Decides which listed shards count when a volume is opened.
//!
//! A node lists the contents of its slot headers, and that proves little. The header of a shard
//! that was not synced may have survived a power loss without its data. A shard that was found
//! damaged and rebuilt on another node is still there if its node was away, or if the power failed
//! before its deletion was stable. The earlier writer knew all that. The next one must not trust
//! such a shard. Otherwise it takes a damaged segment for whole, and the next loss of a node loses
//! data.
//!
//! So the checkpoint *names* the node of every shard that was known to be stable when the
//! checkpoint was written. A listed copy of a shard is *sure* if the checkpoint names it and no
//! other node lists the same shard. Every other copy is *doubtful*: its node verifies it before it
//! counts. No checkpoint names the segments behind it, so all their shards are doubtful. If two
//! copies of a shard are good, the named one counts: the header of the other may be wrong, although
//! its data fit it.
//!
//! The opening deletes copies that do not count: stably before it commits, or after that if the
//! copy may hold rows of a segment that the journal still backs (`copies`). If too few good shards
//! are left to read a segment, all copies stay: some of their blocks may still be good.
//!
//! The names alone are not enough: a shard may rot on the node that the checkpoint names. While the
//! volume serves, `damage` makes sure that a bad shard is gone before the volume is whole again.

use std::collections::BTreeMap;

use fieldstone_proto::{NodeError, NodeIndex, RequestBody, SegmentId, ShardIndex, ShardInfo};

use crate::calls::CallResult;
use crate::core::{Core, Ctx};
use crate::segment::{Handle, Segment};

/// Most verifications in flight.
const VERIFIES_MAX: usize = 64;

/// The shards that nodes list, by segment.
pub type Listed = BTreeMap<SegmentId, Vec<(NodeIndex, ShardInfo)>>;

/// A copy of a shard on one node's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    handle: Handle,
    segment: SegmentId,
    shard: ShardIndex,
    node: NodeIndex,
}

impl Core {
    /// The listed copies of a segment's shards that count only if their nodes verify them.
    pub fn doubtful(
        &self,
        handle: Handle,
        listed: &[(NodeIndex, ShardInfo)],
        named: &[Option<NodeIndex>],
    ) -> Vec<Form> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        doubtful(segment, listed, named)
            .into_iter()
            .map(|(shard, node)| Form { handle, segment: segment.id, shard, node })
            .collect()
    }

    /// Takes the verdicts on all doubtful copies of one segment. Returns how many shards are good.
    fn judge(&mut self, verdicts: &[(Form, bool)]) -> usize {
        let k = self.code.k();
        let Some((form, _)) = verdicts.first() else { return 0 };
        let Some(segment) = self.segments.get_mut(form.handle) else { return 0 };
        let mut shards = segment.shards.clone();
        for (form, _) in verdicts {
            shards[usize::from(form.shard.0)] = None;
        }
        for (form, _) in verdicts.iter().filter(|(_, good)| *good) {
            shards[usize::from(form.shard.0)].get_or_insert(form.node);
        }
        let good = shards.iter().flatten().count();
        if good >= k {
            segment.shards = shards;
        }
        good
    }
}

fn doubtful(
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
    let sure = |form: &(ShardIndex, NodeIndex)| {
        let forms = fits.iter().filter(|(other, _)| *other == form.0).count();
        forms == 1 && is_named(form)
    };
    let mut doubtful: Vec<_> = fits.iter().filter(|form| !sure(form)).copied().collect();
    doubtful.sort_by_key(|form| !is_named(form)); // the first good copy of a shard counts
    doubtful
}

/// Verifies doubtful copies and counts only the good ones. Copies of one segment are next to each
/// other in `forms`. Returns the number of good shards for each segment that has such copies.
///
/// # Errors
/// A node could not verify now. The error names the node and the reason.
pub async fn settle(
    ctx: &Ctx,
    forms: &[Form],
) -> Result<BTreeMap<Handle, usize>, (NodeIndex, NodeError)> {
    let mut verdicts = Vec::with_capacity(forms.len());
    for forms in forms.chunks(VERIFIES_MAX) {
        let calls = ctx.with(|core| {
            let verify = |form: &Form| {
                let (segment, shard) = (form.segment, form.shard);
                core.call(form.node, RequestBody::ShardVerify { segment, shard }, Vec::new())
            };
            forms.iter().map(verify).collect()
        });
        let results = crate::exec::all(calls).await;
        for (form, result) in forms.iter().zip(results) {
            let good = verdict(result).map_err(|error| (form.node, error))?;
            verdicts.push((*form, good));
        }
    }
    Ok(ctx.with(|core| {
        let segments = verdicts.chunk_by(|a, b| a.0.handle == b.0.handle);
        segments.map(|some| (some[0].0.handle, core.judge(some))).collect()
    }))
}

fn verdict(result: CallResult) -> Result<bool, NodeError> {
    match result {
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
    use smallvec::{SmallVec, smallvec};

    const A: NodeIndex = NodeIndex(0);
    const B: NodeIndex = NodeIndex(1);
    const C: NodeIndex = NodeIndex(2);

    fn segment() -> Segment {
        Segment {
            id: SegmentId(1),
            kind: SegmentKind::Data,
            state: State::Durable,
            lsn_first: Lsn(0),
            lsn_end: Lsn(5),
            shard_bytes: 8192,
            shards: smallvec![None; 2],
            live_blocks: 0,
            contents: None,
            rows: None,
            detached: false,
            shelved: false,
            left_on: SmallVec::new(),
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
        assert_eq!(doubtful(&segment(), &sound, &named), vec![]);
        let moved = [(A, info(0, 8192)), (C, info(1, 8192))];
        assert_eq!(doubtful(&segment(), &moved, &named), vec![(ShardIndex(1), C)]);
        let twice = [(A, info(0, 8192)), (C, info(0, 8192))];
        let both = vec![(ShardIndex(0), A), (ShardIndex(0), C)];
        assert_eq!(doubtful(&segment(), &twice, &named), both);
        let other = [(C, info(0, 8192)), (A, info(0, 8192))];
        assert_eq!(doubtful(&segment(), &other, &named), both, "the named one comes first");
        assert_eq!(doubtful(&segment(), &sound, &[]).len(), 2, "a chain's segment is not named");
    }

    #[test]
    fn what_does_not_fit_the_segment_is_no_form_of_it() {
        let listed = [(A, info(0, 4096)), (B, info(7, 8192)), (C, info(0, 8192))];
        assert_eq!(doubtful(&segment(), &listed, &[Some(C), None]), vec![]);
    }
}
