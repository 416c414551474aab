//! What handlers cost, beside Tables I and II of the paper. The compiler decides the last percents,
//! so the bounds are wide; `fieldstone bench nic-table1` and `nic-table2` print the numbers.

use fieldstone_nic::firmware::build;
use fieldstone_nic::firmware::engine::Handler;
use fieldstone_nic::firmware::hpu::Surroundings;
use fieldstone_nic::firmware::nic::Nic;
use fieldstone_nic::firmware::packet::Scheme;
use fieldstone_nic::firmware::profile::{
    Profile, ProfileError, authentication, handler_costs, payload_on_cluster, profile,
};
use fieldstone_nic::firmware::state::Multiply;
use fieldstone_nic::network::handlers::{Cost, HandlerCosts, Role, Rs};
use fieldstone_nic::network::spin::Handler as ModelHandler;
use fieldstone_nic::riscv::core::Costs;

use crate::coding::status;
use crate::writes::{CLIENT, NOW_NS, hpu, program, settings, write};

const RS32: Role = Role::Data(Rs { k: 3, m: 2 });
const RS63: Role = Role::Data(Rs { k: 6, m: 3 });

fn of(multiply: Multiply, role: Role) -> Option<Profile> {
    Some(profile(&program(multiply)?, multiply, role, 2016).unwrap())
}

/// The loop over a table of products has the paper's instructions, and its stalls are those of
/// loads.
#[test]
fn encoding_costs_what_table_ii_prints() {
    for role in [RS32, RS63] {
        let Some(ours) = of(Multiply::Table, role) else { return };
        let paper = HandlerCosts::default();
        let paper = if role == RS32 { paper.encode_2 } else { paper.encode_3 };
        let near = |ours: u32, paper: u32, percent: u32| {
            assert!(ours.abs_diff(paper) * 100 <= paper * percent, "{role:?}: {ours} {paper}");
        };
        near(ours.payload.instructions, paper.instructions, 15);
        near(ours.payload.cycles, paper.cycles, 10);
    }
}

/// Loads that no instruction waits for, and two bytes at a time.
#[test]
fn encoding_costs_less_in_another_order_and_by_pairs() {
    for role in [RS32, RS63] {
        let Some(table) = of(Multiply::Table, role) else { return };
        let scheduled = of(Multiply::Scheduled, role).unwrap().payload;
        let pairs = of(Multiply::Pairs, role).unwrap().payload;
        assert!(scheduled.cycles * 10 < table.payload.cycles * 7, "{scheduled:?}");
        assert!(pairs.cycles * 10 < scheduled.cycles * 7, "{pairs:?}");
    }
}

/// The last column, which costs most, takes at most 2 instructions per byte.
#[test]
fn encoding_of_planes_costs_two_instructions_per_byte() {
    for (role, most_per_byte) in [(RS32, 1.4), (RS63, 2.0)] {
        let Some(planes) = of(Multiply::Planes, role) else { return };
        let Cost { instructions, cycles } = planes.payload;
        assert!(f64::from(instructions) <= most_per_byte * 2016.0, "{role:?}: {instructions}");
        assert!(cycles * 10 < instructions * 11, "{role:?}: {instructions} {cycles}");
    }
}

/// Cores of a cluster wait for each other's banks: more of them, more cycles each, and as many
/// instructions. Eight cores take as long as the documents say, whatever the data and the starts.
#[test]
fn cores_of_a_cluster_wait_for_banks() {
    for (multiply, documented) in [
        (Multiply::Table, 22_718),
        (Multiply::Scheduled, 15_283),
        (Multiply::Pairs, 6_947),
        (Multiply::Planes, 4_294),
    ] {
        let Some(program) = program(multiply) else { return };
        let on =
            |cores, seed| payload_on_cluster(&program, multiply, RS63, 2016, cores, seed).unwrap();
        let alone = profile(&program, multiply, RS63, 2016).unwrap().payload;
        assert_eq!(on(1, 1), alone);
        let costs = [on(2, 1), on(4, 1), on(8, 1), on(8, 2)];
        eprintln!("{multiply:?}: {alone:?} {costs:?}");
        assert!(costs.iter().all(|cost| cost.instructions == alone.instructions));
        assert!(costs[0].cycles > alone.cycles);
        // With planes, cores wait so seldom that two may wait longer than four.
        let sorted = costs[..3].is_sorted_by_key(|cost| cost.cycles);
        assert!(sorted || multiply == Multiply::Planes);
        for cost in &costs[2..] {
            assert!(cost.cycles.abs_diff(documented) * 100 < documented, "{cost:?}");
        }
    }
}

#[test]
fn each_child_costs_and_a_known_capability_saves() {
    let store = |children| of(Multiply::Table, Role::Store { children });
    let Some(single) = store(0) else { return };
    let (ring, tree) = (store(1).unwrap(), store(2).unwrap());
    assert!(single.payload.cycles < ring.payload.cycles);
    assert!(ring.payload.cycles < tree.payload.cycles);
    for profile in [single, ring, tree] {
        assert!(profile.header.cycles * 2 < profile.header_new.cycles, "{profile:?}");
    }
}

/// The authentication alone, as `nic-table1` prints it: 120 cycles at most for a capability that
/// the core remembers. The paper's handler that validates a request takes 200.
#[test]
fn a_known_capability_is_checked_in_120_cycles() {
    let Some(with) = program(Multiply::Table) else { return };
    let without = build::program_without_authentication(Multiply::Table).unwrap();
    let [new, known] = authentication(&with, &without).unwrap();
    eprintln!("authentication: {new:?} new, {known:?} known");
    assert!(known.cycles <= 120, "{known:?}");
    // It compares 17 words, and a new one has a MAC of 16 rounds.
    assert!(known.instructions >= 4 * 17, "{known:?}");
    assert!(new.instructions >= known.instructions + 16 * 40, "{new:?} {known:?}");
    // The other firmware takes what this one refuses.
    let of = settings(0, Multiply::Table, 0, 0);
    let mut forged = write(Scheme::Single, 1, 100);
    forged.capability.mac[0] ^= 1;
    let packet = forged.packets().swap_remove(0);
    let answers = [&with, &without]
        .map(|program| status(&Nic::new(hpu(program, &of)).packet(CLIENT, &packet, NOW_NS)));
    assert_eq!(answers, [Some(1), Some(0)]);
}

#[test]
fn a_packet_that_cannot_be_is_an_error() {
    let Some(program) = program(Multiply::Table) else { return };
    let of = |bytes| profile(&program, Multiply::Table, Role::Store { children: 0 }, bytes);
    assert_eq!(of(0), Err(ProfileError::Bytes(0)));
    assert_eq!(of(2049), Err(ProfileError::Bytes(2049)));
    let code = Role::Data(Rs { k: 3, m: 5 });
    let refused = profile(&program, Multiply::Table, code, 100);
    assert!(refused.is_err(), "{refused:?}");
}

/// The network model gets the costs of each role: a header handler that finds children costs more
/// than one that has none to find.
#[test]
fn the_model_has_the_header_handlers_of_ring_and_tree() {
    let Some(program) = program(Multiply::Table) else { return };
    let costs = handler_costs(&program, Multiply::Table).unwrap();
    for children in 0..3u16 {
        let role = Role::Store { children };
        let alone = of(Multiply::Table, role).unwrap();
        assert_eq!(costs.of(ModelHandler::Header, role, 2016), alone.header, "{children}");
        assert_eq!(costs.of(ModelHandler::Completion, role, 2016), alone.completion);
    }
    assert!(costs.header[0].cycles < costs.header[1].cycles, "{:?}", costs.header);
    assert!(costs.header[1].cycles < costs.header[2].cycles, "{:?}", costs.header);
}

/// What the core's surroundings cost is what [`Hpu::set_costs`] says. The payload handler of a
/// single write has one atomic operation and one command of five words.
#[test]
fn surroundings_cost_what_is_set() {
    let Some(program) = program(Multiply::Table) else { return };
    let settings = settings(0, Multiply::Table, 0, 0);
    let payload = |surroundings| {
        let mut nic = Nic::new(hpu(&program, &settings));
        nic.engine_mut().set_costs(Costs::RI5CY, surroundings);
        for packet in write(Scheme::Single, 1, 100).packets() {
            nic.packet(CLIENT, &packet, NOW_NS);
        }
        let runs = nic.take_runs();
        let ran = runs.iter().find(|ran| ran.handler == Handler::Payload).unwrap();
        ran.counters.unwrap().memory_stalls
    };
    let usual = Surroundings::UNLIMITED;
    let stalls = payload(usual);
    let slow = |change: fn(&mut Surroundings)| {
        let mut slow = usual;
        change(&mut slow);
        payload(slow) - stalls
    };
    assert_eq!(slow(|s| s.atomic_extra_cycles += 10), 10);
    assert_eq!(slow(|s| s.unit_store_extra_cycles += 10), 50);
    assert_eq!(slow(|s| s.unit_issue_extra_cycles += 10), 10);
}
