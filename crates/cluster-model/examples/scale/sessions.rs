//! What connections cost: a client that has one to each OSD, and rests.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_cluster_model::Store;
use fieldstone_cluster_model::wire::{LinkId as ServerLink, Links, Server, WireCluster};
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::OsdMap;
use fieldstone_rados::Nanos;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{Credentials, Entity, Mode};
use fieldstone_rados::client::{Action, Client, ClientOptions, LinkId, Phase};
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation, PoolInfo};
use fieldstone_rados::encoding::{Addresses, EntityAddress, Time};
use fieldstone_rados::message::monitor::{MonMap, MonitorInfo};
use fieldstone_rados::op::ObjectOps;
use fieldstone_tasks::Executor;

use crate::Figures;
use crate::count::{Memory, counted};
use crate::model::{self, FSID, POOL, osd_at, osd_nonce};

/// How long the client rests, in seconds of the virtual clock.
const REST_S: u64 = 100;
/// The time of day at time zero, in seconds since 1970.
const START_S: u32 = 1_750_000_000;
/// How long connections take to be made, one after another.
const PACE: Nanos = Nanos(7_300_000);

/// A client, and the cluster that it talks to.
struct World {
    now: Nanos,
    links: Links,
    client: Client,
    cluster: Cluster,
    executor: Executor,
    pipes: BTreeMap<LinkId, ServerLink>,
    /// What the client has allocated and not freed.
    memory: Memory,
    /// Time that the client took.
    time: Duration,
    /// Sends of the client, to monitors and OSDs.
    sends: usize,
    /// Sends of the client to the monitor.
    monitor_sends: usize,
    monitor: Option<LinkId>,
}

fn monitor_socket() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 3300))
}

fn monitor_addresses() -> Addresses {
    Addresses(vec![EntityAddress::msgr2(monitor_socket(), 0)])
}

fn wire(map: &OsdMap) -> WireCluster {
    let info = MonitorInfo { addresses: monitor_addresses(), ..MonitorInfo::default() };
    let monitors = MonMap {
        fsid: FSID,
        epoch: 1,
        monitors: [("a".to_owned(), info)].into_iter().collect(),
        ranks: vec!["a".to_owned()],
        least_release: 16,
        ..MonMap::default()
    };
    let mut store = Store::default();
    store.add_pool(PoolInfo {
        id: POOL,
        name: "rbd".to_owned(),
        is_erasure_coded: false,
        takes_overwrites: true,
        alignment_bytes: 1,
        is_full: false,
        pg_num: map.pools[&POOL].pg_num,
        applications: Vec::new(),
    });
    let mut cluster = WireCluster::new(store, monitors);
    cluster.publish(map.epoch, map.clone(), Bytes::from(map.encode()), None);
    cluster
}

fn options(keys: &KeyServer) -> ClientOptions {
    let key = keys.create_entity(Entity::client("admin"));
    ClientOptions {
        monitors: vec![monitor_addresses()],
        credentials: Credentials::new(Entity::client("admin"), Some(key), [2; 32]),
        monitor_modes: vec![Mode::Secure],
        osd_modes: vec![Mode::Crc],
        nonce: 100,
        seed: 1,
        monitor_timeout: Nanos(0),
        osd_timeout: Nanos(0),
        connect_timeout: Nanos(0),
        unix_nanos_at_zero: u64::from(START_S) * 1_000_000_000,
        hostname: "host".to_owned(),
        crush_location: Vec::new(),
        note: String::new(),
    }
}

impl World {
    fn new(map: &OsdMap) -> Self {
        let keys = KeyServer::new([1; 32]);
        let links = Links::new(wire(map), keys.clone(), u64::MAX >> 1);
        let options = options(&keys);
        let ((client, cluster), memory) = counted(|| Client::new(options, Nanos(0)));
        Self {
            now: Nanos(0),
            links,
            client,
            cluster,
            executor: Executor::default(),
            pipes: BTreeMap::new(),
            memory,
            time: Duration::ZERO,
            sends: 0,
            monitor_sends: 0,
            monitor: None,
        }
    }

    /// Runs code of the client.
    fn with_client<T>(&mut self, code: impl FnOnce(&mut Self) -> T) -> T {
        let start = Instant::now();
        let (value, memory) = counted(|| code(self));
        self.time += start.elapsed();
        self.memory.add(memory);
        value
    }

    /// Lets everyone do what can be done now.
    fn settle(&mut self) {
        let wall = Time { seconds: START_S + (self.now.0 / 1_000_000_000) as u32, nanos: 0 };
        if self.links.cluster().next_time().is_some_and(|at| at <= self.now) {
            self.links.tick(self.now);
        }
        loop {
            let (now, mut actions, mut sent) = (self.now, Vec::new(), Vec::new());
            let did = self.with_client(|world| world.executor.run() | world.client.run(now, wall));
            while let Some(action) = self.client.poll_action() {
                actions.push(action);
            }
            self.with_client(|world| {
                world.client.outgoing(&mut Vec::new(), |link, parts| {
                    sent.push((link, parts.concat()));
                    parts.clear();
                });
            });
            if !did && actions.is_empty() && sent.is_empty() {
                return;
            }
            for action in actions {
                self.act(action);
            }
            // The bytes were copied by the client, and are freed by it.
            let copies: Vec<(LinkId, Bytes)> =
                sent.iter().map(|(link, bytes)| (*link, Bytes::copy_from_slice(bytes))).collect();
            self.with_client(|_| drop(sent));
            for (link, bytes) in copies {
                self.carry(link, bytes);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(link, socket) => {
                let (server, nonce) = match osd_at(socket) {
                    Some(osd) => (Server::Osd(osd), osd_nonce(osd)),
                    None => (Server::Monitor(0), 0),
                };
                if nonce == 0 {
                    self.monitor = Some(link);
                }
                let own = Addresses(vec![EntityAddress::msgr2(socket, nonce)]);
                let id = self.links.accept(server, own, self.now);
                self.pipes.insert(link, id);
            }
            Action::Close(link) => {
                if let Some(id) = self.pipes.remove(&link) {
                    self.links.lost(id, self.now);
                }
            }
        }
    }

    /// Takes bytes to a server, and its answer back.
    fn carry(&mut self, link: LinkId, bytes: Bytes) {
        let Some(&id) = self.pipes.get(&link) else { return };
        self.sends += 1;
        self.monitor_sends += usize::from(self.monitor == Some(link));
        self.links.received(id, bytes, self.now);
        let mut parts = Vec::new();
        assert!(self.links.take_output(id, &mut parts), "a server refuses the client");
        let answer = parts.concat();
        if !answer.is_empty() {
            let now = self.now;
            self.with_client(|world| {
                world.client.received(link, Bytes::copy_from_slice(&answer), now);
            });
        }
    }

    /// Lets time pass. Returns how often the client's timer was due.
    fn pass(&mut self, until: Nanos) -> usize {
        let mut wakes = 0;
        while let Some(due) = self.client.deadline().filter(|&due| due <= until) {
            assert!(due > self.now, "the client leaves what is due");
            self.now = due;
            wakes += 1;
            self.settle();
        }
        self.now = until;
        self.settle();
        wakes
    }
}

/// For each OSD, an object that it leads.
fn object_of_each(map: &OsdMap, osds: u32) -> Vec<String> {
    let mut seen: BTreeSet<OsdId> = BTreeSet::new();
    let names = (0_u64..).map(|number| format!("rbd_data.1.{number:016x}"));
    let leads_new = |name: &String| {
        let pg = map.locate(POOL, "", "", name).expect("there is the pool");
        let primary = map.place(pg).ok().and_then(|place| place.acting_primary);
        primary.is_some_and(|osd| seen.insert(osd))
    };
    names.filter(leads_new).take(osds as usize).collect()
}

/// Adds the figures of a client that has a connection to each OSD, and a watch.
pub fn measure(map: &OsdMap, osds: u32, figures: &mut Figures) {
    let names = object_of_each(map, osds);
    let mut world = World::new(map);
    world.settle();
    assert_eq!(world.client.phase(), Phase::Serving);
    figures.add(osds, "a client with its map", "bytes", world.memory.live_bytes as f64);

    let watched = Rc::new(Cell::new(false));
    let is_watched = Rc::clone(&watched);
    let cluster = world.cluster.clone();
    world.executor.spawn(Box::pin(async move {
        let name = ObjectName::new(POOL, "", "rbd_header.1");
        let mut ops = ObjectOps::new();
        ops.create(false);
        cluster.operate(Operation::new(name.clone(), ops)).await.expect("it can be made");
        let watch = cluster.watch(name).await.expect("it can be watched");
        is_watched.set(true);
        loop {
            watch.next().await;
        }
    }));
    world.settle();
    assert!(watched.get());
    let (before, start) = (world.memory, world.time);
    let (first, connected) = (world.pipes.len(), Rc::new(Cell::new(0)));
    for name in names {
        let (cluster, connected) = (world.cluster.clone(), Rc::clone(&connected));
        world.executor.spawn(Box::pin(async move {
            let mut ops = ObjectOps::new();
            ops.stat();
            let name = ObjectName::new(POOL, "", &name);
            let _: Result<_, _> = cluster.operate(Operation::new(name, ops)).await;
            connected.set(connected.get() + 1);
        }));
        world.pass(world.now.plus(PACE));
    }
    assert_eq!(connected.get(), osds, "all OSDs have answered");
    assert_eq!(world.pipes.len(), osds as usize + 1, "there is one connection to each");
    let made = world.pipes.len() - first;
    let bytes = world.memory.live_bytes - before.live_bytes;
    figures.count(osds, "connections of a client", "", world.pipes.len());
    figures.add(osds, "a connection at rest", "bytes", bytes as f64 / made as f64);
    figures.micros(osds, "make a connection", (world.time - start) / made as u32);
    rest(&mut world, osds, figures);
    change(&mut world, map, osds, figures);
}

fn rest(world: &mut World, osds: u32, figures: &mut Figures) {
    // Two periods of keepalives, so that the beginning does not count.
    world.pass(world.now.plus(Nanos::from_ms(20_000)));
    (world.sends, world.monitor_sends, world.time) = (0, 0, Duration::ZERO);
    let wakes = world.pass(world.now.plus(Nanos::from_ms(REST_S * 1_000)));
    let each = |count: usize| count as f64 / REST_S as f64;
    figures.add(osds, "at rest: timer is due", "1/s", each(wakes));
    figures.add(osds, "at rest: sends", "1/s", each(world.sends));
    figures.add(osds, "at rest: sends to the monitor", "1/s", each(world.monitor_sends));
    figures.micros(osds, "at rest: work in a second", world.time / REST_S as u32);
}

/// A new map, which the client learns because it asks.
fn change(world: &mut World, map: &OsdMap, osds: u32, figures: &mut Figures) {
    let change = model::upmaps(map, 1);
    let mut next = map.clone();
    next.apply(&change).expect("it is the next one");
    let (full, bytes) = (Bytes::from(next.encode()), Bytes::from(change.encode()));
    world.links.cluster().publish(next.epoch, next, full, Some(bytes));
    let cluster = world.cluster.clone();
    world.executor.spawn(Box::pin(async move {
        let _: Result<_, _> = cluster.newest_map().await;
    }));
    world.time = Duration::ZERO;
    world.settle();
    assert_eq!(world.client.map().map(|map| map.epoch), Some(map.epoch + 1));
    figures.micros(osds, "a new map at rest, all connections open", world.time);
}
