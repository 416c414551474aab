//! Scrub: finds damaged shards before a read or a rebuild needs them.
//!
//! Every node checks its own shards against their checksums; only the results pass the network. The
//! volume rebuilds bad shards before the scrub ends.

use std::collections::HashSet;

use fieldstone_proto::{NodeError, RequestBody, SegmentId, ShardIndex};

use crate::core::{Ctx, VolumeCore};
use crate::rebuild::throttle;
use crate::segment::{Segment, State};
use crate::status::Progress;

/// How long a scrub waits until segments are sealed whose shards are being written.
const SEAL_WAIT_MS: u64 = 10_000;

/// The volume's scrub.
#[derive(Debug, Default)]
pub struct Scrub {
    /// How far it is, or how far the last one came.
    pub progress: Progress,
    /// Shards that reads and scrubs have found damaged since the volume was opened.
    pub damaged: u64,
    /// Shards that the volume found damaged since the scrub began, or since the last one ended. A
    /// result may arrive after the volume has rebuilt the shard. The volume must not count the
    /// shard again.
    pub found: HashSet<(SegmentId, u32)>,
}

impl VolumeCore {
    /// The shard is damaged. A scrub that runs counts it, unless it counts the shard already.
    pub fn note_damaged(&mut self, id: SegmentId, shard: u32) {
        if self.repair.scrub.found.insert((id, shard)) {
            self.repair.scrub.damaged += 1;
            self.repair.scrub.progress.damaged += u64::from(self.repair.scrub.progress.running);
        }
    }

    /// The damaged shards that were found since the last scrub, and that are still missing.
    fn damage_left(&self) -> u64 {
        let missing = |(id, shard): &&(SegmentId, u32)| {
            let segment = self.segments.find(*id).and_then(|handle| self.segments.get(handle));
            segment.is_some_and(|segment| segment.is_missing(*shard as usize))
        };
        self.repair.scrub.found.iter().filter(missing).count() as u64
    }
}

/// Makes every node check its shards against their checksums, and rebuilds damaged ones. Segments
/// that are not sealed yet may have shards or rows on nodes. The scrub first waits until these are
/// sealed, so that it finds all damage that was there when it began.
pub async fn scrub(ctx: Ctx) {
    let began = ctx.with(|core| core.now);
    ctx.with(|core| {
        // The scrub counts damage that the opening or a read found, unless rebuild has made the
        // shard again.
        let damaged = core.damage_left();
        core.repair.scrub.progress = Progress { running: true, damaged, ..Progress::default() };
    });
    let unsealed = seal_stored(&ctx).await;
    let shards = ctx.with(|core| {
        let mut shards = Vec::new();
        for (handle, segment) in core.segments.iter().filter(|(_, s)| s.state >= State::Sealed) {
            for (shard, node) in segment.shards.iter().enumerate() {
                if let Some(node) = node {
                    shards.push((handle, segment.id, shard, *node, segment.shard_bytes));
                }
            }
        }
        core.repair.scrub.found.clear();
        core.repair.scrub.progress.shards_failed = unsealed;
        core.repair.scrub.progress.shards_total = unsealed + shards.len() as u64;
        shards
    });
    for (handle, id, shard, node, shard_bytes) in shards {
        if ctx.with(|core| !core.life.serves()) {
            break;
        }
        let body = RequestBody::ShardVerify {
            segment: id,
            shard: ShardIndex(u8::try_from(shard).expect("at most 255 shards")),
        };
        let result = ctx.call(node, body).await;
        ctx.with(|core| {
            core.repair.scrub.progress.elapsed_ns = core.now.since(began).0;
            let alive = core.segments.get(handle).is_some_and(|segment| segment.id == id);
            match result {
                Ok(_) => core.repair.scrub.progress.shards_done += 1,
                Err(error) if alive => {
                    // The node checked the shard if the error is damage, which rebuild repairs.
                    // With any other error the shard was not checked.
                    let checked = matches!(error, NodeError::Corrupt { .. } | NodeError::NotFound);
                    core.repair.scrub.progress.shards_done += u64::from(checked);
                    core.repair.scrub.progress.shards_failed += u64::from(!checked);
                    let shard = u32::try_from(shard).expect("at most 255 shards");
                    if !core.repair.scrub.found.contains(&(id, shard)) {
                        core.shard_failed(id, shard, node, &error);
                    }
                }
                Err(_) => core.repair.scrub.progress.shards_done += 1, // freed while the scrub ran
            }
            core.repair.scrub.progress.read_bytes += u64::from(shard_bytes);
        });
        throttle(&ctx, u64::from(shard_bytes)).await;
    }
    ctx.with(|core| {
        if core.segments.iter().any(|(_, s)| s.degraded()) {
            core.begin_rebuild();
        }
    });
    while ctx.with(|core| core.repair.rebuild.is_running()) {
        ctx.sleep_ms(10).await;
    }
    ctx.with(|core| {
        core.repair.scrub.found.clear();
        core.repair.scrub.progress.running = false;
        core.repair.scrub.progress.elapsed_ns = core.now.since(began).0;
    });
}

/// Seals the segments that have rows, and waits until those are sealed whose shards are being
/// written. Returns the number of shards on nodes that could not be sealed.
async fn seal_stored(ctx: &Ctx) -> u64 {
    let stored: Vec<SegmentId> = ctx.with(|core| {
        let is_stored = |segment: &Segment| match segment.state {
            State::Open => segment.rows.is_some(),
            State::Closed => true,
            State::Sealed | State::Durable => false,
        };
        let with_rows = |open| core.segments.get(open).is_some_and(is_stored);
        if core.log.open.is_some_and(with_rows) {
            core.close_open_segment();
        }
        core.segments.iter().filter(|(_, s)| is_stored(s)).map(|(_, s)| s.id).collect()
    });
    let until = ctx.with(|core| core.now.plus(fieldstone_block::Nanos::from_ms(SEAL_WAIT_MS)));
    loop {
        let (unsealed, shards, over) = ctx.with(|core| {
            let segments =
                stored.iter().filter_map(|id| core.segments.get(core.segments.find(*id)?));
            let unsealed: Vec<_> = segments.filter(|s| s.state < State::Sealed).collect();
            // A segment that lacks room may have nothing on nodes. The journal has its blocks.
            let on_nodes = |s: &&&Segment| s.rows.is_some() || s.shards.iter().any(Option::is_some);
            let shards = unsealed.iter().filter(on_nodes).count() * core.shape.layout().width();
            let over = !core.life.serves() || core.now >= until;
            (unsealed.len(), shards as u64, over)
        });
        if unsealed == 0 || over {
            return shards;
        }
        ctx.sleep_ms(10).await;
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{NodeIndex, ReplyBody};

    use super::*;
    use crate::script::Script;

    fn corrupt() -> NodeError {
        NodeError::Corrupt { offset_bytes: 0 }
    }

    #[test]
    fn a_scrub_counts_its_own_damage_and_what_is_not_yet_made_again() {
        let mut script = Script::serving(8);
        let first = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        let second = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        script.core(|core| {
            core.config.auto_rebuild = false;
            for (handle, shard) in [(first, 1), (second, 2)] {
                let id = core.segments.get(handle).expect("added").id;
                core.shard_failed(id, shard, NodeIndex(shard as u16), &corrupt());
            }
            // A rebuild made the second one again.
            core.segments.get_mut(second).expect("added").shards[2] = Some(NodeIndex(7));
        });
        let status = script.volume.status();
        assert_eq!((status.scrub.damaged, status.shards_damaged), (0, 2));

        script.volume.request_scrub(0);
        for check in 0..11 {
            let sent = script.sent_one();
            assert!(matches!(sent.request.body, RequestBody::ShardVerify { .. }), "{check}");
            let result = if check == 3 { Err(corrupt()) } else { Ok(ReplyBody::Done) };
            script.answer(&sent, result);
        }
        script.sent();
        let status = script.volume.status();
        assert_eq!((status.scrub.shards_done, status.scrub.shards_total), (11, 11));
        assert_eq!((status.scrub.damaged, status.shards_damaged), (2, 3));
        assert_eq!((status.scrub.shards_failed, status.rebuild.running), (0, true));

        // What a read finds after the scrub is no result of the scrub.
        script.core(|core| {
            core.repair.scrub.progress.running = false;
            let id = core.segments.get(first).expect("added").id;
            core.shard_failed(id, 5, NodeIndex(5), &corrupt());
        });
        let status = script.volume.status();
        assert_eq!((status.scrub.damaged, status.shards_damaged), (2, 4));
    }
}
