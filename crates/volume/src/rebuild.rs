//! Rebuild: making missing shards again.
//!
//! Rebuild goes over the segments with missing shards, oldest first. It makes each missing shard
//! from the others (the repair plan says what to read). It writes the shard to a node that holds no
//! shard of the segment and has room beyond the needs of users and collection (`space`), preferably
//! the node that placement names. It ends when a pass makes no progress, so it always ends. It
//! starts again when a node joins, when a shard turns out bad, and when nodes may have more room.
//!
//! Rebuild works on up to [`SEGMENTS_MAX`] segments at once, so that the engine gets several jobs
//! at a time. Each segment is a task; one task starts them and awaits the oldest. Two segments do
//! not get the same slot of a node: a write under way counts as a slot that is taken
//! (`slots.claimed`). With a rate limit, rebuild works on one segment at a time: it sleeps after
//! each, and a burst of several would exceed the rate. Before a sync, rebuild waits until no
//! segment is under way: a shard that is written during a sync may not be stable after it.

use std::collections::{HashSet, VecDeque};

use fieldstone_accel::Shard;
use fieldstone_block::Nanos;
use fieldstone_proto::{
    NodeError, NodeIndex, ReplyBody, RequestBody, SealMeta, SegmentId, SegmentKind, ShardIndex,
};

use crate::core::{Ctx, VolumeCore};
use crate::damage::{clear_the_way, delete_superseded};
use crate::decode::decode;
use crate::node::Node;
use crate::reserve::{begin_change, reserve_for_rebuild, reserve_missing, reserve_on_low};
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::{NodeHealth, Progress};
use fieldstone_tasks::{Awaited, concurrently, oneshot};

/// How long a node may be away before the volume rebuilds its shards on other nodes.
const OUT_AFTER_MS: u64 = 30_000;
/// How often the volume asks a busy node again for its shards, and the pause before each time.
const LIST_BUSY_MAX: u32 = 50;
const LIST_BUSY_PAUSE_MS: u64 = 20;
/// Longest sleep of a rebuild with a rate limit.
const THROTTLE_SLICE_NS: u64 = 100_000_000;
/// Pause before rebuild tries shards again that it could not make although there is a place for
/// them.
const RETRY_MS: u64 = 2_000;
/// Shards that rebuild writes before it makes them stable. If a node comes back before that, its
/// own shards are the valid ones, and the rebuilt ones go.
const UNSYNCED_MAX: usize = 64;
/// Segments that rebuild works on at once.
const SEGMENTS_MAX: u64 = 4;
/// Bytes of the shards of these segments, unless one segment has more.
const SEGMENTS_BYTES_MAX: u64 = 64 << 20;
/// How long a rebuild waits for the reservations on nodes that have just joined.
const RESERVATION_MS_MAX: u64 = 2_000;
/// How often it checks meanwhile.
const RESERVATION_POLL_MS: u64 = 5;

/// The volume's rebuild.
#[derive(Debug, Default)]
pub struct Rebuild {
    state: RebuildState,
    /// How far it is, or how far the last one came.
    pub progress: Progress,
    /// The last rebuild left shards missing because no node has room for them.
    pub lacks_room: bool,
    /// Shards that rebuild has written to these nodes, and that a power loss may take. Bound: those
    /// of [`SEGMENTS_MAX`] segments more than [`UNSYNCED_MAX`], and those on nodes that are away
    /// since.
    unsynced: HashSet<(SegmentId, NodeIndex)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RebuildState {
    #[default]
    Idle,
    /// It starts again at this time, or as soon as something changes.
    Paused { until: Nanos },
    /// `again`: something has changed since the present pass began, so there will be another pass.
    Running { again: bool },
}

impl Rebuild {
    /// It runs now.
    pub fn is_running(&self) -> bool {
        matches!(self.state, RebuildState::Running { .. })
    }

    fn begin(&mut self) {
        self.state = RebuildState::Running { again: false };
        self.progress = Progress { running: true, ..Progress::default() };
    }

    /// The rebuild that runs takes a change into account. False if none runs.
    fn note_change(&mut self) -> bool {
        let running = self.is_running();
        if running {
            self.state = RebuildState::Running { again: true };
        }
        running
    }

    /// True if something has changed since the last call. A rebuild must be running.
    fn take_change(&mut self) -> bool {
        let before = std::mem::replace(&mut self.state, RebuildState::Running { again: false });
        before == RebuildState::Running { again: true }
    }

    /// Rebuild has written a shard of the segment to the node.
    pub fn note_written(&mut self, segment: SegmentId, node: NodeIndex) {
        self.unsynced.insert((segment, node));
    }

    /// Rebuild has written a shard of the segment to the node, and the node has not synced it.
    pub fn is_unsynced(&self, segment: SegmentId, node: NodeIndex) -> bool {
        self.unsynced.contains(&(segment, node))
    }

    /// The shards on the node are stable.
    pub fn note_synced(&mut self, node: NodeIndex) {
        self.unsynced.retain(|(_, other)| *other != node);
    }

    fn end(&mut self) {
        self.state = RebuildState::Idle;
        self.progress.running = false;
    }
}

impl VolumeCore {
    /// Starts rebuild if shards are missing, the configuration asks for it, and it does not run.
    pub fn start_rebuild(&mut self) {
        let wanted = self.config.auto_rebuild && self.life.serves();
        if !wanted || self.repair.rebuild.note_change() {
            return;
        }
        if !self.repair.damage.is_empty() || self.segments.iter().any(|(_, s)| s.degraded()) {
            self.begin_rebuild();
        }
    }

    /// Starts rebuild even if the configuration does not ask for it.
    pub fn begin_rebuild(&mut self) {
        if self.repair.rebuild.is_running() || !self.life.serves() {
            return;
        }
        self.repair.rebuild.begin();
        self.spawn_with(rebuild);
    }

    fn retry_rebuild(&mut self) {
        let pause = Nanos::from_ms(RETRY_MS);
        let paused = RebuildState::Paused { until: self.now.plus(pause) };
        self.repair.rebuild.state = paused;
        let sleep = self.sleep(pause);
        self.spawn_with(move |ctx| async move {
            sleep.await;
            ctx.with(|core| {
                if core.repair.rebuild.state == paused {
                    core.repair.rebuild.state = RebuildState::Idle;
                    core.start_rebuild();
                }
            });
        });
    }

    fn degraded(&self) -> Vec<SegmentIndex> {
        self.segments.iter().filter(|(_, s)| s.degraded()).map(|(handle, _)| handle).collect()
    }

    /// Nodes for the missing shards of a segment, without nodes that have no room beyond the needs
    /// of users and collection.
    fn rebuild_targets(&mut self, handle: SegmentIndex) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let id = segment.id;
        if self.waits_for_durability(segment) {
            return Vec::new();
        }
        self.place_missing_on(handle, 0, |core, node| core.may_rebuild_on(id, node))
    }

    /// Shards that rebuild has written, and that a sync now would make stable.
    fn unsynced(&self) -> usize {
        let up = |(_, node): &&(SegmentId, NodeIndex)| self.node(*node).health == NodeHealth::Up;
        self.repair.rebuild.unsynced.iter().filter(up).count()
    }

    /// How many segments rebuild works on at once.
    fn rebuild_window(&self) -> usize {
        if self.config.rebuild_limit_bytes_per_second > 0 {
            return 1;
        }
        let segment_bytes =
            self.shape.layout().width() as u64 * u64::from(self.shape.geometry().shard_bytes);
        let fit = SEGMENTS_BYTES_MAX / segment_bytes.max(1);
        usize::try_from(fit.clamp(1, SEGMENTS_MAX)).expect("a few")
    }

    /// Rebuild leaves the segment alone until it is durable; see `damage`.
    fn waits_for_durability(&self, segment: &Segment) -> bool {
        segment.needs_rows() && self.is_damaged(segment.id)
    }

    /// A node that is up takes a shard of the segment only after it has deleted what it has left of
    /// the segment.
    fn waits_for_leftover(&self, segment: &Segment) -> bool {
        let up = |node: &NodeIndex| self.node(*node).health == NodeHealth::Up;
        !segment.needs_rows() && segment.left_on.iter().any(up)
    }

    /// A new shard of the segment leaves the node enough room. Where it replaces a bad one, it
    /// takes no further slot. A shard of a checkpoint takes a slot that is kept for it. A node that
    /// came back empty first reserves slots for the volume: before that, its free slots may be
    /// those of other volumes.
    fn may_rebuild_on(&self, id: SegmentId, node: NodeIndex) -> bool {
        let reserved = self.node(node).slots.reserved > 0 || !self.life.serves();
        let is_checkpoint = |segment: &Segment| segment.kind == SegmentKind::Checkpoint;
        let kept = self.segments.named(id).is_some_and(is_checkpoint)
            && self.checkpoint_slots_unused_on(node) > 0
            && self.slots_beyond(node) >= self.checkpoint_slots_kept_on(node);
        (reserved && (kept || self.has_room_for_rebuild(node))) || self.has_bad(id, node)
    }

    /// The shard is still missing, and the node has no shard of the segment.
    fn takes_shard(
        &self,
        (handle, id): (SegmentIndex, SegmentId),
        shard: usize,
        node: NodeIndex,
    ) -> bool {
        let segment = self.segments.get(handle).filter(|segment| segment.id == id);
        segment.is_some_and(|segment| {
            segment.shards[shard].is_none() && !self.has_or_gets_shard(segment, node)
        })
    }

    /// Some node is up and holds no shard of the segment, which could take one.
    fn has_idle_node(&self, handle: SegmentIndex) -> bool {
        let Some(segment) = self.segments.get(handle) else { return false };
        let idle = |node: &NodeIndex| {
            !self.has_or_gets_shard(segment, *node) && !segment.left_on.contains(node)
        };
        !self.waits_for_durability(segment) && self.up_nodes().iter().any(idle)
    }

    /// Shards on nodes that are down count as missing if there are other nodes to take them.
    pub fn declare_out(&mut self, node: NodeIndex) {
        let spare = self.nodes_up() > 0 && self.nodes.len() > self.shape.layout().width();
        if self.node(node).health == NodeHealth::Up || !spare {
            return;
        }
        for handle in self.segments.handles() {
            let Some(segment) = self.segments.get_mut(handle) else { continue };
            if segment.state < State::Sealed {
                continue;
            }
            for shard in &mut segment.shards {
                if *shard == Some(node) {
                    *shard = None;
                }
            }
        }
    }

    /// A node went down. If the volume does not use it again within a while, it rebuilds the node's
    /// shards on other nodes, as far as there is room. A node that the volume can reach but not use
    /// is no better than an absent one.
    pub fn watch_absence(&mut self, node: NodeIndex) {
        if !self.life.serves() {
            return;
        }
        let long = Nanos::from_ms(OUT_AFTER_MS);
        if let Some(since) = self.node(node).down_since {
            // The node may have almost joined again, which counted its shards again.
            if self.now.since(since) >= long {
                self.declare_out(node);
                self.start_rebuild();
            }
            return;
        }
        let since = self.now;
        self.node_mut(node).down_since = Some(since);
        let sleep = self.sleep(long);
        self.spawn_with(move |ctx| async move {
            sleep.await;
            ctx.with(|core| {
                if core.node(node).down_since == Some(since) && core.life.serves() {
                    core.declare_out(node);
                    core.start_rebuild();
                }
            });
        });
    }
}

async fn rebuild(ctx: Ctx) {
    let began = ctx.with(|core| core.now);
    wait_for_reservations(&ctx).await;
    loop {
        // A node that was full may have room again. Any of its answers says so.
        let full = ctx.with(|core| {
            core.nodes_that(|n| (n.slots.full || n.is_short()) && n.health == NodeHealth::Up)
        });
        ctx.call_all(&full, &RequestBody::Stat).await;
        if ctx.with(|core| core.rebuild_asks_for_room()) {
            begin_change(&ctx).await;
            let gained = reserve_missing(&ctx).await
                || reserve_on_low(&ctx).await
                || reserve_for_rebuild(&ctx).await;
            ctx.with(|core| core.rebuild_asked_for_room(gained));
        }
        let work = ctx.with(|core| {
            let work = core.degraded();
            let missing: usize =
                work.iter().filter_map(|h| core.segments.get(*h)).map(|s| s.missing()).sum();
            let progress = &mut core.repair.rebuild.progress;
            progress.shards_total = progress.shards_done + missing as u64;
            progress.shards_failed = 0;
            work
        });
        let progress = rebuild_all(&ctx, work, began).await;
        let again = ctx.with(|core| core.repair.rebuild.take_change());
        if !(progress || again) || ctx.with(|core| !core.life.serves()) {
            break;
        }
    }
    delete_superseded(&ctx).await;
    // Before the rebuild ends, its writes and deletions become stable.
    sync_rebuilt(&ctx).await;
    ctx.with(|core| {
        // Rebuild tries shards again that failed for a passing reason. Shards without a place wait
        // for a node.
        let again = core.repair.rebuild.take_change();
        core.repair.rebuild.end();
        core.repair.rebuild.progress.elapsed_ns = core.now.since(began).0;
        core.drop_left_rows();
        let degraded = core.degraded();
        let place = degraded.iter().any(|handle| !core.rebuild_targets(*handle).is_empty());
        core.repair.rebuild.lacks_room =
            !place && degraded.iter().any(|handle| core.has_idle_node(*handle));
        let full = !degraded.is_empty() && core.nodes.iter().any(|node| node.slots.full);
        let waits = |handle: &SegmentIndex| {
            let segment = core.segments.get(*handle);
            segment.is_some_and(|segment| core.waits_for_durability(segment))
        };
        let waits = degraded.iter().any(waits);
        let bad = core.has_superseded();
        let left = |handle: &SegmentIndex| {
            core.segments.get(*handle).is_some_and(|segment| core.waits_for_leftover(segment))
        };
        let left = degraded.iter().any(left);
        if waits || again || place || full || bad || left || core.repair.rebuild.lacks_room {
            core.retry_rebuild();
        }
        core.consider_gc();
    });
}

/// Makes missing shards of these segments, of several at once. True if it made any.
async fn rebuild_all(ctx: &Ctx, work: Vec<SegmentIndex>, began: Nanos) -> bool {
    let mut running = VecDeque::new();
    let mut made = 0;
    for handle in work {
        while running.len() >= ctx.with(|core| core.rebuild_window()) {
            made += finish_oldest(ctx, &mut running, began).await;
        }
        if ctx.with(|core| core.unsynced()) >= UNSYNCED_MAX {
            while !running.is_empty() {
                made += finish_oldest(ctx, &mut running, began).await;
            }
            sync_rebuilt(ctx).await;
        }
        if ctx.with(|core| !core.life.serves()) {
            break;
        }
        let (filler, rebuilt) = oneshot();
        ctx.with(|core| {
            core.spawn_with(move |ctx| async move {
                let targets = ctx.with(|core| core.rebuild_targets(handle));
                filler.fill(rebuild_segment(&ctx, handle, targets).await);
            });
        });
        running.push_back(rebuilt);
    }
    while !running.is_empty() {
        made += finish_oldest(ctx, &mut running, began).await;
    }
    made > 0
}

/// Waits for the segment that has been under way for the longest time. Returns how many shards of
/// it were made.
async fn finish_oldest(ctx: &Ctx, running: &mut VecDeque<Awaited<Rebuilt>>, began: Nanos) -> usize {
    let Some(oldest) = running.pop_front() else { return 0 };
    let rebuilt = oldest.await;
    throttle(ctx, rebuilt.read_bytes).await;
    ctx.with(|core| core.repair.rebuild.progress.elapsed_ns = core.now.since(began).0);
    rebuilt.made
}

/// Makes the shards that rebuild has written stable, and deletions too.
async fn sync_rebuilt(ctx: &Ctx) {
    let nodes = ctx.with(|core| core.up_nodes());
    let sessions = ctx.with(|core| core.sessions_of(&nodes));
    let results = ctx.call_all(&nodes, &RequestBody::ShardSync).await;
    ctx.with(|core| {
        for ((node, result), session) in results.into_iter().zip(sessions) {
            match result {
                Ok(_) if core.node(node).link.session == session => {
                    core.repair.rebuild.note_synced(node);
                }
                // A node that was lost is compared when it joins.
                Ok(_) | Err(NodeError::Unreachable) => {}
                Err(error) => core.give_up_node(node, &format!("sync: {error}")),
            }
        }
    });
}

/// Waits until the nodes that have just joined keep slots for the volume: rebuild needs these. A
/// node on which other volumes have all slots keeps none.
async fn wait_for_reservations(ctx: &Ctx) {
    let began = ctx.with(|core| core.now);
    let longest = Nanos::from_ms(RESERVATION_MS_MAX);
    while ctx.with(|core| {
        let asks = |node: &Node| {
            let joins =
                core.reservation_changes() || core.now.since(node.link.connected_at) < longest;
            node.health == NodeHealth::Up && node.slots.reserved == 0 && joins
        };
        let waits = core.now.since(began) < longest;
        waits && core.life.serves() && core.nodes.iter().any(asks)
    }) {
        ctx.sleep_ms(RESERVATION_POLL_MS).await;
    }
}

/// The result of [`rebuild_segment`].
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// The number of shards that it made.
    pub made: usize,
    /// Bytes that it read for them.
    pub read_bytes: u64,
    /// The shards for which their nodes had no room.
    pub refused: Vec<(usize, NodeIndex)>,
}

/// Makes missing shards of a segment, each on its own node, and writes them at once.
pub async fn rebuild_segment(
    ctx: &Ctx,
    handle: SegmentIndex,
    targets: Vec<(usize, NodeIndex)>,
) -> Rebuilt {
    let mut rebuilt = Rebuilt::default();
    let missing = ctx.with(|core| core.segments.get(handle).map_or(0, |s| s.missing()));
    ctx.with(|core| {
        core.repair.rebuild.progress.shards_failed += missing.saturating_sub(targets.len()) as u64;
    });
    let Some((id, meta)) = ctx.with(|core| segment_meta(core, handle)) else { return rebuilt };
    let lost: Vec<usize> = targets.iter().map(|(shard, _)| *shard).collect();
    if lost.is_empty() {
        return rebuilt;
    }
    let Ok(decoded) = decode(ctx, id, &lost).await else {
        ctx.with(|core| core.repair.rebuild.progress.shards_failed += lost.len() as u64);
        return rebuilt;
    };
    ctx.with(|core| {
        core.repair.rebuild.progress.read_bytes += decoded.read_bytes;
        core.repair.rebuild.progress.reed_solomon_bytes +=
            core.shape.code().k() as u64 * u64::from(meta.shard_bytes);
    });
    rebuilt.read_bytes = decoded.read_bytes;
    let write = |((shard, node), made): ((usize, NodeIndex), Shard)| async move {
        // The segment may have been sealed again meanwhile, with other shards on these nodes. Or
        // other shards have taken the room that rebuild leaves to users.
        let takes = ctx.with(|core| {
            let has_room = core.life.is_opening() || core.may_rebuild_on(id, node);
            core.node(node).health == NodeHealth::Up
                && core.takes_shard((handle, id), shard, node)
                && has_room
        });
        if !takes {
            return None;
        }
        let result = write_shard(ctx, handle, (id, shard), node, made, meta).await;
        Some(((shard, node), result))
    };
    let writes = targets.into_iter().zip(decoded.shards).map(write).collect();
    for (place, result) in concurrently(writes).await.into_iter().flatten() {
        match result {
            Ok(()) => rebuilt.made += 1,
            Err(NodeError::NoSpace) => rebuilt.refused.push(place),
            Err(_) => {}
        }
    }
    rebuilt
}

fn segment_meta(core: &VolumeCore, handle: SegmentIndex) -> Option<(SegmentId, SealMeta)> {
    let segment = core.segments.get(handle)?;
    let meta = SealMeta {
        kind: segment.kind,
        lsn_first: segment.lsn_first,
        lsn_end: segment.lsn_end,
        shard_bytes: segment.shard_bytes,
    };
    Some((segment.id, meta))
}

async fn write_shard(
    ctx: &Ctx,
    handle: SegmentIndex,
    (id, shard): (SegmentId, usize),
    node: NodeIndex,
    made: Shard,
    meta: SealMeta,
) -> Result<(), NodeError> {
    let bytes = made.data.len() as u64;
    let body = RequestBody::ShardWrite {
        segment: id,
        shard: ShardIndex(u8::try_from(shard).expect("at most 255 shards")),
        offset_bytes: 0,
        checksums: made.checksums,
        seal: Some(meta),
        // No journal backs this shard, so the node may list it only with its data.
        data_first: true,
    };
    clear_the_way(ctx, id, node).await;
    let (session, call) = ctx.with(|core| {
        // While a node joins, the volume compares its shards: a new one would confuse this. And the
        // segment may have been freed, or have got this shard, while the volume cleared the way.
        let up = core.node(node).health == NodeHealth::Up;
        let takes = up && core.takes_shard((handle, id), shard, node);
        let call = takes.then(|| core.call(node, body, vec![made.data]));
        (core.node(node).link.session, call)
    });
    let Some(call) = call else { return Err(NodeError::Unreachable) };
    let result = call.await.map(drop);
    ctx.with(|core| {
        let good = result.is_ok();
        // Meanwhile the segment may have been freed, and its handle may belong to another segment.
        // The node may have deleted the segment before the shard arrived.
        if core.segments.get(handle).is_some_and(|segment| segment.id == id) {
            core.shard_written(handle, shard, (node, session), result.clone());
        } else if good && core.node(node).link.session == session {
            core.delete_leftover(node, id);
        }
        if good {
            core.repair.rebuild.note_written(id, node);
            core.gc.since_checkpoint.placement_changed = true;
            core.repair.rebuild.progress.shards_done += 1;
            core.repair.rebuild.progress.written_bytes += bytes;
        } else {
            core.repair.rebuild.progress.shards_failed += 1;
        }
        result
    })
}

/// Waits as long as `bytes` take at the permitted rate.
pub async fn throttle(ctx: &Ctx, bytes: u64) {
    let limit_now = |core: &mut VolumeCore| core.config.rebuild_limit_bytes_per_second;
    let limit = ctx.with(limit_now);
    let mut rest_ns = (bytes * 1_000_000_000).checked_div(limit).unwrap_or(0);
    // A closing volume waits for its rebuild, and a new limit takes effect at once.
    let goes_on = |core: &mut VolumeCore| core.life.serves() && limit_now(core) == limit;
    while rest_ns > 0 && ctx.with(goes_on) {
        let slice_ns = rest_ns.min(THROTTLE_SLICE_NS);
        let sleep = ctx.with(|core| core.sleep(Nanos(slice_ns)));
        sleep.await;
        rest_ns -= slice_ns;
    }
}

/// All shards of the volume on a node, page by page.
///
/// # Errors
/// The node's error, or the node lists more shards than it has slots.
pub async fn list_shards(
    ctx: &Ctx,
    node: NodeIndex,
) -> Result<Vec<fieldstone_proto::ShardInfo>, NodeError> {
    let slots = ctx.with(|core| core.node(node).stat.slots_total as usize);
    let mut all = Vec::new();
    let mut from = SegmentId(0);
    let mut busy = 0;
    loop {
        let answer = ctx.call(node, RequestBody::ShardList { from }).await;
        if answer == Err(NodeError::Busy) && busy < LIST_BUSY_MAX {
            // The node may still be handling writes of a lost connection.
            busy += 1;
            ctx.sleep_ms(LIST_BUSY_PAUSE_MS).await;
            continue;
        }
        match answer? {
            ReplyBody::Shards { shards, next } => {
                all.extend(shards);
                if all.len() > slots {
                    let text = format!("it lists more than {slots} shards, and has as many slots");
                    return Err(NodeError::Invalid(text));
                }
                match next {
                    Some(next) if next > from => from = next,
                    _ => return Ok(all),
                }
            }
            _ => return Err(NodeError::Invalid("not a list of shards".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Script, Sent};

    /// A volume rs:4+2 on six nodes with so many segments that all lack the shard of node 5.
    fn lacking(segments: usize) -> Script {
        let mut script = Script::serving(6);
        for _ in 0..segments {
            script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        }
        script
    }

    /// The node answers, if the request is a read of a shard.
    fn answer_read(script: &mut Script, sent: &Sent) -> bool {
        let RequestBody::ShardRead { len_bytes, .. } = sent.request.body else { return false };
        script.answer(sent, Ok(ReplyBody::Data(vec![7; len_bytes as usize].into())));
        true
    }

    /// The nodes answer reads of shards, and the world does the jobs that follow. Returns the other
    /// requests.
    fn answer_reads(script: &mut Script) -> Vec<Sent> {
        let mut others = Vec::new();
        loop {
            let sent = script.sent();
            if sent.is_empty() && script.jobs.is_empty() {
                return others;
            }
            others.extend(sent.into_iter().filter(|sent| !answer_read(script, sent)));
            script.do_jobs();
        }
    }

    fn writes(sent: &[Sent]) -> usize {
        let is_write = |sent: &&Sent| matches!(sent.request.body, RequestBody::ShardWrite { .. });
        sent.iter().filter(is_write).count()
    }

    #[test]
    fn several_segments_are_under_way_at_once() {
        let mut script = lacking(6);
        script.core(VolumeCore::begin_rebuild);
        let reads = script.sent();
        assert_eq!(reads.len(), 4 * 4, "four shards of each of four segments");
        assert!(reads.iter().all(|sent| answer_read(&mut script, sent)));
        assert!(script.sent().is_empty());
        assert_eq!(script.jobs.len(), 4, "an engine has four jobs to work on");
        script.do_jobs();
        let first = script.sent();
        assert_eq!(writes(&first), 4);
        // The oldest is done: the next one begins.
        script.done(&first[0]);
        let reads = script.sent();
        assert_eq!(reads.len(), 4);
        assert!(reads.iter().all(|sent| answer_read(&mut script, sent)));
        first[1..].iter().for_each(|sent| script.done(sent));
        let others = answer_reads(&mut script);
        assert_eq!((writes(&others), others.len()), (2, 2));
        others.iter().for_each(|sent| script.done(sent));
        let syncs = answer_reads(&mut script);
        assert!(syncs.iter().all(|sent| sent.request.body == RequestBody::ShardSync));
        assert_eq!(syncs.len(), 6);
        syncs.iter().for_each(|sent| script.done(sent));
        script.sent();
        let progress = script.volume.status().rebuild;
        assert_eq!((progress.shards_done, progress.shards_total, progress.running), (6, 6, false));
        script.core(|core| {
            assert!(core.degraded().is_empty() && core.repair.rebuild.unsynced.is_empty());
        });
    }

    /// A burst of several segments would exceed the rate.
    #[test]
    fn with_a_rate_limit_one_segment_is_under_way() {
        let mut script = lacking(2);
        script.core(|core| core.config.rebuild_limit_bytes_per_second = 4 * 65536);
        script.core(VolumeCore::begin_rebuild);
        let others = answer_reads(&mut script);
        assert_eq!(writes(&others), 1);
        others.iter().for_each(|sent| script.done(sent));
        assert!(script.sent().is_empty(), "it has read for a second");
        script.wait_ms(900);
        assert!(script.sent().is_empty());
        let mut began = 0;
        for _ in 0..10 {
            script.wait_ms(100);
            began += script.sent().len();
        }
        assert_eq!(began, 4, "the reads of the second segment");
    }

    /// A shard that is written while a node syncs may not be stable afterwards.
    #[test]
    fn no_segment_is_under_way_during_a_sync() {
        let mut script = lacking(8);
        script.core(|core| {
            for id in 1000..1000 + UNSYNCED_MAX as u64 - 1 {
                core.repair.rebuild.note_written(SegmentId(id), NodeIndex(0));
            }
        });
        script.core(VolumeCore::begin_rebuild);
        let others = answer_reads(&mut script);
        assert_eq!((writes(&others), others.len()), (4, 4));
        for sent in &others {
            assert!(script.sent().is_empty(), "neither a sync nor another segment");
            script.done(sent);
        }
        let syncs = script.sent();
        assert_eq!(syncs.len(), 6);
        assert!(syncs.iter().all(|sent| sent.request.body == RequestBody::ShardSync));
        syncs.iter().for_each(|sent| script.done(sent));
        assert_eq!(writes(&answer_reads(&mut script)), 4, "the others follow");
    }

    #[test]
    fn the_shards_of_a_segment_are_written_at_once() {
        let mut script = Script::serving(6);
        script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(VolumeCore::begin_rebuild);
        assert_eq!(writes(&answer_reads(&mut script)), 2);
    }

    /// Two segments want the last slot of a node. One gets it.
    #[test]
    fn segments_under_way_leave_the_room_of_users() {
        let mut script = lacking(2);
        let node = NodeIndex(5);
        let free = script.core(|core| {
            (1..100).find(|free| {
                core.node_mut(node).slots.free = *free;
                core.has_room_for_rebuild(node)
            })
        });
        assert!(free.is_some_and(|free| free > 1), "{free:?}");
        script.core(VolumeCore::begin_rebuild);
        assert_eq!(writes(&answer_reads(&mut script)), 1);
    }

    /// Two slots are free on a node: those for two checkpoints, of which it holds none.
    #[test]
    fn a_shard_of_a_checkpoint_takes_the_slot_that_is_kept_for_it() {
        let mut script = Script::serving(6);
        let data = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let checkpoint =
            script.add_checkpoint(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let node = NodeIndex(5);
        script.core(|core| {
            let ids = [data, checkpoint].map(|handle| core.segments.get(handle).map(|s| s.id));
            let [data, present] = ids.map(|id| id.expect("it was added"));
            core.committed.root_mut().checkpoint_segments = vec![present];
            core.node_mut(node).slots.free = 2;
            assert!(core.may_rebuild_on(present, node) && !core.may_rebuild_on(data, node));
            core.node_mut(node).slots.free = 1;
            assert!(!core.may_rebuild_on(present, node), "the next checkpoint takes that slot");
            core.node_mut(node).slots.free = 2;
            let segment = core.segments.get_mut(checkpoint).expect("it was added");
            segment.shards[5] = Some(node);
            assert!(!core.may_rebuild_on(present, node), "the node holds it");
        });
    }
}
