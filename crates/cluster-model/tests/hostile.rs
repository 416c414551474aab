//! Servers that lie: a client at monitors and OSDs whose messages are changed at random.
//!
//! The frames are right, so each message reaches the part of the client that it is for. Whatever
//! the messages say: nothing panics, nothing spins, no answer takes much memory, and with time
//! limits set each call is answered.
//!
//! `HOSTILE_SEEDS=FIRST+COUNT` runs other seeds.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_cluster_model::Store;
use fieldstone_cluster_model::wire::{LinkId as ServerLink, Links, Server, WireCluster};
use fieldstone_crush::osdmap::{Address, Incremental, OsdMap, PoolId};
use fieldstone_rados::Nanos;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{Credentials, Entity, Mode};
use fieldstone_rados::client::{Action, Client, ClientOptions, LinkId, Phase};
use fieldstone_rados::cluster::{Cluster, ListCursor, ObjectName, Operation, PoolInfo};
use fieldstone_rados::encoding::{Addresses, EntityAddress, Time};
use fieldstone_rados::message::monitor::{MonMap, MonitorInfo};
use fieldstone_rados::message::{Message, MessageKind};
use fieldstone_rados::op::ObjectOps;
use fieldstone_tasks::Executor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const MAP: &[u8] = include_bytes!("../src/wire/three-osds.osdmap");
const POOL: PoolId = PoolId(1);
const OSDS: usize = 3;
/// Turns of the client at one time, before it counts as spinning.
const TURNS_MAX: u32 = 500;
/// The time limit of each call.
const LIMIT: Nanos = Nanos::from_ms(20_000);
/// All calls of a run are answered in this time.
const END: Nanos = Nanos::from_ms(3_600_000);
/// Calls of a run.
const CALLS: u32 = 60;
/// Numbers that lengths, counts and epochs must survive.
const NUMBERS: [u32; 8] = [0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];

fn osd_socket(osd: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, osd as u8], 6800))
}

fn monitor_socket() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 3300))
}

fn addresses(socket: SocketAddr) -> Addresses {
    Addresses(vec![EntityAddress::msgr2(socket, 1)])
}

/// Changes a message in one to three places.
fn lie(message: &mut Message, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..4) {
        let mut front = message.front.to_vec();
        let at = random.random_range(0..front.len().max(1));
        match random.random_range(0..12) {
            0..4 if !front.is_empty() => front[at] ^= 1 << random.random_range(0..8),
            4..7 if !front.is_empty() => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                let len = number.len().min(front.len() - at);
                front[at..at + len].copy_from_slice(&number[..len]);
            }
            7 => front.truncate(at),
            8 => front.extend((0..random.random_range(1..40)).map(|_| random.random::<u8>())),
            9 => message.tid = message.tid.wrapping_add(random.random_range(0..3)),
            10 => message.version = random.random_range(0..10),
            _ => message.data.clear(),
        }
        message.front = front.into();
    }
    if random.random_bool(0.03) {
        message.kind = random.random_range(0..70);
    }
}

struct World {
    now: Nanos,
    links: Links,
    map: OsdMap,
    client: Client,
    tasks: Executor,
    pipes: BTreeMap<LinkId, ServerLink>,
    answered: Rc<Cell<u32>>,
    kind: Rc<Cell<u32>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut map = OsdMap::decode(MAP).expect("osdmaptool wrote it");
        map.mark_all_up_in();
        for osd in 0..OSDS {
            let address = Address::msgr2(osd_socket(osd), 1);
            map.client_addresses[osd] = fieldstone_crush::osdmap::Addresses(vec![address]);
        }
        let mut store = Store::default();
        store.add_pool(PoolInfo {
            id: POOL,
            name: "rbd".to_owned(),
            is_erasure_coded: false,
            takes_overwrites: false,
            alignment_bytes: 1,
            is_full: false,
            pg_num: map.pools[&POOL].pg_num,
            applications: Vec::new(),
        });
        let info = MonitorInfo { addresses: addresses(monitor_socket()), ..Default::default() };
        let monitors = MonMap {
            fsid: map.fsid.0,
            epoch: 1,
            monitors: [("a".to_owned(), info)].into(),
            ranks: vec!["a".to_owned()],
            ..MonMap::default()
        };
        let mut cluster = WireCluster::new(store, monitors);
        cluster.publish(map.epoch, map.clone(), map.encode().into(), None);
        let keys = KeyServer::new([1; 32]);
        let key = keys.create_entity(Entity::client("admin"));
        let options = ClientOptions {
            monitors: vec![addresses(monitor_socket())],
            credentials: Credentials::new(Entity::client("admin"), Some(key), [2; 32]),
            monitor_modes: vec![Mode::Crc],
            osd_modes: vec![Mode::Crc],
            nonce: 100,
            seed,
            monitor_timeout: LIMIT,
            osd_timeout: LIMIT,
            connect_timeout: Nanos(0),
            unix_nanos_at_zero: 0,
            hostname: "host".to_owned(),
            crush_location: Vec::new(),
            note: String::new(),
        };
        let (client, cluster_of_client) = Client::new(options, Nanos(0));
        let mut links = Links::new(cluster, keys, u64::MAX >> 1);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // One liar changes much, another little.
        let chance = random.random_range(0.005..0.3);
        links.tamper_with(Box::new(move |message| {
            // A first map has to come.
            let spares = message.kind == MessageKind::OsdMap as u16 && random.random_bool(0.8);
            if !spares && random.random_bool(chance) {
                lie(message, &mut random);
            }
        }));
        let (mut tasks, answered) = (Executor::default(), Rc::new(Cell::new(0)));
        let (random, kind) = (ChaCha8Rng::seed_from_u64(seed + 1), Rc::new(Cell::new(0)));
        let counts = (Rc::clone(&answered), Rc::clone(&kind));
        tasks.spawn(Box::pin(work(cluster_of_client, random, counts)));
        let (now, pipes) = (Nanos(0), BTreeMap::new());
        Self { now, links, map, client, tasks, pipes, answered, kind }
    }

    fn server(socket: SocketAddr) -> Option<Server> {
        if socket == monitor_socket() {
            return Some(Server::Monitor(0));
        }
        (0..OSDS).find(|&osd| osd_socket(osd) == socket).map(|osd| Server::Osd(osd as u32))
    }

    /// Lets everybody do what can be done at this time.
    fn settle(&mut self, seed: u64) {
        let wall = Time { seconds: 1_750_000_000 + (self.now.0 / 1_000_000_000) as u32, nanos: 0 };
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "seed {seed}: the client spins at {:?}", self.now);
            let mut did = self.tasks.run() | self.client.run(self.now, wall);
            while let Some(action) = self.client.poll_action() {
                did = true;
                match action {
                    Action::Connect(link, socket) => match Self::server(socket) {
                        Some(server) => {
                            let pipe = self.links.accept(server, addresses(socket), self.now);
                            self.pipes.insert(link, pipe);
                        }
                        None => self.client.broken(link, "nobody is there".into()),
                    },
                    Action::Close(link) => {
                        if let Some(pipe) = self.pipes.remove(&link) {
                            self.links.lost(pipe, self.now);
                        }
                    }
                }
            }
            let mut sent = Vec::new();
            self.client.outgoing(&mut Vec::new(), |link, parts| sent.push((link, parts.concat())));
            for (link, bytes) in sent {
                did = true;
                if let Some(&pipe) = self.pipes.get(&link) {
                    self.links.received(pipe, bytes.into(), self.now);
                }
            }
            while self.links.cluster().take_change().is_some() {
                self.publish();
            }
            for (link, pipe) in self.pipes.clone() {
                let mut parts = Vec::new();
                if !self.links.take_output(pipe, &mut parts) {
                    self.pipes.remove(&link);
                    self.client.broken(link, "the peer has closed it".into());
                    did = true;
                }
                for part in parts {
                    did = true;
                    self.client.received(link, part, self.now);
                }
            }
            if !did {
                return;
            }
        }
    }

    /// The next map of the OSDs, without a change.
    fn publish(&mut self) {
        let change = Bytes::from(Incremental::new(self.map.fsid, self.map.epoch + 1).encode());
        self.map.apply(&Incremental::decode(&change).expect("sound")).expect("it is the next");
        let (map, full) = (self.map.clone(), self.map.encode().into());
        self.links.cluster().publish(map.epoch, map, full, Some(change));
        self.links.flush();
    }

    fn run(&mut self, seed: u64) {
        let mut next_map = Nanos::from_ms(5_000);
        loop {
            self.settle(seed);
            if self.tasks.is_empty() {
                return;
            }
            let next = [self.client.deadline(), self.links.cluster().next_time(), Some(next_map)];
            let next = next.into_iter().flatten().min().unwrap_or(END);
            self.now = self.now.max(next);
            assert!(
                self.now < END,
                "seed {seed}: call {} of kind {} waits for ever, {:?}: {}",
                self.answered.get(),
                self.kind.get(),
                self.client.phase(),
                self.client.waits_for(self.now)
            );
            self.links.tick(self.now);
            if self.now >= next_map {
                next_map = self.now.plus(Nanos::from_ms(5_000));
                self.publish();
            }
        }
    }
}

/// Calls of all kinds, one after the other. Answers may be anything.
async fn work(
    cluster: Cluster,
    mut random: ChaCha8Rng,
    (answered, kind_now): (Rc<Cell<u32>>, Rc<Cell<u32>>),
) {
    let mut watches = Vec::new();
    for _ in 0..CALLS {
        let name = format!("object{}", random.random_range(0..6));
        let object = ObjectName::new(POOL, "", &name);
        let mut ops = ObjectOps::new();
        kind_now.set(random.random_range(0..12));
        match kind_now.get() {
            0 => drop(cluster.pools().await),
            1 => {
                let _ = cluster.newest_map().await;
            }
            2 => {
                if let Ok(snap) = cluster.create_snap(POOL).await {
                    let _ = cluster.remove_snap(POOL, snap).await;
                }
            }
            3 => drop(cluster.list(POOL, None, ListCursor::default()).await),
            4 if watches.len() < 4 => {
                if let Ok(watch) = cluster.watch(object).await {
                    watches.push(watch);
                }
            }
            4 => drop(watches.pop()),
            5 => drop(cluster.notify(object, Bytes::from_static(b"hello"), 5).await),
            6 => drop(cluster.command("{\"prefix\": \"status\"}".into(), Bytes::new()).await),
            kind => {
                match kind {
                    7 => ops.read(0, 4096),
                    8 => ops.sparse_read(0, 4096),
                    9 => ops.stat(),
                    10 => ops.omap_get_values(b"", b"", 10),
                    _ => ops.write(random.random_range(0..4096), vec![1; 700].into()),
                };
                drop(cluster.operate(Operation::new(object, ops)).await);
            }
        }
        answered.set(answered.get() + 1);
    }
}

#[test]
fn lies_end_nothing_but_calls() {
    let seeds = std::env::var("HOSTILE_SEEDS").unwrap_or_else(|_| "0+60".to_owned());
    let (first, count) = seeds.split_once('+').expect("FIRST+COUNT");
    let first: u64 = first.parse().expect("a number");
    let count: u64 = count.parse().expect("a number");
    let (mut answered, mut failed) = (0, 0);
    let mut broken = Vec::new();
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run(seed);
            (world.answered.get(), world.client.phase())
        });
        match run {
            Ok((calls, phase)) => {
                answered += u64::from(calls);
                failed += u64::from(matches!(phase, Phase::Failed(_)));
            }
            Err(_) => broken.push(seed),
        }
    }
    println!("{answered} calls, {failed} of {count} clients failed");
    assert!(broken.is_empty(), "{} of {count} seeds: {broken:?}", broken.len());
    assert_eq!(answered, count * u64::from(CALLS));
    assert!(failed < count, "all clients fail");
}
