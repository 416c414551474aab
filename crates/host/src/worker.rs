//! One core of the host: a reactor, and the parts that live on this core.
//!
//! # A turn
//!
//! ```text
//!  events ──> sessions, disks, remote nodes, timers, mail
//!                          │
//!             ┌──> requests ──> devices ──> nodes ──┐      until no part
//!             └─────── completions, replies <───────┘      wants anything
//!                          │
//!             sends, receives, disk operations queued ──> one io_uring_enter
//! ```
//!
//! The core decodes everything that a turn brought before any device runs. Every device has run
//! before anything is sent. This makes batches: one journal append for the writes of a turn, one
//! send for its answers. No request waits for a batch to fill. Disk operations do not wait for the
//! end of the turn if there are several: the disk works while the core makes its answers.
//!
//! # Bounds of a turn
//!
//! A turn begins no further round after a time (`TURN_NS`) or a number of rounds (`ROUNDS_MAX`). It
//! then sends what is ready, and the next turn does not wait: it takes the events that have come,
//! and goes on. So a part that always has work keeps no socket, timer or message of another part
//! waiting. Within a round, a device and a branch have a bound of their own
//! (`device::ROUNDS_MAX`), and so has an engine for the work of software
//! ([`fieldstone_accel::POLL_SOFTWARE_BYTES`]). [`turn_times`](crate::turn_times) measures turns.
//!
//! # Order of destruction
//!
//! The reactor is the first field, so it is dropped first. It waits until the kernel has released
//! the receive buffers that the connections own.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc;

use fieldstone_block::{Info, Nanos};

use crate::branch;
use crate::control::{Control, CoreSnapshot, FrontendSnapshot};
use crate::device::Device;
use crate::frontend::{Frontend, FrontendId, FrontendIo, FrontendKind, FrontendSetup, Pressure};
use crate::message::{Accepted, Core, Destination, DeviceId, Message, NodeMail, Router};
use crate::node_links::{LocalNodes, NodeLinks};
use crate::node_local::LocalNode;
use crate::node_server::NodeServer;
use crate::notices::{Cause, Notices};
use crate::token::{Kind, split, token};
use crate::turn_times::TurnTimes;
use crate::wall_clock::WallClock;
use fieldstone_uring::{Event, Listener, Mailbox, Payload, Reactor, thread_usage, wall_offset_ns};

/// How often the core checks the folders of its nodes.
const CHECK_FOLDERS_MS: u64 = 2_000;
/// How soon the core tries a full mailbox of another core again.
const RETRY_MAIL_MS: u64 = 1;
/// How soon the core accepts again after a failure, for example for lack of descriptors.
const RETRY_ACCEPT_MS: u64 = 100;
/// After such a failure, each front-end and the node server close up to this many pending
/// connections.
const EVICT_COUNT: usize = 32;
/// How soon connections that wait for room try again, because another core may have given room
/// back.
const RETRY_ROOM_MS: u64 = 10;
/// How often the core checks connections that hold room.
const CHECK_STALLED_MS: u64 = 250;

/// One core of the host. The module's text explains the order of the fields.
pub struct Worker {
    reactor: Reactor,
    router: Router,
    mailbox: Mailbox<Message>,
    mail: Vec<Message>,
    /// In the order of the host's list, each with its kind.
    frontends: Vec<(&'static FrontendKind, Box<dyn Frontend>)>,
    peers: NodeServer,
    devices: BTreeMap<DeviceId, Device>,
    /// The properties of all devices that serve, of every core, for front-ends.
    infos: BTreeMap<DeviceId, Info>,
    /// Parts of stores that live on other cores.
    branches: BTreeMap<DeviceId, branch::Slot>,
    nodes: BTreeMap<u32, LocalNode>,
    links: NodeLinks,
    listeners: Vec<(Listener, Destination)>,
    next_accept: usize,
    /// When the timer [`Kind::Watch`] is due, if it is set.
    watch_at: Option<Nanos>,
    notices: Notices,
    turn_times: TurnTimes,
    wall_clock: WallClock,
    draining: Option<mpsc::Sender<()>>,
    /// The turn has ended at a bound, and parts have more work.
    has_more: bool,
    /// The core takes no more connections and requests.
    refusing: bool,
    stopping: bool,
}

/// How long a core that ends waits for disk operations under way.
pub const FINISH_TIMEOUT_MS: u64 = 5_000;
/// A core that ends reports a look at a folder that has taken this long.
const SLOW_CALL_MS: u64 = 1_000;

/// A turn begins no further round after this time. Turns with a full batch take a few hundred
/// microseconds, so this bound does not divide their batches.
const TURN_NS: Nanos = Nanos(2_000_000);
/// A turn has at most this many rounds. A request needs about six, for its way through a front-end,
/// a device and a node and back.
const ROUNDS_MAX: u32 = 64;

/// A timer this late shows that the process was stopped or lacked CPU time.
const LATE_MS: u64 = 500;

impl Worker {
    /// A core with its in-process nodes, by their numbers, the names of the nodes of all cores, and
    /// its front-ends. The bounds of `setup` hold for each front-end, and for the connections to
    /// nodes. Payloads and replies
    /// of all front-ends count against the budget. Those of the core's node connections have a
    /// separate budget of the same size.
    #[must_use]
    pub fn new(
        reactor: Reactor,
        router: Router,
        mailbox: Mailbox<Message>,
        (mut nodes, all): (BTreeMap<u32, LocalNode>, LocalNodes),
        kinds: &[&'static FrontendKind],
        setup: &FrontendSetup,
    ) -> Self {
        let frontends = kinds.iter().map(|kind| (*kind, (kind.make)(setup.clone()))).collect();
        let links = NodeLinks::new(all, router.me.0, setup.bounds.connections);
        let (wall_clock, now) = (WallClock::new(wall_offset_ns), reactor.now());
        nodes.values_mut().for_each(|node| node.set_wall_clock(wall_clock.told_ns(), now));
        Self {
            reactor,
            router,
            mailbox,
            mail: Vec::new(),
            frontends,
            peers: NodeServer::new(setup.bounds, setup.budget.total_bytes()),
            devices: BTreeMap::new(),
            infos: BTreeMap::new(),
            branches: BTreeMap::new(),
            nodes,
            links,
            listeners: Vec::new(),
            next_accept: 0,
            watch_at: None,
            notices: Notices::default(),
            turn_times: TurnTimes::default(),
            wall_clock,
            draining: None,
            has_more: false,
            refusing: false,
            stopping: false,
        }
    }

    /// Runs until a control call stops the core.
    ///
    /// # Errors
    /// The ring fails.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        self.set_housekeeping();
        let begin = self.reactor.fresh_now();
        self.pump(begin);
        while !self.stopping {
            if self.has_more {
                self.reactor.turn_nowait(&mut events)?;
            } else {
                self.reactor.turn(&mut events)?;
            }
            let begin = self.reactor.now();
            // After the events have come: see the essay of `wall_clock`.
            self.tell_wall_clock(begin);
            for event in events.drain(..) {
                self.dispatch(event, begin);
            }
            self.pump(begin);
            let end = self.reactor.fresh_now();
            self.turn_times.note(begin, end);
        }
        self.finish(&mut events)
    }

    fn dispatch(&mut self, event: Event, now: Nanos) {
        let Some((kind, scope, index)) = split(event.token) else { return };
        match kind {
            Kind::Mail => self.take_mail(now),
            Kind::Accept => self.accepted(index, event, now),
            Kind::Frontend => {
                if let Ok(place) = u8::try_from(scope) {
                    self.frontend(FrontendId(place), now, |frontend, io| {
                        frontend.event(index, event, io);
                    });
                }
            }
            Kind::Disk => {
                if let Some(node) = self.nodes.get_mut(&scope) {
                    node.disk_event(index, event, now);
                }
            }
            Kind::DeviceTimer => {
                if let Some(device) = self.devices.get_mut(&DeviceId(scope)) {
                    device.timer_due();
                }
            }
            Kind::Store => {
                if let Some(device) = self.devices.get_mut(&DeviceId(scope)) {
                    device.store_event(index, event, now, &mut self.router, &mut self.reactor);
                } else if let Some(branch) = self.branches.get_mut(&DeviceId(scope)) {
                    branch.event(index, event, now, &mut self.router, &mut self.reactor);
                }
            }
            Kind::PeerReceive => self.peers.received(index, event, now, &mut self.notices),
            Kind::PeerSend => self.peers.sent(index, event, now, &mut self.notices),
            Kind::LinkReceive => {
                self.links.received(index, event, &mut self.router, &mut self.reactor);
            }
            Kind::LinkSend => {
                self.links.sent(index, event, &mut self.router, &mut self.reactor);
            }
            Kind::LinkConnect => {
                self.links.connected(index, event, &mut self.router, &mut self.reactor);
            }
            Kind::Housekeeping => self.do_housekeeping(),
            Kind::Watch => self.watch(now),
        }
    }

    fn tell_wall_clock(&mut self, now: Nanos) {
        let Some(offset_ns) = self.wall_clock.poll() else { return };
        self.nodes.values_mut().for_each(|node| node.set_wall_clock(offset_ns, now));
        self.devices.values_mut().for_each(|device| device.set_wall_clock(offset_ns, now));
    }

    fn set_housekeeping(&mut self) {
        let wait_ms = match (self.router.blocked(), self.nodes.is_empty()) {
            (true, _) => RETRY_MAIL_MS,
            (false, false) => CHECK_FOLDERS_MS,
            (false, true) => return,
        };
        let deadline = self.reactor.fresh_now().plus(Nanos::from_ms(wait_ms));
        self.reactor.timer(deadline, token(Kind::Housekeeping, 0, 0));
    }

    fn do_housekeeping(&mut self) {
        if !self.router.blocked() {
            let now = self.reactor.now();
            for node in self.nodes.values_mut() {
                node.check_folder(now);
            }
            self.links.close_idle(now, &mut self.router, &mut self.reactor);
        }
        self.set_housekeeping();
    }

    fn watch(&mut self, now: Nanos) {
        // If the process was stopped, the devices had no time to answer: this look skips them.
        let late = self.watch_at.take().is_some_and(|at| now.since(at) > Nanos::from_ms(LATE_MS));
        self.each_frontend(now, |frontend, io| frontend.watch(io));
        self.peers.watch(now, &mut self.notices);
        self.nodes.values_mut().for_each(|node| node.tick(now));
        if !late {
            for device in self.devices.values_mut() {
                device.watch(now, &mut self.router, &mut self.reactor);
            }
        }
        self.notices.flush(now);
    }

    /// Sets the timer for the next [`Worker::watch`], if there is anything to watch.
    fn set_watch(&mut self) {
        let (waits, holds) = self.peers.pressure();
        let mut all = Pressure { waits, holds };
        for (_, frontend) in &self.frontends {
            let Pressure { waits, holds } = frontend.pressure();
            all = Pressure { waits: all.waits | waits, holds: all.holds | holds };
        }
        let soon_ms = match (all.waits, all.holds) {
            (true, _) => Some(RETRY_ROOM_MS),
            (false, true) => Some(CHECK_STALLED_MS),
            (false, false) => None,
        };
        let soon = soon_ms.map(|ms| self.reactor.now().plus(Nanos::from_ms(ms)));
        let now = self.reactor.now();
        let device = self.devices.values().find_map(|device| device.watch_deadline(now));
        let frontend = self.frontends.iter().filter_map(|(_, frontend)| frontend.deadline()).min();
        let node = self.nodes.values().filter_map(LocalNode::deadline).min();
        let (peers, notices) = (self.peers.deadline(), self.notices.deadline());
        let deadlines = [soon, device, frontend, node, peers, notices];
        let Some(next) = deadlines.into_iter().flatten().min() else { return };
        if self.watch_at.is_none_or(|at| next < at) {
            self.watch_at = Some(next);
            self.reactor.timer(next, token(Kind::Watch, 0, 0));
        }
    }

    fn take_mail(&mut self, now: Nanos) {
        let mut mail = std::mem::take(&mut self.mail);
        self.mailbox.drain(&mut mail);
        // Another core may have sent a message after this turn read the clock, and after a jump
        // that this core does not know yet.
        self.tell_wall_clock(now);
        for message in mail.drain(..) {
            self.deliver(message, now);
        }
        self.mail = mail;
    }

    fn deliver(&mut self, message: Message, now: Nanos) {
        match message {
            Message::Submit { device, origin, request } => match self.devices.get_mut(&device) {
                Some(device) => device.submit(origin, request, now),
                None => {
                    let gone = fieldstone_block::BlockError::ShuttingDown;
                    let completion = fieldstone_block::Completion::of(&request, Err(gone));
                    self.router.send(origin.core, Message::Complete { origin, completion });
                }
            },
            Message::Complete { origin, completion } => {
                if let Some((_, frontend)) = self.frontends.get_mut(usize::from(origin.frontend.0))
                {
                    frontend.complete(origin.submitter, completion);
                }
            }
            Message::ToFrontend { frontend, mail, taken } => {
                self.frontend(frontend, now, |frontend, io| frontend.mail(mail, io));
                drop(taken);
            }
            Message::WakeFrontend { frontend, index } => {
                self.frontend(frontend, now, |frontend, io| frontend.wake(index, io));
            }
            Message::ToNode { node, link, request } => {
                if let Some(node) = self.nodes.get_mut(&node.number) {
                    node.request(link, request, now, &mut self.router);
                }
            }
            Message::ToPeer(NodeMail::Reply(_, link, reply)) => {
                self.peers.reply(link, &reply, now, &mut self.notices);
            }
            Message::ToPeer(NodeMail::Up(_, link)) => self.peers.link_up(link, now),
            Message::ToPeer(NodeMail::Down(_, link)) => self.peers.link_down(link),
            Message::ToNodeLink(mail) => {
                self.links.mail(mail, &mut self.router, &mut self.reactor);
            }
            Message::Relay { from, to, request } => {
                self.links.relay(from, to, request, now, &mut self.router, &mut self.reactor);
            }
            Message::CloseNodeLink { from, to } => {
                self.links.close(from, to, &mut self.router, &mut self.reactor);
            }
            Message::CloseNodeLinks { from } => {
                self.links.close_all(from, &mut self.router, &mut self.reactor);
            }
            Message::ToLinkedNode { node, event } => {
                if let Some(node) = self.nodes.get_mut(&node.number) {
                    node.link_event(*event, now);
                }
            }
            Message::ToStore { device, mail } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    device.mail(mail, now, &mut self.router, &mut self.reactor);
                }
            }
            Message::BranchOpen { device, home, spec } => {
                let place = (device, home);
                let (router, reactor) = (&mut self.router, &mut self.reactor);
                let branch = branch::Slot::open(place, spec, now, router, reactor);
                self.branches.insert(device, branch);
            }
            Message::ToBranch { device, mail } => {
                if let Some(branch) = self.branches.get_mut(&device) {
                    branch.mail(mail, now, &mut self.router, &mut self.reactor);
                }
            }
            Message::BranchClose { device } => {
                if let Some(branch) = self.branches.remove(&device) {
                    branch.release(now, &mut self.router, &mut self.reactor);
                }
            }
            Message::LinkOpen { node, link, core } => {
                if let Some(local) = self.nodes.get_mut(&node.number) {
                    local.open_link(link, core, None, &mut self.router);
                }
            }
            Message::LinkClose { node, link } => {
                if let Some(node) = self.nodes.get_mut(&node.number) {
                    node.close_link(link, now);
                }
            }
            Message::LinkKnown { link, .. } => self.peers.link_known(link),
            Message::DeviceInfo { device, info: Some(info) } => {
                self.infos.insert(device, (*info).clone());
                self.each_frontend(now, |frontend, io| frontend.device_changed(device, &info, io));
            }
            Message::DeviceInfo { device, info: None } => drop(self.infos.remove(&device)),
            Message::Accepted(accepted) => self.take_over(accepted, now),
            Message::Blocking(done) => {
                if let Some(node) = self.nodes.get_mut(&done.node.number) {
                    node.blocking_done(*done, now, &mut self.router);
                }
            }
            Message::Control(control) => self.control(*control, now),
        }
    }

    /// Runs all parts on this core until no part has more work in this turn, or the turn that began
    /// at `begin` has reached a bound. Then `has_more` is set.
    fn pump(&mut self, begin: Nanos) {
        self.has_more = false;
        for round in 1.. {
            let now = self.reactor.fresh_now();
            let is_last = round >= ROUNDS_MAX || now.since(begin) >= TURN_NS;
            let mut busy = self.pump_frontends(now, |frontend, io| frontend.submit(io));
            while let Some(message) = self.router.next_local() {
                self.deliver(message, now);
                busy = true;
            }
            for device in self.devices.values_mut() {
                busy |= device.pump(now, &mut self.router, &mut self.reactor);
            }
            for branch in self.branches.values_mut() {
                busy |= branch.pump(now, &mut self.router, &mut self.reactor);
            }
            for node in self.nodes.values_mut() {
                busy |= node.pump(now, &mut self.router, &mut self.reactor, &mut self.notices);
            }
            if busy && !is_last {
                self.reactor.submit_early();
                continue;
            }
            self.peers.pump(&mut self.router, &mut self.reactor, now, &mut self.notices);
            self.links.pump(&mut self.reactor);
            let again = self.pump_frontends(now, |frontend, io| frontend.flush(io));
            let has_more = busy || again || !self.router.is_quiet();
            if !has_more || is_last {
                self.has_more = has_more;
                break;
            }
        }
        self.answer_drain();
        self.router.flush();
        if self.router.blocked() {
            self.set_housekeeping();
        }
        self.set_watch();
    }

    fn accepted(&mut self, index: u32, event: Event, now: Nanos) {
        let Some((listener, to)) = self.listeners.get(index as usize).cloned() else { return };
        match (event.result, event.payload) {
            (Ok(_), Payload::Socket(socket)) => {
                let core = match to {
                    Destination::Frontend(_) => Core(self.next_accept % self.router.cores()),
                    Destination::Node(node) => node.core(self.router.cores()),
                };
                self.next_accept += 1;
                self.router.send(core, Message::Accepted(Accepted { socket, to }));
            }
            (Ok(_), Payload::Timer) => self.reactor.accept(&listener, event.token),
            (Ok(_), _) => {}
            (Err(_), _) if self.refusing => {}
            (Err(error), _) => {
                let line =
                    format_args!("cannot accept connections on {}: {error}", listener.address());
                self.notices.say(Cause::Accept, now, line);
                // The process has most likely no descriptors left.
                self.each_frontend(now, |frontend, io| frontend.evict_oldest(EVICT_COUNT, io));
                self.peers.evict_oldest(EVICT_COUNT);
                let again = now.plus(Nanos::from_ms(RETRY_ACCEPT_MS));
                self.reactor.timer(again, event.token);
            }
        }
    }

    fn take_over(&mut self, accepted: Accepted, now: Nanos) {
        let Accepted { socket, to } = accepted;
        match to {
            Destination::Frontend(id) => {
                self.frontend(id, now, |frontend, io| frontend.accept(socket, io));
            }
            Destination::Node(node) => {
                self.peers.accept(socket, node, &mut self.router, now, &mut self.notices);
            }
        }
    }

    /// Calls a front-end. Ignores calls to a front-end that the host does not have.
    fn frontend(
        &mut self,
        id: FrontendId,
        now: Nanos,
        call: impl FnOnce(&mut dyn Frontend, &mut FrontendIo<'_>),
    ) {
        if let Some((_, frontend)) = self.frontends.get_mut(usize::from(id.0)) {
            let (reactor, router) = (&mut self.reactor, &mut self.router);
            let (notices, infos) = (&mut self.notices, &self.infos);
            let mut io = FrontendIo { frontend: id, now, reactor, router, notices, infos };
            call(&mut **frontend, &mut io);
        }
    }

    /// Calls every front-end.
    fn each_frontend(
        &mut self,
        now: Nanos,
        mut call: impl FnMut(&mut dyn Frontend, &mut FrontendIo<'_>),
    ) {
        for ((_, frontend), id) in self.frontends.iter_mut().zip((0..).map(FrontendId)) {
            let (reactor, router) = (&mut self.reactor, &mut self.router);
            let (notices, infos) = (&mut self.notices, &self.infos);
            let mut io = FrontendIo { frontend: id, now, reactor, router, notices, infos };
            call(&mut **frontend, &mut io);
        }
    }

    /// Calls every front-end. True if at least one call returns true.
    fn pump_frontends(
        &mut self,
        now: Nanos,
        mut call: impl FnMut(&mut dyn Frontend, &mut FrontendIo<'_>) -> bool,
    ) -> bool {
        let mut any = false;
        self.each_frontend(now, |frontend, io| any |= call(frontend, io));
        any
    }

    fn control(&mut self, control: Control, now: Nanos) {
        match control {
            Control::OpenDevice { device, spec, reply } => {
                let mut opened =
                    Device::open(device, *spec, reply, now, &mut self.router, &mut self.reactor);
                opened.set_wall_clock(self.wall_clock.told_ns(), now);
                self.devices.insert(device, opened);
            }
            Control::CloseDevice { device, reply } => match self.devices.get_mut(&device) {
                Some(device) => device.close(reply),
                None => drop(reply.send(Ok(()))),
            },
            Control::ForgetDevice { device } => {
                if let Some(mut device) = self.devices.remove(&device) {
                    device.release(&mut self.router, &mut self.reactor);
                }
            }
            Control::Listen { listener, to } => {
                let index = u32::try_from(self.listeners.len()).expect("from a command line");
                self.reactor.accept(&listener, token(Kind::Accept, 0, index));
                self.listeners.push((listener, to));
            }
            Control::Snapshot { with_stats, reply } => {
                drop(reply.send(self.snapshot(with_stats)));
            }
            Control::CallStore { device, call, reply } => {
                let answer = match self.devices.get_mut(&device) {
                    Some(device) => device.call(call),
                    None => Err("the device is not open".to_owned()),
                };
                drop(reply.send(answer));
            }
            Control::ChangeLayer { device, settings, reply } => {
                let changed = match self.devices.get_mut(&device) {
                    Some(device) => device.change_layer(settings),
                    None => Err("the device is not open".to_owned()),
                };
                drop(reply.send(changed));
            }
            Control::NodeOpen { node, link, replies } => {
                if let Some(local) = self.nodes.get_mut(&node.number) {
                    local.open_link(link, self.router.me, Some(replies), &mut self.router);
                }
            }
            Control::NodeRequest { node, link, request } => {
                if let Some(local) = self.nodes.get_mut(&node.number) {
                    local.request(link, request, now, &mut self.router);
                }
            }
            Control::NodeClose { node, link } => {
                if let Some(local) = self.nodes.get_mut(&node.number) {
                    local.close_link(link, now);
                }
            }
            Control::Keys { taken } => {
                self.nodes.values_mut().for_each(LocalNode::keys_changed);
                self.devices.values_mut().for_each(Device::keys_changed);
                drop(taken);
            }
            Control::Drain(reply) => {
                self.frontends.iter_mut().for_each(|(_, frontend)| frontend.drain());
                self.devices.values_mut().for_each(Device::drain);
                self.refusing = true;
                for index in 0..self.listeners.len() {
                    let index = u32::try_from(index).expect("from a command line");
                    self.reactor.cancel(token(Kind::Accept, 0, index));
                    self.reactor.cancel_timer(token(Kind::Accept, 0, index));
                }
                self.draining = Some(reply);
            }
            Control::Stop => self.stopping = true,
        }
    }

    fn answer_drain(&mut self) {
        if self.draining.is_some()
            && self.frontends.iter().all(|(_, frontend)| frontend.in_flight() == 0)
            && let Some(reply) = self.draining.take()
        {
            let _ = reply.send(());
        }
    }

    fn snapshot(&self, with_stats: bool) -> CoreSnapshot {
        let now = self.reactor.now();
        CoreSnapshot {
            core: self.router.me.0,
            devices: self.devices.values().map(|device| device.snapshot(with_stats, now)).collect(),
            nodes: self.nodes.values().map(LocalNode::status).collect(),
            frontends: self.frontends.iter().map(snapshot_of).collect(),
            turns: self.turn_times.summary(now),
            ring: self.reactor.counters(),
            usage: thread_usage(),
        }
    }

    /// Closes connections, and waits for disk operations under way.
    fn finish(mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let now = self.reactor.now();
        self.each_frontend(now, |frontend, io| frontend.close(io));
        self.peers.close_all(&mut self.reactor);
        self.listeners.clear();
        let deadline = self.reactor.fresh_now().plus(Nanos::from_ms(FINISH_TIMEOUT_MS));
        while self.nodes.values().any(|node| !node.is_quiet()) {
            self.reactor.turn_until(events, deadline)?;
            let now = self.reactor.now();
            for event in events.drain(..) {
                self.dispatch(event, now);
            }
            for node in self.nodes.values_mut() {
                node.pump(now, &mut self.router, &mut self.reactor, &mut self.notices);
            }
            if now >= deadline {
                for node in self.nodes.values().filter(|node| !node.is_quiet()) {
                    tracing::warn!("disk operations of {} did not return in time", node.id());
                }
                break;
            }
        }
        let now = self.reactor.fresh_now();
        for local in self.nodes.values() {
            if local
                .checking_since()
                .is_some_and(|at| now.since(at) >= Nanos::from_ms(SLOW_CALL_MS))
            {
                let node = local.id();
                tracing::warn!("the folder of {node} does not answer; its thread is left behind");
            }
        }
        Ok(())
    }
}

fn snapshot_of((kind, frontend): &(&'static FrontendKind, Box<dyn Frontend>)) -> FrontendSnapshot {
    let in_flight = frontend.in_flight();
    FrontendSnapshot { kind: kind.name, counts: frontend.counts(), in_flight }
}
