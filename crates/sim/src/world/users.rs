//! The users: they submit requests, and judge the answers.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Nanos, Op, QueueId, ReadDestination, Request, RequestFlags, RequestId,
    Stamps,
};
use fieldstone_volume::VolumePhase;

use super::disk_full::{DisksFull, FULL_NS_MAX};
use super::{Happening, REQUEST_NS_MAX, SHUT_NS_MAX, SOUND_NS_MAX, World};
use crate::actor::Cast;
use crate::checker::Span;
use crate::network::ClientId;
use crate::trace::Who;
use crate::workload::Draft;

/// In a pool that is short of room, the longest virtual time that a change waits for each change
/// before it. Near the limit, collection moves all data of a volume to gain one segment.
const QUEUED_NS_MAX: u64 = 3_000_000_000;
/// The same if a disk is slow for good: collection reads from it and writes to it. A volume of 70
/// segments with two such disks took 20 s for each change.
const SLOW_QUEUED_NS_MAX: u64 = 8 * QUEUED_NS_MAX;
/// The longest virtual time that a change waits for room if a disk is slow for good.
const SLOW_NS_MAX: u64 = 70_000_000_000;
/// The smallest bound on the time of a request.
const SHORTEST_NS_MAX: u64 = FULL_NS_MAX;
const _: () = assert!(SHORTEST_NS_MAX <= SOUND_NS_MAX && SOUND_NS_MAX <= REQUEST_NS_MAX);

/// A request without an answer so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub client: ClientId,
    op: Op,
    /// For an operation that makes zeroes: the blocks keep their space.
    reserves: bool,
    /// The device reads and writes back blocks that the request covers in part.
    is_unaligned: bool,
    /// The most requests to the volume, one after another, until the answer: the request's own, and
    /// those of the requests in flight that it waits for in the layers.
    steps: u64,
    /// The requests of the same process that were in flight when this one was made.
    queued: u64,
    span: Span,
    pub(super) since: Nanos,
    /// Number of freed blocks when the request was made.
    pub freed_before: u64,
}

impl<C: Cast> World<'_, C> {
    pub(super) fn schedule_work(&mut self, volume_number: usize, delay_ns: u64) {
        if self.users_active && !self.sim_volumes[volume_number].work_pending {
            self.sim_volumes[volume_number].work_pending = true;
            self.schedule.after(delay_ns, Happening::Work { volume_number });
        }
    }

    /// Submits one request, if the users are active and the volume serves.
    pub(super) fn work_due(&mut self, volume_number: usize) {
        self.sim_volumes[volume_number].work_pending = false;
        if !self.users_active || self.sim_volumes[volume_number].workload.is_over() {
            return;
        }
        let Some(client) = self.choose_process(volume_number) else { return };
        let depth = self.count_in_flight(client);
        let sim_volume = &mut self.sim_volumes[volume_number];
        if depth >= sim_volume.workload.plan().depth as u64 {
            return;
        }
        let draft = sim_volume.workload.draw();
        let draft = self.behind_old_end(client, draft);
        if draft.op == Op::Read || self.sim_volumes[volume_number].checker.has_room(draft.span) {
            self.submit(client, draft);
        }
        let pause_ns = self.sim_volumes[volume_number].workload.pause_ns();
        self.schedule_work(volume_number, pause_ns);
    }

    /// The active process, or sometimes one that has a successor and does not know it.
    fn choose_process(&mut self, volume_number: usize) -> Option<ClientId> {
        let active = self.sim_volumes[volume_number].active?;
        if self.sim_volumes[volume_number].stale_ops_left > 0 && self.world_rng.chance(300) {
            let mut others =
                self.volumes.iter().filter(|(_, host)| host.volume_number == volume_number);
            let stale = others.find(|(client, _)| **client != active);
            if let Some((stale, host)) = stale
                && host.phase == VolumePhase::Serving
            {
                self.sim_volumes[volume_number].stale_ops_left -= 1;
                return Some(*stale);
            }
        }
        (self.volumes[&active].phase == VolumePhase::Serving).then_some(active)
    }

    /// Submits a request to a volume.
    pub(super) fn submit(&mut self, client: ClientId, draft: Draft) {
        self.requests += 1;
        let number = self.requests;
        let Draft { op, span, flags } = draft;
        let mut data = Bytes::new();
        let volume_number = self.volume_number_of(client);
        let sim_volume = &mut self.sim_volumes[volume_number];
        let (covered, whole) = (sim_volume.blocks_of(span), sim_volume.whole_blocks_of(span));
        let is_unaligned = covered != whole;
        let trimmed = sim_volume.cells_of(whole.clone());
        let checker = &mut sim_volume.checker;
        match op {
            Op::Read | Op::Extents => checker.read_submitted(client, number, span),
            Op::Flush => checker.flush_submitted(client, number),
            Op::Write => {
                data = checker.content(number, span);
                checker.write_submitted(client, number, span, false, flags.fua);
            }
            Op::WriteZeroes => checker.write_submitted(client, number, span, true, flags.fua),
            // The rest keeps its content.
            Op::Trim => checker.write_submitted(client, number, trimmed, true, flags.fua),
        }
        let now = self.now();
        self.note(
            Who::Workload,
            "op",
            u64::from(number),
            format_args!(
                "{number} v{} {op:?} {}+{}{}",
                client.0,
                span.first,
                span.cells,
                if flags.fua { " fua" } else { "" }
            ),
        );
        let reserves = op == Op::WriteZeroes && flags.no_hole;
        if reserves {
            self.sim_volumes[volume_number].reserved.reserve(covered);
        } else if op == Op::WriteZeroes {
            // The device stores the zeroes of blocks that the request covers in part.
            let reserved = &mut self.sim_volumes[volume_number].reserved;
            covered
                .filter(|block| !whole.contains(block))
                .for_each(|at| reserved.reserve(at..at + 1));
        }
        let freed_before = self.freed_blocks;
        let mut request = InFlight {
            client,
            op,
            reserves,
            is_unaligned,
            steps: 1,
            queued: self.count_in_flight(client),
            span,
            since: now,
            freed_before,
        };
        request.steps = self.wait_for_others(&request);
        self.in_flight.insert(number, request);
        let cell_bytes = u64::from(self.sim_volumes[volume_number].share.cell_bytes);
        let whole_device = op == Op::Flush;
        let request = Request {
            id: RequestId(u64::from(number)),
            op,
            offset_bytes: if whole_device { 0 } else { span.first * cell_bytes },
            len_bytes: if whole_device { 0 } else { (span.cells * cell_bytes) as u32 },
            flags,
            data,
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        self.with_host(client, |host, now| host.submit(request, now));
        self.sim_volumes[volume_number].requests += 1;
        self.grow_if_due(client, volume_number);
        self.remove_if_due(volume_number);
    }

    /// Submits a request for these blocks, without modifiers, to the active process of a volume.
    pub(super) fn submit_blocks(&mut self, volume_number: usize, op: Op, blocks: Range<u64>) {
        if let Some(client) = self.sim_volumes[volume_number].active {
            let span = self.sim_volumes[volume_number].cells_of(blocks);
            self.submit(client, Draft { op, span, flags: RequestFlags::default() });
        }
    }

    /// Handles an answer of a volume.
    pub(super) fn request_ended(&mut self, client: ClientId, completion: Completion) {
        let number = u32::try_from(completion.id.0).unwrap_or(u32::MAX);
        let Some(request) = self.in_flight.remove(&number) else {
            return self.fail(format!("request {number} was answered twice, or never made"));
        };
        let now = self.now();
        let took_us = now.since(request.since).0 / 1000;
        let ok = completion.result.is_ok();
        match &completion.result {
            Ok(_) => self.note(
                Who::Workload,
                "ack",
                u64::from(number),
                format_args!("{number} {:?} after {took_us} us", request.op),
            ),
            Err(error) => self.note(
                Who::Workload,
                "err",
                u64::from(number),
                format_args!("{number} {:?} after {took_us} us: {error}", request.op),
            ),
        }
        let volume_number = self.volume_number_of(client);
        let checker = &mut self.sim_volumes[volume_number].checker;
        let judged = match request.op {
            Op::Read | Op::Extents => match &completion.result {
                Ok(payload) => checker.read_returned(number, payload),
                Err(_) => {
                    checker.read_failed(number);
                    Ok(())
                }
            },
            Op::Flush => {
                checker.flush_ended(number, ok);
                Ok(())
            }
            Op::Write | Op::Trim | Op::WriteZeroes => checker.write_ended(number, ok),
        };
        if ok && needs_space(request.op) {
            self.sim_volumes[volume_number].changed_at = now;
        }
        if ok && matches!(request.op, Op::Trim | Op::WriteZeroes) {
            let sim_volume = &mut self.sim_volumes[volume_number];
            let (covered, whole) =
                (sim_volume.blocks_of(request.span), sim_volume.whole_blocks_of(request.span));
            self.freed_blocks += whole.end - whole.start;
            match request.reserves {
                true => sim_volume.reserved.reserve(covered),
                false => sim_volume.reserved.trim(whole),
            }
        }
        if ok && request.op == Op::Flush {
            self.sim_volumes[volume_number].reserved.flushed();
        }
        if let Err(finding) = judged {
            self.fail(format!("request {number} ({:?}): {finding}", request.op));
        }
        if let Err(error) = completion.result {
            self.judge_error(client, number, request, &error);
        }
        let pause_ns = self.sim_volumes[volume_number].workload.pause_ns();
        self.schedule_work(volume_number, pause_ns);
    }

    /// Decides whether a request may fail with this error, here and now.
    fn judge_error(
        &mut self,
        client: ClientId,
        number: u32,
        request: InFlight,
        error: &BlockError,
    ) {
        self.failed_requests += 1;
        let volume_number = self.volume_number_of(client);
        let succeeded = self.sim_volumes[volume_number].newest != Some(client);
        let allowed = match error {
            BlockError::Fenced(_) => succeeded,
            BlockError::NoSpace => {
                // With full disks, a volume refuses all kinds of changes when the journal is full,
                // and flushes when the journal has to move.
                let full = self.were_disks_full_since(request.since);
                let short = self.is_short_of_space(volume_number, &request);
                full || (needs_space(request.op) && short)
            }
            BlockError::Io(_) | BlockError::ShuttingDown => {
                succeeded
                    || self.fault_model.was_exceeded_since(request.since)
                    || self.sim_volumes[volume_number].refused.was_since(request.since)
            }
            BlockError::OutOfRange { .. } | BlockError::NotSupported(_) | BlockError::ReadOnly => {
                false
            }
        };
        if !allowed {
            let InFlight { op, span, .. } = request;
            let (taken, room) = self.slots_taken_of(request.freed_before);
            self.fail(format!(
                "request {number} ({op:?} {span:?}) of volume {volume_number} must not fail: \
                 {error} (live data takes {taken} of {room} slots): {}",
                self.describe_state()
            ));
        }
    }

    /// The longest permitted time of a request. In a pool that is short of room, changes wait for
    /// collection, one after another. With a disk that is slow for good, each step of a collection
    /// takes almost as long as a node may be silent. If a merged request fails, the scheduler sends
    /// each of its parts once more. A read may wait for a window of read-ahead first, and goes to
    /// the volume itself if the window fails.
    fn longest_ns(&self, request: &InFlight) -> u64 {
        let sends = match (&self.scenario.layers, request.op) {
            (None, _) => 1,
            (Some(_), Op::Read) => 4,
            (Some(_), _) => 2,
        };
        sends * request.steps * self.longest_ns_in_volume(request)
    }

    /// Computes [`InFlight::steps`] of a request that is submitted now. A read-modify-write zeroes
    /// the whole blocks inside, or reads the edges, and then writes. It waits for changes of the
    /// same blocks, and they wait for it. If the scheduler merges a request with its neighbours, it
    /// also waits for the requests that the neighbours wait for. Each of these may wait for this
    /// request in turn, so each gets at least as many steps.
    fn wait_for_others(&mut self, request: &InFlight) -> u64 {
        if !request.op.changes_data() {
            return 1;
        }
        let sim_volume = &self.sim_volumes[self.volume_number_of(request.client)];
        let merges = self.scenario.layers.is_some();
        let waits_for = |one: &InFlight, other: &InFlight| {
            let (one_blocks, blocks) =
                (sim_volume.blocks_of(one.span), sim_volume.blocks_of(other.span));
            let overlap = blocks.start < one_blocks.end && one_blocks.start < blocks.end;
            let touch = one.span.first <= other.span.first + other.span.cells
                && other.span.first <= one.span.first + one.span.cells;
            (overlap && (one.is_unaligned || other.is_unaligned)) || (merges && touch)
        };
        let others = self.in_flight.iter();
        let others = others.filter(|(_, other)| other.client == request.client);
        let changes = others.filter(|(_, other)| other.op.changes_data());
        let mut rest: Vec<(u32, InFlight)> = changes.map(|(id, other)| (*id, *other)).collect();
        let mut chain = vec![*request];
        let mut chained = Vec::new();
        let mut at = 0;
        while at < chain.len() {
            let one = chain[at];
            for (id, other) in rest.extract_if(.., |(_, other)| waits_for(&one, other)) {
                chained.push(id);
                chain.push(other);
            }
            at += 1;
        }
        let steps = chain.iter().map(|one| if one.is_unaligned { 3 } else { 1 }).sum();
        for id in chained {
            if let Some(other) = self.in_flight.get_mut(&id) {
                other.steps = other.steps.max(steps);
            }
        }
        steps
    }

    /// The same for one request that the volume gets.
    fn longest_ns_in_volume(&self, request: &InFlight) -> u64 {
        let impaired = self.fault_model.was_impaired_since(request.since);
        let longest_ns = if impaired { REQUEST_NS_MAX } else { SOUND_NS_MAX };
        let volume_number = self.volume_number_of(request.client);
        let slow = self.nodes.iter().any(|host| host.permanent_faults.delay_ns > 0);
        let longest_ns = match self.disks_full {
            DisksFull::Full { since, .. } => {
                let others_get_on = self.sim_volumes[volume_number].changed_at > request.since;
                let factor = if others_get_on { 3 } else { 1 };
                factor * FULL_NS_MAX + since.since(request.since).0
            }
            DisksFull::Ahead | DisksFull::Over { .. } => longest_ns,
        };
        if !self.is_short_of_space(volume_number, request) {
            // Collection may have to make room first, or the ring has to turn once or twice for the
            // changes before this one. Each step of that takes long.
            let waits = slow && request.op.changes_data();
            return if waits { longest_ns.max(SLOW_NS_MAX) } else { longest_ns };
        }
        let queued = self.count_in_flight(request.client).max(request.queued);
        let (factor, queued_ns) = if slow { (4, SLOW_QUEUED_NS_MAX) } else { (2, QUEUED_NS_MAX) };
        factor * longest_ns + queued * queued_ns
    }

    fn count_in_flight(&self, client: ClientId) -> u64 {
        self.in_flight.values().filter(|request| request.client == client).count() as u64
    }

    /// Checks that every request gets an answer in time, and every volume opens in time.
    pub(super) fn check_for_stuck_requests(&mut self) {
        let now = self.now();
        let since = |volume_number: usize| self.sim_volumes[volume_number].shut_since;
        let shut =
            |volume_number| since(volume_number).is_some_and(|at| now.since(at).0 > SHUT_NS_MAX);
        if let Some(volume_number) =
            self.volume_numbers().find(|volume_number| shut(*volume_number))
        {
            let (seconds, state) = (SHUT_NS_MAX / 1_000_000_000, self.describe_state());
            return self
                .fail(format!("volume {volume_number} has not served for {seconds} s: {state}"));
        }
        let stuck = self
            .in_flight
            .iter()
            .filter(|(_, request)| now.since(request.since).0 > SHORTEST_NS_MAX)
            .map(|(number, request)| (*number, *request, self.longest_ns(request)))
            .find(|(_, request, longest_ns)| now.since(request.since).0 > *longest_ns);
        if let Some((number, InFlight { op, span, .. }, longest_ns)) = stuck {
            let seconds = longest_ns / 1_000_000_000;
            let state = self.describe_state();
            self.fail(format!(
                "request {number} ({op:?} {span:?}) is unanswered for {seconds} s: {state}"
            ));
        }
    }
}

fn needs_space(op: Op) -> bool {
    // Trimming is the way out of a full pool, so it must work in one. A flush needs no room: the
    // journal already holds the data that the flush makes stable.
    matches!(op, Op::Write | Op::WriteZeroes)
}
