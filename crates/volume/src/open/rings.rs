//! The journal that an opening finds: the records in the rings, and how far they reach.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_buf::join;
use fieldstone_proto::{
    BLOCK_BYTES, Lsn, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId, VolumeId,
    VolumeState, crc32c_blocks,
};

use super::chain::ChainSegment;
use super::detached::{ShardLocations, read_detached};
use super::{Blame, Failure};
use crate::core::Ctx;
use crate::failure::AttemptFailure;
use crate::record::{Entry, EntryKind, HEADER_BYTES, Header};
use crate::root::Root;

/// Bytes of the ring per read.
const RING_READ_BYTES: u64 = 1 << 20;

/// A record that an opening found in a ring.
pub(super) struct ReplayRecord {
    pub header: Header,
    /// The record's blocks. The opening fetches those of a detached record if it needs them.
    pub payload: Option<Bytes>,
}

pub(super) type Records = BTreeMap<Lsn, ReplayRecord>;

/// The segments that blocks of records come from.
pub(super) type Sources = HashSet<SegmentId>;

/// Waits a while for missing nodes of the journal. Every acknowledged write is on all journal
/// nodes, but m nodes may have lost their records, and a ring does not show that. As long as all
/// journal nodes are there, one of them has every record.
pub(super) async fn wait_for_journal(
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
            let usable = |node: NodeIndex| {
                let state = core.node(node);
                state.link.connected && state.attempt.left_out.is_none()
            };
            let came = missing.iter().copied().find(|node| usable(*node));
            core.attempts.waits_for = format!(
                "nodes that have a copy of the journal: {}",
                missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            let closed = core.life.is_over();
            (came, closed || core.now >= patient_until)
        });
        if let Some(node) = came {
            return Err(AttemptFailure::NodeCame(node).into());
        }
        if over {
            return Ok(());
        }
        ctx.sleep_ms(20).await;
    }
}

/// Reads the journal's rings and keeps the valid records of its generation.
pub(super) async fn read_rings(
    ctx: &Ctx,
    root: &Root,
    states: &[(NodeIndex, VolumeState)],
) -> Result<Records, Failure> {
    let mut records = Records::new();
    for (node, state) in states {
        let journal = state.journals.iter().find(|j| j.generation == root.generation);
        let Some(journal) = journal else { continue };
        if journal.ring_bytes != root.geometry.ring_bytes {
            tracing::warn!(
                "{node}: its journal has {} bytes instead of {}, and is not read",
                journal.ring_bytes,
                root.geometry.ring_bytes
            );
            continue;
        }
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
                Ok(ReplyBody::Data(data)) if data.len() as u64 == len => ring.push(data),
                Ok(_) => {
                    let text = "its answer is not the part of the journal that was asked for";
                    return Err(Failure::Node(*node, NodeError::Invalid(text.into())));
                }
                // The node may deliver it at another attempt.
                Err(
                    error @ (NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. }),
                ) => {
                    return Err(Failure::Node(*node, error));
                }
                // Another node may have a part that is unreadable here.
                Err(_) => ring.push(fieldstone_buf::zeroes(usize::try_from(len).expect("small"))),
            }
            at += len;
        }
        let ring = join(&ring);
        let volume = ctx.with(|core| core.config.volume);
        scan_ring(&ring, root, volume, &mut records);
    }
    Ok(records)
}

/// Makes the rings that the replay relies on stable.
pub(super) async fn sync_rings(
    ctx: &Ctx,
    root: &Root,
    states: &[(NodeIndex, VolumeState)],
) -> Result<(), Failure> {
    let generation = root.generation;
    let holds = |state: &VolumeState| state.journals.iter().any(|j| j.generation == generation);
    let nodes: Vec<NodeIndex> =
        states.iter().filter(|(_, state)| holds(state)).map(|(node, _)| *node).collect();
    for (node, result) in ctx.call_all(&nodes, &RequestBody::JournalSync { generation }).await {
        result.blame(node)?;
    }
    Ok(())
}

fn scan_ring(ring: &Bytes, root: &Root, volume: VolumeId, records: &mut Records) {
    let mut at = 0;
    while at + HEADER_BYTES <= ring.len() {
        let block = ring.slice(at..at + HEADER_BYTES);
        let place = at as u64;
        at += BLOCK_BYTES;
        let Ok(header) = Header::decode(&block, volume) else { continue };
        let good = header.generation == root.generation
            && header.epoch == root.epoch
            && header.lsn.0 % ring.len() as u64 == place
            && !records.contains_key(&header.lsn);
        let from = place as usize + HEADER_BYTES;
        let to = from + header.checksums.len() * BLOCK_BYTES;
        if !good || to > ring.len() {
            continue;
        }
        if header.detached {
            records.insert(header.lsn, ReplayRecord { header, payload: None });
            continue;
        }
        let payload = ring.slice(from..to);
        if crc32c_blocks(&payload) == header.checksums {
            records.insert(header.lsn, ReplayRecord { header, payload: Some(payload) });
        }
    }
}

/// Gets the blocks of the detached records that may be replayed: those after the checkpoint, in
/// segments that are not in the chain. Returns the segments that the blocks come from.
pub(super) async fn attach(
    ctx: &Ctx,
    root: &Root,
    chain: &[ChainSegment],
    records: &mut Records,
    places: &ShardLocations,
) -> Result<Sources, Failure> {
    let chained: HashSet<SegmentId> = ctx.with(|core| {
        chain.iter().filter_map(|part| Some(core.segments.get(part.handle)?.id)).collect()
    });
    let mut sources = Sources::new();
    for (_, record) in records.range_mut(root.checkpoint_lsn..) {
        let segment = record.header.segment;
        if record.payload.is_some() || chained.contains(&segment) {
            continue;
        }
        record.payload = read_detached(ctx, &record.header, places).await?;
        if record.payload.is_some() {
            sources.insert(segment);
        }
    }
    Ok(sources)
}

/// The position that records reach from `at` on without a gap.
pub(super) fn reach(at: Lsn, records: &Records, ring: u64) -> Lsn {
    let mut end = at;
    while let Some(record) = next_record(end, records, ring) {
        end = record.header.end();
    }
    end
}

/// The record that follows position `end`: right there, or at the next beginning of the ring.
fn next_record(end: Lsn, records: &Records, ring: u64) -> Option<&ReplayRecord> {
    let here = records.get(&end);
    let ring_start = Lsn(end.0.next_multiple_of(ring));
    here.or_else(|| records.get(&ring_start).filter(|_| ring_start != end))
        .filter(|record| record.header.previous_end == end && record.payload.is_some())
}

/// How far the log is known to have been trimmed: durable segments once held everything before this
/// position, and every record after it was on all nodes of the journal.
pub(super) fn trimmed_up_to(root: &Root, records: &Records) -> Lsn {
    records.values().map(|record| record.header.trimmed).fold(root.trimmed, Lsn::max)
}

/// The nodes cannot deliver the blocks of a record. Most likely the record was never acknowledged.
/// But if some nodes are damaged and others only away, it may have been. So the opening waits some
/// seconds for the absent nodes.
pub(super) fn check_not_cut_short(
    root: &Root,
    start: Lsn,
    records: &Records,
) -> Result<(), Failure> {
    let ring = root.geometry.ring_bytes;
    let end = reach(start, records, ring);
    let ring_start = Lsn(end.0.next_multiple_of(ring));
    let next = records.get(&end).or_else(|| records.get(&ring_start));
    if next.is_some_and(|record| record.header.previous_end == end && record.payload.is_none()) {
        return Err(AttemptFailure::RecordCutShort { end }.into());
    }
    Ok(())
}

/// The changes of the records from `start` on, in order, with their data.
pub(super) fn replay_records(
    ctx: &Ctx,
    start: Lsn,
    records: &Records,
    ring: u64,
) -> Vec<(Entry, Bytes)> {
    let blocks = ctx.with(|core| core.shape.size_blocks());
    let mut changes = Vec::new();
    let mut at = start;
    while let Some(record) = next_record(at, records, ring) {
        let mut from = 0;
        let payload = record.payload.as_deref().unwrap_or_default();
        for entry in &record.header.entries {
            let bytes = match entry.kind {
                EntryKind::Data => entry.count as usize * BLOCK_BYTES,
                _ => 0,
            };
            if from + bytes > payload.len() || entry.block + u64::from(entry.count) > blocks {
                break; // the record contradicts its own checksum: a bug of the writer, not damage
            }
            let data = fieldstone_buf::AlignedBuf::copy_from(&payload[from..from + bytes]);
            changes.push((*entry, data.freeze()));
            from += bytes;
        }
        at = record.header.end();
    }
    changes
}
