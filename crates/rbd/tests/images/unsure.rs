//! Requests that an OSD executes, and whose answers are lost: the client does not know what is.

use fieldstone_cluster_model::{Delays, Fault};
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::{Features, names};

use super::clones::{cloned, small};
use super::requests::read_snapshot;
use super::world::{World, assert_bytes};

const POOL: PoolId = PoolId(1);

/// The next call of a method is executed, and its answer is an error.
fn lose_answer(world: &mut World, object: &str, method: &'static str, error: Errno) {
    let fault = Fault { error, times: 1, method: Some(method), executes: true };
    world.model.inject_fault(POOL, object, fault);
}

#[test]
fn a_snapshot_whose_answer_is_lost_keeps_its_data() {
    for (error, is_found) in
        [(Errno::ETIMEDOUT, true), (Errno::EIO, true), (Errno::ESHUTDOWN, false)]
    {
        let mut world = World::new(1, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 10_000]);
        world.close(vm);
        let header = names::header(&world.info("vm").id);
        lose_answer(&mut world, &header, "snapshot_add", error);
        let made = world.manage(|pool| async move { pool.create_snapshot("vm", "s").await });
        let vm = world.open("vm");
        world.write(vm, 0, &[2; 10_000]);
        let found = world.info("vm").snapshot_named("s").expect("it was made").info.id;
        assert_bytes(&read_snapshot(&mut world, "vm", "s")[..10_000], &[1; 10_000]);
        assert_eq!(made.is_ok_and(|id| id == found), is_found, "{error}");
        world.check_map("vm");
    }
}

/// A refusal is known: nothing stays of the snapshot, and its number is given back.
#[test]
fn a_snapshot_that_is_refused_leaves_nothing() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let header = world.info("vm");
    let fault = |error| Fault { error, times: 1, method: Some("snapshot_add"), executes: false };
    // The second number is another's, too.
    world.model.inject_fault(POOL, &names::header(&header.id), fault(Errno::ESTALE));
    world.model.inject_fault(POOL, &names::header(&header.id), fault(Errno::EEXIST));
    let made = world.manage(|pool| async move { pool.create_snapshot("vm", "s").await });
    assert!(made.is_err(), "{made:?}");
    assert_eq!(world.info("vm").snapshots, []);
    world.model.with_store(|store| {
        let pool = store.pool(POOL).expect("the pool is there");
        for id in [1, 2].map(fieldstone_rados::cluster::SnapId) {
            assert!(pool.is_removed(id), "{id:?} is not given back");
            let map = names::object_map(&header.id, id);
            assert!(pool.objects().all(|(key, _)| *key.2 != *map), "{map} is left");
        }
    });
}
