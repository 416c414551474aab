//! A node that keeps journal files for the last peer that fenced it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_node::{
    DiskId, DiskOp, DiskOutput, FileId, NodeAccounting, NodeAction, NodeEvent, PeerId,
};
use fieldstone_proto::{
    Epoch, JournalGen, NodeError, Reply, ReplyBody, Request, RequestBody, Tag, VolumeId,
    VolumeState,
};

use crate::actor::NodeProcess;

/// The epoch of each volume's writer.
pub(crate) type Fences = Rc<RefCell<BTreeMap<VolumeId, u64>>>;

pub(crate) struct MirrorNode {
    fences: Fences,
    writers: BTreeMap<VolumeId, PeerId>,
    /// Requests that wait while a fence waits for the disk.
    waiting: VecDeque<(PeerId, Request)>,
    disk: BTreeMap<DiskId, (PeerId, Tag)>,
    next: u64,
    actions: VecDeque<NodeAction>,
}

impl MirrorNode {
    pub fn new(fences: Fences) -> Self {
        Self {
            fences,
            writers: BTreeMap::new(),
            waiting: VecDeque::new(),
            disk: BTreeMap::new(),
            next: 0,
            actions: VecDeque::new(),
        }
    }

    fn reply(&mut self, peer: PeerId, tag: Tag, result: Result<ReplyBody, NodeError>) {
        self.actions
            .push_back(NodeAction::Reply { peer, reply: Reply { tag, result, slots_free: 0 } });
    }

    fn drain(&mut self) {
        while let Some((peer, request)) = self.waiting.pop_front() {
            let is_fence = matches!(request.body, RequestBody::Fence { .. });
            let volume = request.capability.volume;
            if is_fence && !self.disk.is_empty() {
                self.waiting.push_front((peer, request));
                return;
            }
            if is_fence {
                let epoch = request.capability.epoch.0;
                let known = self.fences.borrow().get(&volume).copied().unwrap_or(0);
                if epoch < known {
                    let error = NodeError::Fenced { sent: Epoch(0), current: Epoch(0) };
                    self.reply(peer, request.tag, Err(error));
                    continue;
                }
                self.fences.borrow_mut().insert(volume, epoch);
                self.writers.insert(volume, peer);
                let state = VolumeState::default();
                self.reply(peer, request.tag, Ok(ReplyBody::VolumeState(state)));
            } else if self.writers.get(&volume) == Some(&peer) {
                self.start(peer, request);
            } else {
                let error = NodeError::Fenced { sent: Epoch(0), current: Epoch(0) };
                self.reply(peer, request.tag, Err(error));
            }
        }
    }

    fn start(&mut self, peer: PeerId, request: Request) {
        let file = FileId::Journal(request.capability.volume, JournalGen(1));
        let op = match request.body {
            RequestBody::JournalCreate { ring_bytes, .. } => {
                DiskOp::Create { file, len_bytes: ring_bytes, allocate: true }
            }
            RequestBody::JournalAppend { lsn, .. } => {
                DiskOp::Write { file, offset_bytes: lsn.0, data: request.payload }
            }
            RequestBody::JournalRead { offset_bytes, len_bytes, .. } => {
                DiskOp::Read { file, offset_bytes, len_bytes }
            }
            RequestBody::JournalSync { .. } => DiskOp::Sync { file },
            other => panic!("a mirror does not send {other:?}"),
        };
        self.next += 1;
        self.disk.insert(DiskId(self.next), (peer, request.tag));
        self.actions.push_back(NodeAction::Disk { id: DiskId(self.next), op });
    }
}

impl NodeProcess for MirrorNode {
    fn handle(&mut self, event: NodeEvent, _now: Nanos) {
        match event {
            NodeEvent::Request { peer, request } => self.waiting.push_back((peer, request)),
            NodeEvent::PeerLost { .. }
            | NodeEvent::Room { .. }
            | NodeEvent::Relayed { .. }
            | NodeEvent::LinkLost { .. }
            | NodeEvent::WallClock { .. }
            | NodeEvent::Tick => {}
            NodeEvent::Disk { id, result } => {
                let (peer, tag) = self.disk.remove(&id).expect("the operation was started");
                let result = match result {
                    Ok(DiskOutput::Data(data)) => Ok(ReplyBody::Data(data)),
                    Ok(_) => Ok(ReplyBody::Done),
                    Err(error) => Err(NodeError::Io(error.to_string())),
                };
                self.reply(peer, tag, result);
            }
        }
        self.drain();
    }

    fn next_action(&mut self) -> Option<NodeAction> {
        self.actions.pop_front()
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn accounting(&self) -> Option<NodeAccounting> {
        None
    }

    fn check(&self) {}
}
