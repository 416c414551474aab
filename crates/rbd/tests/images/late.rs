//! Writes that fail by the time limit for requests, and that their OSD executes later.

use fieldstone_block::{Nanos, Op, RequestId};
use fieldstone_cluster_model::{ClientHandle, Delays, Fault};
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::Encoder;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::{Features, class, names};
use fieldstone_rbd::{ImageSpec, Phase, RbdError};

use super::clones::{cloned, small};
use super::requests::read_snapshot;
use super::world::{World, assert_bytes, spec};

const POOL: PoolId = PoolId(1);
const LIMIT: Nanos = Nanos::from_ms(1_000);
/// The object size of [`small`] images.
const OBJECT: u64 = 4096;

/// Client `a` has written the first object, and has the lock. Its requests on that object wait from
/// now on, and one that writes 2s has failed. Gives `a`, and the object.
fn late(world: &mut World, exclusive: bool) -> (usize, String) {
    world.create("vm", small(Features::DEFAULT));
    let object = names::data(&world.info("vm").prefix, 0);
    let a = world.open_with(ImageSpec { exclusive, ..spec("vm") });
    world.write(a, 0, &[1; 4096]);
    world.model.set_time_limit(Some(LIMIT));
    world.guest(a).handle.hold(POOL, &object);
    let error = world.try_write(a, 0, &[2; 4096]).expect_err("its time is over");
    assert!(error.to_string().contains("ETIMEDOUT"), "{error}");
    (a, object)
}

#[test]
fn the_lock_stays_here_while_a_write_is_late() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let b = world.open("vm");
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(70_000));
        assert_eq!(world.take(b, newer), None, "seed {seed}: the lock was given up");
        assert_eq!(world.info("vm").lock.lockers.len(), 1);
        // The owner goes on to write other objects.
        world.write(a, OBJECT, &[4; 4096]);
        world.guest(a).handle.let_go(POOL, &object);
        world.run_until("the newer write", |world| match world.take(b, newer) {
            Some(result) => result.is_ok(),
            None => false,
        });
        world.run_for(Nanos::from_ms(10_000));
        let found = world.read(b, 0, 2 * OBJECT);
        assert_bytes(&found[..4096], &[3; 4096]);
        assert_bytes(&found[4096..], &[4; 4096]);
        assert!(!world.guest(a).image.owns_lock());
        world.check_map("vm");
    }
}

/// While another client waits for the lock, the gate is closed by turns only.
#[test]
fn a_write_beside_a_late_one_is_not_held_for_long() {
    for seed in 0..5 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, _) = late(&mut world, false);
        let b = world.open("vm");
        world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        for _ in 0..30 {
            let begin = world.model.now();
            world.write(a, OBJECT, &[4; 10]);
            let took = world.model.now().since(begin);
            assert!(took < Nanos::from_ms(6_000), "seed {seed}: {took:?}");
            world.run_for(Nanos::from_ms(700));
        }
        assert!(world.guest(a).image.owns_lock());
    }
}

#[test]
fn a_closed_image_leaves_the_lock_to_who_shuts_it_out() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let handle = world.guest(a).handle.clone();
        let from = world.model.now();
        world.close(a);
        assert!(world.model.now() < from.plus(Nanos::from_ms(10_000)), "closing is bounded");
        assert_eq!(world.info("vm").lock.lockers.len(), 1, "seed {seed}: the lock was given up");
        let b = world.open("vm");
        world.write(b, 0, &[3; 4096]);
        handle.let_go(POOL, &object);
        world.run_for(Nanos::from_ms(10_000));
        assert_bytes(&world.read(b, 0, OBJECT), &[3; 4096]);
        assert!(is_blocked(&world, &handle), "seed {seed}: it is not blocked");
        world.check_map("vm");
    }
}

/// The owner promises its lock to another client, before it is closed or meanwhile, and leaves the
/// lock behind.
#[test]
fn a_client_that_was_promised_the_lock_does_not_wait_for_long() {
    for asks_first in [true, false] {
        let mut world = World::new(1, Delays::USUAL);
        let (a, _) = late(&mut world, false);
        let b = world.open("vm");
        let early = asks_first.then(|| world.submit(b, Op::Write, 0, 512, vec![3; 512].into()));
        world.run_for(Nanos::from_ms(1_000));
        let from = world.model.now();
        world.guest(a).image.close();
        world.run_for(Nanos::from_ms(1_000));
        let newer =
            early.unwrap_or_else(|| world.submit(b, Op::Write, 0, 512, vec![3; 512].into()));
        world.run_until("the newer write", |world| match world.take(b, newer) {
            Some(result) => result.is_ok(),
            None => false,
        });
        let took = world.model.now().since(from);
        assert!(took < Nanos::from_ms(12_000), "asks first: {asks_first}; {took:?}");
    }
}

#[test]
fn an_image_that_is_closed_after_its_late_writes_gives_the_lock_up() {
    let mut world = World::new(1, Delays::USUAL);
    let (a, object) = late(&mut world, false);
    world.guest(a).image.close();
    world.run_for(Nanos::from_ms(2_000));
    world.guest(a).handle.let_go(POOL, &object);
    world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
    assert_eq!(world.info("vm").lock.lockers, []);
    let b = world.open("vm");
    assert_bytes(&world.read(b, 0, OBJECT), &[2; 4096]);
}

#[test]
fn no_snapshot_is_made_while_a_write_is_late() {
    let mut world = World::new(1, Delays::USUAL);
    let (a, object) = late(&mut world, true);
    let make = |world: &mut World, name: &'static str| {
        world.manage(move |pool| async move { pool.create_snapshot("vm", name).await })
    };
    let made = make(&mut world, "s");
    let errno = made.as_ref().err().and_then(RbdError::errno);
    assert_eq!(errno, Some(Errno::ETIMEDOUT), "{made:?}");
    assert_eq!(world.info("vm").snapshots, []);
    world.guest(a).handle.let_go(POOL, &object);
    make(&mut world, "t").expect("it is made");
    world.write(a, 0, &[5; 4096]);
    assert_bytes(&read_snapshot(&mut world, "vm", "t")[..4096], &[2; 4096]);
    world.check_map("vm");
}

#[test]
fn a_lock_that_comes_late_is_given_up() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let header = names::header(&world.info("vm").id);
    let a = world.open("vm");
    world.model.set_time_limit(Some(LIMIT));
    world.guest(a).handle.hold(POOL, &header);
    world.try_write(a, 0, &[1; 10]).expect_err("it gets no lock");
    world.guest(a).handle.let_go(POOL, &header);
    world.run_for(Nanos::from_ms(5_000));
    assert_eq!(world.info("vm").lock.lockers, []);
    let b = world.open("vm");
    world.write(b, 0, &[2; 10]);
    world.write(a, 0, &[3; 10]);
    assert_bytes(&world.read(b, 0, 10), &[3; 10]);
}

fn is_blocked(world: &World, handle: &ClientHandle) -> bool {
    let address = handle.address();
    let is_own = |(blocked, _): (&str, Nanos)| address.ends_with(blocked);
    world.model.with_store(|store| store.all_shut_out().any(is_own))
}

/// A client has the lock of `vm`. From now on requests have a time limit. Gives the client, its
/// handle, and the header.
fn owner(world: &mut World) -> (usize, ClientHandle, String) {
    owner_as(world, spec("vm"))
}

/// The same, opened as the specification says.
fn owner_as(world: &mut World, spec: ImageSpec) -> (usize, ClientHandle, String) {
    world.create("vm", small(Features::DEFAULT));
    let header = names::header(&world.info("vm").id);
    let a = world.open_with(spec);
    world.write(a, 0, &[1; 4096]);
    world.model.set_time_limit(Some(LIMIT));
    let handle = world.guest(a).handle.clone();
    (a, handle, header)
}

/// The other client gets the lock soon, and the first one lives.
fn check_taken(world: &mut World, handle: &ClientHandle, b: usize, newer: RequestId, what: &str) {
    world.run_for(Nanos::from_ms(8_000));
    let result = world.take(b, newer);
    assert!(matches!(result, Some(Ok(_))), "{what}: {result:?}");
    assert!(!is_blocked(world, handle), "{what}: a client that lives is blocked");
    assert_bytes(&world.read(b, 0, OBJECT), &[3; 4096]);
}

/// A clone's owner flattens it for another client, and so opens and closes the parent, while a
/// write to the clone is late.
#[test]
fn a_parent_is_not_left_locked_because_of_its_clone() {
    let mut world = cloned(Features::DEFAULT);
    let resized = world
        .manage(|pool| async move { pool.resize("child", 80_000, true, &mut |_, _| {}).await });
    resized.expect("it is resized");
    // The parent's snapshot goes with its last clone.
    let parent = world.info("vm");
    let mut input = Encoder::new();
    input.u64(parent.snapshots[0].info.id.0);
    let mut ops = ObjectOps::new();
    ops.call(class::CLASS, "snapshot_trash_add", input.finish());
    assert_eq!(world.tamper(&names::header(&parent.id), ops).result, 0);

    let a = world.open_with(ImageSpec { exclusive: true, ..spec("child") });
    let handle = world.guest(a).handle.clone();
    // The parent has nothing of this object.
    let object = names::data(&world.info("child").prefix, 15);
    let offset = 15 * OBJECT;
    world.write(a, offset, &[1; 10]);
    world.model.set_time_limit(Some(LIMIT));
    handle.hold(POOL, &object);
    world.try_write(a, offset, &[2; 10]).expect_err("its time is over");
    let flat = world.manage(|pool| async move { pool.flatten("child", &mut |_, _| {}).await });
    flat.expect("it is flattened");
    let parent = world.info("vm");
    assert_eq!((parent.snapshots, parent.lock.lockers), (vec![], vec![]));
    let b = world.open("vm");
    world.write(b, 0, &[3; 10]);
    assert!(!is_blocked(&world, &handle), "a client that lives is blocked");
    // The clone's own lock stays.
    assert!(world.guest(a).image.owns_lock());
    handle.let_go(POOL, &object);
    world.run_for(Nanos::from_ms(5_000));
    assert_bytes(&world.read(a, offset, 10), &[2; 10]);
}

#[test]
fn a_lock_whose_release_was_never_sent_is_given_up_later() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, handle, header) = owner(&mut world);
        let b = world.open("vm");
        handle.cut_off(POOL, &header);
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(20_000));
        assert_eq!(world.take(b, newer), None, "seed {seed}");
        assert!(!world.guest(a).image.owns_lock());
        handle.let_go(POOL, &header);
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
        world.write(a, 0, &[4; 10]);
        assert_bytes(&world.read(b, 0, 10), &[4; 10]);
    }
}

/// The cookie of a new watch comes late, or never.
#[test]
fn a_lock_that_does_not_follow_the_watch_in_time_is_given_up() {
    for seed in 0..20 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, handle, header) = owner(&mut world);
        world.freeze(a);
        world.run_for(Nanos::from_ms(31_000));
        let is_sent = seed % 2 == 0;
        match is_sent {
            true => handle.hold(POOL, &header),
            false => handle.cut_off(POOL, &header),
        }
        world.thaw(a);
        world.run_for(Nanos::from_ms(5_000));
        assert!(!world.guest(a).image.owns_lock(), "seed {seed}");
        handle.let_go(POOL, &header);
        world.run_for(Nanos::from_ms(3_000));
        assert_eq!(world.info("vm").lock.lockers, [], "seed {seed}");
        let b = world.open("vm");
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
        world.write(a, 0, &[4; 10]);
    }
}

/// An image that is used exclusively has no request under way when its lock is in doubt.
#[test]
fn an_exclusive_image_takes_a_lock_in_doubt_again() {
    for seed in 0..20 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, handle, header) = owner_as(&mut world, ImageSpec { exclusive: true, ..spec("vm") });
        handle.cut_off(POOL, &header);
        world.end_watches(a);
        world.run_for(Nanos::from_ms(3_000 + seed * 100));
        assert!(!world.guest(a).image.owns_lock(), "seed {seed}");
        handle.let_go(POOL, &header);
        world.run_for(Nanos::from_ms(5_000));
        assert!(world.guest(a).image.owns_lock(), "seed {seed}: it has given the lock up");
        let b = world.open("vm");
        let error = world.try_write(b, 0, &[3; 10]).expect_err("the lock is kept");
        assert!(error.to_string().contains("exclusively"), "seed {seed}: {error}");
        world.write(a, 0, &[4; 10]);
        assert!(!is_blocked(&world, &handle), "seed {seed}");
    }
}

/// A lock in doubt is not given up while a write of its time is late.
#[test]
fn a_lock_in_doubt_stays_while_a_write_is_late() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let header = names::header(&world.info("vm").id);
        let handle = world.guest(a).handle.clone();
        world.freeze(a);
        world.run_for(Nanos::from_ms(31_000));
        handle.hold(POOL, &header);
        world.thaw(a);
        world.run_for(Nanos::from_ms(5_000));
        handle.let_go(POOL, &header);
        world.run_for(Nanos::from_ms(5_000));
        let b = world.open("vm");
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(20_000));
        assert_eq!(world.take(b, newer), None, "seed {seed}: the lock was given up");
        handle.let_go(POOL, &object);
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
    }
}

/// The header has a lock of this client with an old cookie, and the client takes it again. Nobody
/// comes in between, before the late write.
#[test]
fn a_lock_that_is_taken_again_lets_nobody_in() {
    for steps in 0..60 {
        let mut world = World::new(steps, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let header = names::header(&world.info("vm").id);
        let handle = world.guest(a).handle.clone();
        let b = world.open("vm");
        handle.cut_off(POOL, &header);
        world.end_watches(a);
        world.run_for(Nanos::from_ms(3_000));
        assert!(!world.guest(a).image.owns_lock(), "{steps} steps");
        handle.let_go(POOL, &header);
        world.submit(a, Op::Write, OBJECT, OBJECT, vec![4; 4096].into());
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(500));
        // If its watch was not known yet, it was taken for dead.
        let is_taken = world.take(b, newer).is_some();
        assert_eq!(is_taken, is_blocked(&world, &handle), "{steps} steps");
        handle.let_go(POOL, &object);
        world.run_for(Nanos::from_ms(8_000));
        assert!(is_taken || world.take(b, newer).is_some(), "{steps} steps");
        assert_bytes(&world.read(b, 0, OBJECT), &[3; 4096]);
    }
}

/// The client takes its lock again, and cannot lock the object map. A write of the time before is
/// late still.
#[test]
fn a_lock_whose_map_cannot_be_opened_stays_while_a_write_is_late() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let info = world.info("vm");
        let handle = world.guest(a).handle.clone();
        handle.cut_off(POOL, &names::header(&info.id));
        world.end_watches(a);
        world.run_for(Nanos::from_ms(3_000));
        assert!(!world.guest(a).image.owns_lock(), "seed {seed}");
        let map = names::object_map(&info.id, SnapId::HEAD);
        let error = Errno::ETIMEDOUT;
        let fault = Fault { error, times: 1, method: Some("lock"), executes: false };
        world.model.inject_fault(POOL, &map, fault);
        handle.let_go(POOL, &names::header(&info.id));
        world.try_write(a, OBJECT, &[4; 10]).expect_err("the map cannot be locked");
        let b = world.open("vm");
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(10_000));
        assert_eq!(world.take(b, newer), None, "seed {seed}: the lock was given up");
        handle.let_go(POOL, &object);
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
    }
}

/// The image is closed at any time after another client has asked for its lock.
#[test]
fn an_image_that_is_closed_gives_up_a_lock_in_doubt() {
    for seed in 0..30 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, handle, header) = owner(&mut world);
        let b = world.open("vm");
        handle.cut_off(POOL, &header);
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(seed * 150));
        world.guest(a).image.close();
        world.run_for(Nanos::from_ms(10_000));
        handle.let_go(POOL, &header);
        world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
        assert_eq!(world.take(b, newer), None, "seed {seed}");
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
    }
}

/// It waits behind its gate already, because another client has asked for the lock.
#[test]
fn an_image_that_is_closed_waits_for_the_whole_time() {
    let mut world = World::new(1, Delays::USUAL);
    let (a, object) = late(&mut world, false);
    let handle = world.guest(a).handle.clone();
    let b = world.open("vm");
    let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
    world.run_for(Nanos::from_ms(9_000));
    world.guest(a).image.close();
    world.run_for(Nanos::from_ms(3_000));
    handle.let_go(POOL, &object);
    world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
    check_taken(&mut world, &handle, b, newer, "closing");
}

/// While an image waits for a late write before it closes, its watch is renewed.
#[test]
fn an_image_that_is_being_closed_is_not_taken_for_dead() {
    for seed in 0..10 {
        let mut world = World::new(seed, Delays::USUAL);
        let (a, object) = late(&mut world, false);
        let handle = world.guest(a).handle.clone();
        let b = world.open("vm");
        world.guest(a).image.close();
        world.run_for(Nanos::from_ms(500));
        // Its watch ends at the OSD now.
        world.end_watches(a);
        world.run_for(Nanos::from_ms(500));
        let newer = world.submit(b, Op::Write, 0, OBJECT, vec![3; 4096].into());
        world.run_for(Nanos::from_ms(2_000));
        assert_eq!(world.take(b, newer), None, "seed {seed}");
        handle.let_go(POOL, &object);
        world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
        check_taken(&mut world, &handle, b, newer, &format!("seed {seed}"));
    }
}
