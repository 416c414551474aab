//! Scrub: finds damaged shards before a read or a rebuild needs them.
//!
//! Every node checks its own shards against their checksums; only the results pass the network. The
//! volume rebuilds bad shards before the scrub ends.

use std::collections::HashSet;

use fieldstone_proto::{NodeError, RequestBody, SegmentId, ShardIndex};

use crate::core::Ctx;
use crate::rebuild::throttle;
use crate::segment::State;
use crate::status::{Progress, VolumePhase};

/// How long a scrub waits until segments with stored rows are sealed.
const SEAL_WAIT_MS: u64 = 10_000;

/// The volume's scrub.
#[derive(Debug, Default)]
pub struct Scrub {
    /// How far it is, or how far the last one came.
    pub progress: Progress,
    /// Shards that the volume found damaged since the scrub began, or since the last one ended. A
    /// result may arrive after the volume has rebuilt the shard. The volume must not count the
    /// shard again.
    pub found: HashSet<(SegmentId, u32)>,
}

/// Makes every node check its shards against their checksums, and rebuilds damaged ones. Segments
/// that are not sealed yet may have stored rows. The scrub seals these segments first.
pub async fn scrub(ctx: Ctx) {
    let began = ctx.with(|core| core.now);
    ctx.with(|core| {
        // Damage that the opening or a read found since the last scrub counts.
        let damaged = core.scrub.found.len() as u64;
        core.scrub.progress = Progress { running: true, damaged, ..Progress::default() };
    });
    let unsealed = seal_rows(&ctx).await;
    let shards = ctx.with(|core| {
        let mut shards = Vec::new();
        for (handle, segment) in core.segments.iter().filter(|(_, s)| s.state >= State::Sealed) {
            for (shard, node) in segment.shards.iter().enumerate() {
                if let Some(node) = node {
                    shards.push((handle, segment.id, shard, *node, segment.shard_bytes));
                }
            }
        }
        core.scrub.found.clear();
        core.scrub.progress.shards_failed = unsealed;
        core.scrub.progress.shards_total = unsealed + shards.len() as u64;
        shards
    });
    for (handle, id, shard, node, shard_bytes) in shards {
        if ctx.with(|core| core.phase != VolumePhase::Serving) {
            break;
        }
        let body = RequestBody::ShardVerify {
            segment: id,
            shard: ShardIndex(u8::try_from(shard).expect("at most 255 shards")),
        };
        let result = ctx.call(node, body).await;
        ctx.with(|core| {
            core.scrub.progress.elapsed_ns = core.now.since(began).0;
            let alive = core.segments.get(handle).is_some_and(|segment| segment.id == id);
            match result {
                Ok(_) => core.scrub.progress.shards_done += 1,
                Err(error) if alive => {
                    // The node checked the shard if the error is damage, which rebuild repairs.
                    // With any other error the shard was not checked.
                    let checked = matches!(error, NodeError::Corrupt { .. } | NodeError::NotFound);
                    core.scrub.progress.shards_failed += u64::from(!checked);
                    let shard = u32::try_from(shard).expect("at most 255 shards");
                    if !core.scrub.found.contains(&(id, shard)) {
                        core.shard_failed(id, shard, node, &error);
                    }
                }
                Err(_) => core.scrub.progress.shards_done += 1, // freed while the scrub ran
            }
            core.scrub.progress.read_bytes += u64::from(shard_bytes);
        });
        throttle(&ctx, u64::from(shard_bytes)).await;
    }
    ctx.with(|core| {
        if core.segments.iter().any(|(_, s)| s.degraded()) {
            core.begin_rebuild();
        }
    });
    while ctx.with(|core| core.rebuild.is_running()) {
        ctx.sleep_ms(10).await;
    }
    ctx.with(|core| {
        core.scrub.found.clear();
        core.scrub.progress.running = false;
        core.scrub.progress.elapsed_ns = core.now.since(began).0;
    });
}

/// Seals the segments that have rows. Returns the number of shards that could not be sealed.
async fn seal_rows(ctx: &Ctx) -> u64 {
    let with_rows: Vec<SegmentId> = ctx.with(|core| {
        let unsealed = core.segments.iter().filter(|(_, s)| s.state < State::Sealed);
        let with_rows: Vec<SegmentId> =
            unsealed.filter(|(_, s)| s.rows.is_some()).map(|(_, s)| s.id).collect();
        if !with_rows.is_empty() {
            core.close_open_segment();
        }
        with_rows
    });
    let until = ctx.with(|core| core.now.plus(fieldstone_block::Nanos::from_ms(SEAL_WAIT_MS)));
    loop {
        let (waiting, over) = ctx.with(|core| {
            let unsealed = |id: &&SegmentId| {
                let segment = core.segments.find(**id).and_then(|h| core.segments.get(h));
                segment.is_some_and(|segment| segment.state < State::Sealed)
            };
            let shards = with_rows.iter().filter(unsealed).count() * core.layout.width();
            (shards as u64, core.phase != VolumePhase::Serving || core.now >= until)
        });
        if waiting == 0 || over {
            return waiting;
        }
        ctx.sleep_ms(10).await;
    }
}
