//! A host of the model with the product's node: its state machine, and a storage target in memory.

use std::collections::BTreeMap;

use fieldstone_node::{
    DiskError, DiskOp, DiskOutput, FileId, Node, NodeAction, NodeConfig, NodeEvent, ParityMemory,
    PeerId, limits,
};
use fieldstone_proto::{BLOCK_BYTES, Capability, MasterKey, NodeIndex, PoolId, RequestBody, Tag};

use super::{GENERATION, PASS};

/// The pool's secret.
pub(super) const KEY: MasterKey = MasterKey([7; 16]);
/// The ring of each client's journal.
pub(super) const RING_BYTES: u64 = 256 << 20;
/// The largest shard.
pub(super) const SHARD_BYTES_MAX: u64 = 1 << 20;
/// Slots of a node for each client.
pub(super) const SLOTS: u32 = 512;

/// A node, its files, and its timer.
#[derive(Debug)]
pub(super) struct NodeHost {
    node: Node,
    /// The blocks of each file, by offset. A block that is missing reads as zeroes.
    files: BTreeMap<FileId, BTreeMap<u64, Vec<u8>>>,
    /// Bytes written to journals and shards.
    pub(super) stored_bytes: u64,
    /// When the timer that is set fires.
    timer_ns: Option<u64>,
}

impl NodeHost {
    /// A node that has started. Each writer has a volume with a journal and slots.
    pub(super) fn new(node: u16, writers: &[(PeerId, Capability)]) -> Self {
        let config = NodeConfig {
            pool: PoolId(1),
            node: NodeIndex(node),
            incarnation: 1,
            keys: KEY.into(),
            slot_bytes: SHARD_BYTES_MAX as u32,
            slots: SLOTS * writers.len() as u32,
            verify_payload: true,
            piece_bytes: limits::PIECE_BYTES,
            parity_memory: ParityMemory::new(limits::PARITY_MEMORY_BYTES),
        };
        let (node, files) = (Node::new(config), BTreeMap::new());
        let mut host = Self { node, files, stored_bytes: 0, timer_ns: None };
        host.node.start(0);
        host.settle();
        assert!(host.node.is_ready(), "{:?}", host.node.failure());
        for (peer, capability) in writers {
            for body in [
                RequestBody::Fence { takeover: false },
                RequestBody::Reserve { slots: SLOTS, spare: 0 },
                RequestBody::JournalCreate { generation: GENERATION, ring_bytes: RING_BYTES },
                RequestBody::AdmitRelays { pass: PASS },
            ] {
                let request = fieldstone_proto::Request {
                    tag: Tag(0),
                    capability: *capability,
                    body,
                    route: None,
                    payload: Vec::new(),
                };
                host.node.handle(0, NodeEvent::Request { peer: *peer, request });
                host.settle();
            }
        }
        host
    }

    /// Does what the node wants, in no time.
    fn settle(&mut self) {
        while let Some(action) = self.node.next_action() {
            match action {
                NodeAction::Disk { id, op } => {
                    let (_, result) = self.carry_out(op);
                    self.node.handle(0, NodeEvent::Disk { id, result });
                }
                NodeAction::Reply { reply, .. } => {
                    assert!(reply.result.is_ok(), "{:?}", reply.result);
                }
                other => unreachable!("no other node takes part: {other:?}"),
            }
        }
        self.stored_bytes = 0;
    }

    pub(super) fn handle(&mut self, now_ns: u64, event: NodeEvent) {
        self.node.handle(now_ns, event);
    }

    pub(super) fn next_action(&mut self) -> Option<NodeAction> {
        self.node.next_action()
    }

    /// The node's next deadline, if no timer fires until then. The timer is set from now on.
    pub(super) fn timer_to_set(&mut self) -> Option<u64> {
        let due_ns = self.node.deadline_ns()?;
        let is_earlier = self.timer_ns.is_none_or(|set_ns| due_ns < set_ns);
        is_earlier.then(|| *self.timer_ns.insert(due_ns))
    }

    /// A timer has fired. One that an earlier one has replaced changes nothing.
    pub(super) fn timer_fired(&mut self, now_ns: u64) {
        self.timer_ns = self.timer_ns.filter(|set_ns| *set_ns > now_ns);
    }

    /// Carries a disk operation out. Gives the bytes that it copies.
    pub(super) fn carry_out(&mut self, op: DiskOp) -> (u64, Result<DiskOutput, DiskError>) {
        let mut copied = 0;
        let result = match op {
            DiskOp::List => Ok(DiskOutput::Files(self.files.keys().copied().collect())),
            DiskOp::Read { file, offset_bytes, len_bytes } => match self.files.get(&file) {
                None => Err(DiskError::NotFound),
                Some(blocks) => {
                    let bytes = read(blocks, offset_bytes, len_bytes as usize);
                    Ok(DiskOutput::Data(bytes.into()))
                }
            },
            DiskOp::Write { file, offset_bytes, data } => match self.files.get_mut(&file) {
                None => Err(DiskError::NotFound),
                Some(blocks) => {
                    let data = data.concat();
                    copied = data.len() as u64;
                    for (at, block) in
                        (offset_bytes..).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES))
                    {
                        blocks.insert(at, block.to_vec());
                    }
                    if matches!(file, FileId::Data | FileId::Journal(..)) {
                        self.stored_bytes += copied;
                    }
                    Ok(DiskOutput::Done)
                }
            },
            DiskOp::Create { file, .. } => {
                self.files.entry(file).or_default();
                Ok(DiskOutput::Done)
            }
            DiskOp::Remove { file } => {
                self.files.remove(&file).map(|_| DiskOutput::Done).ok_or(DiskError::NotFound)
            }
            DiskOp::Sync { .. } | DiskOp::Discard { .. } => Ok(DiskOutput::Done),
        };
        (copied, result)
    }

    /// The bytes at a place of the node's slots.
    pub(super) fn data_at(&self, place: u64, len_bytes: usize) -> Vec<u8> {
        let nothing = BTreeMap::new();
        read(self.files.get(&FileId::Data).unwrap_or(&nothing), place, len_bytes)
    }
}

fn read(blocks: &BTreeMap<u64, Vec<u8>>, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    let end = offset_bytes + len_bytes as u64;
    for (at, block) in blocks.range(offset_bytes..end) {
        let place = (at - offset_bytes) as usize;
        let len = block.len().min(len_bytes - place);
        bytes[place..place + len].copy_from_slice(&block[..len]);
    }
    bytes
}
