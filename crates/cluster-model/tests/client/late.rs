//! A time limit for requests, and OSDs that get or execute them later.
//!
//! A write whose time is over has failed for its caller. It may reach its OSD long after that, even
//! over a connection that the client has given up. It must not come behind a newer write of the
//! same client that was acknowledged, and the client must know that it is under way.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::ObjectOps;

use crate::maps::REPLICATED;
use crate::world::World;

const OBJECTS: usize = 24;
const LIMIT: Nanos = Nanos::from_ms(2_000);
/// How long bytes to a slow OSD take.
const SLOW_MS: u64 = 9_000;

fn object(number: usize) -> ObjectName {
    ObjectName::new(REPLICATED, "", &format!("disk.{number}"))
}

async fn write(cluster: &Cluster, number: usize, text: &'static str) -> Result<(), Errno> {
    let mut ops = ObjectOps::new();
    ops.write_full(Bytes::from_static(text.as_bytes()));
    cluster.operate(Operation::new(object(number), ops)).await.map(drop)
}

/// Each object is written by a task. Gives a counter of the writes with the expected result.
fn write_all(
    world: &mut World,
    text: &'static str,
    expected: Result<(), Errno>,
) -> Rc<Cell<usize>> {
    let count = Rc::new(Cell::new(0));
    for number in 0..OBJECTS {
        let (cluster, count) = (world.nodes[0].cluster.clone(), Rc::clone(&count));
        world.spawn(0, async move {
            assert_eq!(write(&cluster, number, text).await, expected, "object {number}");
            count.set(count.get() + 1);
        });
    }
    count
}

fn check_all(world: &mut World, expected: &'static str) {
    for number in 0..OBJECTS {
        let cluster = world.nodes[1].cluster.clone();
        world.spawn(1, async move {
            let mut ops = ObjectOps::new();
            ops.read(0, 64);
            let reply = cluster.operate(Operation::new(object(number), ops)).await;
            assert_eq!(reply.expect("it is there").ops[0].data, expected, "object {number}");
        });
    }
    world.run_for(3_000);
    assert!(world.is_done(1), "the reads hang");
}

/// A world whose first client has connections to the OSDs of all objects, and writes that are slow.
/// Their time is over.
fn with_late_writes(seed: u64) -> World {
    let mut world = World::idle(seed, seed as usize % 3, LIMIT);
    world.heal_all();
    let written = write_all(&mut world, "first", Ok(()));
    world.run_for(1_900);
    assert_eq!(written.get(), OBJECTS);
    world.move_a_link(0);
    world.run_for(1_000);
    world.slow_down(0, SLOW_MS);
    let failed = write_all(&mut world, "late", Err(Errno::ETIMEDOUT));
    world.run_for(2_100);
    assert_eq!(failed.get(), OBJECTS);
    assert_eq!(world.nodes[0].cluster.late_writes(), OBJECTS);
    world
}

#[test]
fn a_late_write_comes_behind_no_newer_one() {
    for seed in 0..20 {
        let mut world = with_late_writes(seed);
        // The old bytes are on their way when newer writes go over new connections.
        world.break_links_to_osds(0);
        let newer = write_all(&mut world, "newer", Ok(()));
        world.run_for(1_900);
        assert_eq!(newer.get(), OBJECTS, "seed {seed}");
        assert_eq!(world.nodes[0].cluster.late_writes(), 0, "seed {seed}");
        world.run_for(SLOW_MS + 3_000);
        check_all(&mut world, "newer");
    }
}

#[test]
fn a_client_knows_of_its_late_writes() {
    for seed in 0..20 {
        let mut world = with_late_writes(seed);
        let settled = Rc::new(Cell::new(false));
        let (cluster, done) = (world.nodes[0].cluster.clone(), Rc::clone(&settled));
        world.spawn(0, async move {
            cluster.settled().await;
            done.set(true);
        });
        world.run_for(SLOW_MS - 3_000);
        assert!(!settled.get(), "seed {seed}: the writes have not arrived");
        check_all(&mut world, "first");
        world.run_for(SLOW_MS + 6_000);
        assert!(settled.get(), "seed {seed}: the writes are still late");
        assert_eq!(world.nodes[0].cluster.late_writes(), 0);
        check_all(&mut world, "late");
    }
}
