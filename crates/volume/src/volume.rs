//! The volume as its world sees it: a backend for block requests, and a client of nodes.

use std::cell::RefCell;
use std::rc::Rc;

use fieldstone_block::{
    Backend, BlockError, Completion, EXTENTS_MAX, Extent, ExtentKind, Info, Nanos, Op, Payload,
    Request, Stage,
};
use fieldstone_codes::Profile;
use fieldstone_proto::{BLOCK_BYTES, KeyGeneration, NodeIndex, PoolKeys};

use crate::core::{Ctx, VolumeCore};
use crate::failure::VolumeFailure;
use crate::gc::write_checkpoint;
use crate::interface::{Geometry, OpenMode, Provisioning, VolumeAction, VolumeConfig, VolumeEvent};
use crate::map::Location;
use crate::record::EntryKind;
use crate::reserve::{begin_change, release_garbage, release_spare, reserve_for_size};
use crate::segment::State;
use crate::shape::Shape;
use crate::status::{NodeHealth, NodeStatus, Status, VolumePhase};
use fieldstone_tasks::Executor;

/// Pause before the volume writes a root again that too few nodes took.
const ROOT_RETRY_MS: u64 = 20;
/// Blocks of the map that one request for extents walks at most, and that one step of it walks.
const WALKED_BLOCKS_MAX: u64 = 32_768;
const WALK_BLOCKS: u64 = 4096;

/// Bytes that each of four to eight data shards should deliver at a time to a sequential reader.
/// With fewer shards, each delivers more.
const READ_AHEAD_PER_NODE_BYTES: u32 = 256 << 10;

/// A volume. The crate's documentation says how it works and how a caller drives it.
pub struct Volume {
    core: Rc<RefCell<VolumeCore>>,
    executor: Executor,
}

impl Volume {
    /// Starts to open a volume. The opening goes on when [`VolumeEvent::NodeUp`] reports the nodes.
    #[must_use]
    pub fn new(config: VolumeConfig, now: Nanos) -> Self {
        let shape = match &config.opening {
            OpenMode::Create { name, profile, geometry, .. } => {
                Shape::new(name.clone(), *profile, *geometry)
            }
            // A placeholder until the root is read.
            OpenMode::Open { .. } | OpenMode::Inspect => Shape::new(
                config.volume.to_string(),
                Profile::copies(1).expect("one copy is allowed"),
                Geometry {
                    size_bytes: 0,
                    shard_bytes: 4096,
                    unit_bytes: 4096,
                    chunk_bytes: 0,
                    ring_bytes: 65536,
                },
            ),
        };
        let core = Rc::new(RefCell::new(VolumeCore::new(config, shape, now)));
        core.borrow_mut().outbox.connect(Rc::downgrade(&core));
        let mut volume = Self { core, executor: Executor::default() };
        let ctx = Ctx(Rc::clone(&volume.core));
        volume.executor.spawn(Box::pin(crate::open::open(ctx)));
        volume
    }

    /// The state of `of`, without the task that opens it.
    #[cfg(test)]
    pub(crate) fn without_tasks(of: &Self) -> Self {
        Self { core: Rc::clone(&of.core), executor: Executor::default() }
    }

    #[cfg(test)]
    pub(crate) fn ctx(&self) -> Ctx {
        Ctx(Rc::clone(&self.core))
    }

    /// Takes an event. The next [`Backend::poll`] does the work that follows from it.
    pub fn handle(&mut self, event: VolumeEvent, now: Nanos) {
        let mut core = self.core.borrow_mut();
        core.now = core.now.max(now);
        match event {
            VolumeEvent::NodeAt(node, reach) => core.node_mut(node).relay.reach = reach,
            VolumeEvent::NodeUp(node) => core.node_connected(node),
            VolumeEvent::NodeDown(node) => {
                core.node_lost(node, "the connection is gone");
                core.outbox.act(VolumeAction::Reconnect { node });
            }
            VolumeEvent::Reply { node, reply } => core.handle_reply(node, reply),
            VolumeEvent::JobDone { id, result } => core.job_done(id, result),
            VolumeEvent::Issued { capability, lifetime_ns } => {
                core.take_capability(capability, lifetime_ns);
            }
            VolumeEvent::NotIssued(reason) => core.fail(VolumeFailure::NotIssued(reason)),
            VolumeEvent::Renew => core.renew_capabilities(),
            VolumeEvent::WallClock { offset_ns } => core.set_wall_clock(offset_ns),
        }
    }

    /// The next action for the world to carry out. After each `poll`, ask until there is none.
    pub fn next_action(&mut self) -> Option<VolumeAction> {
        self.core.borrow_mut().outbox.next_action()
    }

    /// The phase of the volume's life.
    #[must_use]
    pub fn phase(&self) -> VolumePhase {
        self.core.borrow().life.phase().clone()
    }

    /// Closes the volume: it finishes queued requests, makes everything stable, and writes a
    /// checkpoint. It writes none if nodes have no room for a segment that the checkpoint waits
    /// for: the next opening replays the journal then.
    pub fn request_close(&mut self) {
        let mut core = self.core.borrow_mut();
        if core.life.ask_to_close() {
            core.spawn_with(close);
        }
    }

    /// Rebuilds missing shards now. If other nodes have room, this includes the shards of down
    /// nodes.
    pub fn request_rebuild(&mut self, limit_bytes_per_second: u64) {
        let mut core = self.core.borrow_mut();
        core.config.rebuild_limit_bytes_per_second = limit_bytes_per_second;
        let down = core.nodes_that(|node| node.health == NodeHealth::Down);
        for node in down {
            core.declare_out(node);
        }
        core.begin_rebuild();
    }

    /// Checks every shard, and repairs damaged ones.
    pub fn request_scrub(&mut self, limit_bytes_per_second: u64) {
        let mut core = self.core.borrow_mut();
        core.config.rebuild_limit_bytes_per_second = limit_bytes_per_second;
        if !core.repair.scrub.progress.running && core.life.serves() {
            core.repair.scrub.progress.running = true;
            core.spawn_with(crate::scrub::scrub);
        }
    }

    /// Grows the device to `size_bytes`, rounded up to a block. Smaller sizes change nothing. The
    /// device is larger as soon as the root with the new size is stable. With `thin`, the volume
    /// from then on reserves only the slots that it needs.
    pub fn request_grow(&mut self, size_bytes: u64, thin: bool) {
        let mut core = self.core.borrow_mut();
        let size_bytes = size_bytes.next_multiple_of(BLOCK_BYTES as u64);
        core.reservation.growth_refused = None;
        if size_bytes > core.shape.size_bytes() && core.life.serves() {
            core.spawn_with(move |ctx| grow(ctx, size_bytes, thin));
        }
    }

    /// From now on the volume signs its requests itself, with the secret that signs in `keys`. The
    /// status says until when requests are under way that an older secret signed.
    pub fn set_keys(&mut self, keys: PoolKeys) {
        self.core.borrow_mut().set_keys(keys);
    }

    /// The oldest generation of the pool's secret that signs a request which has no answer yet, or
    /// that would sign the next one.
    #[must_use]
    pub fn oldest_generation(&self) -> KeyGeneration {
        self.core.borrow().oldest_generation()
    }

    /// The reason why requests wait at the time `now`, as text for people. Empty if no request
    /// waits longer than usual.
    #[must_use]
    pub fn waits_for(&self, now: Nanos) -> String {
        self.core.borrow().what_is_waited_for(now)
    }

    /// The status of the volume.
    #[must_use]
    pub fn status(&self) -> Status {
        let core = self.core.borrow();
        status(&core)
    }

    /// Runs all work that needs no further event.
    fn advance(&mut self, now: Nanos) {
        {
            let mut core = self.core.borrow_mut();
            let due = core.deadline();
            core.now = core.now.max(now);
            core.forgive_own_delay(due);
            core.fire_timers();
            core.check_timeouts();
            core.check_capability();
        }
        loop {
            let mut busy = false;
            {
                let mut core = self.core.borrow_mut();
                busy |= core.pump_log();
                busy |= core.fail_unsendable();
                for task in core.outbox.take_spawned() {
                    self.executor.spawn(task);
                    busy = true;
                }
            }
            busy |= self.executor.run();
            if !busy && !self.core.borrow_mut().note_changed_slots() {
                break;
            }
        }
    }
}

impl Backend for Volume {
    fn info(&self) -> Info {
        info(&self.core.borrow())
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        let mut core = self.core.borrow_mut();
        core.now = core.now.max(now);
        let now = core.now;
        if let Err(error) = admit(&core, &request) {
            core.outbox.complete(Completion::of(&request, Err(error)));
            return;
        }
        // The stack above has checked the range. The device may have grown since, and never
        // shrinks.
        debug_assert_eq!(request.validate(&info(&core)), Ok(()));
        request.stamps.stamp(Stage::Sent, now);
        if request.op != Op::Flush && request.len_bytes == 0 {
            core.outbox.complete(Completion::of(&request, Ok(Payload::None)));
            return;
        }
        match request.op {
            Op::Read => core.start_read(request),
            Op::Write => core.queue_user(request, EntryKind::Data),
            Op::Trim => core.queue_user(request, EntryKind::Trim),
            Op::WriteZeroes if request.flags.no_hole => {
                core.queue_user(request, EntryKind::Reserve);
            }
            Op::WriteZeroes => core.queue_user(request, EntryKind::Trim),
            Op::Flush => core.queue_flush(request),
            Op::Extents => {
                let result = Ok(Payload::Extents(extents(&core, &request)));
                core.outbox.complete(Completion::of(&request, result));
            }
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.advance(now);
        self.core.borrow_mut().outbox.take_completions(out);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.core.borrow().deadline()
    }
}

fn info(core: &VolumeCore) -> Info {
    Info {
        size_bytes: core.shape.size_bytes(),
        block_bytes: BLOCK_BYTES as u32,
        preferred_bytes: BLOCK_BYTES as u32,
        read_ahead_bytes: core.shape.layout().k.clamp(4, 8) * READ_AHEAD_PER_NODE_BYTES,
        read_only: false,
    }
}

/// Whether the volume takes requests of this kind now.
fn admit(core: &VolumeCore, request: &Request) -> Result<(), BlockError> {
    match core.life.phase() {
        VolumePhase::Serving if core.life.takes_requests() => {}
        VolumePhase::Failed(why @ VolumeFailure::FencedOut { .. }) => {
            return Err(BlockError::Fenced(why.to_string()));
        }
        VolumePhase::Failed(why) => return Err(BlockError::Io(why.to_string())),
        VolumePhase::Opening => return Err(BlockError::Io("the volume is still opening".into())),
        _ => return Err(BlockError::ShuttingDown),
    }
    if core.has_lapsed() {
        return Err(BlockError::Io(crate::writer::LAPSED.to_owned()));
    }
    if request.op.changes_data() && !core.writable() {
        return Err(BlockError::Io(format!(
            "only {} of {} nodes are reachable, {} are needed to write",
            core.nodes_up(),
            core.nodes.len(),
            core.nodes_needed()
        )));
    }
    Ok(())
}

/// How the volume stores the blocks of a range, up to the bounds of one answer.
fn extents(core: &VolumeCore, request: &Request) -> Vec<Extent> {
    let mut next = request.offset_bytes / BLOCK_BYTES as u64;
    let end = next + u64::from(request.len_bytes) / BLOCK_BYTES as u64;
    let mut extents: Vec<Extent> = Vec::new();
    let mut walked_blocks = 0;
    while next < end && walked_blocks < WALKED_BLOCKS_MAX && extents.len() <= EXTENTS_MAX {
        let stop = end.min(next + WALK_BLOCKS);
        for run in core.map.runs(next..stop) {
            let kind = match run.location {
                Location::HOLE => ExtentKind::Hole,
                Location::RESERVED => ExtentKind::Zero,
                _ => ExtentKind::Data,
            };
            // An extent of holes needs no walk block by block.
            let cheap = kind == ExtentKind::Hole && u64::from(run.count) == stop - next;
            walked_blocks += if cheap { 1 } else { u64::from(run.count) };
            let len_bytes = u64::from(run.count) * BLOCK_BYTES as u64;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len_bytes += len_bytes,
                _ => extents.push(Extent { len_bytes, kind }),
            }
        }
        next = stop;
    }
    extents.truncate(EXTENTS_MAX);
    extents
}

/// Makes the device larger. The volume writes the root first. Otherwise it could acknowledge a
/// write after the old end, and a crash could then leave the old size, with no place for that
/// write.
async fn grow(ctx: Ctx, size_bytes: u64, thin: bool) {
    if let Some(why) = ctx.with(|core| core.too_large(size_bytes)) {
        return ctx.with(|core| {
            tracing::warn!(volume = %core.shape.name(), "not made larger: {why}");
            core.reservation.growth_refused = Some(why.to_string());
        });
    }
    begin_change(&ctx).await;
    let before = ctx.with(|core| core.reservation.provisioning);
    let provisioning = if thin { Provisioning::Thin } else { before };
    let reserved = match provisioning {
        Provisioning::Thick => reserve_for_size(&ctx, size_bytes, false).await,
        Provisioning::Thin => Ok(()),
    };
    if let Err(refused) = reserved {
        return ctx.with(|core| {
            tracing::warn!(volume = %core.shape.name(), "not made larger: {refused}");
            core.reservation.growth_refused = Some(refused.to_string());
        });
    }
    let placed = place_size(&ctx, size_bytes, provisioning).await;
    ctx.with(|core| {
        if placed {
            core.reservation.provisioning = provisioning;
            core.shape.grow(size_bytes);
            core.map.grow(core.shape.size_blocks());
        }
        // Tells the nodes which reserved slots the volume can spare.
        core.set_reservation(core.reservation.slots);
    });
}

/// Writes the device's size into the root. False if the volume does not serve any more.
async fn place_size(ctx: &Ctx, size_bytes: u64, provisioning: Provisioning) -> bool {
    while ctx.with(|core| core.life.serves()) {
        let placed = crate::journal::put_root(ctx, |root| {
            root.geometry.size_bytes = root.geometry.size_bytes.max(size_bytes);
            root.provisioning = provisioning;
        });
        if placed.await {
            return true;
        }
        ctx.sleep_ms(ROOT_RETRY_MS).await;
    }
    false
}

async fn close(ctx: Ctx) {
    // The volume finishes the requests that it took, and refuses new ones from now on.
    loop {
        let idle = |core: &mut VolumeCore| core.log.idle() && core.reads.idle();
        if ctx.with(|core| idle(core) || !core.life.serves()) {
            break;
        }
        ctx.sleep_ms(1).await;
    }
    release_garbage(&ctx).await;
    if ctx.with(|core| core.life.serves()) {
        // In this phase rebuild and collection end by themselves. Wait for them.
        ctx.with(|core| core.life.begin_closing());
        let lock = ctx.with(|core| core.gc.lock());
        let _guard = lock.acquire().await;
        while ctx
            .with(|core| core.repair.rebuild.is_running() || core.log.journal_move.mover_runs())
        {
            ctx.sleep_ms(1).await;
        }
        // The next opening finds in the journal what the checkpoint lacks.
        let stable = write_checkpoint(&ctx, true).await || crate::journal::sync_at_end(&ctx).await;
        release_spare(&ctx).await;
        if !stable {
            ctx.with(|core| core.fail(VolumeFailure::JournalNotStable));
        }
    }
    ctx.with(|core| {
        core.life.close();
        core.fail_everything();
    });
}

fn status(core: &VolumeCore) -> Status {
    let k = core.shape.code().k();
    let serves = core.life.serves_or_closes();
    let health = |index: NodeIndex| match core.node(index).health {
        // An opening would not count it yet.
        NodeHealth::Up if serves && !core.has_root(index) => NodeHealth::Joining,
        health => health,
    };
    let usable = |s: &crate::segment::Segment| {
        let up = |node: &NodeIndex| health(*node) == NodeHealth::Up;
        s.shards.iter().flatten().filter(|node| up(node)).count()
    };
    let sealed = || core.segments.iter().filter(|(_, s)| s.state >= State::Sealed);
    let nodes = (0u16..)
        .map(NodeIndex)
        .zip(&core.nodes)
        .map(|(index, node)| NodeStatus {
            node: index,
            health: health(index),
            incarnation: node.stat.incarnation,
            slots_total: node.stat.slots_total,
            slots_reserved: node.slots.reserved,
            slots_free: node.slots.free,
            slot_bytes: node.stat.slot_bytes,
            shards: u32::try_from(
                core.segments.iter().filter(|(_, s)| s.has_shard_on(index)).count(),
            )
            .unwrap_or(u32::MAX),
            reason: node.reason.clone(),
            fenced: node.fenced,
        })
        .collect();
    Status {
        name: core.shape.name().to_owned(),
        volume: core.config.volume,
        profile: core.shape.profile().to_string(),
        phase: core.life.phase().clone(),
        waits_for: core.what_is_waited_for(core.now),
        grow_refused: core.reservation.growth_refused.clone(),
        slots_reserved: core.reservation.slots,
        provisioning: core.reservation.provisioning,
        epoch: core.writer.epoch(),
        key_generation: core.oldest_generation(),
        size_bytes: core.shape.size_bytes(),
        live_bytes: core.map.used_blocks() * BLOCK_BYTES as u64,
        capacity_bytes: core.capacity_blocks() * BLOCK_BYTES as u64,
        map_bytes: core.map.memory_bytes(),
        segments: sealed().count() as u64,
        segments_degraded: sealed().filter(|(_, s)| usable(s) < s.shards.len()).count() as u64,
        shards_missing: sealed().map(|(_, s)| (s.shards.len() - usable(s)) as u64).sum(),
        segments_lost: sealed().filter(|(_, s)| usable(s) < k).count() as u64,
        segments_pending_free: sealed()
            .filter(|(_, s)| s.kind == fieldstone_proto::SegmentKind::Data && s.live_blocks == 0)
            .count() as u64,
        segments_unsealed: core.closed_segments().len() as u64,
        journal_used_bytes: core.log.used_bytes(),
        journal_ring_bytes: core.log.ring_bytes,
        journal_whole: core.journal_whole(),
        journal_nodes: core.log.nodes.clone(),
        nodes,
        user_written_bytes: core.counters.user_written_bytes,
        moved_bytes: core.counters.moved_bytes,
        sent_bytes: core.counters.sent_bytes,
        replicate: core.config.replicate,
        appends_relayed: core.counters.appends_relayed,
        appends_sent_again: core.counters.appends_sent_again,
        copies_relayed: core.counters.copies_relayed,
        copies_sent_again: core.counters.copies_sent_again,
        parities_relayed: core.counters.parities_relayed,
        parities_sent_again: core.counters.parities_sent_again,
        encode: core.encodes(),
        parities_streamed: core.counters.parities_streamed,
        parities_coded_again: core.counters.parities_coded_again,
        degraded_reads: core.counters.degraded_reads,
        checkpoints: core.counters.checkpoints,
        shards_damaged: core.repair.scrub.damaged,
        gc_pause_max_ns: core.counters.gc_pause_max_ns,
        rebuild: core.repair.rebuild.progress,
        scrub: core.repair.scrub.progress,
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::Stack;

    use super::*;
    use crate::script::{Script, request};

    /// A read past the end, a write that is no whole block, and a write without its data.
    fn invalid(size_bytes: u64) -> [Request; 3] {
        let end = size_bytes / BLOCK_BYTES as u64;
        let mut part = request(Op::Write, 1, 1);
        (part.len_bytes, part.data) = (512, part.data.slice(..512));
        let mut empty = request(Op::Write, 2, 1);
        empty.data.clear();
        [request(Op::Read, end, 1), part, empty]
    }

    #[test]
    fn a_stack_refuses_what_the_volume_relies_on_not_to_get() {
        let volume = Script::serving(6).volume;
        let size_bytes = volume.info().size_bytes;
        let mut stack: Stack<Volume> = Stack::new(volume, Vec::new());
        let errors = invalid(size_bytes).map(|request| {
            stack.submit(request, Nanos(1));
            let mut completions = Vec::new();
            stack.poll(Nanos(1), &mut completions);
            completions.remove(0).result.expect_err("the range is not valid")
        });
        assert!(matches!(errors[0], BlockError::OutOfRange { .. }), "{errors:?}");
        assert!(matches!(errors[1], BlockError::NotSupported(_)), "{errors:?}");
        assert!(matches!(errors[2], BlockError::NotSupported(_)), "{errors:?}");
    }

    /// The stack checks each range once. The volume does not check it again: a request that comes
    /// by another way, and that no one has checked, is a fault of the program.
    #[cfg(debug_assertions)]
    #[test]
    fn the_volume_does_not_check_a_range_again() {
        let size_bytes = Script::serving(6).volume.info().size_bytes;
        for request in invalid(size_bytes) {
            let submits = std::panic::AssertUnwindSafe(|| {
                Script::serving(6).volume.submit(request, Nanos(1));
            });
            std::panic::catch_unwind(submits).expect_err("the assertion sees it");
        }
    }

    /// Users of a volume that another writer has taken over get an error of their own.
    #[test]
    fn a_fenced_volume_says_so_to_its_users() {
        let answer = |fail: fn(&mut VolumeCore)| {
            let mut script = Script::serving(6);
            script.core(fail);
            script.submit(Op::Read, 0, 1);
            script.sent();
            script.completions.remove(0).result.expect_err("the volume has failed")
        };
        let text = "another writer took the volume over (epoch 9)";
        let fenced = answer(|core| core.fence_out(fieldstone_proto::Epoch(9)));
        assert_eq!(fenced, BlockError::Fenced(text.into()));
        let failed = answer(|core| core.fail(VolumeFailure::NewCheckpointGone));
        assert_eq!(failed, BlockError::Io("a segment of the new checkpoint is gone".into()));
    }
}
