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

fn id_exists(world: &mut World, name: &str) -> bool {
    let mut ops = ObjectOps::new();
    ops.stat();
    world.tamper(&names::id_object(name), ops).result == 0
}

#[test]
fn an_image_whose_new_name_is_not_confirmed_can_be_opened() {
    for can_look in [true, false] {
        let mut world = World::new(1, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        lose_answer(&mut world, names::DIRECTORY, "dir_rename_image", Errno::ETIMEDOUT);
        if !can_look {
            lose_answer(&mut world, names::DIRECTORY, "dir_get_id", Errno::ETIMEDOUT);
        }
        let rename =
            |world: &mut World| world.manage(|pool| async move { pool.rename("vm", "new").await });
        let renamed = rename(&mut world);
        assert_eq!(renamed.is_ok(), can_look, "{renamed:?}");
        world.open("new");
        if !can_look {
            assert_eq!(rename(&mut world), Ok(()), "it goes on where it was");
        }
        let names = world.manage(|pool| async move { pool.list().await });
        assert_eq!(names, Ok(vec!["new".to_owned()]));
        assert!(!id_exists(&mut world, "vm"));
    }
}

#[test]
fn a_new_name_that_is_refused_is_free_again() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let refusal =
        Fault { error: Errno::ESTALE, times: 1, method: Some("dir_rename_image"), executes: false };
    world.model.inject_fault(POOL, names::DIRECTORY, refusal);
    let renamed = world.manage(|pool| async move { pool.rename("vm", "new").await });
    assert!(renamed.is_err(), "{renamed:?}");
    assert!(!id_exists(&mut world, "new"));
    let itself = world.manage(|pool| async move { pool.rename("vm", "vm").await });
    assert!(itself.is_err(), "{itself:?}");
    world.open("vm");
}

#[test]
fn a_clone_that_its_parent_did_not_confirm_leaves_nothing_there() {
    let mut world = cloned(Features::DEFAULT);
    let parent = names::header(&world.info("vm").id);
    lose_answer(&mut world, &parent, "child_attach", Errno::ETIMEDOUT);
    let made = world.manage(|pool| async move {
        pool.clone_image(&pool, "vm", "a", "second", &small(Features::DEFAULT)).await
    });
    assert!(made.is_err(), "{made:?}");
    let left = world.manage(|pool| async move { pool.list().await });
    assert_eq!(left, Ok(vec!["child".to_owned(), "vm".to_owned()]));
    assert_eq!(world.info("vm").snapshots[0].info.children, 1);
}
