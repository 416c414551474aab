//! The wait of an opening for enough connected nodes.
//!
//! An opening needs all nodes of the pool but the tolerated number (`nodes_needed`). It waits a
//! while for the others too: without them it may miss data that only they have.

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use crate::core::{Ctx, VolumeCore};
use crate::failure::{VolumeFailure, reasons_in_brackets};

/// Waits until enough nodes are connected to open the volume, besides those that the opening leaves
/// out. If too few nodes remain without these, each of them gets another chance. If too few are
/// connected in time, nodes that answered too late get another chance, with more time to answer.
///
/// # Errors
/// Too few nodes are connected after `node_timeout_ms`.
pub async fn wait_for_nodes(ctx: &Ctx, grace_ms: u64) -> Result<Vec<NodeIndex>, VolumeFailure> {
    loop {
        let (usable, left_out, all, needed, waited, limit) = ctx.with(|core| {
            let usable =
                core.nodes_that(|node| node.link.connected && node.attempt.left_out.is_none());
            let left_out = core.nodes_that(|node| node.attempt.left_out.is_some()).len();
            let waited = core.now.since(core.attempts.attempt_began);
            let limit = Nanos::from_ms(core.config.node_timeout_ms);
            (usable, left_out, core.nodes.len(), core.nodes_needed(), waited, limit)
        });
        let patient = waited < Nanos::from_ms(grace_ms.min(limit.0 / 2_000_000));
        if usable.len() >= needed && (usable.len() + left_out == all || !patient) {
            return Ok(usable);
        }
        if left_out > 0 && all - left_out < needed {
            ctx.with(VolumeCore::let_all_in);
        }
        let missing = ctx.with(|core| {
            // A connected node among these answered badly; that is its reason.
            let mut down = core.nodes_that(|_| true);
            down.retain(|node| !usable.contains(node));
            let reason = |node: NodeIndex| (node, core.node(node).reason.clone());
            let missing: Vec<_> = down.into_iter().map(reason).collect();
            let reasons = reasons_in_brackets(&missing);
            core.attempts.waits_for =
                format!("nodes: {needed} of {all} are needed; missing: {reasons}");
            missing
        });
        if waited >= limit && ctx.with(|core| core.may_give_more_time()) {
            ctx.with(|core| {
                core.let_all_in();
                core.attempts.attempt_began = core.now;
            });
        } else if waited >= limit {
            let reachable = usable.len();
            return Err(VolumeFailure::TooFewNodes { reachable, all, needed, missing });
        }
        ctx.sleep_ms(20).await;
    }
}
