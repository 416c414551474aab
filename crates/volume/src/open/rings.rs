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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use fieldstone_proto::{Epoch, JournalGen};

    use super::*;
    use crate::interface::VolumeEvent;
    use crate::script::{JOURNAL, Script};
    use crate::status::VolumePhase;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    /// The rings have so many bytes.
    const RING: u64 = 16 * BLOCK;
    const VOLUME: VolumeId = VolumeId(0x77);

    fn root() -> Root {
        let root = Script::serving(8).core(|core| core.committed.root().cloned());
        let mut root = root.expect("it serves");
        (root.geometry.ring_bytes, root.generation, root.epoch) = (RING, JournalGen(3), Epoch(7));
        root
    }

    /// A record of the root's journal at a block of the log, after one that ended at another block.
    fn record(at: u64, previous_end: u64, blocks: usize) -> (Header, Bytes) {
        let payload = Bytes::from(vec![7; blocks * BLOCK_BYTES]);
        let header = Header {
            volume: VOLUME,
            epoch: Epoch(7),
            generation: JournalGen(3),
            lsn: Lsn(at * BLOCK),
            previous_end: Lsn(previous_end * BLOCK),
            trimmed: Lsn(0),
            segment: SegmentId(1),
            segment_block: 0,
            detached: false,
            entries: Vec::new(),
            checksums: crc32c_blocks(&payload),
        };
        (header, payload)
    }

    /// Writes a record to a block of a ring.
    fn put(ring: &mut [u8], block: usize, (header, payload): &(Header, Bytes)) {
        let at = block * BLOCK_BYTES;
        ring[at..at + HEADER_BYTES].copy_from_slice(&header.encode());
        ring[at + HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    }

    fn found(rings: &[Vec<u8>]) -> Vec<u64> {
        let mut records = Records::new();
        for ring in rings {
            scan_ring(&Bytes::from(ring.clone()), &root(), VOLUME, &mut records);
        }
        records.keys().map(|lsn| lsn.0 / BLOCK).collect()
    }

    #[test]
    fn only_whole_records_of_the_root_s_journal_in_their_places_count() {
        let mut ring = vec![0; RING as usize];
        put(&mut ring, 0, &record(32, 32, 1));
        let (mut other, payload) = record(34, 34, 1);
        other.generation = JournalGen(2);
        put(&mut ring, 2, &(other, payload));
        let (mut other, payload) = record(36, 36, 1);
        other.epoch = Epoch(6);
        put(&mut ring, 4, &(other, payload));
        put(&mut ring, 6, &record(40, 40, 1));
        put(&mut ring, 10, &record(42, 42, 1));
        let whole = ring.clone();
        ring[11 * BLOCK_BYTES] ^= 1;
        assert_eq!(found(&[ring.clone()]), [32]);
        assert_eq!(found(&[ring, whole]), [32, 42], "each record from any ring that has it");
    }

    /// The log of three records: the last one begins the next turn, because it is too long for the
    /// end of the ring.
    fn log() -> Records {
        let records = [record(32, 32, 1), record(34, 34, 10), record(48, 45, 3)];
        let found = |(header, payload): (Header, Bytes)| {
            (header.lsn, ReplayRecord { header, payload: Some(payload) })
        };
        records.into_iter().map(found).collect()
    }

    #[test]
    fn the_log_reaches_to_the_first_record_that_is_missing_or_lacks_blocks() {
        let (start, second) = (Lsn(32 * BLOCK), Lsn(34 * BLOCK));
        assert_eq!(reach(start, &log(), RING), Lsn(52 * BLOCK));
        let mut records = log();
        records.remove(&second);
        assert_eq!(reach(start, &records, RING), second, "what follows a gap does not count");
        assert!(check_not_cut_short(&root(), start, &records).is_ok(), "no node would have more");
        let mut records = log();
        records.get_mut(&second).expect("it is there").payload = None;
        assert_eq!(reach(start, &records, RING), second);
        let cut_short = check_not_cut_short(&root(), start, &records);
        let expected = AttemptFailure::RecordCutShort { end: second };
        assert!(matches!(cut_short, Err(Failure::Again(failure)) if failure == expected));
    }

    /// How the opening waits for node 2, which has a copy of the journal: the results after half
    /// of its patience, and in the end.
    fn waits(comes: bool) -> [Option<Result<(), Option<AttemptFailure>>>; 2] {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.life.put_in(VolumePhase::Opening);
            core.node_mut(JOURNAL[2]).link.connected = false;
        });
        let result = Rc::new(RefCell::new(None));
        let ends = Rc::clone(&result);
        script.start(move |ctx| async move {
            let states = [JOURNAL[0], JOURNAL[1]].map(|node| (node, VolumeState::default()));
            let waited = wait_for_journal(&ctx, &root(), &states, Nanos::from_ms(1_000)).await;
            let failure = waited.map_err(|failure| match failure {
                Failure::Again(failure) => Some(failure),
                _ => None,
            });
            *ends.borrow_mut() = Some(failure);
        });
        let mut results = [None, None];
        for at in &mut results {
            for _ in 0..25 {
                script.sent();
                script.wait_ms(20);
            }
            at.clone_from(&result.borrow());
            if comes {
                script.volume.handle(VolumeEvent::NodeUp(JOURNAL[2]), Nanos(0));
            }
        }
        script.sent();
        [results[0].clone(), result.take()]
    }

    #[test]
    fn an_opening_waits_for_a_copy_of_the_journal_but_not_for_ever() {
        let came = AttemptFailure::NodeCame(JOURNAL[2]);
        assert_eq!(waits(true), [None, Some(Err(Some(came)))], "it starts over with the node");
        assert_eq!(waits(false), [None, Some(Ok(()))]);
    }
}
