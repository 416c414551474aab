use super::*;
use crate::network::constants::Constants;
use crate::network::handlers::HandlerCosts;
use crate::network::load::{self, Window, latency};
use crate::network::world::World;

fn world(clients: u16, nodes: u16, policy: Policy) -> (Layout, World<NodeWrites>) {
    let layout = Layout { clients, nodes };
    let protocol = NodeWrites::new(layout, policy);
    (layout, World::new(Constants::default(), HandlerCosts::default(), layout, protocol))
}

fn replicate(strategy: Strategy, copies: u16) -> Policy {
    Policy::Replicate { strategy, copies }
}

#[test]
fn every_replica_has_the_record_and_each_hop_takes_time() {
    let mut last = [Ps::ZERO; 2];
    for copies in [1, 2, 4] {
        for strategy in Strategy::ALL {
            let (_, mut world) = world(1, copies, replicate(strategy, copies));
            let us = [8 << 10, 64 << 10].map(|bytes| latency(&mut world, bytes).expect("it ends"));
            for node in 0..copies {
                // Each record has a block more.
                assert_eq!(world.protocol.stored_bytes(node), 80 << 10, "{strategy} {node}");
            }
            assert_eq!(world.protocol.missed, []);
            assert!(us[1] > us[0]);
            if strategy == Strategy::Ring {
                assert!(us[0] > last[0] && us[1] > last[1], "{copies}: {us:?} after {last:?}");
                last = us;
            }
        }
    }
}

#[test]
fn nodes_of_the_model_make_parity() {
    let profile: Profile = "rs:3+2".parse().expect("a code");
    let (_, mut world) = world(1, 5, Policy::Stream(profile));
    let len = 2 * BLOCK_BYTES;
    latency(&mut world, 3 * len as u64).expect("it ends");
    assert_eq!(world.protocol.missed, []);
    let protocol = &world.protocol;
    let shards: Vec<Vec<u8>> = (0..5).map(|node| protocol.shard(node, 0, len)).collect();
    let (data, parity) = shards.split_at(3);
    assert!(data.iter().all(|shard| shard.iter().any(|byte| *byte != 0)));
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut expected = vec![vec![0; len]; 2];
    let mut outputs: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
    profile.code().encode().execute(&inputs, &mut outputs).expect("it fits");
    assert!(parity == expected);
}

/// The node's own deadlines end the wait, in the model's time.
#[test]
fn a_silent_node_is_named_when_the_head_has_waited() {
    let (_, mut world) = world(1, 3, replicate(Strategy::Ring, 3));
    world.protocol.silence(1);
    let time = latency(&mut world, 4096).expect("it ends");
    let names = [NodeIndex(1), NodeIndex(2)];
    assert_eq!(world.protocol.missed, names, "node 2 is behind node 1");
    let wait = Ps::ns(u64::from(WAIT_MS) * 1_000_000);
    assert!(time >= wait && time < wait + Ps::ns(200_000_000), "{time:?}");
    assert_eq!(world.protocol.stored_bytes(0), 2 * BLOCK_BYTES as u64);
}

#[test]
fn clients_write_at_the_same_time() {
    let (layout, mut world) = world(4, 4, replicate(Strategy::Tree, 4));
    let load = Window { bytes: 16 << 10, window: 4, writes: 200 };
    let measured = load::run(&mut world, layout, load, |_| {});
    assert_eq!(world.protocol.missed, []);
    assert!(measured.gb_per_second() > 1.0);
    for node in 0..4 {
        assert_eq!(world.protocol.stored_bytes(node), 200 * (20 << 10));
    }
    assert!(world.protocol.wires.is_empty() && world.protocol.works.is_empty());
}

/// The ring is 256 MiB, and a long write is several records.
#[test]
fn records_go_round_and_long_writes_are_several() {
    let (_, mut world) = world(1, 2, replicate(Strategy::Ring, 2));
    let mut bytes = 0;
    for _ in 0..100 {
        latency(&mut world, 3 << 20).expect("it ends");
        bytes += (3 << 20) + 6 * BLOCK_BYTES as u64;
        assert_eq!(world.protocol.missed, []);
        assert_eq!(world.protocol.stored_bytes(1), bytes);
    }
    assert!(bytes > RING_BYTES);
}

/// A long write is on all links of a route at once, so each further node adds the time of a
/// fragment instead of that of the write. The length of fragments that the product takes is the
/// best one, or nearly so.
#[test]
fn fragments_save_the_time_of_whole_writes() {
    let us = |strategy, copies, bytes: u64, fragment_bytes| {
        let layout = Layout { clients: 1, nodes: copies };
        let policy = replicate(strategy, copies);
        let protocol = NodeWrites::new(layout, policy).with_fragments(fragment_bytes);
        let (constants, costs) = (Constants::default(), HandlerCosts::default());
        let mut world = World::new(constants, costs, layout, protocol);
        let time = latency(&mut world, bytes).expect("it ends");
        assert_eq!(world.protocol.missed, []);
        for node in 0..copies {
            assert_eq!(world.protocol.stored_bytes(node), bytes + BLOCK_BYTES as u64);
        }
        assert!(world.protocol.wires.is_empty() && world.protocol.works.is_empty());
        time.0 as f64 / 1e6
    };
    for strategy in [Strategy::Ring, Strategy::Tree] {
        let whole = us(strategy, 4, 512 << 10, 0);
        let ours = us(strategy, 4, 512 << 10, FRAGMENT_BYTES);
        assert!(whole / ours > 2.1, "{strategy}: {whole} us, in fragments {ours} us");
        assert_eq!(us(strategy, 4, 4 << 10, 0), us(strategy, 4, 4 << 10, FRAGMENT_BYTES));
        for bytes in [64 << 10, 128 << 10, 256 << 10, 512 << 10] {
            for copies in [2, 4] {
                let ours = us(strategy, copies, bytes, FRAGMENT_BYTES);
                let lengths = [0, 8 << 10, 16 << 10, 64 << 10];
                let best = lengths.map(|len| us(strategy, copies, bytes, len));
                let best = best.into_iter().fold(f64::MAX, f64::min);
                assert!(ours < 1.08 * best, "{strategy} {copies} {bytes}: {ours} and {best} us");
            }
        }
    }
}

/// The parity of a long write is made fragment by fragment, and is that of the whole write.
#[test]
fn parity_is_made_of_fragments() {
    let profile: Profile = "rs:3+2".parse().expect("a code");
    let len = 25 * BLOCK_BYTES;
    let made = [0, FRAGMENT_BYTES].map(|fragment_bytes| {
        let layout = Layout { clients: 1, nodes: 5 };
        let policy = Policy::Stream(profile);
        let protocol = NodeWrites::new(layout, policy).with_fragments(fragment_bytes);
        let (constants, costs) = (Constants::default(), HandlerCosts::default());
        let mut world = World::new(constants, costs, layout, protocol);
        let time = latency(&mut world, 3 * len as u64).expect("it ends");
        assert_eq!(world.protocol.missed, []);
        let shards = (0..5).map(|node| world.protocol.shard(node, 0, len));
        (time, shards.collect::<Vec<_>>())
    });
    let [(whole, shards), (in_fragments, same)] = made;
    assert!(in_fragments < whole, "{in_fragments:?} {whole:?}");
    assert!(shards == same);
}
