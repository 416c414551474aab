//! Garbage collection and checkpoints: how the volume frees space.
//!
//! Collection takes the durable segment with the fewest live blocks. It reads the segment's footer
//! to learn which blocks of the device may lie in it, and appends the live ones to the log again.
//! The segment is then dead, and the volume deletes it once a checkpoint no longer needs its
//! footer. Collection moves one segment at a time, and its blocks go through the log like any
//! write, so users' writes go on in between. A counter keeps the longest time that such a write
//! waited.
//!
//! A checkpoint closes the open segment, notes the map at that position of the log, waits until
//! everything before the position is durable, writes the map to segments of its own and names them
//! in the root. Then the volume deletes the old checkpoint and the segments that were dead.

use fieldstone_block::{BlockError, Nanos};
use fieldstone_buf::{AlignedBuf, join};
use fieldstone_proto::{
    BLOCK_BYTES, Lsn, NodeError, NodeIndex, RequestBody, SealMeta, SegmentId, SegmentKind,
    crc32c_blocks,
};
use smallvec::SmallVec;

use crate::core::{Ctx, VolumeCore};
use crate::exec::oneshot;
use crate::footer::Footer;
use crate::interface::Provisioning;
use crate::map::{Location, MapRun};
use crate::read::read_segment;
use crate::record::{Entry, EntryKind};
use crate::reserve::{ask_full_nodes, release_if_needed};
use crate::seal::{Coding, ShardBuilder, store, sync_segments};
use crate::segment::{Segment, SegmentIndex, State, segment_id};
use crate::status::VolumePhase;

/// Pause before disturbed collection begins anew.
const RETRY_MS: u64 = 20;
/// How long users wait at most for collection that is disturbed again and again, or for nodes
/// without room. A request may have waited in a queue before that: together it is 14 s at most
/// (`docs/faults.md`), unless a slow disk slows collection (`log/admission.rs`).
const STARVED_MS_MAX: u64 = 8_000;
/// Blocks that one step of collection moves.
const STEP_BLOCKS: u32 = 64;
/// How often the volume asks a busy node to delete segments.
const DELETE_TRIES: u32 = 50;
/// Fewest dead segments for which collection writes a checkpoint to free them.
const DEAD_BATCH: u64 = 8;
/// In large volumes, collection waits for this many dead segments per segment of the checkpoint.
const DEAD_PER_CHECKPOINT_SEGMENT: u64 = 4;
/// One in this many of the volume's segments is many dead ones.
const DEAD_FRACTION: u64 = 4;
/// Pause before a serving volume checks again for something to collect or to give back, when the
/// last check found something. The pause doubles after each check that found nothing.
const HOUSEKEEPING_MS: u64 = 1_000;
/// The longest such pause.
const RESTING_MS: u64 = 16_000;
/// The longest such pause when the volume has room that other volumes may need.
const SPARING_MS: u64 = 2_000;
/// The longest such pause when the volume has idle slots: other volumes may wait for them.
const IDLE_SLOTS_MS: u64 = 1_000;
/// Pause before the volume collects for other volumes again, after this gained nothing.
const RELIEF_RESTS_MS: u64 = 10_000;
/// Fewest segments between two checkpoints that only shorten recovery.
const CHECKPOINT_EVERY: u64 = 64;

/// The volume's collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collection {
    /// Collection can start.
    #[default]
    Idle,
    /// Collection has gained nothing. It does not start for lack of space before this time, unless
    /// users wait for space.
    Resting {
        /// The end of the rest.
        until: Nanos,
        /// Users waited for space, and collection found nothing more to free. As long as nothing
        /// changes, users get the error that there is no space.
        in_vain: bool,
    },
    /// Collection runs.
    Running,
}

impl Collection {
    /// Returns whether collection runs.
    pub fn is_running(self) -> bool {
        self == Self::Running
    }

    /// Collection has found nothing more to free although users wait for space.
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::Resting { in_vain: true, .. })
    }

    /// Notes that there may be segments to free again.
    pub fn note_change(&mut self) {
        if let Self::Resting { in_vain, .. } = self {
            *in_vain = false;
        }
    }

    fn rests(self, now: Nanos) -> bool {
        matches!(self, Self::Resting { until, .. } if now < until)
    }
}

/// Changes since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinceCheckpoint {
    /// Segments that the volume has begun.
    pub segments: u64,
    /// Segments whose last block was overwritten or trimmed.
    pub segments_died: u64,
    /// Some shards lie on other nodes than the checkpoint says.
    pub placement_changed: bool,
}

impl VolumeCore {
    /// Starts collection if space is short, or a checkpoint if the log after the last one is long.
    pub fn consider_gc(&mut self) {
        if self.phase != VolumePhase::Serving || self.collection.is_running() {
            return;
        }
        // A thin volume would give the slots back with its next checkpoint.
        let thin = self.reservation.provisioning == Provisioning::Thin;
        let few = if thin { self.marks_at_rest().high } else { self.segments_ample() };
        if self.segments_free() < few {
            self.grow_reservation();
        }
        let rests = self.collection.rests(self.now);
        let short = self.segments_free() < self.marks().low && !rests;
        if short || self.checkpoint_pays() {
            self.start_gc();
        }
    }

    /// Whether a checkpoint is worth its cost. It forgets segments of trims that are not stored. Or
    /// it shortens the next opening: the log after the last checkpoint is long, or the last
    /// checkpoint does not name shards that were made or came back since, so an opening would
    /// verify them. The last reason does not apply where space is short, because a checkpoint takes
    /// room.
    fn checkpoint_pays(&self) -> bool {
        let long = CHECKPOINT_EVERY.max(self.checkpoint_segments() * 32);
        let settled = self.since_checkpoint.placement_changed && !self.rebuild.is_running();
        self.segments.any_shelved()
            || self.many_have_died()
            || self.since_checkpoint.segments >= long
            || (settled && self.segments_free() >= self.marks().low)
    }

    /// Many segments have died since the last checkpoint, and their room will be needed: other
    /// volumes may need the room of a thin volume, and a thick volume frees it before users have to
    /// wait for it, and before large writes have to go through the journal (`rows`).
    fn many_have_died(&self) -> bool {
        let many = DEAD_BATCH.max(self.segments.len() as u64 / DEAD_FRACTION);
        let thin = self.reservation.provisioning == Provisioning::Thin;
        let soon = || self.segments_free() < self.segments_ample();
        self.since_checkpoint.segments_died >= many && (thin || soon())
    }

    /// Free segments with which users can write for as long as a checkpoint takes, and large writes
    /// can go around the journal meanwhile (`rows`).
    fn segments_ample(&self) -> u64 {
        2 * (self.marks_at_rest().high + self.ring_segments())
    }

    /// Starts collection, if it does not run already.
    pub fn start_gc(&mut self) {
        if self.collection.is_running() || self.phase != VolumePhase::Serving {
            return;
        }
        let rested = match self.collection {
            Collection::Resting { until, .. } => until,
            _ => self.now,
        };
        self.collection = Collection::Running;
        let written = self.counters.user_written_bytes;
        self.spawn_with(move |ctx| async move {
            let ended = collect(&ctx).await;
            // A request that still waits for space starts collection again at once.
            let (idle, short) = ctx.with(|core| {
                let idle = core.counters.user_written_bytes == written;
                (idle, core.segments_free() < core.marks().low)
            });
            let pause = (idle && short) || ended == Ended::Disturbed;
            ctx.sleep_ms(if pause { RETRY_MS } else { 1 }).await;
            ctx.with(|core| {
                // Another run would gain nothing either, unless users wait for it.
                let rests =
                    idle && ended == Ended::NothingLeft && core.segments_free() < core.marks().low;
                let rest_ms = if rests { HOUSEKEEPING_MS } else { 0 };
                // Users that wait for space get an error, until something changes. But if a user's
                // write got space meanwhile, others may get some in the same way.
                let waits = core.log.waits() && core.log.starved_since.is_some();
                let vain = (core.starved() || waits) && idle;
                let in_vain = vain && (ended == Ended::NothingLeft || core.starved_too_long());
                let until = core.now.plus(Nanos::from_ms(rest_ms)).max(rested);
                core.collection = Collection::Resting { until, in_vain };
            });
        });
    }

    /// Collects if other volumes lack slots that this one could give back, if they held no garbage.
    pub fn relieve_crowded_nodes(&mut self) {
        if self.now >= self.relief_rests_until && !self.crowded_nodes().is_empty() {
            self.start_gc();
        }
    }

    /// Slots that collection has to free on the most crowded node.
    fn slots_crowded(&self, crowded: &[(NodeIndex, u32)]) -> u32 {
        let more = |(node, kept): &(NodeIndex, u32)| {
            self.slots_min_on(self.node(*node)).saturating_sub(*kept)
        };
        crowded.iter().map(more).max().unwrap_or(0)
    }

    /// The volume's own lack of room, or of a checkpoint, comes before other volumes' lack of room.
    fn may_relieve(&self) -> bool {
        let own = self.segments_free() < self.marks().low || self.checkpoint_pays();
        self.phase == VolumePhase::Serving && !own && self.now >= self.relief_rests_until
    }

    /// Users have waited for space for too long.
    fn starved_too_long(&self) -> bool {
        self.is_too_long(self.log.starved_since)
    }

    /// Users have waited since then, and that is too long.
    pub fn is_too_long(&self, since: Option<Nanos>) -> bool {
        since.is_some_and(|since| self.now.since(since) >= Nanos::from_ms(STARVED_MS_MAX))
    }

    /// A measure of the room that collection has made: it does not change when the volume gives
    /// some of the room back.
    fn room_made(&self) -> i64 {
        let free = self.segments_free() + self.segments_free_to_move();
        let signed = |segments: u64| i64::try_from(segments).unwrap_or(i64::MAX);
        signed(free) - 2 * signed(self.segments_to_release())
    }

    /// Dead segments for which collection writes a checkpoint: enough that the checkpoint is small
    /// compared with the space that it frees, but no more than half of those that may die before
    /// users have to wait.
    fn dead_batch(&self) -> u64 {
        let marks = self.marks_at_rest();
        let worth = DEAD_PER_CHECKPOINT_SEGMENT * self.checkpoint_segments();
        worth.min((marks.low - marks.reserve) / 2).max(DEAD_BATCH)
    }

    /// Some closed segments are not durable yet.
    fn sealing(&self) -> bool {
        let sealing = |s: &Segment| matches!(s.state, State::Closed | State::Sealed) && !s.shelved;
        self.segments.iter().any(|(_, s)| sealing(s))
    }

    fn dead_segments(&self) -> Vec<SegmentIndex> {
        self.segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.live_blocks == 0)
            .filter(|(_, s)| s.state == State::Durable)
            .map(|(handle, _)| handle)
            .collect()
    }

    /// The durable segment with the fewest live blocks, if moving them gains space and there is
    /// room for the move.
    fn victim(&self, tried: &[SegmentId]) -> Option<SegmentIndex> {
        self.victim_of(tried, |_| true)
    }

    /// The same of the segments that pass `test`.
    fn victim_of(
        &self,
        tried: &[SegmentId],
        test: impl Fn(&Segment) -> bool,
    ) -> Option<SegmentIndex> {
        let full = self.layout.segment_blocks();
        self.segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.state == State::Durable)
            .filter(|(_, s)| s.live_blocks > 0 && !tried.contains(&s.id) && test(s))
            .min_by_key(|(_, s)| s.live_blocks)
            .filter(|(_, s)| s.live_blocks < full - full / 16 && self.room_to_move(s.live_blocks))
            .map(|(handle, _)| handle)
    }
}

/// Periodic work of a serving volume: it collects and gives slots back also when the volume is
/// idle.
pub async fn keep_house(ctx: Ctx) {
    let mut pause_ms = HOUSEKEEPING_MS;
    let mut written = 0;
    while ctx.with(|core| core.phase == VolumePhase::Serving) {
        release_if_needed(&ctx).await;
        let full = ask_full_nodes(&ctx).await;
        let rests = ctx.with(|core| {
            core.consider_gc();
            let before = std::mem::replace(&mut written, core.counters.user_written_bytes);
            core.shrink_reservation(before == written);
            let rests = !core.collection.is_running() && !core.reservation_changes();
            core.claim_promised_slots();
            rests
        });
        let (idle, soon) = ctx.with(|core| {
            let lacks = core.lacks_promised_slots() || core.awaits_others();
            (core.has_idle_slots(), core.may_release_slots() || lacks)
        });
        let max_ms = match (idle, soon || full) {
            (true, _) => IDLE_SLOTS_MS,
            (false, true) => SPARING_MS,
            (false, false) => RESTING_MS,
        };
        pause_ms = if rests { (2 * pause_ms).min(max_ms) } else { HOUSEKEEPING_MS };
        ctx.sleep_ms(pause_ms).await;
    }
}

/// How collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// There is enough room, or nothing more to gain.
    NothingLeft,
    /// A node was lost, or a segment could not be read: there may be more to gain.
    Disturbed,
}

async fn collect(ctx: &Ctx) -> Ended {
    let lock = ctx.with(|core| core.maintenance_lock.clone());
    let _guard = lock.acquire().await;
    let mut tried = Vec::new();
    relieve(ctx).await;
    // The room made until the last checkpoint, the bytes that users had written until then, and the
    // number of slots that the volume then wanted to keep.
    let mut last_checkpoint = None;
    // Every round frees a segment, moves one, or ends. The bound is a safeguard against a bug.
    for _ in 0..100_000 {
        let (free, marks, dead, serving, victim) = ctx.with(|core| {
            let dead = core.dead_segments().len() as u64;
            let victim = core.victim(&tried);
            (core.segments_free(), core.marks(), dead, core.phase == VolumePhase::Serving, victim)
        });
        if !serving {
            return Ended::Disturbed;
        }
        let (long, batch) = ctx.with(|core| (core.checkpoint_pays(), core.dead_batch()));
        let plenty = free + dead >= marks.high;
        let urgent = free < marks.low && dead > 0;
        // A checkpoint closes the open segment, even if it holds little, and takes room until the
        // old checkpoint is gone. So it is worth its cost only after several segments have died.
        let tight = victim.is_none();
        if long || (urgent && (dead >= batch || plenty || tight)) {
            if !write_checkpoint(ctx, false).await {
                return Ended::Disturbed;
            }
            let now = ctx.with(|core| {
                (core.room_made(), core.counters.user_written_bytes, core.reservation.goal)
            });
            let in_vain =
                |last: (i64, u64, u32)| now.0 <= last.0 && (now.1, now.2) == (last.1, last.2);
            if !long && last_checkpoint.is_some_and(in_vain) {
                // Moving blocks takes as much room as it gives back.
                return ended(&tried);
            }
            last_checkpoint = Some(now);
            continue;
        }
        if free >= marks.high || (plenty && !urgent) {
            return ended(&tried);
        }
        if victim.is_none() && ctx.with(|core| core.sealing()) {
            // Segments that are being written may have blocks to move once they are durable.
            sync_segments(ctx).await;
            continue;
        }
        let Some(victim) = victim else {
            let young =
                ctx.with(|core| core.segments.iter().any(|(_, s)| s.state < State::Durable));
            if dead > 0 || (young && free < marks.reserve) {
                let before = ctx.with(|core| core.segments.len());
                if !write_checkpoint(ctx, false).await {
                    return Ended::Disturbed;
                }
                if ctx.with(|core| core.segments.len()) < before {
                    continue;
                }
            }
            return ended(&tried);
        };
        let id = ctx.with(|core| core.segments.get(victim).map(|s| s.id));
        if move_segment(ctx, victim).await.is_err() {
            // Too many shards are missing to read the segment now. Leave it to rebuild.
            tried.extend(id);
        }
    }
    Ended::Disturbed
}

/// Frees slots on crowded nodes, as far as moving blocks gains any.
async fn relieve(ctx: &Ctx) {
    let mut last = u32::MAX;
    // Every round moves a segment, frees some, or ends. The bound is a safeguard against a bug.
    for _ in 0..10_000 {
        let (slots, dead, victim) = ctx.with(|core| {
            let crowded = if core.may_relieve() { core.crowded_nodes() } else { Vec::new() };
            let there = |s: &Segment| crowded.iter().any(|(node, _)| s.has_shard_on(*node));
            let dead = core.dead_segments();
            let dead = dead.iter().filter_map(|handle| core.segments.get(*handle));
            let dead = u32::try_from(dead.filter(|s| there(s)).count()).unwrap_or(u32::MAX);
            (core.slots_crowded(&crowded), dead, core.victim_of(&[], there))
        });
        if slots == 0 {
            return;
        }
        let done = match victim {
            _ if dead >= slots || (dead > 0 && victim.is_none()) => {
                // If it is no less, new segments take as many slots there as the old ones.
                let gains = slots < last;
                last = slots;
                gains && write_checkpoint(ctx, false).await
            }
            Some(victim) => move_segment(ctx, victim).await.is_ok(),
            None => false,
        };
        if !done {
            let rest = Nanos::from_ms(RELIEF_RESTS_MS);
            return ctx.with(|core| core.relief_rests_until = core.now.plus(rest));
        }
    }
}

fn ended(not_moved: &[SegmentId]) -> Ended {
    if not_moved.is_empty() { Ended::NothingLeft } else { Ended::Disturbed }
}

/// Appends the live blocks of a segment to the log again.
async fn move_segment(ctx: &Ctx, handle: SegmentIndex) -> Result<(), BlockError> {
    let footer = read_footer(ctx, handle).await?;
    let mut waiting = std::collections::VecDeque::new();
    for entry in footer.entries.iter().filter(|entry| entry.kind == EntryKind::Data) {
        let alive: Vec<MapRun> = ctx.with(|core| alive_runs(core, handle, entry));
        for run in alive {
            let Some((_, block)) = run.location.stored() else { continue };
            let data = read_segment(ctx, handle, block, run.count).await?;
            let data = join(&data);
            let (filler, awaited) = oneshot();
            ctx.with(|core| {
                let entry = Entry {
                    kind: EntryKind::Data,
                    block: run.block,
                    count: run.count,
                    segment_block: 0,
                };
                core.queue_internal(entry, data, Some(run.location), filler);
            });
            waiting.push_back(awaited);
            if waiting.len() > 4 {
                waiting.pop_front().expect("not empty").await?;
            }
        }
    }
    for awaited in waiting {
        awaited.await?;
    }
    Ok(())
}

/// The live blocks of an entry, which still lie where the entry says, in runs of at most a step. A
/// block that only a frozen root of the map has is live, too.
fn alive_runs(core: &VolumeCore, handle: SegmentIndex, entry: &Entry) -> Vec<MapRun> {
    let mut runs: Vec<MapRun> = Vec::new();
    for i in 0..entry.count {
        let location = Location::at(handle, entry.segment_block + i);
        let block = entry.block + u64::from(i);
        if !core.map.has(block, location) {
            continue;
        }
        match runs.last_mut() {
            Some(run)
                if run.block + u64::from(run.count) == block
                    && run.location.plus(run.count) == location
                    && run.count < STEP_BLOCKS =>
            {
                run.count += 1;
            }
            _ => runs.push(MapRun { block, count: 1, location }),
        }
    }
    runs
}

/// Reads the footer of a sealed segment.
///
/// # Errors
/// Too few shards are readable, or the footer is damaged.
pub async fn read_footer(ctx: &Ctx, handle: SegmentIndex) -> Result<Footer, BlockError> {
    let gone = || BlockError::Io("the segment is gone".into());
    let (id, total) = ctx
        .with(|core| {
            let segment = core.segments.get(handle)?;
            Some((segment.id, segment.shard_bytes / BLOCK_BYTES as u32 * core.layout.k))
        })
        .ok_or_else(gone)?;
    let bad = |error: crate::codec::FormatError| {
        BlockError::Io(format!("footer of segment {id}: {error}"))
    };
    let last = join(&read_segment(ctx, handle, total.saturating_sub(1), 1).await?);
    let blocks = Footer::blocks_of(&last).map_err(bad)?;
    if blocks > total {
        return Err(BlockError::Io(format!("footer of segment {id}: {blocks} blocks")));
    }
    let bytes = match blocks {
        1 => last,
        _ => join(&read_segment(ctx, handle, total - blocks, blocks).await?),
    };
    let volume = ctx.with(|core| core.config.volume);
    Footer::decode(&bytes, volume, id).map_err(bad)
}

/// Writes a checkpoint and frees the segments that it makes superfluous. `clean`: the volume is
/// closing. The caller holds the maintenance lock. Returns false if the volume failed meanwhile.
pub async fn write_checkpoint(ctx: &Ctx, clean: bool) -> bool {
    let (lsn, bytes, dead) = ctx.with(|core| {
        core.close_for_checkpoint();
        core.since_checkpoint = SinceCheckpoint::default();
        let dead: Vec<SegmentIndex> = core
            .segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.live_blocks == 0)
            .map(|(handle, _)| handle)
            .collect();
        let blocks = core.geometry.size_bytes / BLOCK_BYTES as u64;
        (core.log.next, crate::checkpoint::encode(&core.map, &core.segments, blocks), dead)
    });
    if !wait_durable(ctx, lsn).await {
        return false;
    }
    let Some(handles) = store_checkpoint(ctx, &bytes).await else { return false };
    let old = name_checkpoint(ctx, lsn, bytes.len() as u64, &handles, clean).await;
    let Some(old) = old else { return false };
    let mut doomed: Vec<SegmentIndex> = dead;
    doomed.extend(
        ctx.with(|core| old.iter().filter_map(|id| core.segments.find(*id)).collect::<Vec<_>>()),
    );
    free_segments(ctx, &doomed).await;
    ctx.with(|core| {
        core.counters.checkpoints += 1;
        core.trim_log(); // records of segments that were not stored
        core.pursue_goal();
        core.shrink_reservation(false);
    });
    true
}

/// Waits until every data segment that begins before `lsn` is durable, except segments that are not
/// to be stored.
async fn wait_durable(ctx: &Ctx, lsn: Lsn) -> bool {
    loop {
        let (waiting, over) = ctx.with(|core| {
            let waiting = core.segments.iter().any(|(_, s)| {
                let young = s.state < State::Durable && !s.shelved;
                s.kind == SegmentKind::Data && s.lsn_first < lsn && young
            });
            (waiting, matches!(core.phase, VolumePhase::Failed(_) | VolumePhase::Closed))
        });
        if over {
            return false;
        }
        if !waiting {
            return true;
        }
        sync_segments(ctx).await;
    }
}

/// Makes a new segment with a part of a checkpoint, and starts to code it.
fn checkpoint_segment(core: &mut VolumeCore, part: &[u8]) -> (SegmentIndex, Coding, SealMeta) {
    let layout = core.layout;
    let mut data = AlignedBuf::zeroed(part.len().next_multiple_of(BLOCK_BYTES));
    data[..part.len()].copy_from_slice(part);
    let blocks = u32::try_from(data.len() / BLOCK_BYTES).expect("bounded by a segment");
    let shard_blocks = layout.shard_blocks_for(blocks);
    let mut builder = ShardBuilder::new(layout, shard_blocks);
    builder.put(0, &data, &crc32c_blocks(&data));
    let coding = core.start_coding(builder);
    core.segments_made += 1;
    let shard_bytes = shard_blocks * BLOCK_BYTES as u32;
    let handle = core.segments.insert(Segment {
        id: segment_id(core.epoch, core.segments_made),
        kind: SegmentKind::Checkpoint,
        state: State::Closed,
        lsn_first: Lsn(0),
        lsn_end: Lsn(0),
        shard_bytes,
        shards: SmallVec::from_elem(None, layout.width()),
        live_blocks: 0,
        contents: None,
        rows: None,
        detached: false,
        shelved: false,
        left_on: SmallVec::new(),
    });
    let meta =
        SealMeta { kind: SegmentKind::Checkpoint, lsn_first: Lsn(0), lsn_end: Lsn(0), shard_bytes };
    (handle, coding, meta)
}

/// Writes a checkpoint's bytes to new segments and makes them stable. `None` if the volume failed
/// meanwhile.
pub async fn store_checkpoint(ctx: &Ctx, bytes: &[u8]) -> Option<Vec<SegmentIndex>> {
    let capacity = ctx.with(|core| core.layout.segment_blocks() as usize * BLOCK_BYTES);
    let mut handles = Vec::new();
    let mut written = Vec::new();
    for chunk in bytes.chunks(capacity) {
        let (handle, coding, meta) = ctx.with(|core| checkpoint_segment(core, chunk));
        let shards = coding.finish().await;
        if !store(ctx, handle, &shards, meta).await {
            return None;
        }
        ctx.with(|core| {
            core.segments.set_state(handle, State::Sealed);
        });
        handles.push(handle);
        written.push((handle, shards, meta));
    }
    loop {
        sync_segments(ctx).await;
        // No journal has these blocks: if a sync loses them, they are written again from here.
        for (handle, shards, meta) in &written {
            let short = ctx.with(|core| {
                let k = core.code.k();
                core.segments.get(*handle).is_some_and(|s| s.shards.len() - s.missing() < k)
            });
            if short && !store(ctx, *handle, shards, *meta).await {
                return None;
            }
        }
        let (done, over) = ctx.with(|core| {
            let durable = |handle: &SegmentIndex| {
                core.segments.get(*handle).is_some_and(|s| s.state == State::Durable)
            };
            let over = match core.phase {
                VolumePhase::Failed(_) | VolumePhase::Closed => true,
                // Nodes come back only to a volume that serves.
                VolumePhase::Opening => !core.writable(),
                _ => false,
            };
            (handles.iter().all(durable), over)
        });
        if over {
            return None;
        }
        if done {
            return Some(handles);
        }
    }
}

/// Names a checkpoint in the root. Returns the segments of the old checkpoint.
async fn name_checkpoint(
    ctx: &Ctx,
    lsn: Lsn,
    bytes: u64,
    handles: &[SegmentIndex],
    clean: bool,
) -> Option<Vec<SegmentId>> {
    loop {
        let (ids, old) = ctx.with(|core| {
            let ids: Vec<SegmentId> =
                handles.iter().filter_map(|h| Some(core.segments.get(*h)?.id)).collect();
            let old = core.root.as_ref().map(|root| root.checkpoint_segments.clone());
            (ids, old.unwrap_or_default())
        });
        let placed = crate::journal::put_root(ctx, |root| {
            root.checkpoint_lsn = lsn;
            root.checkpoint_bytes = bytes;
            root.checkpoint_segments = ids;
            root.clean = clean;
        })
        .await;
        if placed {
            return Some(old);
        }
        if ctx.with(|core| matches!(core.phase, VolumePhase::Failed(_) | VolumePhase::Closed)) {
            return None;
        }
        ctx.sleep_ms(20).await;
    }
}

/// Deletes segments from nodes. A node that misses this was lost, or this function gives it up.
/// When the node joins, its list shows segments that the table lacks.
async fn delete_segments(ctx: &Ctx, mut nodes: Vec<NodeIndex>, segments: &[SegmentId]) {
    let body = RequestBody::ShardDelete { segments: segments.to_vec() };
    for _ in 0..DELETE_TRIES {
        let answers = ctx.call_all(&nodes, &body).await;
        nodes.clear();
        for (node, answer) in answers {
            match answer {
                Err(NodeError::Busy) => nodes.push(node),
                Err(error @ (NodeError::Io(_) | NodeError::Invalid(_))) => {
                    let why = format!("deleting shards: {error}");
                    ctx.with(|core| core.give_up_node(node, &why));
                }
                _ => {}
            }
        }
        if nodes.is_empty() {
            return;
        }
        ctx.sleep_ms(RETRY_MS).await;
    }
    for node in nodes {
        ctx.with(|core| core.give_up_node(node, "deleting shards: it is busy for too long"));
    }
}

/// Deletes segments from the nodes and from the table.
pub async fn free_segments(ctx: &Ctx, handles: &[SegmentIndex]) {
    let (ids, nodes) = ctx.with(|core| {
        let ids: Vec<SegmentId> =
            handles.iter().filter_map(|h| Some(core.segments.remove(*h)?.id)).collect();
        core.segments_freeing += ids.len() as u64;
        (ids, core.up_nodes())
    });
    for chunk in ids.chunks(1024) {
        delete_segments(ctx, nodes.clone(), chunk).await;
    }
    ctx.with(|core| {
        core.segments_freeing -= ids.len() as u64;
        core.collection.note_change();
        core.start_rebuild(); // a missing shard may have waited for this room
    });
}
