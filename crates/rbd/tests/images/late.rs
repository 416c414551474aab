//! Writes that fail by the time limit for requests, and that their OSD executes later.

use fieldstone_block::{Nanos, Op};
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::errno::Errno;
use fieldstone_rbd::format::{Features, names};
use fieldstone_rbd::{ImageSpec, Phase, RbdError};

use super::clones::small;
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
        let address = handle.address();
        let is_blocked = world.model.with_store(|store| {
            store.all_shut_out().any(|(blocked, _)| address.ends_with(blocked))
        });
        assert!(is_blocked, "seed {seed}: {address} is not blocked");
        world.check_map("vm");
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
