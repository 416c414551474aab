//! The world: the clock, the transports, the clients and the model, one event after another.
//!
//! A transport is a pair of queues of bytes. Bytes arrive in order, after a random time, in random
//! pieces. The end of a transport arrives behind the bytes. What breaks is decided when a transport
//! is made ([`Doom`]), and by the faults of the whole cluster.
//!
//! In three of four seeds, clients have branches on other cores. Mail between two cores arrives in
//! order, after a random time. Links move between the cores at random times.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_cluster_model::Store;
use fieldstone_cluster_model::wire::{LinkId as ServerLink, Links, MapChange, Server, WireCluster};
use fieldstone_crush::OsdId;
use fieldstone_rados::Nanos;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{Credentials, Entity, Mode};
use fieldstone_rados::client::{
    Action, Branch, BranchId, Client, ClientOptions, Errand, LinkId, Phase, Report,
};
use fieldstone_rados::cluster::{Cluster, PoolInfo};
use fieldstone_rados::encoding::{Addresses, EntityAddress, Time};
use fieldstone_rados::message::monitor::{MonMap, MonitorInfo};
use fieldstone_tasks::Executor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::check::Log;
use crate::faults::{Doom, Faults};
use crate::maps::{ERASURE, FSID, Maps, OSDS, REPLICATED};
use crate::work::{self, Timers};

/// Monitors of the cluster.
pub const MONITORS: u32 = 3;
/// The time of faults.
const FAULTS_S: u64 = 60;
/// All calls have to be answered in this time after the last fault, in seconds: the silence limit,
/// the limit of a handshake, and the longest pauses between attempts.
const PEACE_S: u64 = 150;
/// Turns of a client at one time, before it counts as spinning.
const MAX_TURNS: u32 = 2_000;
/// The time of day at time zero, in seconds since 1970.
const START_S: i64 = 1_750_000_000;

/// The time in ms.
pub const fn ms(ms: u64) -> Nanos {
    Nanos::from_ms(ms)
}

/// A client, and who works with it.
pub struct Node {
    pub client: Client,
    pub cluster: Cluster,
    /// The parts of the client on other cores.
    branches: Vec<Branch>,
    executor: Executor,
    pipes: BTreeMap<Port, u64>,
    /// When the newest mail to each branch, and from it, arrives.
    mail: Vec<[Nanos; 2]>,
}

/// A link of a part of a client: part 0 is on the client's own core.
type Port = (usize, LinkId);

/// What one core sends to another.
enum Post {
    Errands(Vec<Errand>),
    Reports(Vec<Report>),
}

impl Node {
    fn deadlines(&self) -> impl Iterator<Item = Nanos> {
        let branches = self.branches.iter().filter_map(Branch::deadline);
        self.client.deadline().into_iter().chain(branches)
    }

    fn poll_action(&mut self, part: usize) -> Option<Action> {
        match part.checked_sub(1) {
            None => self.client.poll_action(),
            Some(branch) => self.branches[branch].poll_action(),
        }
    }

    fn outgoing(&mut self, part: usize) -> Vec<(LinkId, Vec<u8>)> {
        let mut sent = Vec::new();
        let take = |link, parts: &mut Vec<Bytes>| sent.push((link, parts.concat()));
        match part.checked_sub(1) {
            None => self.client.outgoing(&mut Vec::new(), take),
            Some(branch) => self.branches[branch].outgoing(&mut Vec::new(), take),
        }
        sent
    }

    fn received(&mut self, (part, link): Port, bytes: Bytes, now: Nanos) {
        match part.checked_sub(1) {
            None => self.client.received(link, bytes, now),
            Some(branch) => self.branches[branch].received(link, bytes, now),
        }
    }

    fn broken(&mut self, (part, link): Port, why: String) {
        match part.checked_sub(1) {
            None => self.client.broken(link, why),
            Some(branch) => self.branches[branch].broken(link, why),
        }
    }
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up,
    Down,
}

/// A transport.
pub struct Pipe {
    node: usize,
    port: Port,
    pub server: Server,
    server_link: Option<ServerLink>,
    pub doom: Doom,
    /// When the newest bytes of each direction arrive.
    newest: [Nanos; 2],
    passed: [u64; 2],
    /// The client has closed it, or was told of its end.
    client_is_gone: bool,
    server_is_gone: bool,
}

enum Event {
    /// The answer to a connect.
    Connected(u64, bool),
    Bytes(u64, Way, Bytes),
    /// The end arrives at the client (down) or at the server (up).
    End(u64, Way),
    /// Mail between the client and a branch of it.
    Mail(usize, usize, Post),
    Timer,
    Fault,
    Heal(u64),
    /// A change of a pool becomes a map.
    Publish(MapChange),
}

/// The world of a seed.
pub struct World {
    seed: u64,
    pub now: Nanos,
    clock: Rc<Cell<Nanos>>,
    pub rng: ChaCha8Rng,
    pub links: Links,
    pub keys: KeyServer,
    pub maps: Maps,
    pub nodes: Vec<Node>,
    pub pipes: BTreeMap<u64, Pipe>,
    newest_pipe: u64,
    events: BTreeMap<(Nanos, u64), Event>,
    newest_event: u64,
    pub faults: Faults,
    /// What the clients' clocks show more than they should, in seconds.
    pub wall_jump_s: i64,
    pub timers: Timers,
    pub log: Log,
    trace: u64,
    prints: bool,
}

fn monitor_socket(rank: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(rank + 1).expect("few")], 3300))
}

fn addresses(socket: SocketAddr) -> Addresses {
    Addresses(vec![EntityAddress::msgr2(socket, 0)])
}

fn monmap() -> MonMap {
    let names: Vec<String> = (0..MONITORS).map(|rank| format!("m{rank}")).collect();
    let info = |rank: usize| MonitorInfo {
        addresses: addresses(monitor_socket(rank as u32)),
        ..MonitorInfo::default()
    };
    MonMap {
        fsid: FSID,
        epoch: 1,
        monitors: names.iter().enumerate().map(|(at, name)| (name.clone(), info(at))).collect(),
        ranks: names,
        least_release: 16,
        ..MonMap::default()
    }
}

fn store(maps: &Maps) -> Store {
    let mut store = Store::default();
    for (id, is_erasure_coded) in [(REPLICATED, false), (ERASURE, true)] {
        store.add_pool(PoolInfo {
            id,
            name: maps.map().pools[&id].name.clone(),
            is_erasure_coded,
            takes_overwrites: true,
            alignment_bytes: 1,
            is_full: false,
            pg_num: maps.map().pools[&id].pg_num,
            applications: Vec::new(),
        });
    }
    store
}

impl World {
    /// A world before anything has happened. Clients have work to do.
    pub fn new(seed: u64) -> Self {
        let mut world = Self::idle(seed, (seed % 4) as usize, Nanos(0));
        work::begin(&mut world);
        world
    }

    /// A world whose clients have so many branches, a time limit for requests to OSDs (0: none),
    /// and nothing to do.
    pub fn idle(seed: u64, branches: usize, osd_timeout: Nanos) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let maps = Maps::new();
        let mut cluster = WireCluster::new(store(&maps), monmap());
        maps.publish_first(&mut cluster);
        let keys = KeyServer::new([1; 32]);
        let key = keys.create_entity(Entity::client("admin"));
        keys.set_validity(rng.random_range(20..200), rng.random_range(8..100));
        let links = Links::new(cluster, keys.clone(), u64::MAX >> 1);
        let faults = Faults::new(&mut rng);
        let mut world = Self {
            seed,
            now: Nanos(0),
            clock: Rc::default(),
            rng,
            links,
            keys,
            maps,
            nodes: Vec::new(),
            pipes: BTreeMap::new(),
            newest_pipe: 0,
            events: BTreeMap::new(),
            newest_event: 0,
            faults,
            wall_jump_s: 0,
            timers: Timers::default(),
            log: Log::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            prints: std::env::var_os("CLIENT_TRACE").is_some(),
        };
        for at in 0..2_u8 {
            let secret = [at + 2; 32];
            let credentials = Credentials::new(Entity::client("admin"), Some(key.clone()), secret);
            let mode = if world.rng.random() { Mode::Secure } else { Mode::Crc };
            let options = ClientOptions {
                monitors: (0..MONITORS).map(|rank| addresses(monitor_socket(rank))).collect(),
                credentials,
                monitor_modes: vec![Mode::Secure, Mode::Crc],
                osd_modes: vec![mode],
                nonce: 100 + u32::from(at),
                seed: seed * 2 + u64::from(at),
                monitor_timeout: Nanos(0),
                osd_timeout,
                connect_timeout: Nanos(0),
                unix_nanos_at_zero: START_S as u64 * 1_000_000_000,
                hostname: "host".to_owned(),
                crush_location: Vec::new(),
                note: String::new(),
            };
            let (mut client, cluster) = Client::new(options, Nanos(0));
            client.set_branches(u16::try_from(branches).expect("few"));
            world.nodes.push(Node {
                client,
                cluster,
                branches: (0..branches).map(|_| Branch::default()).collect(),
                executor: Executor::default(),
                pipes: BTreeMap::new(),
                mail: vec![[Nanos(0); 2]; branches],
            });
        }
        world
    }

    /// Adds a task of a client.
    pub fn spawn(&mut self, node: usize, task: impl Future<Output = ()> + 'static) {
        self.nodes[node].executor.spawn(Box::pin(task));
    }

    /// The clock for tasks.
    pub fn clock(&self) -> Rc<Cell<Nanos>> {
        Rc::clone(&self.clock)
    }

    /// Notes something for a person who reads the trace.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.prints {
            eprintln!("{:>10.3} {}", self.now.0 as f64 / 1e9, text());
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().take(64).chain(&(bytes.len() as u32).to_le_bytes()) {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The hash of all that was carried so far.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.newest_event += 1;
        self.events.insert((at, self.newest_event), event);
    }

    /// Ends a fault later.
    pub fn heal_later(&mut self, after: Nanos, number: u64) {
        self.schedule(self.now.plus(after), Event::Heal(number));
    }

    fn wall(&self) -> Time {
        let seconds = START_S + (self.now.0 / 1_000_000_000) as i64 + self.wall_jump_s;
        Time { seconds: seconds as u32, nanos: (self.now.0 % 1_000_000_000) as u32 }
    }

    /// Runs everything while faults happen.
    pub fn run_with_faults(&mut self) {
        self.schedule(ms(500), Event::Fault);
        self.schedule(ms(1_000), Event::Timer);
        self.run_until(ms(FAULTS_S * 1_000), |_| false);
    }

    /// Ends all faults, and runs until all tasks have ended.
    pub fn run_in_peace(&mut self) {
        self.heal_all();
        self.timers.stop();
        let until = self.now.plus(ms(PEACE_S * 1_000));
        self.run_until(until, |world| world.nodes.iter().all(|node| node.executor.is_empty()));
        for (at, node) in self.nodes.iter().enumerate() {
            assert!(
                node.executor.is_empty(),
                "seed {}: {} tasks of client {at} wait: {}; open: {:?}",
                self.seed,
                node.executor.len(),
                node.client.waits_for(self.now),
                self.log.open_calls(),
            );
        }
        // What the work has left over ends, too.
        let until = self.now.plus(ms(60_000));
        self.run_until(until, |_| false);
    }

    /// Runs for so long, without new faults.
    pub fn run_for(&mut self, time_ms: u64) {
        self.run_until(self.now.plus(ms(time_ms)), |_| false);
    }

    /// True if a client has no task left.
    pub fn is_done(&self, node: usize) -> bool {
        self.nodes[node].executor.is_empty()
    }

    /// Checks what is left when nothing is asked for any more.
    pub fn check_rest(&mut self) {
        for (at, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.client.phase(), Phase::Serving, "seed {}: client {at}", self.seed);
            assert_eq!(node.client.waits_for(self.now), "", "seed {}: client {at}", self.seed);
            // One monitor, and each OSD at most once.
            let most = 1 + OSDS as usize;
            let open = node.pipes.len();
            assert!(open <= most, "seed {}: client {at} has {open} links", self.seed);
            let epoch = node.client.map().map_or(0, |map| map.epoch);
            assert!(epoch <= self.maps.map().epoch);
        }
        self.log.check(self.links.cluster().store());
    }

    fn run_until(&mut self, end: Nanos, is_over: impl Fn(&Self) -> bool) {
        loop {
            self.settle();
            if is_over(self) {
                return;
            }
            let deadlines = self.nodes.iter().flat_map(Node::deadlines);
            let next = deadlines
                .chain(self.events.keys().next().map(|&(at, _)| at))
                .chain(self.links.cluster().next_time())
                .chain(self.timers.next())
                .min()
                .unwrap_or(end);
            if next > end {
                self.now = end;
                self.clock.set(end);
                return;
            }
            self.now = self.now.max(next);
            self.clock.set(self.now);
            self.timers.fire(self.now);
            if self.links.cluster().next_time().is_some_and(|at| at <= self.now) {
                self.links.tick(self.now);
            }
            while let Some(entry) = self.events.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let event = entry.remove();
                self.handle(event);
            }
        }
    }

    /// Lets everyone do what can be done at this time.
    fn settle(&mut self) {
        let wall = self.wall();
        for turn in 0.. {
            let mut did = false;
            for at in 0..self.nodes.len() {
                let node = &mut self.nodes[at];
                did |= node.executor.run();
                did |= node.client.run(self.now, wall);
                for branch in &mut node.branches {
                    did |= branch.run(self.now);
                }
                for part in 0..=self.nodes[at].branches.len() {
                    did |= self.carry(at, part);
                }
                did |= self.post(at);
            }
            did |= self.serve();
            if !did {
                break;
            }
            assert!(turn < MAX_TURNS, "seed {}: a client spins at {:?}", self.seed, self.now);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let deadline = node.deadlines().min();
            assert!(
                deadline.is_none_or(|deadline| deadline > self.now),
                "seed {}: client {at} leaves what is due: {deadline:?}, now {:?}",
                self.seed,
                self.now,
            );
        }
    }

    /// Carries out what a part of a client wants of its transports.
    fn carry(&mut self, at: usize, part: usize) -> bool {
        let mut did = false;
        while let Some(action) = self.nodes[at].poll_action(part) {
            did = true;
            match action {
                Action::Connect(link, socket) => self.connect(at, (part, link), socket),
                Action::Close(link) => {
                    if let Some(pipe) = self.nodes[at].pipes.remove(&(part, link)) {
                        self.end_of_client(pipe);
                    }
                }
            }
        }
        for (link, bytes) in self.nodes[at].outgoing(part) {
            did = true;
            if let Some(&pipe) = self.nodes[at].pipes.get(&(part, link)) {
                self.send(pipe, Way::Up, bytes);
            }
        }
        did
    }

    /// Puts the mail between the cores of a client on its way.
    fn post(&mut self, at: usize) -> bool {
        let mut did = false;
        for part in 0..self.nodes[at].branches.len() {
            let node = &mut self.nodes[at];
            let errands = node.client.take_errands(BranchId(part as u16));
            let reports = node.branches[part].take_reports();
            for post in [Post::Errands(errands), Post::Reports(reports)] {
                let way = match &post {
                    Post::Errands(errands) if !errands.is_empty() => 0,
                    Post::Reports(reports) if !reports.is_empty() => 1,
                    _ => continue,
                };
                did = true;
                // A core that is busy takes its mail late.
                let longest_us = if self.rng.random_ratio(1, 20) { 200_000 } else { 100 };
                let delay = Nanos(self.rng.random_range(1..longest_us) * 1_000);
                let newest = &mut self.nodes[at].mail[part][way];
                *newest = (*newest).max(self.now.plus(delay));
                let arrives = *newest;
                self.schedule(arrives, Event::Mail(at, part, post));
            }
        }
        did
    }

    /// Moves the link of a random OSD to a random core.
    pub fn move_a_link(&mut self, node: usize) {
        let branches = self.nodes[node].branches.len();
        if branches == 0 {
            return;
        }
        let osd = OsdId(self.rng.random_range(0..OSDS));
        let core = self.rng.random_range(0..=branches);
        let branch = core.checked_sub(1).map(|branch| BranchId(branch as u16));
        self.say(|| format!("client {node} moves {osd:?} to core {core}"));
        self.nodes[node].client.move_link(osd, branch, self.now);
    }

    /// From now on, all that a client sends on its present transports takes longer.
    pub fn slow_down(&mut self, node: usize, ms: u64) {
        for pipe in self.pipes.values_mut().filter(|pipe| pipe.node == node) {
            pipe.doom.slow_ms = ms;
        }
    }

    /// The present transports of a client to OSDs break. Bytes that are on their way arrive.
    pub fn break_links_to_osds(&mut self, node: usize) {
        let is_one = |pipe: &Pipe| {
            pipe.node == node && !pipe.client_is_gone && matches!(pipe.server, Server::Osd(_))
        };
        let pipes = self.pipes.iter().filter(|(_, pipe)| is_one(pipe));
        let pipes: Vec<u64> = pipes.map(|(&id, _)| id).collect();
        pipes.into_iter().for_each(|id| self.break_pipe(id));
    }

    fn connect(&mut self, node: usize, port: Port, socket: SocketAddr) {
        let monitor = (0..MONITORS).find(|&rank| monitor_socket(rank) == socket);
        let osd = self.maps.listener(socket);
        let server = monitor.map(Server::Monitor).or(osd.map(Server::Osd));
        let doom = self.faults.doom(&mut self.rng, server);
        self.newest_pipe += 1;
        let id = self.newest_pipe;
        let at = self.now.plus(ms(self.rng.random_range(0..4)));
        self.say(|| format!("client {node} {port:?} pipe {id} to {server:?}: {doom:?}"));
        if !doom.hangs {
            self.schedule(at, Event::Connected(id, !doom.refuses && server.is_some()));
        }
        let pipe = Pipe {
            node,
            port,
            server: server.unwrap_or(Server::Osd(u32::MAX)),
            server_link: None,
            doom,
            newest: [at; 2],
            passed: [0; 2],
            client_is_gone: false,
            server_is_gone: false,
        };
        self.pipes.insert(id, pipe);
        let old = self.nodes[node].pipes.insert(port, id);
        assert!(old.is_none(), "seed {}: {port:?} was in use", self.seed);
    }

    fn end_of_client(&mut self, id: u64) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        pipe.client_is_gone = true;
        // The server of a silent transport learns it late.
        let late = if pipe.doom.is_silent { ms(45_000) } else { Nanos(0) };
        let at = pipe.newest[0].max(self.now).plus(late).plus(ms(1));
        self.schedule(at, Event::End(id, Way::Up));
    }

    /// Puts bytes on their way, in pieces.
    fn send(&mut self, id: u64, way: Way, bytes: Vec<u8>) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        let side = way as usize;
        let mut bytes = bytes;
        let passed = pipe.passed[side];
        pipe.passed[side] += bytes.len() as u64;
        let doom = &mut pipe.doom;
        if doom.silent_after[side].is_some_and(|after| pipe.passed[side] > after) {
            doom.is_silent = true;
        }
        if doom.is_silent {
            return;
        }
        if let Some(at) = doom.flip_at[side].and_then(|at| at.checked_sub(passed))
            && let Some(byte) = bytes.get_mut(at as usize)
        {
            *byte ^= 1 << doom.bit;
        }
        let cut = doom.cut_after[side].map(|after| after.saturating_sub(passed) as usize);
        let is_cut = cut.is_some_and(|cut| cut <= bytes.len());
        if let Some(cut) = cut.filter(|_| is_cut) {
            bytes.truncate(cut);
        }
        let slow = doom.slow_ms;
        let mut rest = Bytes::from(bytes);
        while !rest.is_empty() {
            let len = if self.rng.random_ratio(1, 3) {
                self.rng.random_range(1..=rest.len())
            } else {
                rest.len()
            };
            let piece = rest.split_to(len);
            let delay = Nanos(self.rng.random_range(50_000..3_000_000)).plus(ms(slow));
            let Some(pipe) = self.pipes.get_mut(&id) else { return };
            let at = pipe.newest[side].max(self.now.plus(delay));
            pipe.newest[side] = at;
            self.schedule(at, Event::Bytes(id, way, piece));
        }
        if is_cut {
            self.break_pipe(id);
        }
    }

    /// A transport breaks: both sides learn it behind what is on its way.
    pub fn break_pipe(&mut self, id: u64) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        pipe.doom.is_silent = true;
        let [up, down] = pipe.newest.map(|newest| newest.max(self.now).plus(ms(1)));
        self.schedule(up, Event::End(id, Way::Up));
        self.schedule(down, Event::End(id, Way::Down));
    }

    /// Takes what the servers send.
    fn serve(&mut self) -> bool {
        self.links.flush();
        while let Some(change) = self.links.cluster().take_change() {
            let delay = ms(self.rng.random_range(0..300));
            let at = self.newest_publication().max(self.now.plus(delay));
            self.schedule(at, Event::Publish(change));
        }
        let mut did = false;
        let open: Vec<(u64, ServerLink)> = self
            .pipes
            .iter()
            .filter(|(_, pipe)| !pipe.server_is_gone)
            .filter_map(|(&id, pipe)| Some((id, pipe.server_link?)))
            .collect();
        for (id, link) in open {
            let mut parts = Vec::new();
            let is_open = self.links.take_output(link, &mut parts);
            if !parts.is_empty() {
                did = true;
                self.send(id, Way::Down, parts.concat());
            }
            if !is_open {
                did = true;
                self.server_closes(id);
            }
        }
        did
    }

    fn newest_publication(&self) -> Nanos {
        let is_one = |event: &Event| matches!(event, Event::Publish(_));
        let newest = self.events.iter().rev().find(|(_, event)| is_one(event));
        newest.map_or(Nanos(0), |(&(at, _), _)| at)
    }

    fn server_closes(&mut self, id: u64) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        pipe.server_is_gone = true;
        if !pipe.doom.is_silent {
            let at = pipe.newest[1].max(self.now).plus(ms(1));
            self.schedule(at, Event::End(id, Way::Down));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected(id, is_accepted) => self.connected(id, is_accepted),
            Event::Bytes(id, way, bytes) => self.deliver(id, way, bytes),
            Event::End(id, Way::Up) => {
                let Some(pipe) = self.pipes.get_mut(&id) else { return };
                pipe.server_is_gone = true;
                if let Some(link) = pipe.server_link {
                    self.links.lost(link, self.now);
                }
                self.forget(id);
            }
            Event::End(id, Way::Down) => self.end_at_client(id, "the peer has closed it"),
            Event::Mail(node, branch, Post::Errands(errands)) => {
                self.nodes[node].branches[branch].take(errands);
            }
            Event::Mail(node, branch, Post::Reports(reports)) => {
                self.nodes[node].client.reported(BranchId(branch as u16), reports);
            }
            Event::Timer => {
                self.links.tick(self.now);
                self.schedule(self.now.plus(ms(1_000)), Event::Timer);
            }
            Event::Fault => self.fault(),
            Event::Heal(number) => self.heal(number),
            Event::Publish(change) => self.publish(&change),
        }
    }

    /// Draws a fault, and the time of the next one.
    fn fault(&mut self) {
        if self.now < ms(FAULTS_S * 1_000) {
            (0..self.nodes.len()).for_each(|node| self.move_a_link(node));
            self.begin_fault();
            let pause = self.rng.random_range(10..self.faults.longest_pause_ms);
            self.schedule(self.now.plus(ms(pause)), Event::Fault);
        }
    }

    fn publish(&mut self, change: &MapChange) {
        let cluster = self.links.cluster();
        match *change {
            MapChange::NewSnap(pool, snap) => {
                self.maps.change_pool(cluster, pool, |pool, epoch| {
                    pool.snap_seq = pool.snap_seq.max(snap.0);
                    pool.snap_epoch = epoch;
                });
            }
            MapChange::RemovedSnap(pool, _) => {
                self.maps.change_pool(cluster, pool, |pool, epoch| pool.snap_epoch = epoch);
            }
            MapChange::Blocklist => self.maps.change(cluster, |_| {}),
        }
        self.links.flush();
    }

    fn connected(&mut self, id: u64, is_accepted: bool) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        let runs = match pipe.server {
            Server::Monitor(rank) => !self.faults.is_away(rank),
            Server::Osd(osd) => osd < OSDS && self.maps.is_up(osd) && !self.faults.is_dead(osd),
        };
        if pipe.client_is_gone {
            return;
        }
        if !is_accepted || !runs {
            return self.end_at_client(id, "connection refused");
        }
        let own = match pipe.server {
            Server::Monitor(rank) => addresses(monitor_socket(rank)),
            Server::Osd(osd) => self.osd_addresses(osd),
        };
        let link = self.links.accept(self.pipes[&id].server, own, self.now);
        if let Some(pipe) = self.pipes.get_mut(&id) {
            pipe.server_link = Some(link);
        }
    }

    fn osd_addresses(&self, osd: u32) -> Addresses {
        let known = self.maps.map().client_addresses[osd as usize].0.iter();
        let address = known.filter_map(|one| Some(EntityAddress::msgr2(one.socket?, one.nonce)));
        Addresses(address.collect())
    }

    fn deliver(&mut self, id: u64, way: Way, bytes: Bytes) {
        let now = self.now;
        let Some(pipe) = self.pipes.get(&id) else { return };
        let (node, port, server_link) = (pipe.node, pipe.port, pipe.server_link);
        self.trace ^= now.0 ^ id;
        self.note(&bytes);
        match way {
            Way::Up => {
                if let Some(link) = server_link {
                    self.links.received(link, bytes, now);
                }
            }
            Way::Down if self.pipes[&id].client_is_gone => {}
            Way::Down => self.nodes[node].received(port, bytes, now),
        }
    }

    fn end_at_client(&mut self, id: u64, why: &str) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        if !pipe.client_is_gone {
            pipe.client_is_gone = true;
            let (node, port) = (pipe.node, pipe.port);
            self.nodes[node].pipes.remove(&port);
            self.nodes[node].broken(port, why.to_owned());
        }
        let at = self.now.plus(ms(1));
        self.schedule(at, Event::End(id, Way::Up));
    }

    fn forget(&mut self, id: u64) {
        if self.pipes.get(&id).is_some_and(|pipe| pipe.client_is_gone && pipe.server_is_gone) {
            self.pipes.remove(&id);
        }
    }
}
