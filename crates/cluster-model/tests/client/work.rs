//! What the clients are asked for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{
    Cluster, ListCursor, ObjectName, Operation, SnapContext, SnapId, WatchEvent, Watcher,
};
use fieldstone_rados::encoding::Encoder;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{ObjectOps, Reply};
use fieldstone_tasks::{Filler, oneshot};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::check::{CELL, Log, RECORD, content, record, version_of};
use crate::maps::{ERASURE, REPLICATED};
use crate::world::{World, ms};

/// Cells of an object.
const CELLS: u64 = 6;
/// The lock that clients fight for is exclusive.
const EXCLUSIVE: u8 = 1;

#[derive(Default)]
struct Sleepers {
    queue: BTreeMap<(Nanos, u64), Filler<()>>,
    serial: u64,
    is_over: bool,
}

/// Tasks that sleep. Copies are the same.
#[derive(Clone, Default)]
pub struct Timers(Rc<RefCell<Sleepers>>);

impl Timers {
    /// When the next task wakes.
    pub fn next(&self) -> Option<Nanos> {
        self.0.borrow().queue.keys().next().map(|&(at, _)| at)
    }

    /// Wakes tasks.
    pub fn fire(&self, now: Nanos) {
        loop {
            let filler = {
                let mut inner = self.0.borrow_mut();
                match inner.queue.first_entry().filter(|entry| entry.key().0 <= now) {
                    Some(entry) => entry.remove(),
                    None => return,
                }
            };
            filler.fill(());
        }
    }

    /// Tasks come to their ends now.
    pub fn stop(&self) {
        self.0.borrow_mut().is_over = true;
        self.fire(Nanos(u64::MAX));
    }
}

/// The answer of an OSD, that comes later.
type Replied = Pin<Box<dyn Future<Output = Result<Reply, Errno>>>>;

/// What a task needs.
#[derive(Clone)]
struct Context {
    node: usize,
    cluster: Cluster,
    log: Log,
    timers: Timers,
    clock: Rc<Cell<Nanos>>,
    rng: Rc<RefCell<ChaCha8Rng>>,
}

impl Context {
    fn is_over(&self) -> bool {
        self.timers.0.borrow().is_over
    }

    fn random(&self, below: u64) -> u64 {
        self.rng.borrow_mut().random_range(0..below)
    }

    fn now(&self) -> Nanos {
        self.clock.get()
    }

    /// Sleeps up to this time. At the end of the run, nobody sleeps for long.
    async fn sleep(&self, longest_ms: u64) {
        let longest_ms = if self.is_over() { 100 } else { longest_ms };
        let at = self.now().plus(ms(1 + self.random(longest_ms)));
        let awaited = {
            let mut inner = self.timers.0.borrow_mut();
            inner.serial += 1;
            let serial = inner.serial;
            let (filler, awaited) = oneshot();
            inner.queue.insert((at, serial), filler);
            awaited
        };
        awaited.await;
    }

    fn operate(
        &self,
        what: &'static str,
        object: &ObjectName,
        fill: impl FnOnce(&mut ObjectOps),
    ) -> Replied {
        self.operate_with(what, object, fill, |_| ())
    }

    fn operate_with(
        &self,
        what: &'static str,
        object: &ObjectName,
        fill: impl FnOnce(&mut ObjectOps),
        change: impl FnOnce(&mut Operation),
    ) -> Replied {
        let mut ops = ObjectOps::new();
        fill(&mut ops);
        let mut operation = Operation::new(object.clone(), ops);
        change(&mut operation);
        let answer = self.cluster.operate(operation);
        let log = self.log.clone();
        Box::pin(async move { log.call(what, answer).await })
    }

    async fn read(
        &self,
        object: &ObjectName,
        (offset, len): (u64, u64),
        snapshot: SnapId,
    ) -> Result<Bytes, Errno> {
        let balance = self.random(4) == 0 && object.pool == REPLICATED;
        let fill = |ops: &mut ObjectOps| {
            ops.read(offset, len);
        };
        let reply = self.operate_with("read", object, fill, |operation| {
            operation.snapshot = snapshot;
            operation.flags.balance_reads = balance;
        });
        Ok(reply.await?.ops[0].data.clone())
    }

    /// Reads a cell, and checks it.
    async fn read_cell(&self, object: &ObjectName, cell: u64) {
        let least = self.log.least(object, cell);
        let bytes = match self.read(object, (cell * CELL, CELL), SnapId::HEAD).await {
            Err(Errno::ENOENT) => Bytes::new(),
            other => other.expect("an object can be read"),
        };
        let version = version_of(object, cell, &bytes);
        self.log.saw(object, cell, version, least);
    }
}

/// Writes cells, in bursts, and reads them.
async fn write_cells(context: Context, object: ObjectName) {
    context.log.asks_to_create(&object.name);
    loop {
        let mut answers = Vec::new();
        for _ in 0..=context.random(5) {
            let cell = context.random(CELLS);
            let version = context.log.issue(&object, cell);
            let data = Bytes::from(content(&object, cell, version));
            let answer = context.operate("write", &object, |ops| {
                ops.write(cell * CELL, data);
            });
            answers.push((cell, version, answer));
        }
        if context.random(8) == 0 {
            // Nobody waits for this one.
            let mut ops = ObjectOps::new();
            ops.stat();
            drop(context.cluster.operate(Operation::new(object.clone(), ops)));
        }
        let between = context.random(CELLS);
        context.read_cell(&object, between).await;
        for (cell, version, answer) in answers {
            answer.await.expect("a write succeeds");
            context.log.wrote(&object, cell, version);
        }
        context.log.exists(&object.name);
        if context.is_over() {
            break;
        }
        context.sleep(1_500).await;
    }
    for cell in 0..CELLS {
        context.read_cell(&object, cell).await;
    }
}

/// Reads cells that another client writes.
async fn read_cells(context: Context, objects: Vec<ObjectName>) {
    while !context.is_over() {
        let object = &objects[context.random(objects.len() as u64) as usize];
        context.read_cell(object, context.random(CELLS)).await;
        let missing = ObjectName::new(object.pool, "", "missing");
        let read = context.read(&missing, (0, 10), SnapId::HEAD).await;
        assert_eq!(read, Err(Errno::ENOENT));
        context.sleep(1_000).await;
    }
}

/// Appends records. The content tells their order and number.
async fn append(context: Context, object: ObjectName) {
    context.log.asks_to_create(&object.name);
    let mut count = 0;
    loop {
        let mut answers = Vec::new();
        for _ in 0..=context.random(6) {
            let data = Bytes::from(record(&object, count));
            answers.push(context.operate("append", &object, |ops| {
                ops.append(data);
            }));
            count += 1;
        }
        for answer in answers {
            answer.await.expect("an append succeeds");
        }
        context.log.exists(&object.name);
        let len = count * RECORD as u64;
        let bytes = context.read(&object, (0, len + 100), SnapId::HEAD).await;
        let bytes = bytes.expect("it was written");
        let expected: Vec<u8> = (0..count).flat_map(|number| record(&object, number)).collect();
        if bytes != expected {
            let seen: Vec<u64> = bytes
                .chunks_exact(RECORD)
                .map(|record| u64::from_le_bytes(record[..8].try_into().expect("eight bytes")))
                .collect();
            panic!("{object:?} has the records {seen:?}, not 0 to {count}");
        }
        if context.is_over() {
            break;
        }
        context.sleep(1_500).await;
    }
    context.log.appended(&object, count);
}

/// Creates objects that both clients want to create.
async fn race(context: Context, pool: PoolId) {
    for number in 0.. {
        let name = format!("race{number}");
        let object = ObjectName::new(pool, "", &name);
        context.log.asks_to_create(&name);
        let created = context.operate("create", &object, |ops| {
            ops.create(true);
        });
        match created.await {
            Ok(_) => context.log.won(&name, context.node),
            Err(Errno::EEXIST) => context.log.exists(&name),
            Err(error) => panic!("{name}: {error}"),
        }
        if context.is_over() {
            return;
        }
        context.sleep(4_000).await;
    }
}

fn lock_input(node: usize) -> Bytes {
    let mut into = Encoder::new();
    into.section(1, 1, |into| {
        into.string("name").u8(EXCLUSIVE).string(&format!("cookie{node}")).string("tag");
        into.string("description").u32(0).u32(0).u8(0);
    });
    into.finish()
}

fn unlock_input(node: usize) -> Bytes {
    let mut into = Encoder::new();
    into.section(1, 1, |into| {
        into.string("name").string(&format!("cookie{node}"));
    });
    into.finish()
}

/// Takes a lock that only one may have.
async fn lock(context: Context) {
    let object = ObjectName::new(REPLICATED, "", "lock");
    context.log.asks_to_create("lock");
    while !context.is_over() {
        let locked = context.operate("lock", &object, |ops| {
            ops.call("lock", "lock", lock_input(context.node));
        });
        match locked.await {
            Ok(_) => {
                context.log.locked(context.node);
                context.sleep(500).await;
                context.log.unlocks(context.node);
                let unlocked = context.operate("unlock", &object, |ops| {
                    ops.call("lock", "unlock", unlock_input(context.node));
                });
                unlocked.await.expect("it holds the lock");
            }
            Err(Errno::EBUSY) => {}
            Err(error) => panic!("lock: {error}"),
        }
        context.sleep(2_000).await;
    }
}

/// Watches an object, and answers notifications.
async fn watch(context: Context, object: ObjectName) {
    context.log.asks_to_create(&object.name);
    let created = context.operate("create", &object, |ops| {
        ops.create(false);
    });
    created.await.expect("it can be created");
    context.log.exists(&object.name);
    while !context.is_over() {
        let watch = context.log.call("watch", context.cluster.watch(object.clone())).await;
        let watch = Rc::new(watch.expect("an object can be watched"));
        let (client, _) = context.cluster.identity().await.expect("the client serves");
        let me = Watcher { client, cookie: watch.cookie() };
        context.log.watches(me, context.now());
        // At the end of the run, and now and then, the watch ends. Its task gets an event of that.
        let ended = Rc::new(Cell::new(false));
        let ender = end_watch(context.clone(), Rc::clone(&watch), me, Rc::clone(&ended));
        let hearing = async {
            loop {
                match watch.next().await {
                    WatchEvent::Notified { notify_id, payload, .. } => {
                        context.log.acknowledges(me, &payload);
                        let answer: Vec<u8> = payload.iter().rev().copied().collect();
                        watch.acknowledge(notify_id, answer.into());
                    }
                    WatchEvent::Interrupted(_) => {
                        if !ended.get() {
                            context.log.interrupted(me, context.now());
                        }
                    }
                    WatchEvent::Lost(_) => {
                        context.log.watch_ends(me, context.now());
                        return;
                    }
                }
            }
        };
        both(ender, hearing).await;
    }
}

async fn end_watch(
    context: Context,
    watch: Rc<fieldstone_rados::cluster::Watch>,
    me: Watcher,
    ended: Rc<Cell<bool>>,
) {
    let watched_ms = 5_000 + context.random(60_000);
    let until = context.now().plus(ms(watched_ms));
    while !context.is_over() && context.now() < until {
        context.sleep(2_000).await;
    }
    ended.set(true);
    context.log.watch_ends(me, context.now());
    match context.log.call("unwatch", watch.end()).await {
        Ok(()) | Err(Errno::ENOTCONN) => {}
        Err(error) => panic!("unwatch: {error}"),
    }
}

/// Awaits two futures at a time.
async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (Box::pin(one), Box::pin(other));
    let (mut one_is_ready, mut other_is_ready) = (false, false);
    std::future::poll_fn(move |context| {
        one_is_ready = one_is_ready || one.as_mut().poll(context).is_ready();
        other_is_ready = other_is_ready || other.as_mut().poll(context).is_ready();
        if one_is_ready && other_is_ready {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// Notifies watchers.
async fn notify(context: Context, object: ObjectName) {
    for number in 0.. {
        let from = context.now();
        let payload = format!("note {number} of {}", context.node);
        let notified = context.cluster.notify(object.clone(), payload.clone().into(), 5_000);
        match context.log.call("notify", notified).await {
            Ok(reply) => {
                let times = (from, context.now());
                let (acknowledged, missed) = (&reply.acknowledged, &reply.missed);
                context.log.notified(payload.as_bytes(), acknowledged, missed, times);
            }
            Err(Errno::ENOENT) => {}
            Err(error) => panic!("notify: {error}"),
        }
        if context.is_over() {
            return;
        }
        context.sleep(4_000).await;
    }
}

/// Lists all objects of a pool.
async fn list(context: Context, pool: PoolId) {
    while !context.is_over() {
        let before = context.log.existing();
        let before = before.into_iter().filter(|name| is_in(name, pool)).collect();
        let mut names = Vec::new();
        let mut next = Some(ListCursor::default());
        while let Some(cursor) = next {
            let part = context.log.call("list", context.cluster.list(pool, None, cursor)).await;
            let part = match part {
                // The client has no map yet.
                Err(Errno::EBUSY) => {
                    context.sleep(1_000).await;
                    names.clear();
                    next = Some(ListCursor::default());
                    continue;
                }
                other => other.expect("a pool can be listed"),
            };
            names.extend(part.objects.into_iter().map(|(_, name, _)| name));
            next = part.next;
        }
        context.log.listed(&names, &before);
        context.sleep(5_000).await;
    }
}

/// The pool of an object, from its name.
fn is_in(name: &str, pool: PoolId) -> bool {
    name.ends_with("-shards") == (pool == ERASURE)
}

/// Writes, makes a snapshot, writes again, and reads both states.
async fn snapshots(context: Context, object: ObjectName) {
    context.log.asks_to_create(&object.name);
    let mut snap_context = SnapContext::default();
    let mut version = 0;
    loop {
        let mut written = [0, 0];
        let mut snap = SnapId(0);
        for written in &mut written {
            version += 1;
            *written = version;
            let data = Bytes::from(content(&object, 0, version));
            let snaps = snap_context.clone();
            let wrote = context.operate_with(
                "write in snapshots",
                &object,
                |ops| {
                    ops.write_full(data);
                },
                |operation| operation.snap_context = snaps,
            );
            wrote.await.expect("it can be written");
            context.log.exists(&object.name);
            if snap == SnapId(0) {
                let created = context.cluster.create_snap(object.pool);
                snap = context.log.call("create a snapshot", created).await.expect("a number");
                assert!(snap > snap_context.seq, "{snap:?} after {:?}", snap_context.seq);
                snap_context.seq = snap;
                snap_context.snaps.insert(0, snap);
            }
        }
        for (at, version) in [(snap, written[0]), (SnapId::HEAD, written[1])] {
            let bytes = context.read(&object, (0, CELL), at).await.expect("it was written");
            assert_eq!(version_of(&object, 0, &bytes), version, "{object:?} at {at:?}");
        }
        let removed = context.cluster.remove_snap(object.pool, snap);
        context.log.call("remove a snapshot", removed).await.expect("it is removed");
        snap_context.snaps.clear();
        if context.is_over() {
            return;
        }
        context.sleep(4_000).await;
    }
}

/// Asks the monitors.
async fn ask(context: Context) {
    loop {
        let json = r#"{"prefix":"osd pool ls"}"#.to_owned();
        let command = context.cluster.command(json, Bytes::new());
        let reply = context.log.call("command", command).await.expect("it is answered");
        assert_eq!((reply.result, reply.output.as_ref()), (0, b"copies\nshards".as_ref()));
        let groups = context.log.groups.get();
        let newest = context.cluster.newest_map();
        context.log.call("newest map", newest).await.expect("it is answered");
        let pools = context.log.call("pools", context.cluster.pools()).await.expect("pools");
        let copies = pools.iter().find(|pool| pool.id == REPLICATED).expect("it exists");
        assert!(copies.pg_num >= groups, "the map is an old one");
        if context.is_over() {
            return;
        }
        context.sleep(3_000).await;
    }
}

/// Begins the tasks of all clients.
pub fn begin(world: &mut World) {
    let written = |node: usize| {
        [(REPLICATED, ""), (ERASURE, "-shards")]
            .map(|(pool, end)| ObjectName::new(pool, "", &format!("cells{node}{end}")))
    };
    let watched = ObjectName::new(REPLICATED, "", "watched");
    for node in 0..world.nodes.len() {
        let context = Context {
            node,
            cluster: world.nodes[node].cluster.clone(),
            log: world.log.clone(),
            timers: world.timers.clone(),
            clock: world.clock(),
            rng: Rc::new(RefCell::new(ChaCha8Rng::seed_from_u64(world.rng.random()))),
        };
        for object in written(node) {
            world.spawn(node, write_cells(context.clone(), object));
        }
        let others = written(1 - node).to_vec();
        world.spawn(node, read_cells(context.clone(), others));
        for (pool, end) in [(REPLICATED, ""), (ERASURE, "-shards")] {
            let object = ObjectName::new(pool, "", &format!("records{node}{end}"));
            world.spawn(node, append(context.clone(), object));
            world.spawn(node, list(context.clone(), pool));
        }
        let object = ObjectName::new(REPLICATED, "", &format!("snapshots{node}"));
        world.spawn(node, snapshots(context.clone(), object));
        world.spawn(node, race(context.clone(), REPLICATED));
        world.spawn(node, lock(context.clone()));
        world.spawn(node, watch(context.clone(), watched.clone()));
        world.spawn(node, notify(context.clone(), watched.clone()));
        world.spawn(node, ask(context));
    }
}
