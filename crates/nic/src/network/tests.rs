//! The model against sums by hand, and against what must hold in every run.

use proptest::prelude::*;

use super::constants::Constants;
use super::handlers::{HandlerCosts, Rs};
use super::load::{Window, latency, run};
use super::packet::HostId;
use super::protocols::Shape;
use super::protocols::cpu_replicate::CpuReplicate;
use super::protocols::flat::Flat;
use super::protocols::hyperloop::HyperLoop;
use super::protocols::inec_triec::InecTriec;
use super::protocols::rpc::Rpc;
use super::protocols::rpc_rdma::RpcRdma;
use super::protocols::spin_replicate::SpinReplicate;
use super::protocols::spin_triec::SpinTriec;
use super::spin::{Handler, Span};
use super::time::Ps;
use super::world::{Layout, Protocol, World};

const ONE: Layout = Layout { clients: 1, nodes: 1 };

fn world<P: Protocol>(constants: &Constants, layout: Layout, protocol: P) -> World<P> {
    World::new(constants.clone(), HandlerCosts::default(), layout, protocol)
}

/// Sums by hand, in picoseconds, for a write of 1 KiB: one packet.
struct Sums {
    /// From issue to the first byte on the client's link: post, doorbell, injection, PCIe read.
    to_wire: u64,
    /// A packet from the client's link to the end of its arrival. The switch waits for the header.
    wire: u64,
    /// An acknowledgement from its sender's link to the client's CPU, and the poll.
    answer: u64,
}

/// `bytes` on the wire.
fn sums(bytes: u64) -> Sums {
    let link = |bytes: u64| bytes * 20;
    let pcie = |bytes: u64| (bytes * 8000).div_ceil(541);
    let across = |bytes: u64| link(32) + 20_000 + link(bytes) + 20_000;
    Sums {
        to_wire: 60_000 + 200_000 + 240_000 + (200_000 + pcie(1024) + 200_000),
        wire: across(bytes),
        answer: across(32) + 50_000 + pcie(64) + 200_000 + 100_000,
    }
}

#[test]
fn a_raw_write_takes_the_sum_of_its_parts() {
    let mut world = world(&Constants::default(), ONE, Flat::new(ONE, 1));
    let sums = sums(1024 + 32);
    // Receive, write over PCIe, and a read behind it as a flush.
    let stored = 50_000 + 15_143 + 200_000 + 200_000;
    let expected = sums.to_wire + sums.wire + stored + sums.answer;
    assert_eq!(latency(&mut world, 1024), Some(Ps(expected)));
}

#[test]
fn a_spin_write_takes_the_sum_of_figure_7_and_its_handlers() {
    let protocol = SpinReplicate::new(ONE, Shape::Ring, 1);
    let mut world = world(&Constants::default(), ONE, protocol);
    let bytes = 1024 + 64 + 32u64;
    let sums = sums(bytes);
    let beats = bytes.div_ceil(64) * 1000;
    // Every handler: schedule, copy to the cluster, dispatch.
    let begin = 2000 + (11_000 + beats) + 1000;
    let header = begin + 211_000;
    let payload = begin + 92_000 + 15_143;
    // The completion handler flushes over PCIe and hands the answer to the outbound engine.
    let flush = (64u64 * 8000).div_ceil(541) + 400_000;
    let completion = begin + 107_000 + flush + 1000;
    let expected = sums.to_wire + sums.wire + beats + header + payload + completion + sums.answer;
    assert_eq!(latency(&mut world, 1024), Some(Ps(expected)));
}

#[test]
fn an_rpc_takes_the_sum_of_its_parts() {
    let mut world = world(&Constants::default(), ONE, Rpc::new(ONE));
    let sums = sums(1024 + 64 + 32);
    let pcie = |bytes: u64| (bytes * 8000).div_ceil(541);
    let received = 50_000 + pcie(1024) + pcie(64) + 200_000;
    let cpu = 1_250_000 + 300_000 + 1024 * 80 + 60_000;
    // The answer has 64 bytes of data, and is a message of the CPU: doorbell and injection.
    let answer = 200_000 + 240_000 + sums.answer + 64 * 20;
    let expected = sums.to_wire + sums.wire + received + cpu + answer;
    assert_eq!(latency(&mut world, 1024), Some(Ps(expected)));
}

/// At rest, nothing is lost and nothing is left, and no wire was faster than its rate.
fn check_rest<P: Protocol>(world: &World<P>, layout: Layout) -> Result<(), TestCaseError> {
    let fabric = &world.fabric;
    prop_assert_eq!(fabric.totals.sent, fabric.totals.received);
    for host in 0..layout.clients + layout.nodes {
        let host = HostId(host);
        let (up, down) = fabric.link(host);
        for channel in [up, down] {
            prop_assert_eq!(channel.credits, channel.capacity, "credits of {:?}", host);
            prop_assert!(channel.queue.is_empty());
            prop_assert!(channel.busy <= fabric.now(), "a wire was busier than time is long");
            // Each packet may round up by a picosecond.
            let least = channel.rate.time(channel.bytes);
            prop_assert!(channel.busy >= least && channel.busy.0 <= least.0 + channel.packets);
        }
        if let Some(spin) = fabric.spin(host) {
            prop_assert_eq!(spin.in_progress(), (0, 0, 0), "{:?}", host);
        }
    }
    Ok(())
}

pub(super) fn conserves<P: Protocol>(
    constants: &Constants,
    layout: Layout,
    load: Window,
    protocol: P,
) -> Result<World<P>, TestCaseError> {
    let mut world = world(constants, layout, protocol);
    let measured = run(&mut world, layout, load, |_| {});
    let limit = constants.link_gbit as f64 / 8.0;
    prop_assert!(measured.gb_per_second() <= limit, "{} GB/s", measured.gb_per_second());
    for write in 0..load.writes {
        let write = super::packet::WriteId(write);
        prop_assert!(world.latency(write).is_some(), "{:?} never ended", write);
    }
    check_rest(&world, layout)?;
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn nothing_is_lost_and_all_credits_return(
        bytes in 1u64..40_000, clients in 1u16..5, window in 1u32..6, k in 1u16..6,
        fast in any::<bool>(), buffer in 4096u64..20_000, chunk in 512u64..9000,
    ) {
        let gbit = if fast { 400 } else { 100 };
        let constants = Constants {
            link_gbit: gbit, egress_gbit: gbit, buffer_bytes: buffer, ..Constants::default()
        };
        let layout = Layout { clients, nodes: 8 };
        let load = Window { bytes, window, writes: 24 };
        let (c, l) = (&constants, layout);
        conserves(c, l, load, Flat::new(l, k))?;
        conserves(c, l, load, Rpc::new(l))?;
        conserves(c, l, load, RpcRdma::new(l))?;
        conserves(c, l, load, HyperLoop::new(l, k, chunk))?;
        for shape in [Shape::Ring, Shape::Tree] {
            conserves(c, l, load, CpuReplicate::new(l, shape, k, chunk))?;
            let spin = conserves(c, l, load, SpinReplicate::new(l, shape, k))?;
            for table in &spin.protocol.tables {
                prop_assert!(table.is_empty() && table.denied == 0);
            }
        }
        let rs = Rs { k, m: 2 };
        conserves(c, l, load, InecTriec::new(l, rs))?;
        for interleaved in [false, true] {
            let coded = conserves(c, l, load, SpinTriec::new(l, rs, interleaved))?;
            for pool in &coded.protocol.pools {
                prop_assert_eq!(pool.in_progress(), 0);
            }
        }
    }

    #[test]
    fn a_run_is_a_function_of_its_inputs(bytes in 1u64..100_000, window in 1u32..5) {
        let layout = Layout { clients: 3, nodes: 4 };
        let once = || {
            let protocol = SpinReplicate::new(layout, Shape::Tree, 4);
            let mut world = world(&Constants::default(), layout, protocol);
            world.fabric.trace_handlers(layout.node(0));
            let measured = run(&mut world, layout, Window { bytes, window, writes: 20 }, |_| {});
            let spans = world.fabric.spin(layout.node(0)).and_then(|spin| spin.trace.clone());
            (measured, spans, world.fabric.now(), world.fabric.totals)
        };
        prop_assert_eq!(once(), once());
    }
}

#[test]
fn handlers_of_a_message_run_in_order() {
    let layout = Layout { clients: 4, nodes: 4 };
    let protocol = SpinReplicate::new(layout, Shape::Tree, 4);
    let mut world = world(&Constants::default(), layout, protocol);
    for rank in 0..4 {
        world.fabric.trace_handlers(layout.node(rank));
    }
    run(&mut world, layout, Window { bytes: 30_000, window: 3, writes: 40 }, |_| {});
    for rank in 0..4 {
        let spin = world.fabric.spin(layout.node(rank)).expect("a PsPIN");
        let spans = spin.trace.as_deref().expect("it was traced");
        let of = |message, handler| -> Vec<&Span> {
            spans.iter().filter(|s| s.message == message && s.handler == handler).collect()
        };
        let headers: Vec<_> = spans.iter().filter(|s| s.handler == Handler::Header).collect();
        assert_eq!(headers.len(), 40);
        for header in headers {
            let payloads = of(header.message, Handler::Payload);
            let completions = of(header.message, Handler::Completion);
            assert_eq!((header.index, payloads.len(), completions.len()), (0, 15, 1));
            let completion = completions[0];
            assert_eq!(completion.index, 14, "on the last packet");
            for payload in payloads {
                assert!(header.reported <= payload.begin, "payload before header");
                assert!(payload.reported <= completion.begin, "completion before payload");
                assert!(payload.begin < payload.end && payload.end <= payload.reported);
            }
        }
        // A core runs one handler at a time.
        let mut by_core: Vec<&Span> = spans.iter().collect();
        by_core.sort_by_key(|span| (span.hpu, span.begin));
        for pair in by_core.windows(2) {
            assert!(pair[0].hpu != pair[1].hpu || pair[0].end <= pair[1].begin, "{pair:?}");
        }
    }
}

#[test]
fn a_full_packet_buffer_stops_the_senders() {
    let layout = Layout { clients: 4, nodes: 5 };
    let constants = Constants { packet_buffer_bytes: 8192, ..Constants::default() };
    let protocol = SpinTriec::new(layout, Rs { k: 3, m: 2 }, true);
    let load = Window { bytes: 60_000, window: 2, writes: 16 };
    let slow = conserves(&constants, layout, load, protocol).expect("all ends");
    let peak = slow.fabric.spin(layout.node(0)).expect("a PsPIN").buffered_peak;
    assert!(peak <= 8192 && peak > 4096, "{peak}");
}

#[test]
fn a_full_request_table_denies_and_clients_try_again() {
    let layout = Layout { clients: 6, nodes: 2 };
    let constants = Constants { request_memory_bytes: 2 * 77, ..Constants::default() };
    let load = Window { bytes: 20_000, window: 4, writes: 60 };
    let protocol = SpinReplicate::new(layout, Shape::Ring, 2);
    let world = conserves(&constants, layout, load, protocol).expect("all ends");
    let tables = &world.protocol.tables;
    assert!(tables[0].denied > 0 && tables[0].peak == 2, "{tables:?}");
    assert!(tables.iter().all(super::protocols::table::RequestTable::is_empty));
    assert!(tables[0].served >= 60, "every write was served in the end");
}

#[test]
fn an_empty_pool_sends_sequences_to_the_cpu() {
    let layout = Layout { clients: 2, nodes: 5 };
    let load = Window { bytes: 60_000, window: 3, writes: 12 };
    let rs = Rs { k: 3, m: 2 };
    for (accumulators, falls_back) in [(0, true), (2, true), (4096, false)] {
        let constants = Constants { accumulators, ..Constants::default() };
        let protocol = SpinTriec::new(layout, rs, true);
        let world = conserves(&constants, layout, load, protocol).expect("all ends");
        for pool in &world.protocol.pools {
            // 20,000 bytes and 64 of headers per chunk: ten packets.
            assert_eq!(pool.in_nic + pool.fallbacks, 12 * 10);
            assert!(pool.peak as u64 <= accumulators);
            assert_eq!(pool.fallbacks > 0, falls_back, "{pool:?}");
        }
    }
}

#[test]
fn littles_law_holds_for_the_request_table() {
    let layout = Layout { clients: 16, nodes: 1 };
    let protocol = SpinReplicate::new(layout, Shape::Ring, 1);
    let mut world = world(&Constants::default(), layout, protocol);
    world.fabric.trace_handlers(layout.node(0));
    let load = Window { bytes: 8192, window: 4, writes: 600 };
    let mut edges = Vec::new();
    run(&mut world, layout, load, |world| {
        let now = world.fabric.now();
        let table = &mut world.protocol.tables[0];
        edges.push((now, table.occupancy(now), table.served));
    });
    let [(begin, before, served_before), (end, after, served_after)] = edges[..] else {
        panic!("two edges");
    };
    let entries = (after - before) as f64 / (end - begin).0 as f64;
    let rate = (served_after - served_before) as f64 / (end - begin).as_ns();
    // The time in the table: from the end of the header handler's cycles to those of the
    // completion handler, which are 107 ns after its begin.
    let spin = world.fabric.spin(layout.node(0)).expect("a PsPIN");
    let spans = spin.trace.as_deref().expect("traced");
    let mut times = Vec::new();
    for header in spans.iter().filter(|span| span.handler == Handler::Header) {
        let mut others = spans.iter().filter(|span| span.message == header.message);
        let completion = others.find(|span| span.handler == Handler::Completion);
        let completion = completion.expect("it is complete");
        let closed = completion.begin + Ps::ns(107);
        if closed > begin && closed <= end {
            times.push((closed - (header.begin + Ps::ns(211))).as_ns());
        }
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let law = rate * mean;
    assert!((entries - law).abs() < 0.05 * law, "{entries} entries, {law} by Little's law");
}

#[test]
fn inputs_of_a_port_share_it() {
    let layout = Layout { clients: 2, nodes: 1 };
    let mut world = world(&Constants::default(), layout, Flat::new(layout, 1));
    // Both write 1 MiB at once: each gets half of the node's link, and both end together.
    let writes = [world.issue(HostId(0), 1 << 20), world.issue(HostId(1), 1 << 20)];
    while world.next_finished().is_some() {}
    let times = writes.map(|write| world.latency(write).expect("it ends").as_ns());
    let alone = 1_065_000.0 * 8.0 / 400.0;
    assert!((times[0] - times[1]).abs() < 100.0, "{times:?}");
    assert!(times[0] > 2.0 * alone && times[0] < 2.2 * alone, "{times:?}");
}

/// Section V-B4: the tree's handlers are slow because two packets leave for each that comes.
#[test]
fn the_trees_handlers_wait_for_the_egress() {
    let layout = Layout { clients: 16, nodes: 4 };
    let mean = |constants: &Constants, shape| {
        let mut world = world(constants, layout, SpinReplicate::new(layout, shape, 4));
        run(&mut world, layout, Window { bytes: 64 << 10, window: 4, writes: 320 }, |_| {});
        let spin = world.fabric.spin(layout.node(0)).expect("a PsPIN");
        spin.stats.map(|stats| stats.mean_ns().expect("it ran"))
    };
    let bench = Constants::pspin_test_bench();
    let [header, payload, _] = mean(&bench, Shape::Tree);
    // The paper: 214 and 2106.
    assert!((header - 211.0).abs() < 1.0, "{header}");
    assert!((1800.0..2200.0).contains(&payload), "{payload}");
    let [_, ring, _] = mean(&bench, Shape::Ring);
    assert!(ring < 200.0, "a ring does not wait: {ring}");
    // By Little's law, an egress of half the rate doubles the wait.
    let narrow = Constants { egress_gbit: 256, ..bench };
    let [_, slower, _] = mean(&narrow, Shape::Tree);
    assert!((1.8..2.2).contains(&(slower / payload)), "{payload} and {slower}");
}
