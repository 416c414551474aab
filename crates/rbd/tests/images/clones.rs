//! Clones and their parents: what is copied up, and when a clone leaves.

use bytes::Bytes;
use fieldstone_block::{Nanos, Op};
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::Encoder;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::class::{self, ParentSpec};
use fieldstone_rbd::format::{Features, features, names};
use fieldstone_rbd::pool::CreateOptions;
use fieldstone_rbd::{ImageSpec, RbdError};

use super::world::{World, assert_bytes, bytes_of, spec};

const SIZE: u64 = 40_000;
const POOL: PoolId = PoolId(1);

pub fn small(features: Features) -> CreateOptions {
    CreateOptions { order: 12, features, ..CreateOptions::new(SIZE) }
}

/// The image `child`, a clone of `vm@a`, which has ones everywhere.
pub fn cloned(features: Features) -> World {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(features));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; SIZE as usize]);
    let made = world.manage(move |pool| async move {
        pool.create_snapshot("vm", "a").await?;
        pool.clone_image(&pool, "vm", "a", "child", &small(features)).await
    });
    made.expect("the clone is made");
    world.write(vm, 0, &[9; SIZE as usize]);
    world.close(vm);
    world
}

fn snapshot(world: &mut World, image: &'static str, name: &'static str) -> SnapId {
    let made = world.manage(move |pool| async move { pool.create_snapshot(image, name).await });
    made.expect("the snapshot is made")
}

fn resize(world: &mut World, size: u64) {
    let resized = world
        .manage(move |pool| async move { pool.resize("child", size, true, &mut |_, _| {}).await });
    resized.expect("it is resized");
}

fn flatten(world: &mut World) {
    let done = world.manage(|pool| async move { pool.flatten("child", &mut |_, _| {}).await });
    done.expect("it is flattened");
}

fn at_snapshot(name: &str) -> ImageSpec {
    ImageSpec { snapshot: Some(name.into()), ..spec("child") }
}

#[test]
fn a_map_that_says_too_much_hides_no_parent() {
    let mut world = cloned(Features::DEFAULT);
    let child = world.open("child");
    let header = world.info("child");
    for (object, op) in [(0, Op::Trim), (1, Op::WriteZeroes), (2, Op::Write)] {
        // The map is changed, and the object is not.
        world.model.inject(PoolId(1), &names::data(&header.prefix, object), Errno::EIO, 1);
        let at = object * 4096;
        world.try_write(child, at + 100, &[5; 10]).expect_err("the OSD fails");
        let mut expected = vec![1; 4096];
        if op == Op::Write {
            world.write(child, at, &[6; 50]);
            expected[..50].fill(6);
        } else {
            world.request(child, op, at, 50);
            expected[..50].fill(0);
        }
        assert_bytes(&world.read(child, at, 4096), &expected);
    }
}

#[test]
fn a_smaller_clone_leaves_its_snapshots_whole() {
    for features in [Features::LAYERING, Features::DEFAULT] {
        let mut world = cloned(features);
        let child = world.open("child");
        snapshot(&mut world, "child", "s");
        resize(&mut world, 10_000);
        resize(&mut world, SIZE);
        world.run_until("the size", |world| world.size(child) == SIZE);
        world.write(child, 9000, &[2; 10]);
        world.write(child, 20_000, &[2; 10]);
        let past = world.open_with(at_snapshot("s"));
        assert_bytes(&world.read(past, 0, SIZE), &[1; SIZE as usize]);
        world.close(past);
        let mut expected = vec![0; SIZE as usize];
        expected[..10_000].fill(1);
        expected[9000..9010].fill(2);
        expected[20_000..20_010].fill(2);
        assert_bytes(&world.read(child, 0, SIZE), &expected);
        flatten(&mut world);
        let past = world.open_with(at_snapshot("s"));
        assert_bytes(&world.read(past, 0, SIZE), &[1; SIZE as usize]);
        assert_bytes(&world.read(child, 0, SIZE), &expected);
        let rolled = world.manage(|pool| async move {
            pool.rollback_snapshot("child", "s", &mut |_, _| {}).await
        });
        let needs_parent = features == Features::LAYERING;
        assert_eq!(matches!(rolled, Err(RbdError::Invalid(_))), needs_parent, "{rolled:?}");
        world.check_map("child");
    }
}

#[test]
fn a_flat_clone_needs_no_parent() {
    let mut world = cloned(Features::DEFAULT);
    let child = world.open("child");
    world.write(child, 5000, &[2; 10]);
    snapshot(&mut world, "child", "s");
    world.write(child, 0, &[3; 10]);
    // It is open with its object map while the parent goes.
    let past = world.open_with(at_snapshot("s"));
    let mut of_snapshot = vec![1; SIZE as usize];
    of_snapshot[5000..5010].fill(2);
    assert_bytes(&world.read(past, 0, SIZE), &of_snapshot);
    flatten(&mut world);
    assert_eq!(world.info("child").parent, None);
    let removed = world.manage(|pool| async move {
        pool.remove_snapshot("vm", "a").await?;
        pool.remove("vm", &mut |_, _| {}).await?;
        pool.flatten("child", &mut |_, _| {}).await
    });
    assert!(matches!(removed, Err(RbdError::Invalid(_))), "{removed:?}");
    assert_bytes(&world.read(past, 0, SIZE), &of_snapshot);
    let mut expected = of_snapshot;
    expected[..10].fill(3);
    assert_bytes(&world.read(child, 0, SIZE), &expected);
    world.check_map("child");
}

#[test]
fn the_last_snapshot_takes_a_flat_clone_off_its_parent() {
    let mut world = cloned(Features::LAYERING);
    snapshot(&mut world, "child", "s");
    snapshot(&mut world, "child", "t");
    flatten(&mut world);
    for name in ["s", "t"] {
        assert_eq!(world.info("vm").snapshots[0].info.children, 1);
        let past = world.open_with(at_snapshot(name));
        assert_bytes(&world.read(past, 0, SIZE), &[1; SIZE as usize]);
        world.close(past);
        let removed =
            world.manage(move |pool| async move { pool.remove_snapshot("child", name).await });
        removed.expect("it is removed");
    }
    assert_eq!(world.info("vm").snapshots[0].info.children, 0);
}

#[test]
fn a_deleted_snapshot_goes_with_its_last_clone() {
    let mut world = cloned(Features::DEFAULT);
    let header = world.info("vm");
    let mut input = Encoder::new();
    input.u64(header.snapshots[0].info.id.0);
    let mut ops = ObjectOps::new();
    ops.call(class::CLASS, "snapshot_trash_add", input.finish());
    let reply = world.tamper(&names::header(&header.id), ops);
    assert_eq!(reply.result, 0);
    let removed = world.manage(|pool| async move { pool.remove("child", &mut |_, _| {}).await });
    removed.expect("the clone is removed");
    assert_eq!(world.info("vm").snapshots, []);
}

fn run_steps(world: &mut World, steps: u64) {
    for _ in 0..steps {
        world.step(world.model.now().plus(Nanos::from_ms(100)));
    }
}

#[test]
fn a_clone_and_a_removal_at_once_lose_nothing() {
    let (mut clones, mut removals) = (0, 0);
    for steps in 0..80 {
        let mut world = World::new(steps, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = world.open("vm");
        world.write(vm, 0, &[1; SIZE as usize]);
        snapshot(&mut world, "vm", "a");
        world.write(vm, 0, &[9; SIZE as usize]);
        world.close(vm);
        // One of them begins, and the other some steps later.
        let clone_first = steps % 2 == 0;
        let clone = |world: &mut World| {
            world.begin_manage(|pool| async move {
                pool.clone_image(&pool, "vm", "a", "child", &small(Features::DEFAULT)).await
            })
        };
        let remove = |world: &mut World| {
            world.begin_manage(|pool| async move { pool.remove_snapshot("vm", "a").await })
        };
        let (cloned, removed);
        if clone_first {
            cloned = clone(&mut world);
            run_steps(&mut world, steps);
            removed = remove(&mut world);
        } else {
            removed = remove(&mut world);
            run_steps(&mut world, 2 * steps);
            cloned = clone(&mut world);
        }
        world.run_until("both", |_| cloned.borrow().is_some() && removed.borrow().is_some());
        let removed = removed.borrow_mut().take().expect("it is done");
        match (cloned.borrow_mut().take().expect("it is done"), removed) {
            (Ok(_), Err(RbdError::InUse { .. })) => {
                let child = world.open("child");
                assert_bytes(&world.read(child, 0, SIZE), &[1; SIZE as usize]);
                clones += 1;
            }
            (Err(_), Ok(())) => {
                let left = world.manage(|pool| async move { pool.list().await });
                assert_eq!(left, Ok(vec!["vm".to_owned()]));
                removals += 1;
            }
            other => panic!("{steps} steps: {other:?}"),
        }
    }
    assert!(clones > 0 && removals > 0, "{clones} clones, {removals} removals");
}

#[test]
fn a_map_of_a_snapshot_that_cannot_be_changed_is_flagged() {
    let mut world = cloned(Features::DEFAULT);
    let child = world.open("child");
    let id = snapshot(&mut world, "child", "s");
    let header = world.info("child");
    let mut ops = ObjectOps::new();
    ops.delete();
    world.tamper(&names::object_map(&header.id, id), ops);
    world.write(child, 0, &[2; 10]);
    let invalid = features::FLAG_OBJECT_MAP_INVALID | features::FLAG_FAST_DIFF_INVALID;
    assert_eq!(world.info("child").snapshots[0].flags, invalid);
    let past = world.open_with(at_snapshot("s"));
    assert_bytes(&world.read(past, 0, SIZE), &[1; SIZE as usize]);
}

#[test]
fn a_clone_of_format_1_in_a_namespace_is_found() {
    let mut world = World::new(1, Delays::USUAL);
    let mut ops = ObjectOps::new();
    ops.create(false);
    ops.call(class::CLASS, "dir_state_set", Bytes::from_static(&[0]));
    assert_eq!(world.tamper_in("n", names::DIRECTORY, ops).result, 0);
    let made = world.begin_manage_in("n", |pool| async move {
        pool.create("vm", &small(Features::DEFAULT)).await?;
        pool.create_snapshot("vm", "a").await?;
        pool.protect_snapshot("vm", "a").await?;
        pool.info("vm").await
    });
    world.run_until("the image", |_| made.borrow().is_some());
    let header = made.borrow_mut().take().expect("it is done").expect("it is made");
    let parent = ParentSpec {
        pool: PoolId(1),
        namespace: "n".into(),
        image: header.id.clone(),
        snapshot: header.snapshots[0].info.id,
    };
    let mut ops = ObjectOps::new();
    class::add_child(&mut ops, &parent, "abc");
    assert_eq!(world.tamper_in("n", names::CHILDREN, ops).result, 0);
    let lifted =
        world.begin_manage_in("n", |pool| async move { pool.unprotect_snapshot("vm", "a").await });
    world.run_until("the protection", |_| lifted.borrow().is_some());
    let refused = lifted.borrow_mut().take().expect("it is done");
    assert!(matches!(refused, Err(RbdError::InUse { .. })), "{refused:?}");
}

/// A read that has asked the parent ends after the clone was flattened and the parent removed.
/// Until the header is read again, the reader does not know.
#[test]
fn a_read_from_a_parent_that_goes_meanwhile_begins_again() {
    let mut world = cloned(Features::DEFAULT);
    let parent = names::data(&world.info("vm").prefix, 0);
    let header = names::header(&world.info("child").id);
    let reader = world.open_with(ImageSpec { read_only: true, ..spec("child") });
    let handle = world.guest(reader).handle.clone();
    handle.hold(POOL, &parent);
    let id = world.submit(reader, Op::Read, 0, 4096, Bytes::new());
    world.run_for(Nanos::from_ms(50));
    handle.hold(POOL, &header);
    flatten(&mut world);
    let removed = world.manage(|pool| async move {
        pool.remove_snapshot("vm", "a").await?;
        pool.remove("vm", &mut |_, _| {}).await
    });
    removed.expect("it has no clone any more");
    handle.let_go(POOL, &parent);
    world.run_for(Nanos::from_ms(50));
    handle.let_go(POOL, &header);
    let mut read = None;
    world.run_until("the read", |world| {
        read = world.take(reader, id);
        read.is_some()
    });
    let read = read.expect("it has come").expect("it succeeds");
    assert_bytes(&bytes_of(&read), &[1; 4096]);
}
