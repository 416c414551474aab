//! A device of the host: a store behind its layers.
//!
//! Requests come from front-ends on any core. Their ids are unique only within their submitter. The
//! device's [`Stack`] gives each request a new id, and remembers where its completion goes.

use std::sync::mpsc;

use fieldstone_block::layers::{Counts, LayerOptions, Meter};
use fieldstone_block::{
    Completion, Counter, Info, Interval, Nanos, Op, OpenFailure, QueueId, Readiness, Request,
    Settings, Stack, Summary, Unanswered, WorkResult,
};

use crate::control::DeviceSnapshot;
use crate::message::{DeviceId, Message, Origin, Router};
use crate::overdue::{CHECK_MS, Overdue, Report, is_overdue};
use crate::store::{Mail, Phase, Store, StoreIo, StoreSpec};
use crate::timed_call;
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
    /// The device's layers. The first is next to the front-ends.
    pub layers: Vec<LayerStatus>,
    /// The counters of the device's store.
    pub store: Vec<Counter>,
}

impl DeviceStats {
    /// A counter of the first layer with this name; 0 if there is no such layer or counter.
    #[must_use]
    pub fn counter(&self, layer: &str, counter: &str) -> u64 {
        let layer = self.layers.iter().find(|found| found.name == layer);
        let counters = layer.into_iter().flat_map(|layer| &layer.counters);
        counters.into_iter().find(|found| found.name == counter).map_or(0, |found| found.value)
    }
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

/// How long a device that closes tries to give the store what layers have, if the store refuses it.
const LAST_TRIES: Nanos = Nanos::from_ms(10_000);

/// The most rounds of a device or a branch before the other parts of the core run. A round makes
/// the next one necessary if it has completions, which may let the layers or the store go on: two
/// to four rounds are usual.
pub(crate) const ROUNDS_MAX: u32 = 16;

/// A device is being closed.
struct Closing {
    reply: mpsc::Sender<Result<(), String>>,
    /// When it began, once that is known.
    since: Option<Nanos>,
    /// The store has been told.
    told: bool,
    /// What of the layers' data the store has not got, and why.
    lost: Option<String>,
}

/// The result of the work of the layer at a place, from the thread that did the work.
struct LayerMail {
    place: usize,
    result: WorkResult,
}

/// A device of this core.
pub struct Device {
    id: DeviceId,
    name: String,
    stack: Stack<Box<dyn Store>, Origin>,
    overdue: Overdue,
    completions: Vec<(Origin, Completion)>,
    opening: Option<mpsc::Sender<Result<Info, OpenFailure>>>,
    /// A layer has failed to open, and the store has been told to close. The store may serve for
    /// some time after that.
    has_given_up: bool,
    closing: Option<Closing>,
    timer: Option<Nanos>,
    /// The properties that the front-ends of all cores know. `None` before the device serves.
    announced: Option<Info>,
    dirty: bool,
}

impl Device {
    /// A device that begins to open. It answers `reply` when it serves or has failed.
    pub fn open(
        id: DeviceId,
        spec: DeviceSpec,
        reply: mpsc::Sender<Result<Info, OpenFailure>>,
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
            has_given_up: false,
            closing: None,
            timer: None,
            announced: None,
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

    /// Passes a message from a part or a thread to the store, or to the layer that it is for.
    pub fn mail(&mut self, mail: Mail, now: Nanos, router: &mut Router, reactor: &mut Reactor) {
        self.dirty = true;
        let mail = match mail.downcast::<LayerMail>() {
            Ok(mail) => return self.stack.worked(mail.place, mail.result),
            Err(mail) => mail,
        };
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().mail(mail, &mut io);
    }

    /// The secrets of a pool have changed.
    pub fn keys_changed(&mut self) {
        self.dirty = true;
        self.stack.store_mut().keys_changed();
    }

    /// The device's timer is due.
    pub fn timer_due(&mut self) {
        self.timer = None;
        self.dirty = true;
    }

    /// Tells the store the present offset: see [`Store::set_wall_clock`].
    pub fn set_wall_clock(&mut self, offset_ns: u64, now: Nanos) {
        self.stack.store_mut().set_wall_clock(offset_ns, now);
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

    /// Begins to close: the layers give the store what it has not, then the store closes. The
    /// device answers `reply` when everything is stable.
    pub fn close(&mut self, reply: mpsc::Sender<Result<(), String>>) {
        self.drain();
        self.closing = Some(Closing { reply, since: None, told: false, lost: None });
    }

    /// Closes the store if the layers have nothing any more that it should have.
    fn close_store(&mut self, now: Nanos) -> bool {
        let Some(closing) = &mut self.closing else { return false };
        let since = *closing.since.get_or_insert(now);
        if closing.told {
            return false;
        }
        if let Some(unwritten) = self.stack.unwritten() {
            let has_failed = matches!(self.stack.store().phase(), Phase::Failed(_));
            let gives_up = has_failed || now >= since.plus(LAST_TRIES);
            let Some(failure) = unwritten.failure.filter(|_| gives_up) else { return false };
            let bytes = unwritten.bytes;
            let lost = format!(
                "{bytes} bytes of writes that no flush has covered are lost, because the store \
                 refused them: {failure}"
            );
            tracing::error!("{}: {lost}", self.name);
            closing.lost = Some(lost);
        }
        closing.told = true;
        self.stack.store_mut().close();
        true
    }

    /// The status of the device.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool, now: Nanos) -> DeviceSnapshot {
        DeviceSnapshot {
            device: self.id,
            name: self.name.clone(),
            info: self.stack.info().clone(),
            kind: self.stack.store().kind(),
            phase: self.phase(),
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
            layers: layers.collect(),
            store: self.stack.store().counters(),
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

    /// Runs the layers and the store until they have no more work, in at most `ROUNDS_MAX`
    /// rounds. True if the device had to run; the caller then calls again.
    pub fn pump(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) -> bool {
        if !std::mem::replace(&mut self.dirty, false) {
            return false;
        }
        for round in 1.. {
            self.stack.refresh_info();
            let mut busy = self.poll(now);
            if self.opening.is_some() {
                busy |= self.open_layers(now, router, reactor);
            }
            for (origin, completion) in self.completions.drain(..) {
                router.send(origin.core, Message::Complete { origin, completion });
            }
            for line in self.stack.take_reports() {
                tracing::warn!("{}: {line}", self.name);
            }
            busy |= self.close_store(now);
            let mut io = StoreIo { device: self.id, now, reactor, router };
            busy |= self.stack.store_mut().act(&mut io);
            if !busy {
                break;
            }
            if round >= ROUNDS_MAX {
                self.dirty = true;
                break;
            }
        }
        self.stack.store_mut().flush(&mut StoreIo { device: self.id, now, reactor, router });
        self.announce(router);
        self.answer_calls();
        self.set_timer(reactor);
        true
    }

    /// Tells the front-ends of all cores the properties of a device that serves, if they do not
    /// know them. A caller that waits for the opening hears of it later than the front-ends.
    fn announce(&mut self, router: &mut Router) {
        let info = self.stack.info();
        let knows = self.announced.as_ref() == Some(info);
        if knows || self.announced.is_none() && self.phase() != Phase::Serving {
            return;
        }
        let device = self.id;
        self.announced = Some(info.clone());
        router.send_all(|| Message::DeviceInfo { device, info: Some(Box::new(info.clone())) });
    }

    /// Polls the store and its layers; only the store, while it opens. A store may have a size
    /// before it serves, and a layer that reads its header then would get an error. True if there
    /// is more to do.
    fn poll(&mut self, now: Nanos) -> bool {
        if self.stack.store().phase() != Phase::Opening {
            self.stack.poll_into(now, &mut self.completions);
            return !self.completions.is_empty();
        }
        // No front-end has the device yet, and so the store has no request.
        let mut answers = Vec::new();
        self.stack.store_mut().poll(now, &mut answers);
        debug_assert!(answers.is_empty(), "a store that opens answers no request");
        self.stack.store().phase() != Phase::Opening
    }

    /// Starts the work of layers that open. Closes the store if a layer has failed. True if there
    /// was anything to do.
    fn open_layers(&mut self, now: Nanos, router: &mut Router, reactor: &mut Reactor) -> bool {
        let mut busy = false;
        while let Some((place, work)) = self.stack.take_work() {
            busy = true;
            let mailer = StoreIo { device: self.id, now, reactor, router }.mailer();
            let answered = move |result| mailer.send(Box::new(LayerMail { place, result }));
            if let Err(error) = timed_call::begin(&format!("open {}", self.name), work, answered) {
                let reason = format!("no thread can open it: {error}");
                self.stack.worked(place, Err(OpenFailure::passing(reason)));
            }
        }
        let failed = matches!(self.stack.readiness(), Readiness::Failed(_));
        let serves = self.stack.store().phase() == Phase::Serving;
        if failed && serves && !std::mem::replace(&mut self.has_given_up, true) {
            self.stack.store_mut().close();
            busy = true;
        }
        busy
    }

    /// The phase of the store and its layers together.
    fn phase(&self) -> Phase {
        match (self.stack.readiness(), self.stack.store().phase()) {
            (Readiness::Opening, Phase::Serving) => Phase::Opening,
            (Readiness::Failed(_), Phase::Serving) => Phase::Closing,
            (Readiness::Failed(failure), Phase::Closed) => Phase::Failed(failure.reason),
            (_, phase) => phase,
        }
    }

    /// The failure of the opening. Only layers know whether another opening would fail, too.
    fn failure(&self, reason: String) -> OpenFailure {
        match self.stack.readiness() {
            Readiness::Failed(failure) if failure.reason == reason => failure,
            _ => OpenFailure::passing(reason),
        }
    }

    /// Answers the calls that wait until the device has opened or closed.
    fn answer_calls(&mut self) {
        if self.opening.is_none() && self.closing.is_none() {
            return;
        }
        let (opened, closed) = match self.phase() {
            Phase::Opening | Phase::Closing => return,
            Phase::Serving => (Ok(self.stack.info().clone()), None),
            Phase::Closed => (Err(OpenFailure::passing("it was closed")), Some(Ok(()))),
            Phase::Failed(reason) => (Err(self.failure(reason.clone())), Some(Err(reason))),
        };
        // The caller may no longer wait.
        if let Some(reply) = self.opening.take() {
            self.say_what_is_kept();
            drop(reply.send(opened));
        }
        if let Some(closed) = closed
            && let Some(closing) = self.closing.take_if(|closing| closing.told)
        {
            let lost = closing.lost.map_or(Ok(()), Err);
            drop(closing.reply.send(closed.and(lost)));
        }
    }

    /// Tells why layers keep nothing, if they were meant to.
    fn say_what_is_kept(&self) {
        let layers = self.stack.layers().iter().filter(|layer| layer.keeps_data());
        let names: Vec<&str> = layers.map(|layer| layer.name()).collect();
        let names = names.join(" and ");
        match self.stack.shared() {
            Some(shared) if !names.is_empty() && shared.for_good => {
                tracing::warn!("{}: the caches ({names}) keep nothing: {}", self.name, shared.why);
            }
            Some(shared) if !names.is_empty() => {
                tracing::debug!("{}: {names} keep nothing yet: {}", self.name, shared.why);
            }
            _ => {}
        }
    }

    fn set_timer(&mut self, reactor: &mut Reactor) {
        // While the store opens, its layers do not run: their deadlines mean nothing.
        let deadline = match self.stack.store().phase() {
            Phase::Opening => self.stack.store().deadline(),
            _ => self.stack.next_deadline(),
        };
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
        (self.stack.in_flight() > 0).then(|| now.plus(Nanos::from_ms(CHECK_MS)))
    }

    /// Gives back everything that the store uses. The device is not used after that.
    pub fn release(&mut self, router: &mut Router, reactor: &mut Reactor) {
        let now = reactor.now();
        let mut io = StoreIo { device: self.id, now, reactor, router };
        self.stack.store_mut().release(&mut io);
        let device = self.id;
        router.send_all(|| Message::DeviceInfo { device, info: None });
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
