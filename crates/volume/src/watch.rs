//! The watch for a newer writer.
//!
//! A writer that is taken over learns of it from the first node that refuses a request. An idle
//! writer asks the nodes nothing, and answers reads from its memory: from the cache above it, and
//! from segments that are not on the nodes yet. So it would answer with old data for as long as no
//! read needs a node. The watch asks every node, every [`WATCH_MS`], something that only the newest
//! writer may ask. It also notices nodes that do not answer any more while no user asks for
//! anything.

use fieldstone_proto::{RequestBody, SegmentId};

use crate::core::Ctx;

/// Pause between two questions. An idle volume wakes up as often.
const WATCH_MS: u64 = 2_000;

/// Asks the nodes until the volume no longer serves. `VolumeCore::handle_reply` ends the volume at
/// the first answer that names a newer writer.
pub async fn keep_watch(ctx: Ctx) {
    // The list after the last segment is empty, and asking for it checks the writer's epoch.
    let body = RequestBody::ShardList { from: SegmentId(u64::MAX) };
    loop {
        ctx.sleep_ms(WATCH_MS).await;
        let serves = ctx.with(|core| {
            let serves = core.life.serves();
            for node in core.up_nodes().into_iter().filter(|_| serves) {
                // A silent node must not delay the next question to the others.
                drop(core.call(node, body.clone(), Vec::new()));
            }
            serves
        });
        if !serves {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{Epoch, NodeError, ReplyBody};

    use super::*;
    use crate::script::Script;
    use crate::status::VolumePhase;

    #[test]
    fn an_idle_volume_notices_a_newer_writer() {
        let mut script = Script::serving(8);
        script.start(keep_watch);
        assert!(script.sent().is_empty());
        script.wait_ms(WATCH_MS);
        let sent = script.sent();
        assert_eq!(sent.len(), 8, "each node, because a newer writer may not reach all");
        for sent in &sent {
            script.answer(sent, Ok(ReplyBody::Shards { shards: Vec::new(), next: None }));
        }
        assert!(script.sent().is_empty());
        script.wait_ms(WATCH_MS);
        let sent = script.sent();
        let fenced = NodeError::Fenced { sent: Epoch(1), current: Epoch(2) };
        script.answer(&sent[7], Err(fenced));
        script.sent();
        let phase = script.core(|core| core.life.phase().clone());
        assert!(matches!(phase, VolumePhase::Failed(_)), "{phase:?}");
    }

    #[test]
    fn the_watch_ends_with_the_volume() {
        let mut script = Script::serving(8);
        script.start(keep_watch);
        script.sent();
        script.core(|core| core.life.put_in(VolumePhase::Closing));
        script.wait_ms(10 * WATCH_MS);
        assert!(script.sent().is_empty());
    }
}
