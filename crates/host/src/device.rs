//! A device of the host: a store behind its layers.
//!
//! Requests come from front-ends on any core. Their ids are unique only within their submitter. The
//! device's [`Stack`] gives each request a new id, and remembers where its completion goes.

use std::sync::mpsc;

use fieldstone_block::layers::{
    Cache, CacheStats, Counts, LayerOptions, Meter, Scheduler, SchedulerStats,
};
use fieldstone_block::{
    Backend, Completion, Counter, Info, Interval, Nanos, Op, QueueId, Request, Settings, Stack,
    Summary, Unanswered,
};

use crate::control::DeviceSnapshot;
use crate::message::{DeviceId, Message, Origin, Router};
use crate::overdue::{LOOK_MS, Overdue, Report, is_overdue};
use crate::store::{Mail, Phase, Store, StoreIo, StoreSpec};
use crate::token::{Kind, token};
use fieldstone_uring::Reactor;

/// A device's counts and measurements.
#[derive(Clone, Debug, Default)]
pub struct DeviceStats {
    /// Requests, bytes and errors.
    pub counts: Counts,
    /// Requests that have not completed.
    pub in_flight: usize,
    /// The age of the oldest of these requests in nanoseconds; 0 if there is none.
    pub oldest_ns: u64,
    /// The latencies of all intervals between stages that were seen.
    pub stages: Vec<(Op, Interval, Summary)>,
    /// Requests that the scheduler merged and delayed.
    pub scheduler: SchedulerStats,
    /// Hits, misses and fill level of the cache.
    pub cache: CacheStats,
    /// The device's layers. The first is next to the front-ends.
    pub layers: Vec<LayerStatus>,
}

/// A layer of a device.
#[derive(Clone, Debug)]
pub struct LayerStatus {
    /// The layer's name.
    pub name: &'static str,
    /// The options in force.
    pub options: Vec<(&'static str, String)>,
    /// The layer's counters.
    pub counters: Vec<Counter>,
}

/// The configuration of a device.
#[derive(Debug)]
pub struct DeviceSpec {
    /// The name of its export.
    pub name: String,
    /// Makes the store.
    pub store: Box<dyn StoreSpec>,
    /// The layers in front of the store.
    pub layers: LayerOptions,
}

/// The queue for the requests of one submitter:
///
/// ```text
///  31      20 19       16 15        0
/// +----------+-----------+-----------+
/// |   core   | front-end |   place   |
/// +----------+-----------+-----------+
/// ```
fn queue_of(origin: Origin) -> QueueId {
    let core = u32::try_from(origin.core.0).unwrap_or(u32::MAX);
    let frontend = u32::from(origin.frontend.0) & 0xf;
    QueueId(core << 20 | frontend << 16 | origin.submitter.place & 0xffff)
}

/// A device of this core.
pub struct Device {
    id: DeviceId,
    name: String,
    stack: Stack<Box<dyn Store>, Origin>,
    overdue: Overdue,
    completions: Vec<(Origin, Completion)>,
    opening: Option<mpsc::Sender<Result<Info, String>>>,
    closing: Option<mpsc::Sender<Result<(), String>>>,
    timer: Option<Nanos>,
    dirty: bool,
}

impl Device {
    /// A device that begins to open. It answers `reply` when it serves or has failed.
    pub fn open(
        id: DeviceId,
        spec: DeviceSpec,
        reply: mpsc::Sender<Result<Info, String>>,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) -> Self {
        let store = spec.store.open(&mut StoreIo { device: id, now, reactor, router });
        let layers = spec.layers.make().expect("options were tried when they were read");
        Self {
            id,
            name: spec.name,
            stack: Stack::new(store, layers),
            overdue: Overdue::default(),
            completions: Vec::new(),
            opening: Some(reply),
            closing: None,
            timer: None,
            dirty: true,
        }
    }

    /// Takes a request from a front-end.
    pub fn submit(&mut self, origin: Origin, mut request: Request, now: Nanos) {
        request.queue = queue_of(origin);
        self.stack.submit_from(origin, request, now);
        self.dirty = true;
    }

    /// An operation of the store has ended.
    pub fn store_event(
        &mut self,
        index: u32,
        event: fieldstone_uring::Event,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
    ) {
        self.dirty = true;
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().event(index, event, &mut io);
    }

    /// Passes a message from a part or a thread to the store.
    pub fn mail(&mut self, mail: Mail, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        self.dirty = true;
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().mail(mail, &mut io);
    }

    /// The device's timer is due.
    pub fn timer_due(&mut self) {
        self.timer = None;
        self.dirty = true;
    }

    /// Calls the store.
    ///
    /// # Errors
    /// The store has no such call, or the reason why the store refuses.
    pub fn call(&mut self, call: Settings) -> Result<(), String> {
        self.dirty = true;
        let known = self.stack.store().calls();
        if !known.iter().any(|known| known.name == call.layer()) {
            return Err(format!("{} cannot be told to {}", self.name, call.layer()));
        }
        self.stack.store_mut().call(call)
    }

    /// No more requests come: the layers pass on at once the requests that they hold.
    pub fn drain(&mut self) {
        self.dirty = true;
        self.stack.drain();
    }

    /// Begins to close. The device answers `reply` when everything is stable.
    pub fn close(&mut self, reply: mpsc::Sender<Result<(), String>>) {
        self.dirty = true;
        self.closing = Some(reply);
        self.stack.store_mut().close();
    }

    /// The status of the device.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool, now: Nanos) -> DeviceSnapshot {
        DeviceSnapshot {
            device: self.id,
            name: self.name.clone(),
            info: self.stack.info().clone(),
            kind: self.stack.store().kind(),
            phase: self.stack.store().phase(),
            status: self.stack.store().status(now),
            calls: self.stack.store().calls(),
            stats: if with_stats { self.stats(now) } else { DeviceStats::default() },
        }
    }

    fn stats(&self, now: Nanos) -> DeviceStats {
        let oldest = self.stack.oldest();
        let meter = self.stack.layer::<Meter>();
        let layers = self.stack.layers().iter().map(|layer| LayerStatus {
            name: layer.name(),
            options: layer.options(),
            counters: layer.counters(),
        });
        DeviceStats {
            counts: meter.map(Meter::counts).unwrap_or_default(),
            in_flight: self.stack.in_flight(),
            oldest_ns: oldest.map_or(0, |oldest| now.since(oldest.since).0),
            stages: meter.map(|meter| meter.stages().rows().collect()).unwrap_or_default(),
            scheduler: self.stack.layer().map(Scheduler::stats).unwrap_or_default(),
            cache: self.stack.layer().map(Cache::stats).unwrap_or_default(),
            layers: layers.collect(),
        }
    }

    /// Changes options of a layer.
    ///
    /// # Errors
    /// The device has no such layer, or the layer refuses.
    pub fn change_layer(&mut self, mut settings: Settings) -> Result<(), String> {
        self.dirty = true;
        let name = settings.layer().to_owned();
        let Some(layer) = self.stack.layer_mut(&name) else {
            return Err(format!("{} has no layer {name:?}", self.name));
        };
        // The trial on its own finds an unknown option before anything changes.
        let mut trial = LayerOptions::default();
        trial.add_settings(settings.clone()).map_err(|error| error.to_string())?;
        layer.change(&mut settings).map_err(|error| error.to_string())
    }

    /// Runs the layers and the store until they have no more work. True if the device had to run.
    pub fn pump(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) -> bool {
        if !std::mem::replace(&mut self.dirty, false) {
            return false;
        }
        loop {
            self.stack.refresh_info();
            self.stack.poll_into(now, &mut self.completions);
            let mut busy = !self.completions.is_empty();
            for (origin, completion) in self.completions.drain(..) {
                router.send(origin.core, Message::Complete { origin, completion });
            }
            let mut io = StoreIo { device: self.id, now, reactor, router };
            busy |= self.stack.store_mut().act(&mut io);
            if !busy {
                break;
            }
        }
        self.stack.store_mut().flush(&mut StoreIo { device: self.id, now, reactor, router });
        self.answer_calls();
        self.set_timer(reactor);
        true
    }

    /// Answers the calls that wait until the device has opened or closed.
    fn answer_calls(&mut self) {
        if self.opening.is_none() && self.closing.is_none() {
            return;
        }
        let (opened, closed) = match self.stack.store().phase() {
            Phase::Opening | Phase::Closing => return,
            Phase::Serving => (Ok(self.stack.store().info()), None),
            Phase::Closed => (Err("it was closed".to_owned()), Some(Ok(()))),
            Phase::Failed(reason) => (Err(reason.clone()), Some(Err(reason))),
        };
        // The caller may no longer wait.
        if let Some(reply) = self.opening.take() {
            drop(reply.send(opened));
        }
        if let Some(closed) = closed
            && let Some(reply) = self.closing.take()
        {
            drop(reply.send(closed));
        }
    }

    fn set_timer(&mut self, reactor: &mut Reactor) {
        let deadline = self.stack.next_deadline();
        if deadline == self.timer {
            return;
        }
        self.timer = deadline;
        let token = token(Kind::DeviceTimer, self.id.0, 0);
        match deadline {
            Some(deadline) => reactor.timer(deadline, token),
            None => drop(reactor.cancel_timer(token)),
        }
    }

    /// Reports requests that have waited for too long. Before that it runs the device once more:
    /// see `overdue`.
    pub fn watch(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        let oldest = self.stack.oldest();
        let waits_for = self.waits_for(now);
        self.overdue.note(oldest.as_ref(), waits_for, now);
        if oldest.is_some_and(|oldest: Unanswered| is_overdue(&oldest, now)) {
            self.dirty = true;
            self.pump(now, router, reactor);
            if self.stack.oldest() != oldest {
                let (name, device) = (&self.name, self.id.0);
                tracing::error!(device, "{name}: requests were answered only when looked after");
            }
        }
        let oldest = self.stack.oldest();
        match (self.overdue.check(oldest.as_ref(), now), oldest) {
            (Some(Report::Over), _) => {
                tracing::info!("{}: all requests are answered again", self.name);
            }
            (Some(Report::Overdue), Some(oldest)) => {
                let (count, waits_for) = (self.stack.in_flight(), self.waits_for(now));
                let words = self.overdue.words(count, &oldest, &waits_for, now);
                tracing::warn!("{}: {words}", self.name);
            }
            _ => {}
        }
    }

    /// What the layers and the store wait for; empty if there is no reason.
    fn waits_for(&self, now: Nanos) -> String {
        let layers = self.stack.layers().iter().filter_map(|layer| layer.waits_for());
        let store = Some(self.stack.store().waits_for(now)).filter(|text| !text.is_empty());
        layers.chain(store).collect::<Vec<String>>().join(", ")
    }

    /// When to call [`Device::watch`]; `None` if no request is in flight.
    #[must_use]
    pub fn watch_deadline(&self, now: Nanos) -> Option<Nanos> {
        (self.stack.in_flight() > 0).then(|| now.plus(Nanos::from_ms(LOOK_MS)))
    }

    /// Gives back everything that the store uses. The device is not used after that.
    pub fn release(&mut self, router: &mut Router, reactor: &mut Reactor) {
        let now = reactor.now();
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().release(&mut io);
        reactor.cancel_timer(token(Kind::DeviceTimer, self.id.0, 0));
    }

    /// True if no caller waits until the device has opened or closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.opening.is_none() && self.closing.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::frontend::{FRONTENDS_MAX, FrontendId, Submitter};
    use crate::message::Core;

    /// The layer `limit` shares its rate among queues, so each submitter needs its own queue.
    #[test]
    fn submitters_of_all_front_ends_and_cores_have_queues_of_their_own() {
        let mut queues = BTreeSet::new();
        let last = u8::try_from(FRONTENDS_MAX - 1).expect("few");
        for core in [0, 1, 4095] {
            for frontend in [0, 1, last] {
                for place in [0, 1, 0xffff] {
                    let submitter = Submitter { place, generation: 9 };
                    let (core, frontend) = (Core(core), FrontendId(frontend));
                    queues.insert(queue_of(Origin { core, frontend, submitter }));
                }
            }
        }
        assert_eq!(queues.len(), 27);
    }
}
