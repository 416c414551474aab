//! What an image tells the layers above it, and what it waits for before it gives its lock away.

use fieldstone_block::{Backend, Nanos, Op};
use fieldstone_cluster_model::Delays;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::{Features, lock, names};
use fieldstone_rbd::{ImageSpec, Phase};

use super::clones::small;
use super::world::{World, spec};

fn world(seed: u64) -> World {
    let mut world = World::new(seed, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    world
}

/// An image with layers above, which this client has written to.
fn open_owner(world: &mut World) -> usize {
    let guest = world.open_with(ImageSpec { has_layers: true, ..spec("vm") });
    assert!(
        world
            .guest(guest)
            .image
            .shared()
            .is_some_and(|shared| shared.why.contains("has not the lock"))
    );
    world.write(guest, 0, &[1; 10]);
    assert_eq!(world.guest(guest).image.shared(), None);
    guest
}

#[test]
fn the_lock_is_given_away_when_the_layers_keep_nothing() {
    let mut world = world(1);
    let (a, b) = (open_owner(&mut world), world.open("vm"));
    let of_b = world.submit(b, Op::Write, 20_000, 10, vec![2; 10].into());
    world.run_for(Nanos::from_ms(20_000));
    assert!(world.take(b, of_b).is_none(), "the lock was given away too early");
    let why = world.guest(a).image.shared().unwrap().why;
    assert!(why.contains("another client asks"), "{why}");
    assert!(world.guest(a).image.owns_lock());
    // The layers still write.
    world.write(a, 100, &[3; 10]);
    world.guest(a).image.settled();
    world.run_until("the other's write", |world| world.take(b, of_b).is_some());
    assert!(
        world.guest(a).image.shared().is_some_and(|shared| shared.why.contains("has not the lock"))
    );
    assert_eq!(world.read(b, 100, 10), [3; 10]);
    // The next time it is the same again.
    world.write(a, 200, &[4; 10]);
    assert_eq!(world.guest(a).image.shared(), None);
    let of_b = world.submit(b, Op::Write, 20_000, 10, vec![2; 10].into());
    world.run_for(Nanos::from_ms(20_000));
    assert!(world.take(b, of_b).is_none(), "an old answer of the layers counts");
    world.guest(a).image.settled();
    world.run_until("the other's write", |world| world.take(b, of_b).is_some());
}

#[test]
fn a_snapshot_of_another_client_waits_for_the_layers() {
    let mut world = world(2);
    let a = open_owner(&mut world);
    let made = world.begin_manage(|pool| async move { pool.create_snapshot("vm", "s").await });
    world.run_for(Nanos::from_ms(10_000));
    assert!(made.borrow().is_none(), "the snapshot does not wait");
    world.write(a, 100, &[3; 10]);
    world.guest(a).image.settled();
    world.run_until("the snapshot", |_| made.borrow().is_some());
    let past = world.open_with(ImageSpec { snapshot: Some("s".into()), ..spec("vm") });
    assert_eq!(world.guest(past).image.shared(), None);
    assert_eq!(world.read(past, 100, 10), [3; 10]);
}

#[test]
fn an_image_that_is_closed_or_loses_its_lock_does_not_wait_for_layers() {
    for closes in [true, false] {
        let mut world = world(3);
        let (a, b) = (open_owner(&mut world), world.open("vm"));
        let of_b = world.submit(b, Op::Write, 20_000, 10, vec![2; 10].into());
        world.run_for(Nanos::from_ms(1000));
        assert!(world.take(b, of_b).is_none());
        if closes {
            world.guest(a).image.close();
            world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
        } else {
            let header = world.info("vm");
            let owner = &header.lock.lockers[0];
            let mut ops = ObjectOps::new();
            lock::break_lock(&mut ops, owner.client, &owner.cookie);
            world.tamper(&names::header(&header.id), ops);
        }
        world.run_until("the other's write", |world| world.take(b, of_b).is_some());
        if !closes {
            world.guest(a).handle.interrupt();
            world.run_for(Nanos::from_ms(1000));
            let why = world.guest(a).image.shared();
            assert!(why.is_some_and(|it| it.why.contains("has not the lock")), "{why:?}");
        }
    }
}

#[test]
fn an_image_without_the_feature_is_always_shared() {
    let mut world = World::new(4, Delays::USUAL);
    world.create("vm", small(Features::LAYERING));
    let a = world.open_with(ImageSpec { has_layers: true, ..spec("vm") });
    world.write(a, 0, &[1; 10]);
    let shared = world.guest(a).image.shared().unwrap();
    assert!(shared.for_good && shared.why.contains("exclusive-lock"), "{shared:?}");
}
