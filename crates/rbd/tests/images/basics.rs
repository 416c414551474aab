//! One thing after another: what each operation does to an image.

use fieldstone_block::{BlockError, ExtentKind, Nanos, Op, Payload};
use fieldstone_cluster_model::Delays;
use fieldstone_rbd::format::Features;
use fieldstone_rbd::pool::CreateOptions;
use fieldstone_rbd::{ImageSpec, Phase, RbdError};

use super::world::{World, assert_bytes, spec};

fn small(features: Features) -> CreateOptions {
    CreateOptions { order: 12, features, ..CreateOptions::new(40_000) }
}

fn world(features: Features) -> World {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(features));
    world
}

#[test]
fn an_image_keeps_what_is_written() {
    for features in [Features::LAYERING, Features::DEFAULT] {
        let mut world = world(features);
        let vm = world.open("vm");
        assert_eq!(world.size(vm), 40_000);
        assert_bytes(&world.read(vm, 0, 40_000), &vec![0; 40_000]);
        world.write(vm, 4000, &[7; 5000]);
        world.request(vm, Op::Flush, 0, 0);
        let mut expected = vec![0; 10_000];
        expected[4000..9000].fill(7);
        assert_bytes(&world.read(vm, 0, 10_000), &expected);
        world.request(vm, Op::Trim, 4096, 4096);
        world.request(vm, Op::WriteZeroes, 4050, 10);
        expected[4096..8192].fill(0);
        expected[4050..4060].fill(0);
        assert_bytes(&world.read(vm, 0, 10_000), &expected);
        assert_eq!(world.guest(vm).image.owns_lock(), features == Features::DEFAULT);
        world.close(vm);
        let again = world.open("vm");
        assert_bytes(&world.read(again, 0, 10_000), &expected);
    }
}

#[test]
fn extents_are_those_of_the_object_map() {
    let mut world = world(Features::DEFAULT);
    let vm = world.open("vm");
    world.write(vm, 8192, &[1]);
    let Payload::Extents(extents) = world.request(vm, Op::Extents, 0, 40_000) else {
        panic!("no extents")
    };
    let kinds: Vec<_> = extents.iter().map(|extent| (extent.len_bytes, extent.kind)).collect();
    let hole = ExtentKind::Hole;
    assert_eq!(kinds, [(8192, hole), (4096, ExtentKind::Data), (27_712, hole)]);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let mut world = world(Features::DEFAULT);
    let missing = world.begin_open(spec("none"));
    let no_pool = world.begin_open(ImageSpec { pool: "x".into(), ..spec("vm") });
    let no_snapshot = world.begin_open(ImageSpec { snapshot: Some("s".into()), ..spec("vm") });
    for (guest, text) in [
        (missing, "there is no image rbd/none"),
        (no_pool, "there is no pool x"),
        (no_snapshot, "image rbd/vm has no snapshot s"),
    ] {
        world.run_until("opening", |world| world.guest(guest).image.phase() != Phase::Opening);
        let Phase::Failed(error) = world.guest(guest).image.phase() else { panic!("it opened") };
        assert!(error.to_string().starts_with(text), "{error}");
    }
}

#[test]
fn snapshots_keep_the_past() {
    for features in [Features::LAYERING, Features::DEFAULT] {
        let mut world = world(features);
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 9000]);
        let made = world.manage(|pool| async move { pool.create_snapshot("vm", "a").await });
        made.expect("the snapshot is made");
        world.write(vm, 4096, &[2; 10_000]);
        let snapshot = ImageSpec { snapshot: Some("a".into()), ..spec("vm") };
        let past = world.open_with(snapshot);
        let mut expected = vec![1; 9000];
        expected.resize(20_000, 0);
        assert_bytes(&world.read(past, 0, 20_000), &expected);
        let rolled = world
            .manage(|pool| async move { pool.rollback_snapshot("vm", "a", &mut |_, _| {}).await });
        rolled.expect("it is rolled back");
        assert_bytes(&world.read(vm, 0, 20_000), &expected);
        world.close(past);
        let removed = world.manage(|pool| async move { pool.remove_snapshot("vm", "a").await });
        removed.expect("it is removed");
        assert_bytes(&world.read(vm, 0, 20_000), &expected);
    }
}

#[test]
fn clones_read_their_parent_and_write_their_own() {
    for features in [Features::LAYERING, Features::DEFAULT] {
        let mut world = world(features);
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 9000]);
        let made = world.manage(move |pool| async move {
            pool.create_snapshot("vm", "a").await?;
            pool.protect_snapshot("vm", "a").await?;
            pool.clone_image(&pool, "vm", "a", "child", &small(features)).await
        });
        made.expect("the clone is made");
        world.write(vm, 0, &[9; 9000]);
        let child = world.open("child");
        let mut expected = vec![1; 9000];
        expected.resize(40_000, 0);
        assert_bytes(&world.read(child, 0, 40_000), &expected);
        world.write(child, 100, &[2; 10]);
        expected[100..110].fill(2);
        world.request(child, Op::Trim, 4096, 4096);
        expected[4096..8192].fill(0);
        world.request(child, Op::Trim, 8500, 100);
        expected[8500..8600].fill(0);
        assert_bytes(&world.read(child, 0, 40_000), &expected);
        let refused = world.manage(|pool| async move {
            pool.unprotect_snapshot("vm", "a").await?;
            pool.remove_snapshot("vm", "a").await
        });
        assert!(matches!(refused, Err(RbdError::InUse { .. })), "{refused:?}");
        world.close(child);
        world.close(vm);
        let removed = world.manage(|pool| async move {
            pool.remove("child", &mut |_, _| {}).await?;
            pool.remove_snapshot("vm", "a").await?;
            pool.rename("vm", "old").await?;
            pool.remove("old", &mut |_, _| {}).await?;
            pool.list().await
        });
        assert_eq!(removed, Ok(vec![]));
    }
}

#[test]
fn sizes_change_under_an_open_image() {
    for features in [Features::LAYERING, Features::DEFAULT] {
        let mut world = world(features);
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 40_000]);
        let cut = world
            .manage(|pool| async move { pool.resize("vm", 10_000, true, &mut |_, _| {}).await });
        cut.expect("it shrinks");
        world.run_until("the new size", |world| world.size(vm) == 10_000);
        let grown = world
            .manage(|pool| async move { pool.resize("vm", 50_000, false, &mut |_, _| {}).await });
        grown.expect("it grows");
        world.run_until("the new size", |world| world.size(vm) == 50_000);
        let mut expected = vec![1; 10_000];
        expected.resize(50_000, 0);
        assert_bytes(&world.read(vm, 0, 50_000), &expected);
        world.write(vm, 49_000, &[3; 1000]);
        let refused =
            world.manage(|pool| async move { pool.resize("vm", 1, false, &mut |_, _| {}).await });
        assert!(matches!(refused, Err(RbdError::Invalid(_))), "{refused:?}");
    }
}

#[test]
fn the_lock_goes_from_hand_to_hand() {
    let mut world = world(Features::DEFAULT);
    let (a, b) = (world.open("vm"), world.open("vm"));
    for round in 0..4u8 {
        world.write(a, 0, &[round; 5000]);
        assert!(world.guest(a).image.owns_lock());
        world.write(b, 5000, &[round; 5000]);
        assert!(world.guest(b).image.owns_lock() && !world.guest(a).image.owns_lock());
        assert_bytes(&world.read(a, 0, 10_000), &vec![round; 10_000]);
    }
}

#[test]
fn a_dead_owner_is_shut_out() {
    let mut world = world(Features::DEFAULT);
    let (a, b) = (world.open("vm"), world.open("vm"));
    world.write(a, 0, &[1; 5000]);
    let address = world.guest(a).handle.address();
    world.kill(a);
    world.write(b, 0, &[2; 3000]);
    let shut_out =
        world.model.with_store(|store| store.all_shut_out().any(|(blocked, _)| blocked == address));
    assert!(shut_out, "{address}");
    assert_eq!(world.read(b, 2999, 3), [2, 1, 1]);
}

#[test]
fn a_client_that_was_cut_off_writes_nothing_later() {
    // In each round it is cut off at another step of its write.
    for steps in 0..40 {
        let mut world = world(Features::DEFAULT);
        let (a, b) = (world.open("vm"), world.open("vm"));
        world.write(a, 0, &[1; 4096]);
        let late = world.submit(a, Op::Write, 0, 9000, vec![2; 9000].into());
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        world.freeze(a);
        world.write(b, 0, &[3; 9000]);
        let second = world.submit(a, Op::Write, 100, 10, vec![4; 10].into());
        world.thaw(a);
        world.run_for(Nanos::from_ms(1000));
        let refused = world.take(a, second).expect("it is answered");
        assert!(matches!(refused, Err(BlockError::Fenced(_))), "{refused:?}");
        assert!(world.take(a, late).is_some());
        assert_bytes(&world.read(b, 0, 9000), &[3; 9000]);
    }
}

#[test]
fn an_exclusive_owner_keeps_the_lock() {
    let mut world = world(Features::DEFAULT);
    let a = world.open_with(ImageSpec { exclusive: true, ..spec("vm") });
    assert!(world.guest(a).image.owns_lock());
    let b = world.open("vm");
    let refused = world.try_write(b, 0, &[1]).expect_err("the lock is taken");
    assert!(refused.to_string().contains("exclusively"), "{refused}");
    world.close(a);
    world.write(b, 0, &[1]);
}

#[test]
fn a_blocked_client_stops() {
    let mut world = world(Features::DEFAULT);
    let a = world.open("vm");
    world.write(a, 0, &[1; 10]);
    let address = world.guest(a).handle.address();
    let now = world.model.now();
    world.model.with_store(|store| store.shut_out(&address, None, now));
    let refused = world.try_write(a, 0, &[2; 10]).expect_err("the client is shut out");
    assert!(refused.to_string().contains("blocklist"), "{refused}");
    assert!(matches!(world.guest(a).image.phase(), Phase::Failed(RbdError::Blocklisted(_))));
}
