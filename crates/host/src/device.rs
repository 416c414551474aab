//! A device of the host: a store behind its layers.
//!
//! Requests come from front-ends of any core under names that are unique only there. The device's
//! [`Stack`] names each request anew, and knows where its completion goes.

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

/// What a device counts and measures.
#[derive(Clone, Debug, Default)]
pub struct DeviceStats {
    /// Requests, bytes and errors.
    pub counts: Counts,
    /// Requests that have not completed.
    pub in_flight: usize,
    /// For how long the oldest of them has been waiting; 0 if there is none.
    pub oldest_ns: u64,
    /// Where the time went: every interval that was seen.
    pub stages: Vec<(Op, Interval, Summary)>,
    /// What was merged and delayed.
    pub scheduler: SchedulerStats,
    /// Hits, misses and fill of the cache.
    pub cache: CacheStats,
    /// The device's layers, from the one next to the front-ends.
    pub layers: Vec<LayerStatus>,
}

/// A layer of a device.
#[derive(Clone, Debug)]
pub struct LayerStatus {
    /// Its name.
    pub name: &'static str,
    /// The options in force.
    pub options: Vec<(&'static str, String)>,
    /// What it has counted.
    pub counters: Vec<Counter>,
}

/// What a device is.
#[derive(Debug)]
pub struct DeviceSpec {
    /// The name of its export.
    pub name: String,
    /// What stores the bytes.
    pub store: Box<dyn StoreSpec>,
    /// The layers in front of it.
    pub layers: LayerOptions,
}

/// The queue that requests of one submitter belong to:
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
    /// A device that begins to open; `reply` is answered when it serves or has failed.
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

    /// A front-end hands a request over.
    pub fn submit(&mut self, origin: Origin, mut request: Request, now: Nanos) {
        request.queue = queue_of(origin);
        self.stack.submit_from(origin, request, now);
        self.dirty = true;
    }

    /// An operation of its store has come back.
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

    /// A part or a thread tells its store something.
    pub fn mail(&mut self, mail: Mail, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        self.dirty = true;
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().mail(mail, &mut io);
    }

    /// Its timer is due.
    pub fn timer_due(&mut self) {
        self.timer = None;
        self.dirty = true;
    }

    /// Calls its store.
    ///
    /// # Errors
    /// Why the store refuses.
    pub fn call(&mut self, call: Settings) -> Result<(), String> {
        self.dirty = true;
        let known = self.stack.store().calls();
        if !known.iter().any(|known| known.name == call.layer()) {
            return Err(format!("{} cannot be told to {}", self.name, call.layer()));
        }
        self.stack.store_mut().call(call)
    }

    /// No request comes any more: those in flight are answered as soon as may be.
    pub fn drain(&mut self) {
        self.dirty = true;
        self.stack.drain();
    }

    /// Begins to close; `reply` is answered when all is stable.
    pub fn close(&mut self, reply: mpsc::Sender<Result<(), String>>) {
        self.dirty = true;
        self.closing = Some(reply);
        self.stack.store_mut().close();
    }

    /// What is told about it.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool, now: Nanos) -> DeviceSnapshot {
        DeviceSnapshot {
            device: self.id,
            name: self.name.clone(),
            info: self.stack.info().clone(),
            kind: self.stack.store().kind(),
            phase: self.stack.store().phase(),
            status: self.stack.store().status(),
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
        // Tried first on its own, so that an unknown option changes nothing.
        let mut trial = LayerOptions::default();
        trial.add_settings(settings.clone()).map_err(|error| error.to_string())?;
        layer.change(&mut settings).map_err(|error| error.to_string())
    }

    /// Lets the layers and the store run until they want nothing. True if anything was done.
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

    /// Answers the calls that wait for the device to open or close.
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
        // The caller may have stopped waiting.
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

    /// Looks for requests that have been waiting for too long. The device is run first: see
    /// `overdue`.
    pub fn watch(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        let oldest = self.stack.oldest();
        if oldest.is_some_and(|oldest: Unanswered| is_overdue(&oldest, now)) {
            self.dirty = true;
            self.pump(now, router, reactor);
            if self.stack.oldest() != oldest {
                let (name, device) = (&self.name, self.id.0);
                tracing::error!(device, "{name}: requests were answered only when looked after");
            }
        }
        let oldest = self.stack.oldest();
        let waits_for = || {
            let layers = self.stack.layers().iter().filter_map(|layer| layer.waits_for());
            let store = Some(self.stack.store().waits_for()).filter(|text| !text.is_empty());
            let all: Vec<String> = layers.chain(store).collect();
            if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
        };
        match self.overdue.look(oldest.as_ref(), now) {
            None => {}
            Some(Report::Over) => tracing::info!("{}: all requests are answered again", self.name),
            Some(Report::Overdue) => {
                let count = self.stack.in_flight();
                let seconds = oldest.map_or(0, |oldest| now.since(oldest.since).0 / 1_000_000_000);
                let what =
                    oldest.map(|oldest| format!("{:?} at {}", oldest.op, oldest.offset_bytes));
                tracing::warn!(
                    "{}: {count} requests are unanswered, the oldest for {seconds} s ({}); waits \
                     for {}",
                    self.name,
                    what.unwrap_or_default(),
                    waits_for(),
                );
            }
        }
    }

    /// When it is to be looked at, if it owes an answer.
    #[must_use]
    pub fn watch_deadline(&self, now: Nanos) -> Option<Nanos> {
        (self.stack.in_flight() > 0).then(|| now.plus(Nanos::from_ms(LOOK_MS)))
    }

    /// Lets go of all that its store uses: the device is closed for good.
    pub fn release(&mut self, router: &mut Router, reactor: &mut Reactor) {
        let now = reactor.now();
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().release(&mut io);
        reactor.cancel_timer(token(Kind::DeviceTimer, self.id.0, 0));
    }

    /// True when the device has been closed, or has failed, and no caller waits for it any more.
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

    /// Rates are shared among queues, so no two submitters have the same one.
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
