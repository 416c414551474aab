//! Things that were left half done, and OSDs that fail in the middle.

use fieldstone_block::Nanos;
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::{Features, class, features, names};
use fieldstone_rbd::{ImageSpec, Phase, RbdError};

use super::clones::small;
use super::world::{World, spec};

fn world() -> World {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    world
}

fn create(world: &mut World, name: &'static str) -> Result<String, RbdError> {
    world.manage(move |pool| async move { pool.create(name, &small(Features::DEFAULT)).await })
}

fn remove(world: &mut World, name: &'static str) -> Result<(), RbdError> {
    world.manage(move |pool| async move { pool.remove(name, &mut |_, _| {}).await })
}

fn list(world: &mut World) -> Vec<String> {
    world.manage(|pool| async move { pool.list().await }).expect("a list")
}

#[test]
fn a_creation_that_fails_takes_only_its_own_away() {
    let mut world = world();
    let mut ops = ObjectOps::new();
    ops.create(true);
    class::set_id(&mut ops, "other");
    assert_eq!(world.tamper(&names::id_object("new"), ops).result, 0);
    let refused = create(&mut world, "new");
    assert!(matches!(refused, Err(RbdError::Exists(_))), "{refused:?}");
    let mut ops = ObjectOps::new();
    ops.stat();
    assert_eq!(world.tamper(&names::id_object("new"), ops).result, 0, "another's id is gone");
    assert_eq!(list(&mut world), ["vm"]);
    // Only the id is left of an image: it can be removed, and made.
    remove(&mut world, "new").expect("it is removed");
    create(&mut world, "new").expect("it is made");
    world.open("new");
}

#[test]
fn an_id_that_is_taken_is_not_used() {
    let mut world = world();
    let client = world.model.client().1.client() + 1;
    let taken = names::new_id(client, client);
    let mut ops = ObjectOps::new();
    ops.create(true);
    world.tamper(&names::header(&taken), ops);
    let id = create(&mut world, "new").expect("it is made with another id");
    assert_ne!(id, taken);
    let mut ops = ObjectOps::new();
    ops.stat();
    assert_eq!(world.tamper(&names::header(&taken), ops).result, 0, "another's header is gone");
    world.open("new");
}

#[test]
fn a_creation_that_fails_at_any_step_leaves_nothing() {
    for object in [names::id_object("new"), names::DIRECTORY.to_owned()] {
        let mut world = world();
        world.model.inject(PoolId(1), &object, Errno::EIO, 1);
        create(&mut world, "new").expect_err("the OSD fails");
        assert_eq!(list(&mut world), ["vm"]);
        create(&mut world, "new").expect("it is made");
    }
}

#[test]
fn a_removal_goes_on_where_it_was() {
    let mut world = world();
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 10_000]);
    world.close(vm);
    let prefix = world.info("vm").prefix;
    let mut ops = ObjectOps::new();
    ops.delete();
    world.tamper(&names::id_object("vm"), ops);
    remove(&mut world, "vm").expect("it is removed");
    assert_eq!(list(&mut world), [""; 0]);
    let mut ops = ObjectOps::new();
    ops.stat();
    assert!(world.tamper(&names::data(&prefix, 0), ops).result < 0, "data is left");
    create(&mut world, "vm").expect("it is made again");
}

#[test]
fn an_image_that_cannot_be_opened_is_not_watched() {
    let mut failures = 0;
    for steps in 0..30 {
        let mut world = world();
        let header = names::header(&world.info("vm").id);
        let guest = world.begin_open(ImageSpec { exclusive: true, ..spec("vm") });
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        world.model.inject(PoolId(1), &header, Errno::EIO, 1);
        world.run_until("opening", |world| world.guest(guest).image.phase() != Phase::Opening);
        if matches!(world.guest(guest).image.phase(), Phase::Failed(_)) {
            failures += 1;
            // The image is still there, and would be told apart from a dead one by its watch.
            let removed = remove(&mut world, "vm");
            assert_eq!(removed, Ok(()), "{steps} steps");
        }
    }
    assert!(failures > 5, "{failures} failures");
}

#[test]
fn an_image_is_closed_while_it_is_opened() {
    for steps in 0..30 {
        let mut world = world();
        let owner = world.open("vm");
        world.write(owner, 0, &[1]);
        world.guest(owner).is_frozen = true;
        let guest = world.begin_open(ImageSpec { exclusive: true, ..spec("vm") });
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        world.guest(guest).image.close();
        world.run_for(Nanos::from_ms(8000));
        assert_eq!(world.guest(guest).image.phase(), Phase::Closed, "{steps} steps");
        world.thaw(owner);
        world.close(owner);
        assert_eq!(remove(&mut world, "vm"), Ok(()), "{steps} steps");
    }
}

#[test]
fn a_removed_snapshot_without_a_readable_map_makes_the_next_one_invalid() {
    for next_is_head in [false, true] {
        let mut world = world();
        let made = world.manage(move |pool| async move {
            let id = pool.create_snapshot("vm", "a").await?;
            if !next_is_head {
                pool.create_snapshot("vm", "b").await?;
            }
            Ok::<_, RbdError>(id)
        });
        let id = made.expect("the snapshots are made");
        let map = names::object_map(&world.info("vm").id, id);
        world.model.inject(PoolId(1), &map, Errno::EIO, 1);
        let removed = world.manage(|pool| async move { pool.remove_snapshot("vm", "a").await });
        removed.expect("it is removed");
        let header = world.info("vm");
        let flags = if next_is_head { header.flags } else { header.snapshots[0].flags };
        let invalid = features::FLAG_OBJECT_MAP_INVALID | features::FLAG_FAST_DIFF_INVALID;
        assert_eq!(flags, invalid);
    }
}

#[test]
fn unknown_operation_features_are_refused() {
    let mut world = world();
    let header = world.info("vm");
    assert_eq!(header.check_features(true), Ok(()));
    let newer = fieldstone_rbd::header::Header { op_features: 1 << 20, ..header };
    let refused = newer.check_features(false).expect_err("the feature is not known");
    assert!(refused.to_string().contains("0x100000"), "{refused}");
}

#[test]
fn what_cannot_be_read_about_an_image_keeps_it() {
    let mut failures = 0;
    for steps in 0..120 {
        let mut world = world();
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 10_000]);
        world.close(vm);
        let header = names::header(&world.info("vm").id);
        let removed =
            world.begin_manage(|pool| async move { pool.remove("vm", &mut |_, _| {}).await });
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        world.model.inject(PoolId(1), &header, Errno::EIO, 1);
        world.run_until("the removal", |_| removed.borrow().is_some());
        if removed.borrow_mut().take().expect("it is done").is_err() {
            failures += 1;
            // It goes on, and finds all that is left.
            assert_eq!(remove(&mut world, "vm"), Ok(()), "{steps} steps");
            assert_eq!(list(&mut world), [""; 0]);
        }
    }
    assert!(failures > 5, "{failures} failures");
}
