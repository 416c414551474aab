//! What other clients ask the owner of the lock for, as librbd does.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use fieldstone_block::{Backend, Nanos, Op};
use fieldstone_cluster_model::Delays;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{Cluster, ObjectName, SnapId, WatchEvent};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rbd::format::notice::{ClientId, Notice, RequestId, decode_response};
use fieldstone_rbd::format::request::{Request, Work};
use fieldstone_rbd::format::{Features, lock, names};
use fieldstone_rbd::{ImageSpec, RbdError};

use super::clones::{cloned, small};
use super::world::{World, assert_bytes, spec};

const RESTART: i32 = -85;

/// Asks the owner, and waits for the end. `None` if no owner takes the request.
pub async fn ask(
    cluster: Cluster,
    header: ObjectName,
    work: Work,
    number: Option<u64>,
) -> Option<i32> {
    let watch = cluster.watch(header.clone()).await.expect("the header is there");
    let (client, _) = cluster.identity().await.expect("the client lives");
    let client = ClientId { client, watch: watch.cookie() };
    let id = number.map(|request| RequestId { client, request });
    let mut end = pin!(async {
        loop {
            let (notify_id, payload) = match watch.next().await {
                WatchEvent::Notified { notify_id, payload, .. } => (notify_id, payload),
                WatchEvent::Interrupted(_) => continue,
                WatchEvent::Lost(errno) => panic!("the watch is lost: {errno}"),
            };
            watch.acknowledge(notify_id, Bytes::new());
            match Notice::decode(&payload) {
                Ok(Notice::AsyncComplete(told, result)) if Some(told) == id => return result,
                _ => {}
            }
        }
    });
    let payload = Notice::Request(Request { id, work }).encode();
    let mut asked = pin!(cluster.notify(header, payload, 30_000));
    let (mut answer, mut told) = (None, None);
    poll_fn(|context| {
        if answer.is_none()
            && let Poll::Ready(reply) = asked.as_mut().poll(context)
        {
            // An owner that has died does not answer.
            let answers = reply.map(|reply| reply.acknowledged).unwrap_or_default();
            let mut answers =
                answers.iter().filter_map(|(_, bytes)| decode_response(bytes).ok().flatten());
            answer = Some(answers.next());
        }
        if told.is_none()
            && let Poll::Ready(result) = end.as_mut().poll(context)
        {
            told = Some(result);
        }
        match (answer, told) {
            (Some(Some(0)), Some(result)) => Poll::Ready(Some(result)),
            (Some(Some(0)), None) if id.is_some() => Poll::Pending,
            (Some(answer), _) => Poll::Ready(answer),
            (None, _) => Poll::Pending,
        }
    })
    .await
}

pub fn begin_ask(
    world: &mut World,
    image: &str,
    work: Work,
    number: Option<u64>,
) -> Rc<RefCell<Option<Option<i32>>>> {
    let header = ObjectName::new(PoolId(1), "", &names::header(&world.info(image).id));
    world.begin_client(|cluster| ask(cluster, header, work, number))
}

pub fn asked(world: &mut World, image: &str, work: Work, number: Option<u64>) -> Option<i32> {
    let done = begin_ask(world, image, work, number);
    world.run_until("the end of a request", |_| done.borrow().is_some());
    done.take().expect("it has ended")
}

pub fn exclusive(world: &mut World, image: &str) -> usize {
    world.open_with(ImageSpec { exclusive: true, ..spec(image) })
}

pub fn read_snapshot(world: &mut World, image: &str, name: &str) -> Vec<u8> {
    let past = ImageSpec { snapshot: Some(name.into()), ..spec(image) };
    let past = world.open_with(past);
    let size = world.size(past);
    let bytes = world.read(past, 0, size);
    world.close(past);
    bytes
}

pub fn named(name: &str, work: fn(String) -> Work) -> Work {
    work(name.to_owned())
}

#[test]
fn an_owner_that_keeps_the_lock_does_what_others_ask_for() {
    for id in [None, Some(7)] {
        let mut world = World::new(1, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = exclusive(&mut world, "vm");
        world.write(vm, 0, &[1; 10_000]);
        let ask = |world: &mut World, work| asked(world, "vm", work, id);
        let create = |name| named(name, Work::CreateSnapshot);
        assert_eq!(ask(&mut world, create("s")), Some(0));
        world.write(vm, 0, &[2; 10_000]);
        assert_bytes(&read_snapshot(&mut world, "vm", "s")[..10_000], &[1; 10_000]);
        assert_eq!(ask(&mut world, create("s")), Some(-17), "there is one of this name");
        assert_eq!(ask(&mut world, named("s", Work::ProtectSnapshot)), Some(0));
        assert_eq!(ask(&mut world, named("s", Work::RemoveSnapshot)), Some(-16));
        assert_eq!(ask(&mut world, named("s", Work::UnprotectSnapshot)), Some(0));
        let snapshot = world.info("vm").snapshots[0].info.id;
        assert_eq!(ask(&mut world, Work::RenameSnapshot(snapshot, "t".into())), Some(0));
        assert_bytes(&read_snapshot(&mut world, "vm", "t")[..10_000], &[1; 10_000]);
        assert_eq!(ask(&mut world, named("s", Work::RemoveSnapshot)), Some(-2));
        assert_eq!(ask(&mut world, named("t", Work::RemoveSnapshot)), Some(0));
        assert_eq!(world.info("vm").snapshots, []);
        assert!(world.guest(vm).image.owns_lock(), "the lock has moved");
        world.compare_maps("vm");
    }
}

#[test]
fn an_owner_sets_the_size_and_flattens() {
    let mut world = cloned(Features::DEFAULT);
    let child = exclusive(&mut world, "child");
    world.write(child, 0, &[2; 100]);
    let resize = |size_bytes, may_shrink| Work::Resize { size_bytes, may_shrink };
    assert_eq!(asked(&mut world, "child", resize(60_000, false), Some(1)), Some(0));
    world.run_until("the new size", |world| world.size(child) == 60_000);
    assert_eq!(asked(&mut world, "child", resize(20_000, false), Some(2)), Some(-22));
    assert_eq!(asked(&mut world, "child", resize(20_000, true), Some(3)), Some(0));
    world.run_until("the new size", |world| world.size(child) == 20_000);
    assert_eq!(asked(&mut world, "child", named("s", Work::CreateSnapshot), Some(4)), Some(0));
    assert_eq!(asked(&mut world, "child", Work::Flatten, Some(5)), Some(0));
    assert_eq!(world.info("child").parent, None);
    assert_eq!(asked(&mut world, "child", Work::Flatten, Some(6)), Some(-22), "it is flat");
    let mut expected = vec![1; 20_000];
    expected[..100].fill(2);
    assert_bytes(&world.read(child, 0, 20_000), &expected);
    assert_bytes(&read_snapshot(&mut world, "child", "s"), &expected);
    world.compare_maps("child");
    assert!(world.guest(child).image.owns_lock(), "the lock has moved");
}

#[test]
fn our_commands_ask_an_owner_that_keeps_the_lock() {
    let mut world = cloned(Features::DEFAULT);
    let child = exclusive(&mut world, "child");
    world.write(child, 0, &[2; 100]);
    let done = world.manage(|pool| async move {
        let id = pool.create_snapshot("child", "s").await?;
        assert_eq!(pool.info("child").await?.snapshot_named("s")?.info.id, id);
        let again = pool.create_snapshot("child", "s").await;
        assert_eq!(again.map_err(|error| error.errno()), Err(Some(Errno::EEXIST)));
        pool.protect_snapshot("child", "s").await?;
        let removed = pool.remove_snapshot("child", "s").await;
        assert_eq!(removed.map_err(|error| error.errno()), Err(Some(Errno::EBUSY)));
        pool.unprotect_snapshot("child", "s").await?;
        pool.resize("child", 20_000, true, &mut |_, _| {}).await?;
        pool.flatten("child", &mut |_, _| {}).await?;
        // What an owner does not do for others fails as before.
        let rolled = pool.rollback_snapshot("child", "s", &mut |_, _| {}).await;
        assert!(matches!(rolled, Err(RbdError::Locked { .. })), "{rolled:?}");
        pool.remove_snapshot("child", "s").await
    });
    assert_eq!(done, Ok(()));
    let header = world.info("child");
    assert_eq!((header.size_bytes, header.parent, header.snapshots.len()), (20_000, None, 0));
    assert!(world.guest(child).image.owns_lock(), "the lock has moved");
    let mut expected = vec![1; 20_000];
    expected[..100].fill(2);
    assert_bytes(&world.read(child, 0, 20_000), &expected);
    world.compare_maps("child");
}

#[test]
fn what_an_owner_does_not_do_is_said() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let work = || named("s", Work::CreateSnapshot);
    assert_eq!(asked(&mut world, "vm", work(), Some(1)), None, "there is no owner");
    let vm = exclusive(&mut world, "vm");
    let header = ObjectName::new(PoolId(1), "", &names::header(&world.info("vm").id));
    // To rebuild the object map.
    let done = world.begin_client(|cluster| async move {
        cluster.notify(header, Notice::OwnerRequest(10).encode(), 5_000).await
    });
    world.run_until("an answer", |_| done.borrow().is_some());
    let reply = done.take().expect("it has come").expect("it is one");
    let answers = reply.acknowledged.iter().map(|(_, bytes)| decode_response(bytes));
    assert_eq!(answers.collect::<Vec<_>>(), [Ok(Some(-95))]);
    assert!(world.guest(vm).image.owns_lock());
}

/// A request that is sent twice with one id is carried out once, and its end is told twice.
#[test]
fn a_request_that_comes_again_is_not_carried_out_again() {
    for pause in [0, 200] {
        let mut world = World::new(1, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = exclusive(&mut world, "vm");
        world.write(vm, 0, &[1; 100]);
        let header = ObjectName::new(PoolId(1), "", &names::header(&world.info("vm").id));
        let client = ClientId { client: 4711, watch: 1 };
        let id = Some(RequestId { client, request: 1 });
        let heard = Rc::new(RefCell::new(0));
        let (count, listened) = (Rc::clone(&heard), header.clone());
        let _listener = world.begin_client(|cluster| async move {
            let watch = cluster.watch(listened).await.expect("the header is there");
            loop {
                let event = watch.next().await;
                let WatchEvent::Notified { notify_id, payload, .. } = event else { return };
                watch.acknowledge(notify_id, Bytes::new());
                if let Ok(Notice::AsyncComplete(told, 0)) = Notice::decode(&payload) {
                    assert_eq!(Some(told), id);
                    *count.borrow_mut() += 1;
                }
            }
        });
        let notify = |world: &mut World| {
            let work = named("s", Work::CreateSnapshot);
            let payload = Notice::Request(Request { id, work }).encode();
            let header = header.clone();
            world
                .begin_client(|cluster| async move { cluster.notify(header, payload, 5_000).await })
        };
        let first = notify(&mut world);
        world.run_for(Nanos::from_ms(pause));
        let second = notify(&mut world);
        world.run_until("the answers", |_| first.borrow().is_some() && second.borrow().is_some());
        for reply in [first, second] {
            let reply = reply.take().expect("it has come").expect("it is one");
            let mut answers =
                reply.acknowledged.iter().filter_map(|(_, bytes)| decode_response(bytes).ok()?);
            assert_eq!(answers.next(), Some(0));
        }
        world.run_for(Nanos::from_ms(2_000));
        assert_eq!(world.info("vm").snapshots.len(), 1);
        assert_eq!(*heard.borrow(), if pause == 0 { 1 } else { 2 });
    }
}

/// Slots of the image that writes fill with the number of the write.
const SLOTS: u64 = 8;
const SLOT_BYTES: u64 = 3_000;

#[test]
fn a_snapshot_has_all_that_was_answered_before_and_nothing_from_later() {
    for seed in 0..12 {
        let mut world = World::new(seed, Delays::USUAL);
        world.create("vm", small(Features::DEFAULT));
        let vm = exclusive(&mut world, "vm");
        let submit = |world: &mut World, slot: u64, value: u8| {
            let data = vec![value; SLOT_BYTES as usize].into();
            world.submit(vm, Op::Write, slot * SLOT_BYTES, SLOT_BYTES, data)
        };
        let mut values = [1_u8; SLOTS as usize];
        let mut ids: Vec<_> = (0..SLOTS).map(|slot| submit(&mut world, slot, 1)).collect();
        let mut go_on = |world: &mut World, values: &mut [u8]| {
            for slot in 0..SLOTS as usize {
                let is_done = world.take(vm, ids[slot]).is_some_and(|result| result.is_ok());
                if is_done && values[slot] < 250 {
                    values[slot] += 1;
                    ids[slot] = submit(world, slot as u64, values[slot]);
                }
            }
        };
        let until = world.model.now().plus(Nanos::from_ms(20 + seed));
        while world.step(until) {
            go_on(&mut world, &mut values);
        }
        let begun = values;
        let done = begin_ask(&mut world, "vm", named("s", Work::CreateSnapshot), Some(seed));
        world.run_until("the snapshot", |world| {
            go_on(world, &mut values);
            done.borrow().is_some()
        });
        assert_eq!(done.take(), Some(Some(0)));
        let (ended, bytes) = (values, read_snapshot(&mut world, "vm", "s"));
        for slot in 0..SLOTS as usize {
            let found = &bytes[slot * SLOT_BYTES as usize..][..SLOT_BYTES as usize];
            // The value in flight at the beginning may be missing, and that at the end be there.
            let allowed = begun[slot] - 1..=ended[slot];
            assert!(allowed.contains(&found[0]), "slot {slot}: {} of {allowed:?}", found[0]);
            assert_bytes(found, &[found[0]; SLOT_BYTES as usize]);
        }
        let until = world.model.now().plus(Nanos::from_ms(50));
        while world.step(until) {
            go_on(&mut world, &mut values);
        }
        assert_bytes(&read_snapshot(&mut world, "vm", "s"), &bytes);
        world.close(vm);
        world.compare_maps("vm");
    }
}

#[test]
fn flattening_goes_on_beside_writes() {
    for seed in 0..12 {
        let mut world = cloned(Features::DEFAULT);
        let child = exclusive(&mut world, "child");
        let done = begin_ask(&mut world, "child", Work::Flatten, Some(seed));
        world.run_for(Nanos(seed * 300_000));
        let mut expected = vec![1; 40_000];
        for at in [100, 9_000, 21_000, 33_000] {
            world.write(child, at, &[7; 3_000]);
            expected[at as usize..at as usize + 3_000].fill(7);
        }
        world.run_until("the end", |_| done.borrow().is_some());
        assert_eq!(done.take(), Some(Some(0)));
        assert_eq!(world.info("child").parent, None);
        assert_bytes(&world.read(child, 0, 40_000), &expected);
        world.compare_maps("child");
    }
}

#[test]
fn a_request_waits_for_the_layers_and_then_they_may_keep_data_again() {
    let mut world = World::new(1, Delays::USUAL);
    world.create("vm", small(Features::DEFAULT));
    let vm = world.open_with(ImageSpec { exclusive: true, has_layers: true, ..spec("vm") });
    assert_eq!(world.guest(vm).image.shared(), None);
    let done = begin_ask(&mut world, "vm", named("s", Work::CreateSnapshot), Some(1));
    world.run_for(Nanos::from_ms(10_000));
    assert!(done.borrow().is_none(), "the snapshot does not wait");
    assert!(world.guest(vm).image.shared().is_some());
    world.write(vm, 100, &[3; 10]);
    world.guest(vm).image.settled();
    world.run_until("the snapshot", |_| done.borrow().is_some());
    assert_eq!(done.take(), Some(Some(0)));
    assert_eq!(world.guest(vm).image.shared(), None);
    assert_eq!(read_snapshot(&mut world, "vm", "s")[100..110], [3; 10]);
}

/// The owner dies, or loses its lock, at any moment: the image stays whole.
#[test]
fn an_owner_that_dies_or_loses_the_lock_amid_a_request_does_no_harm() {
    for steps in 0..60 {
        let kills = steps % 2 == 0;
        let mut world = cloned(Features::DEFAULT);
        let child = world.open("child");
        world.write(child, 0, &[2; 3_000]);
        let work = match steps % 3 {
            0 => Work::Flatten,
            1 => named("s", Work::CreateSnapshot),
            _ => Work::Resize { size_bytes: 20_000, may_shrink: true },
        };
        let done = begin_ask(&mut world, "child", work, Some(1));
        for _ in 0..steps {
            world.step(world.model.now().plus(Nanos::from_ms(100)));
        }
        if kills {
            world.kill(child);
        } else {
            let header = world.info("child");
            if let Some(owner) = header.lock.lockers.first() {
                let mut ops = ObjectOps::new();
                lock::break_lock(&mut ops, owner.client, &owner.cookie);
                world.tamper(&names::header(&header.id), ops);
            }
            world.run_until("the end", |_| done.borrow().is_some());
            let result = done.take().expect("it has ended");
            assert!(matches!(result, None | Some(0 | RESTART)), "{steps} steps: {result:?}");
        }
        let other = world.open("child");
        world.write(other, 9_000, &[3; 100]);
        let size = world.size(other);
        let mut expected = vec![1; size as usize];
        expected[..3_000].fill(2);
        expected[9_000..9_100].fill(3);
        assert_bytes(&world.read(other, 0, size), &expected);
        world.check_map("child");
        if steps % 3 == 2 {
            // The map may be longer than the image.
            continue;
        }
        let header = world.info("child");
        for snapshot in header.snapshots.iter().map(|snapshot| snapshot.info.id) {
            assert_eq!(world.compare_map(&header, snapshot, false), Ok(()), "{steps} steps");
        }
        assert_eq!(world.compare_map(&header, SnapId::HEAD, false), Ok(()), "{steps} steps");
    }
}
