//! A client that writes from several cores is blocked: no write of any of its cores comes later.
//!
//! This is what a takeover of an image relies on. The new owner blocks the address of the old one,
//! and takes it that nothing of the old owner arrives after that.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_crush::OsdId;
use fieldstone_rados::Nanos;
use fieldstone_rados::client::BranchId;
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use crate::maps::{OSDS, REPLICATED};
use crate::world::World;

/// Objects that both clients write: enough for all OSDs to lead some.
const OBJECTS: usize = 48;

fn object(number: usize) -> ObjectName {
    ObjectName::new(REPLICATED, "", &format!("disk.{number}"))
}

async fn write(cluster: &Cluster, number: usize, text: &'static str) -> Result<(), Errno> {
    let mut ops = ObjectOps::new();
    ops.write_full(Bytes::from_static(text.as_bytes()));
    cluster.operate(Operation::new(object(number), ops)).await.map(drop)
}

async fn read(cluster: &Cluster, number: usize) -> Bytes {
    let mut ops = ObjectOps::new();
    ops.read(0, 64);
    let reply = cluster.operate(Operation::new(object(number), ops)).await.expect("it is there");
    reply.ops[0].data.clone()
}

#[derive(Default)]
struct Seen {
    writes: Cell<u64>,
    shut_out: Cell<usize>,
    has_taken_over: Cell<bool>,
}

fn take_over(seed: u64, branches: usize) {
    let mut world = World::idle(seed, branches, Nanos(0));
    world.heal_all();
    let seen = Rc::new(Seen::default());
    for number in 0..OBJECTS {
        let (cluster, seen) = (world.nodes[0].cluster.clone(), Rc::clone(&seen));
        world.spawn(0, async move {
            loop {
                match write(&cluster, number, "old").await {
                    Ok(()) => seen.writes.set(seen.writes.get() + 1),
                    Err(errno) => {
                        assert_eq!(errno, Errno::ESHUTDOWN);
                        seen.shut_out.set(seen.shut_out.get() + 1);
                        return;
                    }
                }
            }
        });
    }
    for _ in 0..40 {
        world.run_for(50);
        world.move_a_link(0);
    }
    // A link that is not ready stays where it is: let the last random moves end.
    world.run_for(2_000);
    for osd in 0..OSDS {
        let core = osd as usize % (branches + 1);
        let branch = core.checked_sub(1).map(|branch| BranchId(branch as u16));
        let now = world.now;
        world.nodes[0].client.move_link(OsdId(osd), branch, now);
    }
    world.run_for(1_000);
    let counts = world.nodes[0].client.link_counts();
    // Not every OSD leads a group, so a core may be without a link.
    let used = counts.iter().filter(|&&count| count > 0).count();
    assert!(used > 1, "seed {seed}: links are not spread: {counts:?}");
    assert!(seen.writes.get() > 100, "seed {seed}: {} writes", seen.writes.get());

    let (old, new) = (world.nodes[0].cluster.clone(), world.nodes[1].cluster.clone());
    let taken = Rc::clone(&seen);
    world.spawn(1, async move {
        let (_, address) = old.identity().await.expect("it is there");
        let json =
            format!(r#"{{"prefix":"osd blocklist","blocklistop":"add","addr":"{address}"}}"#);
        let reply = new.command(json, Bytes::new()).await.expect("it is answered");
        assert_eq!(reply.result, 0);
        new.newest_map().await.expect("there is one");
        for number in 0..OBJECTS {
            write(&new, number, "new").await.expect("it may write");
        }
        taken.has_taken_over.set(true);
    });
    for _ in 0..100 {
        world.run_for(200);
        world.move_a_link(0);
    }
    assert!(seen.has_taken_over.get(), "seed {seed}: the takeover hangs");
    assert_eq!(seen.shut_out.get(), OBJECTS, "seed {seed}: writers of the old owner go on");
    assert!(world.is_done(0) && world.is_done(1));
    for number in 0..OBJECTS {
        let cluster = world.nodes[1].cluster.clone();
        world.spawn(1, async move {
            assert_eq!(read(&cluster, number).await, "new", "object {number}");
        });
    }
    world.run_for(5_000);
    assert!(world.is_done(1), "seed {seed}: the reads hang");
}

#[test]
fn a_blocked_client_is_blocked_on_all_cores() {
    for seed in 0..12 {
        take_over(seed, 1 + seed as usize % 3);
    }
}
