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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::interface::OpenMode;
    use crate::script::Script;
    use crate::volume::Volume;

    type Outcome = Rc<RefCell<Option<Result<Vec<NodeIndex>, VolumeFailure>>>>;

    const OPEN: OpenMode = OpenMode::Open { takeover: false };
    /// How long the opening waits for all nodes.
    const GRACE_MS: u64 = 300;
    const STEP_MS: u64 = 20;

    /// An opening that waits for four of its six nodes. The first `connected` are connected, and
    /// the opening has left these out: late or not.
    fn waiting(
        opening: OpenMode,
        connected: u16,
        left_out: &[u16],
        late: bool,
    ) -> (Script, Outcome) {
        let mut script = Script::opening(6, opening);
        script.volume = Volume::without_tasks(&script.volume);
        for node in 0..connected {
            connect(&mut script, node);
        }
        script.core(|core| {
            assert_eq!(core.nodes_needed(), 4);
            for node in left_out {
                core.leave_out(NodeIndex(*node), "it is at fault".into());
                core.node_mut(NodeIndex(*node)).attempt.late = late;
            }
        });
        let outcome = Outcome::default();
        let ends = Rc::clone(&outcome);
        script.start(move |ctx| async move {
            let result = wait_for_nodes(&ctx, GRACE_MS).await;
            *ends.borrow_mut() = Some(result);
        });
        (script, outcome)
    }

    fn connect(script: &mut Script, node: u16) {
        script.core(|core| {
            let node = core.node_mut(NodeIndex(node));
            node.link.connected = true;
            node.reason.clear();
        });
    }

    /// Lets time pass until the opening goes on or fails, at most `max_ms`. Gives the time that
    /// passed.
    fn pass(script: &mut Script, outcome: &Outcome, max_ms: u64) -> u64 {
        let mut passed_ms = 0;
        script.sent();
        while outcome.borrow().is_none() && passed_ms < max_ms {
            script.wait_ms(STEP_MS);
            script.sent();
            passed_ms += STEP_MS;
        }
        passed_ms
    }

    fn goes_on_with(outcome: &Outcome, nodes: &[u16]) -> bool {
        let nodes: Vec<NodeIndex> = nodes.iter().copied().map(NodeIndex).collect();
        *outcome.borrow() == Some(Ok(nodes))
    }

    #[test]
    fn an_opening_with_enough_nodes_waits_a_while_for_the_others() {
        let (mut script, outcome) = waiting(OPEN, 4, &[], false);
        assert_eq!(pass(&mut script, &outcome, 2_000), GRACE_MS);
        assert!(goes_on_with(&outcome, &[0, 1, 2, 3]));
        let (mut script, outcome) = waiting(OPEN, 5, &[], false);
        assert_eq!(pass(&mut script, &outcome, 100), 100);
        connect(&mut script, 5);
        assert_eq!(pass(&mut script, &outcome, 2_000), STEP_MS);
        assert!(goes_on_with(&outcome, &[0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn nodes_that_were_left_out_get_another_chance_only_if_too_few_remain() {
        let (mut script, outcome) = waiting(OPEN, 6, &[1, 4], false);
        assert_eq!(pass(&mut script, &outcome, 2_000), 0, "no other node can come");
        assert!(goes_on_with(&outcome, &[0, 2, 3, 5]));
        script.core(|core| assert_eq!(core.nodes_left_out().len(), 2));
        let (mut script, outcome) = waiting(OPEN, 6, &[1, 2, 4], false);
        assert_eq!(pass(&mut script, &outcome, 2_000), STEP_MS);
        assert!(goes_on_with(&outcome, &[0, 1, 2, 3, 4, 5]));
        script.core(|core| assert_eq!(core.attempts.doublings, 0, "none was late"));
    }

    #[test]
    fn nodes_that_answered_too_late_get_more_time_if_too_few_are_connected_in_time() {
        let (mut script, outcome) = waiting(OPEN, 5, &[1, 2], true);
        let limit_ms = script.core(|core| core.config.node_timeout_ms);
        assert_eq!(pass(&mut script, &outcome, 5_000), limit_ms + GRACE_MS);
        assert!(goes_on_with(&outcome, &[0, 1, 2, 3, 4]));
        script.core(|core| {
            assert_eq!(core.attempts.doublings, 1);
            assert_eq!(core.answer_limit(), Nanos::from_ms(2 * limit_ms));
        });
        // People wait for an inspection.
        let (mut script, outcome) = waiting(OpenMode::Inspect, 5, &[1, 2], true);
        assert_eq!(pass(&mut script, &outcome, 5_000), limit_ms);
        assert!(matches!(*outcome.borrow(), Some(Err(VolumeFailure::TooFewNodes { .. }))));
    }

    #[test]
    fn an_opening_without_enough_nodes_names_those_that_are_missing() {
        let (mut script, outcome) = waiting(OPEN, 4, &[1], false);
        let limit_ms = script.core(|core| core.config.node_timeout_ms);
        pass(&mut script, &outcome, limit_ms / 2);
        script.core(|core| {
            let why = &core.attempts.waits_for;
            assert!(why.contains("4 of 6 are needed; missing: node.1 (it is at fault)"), "{why}");
        });
        assert_eq!(pass(&mut script, &outcome, limit_ms), limit_ms / 2);
        let missing = [(1, "it is at fault"), (4, "not connected yet"), (5, "not connected yet")];
        let missing = missing.map(|(node, reason)| (NodeIndex(node), reason.to_owned()));
        let failure =
            VolumeFailure::TooFewNodes { reachable: 3, all: 6, needed: 4, missing: missing.into() };
        assert_eq!(*outcome.borrow(), Some(Err(failure)));
    }

    /// Otherwise nodes that fail in each attempt would keep the opening from ever ending.
    #[test]
    fn the_time_ends_an_opening_also_if_all_nodes_get_another_chance() {
        let (mut script, outcome) = waiting(OPEN, 6, &[1, 2, 4], false);
        script.wait_ms(1_000);
        pass(&mut script, &outcome, 2_000);
        assert!(matches!(*outcome.borrow(), Some(Err(VolumeFailure::TooFewNodes { .. }))));
    }
}
