//! Object maps, compared with what the objects and their clones tell.

use fieldstone_block::Op;
use fieldstone_cluster_model::Delays;
use fieldstone_cluster_model::objects::Object;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{ObjectName, SnapId};
use fieldstone_rbd::format::{Features, ObjectMap, ObjectState, names};
use fieldstone_rbd::header::Header;
use fieldstone_rbd::pool::CreateOptions;

use super::clones::{cloned, small};
use super::world::World;

impl World {
    /// The map tells of each object what Ceph's check of maps finds. If it need not be `exact`, as
    /// after the death of an owner, it may claim more: an object that does not exist, or a change
    /// that was not made.
    pub fn compare_map(
        &self,
        header: &Header,
        snapshot: SnapId,
        exact: bool,
    ) -> Result<(), String> {
        let map = ObjectName::new(PoolId(1), "", &names::object_map(&header.id, snapshot));
        let size = header.size_at(snapshot).ok_or("there is no such snapshot")?;
        self.model.with_store(|store| {
            let object = store.object(&map).ok_or("there is no object map")?;
            let map = ObjectMap::decode(&object.head.data.read(0, 1 << 20))
                .map_err(|error| error.to_string())?;
            let objects = header.layout.objects(size);
            if map.len() != objects {
                return Err(format!("a map of {} objects instead of {objects}", map.len()));
            }
            let data_pool = header.data_pool.unwrap_or(PoolId(1));
            for number in 0..objects {
                let name = ObjectName::new(data_pool, "", &names::data(&header.prefix, number));
                let found = found_state(store.object(&name), header, snapshot);
                let noted = map.get(number);
                let claims_more = match noted {
                    ObjectState::Exists | ObjectState::Pending => true,
                    ObjectState::ExistsClean => found == ObjectState::Nonexistent,
                    ObjectState::Nonexistent => false,
                };
                if found != noted && (exact || !claims_more) {
                    let id = snapshot.0;
                    return Err(format!("object {number} at {id:#x}: {found:?}, but {noted:?}"));
                }
            }
            Ok(())
        })
    }

    /// All maps of an image are exact.
    pub fn compare_maps(&mut self, image: &str) {
        let header = self.info(image);
        let snapshots = header.snapshots.iter().map(|snapshot| snapshot.info.id);
        for snapshot in snapshots.chain([SnapId::HEAD]) {
            assert!(header.has_valid_object_map(snapshot), "the map of {snapshot:?} is flagged");
            assert_eq!(self.compare_map(&header, snapshot, true), Ok(()), "{image}");
        }
    }
}

/// The state of an object at a snapshot, as `rbd object-map check` derives it from the object's
/// clones (Ceph: `ObjectMapIterate`): the object is clean if an earlier snapshot sees the same
/// clone.
fn found_state(object: Option<&Object>, header: &Header, snapshot: SnapId) -> ObjectState {
    let Some(object) = object else { return ObjectState::Nonexistent };
    let at_or_after = |snap: SnapId| {
        let mut ids = header.snapshots.iter().map(|other| other.info.id);
        ids.find(|&id| id >= snap).unwrap_or(SnapId::HEAD)
    };
    // Each state of the object: the first and the last snapshot that see it.
    let clones = object
        .snaps
        .clones
        .iter()
        .filter_map(|clone| Some((at_or_after(*clone.snaps.last()?), *clone.snaps.first()?)));
    let since = at_or_after(SnapId(object.snaps.seq.0 + 1));
    let head = object.present().map(|_| (since, SnapId::HEAD));
    match clones.chain(head).find(|&(_, last)| last >= snapshot) {
        Some((first, _)) if first > snapshot => ObjectState::Nonexistent,
        Some((first, _)) if first < snapshot && header.features.has(Features::FAST_DIFF) => {
            ObjectState::ExistsClean
        }
        Some(_) => ObjectState::Exists,
        None => ObjectState::Nonexistent,
    }
}

fn state(world: &mut World, image: &str, object: u64) -> ObjectState {
    let header = world.info(image);
    let map = ObjectName::new(PoolId(1), "", &names::object_map(&header.id, SnapId::HEAD));
    world.model.with_store(|store| {
        let object_map = store.object(&map).expect("there is a map");
        let bytes = object_map.head.data.read(0, 1 << 20);
        ObjectMap::decode(&bytes).expect("it is a map").get(object)
    })
}

fn snapshot(world: &mut World, image: &'static str, name: &'static str) {
    let made = world.manage(move |pool| async move { pool.create_snapshot(image, name).await });
    made.expect("the snapshot is made");
}

#[test]
fn zeroes_behind_an_objects_bytes_leave_it_clean() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 1000]);
    snapshot(&mut world, "vm", "s");
    world.request(vm, Op::Trim, 1000, 500);
    world.request(vm, Op::WriteZeroes, 2000, 500);
    assert_eq!(state(&mut world, "vm", 0), ObjectState::ExistsClean);
    world.compare_maps("vm");
    // Across the end of the bytes it is a change, and so it is to cut the object off.
    world.request(vm, Op::Trim, 900, 500);
    assert_eq!(state(&mut world, "vm", 0), ObjectState::Exists);
    snapshot(&mut world, "vm", "t");
    world.request(vm, Op::Trim, 2000, 4096 - 2000);
    assert_eq!(state(&mut world, "vm", 0), ObjectState::Exists);
    world.compare_maps("vm");
}

#[test]
fn a_smaller_striped_image_keeps_clean_objects() {
    let mut world = World::new(1, Delays::USUAL);
    let options = CreateOptions { stripe_unit: 1024, stripe_count: 2, ..small(Features::DEFAULT) };
    world.create("vm", options);
    let vm = world.open("vm");
    // The first stripe has the first kilobyte of both objects.
    world.write(vm, 0, &[1; 2048]);
    snapshot(&mut world, "vm", "s");
    let resized =
        world.manage(|pool| async move { pool.resize("vm", 4096, true, &mut |_, _| {}).await });
    resized.expect("it is resized");
    assert_eq!(state(&mut world, "vm", 0), ObjectState::ExistsClean);
    world.compare_maps("vm");
}

#[test]
fn what_flattening_copies_is_in_the_snapshots_too() {
    let mut world = cloned(Features::DEFAULT);
    snapshot(&mut world, "child", "s");
    snapshot(&mut world, "child", "t");
    let done = world.manage(|pool| async move { pool.flatten("child", &mut |_, _| {}).await });
    done.expect("it is flattened");
    assert_eq!(state(&mut world, "child", 0), ObjectState::ExistsClean);
    world.compare_maps("child");
    snapshot(&mut world, "child", "u");
    world.compare_maps("child");
}

/// Without `deep-flatten`, a rollback deletes an object that had only the parent's bytes then. Its
/// clone stays, and what flattening copies is no older than the rollback.
#[test]
fn what_flattening_copies_is_not_in_snapshots_from_before_a_rollback() {
    let shallow = Features(Features::DEFAULT.0 & !Features::DEEP_FLATTEN.0);
    for again in [false, true] {
        let mut world = cloned(shallow);
        let child = world.open("child");
        snapshot(&mut world, "child", "s");
        world.write(child, 0, &[2; 100]);
        snapshot(&mut world, "child", "t");
        world.write(child, 0, &[3; 100]);
        let done = world.manage(|pool| async move {
            pool.rollback_snapshot("child", "s", &mut |_, _| {}).await
        });
        done.expect("it is rolled back");
        world.compare_maps("child");
        if again {
            snapshot(&mut world, "child", "u");
        }
        let done = world.manage(|pool| async move { pool.flatten("child", &mut |_, _| {}).await });
        done.expect("it is flattened");
        let expected = if again { ObjectState::ExistsClean } else { ObjectState::Exists };
        assert_eq!(state(&mut world, "child", 0), expected);
        world.compare_maps("child");
        assert_eq!(world.read(child, 0, 100), [1; 100]);
    }
}

#[test]
fn zeroes_behind_what_is_copied_up_leave_the_object_clean() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 1000]);
    let made = world.manage(|pool| async move {
        pool.create_snapshot("vm", "a").await?;
        pool.clone_image(&pool, "vm", "a", "child", &small(Features::DEFAULT)).await?;
        pool.create_snapshot("child", "s").await
    });
    made.expect("the clone is made");
    let child = world.open("child");
    world.request(child, Op::Trim, 2000, 500);
    assert_eq!(state(&mut world, "child", 0), ObjectState::ExistsClean);
    world.compare_maps("child");
    world.request(child, Op::Trim, 500, 1000);
    world.compare_maps("child");
}

#[test]
fn an_object_that_is_rolled_back_to_what_it_is_counts_as_changed() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open("vm");
    world.write(vm, 0, &[1; 1000]);
    let rolled = world.manage(|pool| async move {
        pool.create_snapshot("vm", "s").await?;
        pool.create_snapshot("vm", "t").await?;
        pool.rollback_snapshot("vm", "s", &mut |_, _| {}).await
    });
    rolled.expect("it is rolled back");
    world.compare_maps("vm");
}
