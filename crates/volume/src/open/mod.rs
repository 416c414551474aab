//! Opening a volume: fence the nodes, load the checkpoint, replay the log, start anew.
//!
//! 1. *Fence*: every reachable node gets an epoch above all epochs that any node knows. From then
//!    on the node refuses the earlier writer. All but `missing_max` of the nodes must take part;
//!    any such set meets every set that a root was committed on (but see `root` for the smallest
//!    pools).
//! 2. *Root*: the opening takes the newest root (`root`). It names checkpoint, journal and epoch.
//! 3. *Segments*: nodes list their shards. Segments of the checkpoint are valid. After it comes the
//!    chain of segments of the root's epoch: each begins at the log position where the one before
//!    ended. The opening verifies shards that the checkpoint does not name (see `validate`). A
//!    segment with fewer than k good shards ends the chain, unless it is known to have been
//!    durable.
//! 4. *Journal*: valid records of the generation, from any of its nodes, give further chains.
//!    Replay starts at the segment boundary from which the records reach furthest, or at the latest
//!    of them if there are several. So it does not replay the contents of good segments. This
//!    matters because trimmed records may survive in few rings, and a loss of nodes may take all of
//!    these rings. If the log does not reach as far as the root or a record says that it was
//!    trimmed, the opening refuses, and has deleted nothing. The opening makes segments whole if
//!    the earlier writer may not have written all their shards. Records without their blocks (see
//!    `rows`) get them from the shards first.
//! 5. *New start*: a new generation at fresh log positions takes the replayed records. The opening
//!    writes a new checkpoint and a root. Only that root commits the opening: a crash before it
//!    finds everything as it was. Then the opening deletes whatever the new root does not name.
//!
//! If a node is lost on the way, the opening starts over with the remaining nodes and a higher
//! epoch.
//!
//! An opening *leaves a node out* if the node answers with an error, with nonsense, too late, or
//! again and again that it is busy, or if its connection is lost several times. The opening then
//! starts over as if the node were lost, and reports the reason. When the volume serves, it tries
//! the node again, compares its shards, and rebuilds missing ones (`join`). If too few nodes
//! remain, all nodes that were left out get another chance, because errors may pass. If some of
//! them did not answer in time, as when one slow disk holds them all, each node also gets twice the
//! time to answer, up to [`DOUBLINGS_MAX`] times. An opening that still cannot go on after all its
//! attempts ends with the reason of each node.
//!
//! An *inspection* asks the nodes too, but it fences no node and writes nothing (`inspect`).
//!
//! After a crash the opening waits a while for journal nodes that are missing, and longer if it
//! sees that a record lacks blocks (`rings`). A ring does not show whether its node lost power, and
//! with it the last records. If the opening went on with the rings that are there, it could lose a
//! write.

mod attempts;
mod chain;
mod checkpoint;
mod copies;
mod detached;
mod garbage;
mod inspect;
mod nodes;
mod recover;
mod rings;
mod validate;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_codes::Profile;
use fieldstone_proto::{
    BLOCK_BYTES, CapabilityError, Epoch, JournalGen, Lsn, NodeError, NodeIndex, ReplyBody,
    RequestBody, VolumeState, VolumeSummary,
};

use crate::core::{Ctx, VolumeCore};
use crate::failure::{AttemptFailure, VolumeFailure};
use crate::interface::{Geometry, OpenMode, Provisioning};
use crate::journal::{put_root_on, write_generation};
use crate::keys::refusal;
use crate::layout::step_blocks;
use crate::node::NodeAttempt;
use crate::record::Entry;
use crate::reserve::reserve_for_size;
use crate::root::Root;
use crate::seal::seal;
use crate::status::NodeHealth;
use crate::sync::sync_segments;
pub use attempts::OpeningAttempts;
use fieldstone_tasks::oneshot;
use nodes::wait_for_nodes;
use recover::recover;

/// How long the opening waits for all nodes before it goes on without the missing ones.
const GRACE_MS: u64 = 1_000;
/// How often an opening starts over, with longer and longer pauses: a minute in all.
const ATTEMPTS_MAX: u32 = 64;
/// Attempts take long if nodes do not answer. After this time, an opening that has started over
/// [`ATTEMPTS_MIN`] times does not start over again.
const ATTEMPTS_MS_MAX: u64 = 900_000;
const ATTEMPTS_MIN: u32 = 8;
/// How often the time that a node has to answer doubles: from 10 s to 80 s.
const DOUBLINGS_MAX: u32 = 3;
/// How often an inspection starts over before it reports the records that it could not read.
const INSPECTION_ATTEMPTS_MAX: u32 = 8;
/// How often a node may answer that it is busy before the opening goes on without the node.
const BUSY_MAX: u32 = 16;
/// How often the connection to a node may be lost before the opening goes on without the node.
const LOSSES_MAX: u32 = 3;
/// How long the opening keeps trying such a node: it may have data that no other node has.
const LOSSES_MS_MAX: u64 = 20_000;
/// Longest pause between two attempts.
const PAUSE_MS_MAX: u64 = 1_000;

/// Why an opening failed.
enum Failure {
    /// The state of the nodes changed on the way: start over.
    Again(AttemptFailure),
    /// No opening can work.
    Final(VolumeFailure),
    /// A node answered with an error: start over, without the node if the fault is its own.
    Node(NodeIndex, NodeError),
}

impl From<(NodeIndex, NodeError)> for Failure {
    fn from((node, error): (NodeIndex, NodeError)) -> Self {
        Failure::Node(node, error)
    }
}

impl From<AttemptFailure> for Failure {
    fn from(failure: AttemptFailure) -> Self {
        Failure::Again(failure)
    }
}

impl From<VolumeFailure> for Failure {
    fn from(failure: VolumeFailure) -> Self {
        Failure::Final(failure)
    }
}

/// Attributes an error to a node.
trait Blame<T> {
    /// The answer that `node` gave, or its failure.
    fn blame(self, node: NodeIndex) -> Result<T, Failure>;
}

impl<T> Blame<T> for Result<T, NodeError> {
    fn blame(self, node: NodeIndex) -> Result<T, Failure> {
        self.map_err(|error| Failure::Node(node, error))
    }
}

/// Opens (or creates) the volume.
pub async fn open(ctx: Ctx) {
    ctx.take_epoch(Epoch(0)).await;
    let began = ctx.with(|core| core.attempts.began);
    let attempts = match ctx.with(|core| core.config.opening == OpenMode::Inspect) {
        true => INSPECTION_ATTEMPTS_MAX,
        false => ATTEMPTS_MAX,
    };
    let mut failed = 0;
    let last = loop {
        let failure = match wait_for_nodes(&ctx, GRACE_MS).await {
            Ok(nodes) => attempt(&ctx, &nodes, began).await.err(),
            Err(failure) => Some(Failure::Final(failure)),
        };
        let why = match failure {
            None => return ctx.with(VolumeCore::begin_serving),
            Some(Failure::Final(failure)) => return give_up(&ctx, failure).await,
            Some(Failure::Again(failure)) => failure,
            Some(Failure::Node(node, error)) => match ctx.with(|core| core.blame(node, error)) {
                Ok(failure) => failure,
                Err(failure) => return give_up(&ctx, failure).await,
            },
        };
        if ctx.with(|core| core.life.is_over()) {
            return;
        }
        ctx.with(|core| {
            core.attempts.waits_for = format!("another attempt to open, because of: {why}");
            core.forget_attempt();
        });
        failed += 1;
        let spent = ctx.with(|core| core.now.since(core.attempts.began));
        if failed >= ATTEMPTS_MIN && spent >= Nanos::from_ms(ATTEMPTS_MS_MAX) {
            break why;
        }
        ctx.sleep_ms((20 * u64::from(failed)).min(PAUSE_MS_MAX)).await;
        if failed >= attempts {
            break why;
        }
    };
    let left_out = ctx.with(|core| core.nodes_left_out());
    give_up(&ctx, VolumeFailure::AttemptsFailed { attempts: failed, last, left_out }).await;
}

/// The opening has failed. If it was creating the volume, it removes what it made.
async fn give_up(ctx: &Ctx, why: VolumeFailure) {
    if ctx.with(|core| core.attempts.creating) {
        let nodes = ctx.with(|core| core.nodes_that(|node| node.link.connected));
        // A node that an earlier attempt fenced must take the removal too.
        for body in [RequestBody::Fence { takeover: true }, RequestBody::RemoveVolume] {
            ctx.call_all(&nodes, &body).await;
        }
    }
    ctx.with(|core| core.fail(why));
}

impl VolumeCore {
    /// A node answered with an error on the way. If the fault is the node's own, the opening goes
    /// on without the node. Returns why the attempt failed, if another one may help.
    ///
    /// # Errors
    /// No further attempt can help.
    fn blame(
        &mut self,
        node: NodeIndex,
        error: NodeError,
    ) -> Result<AttemptFailure, VolumeFailure> {
        match &error {
            NodeError::InUse { current } => {
                return Err(VolumeFailure::InUse { current: *current });
            }
            // The node is gone, or another opening fenced it.
            NodeError::Unreachable | NodeError::Fenced { .. } => {}
            // As a rule, the node has just started, or its machine's clock is set back a moment
            // later than that of the volume.
            NodeError::Busy | NodeError::Capability(CapabilityError::Expired) => {
                self.node_mut(node).attempt.busy_answers += 1;
                if self.node(node).attempt.busy_answers >= BUSY_MAX {
                    self.leave_out(node, error.to_string());
                }
            }
            error => self.leave_out(node, error.to_string()),
        }
        Ok(AttemptFailure::Node { node, error })
    }

    /// The connection to a node was lost during the opening. A process that dies at each request,
    /// for example, would make every attempt fail.
    pub fn note_loss(&mut self, node: NodeIndex, reason: &str) {
        let long = self.now.since(self.attempts.began) >= Nanos::from_ms(LOSSES_MS_MAX);
        let state = self.node_mut(node);
        state.attempt.losses += 1;
        let losses = state.attempt.losses;
        if long && losses >= LOSSES_MAX && state.attempt.left_out.is_none() {
            self.leave_out(node, format!("lost {losses} times: {reason}"));
        }
    }

    /// Some nodes were late, and may be in time if they get more time to answer. An inspection does
    /// not wait longer for them: people wait for it.
    pub fn may_give_more_time(&self) -> bool {
        self.attempts.doublings < DOUBLINGS_MAX
            && self.config.opening != OpenMode::Inspect
            && self.nodes.iter().any(|node| node.attempt.late)
    }

    /// Too few nodes remain: each node that was left out gets another chance. If some of them were
    /// late, each node also gets twice the time to answer.
    pub fn let_all_in(&mut self) {
        self.attempts.doublings += u32::from(self.may_give_more_time());
        for node in &mut self.nodes {
            let last_reason = node.attempt.last_reason.take();
            node.attempt = NodeAttempt { last_reason, ..NodeAttempt::default() };
        }
    }

    /// Makes this opening go on without the node.
    pub fn leave_out(&mut self, node: NodeIndex, reason: String) {
        if self.node(node).attempt.left_out.is_none() {
            tracing::warn!(volume = %self.shape.name(), "opening without {node}: {reason}");
        }
        let state = self.node_mut(node);
        state.reason.clone_from(&reason);
        state.attempt.last_reason = Some(reason.clone());
        state.attempt.left_out = Some(reason);
    }

    /// The nodes that this opening has left out, each with its last reason.
    fn nodes_left_out(&self) -> Vec<(NodeIndex, String)> {
        let nodes = (0u16..).map(NodeIndex).zip(&self.nodes);
        nodes.filter_map(|(index, node)| Some((index, node.attempt.last_reason.clone()?))).collect()
    }

    fn forget_attempt(&mut self) {
        let ring_bytes = self.shape.geometry().ring_bytes;
        self.log = crate::log::Log::new(ring_bytes);
        self.map = crate::map::Map::new(self.shape.size_blocks());
        self.segments = crate::segment::SegmentTable::default();
        self.repair.damage = crate::damage::Damage::default();
        for node in &mut self.nodes {
            node.health = NodeHealth::Down;
        }
        self.attempts.attempt_began = self.now;
    }

    fn begin_serving(&mut self) {
        if !self.life.begin_serving() {
            return;
        }
        self.attempts.waits_for.clear();
        // An opening may give nodes more time. What is in flight gets the usual time from now on.
        let now = self.now;
        for node in &mut self.nodes {
            node.in_flight.iter_mut().for_each(|(sent, _)| *sent = now);
        }
        for handle in self.closed_segments() {
            self.spawn_with(move |ctx| seal(ctx, handle));
        }
        for node in self.nodes_that(|node| node.link.connected && node.health == NodeHealth::Down) {
            self.start_join(node);
        }
        for node in self.nodes_that(|node| node.health != NodeHealth::Up) {
            self.watch_absence(node);
        }
        if self.log.nodes.len() <= self.shape.code().m() && self.nodes_up() > self.log.nodes.len() {
            self.log.journal_move.request();
        }
        self.start_rebuild();
        self.start_reservation();
        self.spawn_with(crate::gc::keep_house);
        self.spawn_with(crate::watch::keep_watch);
    }
}

async fn attempt(ctx: &Ctx, connected: &[NodeIndex], began: Nanos) -> Result<(), Failure> {
    let opening = ctx.with(|core| core.config.opening.clone());
    if opening == OpenMode::Inspect {
        return inspect::inspect(ctx, connected).await;
    }
    let summaries = volumes(ctx, connected).await?;
    let known = summaries.iter().map(|summary| summary.epoch).max().unwrap_or_default();
    // An earlier attempt may have put its root on nodes that are away now. That root must not count
    // as newer than those of this one.
    let known = known.max(ctx.with(|core| core.attempts.epoch_tried));
    if let OpenMode::Create { .. } = opening {
        let exists = summaries.iter().any(|summary| summary.root_version > 0);
        if exists && !ctx.with(|core| core.attempts.creating) {
            return Err(VolumeFailure::Exists.into());
        }
        // From here on, an attempt of this opening made whatever the nodes have of the volume.
        ctx.with(|core| core.attempts.creating = true);
    }
    if opening == (OpenMode::Open { takeover: false }) {
        probe(ctx, connected).await?;
    }
    let (nodes, missing_max) = ctx.with(|core| (core.config.nodes, core.config.missing_max));
    let epoch = next_epoch(known, connected, nodes, missing_max);
    let states = fence(ctx, connected, epoch, &opening).await?;
    match opening {
        OpenMode::Create { name, profile, geometry, provisioning } => {
            ctx.with(|core| core.reservation.provisioning = provisioning);
            create(ctx, &states, name, profile.to_string(), geometry).await
        }
        OpenMode::Open { .. } | OpenMode::Inspect => recover(ctx, &states, began).await,
    }
}

/// The epoch of an opening that reaches `connected` of a pool's `nodes` nodes. The highest epoch
/// that these nodes know is `known`.
///
/// No two openings that serve may have the same epoch, because segments and journals are named by
/// epochs. If two openings reach a common node, the later one learns the other's epoch. In pools of
/// more than `2 * missing_max` nodes, two openings always reach a common node. In smaller pools,
/// two openings that reach no common node take different epochs, because their first nodes differ.
fn next_epoch(known: Epoch, connected: &[NodeIndex], nodes: u16, missing_max: u16) -> Epoch {
    let next = known.0 + 1;
    if nodes > missing_max.saturating_mul(2) {
        return Epoch(next);
    }
    let (nodes, first) = (u64::from(nodes), connected.iter().min().map_or(0, |node| node.0.into()));
    Epoch(next + (first + nodes - next % nodes) % nodes)
}

async fn volumes(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<Vec<VolumeSummary>, Failure> {
    let volume = ctx.with(|core| core.config.volume);
    let mut found = Vec::new();
    for (node, result) in ctx.call_all(nodes, &RequestBody::ListVolumes).await {
        if let Err(NodeError::Capability(error)) = result {
            return Err(foreign_node(ctx, node, error).await);
        }
        if let ReplyBody::Volumes(volumes) = result.blame(node)? {
            let is_of_it = |s: &VolumeSummary| s.volume == volume && s.is_usable();
            found.extend(volumes.into_iter().filter(is_of_it));
        }
    }
    Ok(found)
}

/// The error for a node that refuses the volume's capability, with the identity that the node
/// reports.
async fn foreign_node(ctx: &Ctx, node: NodeIndex, error: CapabilityError) -> Failure {
    if error == CapabilityError::Expired {
        return Failure::Node(node, NodeError::Capability(error));
    }
    let who = match ctx.call(node, RequestBody::Identify).await {
        Ok(ReplyBody::Stat(stat)) => format!("{} of the pool {}", stat.node, stat.pool),
        _ => "an unknown node".to_owned(),
    };
    Failure::Node(node, NodeError::Invalid(refusal(error, &who)))
}

/// Checks that no node holds the volume for a living writer before the opening fences any node.
/// Otherwise only some nodes might accept the fence, and their new epoch would shut the living
/// writer out. Epoch 0 is below every stored epoch, so the probe changes nothing.
async fn probe(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<(), Failure> {
    ctx.take_epoch(Epoch(0)).await;
    let mut failure = None;
    for (node, result) in ctx.call_all(nodes, &RequestBody::Fence { takeover: false }).await {
        match result {
            Ok(_) | Err(NodeError::Fenced { .. }) => {}
            // A living writer is more important than errors of other nodes.
            Err(error @ NodeError::InUse { .. }) => return Err(Failure::Node(node, error)),
            Err(error) => failure = failure.or(Some(Failure::Node(node, error))),
        }
    }
    failure.map_or(Ok(()), Err)
}

async fn fence(
    ctx: &Ctx,
    nodes: &[NodeIndex],
    epoch: Epoch,
    opening: &OpenMode,
) -> Result<Vec<(NodeIndex, VolumeState)>, Failure> {
    ctx.take_epoch(epoch).await;
    let sessions: Vec<u64> =
        ctx.with(|core| nodes.iter().map(|node| core.node(*node).link.session).collect());
    let takeover = matches!(opening, OpenMode::Open { takeover: true });
    let mut states = Vec::new();
    for (node, result) in ctx.call_all(nodes, &RequestBody::Fence { takeover }).await {
        match result.blame(node)? {
            ReplyBody::VolumeState(state) if state.stat.node == node => states.push((node, state)),
            ReplyBody::VolumeState(state) => {
                let text = format!("{} answers in its place", state.stat.node);
                return Err(Failure::Node(node, NodeError::Invalid(text)));
            }
            _ => {
                let text = "it does not say what it has of the volume".to_owned();
                return Err(Failure::Node(node, NodeError::Invalid(text)));
            }
        }
    }
    ctx.with(|core| {
        // A node may have been lost after it answered, while the others were waited for. If it
        // counted, it would never join: only a node that is down does.
        let mut asked = nodes.iter().zip(sessions);
        if let Some((node, _)) = asked.find(|(node, then)| core.node(**node).link.session != *then)
        {
            return Err(Failure::Node(*node, NodeError::Unreachable));
        }
        for (node, state) in &states {
            let node = core.node_mut(*node);
            node.health = NodeHealth::Up;
            node.stat = state.stat;
            node.reason.clear();
        }
        let highest = states.iter().flat_map(|(_, s)| &s.journals).map(|j| j.generation.0).max();
        core.committed.note_generation(JournalGen(highest.unwrap_or(0)));
        // Nodes take only higher versions, and may have versions that were never committed.
        let version = states.iter().map(|(_, s)| s.root_version).max();
        core.committed.start_after(version.unwrap_or(0));
        Ok(())
    })?;
    Ok(states)
}

/// Checks that the code can cut shards of these sizes into its elements.
fn check_divides(profile: Profile, geometry: &Geometry) -> Result<(), VolumeFailure> {
    let elements = profile.elements();
    let blocks = |bytes: u32| bytes / BLOCK_BYTES as u32;
    let step_blocks = step_blocks(blocks(geometry.unit_bytes), elements);
    let shard_blocks = blocks(geometry.shard_bytes);
    let chunk_blocks = match geometry.chunk_bytes {
        0 => shard_blocks,
        bytes => blocks(bytes),
    };
    let divides = |blocks: u32, parts: u32| parts > 0 && blocks > 0 && blocks.is_multiple_of(parts);
    if divides(chunk_blocks, step_blocks) && divides(shard_blocks, chunk_blocks) {
        return Ok(());
    }
    Err(VolumeFailure::ShardsDoNotDivide {
        profile: profile.to_string(),
        elements,
        shard_bytes: geometry.shard_bytes,
        chunk_bytes: chunk_blocks as usize * BLOCK_BYTES,
        unit_bytes: geometry.unit_bytes,
    })
}

async fn create(
    ctx: &Ctx,
    states: &[(NodeIndex, VolumeState)],
    name: String,
    profile: String,
    geometry: Geometry,
) -> Result<(), Failure> {
    let slot = states.iter().map(|(_, state)| state.stat.slot_bytes).min().unwrap_or(0);
    if geometry.shard_bytes > slot {
        return Err(VolumeFailure::ShardsTooLarge {
            shard_bytes: geometry.shard_bytes,
            slot_bytes: slot,
        }
        .into());
    }
    ctx.with(|core| check_divides(core.shape.profile(), &geometry))?;
    if let Some(why) = ctx.with(|core| core.too_large(geometry.size_bytes)) {
        return Err(VolumeFailure::TooLarge(why).into());
    }
    let root = ctx.with(|core| Root {
        version: 0,
        volume: core.config.volume,
        epoch: core.writer.epoch(),
        put_by: core.writer.epoch(),
        geometry,
        generation: JournalGen(0),
        journal_nodes: Vec::new(),
        checkpoint_lsn: Lsn(0),
        checkpoint_bytes: 0,
        trimmed: Lsn(0),
        checkpoint_segments: Vec::new(),
        clean: false,
        provisioning: core.reservation.provisioning,
        name,
        profile,
    });
    let thin = ctx.with(|core| core.reservation.provisioning == Provisioning::Thin);
    if let Err(refused) = reserve_for_size(ctx, geometry.size_bytes, thin).await {
        return Err(match refused.is_passing() {
            true => AttemptFailure::Reservation(refused).into(),
            false => VolumeFailure::NoRoom(refused).into(),
        });
    }
    // Earlier attempts may have left journals. No root names these.
    let nodes: Vec<NodeIndex> = states.iter().map(|(node, _)| *node).collect();
    let below = garbage::beyond_all(states);
    let all = RequestBody::JournalDelete { first: JournalGen(0), below };
    ctx.call_all(&nodes, &all).await;
    commit(ctx, root, Lsn(0), None).await
}

/// Starts a new journal generation at `base` and commits the root that names it.
async fn commit(
    ctx: &Ctx,
    mut root: Root,
    base: Lsn,
    replay: Option<Vec<(Entry, Bytes)>>,
) -> Result<(), Failure> {
    let (generation, nodes) = make_journal(ctx, root.generation).await?;
    ctx.with(|core| core.log.start_at(generation, nodes.clone(), base));
    if let Some(replay) = replay {
        append_replayed(ctx, replay).await?;
        let results = ctx.call_all(&nodes, &RequestBody::JournalSync { generation }).await;
        for (node, result) in results {
            result.blame(node)?;
        }
        ctx.with(|core| {
            let acked = core.log.acked;
            core.synced_up_to(acked);
        });
    }
    let up = ctx.with(|core| {
        core.committed.note_version(root.version);
        root.version = core.committed.next_version();
        (root.epoch, root.put_by) = (core.writer.epoch(), core.writer.epoch());
        root.generation = generation;
        root.journal_nodes.clone_from(&nodes);
        root.trimmed = core.log.trimmed;
        root.clean = false;
        core.up_nodes()
    });
    if !put_root_on(ctx, &root, &up).await {
        return Err(AttemptFailure::RootNotTaken.into());
    }
    if ctx.with(|core| core.log.journal_move.has_to_move()) {
        // The root is committed. The journal moves as soon as the volume serves.
        tracing::debug!("a journal node was lost at the end of opening");
    }
    Ok(())
}

/// Creates the writer's first journal. If a node has no room for it, the next try is on the others:
/// a new attempt of the whole opening may take longer than the volume remembers the refusal.
async fn make_journal(
    ctx: &Ctx,
    after: JournalGen,
) -> Result<(JournalGen, Vec<NodeIndex>), Failure> {
    let tries = ctx.with(|core| core.nodes.len());
    for _ in 0..tries {
        let (generation, nodes, refusals) = ctx.with(|core| {
            let generation = core.committed.next_generation(after);
            (generation, core.choose_journal_nodes(generation), core.journals_refused())
        });
        if !nodes.is_empty() && write_generation(ctx, generation, &nodes).await {
            return Ok((generation, nodes));
        }
        let over = ctx.with(|core| !core.life.is_opening() || core.journals_refused() <= refusals);
        if over {
            break;
        }
    }
    Err(AttemptFailure::Journal(ctx.with(|core| core.why_no_journal())).into())
}

/// Appends the replayed changes to the log, a bounded part at a time.
async fn append_replayed(ctx: &Ctx, replay: Vec<(Entry, Bytes)>) -> Result<(), Failure> {
    let mut waiting = std::collections::VecDeque::new();
    for (entry, data) in replay {
        let (filler, awaited) = oneshot();
        ctx.with(|core| core.queue_internal(entry, data, None, filler));
        waiting.push_back(awaited);
    }
    // Only the log itself shows that a node was lost, so the loop polls the log instead of awaiting
    // it.
    loop {
        let (idle, broken, over) = ctx.with(|core| {
            let over = core.life.is_over();
            // With fewer nodes than needed, no segment becomes durable, and no room in the ring
            // becomes free.
            (core.log.idle(), core.log.journal_move.has_to_move() || !core.writable(), over)
        });
        if broken || over {
            return Err(AttemptFailure::NodeLost.into());
        }
        if idle {
            return Ok(());
        }
        if ctx.with(|core| core.log.replay_is_held() && !core.ring_has_room()) {
            store_replayed(ctx).await?;
        } else {
            ctx.sleep_ms(1).await;
        }
    }
}

/// Stores the changes replayed so far, because the ring has no room for the rest.
async fn store_replayed(ctx: &Ctx) -> Result<(), Failure> {
    let closed = ctx.with(|core| {
        core.close_open_segment();
        core.closed_segments()
    });
    for handle in &closed {
        seal(ctx.clone(), *handle).await;
    }
    sync_segments(ctx).await;
    let stored = ctx.with(|core| closed.iter().all(|handle| core.is_durable(*handle)));
    match stored {
        true => Ok(()),
        false => Err(AttemptFailure::ReplayNotStored.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_large_pool_counts_its_openings() {
        assert_eq!(next_epoch(Epoch(7), &[NodeIndex(3)], 5, 2), Epoch(8));
    }

    proptest! {
        /// No matter which nodes the openings reach, openings that do not learn of each other have
        /// different epochs.
        #[test]
        fn openings_that_reach_no_common_node_differ(
            nodes in 2u16..9,
            first_known in 0u64..1000,
            second_known in 0u64..1000,
            split in any::<u16>(),
        ) {
            let chosen = |node: &u16| split >> node & 1 == 1;
            let (one, other): (Vec<u16>, Vec<u16>) = (0..nodes).partition(chosen);
            prop_assume!(!one.is_empty() && !other.is_empty());
            let indices = |nodes: &[u16]| nodes.iter().map(|n| NodeIndex(*n)).collect::<Vec<_>>();
            let first = next_epoch(Epoch(first_known), &indices(&one), nodes, nodes - 1);
            let second = next_epoch(Epoch(second_known), &indices(&other), nodes, nodes - 1);
            prop_assert_ne!(first, second);
            prop_assert!(first.0 > first_known && first.0 <= first_known + u64::from(nodes));
        }
    }
}
