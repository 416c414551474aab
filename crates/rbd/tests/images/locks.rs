//! The exclusive lock when it is lost, asked for, or follows another watch.

use fieldstone_block::{Nanos, Op};
use fieldstone_cluster_model::Delays;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::{Features, lock, names};
use fieldstone_rbd::pool::CreateOptions;
use fieldstone_rbd::{ImageSpec, Phase};

use super::clones::small;
use super::world::{World, assert_bytes, spec};

fn world(seed: u64) -> World {
    let mut world = World::new(seed, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    world
}

/// A person breaks the lock of an image.
fn break_lock(world: &mut World) {
    let header = world.info("vm");
    let owner = &header.lock.lockers[0];
    let mut ops = ObjectOps::new();
    lock::break_lock(&mut ops, owner.client, &owner.cookie);
    assert_eq!(world.tamper(&names::header(&header.id), ops).result, 0);
}

#[test]
fn a_broken_lock_is_noticed() {
    let mut world = world(1);
    let a = world.open("vm");
    world.write(a, 0, &[1; 10]);
    assert!(world.guest(a).image.owns_lock());
    break_lock(&mut world);
    world.guest(a).handle.interrupt();
    world.run_for(Nanos::from_ms(100));
    assert!(!world.guest(a).image.owns_lock());
    world.write(a, 0, &[2; 10]);
    assert!(world.guest(a).image.owns_lock());
}

#[test]
fn writes_of_an_owner_that_lost_the_lock_do_no_harm() {
    for steps in 0..40 {
        let mut world = world(steps);
        let (a, b) = (world.open("vm"), world.open("vm"));
        world.write(a, 30_000, &[1; 10]);
        let header = world.info("vm");
        let owner = header.lock.lockers[0].clone();
        let id = world.submit(a, Op::Write, 0, 20_000, vec![2; 20_000].into());
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        let mut ops = ObjectOps::new();
        lock::break_lock(&mut ops, owner.client, &owner.cookie);
        world.tamper(&names::header(&header.id), ops);
        world.guest(a).handle.interrupt();
        world.write(b, 20_000, &[3; 10]);
        let mut result = None;
        world.run_until("the write", |world| {
            result = world.take(a, id);
            result.is_some()
        });
        result.expect("it has come").expect("it succeeds");
        assert_bytes(&world.read(b, 0, 20_000), &[2; 20_000]);
        world.check_map("vm");
    }
}

#[test]
fn a_write_from_before_the_loss_begins_again() {
    write_from_before_the_loss(Features::DEFAULT);
    // Without a map, the snapshot shows each object that comes too late.
    write_from_before_the_loss(Features::LAYERING.with(Features::EXCLUSIVE_LOCK));
}

fn write_from_before_the_loss(features: Features) {
    let mut world = World::new(1, Delays::USUAL);
    let data = world.model.add_erasure_coded_pool("data");
    let size = 300 * 4096;
    let options =
        CreateOptions { size_bytes: size, data_pool: Some("data".into()), ..small(features) };
    world.create("vm", options);
    let a = world.open("vm");
    world.write(a, 0, &[1; 10]);
    // Its first requests wait for space.
    world.model.set_full(data, true);
    let whole = world.submit(a, Op::Write, 0, size, vec![2; size as usize].into());
    world.run_for(Nanos::from_ms(200));
    break_lock(&mut world);
    world.guest(a).handle.interrupt();
    world.run_for(Nanos::from_ms(200));
    assert!(!world.guest(a).image.owns_lock());
    let made = world.manage(|pool| async move { pool.create_snapshot("vm", "s").await });
    made.expect("the snapshot is made");
    let second = world.submit(a, Op::WriteZeroes, size - 10, 10, Default::default());
    world.run_for(Nanos::from_ms(200));
    world.model.set_full(data, false);
    world.run_until("the write", |world| {
        world.take(a, whole).map(|result| result.expect("it succeeds")).is_some()
    });
    world.run_until("the write", |world| world.take(a, second).is_some());
    // What was sent before the loss may have come late. All else was sent again, behind the
    // snapshot.
    let past = world.open_with(ImageSpec { snapshot: Some("s".into()), ..spec("vm") });
    let late = 64 * 4096;
    let len = size - late - 4096;
    assert_bytes(&world.read(past, late, len), &vec![0; len as usize]);
    assert_bytes(&world.read(a, 0, size - 10), &vec![2; size as usize - 10]);
    world.check_map("vm");
}

#[test]
fn another_client_gets_the_lock_under_steady_writes() {
    for seed in 0..8 {
        let mut world = world(seed);
        let (a, b) = (world.open("vm"), world.open("vm"));
        world.write(a, 0, &[1; 10]);
        let mut of_a: Vec<_> =
            (0..4).map(|i| world.submit(a, Op::Write, i * 100, 10, vec![1; 10].into())).collect();
        let begin = world.model.now();
        let of_b = world.submit(b, Op::Write, 20_000, 10, vec![2; 10].into());
        world.run_until("the other's write", |world| {
            for (i, id) in of_a.iter_mut().enumerate() {
                if world.take(a, *id).is_some() {
                    *id = world.submit(a, Op::Write, i as u64 * 100, 10, vec![1; 10].into());
                }
            }
            world.take(b, of_b).is_some()
        });
        let took = world.model.now().0 - begin.0;
        assert!(took < 500_000_000, "seed {seed}: {took} ns");
    }
}

#[test]
fn the_lock_follows_the_watch() {
    // In each round it is closed at another step of the renewal.
    for steps in 0..30 {
        let mut world = world(steps);
        let a = world.open("vm");
        world.write(a, 0, &[1; 10]);
        world.freeze(a);
        world.run_for(Nanos::from_ms(31_000));
        world.thaw(a);
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        world.guest(a).image.close();
        world.run_until("closing", |world| world.guest(a).image.phase() == Phase::Closed);
        assert_eq!(world.info("vm").lock.lockers, [], "{steps} steps");
        let removed = world.manage(|pool| async move { pool.remove("vm", &mut |_, _| {}).await });
        assert_eq!(removed, Ok(()), "{steps} steps");
    }
}

#[test]
fn a_slow_owner_is_waited_for() {
    let mut world = world(1);
    let (a, b) = (world.open("vm"), world.open("vm"));
    world.write(a, 0, &[1; 10]);
    // It stands still, and its watch does not: such is a machine that is very slow.
    world.guest(a).is_frozen = true;
    let id = world.submit(b, Op::Write, 0, 10, vec![2; 10].into());
    world.run_for(Nanos::from_ms(600_000));
    assert!(world.take(b, id).is_none(), "the request waits");
    world.thaw(a);
    world.run_until("the write", |world| world.take(b, id).is_some());
}

/// Ceph 14 and 15 know the command by which clients are shut out under another name.
#[test]
fn a_dead_owner_is_shut_out_with_the_words_of_older_monitors() {
    let mut world = world(1);
    world.model.with_store(|store| store.make_monitors_old());
    let (a, b) = (world.open("vm"), world.open("vm"));
    world.write(a, 0, &[1; 10]);
    let address = world.guest(a).handle.address();
    world.kill(a);
    world.write(b, 0, &[2; 10]);
    let is_out = |store: &mut fieldstone_cluster_model::Store| {
        store.all_shut_out().any(|(shut_out, _)| address.ends_with(shut_out))
    };
    assert!(world.model.with_store(is_out), "{address} is not shut out");
}
