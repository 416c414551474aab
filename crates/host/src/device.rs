//! A device of the host: a volume or memory behind its layers, and the links to its nodes.
//!
//! Requests come from connections of any core under names that are unique only there. The device's
//! [`Stack`] names each request anew, and knows where its completion goes.
//!
//! A volume's requests to nodes go over one link per node: a queue within the process for nodes
//! that run here, a socket for the others. A link that is asked to reconnect starts over with a
//! new attempt number; what still comes in under an old number is dropped, so the volume never sees
//! an answer from before a reconnection.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;

use fieldstone_accel::Engine;
use fieldstone_block::layers::{
    Cache, CacheStats, Counts, LayerOptions, Meter, Scheduler, SchedulerStats,
};
use fieldstone_block::{
    Backend, Completion, Counter, Info, Interval, Nanos, Op, QueueId, Ram, Request, Settings,
    Stack, Summary, Unanswered,
};
use fieldstone_proto::{NodeIndex, Reply};
use fieldstone_volume::{Action, Event, Phase, Volume, VolumeConfig};

use crate::control::{DeviceSnapshot, Job};
use crate::message::{DeviceId, Link, Message, Origin, Router, node_core};
use crate::node_remote::{Heard, RemoteNode, split_index};
use crate::overdue::{LOOK_MS, Overdue, Report, is_overdue};
use crate::token::{Kind, token};
use fieldstone_uring::{Endpoint, Reactor};

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
    pub store: StoreSpec,
    /// The layers in front of it.
    pub layers: LayerOptions,
}

/// What stores a device's bytes.
#[derive(Debug)]
pub enum StoreSpec {
    /// Memory of this size.
    Ram(u64),
    /// A volume on nodes at these places, whose heavy steps this engine does.
    Volume(Box<VolumeConfig>, Arc<[NodePlace]>, Box<Engine>),
}

/// Where a node is, as seen from this process.
#[derive(Clone, Debug)]
pub enum NodePlace {
    /// In this process.
    Here,
    /// At this address.
    At(Box<Endpoint>),
    /// Wherever its process says in its folder.
    Announced(PathBuf),
}

/// What stores a device's bytes, running.
enum Store {
    Ram(Box<Ram>),
    Volume(Box<Volume>),
}

impl Backend for Store {
    fn info(&self) -> Info {
        match self {
            Store::Ram(ram) => ram.info(),
            Store::Volume(volume) => volume.info(),
        }
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        match self {
            Store::Ram(ram) => ram.submit(request, now),
            Store::Volume(volume) => volume.submit(request, now),
        }
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        match self {
            Store::Ram(ram) => ram.poll(now, out),
            Store::Volume(volume) => volume.poll(now, out),
        }
    }
    fn deadline(&self) -> Option<Nanos> {
        match self {
            Store::Ram(ram) => ram.deadline(),
            Store::Volume(volume) => volume.deadline(),
        }
    }
}

/// The queue that a connection's requests belong to.
fn queue_of(origin: Origin) -> QueueId {
    let core = u32::try_from(origin.core.0).unwrap_or(u32::MAX);
    QueueId(core << 20 | origin.connection & 0xf_ffff)
}

enum NodeLink {
    Here { attempt: u32 },
    Remote(Box<RemoteNode>),
}

/// A device of this core.
pub struct Device {
    id: DeviceId,
    name: String,
    stack: Stack<Store, Origin>,
    overdue: Overdue,
    links: Vec<NodeLink>,
    completions: Vec<(Origin, Completion)>,
    opening: Option<mpsc::Sender<Result<Info, String>>>,
    closing: Option<mpsc::Sender<Result<(), String>>>,
    timer: Option<Nanos>,
    dirty: bool,
    /// Kept for its memory.
    heard: Vec<Heard>,
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
        let (store, places) = match spec.store {
            StoreSpec::Ram(size_bytes) => (Store::Ram(Box::new(Ram::new(size_bytes))), None),
            StoreSpec::Volume(config, places, engine) => {
                let volume = Volume::with_engine(*config, *engine, now);
                (Store::Volume(Box::new(volume)), Some(places))
            }
        };
        let layers = spec.layers.make().expect("options were tried when they were read");
        let mut device = Self {
            id,
            name: spec.name,
            stack: Stack::new(store, layers),
            overdue: Overdue::default(),
            links: Vec::new(),
            completions: Vec::new(),
            opening: Some(reply),
            closing: None,
            timer: None,
            dirty: true,
            heard: Vec::new(),
        };
        for (index, place) in places.iter().flat_map(|places| places.iter()).enumerate() {
            let node = NodeIndex(u16::try_from(index).expect("a pool has at most 65535 nodes"));
            let link = match place {
                NodePlace::Here => NodeLink::Here { attempt: 0 },
                place => {
                    let (place, mailbox) = (place.clone(), router.own_sender());
                    NodeLink::Remote(Box::new(RemoteNode::new(id, node, place, mailbox)))
                }
            };
            device.links.push(link);
            device.connect(node, router, reactor);
        }
        device
    }

    fn volume(&mut self) -> Option<&mut Volume> {
        match self.stack.store_mut() {
            Store::Volume(volume) => Some(volume),
            Store::Ram(_) => None,
        }
    }

    fn tell(&mut self, event: Event, now: Nanos) {
        self.dirty = true;
        if let Some(volume) = self.volume() {
            volume.handle(event, now);
        }
    }

    /// Opens the node's link anew.
    fn connect(&mut self, node: NodeIndex, router: &mut Router, reactor: &mut Reactor) {
        let device = self.id.0;
        let core = router.me;
        let to = node_core(node, router.cores());
        match self.links.get_mut(usize::from(node.0)) {
            Some(NodeLink::Here { attempt }) => {
                let old = Link { device, attempt: *attempt };
                if *attempt > 0 {
                    router.send(to, Message::LinkClose { node, link: old });
                }
                *attempt += 1;
                let link = Link { device, attempt: *attempt };
                router.send(to, Message::LinkOpen { node, link, core });
            }
            Some(NodeLink::Remote(remote)) => remote.reconnect(reactor),
            None => tracing::error!("{} is not of this pool", node),
        }
    }

    fn is_current(&self, node: NodeIndex, link: Link) -> bool {
        matches!(self.links.get(usize::from(node.0)),
            Some(NodeLink::Here { attempt }) if *attempt == link.attempt)
    }

    /// A connection hands a request over.
    pub fn submit(&mut self, origin: Origin, mut request: Request, now: Nanos) {
        request.queue = queue_of(origin);
        self.stack.submit_from(origin, request, now);
        self.dirty = true;
    }

    /// The link to an in-process node is open.
    pub fn link_up(&mut self, node: NodeIndex, link: Link, now: Nanos) {
        if self.is_current(node, link) {
            self.tell(Event::NodeUp(node), now);
        }
    }

    /// The link to an in-process node is gone. The node opens it again by itself when it is back.
    pub fn link_down(&mut self, node: NodeIndex, link: Link, now: Nanos) {
        if self.is_current(node, link) {
            self.tell(Event::NodeDown(node), now);
        }
    }

    /// An in-process node answered.
    pub fn reply(&mut self, node: NodeIndex, link: Link, reply: Reply, now: Nanos) {
        if self.is_current(node, link) {
            self.tell(Event::Reply { node, reply }, now);
        }
    }

    /// Something happened to the socket of a remote node.
    pub(crate) fn remote_event(
        &mut self,
        kind: Kind,
        index: u32,
        event: fieldstone_uring::Event,
        now: Nanos,
        reactor: &mut Reactor,
    ) {
        let (node, attempt) = split_index(index);
        let mut heard = std::mem::take(&mut self.heard);
        if let Some(NodeLink::Remote(remote)) = self.links.get_mut(usize::from(node.0)) {
            remote.event(kind, attempt, event, reactor, &mut heard);
        }
        self.listen(node, &mut heard, now);
        self.heard = heard;
    }

    /// The address of a remote node was read, or could not be.
    pub(crate) fn found(
        &mut self,
        node: NodeIndex,
        attempt: u16,
        endpoint: std::io::Result<Box<Endpoint>>,
        reactor: &mut Reactor,
    ) {
        if let Some(NodeLink::Remote(remote)) = self.links.get_mut(usize::from(node.0)) {
            remote.found(attempt, endpoint, reactor);
        }
    }

    /// Tells the volume what came from a remote node.
    fn listen(&mut self, node: NodeIndex, heard: &mut Vec<Heard>, now: Nanos) {
        for heard in heard.drain(..) {
            let event = match heard {
                Heard::Up => Event::NodeUp(node),
                Heard::Down => Event::NodeDown(node),
                Heard::Reply(reply) => Event::Reply { node, reply },
            };
            self.tell(event, now);
        }
    }

    /// Its timer is due.
    pub fn timer_due(&mut self) {
        self.timer = None;
        self.dirty = true;
    }

    /// Starts a job.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start_job(&mut self, job: Job) -> Result<(), String> {
        self.dirty = true;
        let name = self.name.clone();
        let Some(volume) = self.volume() else {
            return Err(format!("{name} is memory: it has no shards"));
        };
        match job {
            Job::Rebuild { limit_bytes_per_second } => {
                volume.request_rebuild(limit_bytes_per_second);
            }
            Job::Scrub { limit_bytes_per_second } => volume.request_scrub(limit_bytes_per_second),
            Job::Grow { size_bytes, thin } => volume.request_grow(size_bytes, thin),
        }
        Ok(())
    }

    /// Begins to close; `reply` is answered when all is stable.
    pub fn close(&mut self, reply: mpsc::Sender<Result<(), String>>) {
        self.dirty = true;
        self.closing = Some(reply);
        if let Some(volume) = self.volume() {
            volume.request_close();
        }
    }

    /// What is told about it.
    #[must_use]
    pub fn snapshot(&self, with_stats: bool, now: Nanos) -> DeviceSnapshot {
        DeviceSnapshot {
            device: self.id,
            name: self.name.clone(),
            info: self.stack.info().clone(),
            volume: match self.stack.store() {
                Store::Volume(volume) => Some(volume.status()),
                Store::Ram(_) => None,
            },
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

    /// Lets the layers and the volume run until they want nothing. True if anything was done.
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
            busy |= self.act(router, reactor);
            if !busy {
                break;
            }
        }
        self.flush_links(now, reactor);
        self.answer_calls();
        self.set_timer(reactor);
        true
    }

    /// Sends what is queued for remote nodes.
    fn flush_links(&mut self, now: Nanos, reactor: &mut Reactor) {
        let mut heard = std::mem::take(&mut self.heard);
        for index in 0..self.links.len() {
            if let NodeLink::Remote(remote) = &mut self.links[index] {
                remote.flush(reactor, &mut heard);
                let node = u16::try_from(index).expect("a pool has at most 65535 nodes");
                self.listen(NodeIndex(node), &mut heard, now);
            }
        }
        self.heard = heard;
    }

    /// Carries out what the volume wants done.
    fn act(&mut self, router: &mut Router, reactor: &mut Reactor) -> bool {
        let device = self.id.0;
        let mut busy = false;
        while let Some(action) = self.volume().and_then(Volume::next_action) {
            busy = true;
            match action {
                Action::Reconnect { node } => self.connect(node, router, reactor),
                Action::Send { node, request } => match self.links.get_mut(usize::from(node.0)) {
                    Some(NodeLink::Here { attempt }) => {
                        let link = Link { device, attempt: *attempt };
                        let to = node_core(node, router.cores());
                        router.send(to, Message::ToNode { node, link, request });
                    }
                    Some(NodeLink::Remote(remote)) => remote.send(&request),
                    None => tracing::error!("{node} is not of this pool"),
                },
            }
        }
        busy
    }

    /// Answers the calls that wait for the device to open or close.
    fn answer_calls(&mut self) {
        if self.opening.is_none() && self.closing.is_none() {
            return;
        }
        let phase = match self.stack.store() {
            Store::Ram(_) if self.closing.is_some() => Phase::Closed,
            Store::Ram(_) => Phase::Serving,
            Store::Volume(volume) => volume.phase(),
        };
        let (opened, closed) = match phase {
            Phase::Opening | Phase::Closing => return,
            Phase::Serving | Phase::Looked => (Ok(self.stack.store().info()), None),
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
        let waits_for = || match self.stack.store() {
            Store::Volume(volume) => volume.waits_for(),
            Store::Ram(_) => String::new(),
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
                    Some(waits_for()).filter(|text| !text.is_empty()).unwrap_or("nothing".into()),
                );
            }
        }
    }

    /// When it is to be looked at, if it owes an answer.
    #[must_use]
    pub fn watch_deadline(&self, now: Nanos) -> Option<Nanos> {
        (self.stack.in_flight() > 0).then(|| now.plus(Nanos::from_ms(LOOK_MS)))
    }

    /// Lets go of all nodes: the device is closed for good.
    pub fn disconnect(&mut self, router: &mut Router, reactor: &mut Reactor) {
        for (index, link) in self.links.iter_mut().enumerate() {
            let node = NodeIndex(u16::try_from(index).expect("a pool has at most 65535 nodes"));
            match link {
                NodeLink::Here { attempt } => {
                    let link = Link { device: self.id.0, attempt: *attempt };
                    let to = node_core(node, router.cores());
                    router.send(to, Message::LinkClose { node, link });
                }
                NodeLink::Remote(remote) => remote.close(reactor),
            }
        }
        reactor.cancel_timer(token(Kind::DeviceTimer, self.id.0, 0));
    }

    /// True when the device has been closed, or has failed, and no caller waits for it any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.opening.is_none() && self.closing.is_none()
    }
}
