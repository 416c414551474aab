//! `docs/network-model.md`.

use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::protocols::Shape;
use fieldstone_nic::network::protocols::flat::Flat;
use fieldstone_nic::network::protocols::node::{NodeWrites, Policy, Strategy};
use fieldstone_nic::network::protocols::spin_replicate::SpinReplicate;
use fieldstone_nic::network::world::Layout;

use super::super::coding::{self, RS63};
use super::super::measure::{self, latency_us};
use super::super::{replication, writes};
use super::{MODEL, Shared, ours, paper, percent, says, statement, table, thousands};
use crate::table::number;

static FIG4: Shared = Shared::new(writes::fig4);
static FIG6: Shared = Shared::new(writes::fig6);
static FIG7: Shared = Shared::new(writes::fig7);
static FIG9: Shared = Shared::new(replication::fig9);
static FIG10: Shared = Shared::new(replication::fig10);
static FIG11: Shared = Shared::new(replication::fig11);
static FIG15: Shared = Shared::new(coding::fig15);
static FIG16: Shared = Shared::new(coding::fig16);

/// A time in microseconds, as the document prints it.
fn us(value: f64) -> String {
    format!("{} us", number(Some(value)))
}

/// Rows of the table of results for handlers of Table I, behind ports of 400 and 512 Gbit/s.
fn of_table_i(labels: [&str; 2], case: &str, paper: f64) -> [Vec<String>; 2] {
    let row = |label: &str, gbit: u32, chosen: &str| {
        let time = ours(&FIG11, &format!("duration/{case}/{gbit} Gbit/s out"));
        let (time_ns, paper_ns) = (format!("{time:.0} ns"), format!("{paper} ns"));
        [label, &paper_ns, &time_ns, &percent(time, paper), chosen].map(str::to_owned).to_vec()
    };
    [row(labels[0], 400, ""), row(labels[1], 512, "chosen")]
}

#[test]
fn the_table_of_results_is_that_of_the_figures() {
    let row = |figure: &Shared, name: &str, cells: [&str; 3], digits: usize, unit: &str| {
        let statement = statement(figure, name);
        let (value, paper) = (statement.ours.unwrap(), statement.paper.unwrap());
        let text = format!("{value:.digits$}{unit}");
        let [label, printed, fitted] = cells;
        [label, printed, &text, &percent(value, paper), fitted].map(str::to_owned).to_vec()
    };
    let mut first =
        row(&FIG4, "concurrent-writes", ["concurrent writes in 6 MiB (III-B2)", "82 K", ""], 0, "");
    first[2] = thousands(first[2].parse().unwrap());
    let mut rows = vec![
        first,
        row(
            &FIG6,
            "overhead-small",
            ["overhead of sPIN over raw writes (IV-A)", "up to 27 %", "yes"],
            1,
            " %",
        ),
        row(
            &FIG6,
            "over-alternatives",
            ["sPIN over RPC and RPC+RDMA (abstract)", "up to 2x", "yes"],
            2,
            "x",
        ),
        row(&FIG7, "total", ["steps of a header packet (Fig. 7)", "278 ns", ""], 0, " ns"),
        row(
            &FIG9,
            "flat-small",
            ["RDMA-Flat under sPIN-Ring, 1 KiB, k = 2 (V-B1)", "27 %", "yes"],
            1,
            " %",
        ),
        row(&FIG9, "crossover", ["RDMA-Flat is fastest up to (V-B1)", "16 KiB", ""], 0, " KiB"),
        row(
            &FIG9,
            "over-best-k2",
            ["sPIN over the best alternative, k = 2 (V-B1)", "2x", ""],
            2,
            "x",
        ),
        row(
            &FIG9,
            "over-best-k4",
            ["sPIN over the best alternative, k = 4 (V-B1)", "2.16x", ""],
            2,
            "x",
        ),
        row(
            &FIG9,
            "line-rate-from",
            ["sPIN-Ring at line rate from (V-B2)", "8 KiB", ""],
            0,
            " KiB",
        ),
        row(&FIG9, "pbt-half", ["goodput of PBT over ring (V-B2)", "about half", ""], 2, ""),
    ];
    for (labels, case, paper) in [
        (
            ["PBT's payload handler (Table I), port of 400 Gbit/s", "the same, port of 512 Gbit/s"],
            "sPIN-PBT PH",
            2106.0,
        ),
        (["PBT's completion handler (Table I), 400", "the same, 512"], "sPIN-PBT CH", 1487.0),
        (["ring's payload handler (Table I), 400", "the same, 512"], "sPIN-Ring PH", 193.0),
        (["ring's completion handler (Table I), 400", "the same, 512"], "sPIN-Ring CH", 146.0),
    ] {
        rows.extend(of_table_i(labels, case, paper));
    }
    let drop = statement(&FIG15, "drop").ours.unwrap();
    let drop = [
        "drop from 1 KiB to 512 KiB blocks (VI-C)",
        "12 %",
        &format!("rises by {:.0} %", -drop),
        "",
        "",
    ];
    rows.extend([
        row(&FIG15, "latency", ["sPIN-TriEC's latency, RS(6,3) (VI-C)", "up to 2x", ""], 2, "x"),
        row(&FIG15, "bandwidth-1K", ["bandwidth over INEC, 1 KiB (VI-C)", "29x", "yes"], 1, "x"),
        row(
            &FIG15,
            "bandwidth-512K",
            ["bandwidth over INEC, 512 KiB (VI-C)", "3.3x", "yes"],
            1,
            "x",
        ),
        drop.map(str::to_owned).to_vec(),
        row(
            &FIG16,
            "hpus-rs63",
            ["HPUs for RS(6,3) at 400 Gbit/s (VI-C), port of 400", "512", ""],
            0,
            "",
        ),
    ]);
    let head = "| statement of the paper | paper | model | difference | fitted |";
    assert_eq!(table(MODEL, head), rows);
}

#[test]
fn the_fitted_constants_are_those_of_the_model() {
    let constants = Constants::default().rows().into_iter();
    let fitted = constants.filter(|row| row.origin.kind() == "fitted");
    let expected: Vec<[String; 2]> =
        fitted.map(|row| [format!("`{}`", row.name), row.value.to_string()]).collect();
    let head = "| constant | value | fitted to | determines |";
    let printed = table(MODEL, head);
    assert_eq!(printed.iter().map(|row| &row[..2]).collect::<Vec<_>>(), expected);
    let raw = ours(&FIG6, "latency/1K/Raw");
    assert_eq!(printed[0][3], format!("the latency of a small write, {raw:.1} us"));
}

#[test]
fn what_is_said_of_small_writes_holds() {
    for size in ["1K", "4K", "64K", "1M"] {
        let of = |line: &str| ours(&FIG6, &format!("latency/{size}/{line}"));
        let saved = of("Raw") - of("Raw without flush");
        says(MODEL, &format!("raw writes without a flush: {saved:.1} us less"));
    }
    assert_eq!(ours(&FIG10, "statement/flat-small"), 1.0, "RDMA-Flat is the fastest for every k");
    let factor = |k: u16| {
        let of = |line: &str| ours(&FIG10, &format!("4K/{k}/{line}"));
        of("sPIN-Ring") / of("sPIN-PBT")
    };
    let first = (1..=8).find(|k| factor(*k) > 1.0).unwrap();
    assert!((first..=8).all(|k| factor(k) > 1.0));
    let last = factor(8);
    says(MODEL, &format!("the ring from k = {first} on (4 KiB, k = 8: {last:.2}x)"));
}

/// A hop of the ring, and what the handlers of the first node take longer than a raw write: at the
/// crossover, they are the time in which a client sends a second copy.
#[test]
fn the_crossover_is_where_a_copy_takes_as_long_as_a_hop_and_handlers() {
    let hop = ours(&FIG10, "4K/2/sPIN-Ring") - ours(&FIG10, "4K/1/sPIN-Ring");
    let crossover = statement(&FIG9, "crossover").ours.unwrap();
    let one = Layout { clients: 1, nodes: 1 };
    let constants = Constants::default();
    let bytes = (crossover * 1024.0) as u64;
    let spin = latency_us(&constants, one, SpinReplicate::new(one, Shape::Ring, 1), bytes).unwrap();
    let raw = latency_us(&constants, one, Flat::new(one, 1), bytes).unwrap();
    let handlers = spin - raw;
    let sent_kib = (hop + handlers) * 1e3 * constants.link_gbit as f64 / 8.0 / 1024.0;
    says(
        MODEL,
        &format!(
            "two copies to a cluster and a link: {hop:.2} us. The handlers of one node take \
             {handlers:.2} us longer than a raw write of this size. A client sends {sent_kib:.0} \
             KiB in these {:.2} us.",
            hop + handlers
        ),
    );
    assert!((sent_kib - crossover).abs() < 0.05 * crossover, "{sent_kib}");
}

#[test]
fn what_is_said_of_coding_holds() {
    let faster = |code: &str| {
        let of =
            |size: &str, line: &str| ours(&FIG15, &format!("latency/{size}/{line}-TriEC {code}"));
        let sizes = &FIG15.panels[0].positions;
        let slower = sizes.iter().filter(|size| of(size, "INEC") < of(size, "sPIN"));
        slower.cloned().collect::<Vec<_>>()
    };
    let range = |code: &str| {
        let sizes = faster(code);
        let (first, last) = (sizes.first().unwrap(), sizes.last().unwrap());
        format!("{} to {} KiB", first.trim_end_matches('K'), last.trim_end_matches('K'))
    };
    says(
        MODEL,
        &format!(
            "INEC is faster in the model from {} with RS(3,2), and from {} with RS(6,3).",
            range("RS(3,2)"),
            range("RS(6,3)")
        ),
    );
    let ring = ours(&FIG11, "duration/sPIN-Ring PH/512 Gbit/s out");
    let theirs = paper(&FIG11, "duration/sPIN-Ring PH/512 Gbit/s out");
    says(MODEL, &format!("({theirs:.0} ns in Table I, {ring:.0} here at 512 Gbit/s)"));
}

/// The latency of a write to the product's nodes, in fragments of this length, or whole (0).
fn node_us(strategy: Strategy, copies: u16, bytes: u64, fragment_bytes: u32) -> f64 {
    let layout = Layout { clients: 1, nodes: copies };
    let policy = Policy::Replicate { strategy, copies };
    let protocol = NodeWrites::new(layout, policy).with_fragments(fragment_bytes);
    latency_us(&Constants::default(), layout, protocol, bytes).unwrap()
}

#[test]
fn the_products_node_takes_what_the_document_says() {
    let head =
        "| k | size | sPIN-Ring | CPU-Ring | Node-Ring | whole | CPU-PBT | Node-PBT | whole |";
    let of = |k: u16, bytes: u64| {
        let size = &measure::names(&[bytes])[0];
        let line = |line: &str| us(ours(&FIG9, &format!("k{k}/{size}/{line}")));
        let whole = |strategy| us(node_us(strategy, k, bytes, 0));
        vec![
            k.to_string(),
            size.clone(),
            line("sPIN-Ring"),
            line("CPU-Ring"),
            line("Node-Ring"),
            whole(Strategy::Ring),
            line("CPU-PBT"),
            line("Node-PBT"),
            whole(Strategy::Tree),
        ]
    };
    let sizes = [4 << 10, 64 << 10, 512 << 10];
    let expected: Vec<Vec<String>> =
        [2, 4].into_iter().flat_map(|k| sizes.map(|bytes| of(k, bytes))).collect();
    assert_eq!(table(MODEL, head), expected);
    let lengths = |bytes| {
        [8, 16, 32, 64].map(|kib| number(Some(node_us(Strategy::Ring, 2, bytes, kib << 10))))
    };
    let list = |texts: [String; 4]| {
        let [a, b, c, d] = texts;
        format!("{a}, {b}, {c} and {d} us")
    };
    says(
        MODEL,
        &format!(
            "A ring of two takes, for 512 KiB in fragments of 8, 16, 32 and 64 KiB, {}, and for \
             64 KiB {}.",
            list(lengths(512 << 10)),
            list(lengths(64 << 10))
        ),
    );
}

/// What a write to the product's nodes would take if a part of its work took no time.
#[test]
fn the_causes_of_the_nodes_time_are_as_the_document_says() {
    let node = |constants: &Constants| {
        let point = measure::replicated_us(constants, 2, 512 << 10);
        point[measure::REPLICATION.iter().position(|name| *name == "Node-Ring").unwrap()].unwrap()
    };
    let constants = Constants::default();
    let more = node(&constants) - ours(&FIG9, "k2/512K/CPU-Ring");
    let fast = 1_000_000;
    let checksums = node(&Constants { checksum_gbit: fast, ..constants.clone() });
    let dispatch = node(&Constants { rpc_dispatch_ns: 0, ..constants.clone() });
    let copy = node(&Constants { copy_gbit: fast, ..constants.clone() });
    says(
        MODEL,
        &format!("Node-Ring and CPU-Ring for 512 KiB and k = 2 ({more:.0} us) has these causes"),
    );
    says(MODEL, &format!("without any checksums the write would take {checksums:.0} us."));
    says(MODEL, &format!("without dispatch, {dispatch:.0} us."));
    let copied = ours(&FIG9, "k2/512K/Node-Ring") - copy;
    says(MODEL, &format!("when it has all of it, {copied:.0} us,"));
}

#[test]
fn the_products_node_codes_as_fast_as_the_document_says() {
    let of = |size: &str, line: &str| {
        format!("{:.0}", ours(&FIG15, &format!("latency/{size}/{line}-TriEC RS(6,3)")))
    };
    let [node, spin, inec] = ["Node", "sPIN", "INEC"].map(|line| of("64K", line));
    let [node_large, spin_large, inec_large] =
        ["Node", "sPIN", "INEC"].map(|line| of("512K", line));
    let node_us = |kib: u64| coding::node_us(&coding::slow_network(), RS63, kib << 10).unwrap();
    let small = node_us(24);
    assert!(small == node_us(1) && small < node_us(25));
    says(
        MODEL,
        &format!(
            "With RS(6,3), a block of 64 KiB takes {node} us (sPIN-TriEC {spin} us, INEC-TriEC \
             {inec} us), and one of 512 KiB {node_large} us ({spin_large} and {inec_large} us). \
             Blocks up to 24 KiB take {small:.0} us"
        ),
    );
}
