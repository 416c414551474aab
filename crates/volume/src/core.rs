//! The state of a volume: its parts.
//!
//! One [`VolumeCore`] behind an `Rc<RefCell>` holds all state. The machine and its tasks run on one
//! thread, never at the same time, and never hold a borrow across an `await`. The hot paths
//! (reading, appending, acknowledging) are plain methods. Procedures that wait are tasks over a
//! [`Ctx`].

use std::cell::RefCell;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_proto::Epoch;

use crate::calls::Calls;
use crate::committed::Committed;
use crate::failure::VolumeFailure;
use crate::gc::Gc;
use crate::interface::VolumeConfig;
use crate::life::Life;
use crate::log::Log;
use crate::map::Map;
use crate::node::Node;
use crate::open::OpeningAttempts;
use crate::outbox::Outbox;
use crate::place::Placement;
use crate::provision::Reservation;
use crate::read::Reads;
use crate::repair::Repair;
use crate::segment::SegmentTable;
use crate::shape::Shape;
use crate::writer::Writer;

/// Counters for [`crate::Status`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Bytes that users wrote.
    pub user_written_bytes: u64,
    /// Bytes that garbage collection moved.
    pub moved_bytes: u64,
    /// Bytes sent to nodes.
    pub sent_bytes: u64,
    /// Records that went to the journal along a route.
    pub appends_relayed: u64,
    /// Records that the volume sent to a node itself because the route had not reached the node.
    pub appends_sent_again: u64,
    /// Writes of copies that went along a route.
    pub copies_relayed: u64,
    /// Copies that the volume sent to a node itself because the route had not reached the node.
    pub copies_sent_again: u64,
    /// Parity shards, or pieces of them, that data nodes passed on to the parity nodes.
    pub parities_relayed: u64,
    /// Those that the volume sent to a node itself because the route had not reached the node.
    pub parities_sent_again: u64,
    /// Parity shards, or pieces of them, that nodes made.
    pub parities_streamed: u64,
    /// Those that the volume made itself because a node did not get all contributions.
    pub parities_coded_again: u64,
    /// Reads that needed decoding.
    pub degraded_reads: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Longest time that a write waited for garbage collection.
    pub gc_pause_max_ns: u64,
}

/// The state of a volume, in parts. Methods that need several parts are methods of this type.
pub struct VolumeCore {
    /// What the world asks of the volume.
    pub config: VolumeConfig,
    /// The volume's clock: the time of the last event.
    pub now: Nanos,
    /// Numbers for the status. Collection and housekeeping compare the bytes that users wrote, to
    /// see whether users have written meanwhile; nothing else depends on these numbers.
    pub counters: Counters,

    /// What the volume does at present.
    pub life: Life,
    /// The opening, attempt by attempt.
    pub attempts: OpeningAttempts,
    /// The epoch, and the capabilities for it.
    pub writer: Writer,
    /// Name, code and sizes.
    pub shape: Shape,

    /// The nodes.
    pub nodes: Vec<Node>,
    /// Which nodes get which shards.
    pub placement: Placement,
    /// The slots that the volume has reserved on the nodes.
    pub reservation: Reservation,
    /// Requests to nodes that have no answer yet.
    pub calls: Calls,
    /// Actions, answers, and tasks that leave the state.
    pub outbox: Outbox,

    /// Users' reads.
    pub reads: Reads,
    /// Changes, their records, and the journal.
    pub log: Log,
    /// Where each block of the device lies.
    pub map: Map,
    /// Where the shards of each segment lie.
    pub segments: SegmentTable,
    /// The root on the nodes.
    pub committed: Committed,

    /// Collection and checkpoints.
    pub gc: Gc,
    /// Rebuild and scrub.
    pub repair: Repair,
}

impl VolumeCore {
    /// The state of a volume that starts to open. The shape is a placeholder until the volume reads
    /// the root, unless it creates the volume.
    pub fn new(config: VolumeConfig, shape: Shape, now: Nanos) -> Self {
        let nodes = (0..config.nodes).map(|_| Node::default()).collect();
        let mut core = Self {
            placement: Placement::new(config.nodes),
            now,
            life: Life::new(),
            attempts: OpeningAttempts::new(now),
            writer: Writer::new(config.wall_offset_ns),
            nodes,
            calls: Calls::default(),
            outbox: Outbox::default(),
            map: Map::new(shape.size_blocks()),
            segments: SegmentTable::default(),
            log: Log::new(shape.geometry().ring_bytes),
            reads: Reads::default(),
            committed: Committed::default(),
            gc: Gc::new(now),
            counters: Counters::default(),
            repair: Repair::default(),
            reservation: Reservation::default(),
            config,
            shape,
        };
        core.set_epoch(Epoch(0));
        core
    }

    /// Takes over the shape that the root says.
    pub fn adopt(&mut self, shape: Shape) {
        self.map = Map::new(shape.size_blocks());
        self.log = Log::new(shape.geometry().ring_bytes);
        self.shape = shape;
    }

    /// How long a node has to answer. An opening may give nodes more time.
    #[must_use]
    pub fn answer_limit(&self) -> Nanos {
        let doublings = if self.life.is_opening() { self.attempts.doublings } else { 0 };
        Nanos::from_ms(self.config.node_timeout_ms << doublings)
    }

    /// When the next timer fires or the next call times out.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let limit = self.answer_limit();
        let timer = self.outbox.next_timer();
        let call = self.nodes.iter().filter_map(|n| n.in_flight.front()).map(|(t, _)| *t).min();
        let call = call.map(|sent| sent.plus(limit));
        [timer, call, self.next_capability_check()].into_iter().flatten().min()
    }

    /// The volume cannot go on.
    pub fn fail(&mut self, why: VolumeFailure) {
        if self.life.is_over() {
            return;
        }
        tracing::error!(volume = %self.shape.name(), "{why}");
        self.life.fail(why);
        self.fail_everything();
    }

    /// A node has a newer writer, of epoch `current`. This writer ends.
    pub fn fence_out(&mut self, current: Epoch) {
        self.fail(VolumeFailure::FencedOut { current });
    }
}

/// A task's access to the state: a closure borrows it, never across an `await`.
#[derive(Clone)]
pub struct Ctx(pub Rc<RefCell<VolumeCore>>);

impl Ctx {
    /// Works on the state.
    pub fn with<R>(&self, work: impl FnOnce(&mut VolumeCore) -> R) -> R {
        work(&mut self.0.borrow_mut())
    }

    /// Waits.
    pub async fn sleep_ms(&self, ms: u64) {
        let sleep = self.with(|core| core.sleep(Nanos::from_ms(ms)));
        sleep.await;
    }
}
