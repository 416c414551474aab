//! The node: routes events to the handlers and keeps the counters.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use fieldstone_proto::{
    Epoch, NodeError, NodeStat, PoolKeys, Reply, ReplyBody, Request, RequestBody, VolumeId,
    VolumeSummary,
};

use crate::arrivals::Arrivals;
use crate::control_events::{ControlEvent, ControlEvents};
use crate::disk::{DiskQueue, Ended};
use crate::fragment::Fragment;
use crate::handlers::header::Admission;
use crate::interface::{NodeAction, NodeConfig, NodeEvent, PeerId};
use crate::limits::{LISTED_ROOT_BYTES_MAX, REQUESTS_MAX};
use crate::parity_memory::ParityMemory;
use crate::products::ColumnMaps;
use crate::relays::Relays;
use crate::request_table::{EntryId, RequestTable};
use crate::start::failed_sync::DoubtFile;
use crate::start::{NodePhase, Start};
use crate::store::ChunkStore;
use crate::stream::Accumulators;
use crate::volumes::{Removed, Volumes};
use crate::wall_clock::WallClock;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) refused: u64,
    pub(crate) corrupt_blocks: u64,
    pub(crate) relayed: u64,
    pub(crate) gathered: u64,
}

/// A storage node.
///
/// ```text
///   let mut node = Node::new(config);
///   node.start(now_ns);
///   loop {
///       while let Some(action) = node.next_action() { carry it out }
///       node.handle(now_ns, next event);
///   }
/// ```
///
/// Until [`Node::is_ready`], the node answers requests other than [`RequestBody::Identify`] with
/// [`NodeError::Busy`]. If the start failed, it answers with [`NodeError::Io`] and the reason.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) phase: NodePhase,
    pub(crate) disk: DiskQueue,
    pub(crate) table: RequestTable,
    pub(crate) store: ChunkStore,
    pub(crate) volumes: Volumes,
    pub(crate) removed: Removed,
    pub(crate) doubt_file: DoubtFile,
    pub(crate) relays: Relays,
    pub(crate) arrivals: Arrivals,
    pub(crate) parity_memory: ParityMemory,
    /// Maps of the columns of data shards.
    pub(crate) column_maps: ColumnMaps,
    pub(crate) accumulators: Accumulators,
    /// Entries that wait until the store changes, in order.
    pub(crate) parked: VecDeque<EntryId>,
    pub(crate) counters: Counters,
    pub(crate) control_events: ControlEvents,
    /// The connection of the last request whose capability the node accepted.
    pub(crate) accepted: Option<PeerId>,
    wall_clock: WallClock,
}

impl Node {
    /// A node that has not read its disk yet.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        Self {
            phase: NodePhase::New,
            disk: DiskQueue::new(config.piece_bytes),
            table: RequestTable::new(),
            store: ChunkStore::new(config.slot_bytes, config.slots, config.incarnation),
            volumes: Volumes::default(),
            removed: Removed::default(),
            doubt_file: DoubtFile::default(),
            relays: Relays::default(),
            arrivals: Arrivals::default(),
            parity_memory: config.parity_memory.clone(),
            column_maps: ColumnMaps::default(),
            accumulators: Accumulators::new(config.parity_memory.clone()),
            parked: VecDeque::new(),
            counters: Counters::default(),
            control_events: ControlEvents::default(),
            accepted: None,
            wall_clock: WallClock::default(),
            config,
        }
    }

    /// From now on the node takes at most so many requests at a time, in place of
    /// [`limits::REQUESTS_MAX`](crate::limits::REQUESTS_MAX). For worlds that fill its table.
    pub fn limit_requests(&mut self, requests_max: usize) {
        self.table.limit(requests_max);
    }

    /// Begins to read the disk. Call once.
    pub fn start(&mut self, _now_ns: u64) {
        self.phase = NodePhase::Starting(Start::new());
        self.start_list();
    }

    /// True once the node serves requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, NodePhase::Ready)
    }

    /// Why the start failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.phase {
            NodePhase::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    /// True if the last request whose capability the node accepted came on this connection. Right
    /// after the caller hands in a request, this says whether the connection's client holds a valid
    /// capability.
    #[must_use]
    pub fn has_accepted(&self, peer: PeerId) -> bool {
        self.accepted == Some(peer)
    }

    /// From now on these secrets of the pool count. Requests whose capability the node has already
    /// accepted go on.
    pub fn set_keys(&mut self, keys: PoolKeys) {
        self.config.keys = keys;
        for (id, volume) in &mut self.volumes {
            volume.key = keys.derive(*id, volume.record.epoch);
        }
    }

    /// Takes an event. `now_ns` is a clock that never jumps. All deadlines go by it. Capabilities
    /// expire by the time of day: see [`NodeEvent::WallClock`].
    pub fn handle(&mut self, now_ns: u64, event: NodeEvent) {
        match event {
            NodeEvent::Request { peer, request } => {
                if self.is_ready() {
                    self.retry_doubt_file();
                }
                self.request(now_ns, peer, request);
            }
            NodeEvent::Disk { id, result } => match self.disk.complete(id, result.is_err()) {
                Ended::Operation(purpose) => self.complete_disk(purpose, result),
                Ended::Piece => {}
                Ended::Unknown => {
                    tracing::warn!(id = id.0, "completion of an unknown disk operation");
                }
            },
            NodeEvent::PeerLost { peer } => self.lose_peer(peer),
            NodeEvent::Relayed { from, reply } => self.relay_answered(now_ns, &from, reply),
            NodeEvent::LinkLost { to } => self.lose_link(&to),
            NodeEvent::Tick => {}
            NodeEvent::WallClock { offset_ns } => self.wall_clock.set(now_ns, offset_ns),
            NodeEvent::Room { room_bytes } => {
                let rings_bytes = self.rings_wanted_bytes();
                self.store.set_room(room_bytes.saturating_sub(rings_bytes));
            }
        }
        // After the event: an answer that comes in the last moment is on time.
        self.expire_relays(now_ns);
        self.expire_arrivals(now_ns);
        self.expire_accumulators(now_ns);
        self.settle();
    }

    /// The next action for the world. After every event, ask until `None`.
    pub fn next_action(&mut self) -> Option<NodeAction> {
        self.disk.actions.pop_front()
    }

    /// The next event for the node's control side. The node works the same if its world asks for
    /// none of them.
    pub fn next_control_event(&mut self) -> Option<ControlEvent> {
        self.control_events.take()
    }

    /// Events for the control side that found no place in the queue, since the start.
    #[must_use]
    pub fn control_events_lost(&self) -> u64 {
        self.control_events.lost()
    }

    /// When the world must hand in an event at the latest ([`NodeEvent::Tick`] if there is no
    /// other), in nanoseconds of the node's clock; `None` while the node waits for no other node
    /// and for no fragment.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        let deadlines = [
            self.relays.deadline_ns(),
            self.arrivals.deadline_ns(),
            self.accumulators.deadline_ns(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Requests that the node has passed on to other nodes since its start, once for each node.
    #[must_use]
    pub fn relayed(&self) -> u64 {
        self.counters.relayed
    }

    /// Pieces of parity shards that the node has made of contributions since its start, and the
    /// bytes of those that it is making.
    #[must_use]
    pub fn gathered(&self) -> (u64, usize) {
        (self.counters.gathered, self.accumulators.used_bytes())
    }

    /// Requests and disk operations under way. Both are zero when the node is idle.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        (self.table.len(), self.disk.in_flight())
    }

    /// The node's identity, its space and its counters.
    #[must_use]
    pub fn stat(&self) -> NodeStat {
        NodeStat {
            pool: self.config.pool,
            node: self.config.node,
            incarnation: self.config.incarnation,
            slot_bytes: self.config.slot_bytes,
            slots_total: self.config.slots,
            slots_free: self.store.slots_unclaimed(),
            slots_lacking: self.store.slots_lacking(),
            read_bytes: self.counters.read_bytes,
            written_bytes: self.counters.written_bytes,
            refused: self.counters.refused,
            corrupt_blocks: self.counters.corrupt_blocks,
        }
    }

    /// For tests: panics unless the node's accounts agree with each other.
    ///
    /// # Panics
    /// When a slot is lost or counted twice, or something still waits for a request that has ended.
    pub fn assert_consistent(&self) {
        if self.is_ready() {
            self.store.check();
        }
        if self.table.len() == 0 {
            assert!(self.parked.is_empty());
            assert_eq!(self.relays.len(), 0);
            assert!(self.arrivals.is_empty());
            assert!(self.accumulators.is_empty());
            for volume in self.volumes.values() {
                assert_eq!(volume.active, 0);
                assert!(volume.ordered.is_empty() && volume.barrier.is_none());
            }
        }
    }

    fn request(&mut self, now_ns: u64, peer: PeerId, mut request: Request) {
        let key = (peer, request.tag);
        match request.body {
            RequestBody::Fragment { checksums, payload_crc } => {
                let fragment = Fragment { checksums, payload_crc, payload: request.payload };
                return self.fragment_arrived(now_ns, key, fragment);
            }
            RequestBody::GiveUp => return self.arrival_given_up(key),
            _ => {}
        }
        let admission = match &self.phase {
            NodePhase::Ready => self.admit(self.wall_clock.for_expiry(now_ns), peer, &mut request),
            _ if request.body == RequestBody::Identify => {
                Ok(Admission::Answer(ReplyBody::Stat(self.stat())))
            }
            NodePhase::New | NodePhase::Starting(_) => Err(NodeError::Busy),
            NodePhase::Failed(reason) => Err(NodeError::Io(reason.clone())),
        };
        let result = match admission {
            Ok(Admission::Entry(entry)) => {
                let relay = self.table[entry].relay.as_ref();
                if relay.is_some_and(|relay| relay.route.is_contribution()) {
                    return self.contribute(now_ns, entry);
                }
                return match self.pass_on(now_ns, entry, &request) {
                    Ok(()) => self.start_entry(entry),
                    Err(error) => {
                        self.count_damage(&error);
                        self.close(entry, Err(error));
                    }
                };
            }
            Ok(Admission::Arriving(entry, body, len_bytes)) => {
                return self.begin_arrival(now_ns, entry, (body, len_bytes), &request);
            }
            Ok(Admission::Answer(body)) => Ok(body),
            Err(error) => Err(error),
        };
        let reply = Reply {
            tag: request.tag,
            result,
            slots_free: self.slots_for(request.capability.volume),
        };
        self.disk.actions.push_back(NodeAction::Reply { peer, reply });
    }

    /// Counts a block of a payload that does not match the writer's checksum.
    pub(crate) fn count_damage(&mut self, error: &NodeError) {
        self.counters.corrupt_blocks += u64::from(matches!(error, NodeError::Corrupt { .. }));
    }

    /// The number of free slots in an answer: slots that the request's volume may still take. For a
    /// request on no volume, slots that no volume has reserved.
    pub(crate) fn slots_for(&self, volume: VolumeId) -> u32 {
        match self.volumes.contains_key(&volume) {
            true => self.store.slots_left(volume),
            false => self.store.slots_unclaimed(),
        }
    }

    fn lose_peer(&mut self, peer: PeerId) {
        self.table.lose_peer(peer);
        self.end_relays_of(peer);
        self.end_arrivals_of(peer);
        let mut left = Vec::new();
        for volume in self.volumes.values_mut() {
            volume.superseded.retain(|superseded| *superseded != peer);
            if volume.holder == Some(peer) {
                volume.holder = None;
                left.push(volume.record.volume);
                self.store.clear_requests(volume.record.volume);
                if !volume.claims() {
                    // The volume was not created after all, so it keeps no slots from others.
                    self.store.reserve(volume.record.volume, 0);
                }
            }
        }
        for volume in left {
            self.drop_accumulators(volume);
        }
    }

    /// Ends the entries whose work in the store ended, and retries parked requests, until nothing
    /// changes.
    fn settle(&mut self) {
        if self.table.len() < REQUESTS_MAX / 2 {
            self.control_events.table_has_room();
        }
        loop {
            while !self.store.done.is_empty() {
                for (entry, result) in std::mem::take(&mut self.store.done) {
                    self.end_part(entry, result);
                }
            }
            if !std::mem::take(&mut self.store.changed) || self.parked.is_empty() {
                break;
            }
            for entry in std::mem::take(&mut self.parked) {
                self.start_entry(entry);
            }
        }
        if self.is_ready() {
            self.store.reclaim(!self.parked.is_empty(), &mut self.disk);
        }
    }

    /// The answer to a request for the list of volumes. A capability for a volume shows this volume
    /// only. One for no volume (0) shows all: the pool's own commands have it.
    pub(crate) fn list_volumes(&self, of: VolumeId) -> ReplyBody {
        let mut room_bytes = LISTED_ROOT_BYTES_MAX;
        let mut volumes: Vec<VolumeSummary> = self
            .volumes
            .values()
            // A file without a record is the rest of an unfinished creation.
            .filter(|volume| volume.known || volume.damaged.is_some() || volume.has_file)
            .map(|volume| match volume.damaged {
                None => VolumeSummary {
                    volume: volume.record.volume,
                    epoch: volume.record.epoch,
                    root_version: volume.record.root_version,
                    root: volume.record.root.clone(),
                },
                Some(_) => VolumeSummary {
                    volume: volume.record.volume,
                    epoch: Epoch(0),
                    root_version: VolumeSummary::UNUSABLE,
                    root: Bytes::new(),
                },
            })
            .collect();
        // Shards without a record are the rest of a removal that could not read their headers.
        let listed: BTreeSet<VolumeId> = volumes.iter().map(|summary| summary.volume).collect();
        let rest = self.store.unknown_volumes(&listed);
        volumes.extend(rest.into_iter().map(|(volume, epoch)| VolumeSummary {
            volume,
            epoch: epoch.max(self.removed.last_epoch(volume)),
            root_version: 0,
            root: Bytes::new(),
        }));
        volumes.retain(|summary| of == VolumeId(0) || summary.volume == of);
        volumes.sort_by_key(|summary| summary.volume);
        for summary in &mut volumes {
            match room_bytes.checked_sub(summary.root.len()) {
                Some(left) => room_bytes = left,
                None => summary.root.clear(),
            }
        }
        ReplyBody::Volumes(volumes)
    }
}
