//! What an open image knows of itself, and is not so any more.

use bytes::Bytes;
use fieldstone_block::{Nanos, Op};
use fieldstone_cluster_model::{Delays, Fault};
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{ObjectName, SnapId};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::class::{self, ParentSpec};
use fieldstone_rbd::format::request::Work;
use fieldstone_rbd::format::{Features, names};
use fieldstone_rbd::pool::CreateOptions;

use super::clones::{cloned, small};
use super::requests::{ask, asked, begin_ask, exclusive, named, read_snapshot};
use super::world::{World, assert_bytes, bytes_of};

const POOL: PoolId = PoolId(1);

fn inject(world: &World, object: &str, method: &'static str, error: Errno, executes: bool) {
    let fault = Fault { error, times: 1, method: Some(method), executes };
    world.model.inject_fault(POOL, object, fault);
}

fn step(world: &mut World) {
    world.step(world.model.now().plus(Nanos::from_ms(100)));
}

#[test]
fn a_map_that_was_flagged_does_not_come_back() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 100]);
    assert_eq!(asked(&mut world, "vm", named("s", Work::CreateSnapshot), Some(1)), Some(0));
    let map = names::object_map(&world.info("vm").id, SnapId::HEAD);
    inject(&world, &map, "object_map_update", Errno::EIO, false);
    world.write(vm, 4096, &[2; 100]);
    world.write(vm, 7 * 4096, &[3; 100]);
    let done = begin_ask(&mut world, "vm", named("s", Work::RemoveSnapshot), Some(2));
    let mut reads = Vec::new();
    world.run_until("the removal", |world| {
        reads.push(world.submit(vm, Op::Read, 7 * 4096, 100, Bytes::new()));
        done.borrow().is_some()
    });
    assert_eq!(done.take(), Some(Some(0)));
    world.run_for(Nanos::from_ms(1_000));
    for id in reads {
        let data = world.take(vm, id).expect("it is read").expect("it can be read");
        assert_bytes(&bytes_of(&data), &[3; 100]);
    }
}

/// Neither can the map be changed, nor be flagged. The write fails, and the next one does not go on
/// without a map that the next owner would believe.
#[test]
fn a_map_that_cannot_be_flagged_is_used_on() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 100]);
    let id = world.info("vm").id;
    let (header, map) = (names::header(&id), names::object_map(&id, SnapId::HEAD));
    inject(&world, &map, "object_map_update", Errno::EIO, false);
    inject(&world, &header, "set_flags", Errno::EIO, false);
    world.try_write(vm, 4096, &[2; 100]).expect_err("the OSDs fail");
    world.write(vm, 4096, &[3; 100]);
    world.check_map("vm");
    world.close(vm);
    let other = world.open("vm");
    world.write(other, 0, &[4; 100]);
    assert_bytes(&world.read(other, 4096, 100), &[3; 100]);
}

/// True if the header has a snapshot.
fn has_snapshot(world: &World, header: &str) -> bool {
    let name = ObjectName::new(POOL, "", header);
    world.model.with_store(|store| {
        let object = store.object(&name).expect("there is a header");
        object.head.omap.keys().any(|key| key.starts_with(b"snapshot_"))
    })
}

#[test]
fn a_write_that_waited_for_a_snapshot_that_failed_is_not_in_it() {
    for seed in 0..8 {
        let mut world = World::new(seed, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = exclusive(&mut world, "vm");
        world.write(vm, 0, &[1; 4096]);
        let id = world.info("vm").id;
        let (header, map) = (names::header(&id), names::object_map(&id, SnapId::HEAD));
        inject(&world, &map, "object_map_snap_add", Errno::EIO, false);
        inject(&world, &header, "set_flags", Errno::EIO, false);
        let done = begin_ask(&mut world, "vm", named("s", Work::CreateSnapshot), Some(1));
        world.run_until("the snapshot", |world| has_snapshot(world, &header));
        assert!(done.borrow().is_none(), "the procedure has ended");
        world.write(vm, 0, &[2; 4096]);
        assert_bytes(&read_snapshot(&mut world, "vm", "s")[..4096], &[1; 4096]);
        assert_bytes(&world.read(vm, 0, 4096), &[2; 4096]);
        world.check_map("vm");
    }
}

#[test]
fn a_write_that_waited_for_a_smaller_size_leaves_nothing_behind_the_end() {
    for steps in 0..60 {
        let mut world = World::new(steps, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = exclusive(&mut world, "vm");
        world.write(vm, 0, &[1; 4096]);
        let header = names::header(&world.info("vm").id);
        inject(&world, &header, "set_size", Errno::ETIMEDOUT, true);
        let resize = |size_bytes| Work::Resize { size_bytes, may_shrink: true };
        let done = begin_ask(&mut world, "vm", resize(4096), Some(1));
        (0..steps).for_each(|_| step(&mut world));
        let late = world.submit(vm, Op::Write, 30_000, 100, vec![2; 100].into());
        world.run_until("both", |world| done.borrow().is_some() && world.take(vm, late).is_some());
        assert_eq!(asked(&mut world, "vm", resize(40_000), Some(2)), Some(0));
        assert_bytes(&world.read(vm, 30_000, 100), &[0; 100]);
        world.check_map("vm");
    }
}

/// An image of very many objects that do not exist: the core has other work meanwhile.
#[test]
fn making_a_large_thin_image_smaller_gives_way_to_others() {
    let mut world = World::new(1, Delays::USUAL);
    let size_bytes = 1_000_000 * 4096;
    world.create("vm", CreateOptions { size_bytes, ..small(Features::DEFAULT) });
    let vm = exclusive(&mut world, "vm");
    world.write(vm, 500_000 * 4096, &[1; 100]);
    let work = Work::Resize { size_bytes: 0, may_shrink: true };
    let done = begin_ask(&mut world, "vm", work, Some(1));
    let mut steps = 0;
    world.run_until("the end", |_| {
        steps += 1;
        done.borrow().is_some()
    });
    assert_eq!(done.take(), Some(Some(0)));
    assert!(steps > 200, "the work was done in {steps} steps");
    let prefix = world.info("vm").prefix;
    let object = ObjectName::new(POOL, "", &names::data(&prefix, 500_000));
    world.model.with_store(|store| {
        assert!(store.object(&object).is_none_or(|object| object.present().is_none()));
    });
}

/// The pool of an open image gets another name, and another pool gets the old one.
#[test]
fn an_owner_knows_its_pool_by_number() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = exclusive(&mut world, "vm");
    let ask_for = |world: &mut World, header: &ObjectName, work, number| {
        let header = header.clone();
        let done = world.begin_client(|cluster| ask(cluster, header, work, Some(number)));
        world.run_until("the end", |_| done.borrow().is_some());
        done.take().expect("it has ended")
    };
    let id = world.info("vm").id;
    let header = ObjectName::new(POOL, "", &names::header(&id));
    let create = named("s", Work::CreateSnapshot);
    assert_eq!(ask_for(&mut world, &header, create, 1), Some(0));
    let snapshot = world.info("vm").snapshots[0].info.id;
    world.model.with_store(|store| {
        store.pool_mut(POOL).expect("it is there").info.name = "old".to_owned();
    });
    let protect = named("s", Work::ProtectSnapshot);
    assert_eq!(ask_for(&mut world, &header, protect, 2), Some(0));
    world.model.add_pool("rbd");
    let mut ops = ObjectOps::new();
    let parent = ParentSpec { pool: POOL, namespace: String::new(), image: id, snapshot };
    class::add_child(&mut ops, &parent, "abc");
    assert_eq!(world.tamper(names::CHILDREN, ops).result, 0);
    let unprotect = named("s", Work::UnprotectSnapshot);
    assert_eq!(ask_for(&mut world, &header, unprotect, 3), Some(-16));
    assert!(world.guest(vm).image.owns_lock());
}

/// Without `fast-diff`, librbd removes a snapshot although another client has the lock: first its
/// object map, then its entry in the header.
#[test]
fn a_snapshot_that_another_client_removes_fails_no_write() {
    for has_entry in [true, false] {
        let mut world = cloned(Features::DEFAULT);
        let child = exclusive(&mut world, "child");
        world.write(child, 0, &[2; 100]);
        let create = named("s", Work::CreateSnapshot);
        assert_eq!(asked(&mut world, "child", create, Some(1)), Some(0));
        let header = world.info("child");
        let snapshot = header.snapshots[0].info.id;
        let mut ops = ObjectOps::new();
        ops.delete();
        assert_eq!(world.tamper(&names::object_map(&header.id, snapshot), ops).result, 0);
        if !has_entry {
            let mut ops = ObjectOps::new();
            class::snapshot_remove(&mut ops, snapshot);
            assert_eq!(world.tamper(&names::header(&header.id), ops).result, 0);
        }
        world.write(child, 9_000, &[3; 100]);
        let mut expected = vec![1; 40_000];
        expected[..100].fill(2);
        expected[9_000..9_100].fill(3);
        assert_bytes(&world.read(child, 0, 40_000), &expected);
        world.check_map("child");
        assert_eq!(world.info("child").snapshots.is_empty(), !has_entry);
    }
}
