//! Requests to the owner of the lock that come again.

use std::cell::RefCell;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::ObjectName;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::notice::{ClientId, Notice, RequestId, decode_response};
use fieldstone_rbd::format::request::{Request, Work};
use fieldstone_rbd::format::{Features, lock, names};

use super::clones::small;
use super::requests::{exclusive, named};
use super::world::World;

const ID: RequestId = RequestId { client: ClientId { client: 4711, watch: 1 }, request: 1 };

/// Sends a request with the number [`ID`]. Gives the answer; `None` inside: no owner takes it.
fn send(world: &mut World, work: Work) -> Rc<RefCell<Option<Option<i32>>>> {
    let header = ObjectName::new(PoolId(1), "", &names::header(&world.info("vm").id));
    let payload = Notice::Request(Request { id: Some(ID), work }).encode();
    world.begin_client(|cluster| async move {
        let reply = cluster.notify(header, payload, 5_000).await.expect("the header is there");
        let mut answers = reply.acknowledged.iter();
        answers.find_map(|(_, bytes)| decode_response(bytes).ok().flatten())
    })
}

/// As [`send`], and waits until the work is done as well.
fn answer(world: &mut World, work: Work) -> Option<i32> {
    let answer = send(world, work);
    world.run_until("the answer", |_| answer.borrow().is_some());
    world.run_for(Nanos::from_ms(2_000));
    answer.take().expect("it has come")
}

fn break_lock(world: &mut World) {
    let header = world.info("vm");
    let Some(owner) = header.lock.lockers.first() else { return };
    let mut ops = ObjectOps::new();
    lock::break_lock(&mut ops, owner.client, &owner.cookie);
    world.tamper(&names::header(&header.id), ops);
}

/// A client that hears that the work was broken off asks again with the same number.
#[test]
fn a_request_that_was_broken_off_is_begun_again() {
    for steps in 0..60 {
        let mut world = World::new(1, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = world.open("vm");
        world.write(vm, 0, &[1; 100]);
        let first = send(&mut world, named("s", Work::CreateSnapshot));
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        break_lock(&mut world);
        world.guest(vm).handle.interrupt();
        world.run_for(Nanos::from_ms(10_000));
        assert!(first.borrow().is_some());
        world.write(vm, 0, &[2; 100]);
        assert!(world.guest(vm).image.owns_lock());
        let again = answer(&mut world, named("s", Work::CreateSnapshot));
        assert_eq!(again, Some(0), "{steps} steps");
        assert_eq!(world.info("vm").snapshots.len(), 1, "{steps} steps");
    }
}

/// A client opens an image again, and its numbers begin again.
#[test]
fn a_number_that_comes_again_for_other_work_is_another_request() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    exclusive(&mut world, "vm");
    assert_eq!(answer(&mut world, named("a", Work::CreateSnapshot)), Some(0));
    assert_eq!(answer(&mut world, named("b", Work::CreateSnapshot)), Some(0));
    assert_eq!(world.info("vm").snapshots.len(), 2);
    // The same work, much later, is another request as well.
    assert_eq!(answer(&mut world, named("a", Work::RemoveSnapshot)), Some(0));
    world.run_for(Nanos::from_ms(300_000));
    assert_eq!(answer(&mut world, named("a", Work::CreateSnapshot)), Some(0));
    assert_eq!(world.info("vm").snapshots.len(), 2);
}

/// The owner makes a snapshot and dies before it tells. The next owner finds it made.
#[test]
fn our_command_takes_a_snapshot_that_the_last_owner_made_for_its_own() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let first = exclusive(&mut world, "vm");
    world.write(first, 0, &[1; 100]);
    let made = world.begin_manage(|pool| async move { pool.create_snapshot("vm", "s").await });
    let header = ObjectName::new(PoolId(1), "", &names::header(&world.info("vm").id));
    let is_made = |world: &World| {
        world.model.with_store(|store| {
            let object = store.object(&header).expect("there is a header");
            object.head.omap.keys().any(|key| key.starts_with(b"snapshot_"))
        })
    };
    world.run_until("the snapshot", |world| is_made(world));
    world.freeze(first);
    break_lock(&mut world);
    let _second = exclusive(&mut world, "vm");
    world.run_until("the command", |_| made.borrow().is_some());
    let made = made.take().expect("it has ended");
    assert_eq!(made, Ok(world.info("vm").snapshots[0].info.id));
}
