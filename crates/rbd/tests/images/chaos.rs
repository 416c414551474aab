//! Several clients of one image do random things, die, and take over from each other. Every read
//! gives what was written, and no object map denies an object. In some runs the only client keeps
//! the lock, and is asked for snapshots, sizes and flattening. In those of the module `late`,
//! requests have a time limit at times.

mod late;

use fieldstone_block::{ExtentKind, Nanos, Op, Payload, RequestId};
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{ObjectName, SnapId};
use fieldstone_rbd::ImageSpec;
use fieldstone_rbd::format::{Features, ObjectMap, ObjectState, names};
use fieldstone_rbd::pool::CreateOptions;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::oracle::{Bytes, Values, check};
use super::world::{World, bytes_of, spec};

/// The longest request.
const LEN_MAX: u64 = 12_000;
/// Requests of all clients in flight.
const IN_FLIGHT_MAX: usize = 12;

struct Pending {
    guest: usize,
    id: RequestId,
    op: Op,
    offset: u64,
    len: u64,
    value: u8,
    /// For reads: what each byte may be.
    allowed: Vec<Values>,
    /// It was begun under a time limit.
    may_fail: bool,
}

struct Chaos {
    seed: u64,
    world: World,
    random: ChaCha8Rng,
    bytes: Bytes,
    snapshots: Vec<(String, Bytes)>,
    pending: Vec<Pending>,
    live: Vec<usize>,
    next_value: u8,
    next_snapshot: u32,
    has_lock: bool,
    /// The only client keeps the lock, and does what others ask for.
    is_exclusive: bool,
    /// The number of clients.
    clients: usize,
    is_clone: bool,
    was_clone: bool,
    /// Requests have a time limit now.
    is_limited: bool,
    /// They had one. A map may be flagged invalid since.
    has_failures: bool,
}

fn open(world: &mut World, exclusive: bool) -> usize {
    world.open_with(ImageSpec { exclusive, ..spec("vm") })
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::new(seed, Delays::USUAL);
        world.model.add_erasure_coded_pool("data");
        let has_lock = random.random_bool(0.75);
        let features = if has_lock { Features::DEFAULT } else { Features::LAYERING };
        let size = random.random_range(20_000..60_000);
        let mut options = CreateOptions { order: 12, features, ..CreateOptions::new(size) };
        if random.random_bool(0.3) {
            (options.stripe_unit, options.stripe_count) = (1024, 3);
        }
        if random.random_bool(0.3) {
            options.data_pool = Some("data".into());
        }
        let mut bytes = Bytes::zeroes(size);
        let is_clone = random.random_bool(0.5);
        if is_clone {
            world.create("base", CreateOptions { features, ..options.clone() });
            let base = world.open("base");
            for _ in 0..random.random_range(1..6) {
                let offset = random.random_range(0..size - 1);
                let len = random.random_range(1..LEN_MAX).min(size - offset);
                world.write(base, offset, &vec![200; len as usize]);
                bytes.succeed(offset, len, 200);
            }
            world.close(base);
            let cloned = world.manage(move |pool| async move {
                pool.create_snapshot("base", "s").await?;
                pool.clone_image(&pool, "base", "s", "vm", &options).await
            });
            cloned.expect("the clone is made");
        } else {
            world.create("vm", options);
        }
        let clients = if has_lock { random.random_range(1..4) } else { 1 };
        let is_exclusive = has_lock && clients == 1 && seed.is_multiple_of(2);
        let live = (0..clients).map(|_| open(&mut world, is_exclusive)).collect();
        Self {
            seed,
            world,
            random,
            bytes,
            snapshots: Vec::new(),
            pending: Vec::new(),
            live,
            next_value: 0,
            next_snapshot: 0,
            has_lock,
            is_exclusive,
            clients,
            is_clone,
            was_clone: false,
            is_limited: false,
            has_failures: false,
        }
    }

    fn any_guest(&mut self) -> usize {
        self.live[self.random.random_range(0..self.live.len())]
    }

    fn size(&self) -> u64 {
        self.bytes.0.len() as u64
    }

    fn any_range(&mut self) -> (u64, u64) {
        let size = self.size();
        let aligned = self.random.random_bool(0.4);
        let mut offset = self.random.random_range(0..size);
        let mut len = self.random.random_range(1..LEN_MAX);
        if aligned {
            offset -= offset % 4096;
            len = len.next_multiple_of(4096);
        }
        (offset, len.min(size - offset))
    }

    fn act(&mut self) {
        match self.random.random_range(0..100) {
            0..40 => self.change(Op::Write),
            40..50 => self.change(Op::Trim),
            50..55 => self.change(Op::WriteZeroes),
            55..70 => self.read(),
            70..73 => self.flush(),
            73..85 => {
                let time = self.random.random_range(10_000..5_000_000);
                self.world.run_for(Nanos(time));
                self.harvest();
            }
            85..90 => self.change_snapshots(),
            90..92 => self.resize(),
            92..93 => self.flatten(),
            93..94 => self.kill(),
            94..95 => self.freeze(),
            95..97 => self.reopen(),
            97..98 => {
                let guest = self.any_guest();
                self.world.guest(guest).handle.interrupt();
            }
            _ => self.list_extents(),
        }
    }

    fn change(&mut self, op: Op) {
        let (offset, len) = self.any_range();
        let overlaps = self.pending.iter().any(|other| {
            other.op.changes_data()
                && other.offset < offset + len
                && offset < other.offset + other.len
        });
        if overlaps || self.pending.len() >= IN_FLIGHT_MAX {
            return;
        }
        let value = if op == Op::Write { self.next_value % 199 + 1 } else { 0 };
        self.next_value = self.next_value.wrapping_add(1);
        self.bytes.begin(offset, len, value);
        for read in self.pending.iter_mut().filter(|other| other.op == Op::Read) {
            for at in offset.max(read.offset)..(offset + len).min(read.offset + read.len) {
                read.allowed[(at - read.offset) as usize].add(value);
            }
        }
        let data =
            if op == Op::Write { vec![value; len as usize].into() } else { Default::default() };
        let guest = self.any_guest();
        let id = self.world.submit(guest, op, offset, len, data);
        let (allowed, may_fail) = (Vec::new(), self.is_limited);
        self.pending.push(Pending { guest, id, op, offset, len, value, allowed, may_fail });
    }

    fn read(&mut self) {
        let (offset, len) = self.any_range();
        let guest = self.any_guest();
        let allowed = self.bytes.range(offset, len).to_vec();
        let id = self.world.submit(guest, Op::Read, offset, len, Default::default());
        let (op, value, may_fail) = (Op::Read, 0, self.is_limited);
        self.pending.push(Pending { guest, id, op, offset, len, value, allowed, may_fail });
    }

    fn flush(&mut self) {
        let guest = self.any_guest();
        let id = self.world.submit(guest, Op::Flush, 0, 0, Default::default());
        let (op, allowed, may_fail) = (Op::Flush, Vec::new(), self.is_limited);
        let (offset, len, value) = (0, 0, 0);
        self.pending.push(Pending { guest, id, op, offset, len, value, allowed, may_fail });
    }

    /// Takes the completions that have come.
    fn harvest(&mut self) {
        let mut index = 0;
        while index < self.pending.len() {
            let (guest, id) = (self.pending[index].guest, self.pending[index].id);
            let Some(result) = self.world.take(guest, id) else {
                index += 1;
                continue;
            };
            let done = self.pending.remove(index);
            let what = format!("seed {}: {:?} of guest {guest}", self.seed, done.op);
            let payload = match result {
                Ok(payload) => payload,
                Err(_) if done.may_fail => continue,
                Err(error) => panic!("{what}: {error}"),
            };
            if done.op == Op::Read {
                check(&what, done.offset, &bytes_of(&payload), &done.allowed);
            } else {
                self.bytes.succeed(done.offset, done.len, done.value);
            }
        }
    }

    /// Waits until nothing is in flight.
    fn quiesce(&mut self) {
        let end = self.world.model.now().plus(Nanos::from_ms(300_000));
        while !self.pending.is_empty() {
            let went_on = self.world.step(end);
            self.harvest();
            let left = self.pending.len();
            assert!(went_on || left == 0, "seed {}: {left} requests hang", self.seed);
        }
    }

    fn change_snapshots(&mut self) {
        self.quiesce();
        let existing = self.snapshots.len();
        let name = format!("s{}", self.next_snapshot);
        match self.random.random_range(0..4) {
            0 | 1 if existing < 4 => {
                self.next_snapshot += 1;
                self.snapshots.push((name.clone(), self.bytes.clone()));
                let made = self
                    .world
                    .manage(|pool| async move { pool.create_snapshot("vm", &name).await });
                made.expect("the snapshot is made");
            }
            2 if existing > 0 => {
                let index = self.random.random_range(0..existing);
                let (name, _) = self.snapshots.remove(index);
                let removed = self
                    .world
                    .manage(|pool| async move { pool.remove_snapshot("vm", &name).await });
                removed.expect("the snapshot is removed");
            }
            // Who keeps the lock does not roll back for others.
            3 if existing > 0 && !self.is_exclusive => {
                let index = self.random.random_range(0..existing);
                let (name, bytes) = self.snapshots[index].clone();
                // A clone that was cut short has less in common with its parent than the snapshot.
                let is_flat = self.was_clone && !self.has_lock;
                let cut = self.snapshots.iter().any(|(_, old)| old.0.len() != self.bytes.0.len());
                if is_flat || cut || bytes.0.len() != self.bytes.0.len() {
                    return;
                }
                let rolled = self.world.manage(|pool| async move {
                    pool.rollback_snapshot("vm", &name, &mut |_, _| {}).await
                });
                rolled.expect("it is rolled back");
                self.bytes = bytes;
            }
            _ => {
                for (name, bytes) in self.snapshots.clone() {
                    let snapshot = ImageSpec { snapshot: Some(name.clone()), ..spec("vm") };
                    let guest = self.world.open_with(snapshot);
                    let size = self.world.size(guest);
                    let found = self.world.read(guest, 0, size);
                    check(&format!("seed {}: {name}", self.seed), 0, &found, &bytes.0);
                    self.world.close(guest);
                }
            }
        }
    }

    fn resize(&mut self) {
        self.quiesce();
        let size = self.random.random_range(10_000..70_000);
        let resized = self
            .world
            .manage(move |pool| async move { pool.resize("vm", size, true, &mut |_, _| {}).await });
        resized.expect("it is resized");
        self.bytes.resize(size);
        for guest in self.live.clone() {
            self.world.run_until("the new size", |world| world.size(guest) == size);
        }
    }

    fn flatten(&mut self) {
        if !self.is_clone {
            return;
        }
        let flat =
            self.world.begin_manage(|pool| async move { pool.flatten("vm", &mut |_, _| {}).await });
        for _ in 0..3 {
            self.change(Op::Write);
            self.read();
        }
        self.world.run_until("flattening", |_| flat.borrow().is_some());
        flat.borrow_mut().take().expect("it is done").expect("it is flattened");
        self.harvest();
        self.is_clone = false;
        self.was_clone = true;
    }

    fn kill(&mut self) {
        let guest = self.any_guest();
        self.world.kill(guest);
        self.pending.retain(|pending| pending.guest != guest);
        self.live.retain(|&other| other != guest);
        if !self.has_lock {
            // Nothing holds its last writes back.
            self.world.run_for(Nanos::from_ms(10));
        }
        let next = open(&mut self.world, self.is_exclusive);
        self.live.push(next);
    }

    /// A client is cut off in the middle of what it does, another takes over, and the client goes
    /// on as if nothing had happened.
    fn freeze(&mut self) {
        let guest = self.any_guest();
        // Whoever waits for the lock may get it later, and write then.
        if !self.world.guest(guest).image.owns_lock() {
            return;
        }
        self.world.freeze(guest);
        self.pending.retain(|pending| pending.guest != guest);
        self.live.retain(|&other| other != guest);
        let next = open(&mut self.world, self.is_exclusive);
        self.live.push(next);
        self.quiesce();
        for _ in 0..3 {
            self.change(Op::Write);
        }
        self.quiesce();
        self.world.thaw(guest);
        self.world.run_for(Nanos::from_ms(100));
        self.world.kill(guest);
    }

    fn reopen(&mut self) {
        let guest = self.any_guest();
        // All requests are answered before the image is closed.
        self.quiesce();
        self.world.close(guest);
        self.live.retain(|&other| other != guest);
        let next = open(&mut self.world, self.is_exclusive);
        self.live.push(next);
    }

    fn list_extents(&mut self) {
        self.quiesce();
        let guest = self.any_guest();
        let size = self.size();
        let Payload::Extents(extents) = self.world.request(guest, Op::Extents, 0, size) else {
            panic!("no extents")
        };
        let mut at = 0;
        for extent in extents {
            if extent.kind == ExtentKind::Hole {
                let len = extent.len_bytes as usize;
                check("a hole", at, &vec![0; len], self.bytes.range(at, extent.len_bytes));
            }
            at += extent.len_bytes;
        }
        assert_eq!(at, size);
    }

    /// No object map denies an object.
    fn check_map(&mut self) {
        self.quiesce();
        let header = self.world.manage(|pool| async move { pool.info("vm").await });
        let header = header.expect("the image exists");
        if !header.features.has(Features::OBJECT_MAP) {
            return;
        }
        if self.has_failures && !header.has_valid_object_map(SnapId::HEAD) {
            return;
        }
        assert!(header.has_valid_object_map(SnapId::HEAD), "seed {}", self.seed);
        let map_object =
            ObjectName::new(PoolId(1), "", &names::object_map(&header.id, SnapId::HEAD));
        self.world.model.with_store(|store| {
            let object = store.object(&map_object).expect("there is a map");
            let map = ObjectMap::decode(&object.head.data.read(0, 1 << 20)).expect("it is a map");
            assert_eq!(map.len(), header.objects());
            let data_pool = header.data_pool.unwrap_or(PoolId(1));
            for number in 0..header.objects() + 20 {
                let name = ObjectName::new(data_pool, "", &names::data(&header.prefix, number));
                let exists = store.object(&name).is_some_and(|object| object.present().is_some());
                let state = map.get(number);
                let seed = self.seed;
                assert!(
                    !exists || state != ObjectState::Nonexistent,
                    "seed {seed}: object {number} exists, and the map denies it"
                );
            }
        });
    }

    fn run(&mut self, actions: usize) {
        for _ in 0..actions {
            self.act();
            self.world.step(self.world.model.now());
            self.harvest();
        }
        self.quiesce();
        assert_eq!(self.live.len(), self.clients);
        for guest in self.live.clone() {
            let found = self.world.read(guest, 0, self.size());
            check(&format!("seed {}: the end", self.seed), 0, &found, &self.bytes.0);
        }
        self.check_map();
        for guest in self.live.clone() {
            self.world.close(guest);
        }
    }
}

/// `RBD_SEEDS=FIRST+COUNT` runs other seeds.
fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("RBD_SEEDS").unwrap_or_else(|_| "0+10".to_owned());
    let (first, count) = seeds.split_once('+').expect("FIRST+COUNT");
    let first: u64 = first.parse().expect("a number");
    let count: u64 = count.parse().expect("a number");
    first..first + count
}

/// Runs the seeds, and names those that fail.
fn run_all(run: impl Fn(u64)) {
    let seeds = seeds();
    let run = |&seed: &u64| {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed))).is_err();
        if failed {
            eprintln!("SEED {seed} failed");
        }
        failed
    };
    let failed: Vec<u64> = seeds.clone().filter(run).collect();
    assert!(failed.is_empty(), "{} of {seeds:?} failed: {failed:?}", failed.len());
}

#[test]
fn what_is_acknowledged_is_never_lost() {
    run_all(|seed| Chaos::new(seed).run(120));
}
