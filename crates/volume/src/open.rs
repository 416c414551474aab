//! Opening a volume: fence the nodes, load the checkpoint, replay the log, start anew.
//!
//! 1. *Fence*: every reachable node gets an epoch above all that any of them knows, and refuses the
//!    writer before from then on. All but `missing_max` of the nodes must take part; any such set
//!    meets every set that a root was committed on.
//! 2. *Root*: the newest found, by epoch and version. It names checkpoint, journal and epoch.
//! 3. *Segments*: nodes list their shards. Segments of the checkpoint count, and after it the chain
//!    of segments of the root's epoch, each beginning at the log position where the one before
//!    ended. Shards that the checkpoint does not name are verified (see `vouch`). A segment of which
//!    fewer than k shards are good ends the chain, unless it is known to have been durable.
//! 4. *Journal*: valid records of the generation, from any of its nodes, give further chains.
//!    Replay starts at that segment boundary from which the records reach furthest, the latest of
//!    those: what good segments hold is not replayed, because records that were trimmed may survive
//!    in fewer rings than a loss of nodes takes. If the log does not reach as far as the root or a
//!    record says that it was trimmed, the opening refuses, and has deleted nothing. Segments of
//!    which the writer before may not have written all shards are made whole. Records without
//!    their blocks (see `rows`) get them from the shards first.
//! 5. *New start*: a new generation at fresh log positions takes what was replayed, a new checkpoint
//!    and a root are written, and only that root makes the opening count: a crash before it finds
//!    everything as it was. Whatever the new root does not name is then deleted.
//!
//! If a node is lost on the way, the opening starts over with what is left, with a higher epoch.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::{
    BLOCK_BYTES, Epoch, JournalGen, Lsn, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId,
    SegmentKind, ShardInfo, VolumeState, VolumeSummary, crc32c_blocks,
};
use smallvec::SmallVec;

use crate::core::{Core, Ctx};
use crate::detached::{Places, read_detached};
use crate::exec::slot;
use crate::gc::{free_segments, join, read_footer, store_checkpoint};
use crate::journal::{put_root_on, write_generation};
use crate::map::Location;
use crate::nodes::wait_for_nodes;
use crate::read::read_segment;
use crate::rebuild::{list_shards, rebuild_segment};
use crate::record::{Entry, EntryKind, HEADER_BYTES, Header};
use crate::root::Root;
use crate::seam::Opening;
use crate::segment::{Segment, State, epoch_of};
use crate::status::{NodeHealth, Phase};
use crate::vouch::{Listed, settle};

/// How long to wait for all nodes before going on without the missing ones.
const GRACE_MS: u64 = 1_000;
/// Times that an opening starts over, with longer and longer pauses: a minute in all.
const ATTEMPTS_MAX: u32 = 64;
/// How long an opening after a crash waits for missing nodes that may have what no other has.
const PATIENCE_MS: u64 = 5_000;
/// Longest pause between two attempts.
const PAUSE_MS_MAX: u64 = 1_000;
/// Bytes of the ring that are asked for at a time.
const RING_READ_BYTES: u64 = 1 << 20;

/// Why an opening did not work out.
enum Failure {
    /// Something changed on the way: start over.
    Again(String),
    /// It cannot work.
    Final(String),
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::InUse { .. } => Failure::Final(format!(
                "{error}: stop that server, or open with takeover if it is gone for good"
            )),
            other => Failure::Again(other.to_string()),
        }
    }
}

/// Opens (or creates) the volume.
pub async fn open(ctx: Ctx) {
    let mut why = String::new();
    let patient_until = ctx.with(|core| core.now.plus(Nanos::from_ms(PATIENCE_MS)));
    for attempt_number in 0..u64::from(ATTEMPTS_MAX) {
        let connected = match wait_for_nodes(&ctx, GRACE_MS).await {
            Ok(connected) => connected,
            Err(error) => return ctx.with(|core| core.fail(error)),
        };
        match attempt(&ctx, &connected, patient_until).await {
            Ok(()) => return ctx.with(Core::begin_serving),
            Err(Failure::Final(error)) => return ctx.with(|core| core.fail(error)),
            Err(Failure::Again(error)) => why = error,
        }
        if ctx.with(|core| matches!(core.phase, Phase::Failed(_) | Phase::Closed)) {
            return;
        }
        ctx.with(Core::forget_attempt);
        ctx.sleep_ms((20 * (attempt_number + 1)).min(PAUSE_MS_MAX)).await;
    }
    ctx.with(|core| core.fail(format!("opening failed {ATTEMPTS_MAX} times, at last: {why}")));
}

impl Core {
    fn forget_attempt(&mut self) {
        let ring_bytes = self.geometry.ring_bytes;
        self.log = crate::log::Log::new(ring_bytes);
        self.map = crate::map::Map::new(self.geometry.size_bytes / BLOCK_BYTES as u64);
        self.segments = crate::segment::SegmentTable::default();
        self.segments_made = 0;
        self.damage = crate::damage::Damage::default();
        for node in &mut self.nodes {
            node.health = NodeHealth::Down;
        }
        self.opened_at = self.now;
    }

    fn begin_serving(&mut self) {
        if self.phase != Phase::Opening {
            return;
        }
        self.phase = Phase::Serving;
        for node in self.nodes_that(|node| node.connected && node.health == NodeHealth::Down) {
            self.start_join(node);
        }
        if self.log.nodes.len() <= self.code.m() && self.nodes_up() > self.log.nodes.len() {
            self.log.moving = true;
        }
        self.start_rebuild();
        self.consider_gc();
    }
}

async fn attempt(ctx: &Ctx, connected: &[NodeIndex], patient_until: Nanos) -> Result<(), Failure> {
    let summaries = volumes(ctx, connected).await?;
    let known = summaries.iter().map(|summary| summary.epoch).max().unwrap_or_default();
    let opening = ctx.with(|core| core.config.opening.clone());
    if let Opening::Create { .. } = opening
        && summaries.iter().any(|summary| summary.root_version > 0)
    {
        return Err(Failure::Final("the volume exists already".into()));
    }
    if opening == (Opening::Open { takeover: false }) {
        probe(ctx, connected).await?;
    }
    let states = fence(ctx, connected, Epoch(known.0 + 1), &opening).await?;
    match opening {
        Opening::Create { name, profile, geometry } => {
            create(ctx, &states, name, profile.to_string(), geometry).await
        }
        Opening::Open { .. } => recover(ctx, &states, patient_until).await,
    }
}

async fn volumes(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<Vec<VolumeSummary>, Failure> {
    let volume = ctx.with(|core| core.config.volume);
    let mut found = Vec::new();
    for (_, result) in ctx.call_all(nodes, &RequestBody::ListVolumes).await {
        if let ReplyBody::Volumes(volumes) = result? {
            found.extend(volumes.into_iter().filter(|summary| summary.volume == volume));
        }
    }
    Ok(found)
}

/// Makes sure that no node holds the volume for a living writer before any is fenced. A fence that
/// only some nodes accept would leave them with an epoch that shuts the living writer out. Epoch 0
/// is below every stored one, so nothing changes.
async fn probe(ctx: &Ctx, nodes: &[NodeIndex]) -> Result<(), Failure> {
    ctx.with(|core| core.set_epoch(Epoch(0)));
    for (_, result) in ctx.call_all(nodes, &RequestBody::Fence { takeover: false }).await {
        match result {
            Ok(_) | Err(NodeError::Fenced { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn fence(
    ctx: &Ctx,
    nodes: &[NodeIndex],
    epoch: Epoch,
    opening: &Opening,
) -> Result<Vec<(NodeIndex, VolumeState)>, Failure> {
    ctx.with(|core| core.set_epoch(epoch));
    let takeover = matches!(opening, Opening::Open { takeover: true });
    let mut states = Vec::new();
    for (node, result) in ctx.call_all(nodes, &RequestBody::Fence { takeover }).await {
        match result? {
            ReplyBody::VolumeState(state) => states.push((node, state)),
            _ => return Err(Failure::Again(format!("{node} did not say what it has"))),
        }
    }
    ctx.with(|core| {
        for (node, state) in &states {
            let node = core.node_mut(*node);
            node.health = NodeHealth::Up;
            node.stat = state.stat;
            node.reason.clear();
        }
        let highest = states.iter().flat_map(|(_, s)| &s.journals).map(|j| j.generation.0).max();
        core.journals_made = core.journals_made.max(highest.unwrap_or(0));
        // Nodes take only higher versions, and may have some that never counted.
        core.root_version = states.iter().map(|(_, s)| s.root_version).max().unwrap_or(0);
    });
    Ok(states)
}

async fn create(
    ctx: &Ctx,
    states: &[(NodeIndex, VolumeState)],
    name: String,
    profile: String,
    geometry: crate::seam::Geometry,
) -> Result<(), Failure> {
    let slot = states.iter().map(|(_, state)| state.stat.slot_bytes).min().unwrap_or(0);
    if geometry.shard_bytes > slot {
        return Err(Failure::Final(format!(
            "shards of {} bytes do not fit in the nodes' slots of {slot} bytes",
            geometry.shard_bytes
        )));
    }
    let root = ctx.with(|core| Root {
        version: 0,
        volume: core.config.volume,
        epoch: core.epoch,
        geometry,
        generation: JournalGen(0),
        journal_nodes: Vec::new(),
        checkpoint_lsn: Lsn(0),
        checkpoint_bytes: 0,
        trimmed: Lsn(0),
        checkpoint_segments: Vec::new(),
        clean: false,
        name,
        profile,
    });
    ctx.with(|core| core.root_version = 0);
    commit(ctx, root, Lsn(0), None).await
}

/// Starts a new journal generation at `base` and commits the root that names it.
async fn commit(
    ctx: &Ctx,
    mut root: Root,
    base: Lsn,
    replay: Option<Vec<(Entry, Bytes)>>,
) -> Result<(), Failure> {
    let (generation, nodes) = ctx.with(|core| {
        core.journals_made = core.journals_made.max(root.generation.0) + 1;
        let generation = JournalGen(core.journals_made);
        (generation, core.choose_journal_nodes(generation))
    });
    if nodes.is_empty() || !write_generation(ctx, generation, &nodes).await {
        return Err(Failure::Again("a journal could not be made".into()));
    }
    ctx.with(|core| {
        core.log.start_at(generation, nodes.clone(), base);
        core.log.moving = false;
    });
    if let Some(replay) = replay {
        append_replayed(ctx, replay).await?;
        let results = ctx.call_all(&nodes, &RequestBody::JournalSync { generation }).await;
        for (_, result) in results {
            result?;
        }
        ctx.with(|core| {
            let acked = core.log.acked;
            core.synced_up_to(acked);
        });
    }
    let up = ctx.with(|core| {
        core.root_version = core.root_version.max(root.version) + 1;
        root.version = core.root_version;
        root.epoch = core.epoch;
        root.generation = generation;
        root.journal_nodes.clone_from(&nodes);
        root.trimmed = core.log.trimmed;
        root.clean = false;
        core.up_nodes()
    });
    if !put_root_on(ctx, &root, &up).await {
        return Err(Failure::Again("too few nodes took the root".into()));
    }
    if ctx.with(|core| core.log.moving) {
        // The root is committed; the journal moves as soon as the volume serves.
        tracing::debug!("a journal node was lost at the end of opening");
    }
    Ok(())
}

/// Sends what was replayed through the log, a bounded part at a time.
async fn append_replayed(ctx: &Ctx, replay: Vec<(Entry, Bytes)>) -> Result<(), Failure> {
    let mut waiting = std::collections::VecDeque::new();
    for (entry, data) in replay {
        let (filler, awaited) = slot();
        ctx.with(|core| core.queue_internal(entry, data, None, filler));
        waiting.push_back(awaited);
    }
    // Only the log itself can tell that a node was lost, so it is looked at, not awaited.
    loop {
        let (idle, broken, over) = ctx.with(|core| {
            let over = matches!(core.phase, Phase::Failed(_) | Phase::Closed);
            // Fewer nodes than are needed: nothing becomes durable, and no room in the ring free.
            (core.log.idle(), core.log.moving || !core.writable(), over)
        });
        if broken || over {
            return Err(Failure::Again("a node was lost".into()));
        }
        if idle {
            return Ok(());
        }
        if ctx.with(|core| core.log.used_bytes() * 2 > core.log.ring_bytes) {
            ctx.with(Core::close_open_segment);
            crate::seal::sync_segments(ctx).await;
        } else {
            ctx.sleep_ms(1).await;
        }
    }
}

async fn recover(
    ctx: &Ctx,
    states: &[(NodeIndex, VolumeState)],
    patient_until: Nanos,
) -> Result<(), Failure> {
    let root = newest_root(ctx, states)?;
    if !root.clean {
        wait_for_journal(ctx, &root, states, patient_until).await?;
    }
    let profile: fieldstone_codes::Profile = root
        .profile
        .parse()
        .map_err(|error| Failure::Final(format!("profile {}: {error}", root.profile)))?;
    ctx.with(|core| core.adopt(root.name.clone(), profile, root.geometry));
    let nodes: Vec<NodeIndex> = states.iter().map(|(node, _)| *node).collect();
    let mut listed = Listed::new();
    let mut open: Vec<(NodeIndex, SegmentId)> = Vec::new();
    let mut places = Places::new();
    for node in &nodes {
        for info in list_shards(ctx, *node).await? {
            places.entry(info.segment).or_default().push((info.shard, *node));
            if info.is_open() {
                open.push((*node, info.segment));
            } else {
                listed.entry(info.segment).or_default().push((*node, info));
            }
        }
    }
    load_checkpoint(ctx, &root, &listed).await?;
    let mut records = match root.clean {
        true => Records::new(),
        false => read_rings(ctx, &root, states).await?,
    };
    let trimmed = trimmed_up_to(&root, &records);
    let chain = find_chain(ctx, &root, &listed, trimmed).await?;
    let sources = attach(ctx, &root, &chain, &mut records, &places).await?;
    let start = choose_start(&root, &chain, &records);
    check_nothing_lost(&root, start, trimmed, &records)?;
    if ctx.with(|core| nodes.len() < core.nodes.len() && core.now < patient_until) {
        check_not_cut_short(&root, start, &records)?;
    }
    // Nothing is deleted before it is known that nothing is lost, now or with the next node: a root
    // that only some nodes have may never have been committed, and the one before it still needs
    // what this one does without.
    if states.iter().any(|(_, state)| state.root_version != root.version)
        && !put_root_on(ctx, &root, &nodes).await
    {
        return Err(Failure::Again("too few nodes took the root that was found".into()));
    }
    discard_leftovers(ctx, &root, &mut listed).await;
    replay_footers(ctx, &chain, start).await?;
    let highest = highest_lsn(&root, &listed, &records);
    let replay = replay_records(ctx, start, &records, root.geometry.ring_bytes);
    sync_rings(ctx, &root, states).await?;
    // What the old chain holds is named by the new checkpoint; everything else is garbage.
    let ring = root.geometry.ring_bytes;
    let base = Lsn((highest.0 / ring + 2) * ring);
    ctx.with(|core| core.drop_segments_from(&chain, start));
    // What is replayed is stable in the rings: its segments give the room that it takes again, so
    // that a full pool can be opened however often.
    let garbage = listed.iter().filter(|(id, _)| !sources.contains(id));
    let garbage = garbage.map(|(id, shards)| (*id, shards.clone())).collect();
    discard_garbage(ctx, &garbage, false).await;
    strengthen(ctx, &chain, start, trimmed).await;
    let bytes = ctx.with(|core| {
        core.placement_changed = false;
        let blocks = core.geometry.size_bytes / BLOCK_BYTES as u64;
        crate::checkpoint::encode(&core.map, &core.segments, blocks)
    });
    // The new checkpoint vouches for the shards it names: they must be stable, and the bad ones
    // must not come back with a power loss.
    let up = ctx.with(|core| core.up_nodes());
    for (_, result) in ctx.call_all(&up, &RequestBody::ShardSync).await {
        result?;
    }
    let handles = store_checkpoint(ctx, &bytes)
        .await
        .ok_or_else(|| Failure::Again("the checkpoint could not be written".into()))?;
    let old_checkpoint = root.checkpoint_segments.clone();
    let mut root = root;
    root.checkpoint_lsn = base;
    root.checkpoint_bytes = bytes.len() as u64;
    root.checkpoint_segments = ctx.with(|core| {
        handles.iter().filter_map(|handle| Some(core.segments.get(*handle)?.id)).collect()
    });
    commit(ctx, root, base, Some(replay)).await?;
    let old = ctx.with(|core| {
        old_checkpoint.iter().filter_map(|id| core.segments.find(*id)).collect::<Vec<_>>()
    });
    free_segments(ctx, &old).await;
    discard_garbage(ctx, &listed, true).await;
    discard_open(ctx, &open).await;
    Ok(())
}

fn newest_root(ctx: &Ctx, states: &[(NodeIndex, VolumeState)]) -> Result<Root, Failure> {
    let mut newest: Option<(NodeIndex, Root)> = None;
    for (node, state) in states.iter().filter(|(_, state)| state.root_version > 0) {
        let root = Root::decode(&state.root)
            .map_err(|error| Failure::Final(format!("root on {node}: {error}")))?;
        let newer = |(_, known): &(NodeIndex, Root)| {
            (root.epoch, root.version) > (known.epoch, known.version)
        };
        if newest.as_ref().is_none_or(newer) {
            newest = Some((*node, root));
        }
    }
    let Some((node, root)) = newest else {
        return Err(Failure::Final("no node has a root of the volume: it does not exist".into()));
    };
    let knowing = states.iter().filter(|(_, state)| state.root_version > 0).count();
    let needed = ctx.with(|core| core.nodes_needed());
    if knowing < needed {
        return Err(Failure::Again(format!(
            "only {knowing} of the nodes know the volume, {needed} are needed: the others are empty"
        )));
    }
    let volume = ctx.with(|core| core.config.volume);
    if root.volume != volume {
        return Err(Failure::Final(format!("the root on {node} is of volume {}", root.volume)));
    }
    Ok(root)
}

impl Core {
    /// Adds a segment whose shards the nodes have listed.
    fn insert_listed(
        &mut self,
        id: SegmentId,
        kind: SegmentKind,
        lsn: (Lsn, Lsn),
        shard_bytes: u32,
        listed: &[(NodeIndex, ShardInfo)],
    ) -> crate::segment::Handle {
        let mut shards: SmallVec<[Option<NodeIndex>; 8]> =
            SmallVec::from_elem(None, self.layout.width());
        for (node, info) in listed {
            let index = usize::from(info.shard.0);
            if index < shards.len()
                && info.meta.shard_bytes == shard_bytes
                && info.meta.kind == kind
                && shards[index].is_none()
            {
                shards[index] = Some(*node);
            }
        }
        self.segments.insert(Segment {
            id,
            kind,
            state: State::Durable,
            lsn_first: lsn.0,
            lsn_end: lsn.1,
            shard_bytes,
            shards,
            live_blocks: 0,
            contents: None,
            rows: None,
            detached: false,
        })
    }

    /// Takes the segments at and behind the start of the replay out again: their records are
    /// appended anew.
    fn drop_segments_from(&mut self, chain: &[Link], start: Lsn) {
        for link in chain.iter().filter(|link| link.first >= start) {
            self.segments.remove(link.handle);
        }
    }

    fn apply(&mut self, handle: crate::segment::Handle, entry: &Entry) {
        let blocks = self.geometry.size_bytes / BLOCK_BYTES as u64;
        let end = (entry.block + u64::from(entry.count)).min(blocks);
        match entry.kind {
            EntryKind::Data => {
                for (block, i) in (entry.block..end).zip(0u32..) {
                    let location = Location::at(handle, entry.segment_block + i);
                    let before = self.map.set(block, location);
                    self.forget(before);
                    if let Some(segment) = self.segments.get_mut(handle) {
                        segment.live_blocks += 1;
                    }
                }
            }
            EntryKind::Trim => self.clear_map(entry.block..end, Location::HOLE),
            EntryKind::Reserve => self.clear_map(entry.block..end, Location::RESERVED),
        }
    }
}

async fn load_checkpoint(ctx: &Ctx, root: &Root, listed: &Listed) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    for id in &root.checkpoint_segments {
        let shards = listed.get(id).map_or(&[][..], Vec::as_slice);
        let shard_bytes = shards.first().map_or(0, |(_, info)| info.meta.shard_bytes);
        let handle = ctx.with(|core| {
            let kind = SegmentKind::Checkpoint;
            core.insert_listed(*id, kind, (Lsn(0), Lsn(0)), shard_bytes, shards)
        });
        // It is read in full right away, so only which form of a shard to read is in doubt.
        let doubtful = ctx.with(|core| {
            let found = core.segments.get(handle).map(|s| s.shards.clone()).unwrap_or_default();
            core.doubtful(handle, shards, &found)
        });
        settle(ctx, &doubtful).await?;
        let blocks = ctx.with(|core| shard_bytes / BLOCK_BYTES as u32 * core.layout.k);
        let data = read_segment(ctx, handle, 0, blocks).await.map_err(|error| {
            Failure::Again(format!("the checkpoint (segment {id}) cannot be read: {error}"))
        })?;
        bytes.extend_from_slice(&join(data));
    }
    if root.checkpoint_bytes == 0 {
        return Ok(());
    }
    let length = usize::try_from(root.checkpoint_bytes).unwrap_or(usize::MAX);
    let bytes = bytes
        .get(..length)
        .ok_or_else(|| Failure::Again("the checkpoint is shorter than the root says".into()))?;
    let checkpoint = crate::checkpoint::decode(bytes)
        .map_err(|error| Failure::Final(format!("checkpoint: {error}")))?;
    let doubtful = ctx.with(|core| {
        let mut handles = Vec::with_capacity(checkpoint.segments.len());
        let mut doubtful = Vec::new();
        for record in &checkpoint.segments {
            let shards = listed.get(&record.id).map_or(&[][..], Vec::as_slice);
            let lsn = (record.lsn_first, record.lsn_end);
            let kind = SegmentKind::Data;
            let handle = core.insert_listed(record.id, kind, lsn, record.shard_bytes, shards);
            doubtful.extend(core.doubtful(handle, shards, &record.shards));
            handles.push(handle);
        }
        for run in &checkpoint.runs {
            for i in 0..run.count {
                let location = match run.place {
                    None => Location::RESERVED,
                    Some((index, at)) => Location::at(handles[index as usize], at + i),
                };
                core.map.set(run.block + u64::from(i), location);
            }
            if let Some((index, _)) = run.place
                && let Some(segment) = core.segments.get_mut(handles[index as usize])
            {
                segment.live_blocks += run.count;
            }
        }
        doubtful
    });
    settle(ctx, &doubtful).await?;
    Ok(())
}

/// A record found in a ring.
struct Found {
    header: Header,
    /// Its blocks; those of a detached record are fetched if they are needed.
    payload: Option<Bytes>,
}

type Records = BTreeMap<Lsn, Found>;

/// Reads the journal's rings and keeps the valid records of its generation.
async fn read_rings(
    ctx: &Ctx,
    root: &Root,
    states: &[(NodeIndex, VolumeState)],
) -> Result<Records, Failure> {
    let mut records = Records::new();
    for (node, state) in states {
        let journal = state.journals.iter().find(|j| j.generation == root.generation);
        let Some(journal) = journal else { continue };
        let mut ring = Vec::new();
        let mut at = 0;
        while at < journal.ring_bytes {
            let len = RING_READ_BYTES.min(journal.ring_bytes - at);
            let body = RequestBody::JournalRead {
                generation: root.generation,
                offset_bytes: at,
                len_bytes: u32::try_from(len).expect("a mebibyte"),
            };
            match ctx.call(*node, body).await {
                Ok(ReplyBody::Data(data)) => ring.push(data),
                Ok(_) => return Err(Failure::Again(format!("{node}: not ring bytes"))),
                Err(NodeError::Unreachable) => return Err(NodeError::Unreachable.into()),
                // A part that cannot be read may be whole on another node.
                Err(_) => ring.push(fieldstone_buf::zeroes(usize::try_from(len).expect("small"))),
            }
            at += len;
        }
        let ring = join(ring);
        let volume = ctx.with(|core| core.config.volume);
        scan_ring(&ring, root, volume, &mut records);
    }
    Ok(records)
}

/// Waits a while for the nodes of the journal that are missing. Every acknowledged write is on all of
/// them, but m nodes may have lost what they had, and nothing tells that of a ring: as long as all are
/// there, one of them has everything.
async fn wait_for_journal(
    ctx: &Ctx,
    root: &Root,
    states: &[(NodeIndex, VolumeState)],
    patient_until: Nanos,
) -> Result<(), Failure> {
    let takes_part = |node: &NodeIndex| states.iter().any(|(present, _)| present == node);
    let missing: Vec<NodeIndex> =
        root.journal_nodes.iter().copied().filter(|node| !takes_part(node)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    tracing::info!(?missing, "waiting for nodes that have a copy of the journal");
    loop {
        let (came, over) = ctx.with(|core| {
            let came = missing.iter().copied().find(|node| core.node(*node).connected);
            let closed = matches!(core.phase, Phase::Failed(_) | Phase::Closed);
            (came, closed || core.now >= patient_until)
        });
        if let Some(node) = came {
            return Err(Failure::Again(format!("{node} came while the volume was opened")));
        }
        if over {
            return Ok(());
        }
        ctx.sleep_ms(20).await;
    }
}

/// Makes the rings that the replay relies on stable.
async fn sync_rings(
    ctx: &Ctx,
    root: &Root,
    states: &[(NodeIndex, VolumeState)],
) -> Result<(), Failure> {
    let generation = root.generation;
    let holds = |state: &VolumeState| state.journals.iter().any(|j| j.generation == generation);
    let nodes: Vec<NodeIndex> =
        states.iter().filter(|(_, state)| holds(state)).map(|(node, _)| *node).collect();
    for (_, result) in ctx.call_all(&nodes, &RequestBody::JournalSync { generation }).await {
        result?;
    }
    Ok(())
}

fn scan_ring(ring: &Bytes, root: &Root, volume: fieldstone_proto::VolumeId, records: &mut Records) {
    let mut at = 0;
    while at + HEADER_BYTES <= ring.len() {
        let block = ring.slice(at..at + HEADER_BYTES);
        let place = at as u64;
        at += BLOCK_BYTES;
        let Ok(header) = Header::decode(&block, volume) else { continue };
        let good = header.generation == root.generation
            && header.lsn.0 % ring.len() as u64 == place
            && !records.contains_key(&header.lsn);
        let from = place as usize + HEADER_BYTES;
        let to = from + header.checksums.len() * BLOCK_BYTES;
        if !good || to > ring.len() {
            continue;
        }
        if header.detached {
            records.insert(header.lsn, Found { header, payload: None });
            continue;
        }
        let payload = ring.slice(from..to);
        if crc32c_blocks(&payload) == header.checksums {
            records.insert(header.lsn, Found { header, payload: Some(payload) });
        }
    }
}

/// Gets the blocks of the detached records that may be replayed: those behind the checkpoint, of
/// segments that are not in the chain. Tells which segments the blocks come from.
async fn attach(
    ctx: &Ctx,
    root: &Root,
    chain: &[Link],
    records: &mut Records,
    places: &Places,
) -> Result<HashSet<SegmentId>, Failure> {
    let chained: HashSet<SegmentId> = ctx.with(|core| {
        chain.iter().filter_map(|link| Some(core.segments.get(link.handle)?.id)).collect()
    });
    let mut sources = HashSet::new();
    for (_, found) in records.range_mut(root.checkpoint_lsn..) {
        let segment = found.header.segment;
        if found.payload.is_some() || chained.contains(&segment) {
            continue;
        }
        found.payload = read_detached(ctx, &found.header, places).await?;
        if found.payload.is_some() {
            sources.insert(segment);
        }
    }
    Ok(sources)
}

/// A segment of the chain.
struct Link {
    handle: crate::segment::Handle,
    first: Lsn,
    end: Lsn,
}

/// The chain of segments behind the checkpoint. All its shards are verified, for nothing vouches for
/// them; a segment that was durable once stays in it whatever is left of it.
async fn find_chain(
    ctx: &Ctx,
    root: &Root,
    listed: &Listed,
    trimmed: Lsn,
) -> Result<Vec<Link>, Failure> {
    let mut by_start: HashMap<Lsn, SegmentId> = HashMap::new();
    for (id, shards) in listed {
        let meta = shards[0].1.meta;
        if epoch_of(*id) == root.epoch
            && meta.kind == SegmentKind::Data
            && meta.lsn_first >= root.checkpoint_lsn
            && ctx.with(|core| core.segments.find(*id).is_none())
        {
            by_start.insert(meta.lsn_first, *id);
        }
    }
    let mut chain = Vec::new();
    let mut at = root.checkpoint_lsn;
    while let Some(id) = by_start.get(&at) {
        let shards = &listed[id];
        let meta = shards[0].1.meta;
        if meta.lsn_end <= at {
            break;
        }
        let k = ctx.with(|core| core.code.k());
        let handle = ctx.with(|core| {
            let lsn = (meta.lsn_first, meta.lsn_end);
            core.insert_listed(*id, meta.kind, lsn, meta.shard_bytes, shards)
        });
        let doubtful = ctx.with(|core| core.doubtful(handle, shards, &[]));
        let good = settle(ctx, &doubtful).await?.first().copied().unwrap_or(0);
        if good < k && meta.lsn_end > trimmed {
            ctx.with(|core| core.segments.remove(handle));
            break;
        }
        chain.push(Link { handle, first: at, end: meta.lsn_end });
        at = meta.lsn_end;
    }
    Ok(chain)
}

/// Where records lead, from `at` on, without a gap.
fn reach(at: Lsn, records: &Records, ring: u64) -> Lsn {
    let mut end = at;
    while let Some(found) = next_record(end, records, ring) {
        end = found.header.end();
    }
    end
}

/// The record that follows position `end`: right there, or at the next turn of the ring.
fn next_record(end: Lsn, records: &Records, ring: u64) -> Option<&Found> {
    let here = records.get(&end);
    let turn = Lsn(end.0.next_multiple_of(ring));
    here.or_else(|| records.get(&turn).filter(|_| turn != end))
        .filter(|found| found.header.previous_end == end && found.payload.is_some())
}

/// The boundary from which replay reaches furthest; the latest of those.
fn choose_start(root: &Root, chain: &[Link], records: &Records) -> Lsn {
    let ring = root.geometry.ring_bytes;
    let boundaries = std::iter::once(root.checkpoint_lsn).chain(chain.iter().map(|link| link.end));
    let mut best = (root.checkpoint_lsn, root.checkpoint_lsn);
    for (index, boundary) in boundaries.enumerate() {
        let end = reach(boundary, records, ring);
        if index == 0 || end >= best.1 {
            best = (boundary, end);
        }
    }
    best.0
}

/// How far the log is known to have been trimmed: everything before was in durable segments once, and
/// every record behind was on all nodes of the journal.
fn trimmed_up_to(root: &Root, records: &Records) -> Lsn {
    records.values().map(|found| found.header.trimmed).fold(root.trimmed, Lsn::max)
}

/// Refuses to go back in time: what was durable once must be found again.
fn check_nothing_lost(
    root: &Root,
    start: Lsn,
    trimmed: Lsn,
    records: &Records,
) -> Result<(), Failure> {
    let end = reach(start, records, root.geometry.ring_bytes);
    if end < trimmed {
        return Err(Failure::Again(format!(
            "the log is readable up to position {end}, but was stored up to {trimmed}: too many \
             nodes are missing or damaged; bring them back"
        )));
    }
    Ok(())
}

/// Makes those segments of the chain whole, as far as there are nodes, that the journal still backed.
/// The writer may have died while it wrote their shards: their data is on fewer nodes than the
/// journal, which this opening is about to give up.
async fn strengthen(ctx: &Ctx, chain: &[Link], start: Lsn, trimmed: Lsn) {
    for link in chain.iter().filter(|link| link.first < start && link.end > trimmed) {
        // The writer had room for it, so this may use the reserve.
        let targets = ctx.with(|core| core.place_missing(link.handle, 0));
        rebuild_segment(ctx, link.handle, targets).await;
    }
}

/// A record whose blocks cannot be had was most likely never acknowledged. But if nodes are damaged
/// and others only away, it may have been: those that are away are waited for, some seconds.
fn check_not_cut_short(root: &Root, start: Lsn, records: &Records) -> Result<(), Failure> {
    let ring = root.geometry.ring_bytes;
    let end = reach(start, records, ring);
    let turn = Lsn(end.0.next_multiple_of(ring));
    let next = records.get(&end).or_else(|| records.get(&turn));
    if next.is_some_and(|found| found.header.previous_end == end && found.payload.is_none()) {
        return Err(Failure::Again(format!(
            "blocks of the record at position {end} cannot be read while nodes are missing"
        )));
    }
    Ok(())
}

async fn replay_footers(ctx: &Ctx, chain: &[Link], start: Lsn) -> Result<(), Failure> {
    for link in chain.iter().filter(|link| link.first < start) {
        let footer = read_footer(ctx, link.handle)
            .await
            .map_err(|error| Failure::Again(format!("replaying segments: {error}")))?;
        ctx.with(|core| {
            for entry in &footer.entries {
                core.apply(link.handle, entry);
            }
        });
    }
    Ok(())
}

/// The changes that the records from `start` on make, in order, with their data.
fn replay_records(ctx: &Ctx, start: Lsn, records: &Records, ring: u64) -> Vec<(Entry, Bytes)> {
    let blocks = ctx.with(|core| core.geometry.size_bytes / BLOCK_BYTES as u64);
    let mut changes = Vec::new();
    let mut at = start;
    while let Some(found) = next_record(at, records, ring) {
        let mut from = 0;
        let payload = found.payload.as_deref().unwrap_or_default();
        for entry in &found.header.entries {
            let bytes = match entry.kind {
                EntryKind::Data => entry.count as usize * BLOCK_BYTES,
                _ => 0,
            };
            if from + bytes > payload.len() || entry.block + u64::from(entry.count) > blocks {
                break; // contradicts its own checksum: a bug of the writer, not damage
            }
            let data = fieldstone_buf::AlignedBuf::copy_from(&payload[from..from + bytes]);
            changes.push((*entry, data.freeze()));
            from += bytes;
        }
        at = found.header.end();
    }
    changes
}

fn highest_lsn(root: &Root, listed: &Listed, records: &Records) -> Lsn {
    let segments = listed.values().flatten().map(|(_, info)| info.meta.lsn_end).max();
    let newest = records.values().map(|found| found.header.end()).max();
    [Some(root.checkpoint_lsn), segments, newest].into_iter().flatten().max().unwrap_or_default()
}

/// Deletes what writers left that did not get as far as a root, or not to deleting. They may hold
/// the very slots that this opening needs for its checkpoint.
async fn discard_leftovers(ctx: &Ctx, root: &Root, listed: &mut Listed) {
    let leftover = |id: &SegmentId, shards: &[(NodeIndex, ShardInfo)]| match shards[0].1.meta.kind {
        SegmentKind::Checkpoint => !root.checkpoint_segments.contains(id),
        SegmentKind::Data => {
            epoch_of(*id) != root.epoch && ctx.with(|core| core.segments.find(*id).is_none())
        }
    };
    let ids: Vec<SegmentId> =
        listed.iter().filter(|(id, shards)| leftover(id, shards)).map(|(id, _)| *id).collect();
    let up = ctx.with(|core| core.up_nodes());
    for chunk in ids.chunks(1024) {
        ctx.call_all(&up, &RequestBody::ShardDelete { segments: chunk.to_vec() }).await;
    }
    for id in ids {
        listed.remove(&id);
    }
}

/// Deletes the open shards that writers before left, now that their blocks are in the log anew.
async fn discard_open(ctx: &Ctx, open: &[(NodeIndex, SegmentId)]) {
    let garbage: Vec<(NodeIndex, SegmentId)> = ctx.with(|core| {
        let holds = |node: &NodeIndex, id: &SegmentId| {
            let segment = core.segments.find(*id).and_then(|handle| core.segments.get(handle));
            segment.is_some_and(|segment| segment.shards.contains(&Some(*node)))
        };
        open.iter().filter(|(node, id)| !holds(node, id)).copied().collect()
    });
    for (node, id) in garbage {
        // A node that misses this is compared again when it joins.
        let _ = ctx.call(node, RequestBody::ShardDelete { segments: vec![id] }).await;
    }
}

/// Deletes the shards that nothing names, and with `journals` those of the past.
async fn discard_garbage(ctx: &Ctx, listed: &Listed, journals: bool) {
    let (up, below) = ctx.with(|core| (core.up_nodes(), core.log.generation));
    for node in &up {
        let garbage: Vec<SegmentId> = ctx.with(|core| {
            listed
                .iter()
                .filter(|(_, shards)| shards.iter().any(|(holder, _)| holder == node))
                .filter(|(id, _)| match core.segments.find(**id) {
                    None => true,
                    // A node deletes all shards of a segment together.
                    Some(handle) => core
                        .segments
                        .get(handle)
                        .is_some_and(|segment| !segment.shards.contains(&Some(*node))),
                })
                .map(|(id, _)| *id)
                .collect()
        });
        for chunk in garbage.chunks(1024) {
            let body = RequestBody::ShardDelete { segments: chunk.to_vec() };
            // A node that misses this is compared again when it joins.
            let _ = ctx.call(*node, body).await;
        }
    }
    if journals {
        ctx.call_all(&up, &RequestBody::JournalDelete { below }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(checkpoint_lsn: Lsn, trimmed: Lsn) -> Root {
        Root {
            version: 1,
            volume: fieldstone_proto::VolumeId(1),
            epoch: Epoch(1),
            geometry: crate::seam::Geometry {
                size_bytes: 1 << 20,
                shard_bytes: 1 << 16,
                unit_bytes: 4096,
                ring_bytes: 1 << 18,
            },
            generation: JournalGen(2),
            journal_nodes: Vec::new(),
            checkpoint_lsn,
            checkpoint_bytes: 0,
            trimmed,
            checkpoint_segments: Vec::new(),
            clean: false,
            name: String::new(),
            profile: String::new(),
        }
    }

    #[test]
    fn an_empty_journal_does_not_hide_that_segments_are_missing() {
        let (first, middle, last) = (Lsn(0x1000), Lsn(0x3000), Lsn(0x7000));
        let (root, records) = (root(first, last), Records::new());
        let trimmed = trimmed_up_to(&root, &records);
        let found = |chain: &[Link]| {
            let start = choose_start(&root, chain, &records);
            check_nothing_lost(&root, start, trimmed, &records).is_ok()
        };
        let link = |first, end| Link { handle: 0, first, end };
        assert!(!found(&[]));
        assert!(!found(&[link(first, middle)]));
        assert!(found(&[link(first, middle), link(middle, last)]));
    }
}
