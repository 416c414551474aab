//! Figs. 9, 10 and 11: replicated writes, goodput, durations of handlers.

use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::protocols::Shape;
use fieldstone_nic::network::spin::Handler;

use super::figure::{Figure, Line, Panel, Statement};
use super::measure::{
    OF_THE_PAPER, Point, Saturated, in_parallel, names, replicated_us, replication_lines, saturate,
    sizes,
};
use crate::row::Better;

/// Places of [`super::measure::REPLICATION`].
const FLAT: usize = 2;
const RING: usize = 4;
const PBT: usize = 5;

/// What a reader must know of the lines that are not the paper's.
const OURS: &str = "Hybrid and sPIN-Hybrid are ours. A cost model chooses their schedules from k, \
                    the size and the constants. Node-Ring and Node-PBT are the product's node, \
                    which passes on whole blocks of 4 KiB, in fragments of 32 KiB. The four take \
                    no part in the paper's statements.";

/// The better sPIN protocol at a point, and the best of the others.
fn spin_and_best(point: &Point) -> Option<(f64, f64)> {
    let least =
        |places: &[usize]| places.iter().filter_map(|place| point[*place]).min_by(f64::total_cmp);
    Some((least(&[RING, PBT])?, least(&[0, 1, 2, 3])?))
}

/// The largest factor by which sPIN is faster than the best alternative.
fn best_factor(points: &[Point]) -> f64 {
    let factors = points.iter().filter_map(spin_and_best).map(|(spin, best)| best / spin);
    factors.fold(0.0, f64::max)
}

/// The size at which two lines meet, between the last size at which the first is faster and the
/// next one: in KiB, on a straight line between the two.
fn crossover_kib(sizes: &[u64], points: &[Point]) -> Option<f64> {
    let gap = |place: usize| Some(points.get(place)?[FLAT]? - points.get(place)?[RING]?);
    let after = (1..sizes.len()).find(|place| gap(*place).is_some_and(|gap| gap > 0.0))?;
    let (low, high) = (gap(after - 1)?, gap(after)?);
    let (from, to) = (sizes[after - 1] as f64, sizes[after] as f64);
    Some((from + (to - from) * -low / (high - low)) / 1024.0)
}

fn latency_panel(name: &'static str, k: u16, sizes: &[u64], points: &[Point]) -> Panel {
    Panel {
        name,
        title: format!("write latency, k = {k}"),
        x_title: "size of a write",
        positions: names(sizes),
        unit: "us",
        better: Better::Less,
        limit: None,
        lines: replication_lines(points),
    }
}

/// Data that a full link carries with writes of a size, in Gbit/s.
fn line_rate(constants: &Constants, bytes: u64) -> f64 {
    let content = bytes + constants.dfs_header_bytes;
    let packets = content.div_ceil(constants.packet_payload_bytes());
    let wire = content + packets * constants.packet_header_bytes;
    constants.link_gbit as f64 * bytes as f64 / wire as f64
}

fn goodput(constants: &Constants, sizes: &[u64]) -> Panel {
    let kinds =
        [("k=1", Shape::Ring, 1), ("sPIN-Ring", Shape::Ring, 4), ("sPIN-PBT", Shape::Tree, 4)];
    let lines = kinds.map(|(name, shape, k)| {
        let values =
            in_parallel(sizes, |bytes| Some(saturate(constants, shape, k, *bytes, 8).gbit));
        Line::new(name, values)
    });
    let limit = sizes.iter().map(|bytes| Some(line_rate(constants, *bytes))).collect();
    Panel {
        name: "goodput",
        title: "goodput of a node".to_owned(),
        x_title: "size of a write",
        positions: names(sizes),
        unit: "Gbit/s",
        better: Better::More,
        limit: Some(constants.link_gbit as f64),
        lines: lines.into_iter().chain([Line::new("line rate less headers", limit)]).collect(),
    }
}

/// The first size, in KiB, from which on the ring has 98 % of the line rate.
fn line_rate_from_kib(panel: &Panel, sizes: &[u64]) -> Option<f64> {
    let reaches = |place: &usize| {
        let ring = panel.value("sPIN-Ring", *place).unwrap_or(0.0);
        panel.value("line rate less headers", *place).is_some_and(|rate| ring >= 0.98 * rate)
    };
    let below = (0..sizes.len()).rev().find(|place| !reaches(place));
    let first = below.map_or(0, |place| place + 1);
    sizes.get(first).map(|bytes| *bytes as f64 / 1024.0)
}

/// Fig. 9.
pub fn fig9() -> Figure {
    let constants = Constants::default();
    let sizes = sizes(1 << 10, 1 << 20);
    let of = |k| in_parallel(&sizes, |bytes| replicated_us(&constants, k, *bytes));
    let (two, four) = (of(2), of(4));
    let goodput_sizes: Vec<u64> = sizes.iter().copied().filter(|size| *size <= 256 << 10).collect();
    let goodput = goodput(&constants, &goodput_sizes);
    let statements = statements_of_9(&sizes, [&two, &four], &goodput);
    Figure {
        bench: "nic-fig9",
        title: "Replicated writes: latency and goodput",
        panels: vec![
            latency_panel("k2", 2, &sizes, &two),
            latency_panel("k4", 4, &sizes, &four),
            goodput,
        ],
        statements,
        notes: vec![
            "CPU and HyperLoop protocols have their best chunk size, found by trying powers of \
             two. Goodput: 16 clients with 8 writes each.",
            OURS,
        ],
    }
}

/// `sizes` are those of the latencies of k = 2 and 4; the goodput has the first of them.
fn statements_of_9(sizes: &[u64], [two, four]: [&[Point]; 2], goodput: &Panel) -> Vec<Statement> {
    let first = two.first().copied().unwrap_or_default();
    let flat_gain = first[FLAT].zip(first[RING]).map(|(flat, ring)| 100.0 * (1.0 - flat / ring));
    let last = goodput.positions.len().saturating_sub(1);
    let (ring, pbt) = (goodput.value("sPIN-Ring", last), goodput.value("sPIN-PBT", last));
    vec![
        Statement {
            name: "flat-small",
            text: "up to 27% faster than sPIN-Ring for 1 KiB writes and k=2",
            place: "section V-B1",
            unit: "%",
            paper: Some(27.0),
            ours: flat_gain,
            comment: "inject_ns was fitted to this",
        },
        Statement {
            name: "crossover",
            text: "RDMA-Flat provides the lowest latency for small writes (up to 16 KiB)",
            place: "section V-B1",
            unit: "KiB",
            paper: Some(16.0),
            ours: crossover_kib(sizes, two),
            comment: "k = 2, where RDMA-Flat and sPIN-Ring meet. A hop of the ring costs the \
                      header and payload handlers, two copies to a cluster and a link, and the \
                      first node's handlers cost more than a raw write: 0.94 us in all, in which \
                      400 Gbit/s sends 46 KiB. 16 KiB takes 0.33 us, hardly more than the two \
                      handlers of Table I; so the paper's client must inject more slowly than the \
                      link, or its hops do not wait for both handlers",
        },
        Statement {
            name: "over-best-k2",
            text: "sPIN-based solutions achieve up to 2x [...] lower latency (w.r.t. the best \
                   alternative) for k=2",
            place: "section V-B1",
            unit: "x",
            paper: Some(2.0),
            ours: Some(best_factor(two)),
            comment: "over RDMA-Flat alone the factor goes to 2 with the size; the best \
                      alternative of large writes is our RDMA-HyperLoop, which pays for its \
                      configuration once per write. What the paper's pays per chunk is not \
                      printed",
        },
        Statement {
            name: "over-best-k4",
            text: "sPIN-based solutions achieve up to [...] 2.16x lower latency (w.r.t. the best \
                   alternative) for [...] k=4",
            place: "section V-B1",
            unit: "x",
            paper: Some(2.16),
            ours: Some(best_factor(four)),
            comment: "as for k = 2",
        },
        Statement {
            name: "line-rate-from",
            text: "Starting from 8 KiB writes sPIN-Ring line rate",
            place: "section V-B2",
            unit: "KiB",
            paper: Some(8.0),
            ours: line_rate_from_kib(goodput, &sizes[..goodput.positions.len().min(sizes.len())]),
            comment: "98 % of the line rate. Not fitted: the port to the clusters moves 64 bytes \
                      per cycle, and each of the three handlers of a packet has a copy",
        },
        Statement {
            name: "pbt-half",
            text: "Writes replicated with sPIN-PBT achieve about half the bandwidth",
            place: "section V-B2",
            unit: "x",
            paper: Some(0.5),
            ours: ring.zip(pbt).map(|(ring, pbt)| pbt / ring),
            comment: "at the largest size",
        },
    ]
}

/// Fig. 10.
pub fn fig10() -> Figure {
    let constants = Constants::default();
    let factors: Vec<u16> = (1..=8).collect();
    let of = |bytes| in_parallel(&factors, |k| replicated_us(&constants, *k, bytes));
    let (small, large) = (of(4 << 10), of(512 << 10));
    let panel = |name, title: &str, points: &[Point]| Panel {
        name,
        title: title.to_owned(),
        x_title: "replication factor k",
        positions: factors.iter().map(u16::to_string).collect(),
        unit: "us",
        better: Better::Less,
        limit: None,
        lines: replication_lines(points),
    };
    let holds = |holds: bool| Some(f64::from(u8::from(holds)));
    let flat_is_best = |point: &Point| {
        let others =
            (0..OF_THE_PAPER).filter(|place| *place != FLAT).filter_map(|place| point[place]);
        point[FLAT].is_some_and(|flat| others.fold(f64::MAX, f64::min) >= flat)
    };
    let last = |points: &[Point], place: usize| points.last().and_then(|point| point[place]);
    let growth = large.first().and_then(|point| point[FLAT]).zip(last(&large, FLAT));
    Figure {
        bench: "nic-fig10",
        title: "Write latency over the replication factor",
        panels: vec![panel("4K", "4 KiB writes", &small), panel("512K", "512 KiB writes", &large)],
        statements: vec![
            Statement {
                name: "flat-small",
                text: "For small writes, RDMA-Flat has the lowest latency for any replication \
                       factor",
                place: "section V-B3",
                unit: "holds",
                paper: None,
                ours: holds(small.iter().all(flat_is_best)),
                comment: "1 if it holds for k = 1 to 8",
            },
            Statement {
                name: "flat-large",
                text: "RDMA-Flat [...] grows linearly with k",
                place: "section V-B3",
                unit: "x",
                paper: None,
                ours: growth.map(|(one, eight)| eight / one),
                comment: "512 KiB, k = 8 over k = 1",
            },
            Statement {
                name: "pbt-small",
                text: "pbt-based replication performs better than ring-based ones for small writes \
                       and large values of k",
                place: "section V-B3",
                unit: "x",
                paper: None,
                ours: last(&small, RING).zip(last(&small, PBT)).map(|(ring, pbt)| ring / pbt),
                comment: "4 KiB, k = 8: sPIN-Ring over sPIN-PBT; above 1 it holds",
            },
        ],
        notes: vec!["The paper prints no range of k; 1 to 8 is ours.", OURS],
    }
}

/// A row of Table I: name, shape, k, and of header, payload and completion handlers the durations
/// in nanoseconds and the IPC.
type HandlerRow = (&'static str, Shape, u16, [f64; 3], [f64; 3]);

/// Table I.
const TABLE_I: [HandlerRow; 3] = [
    ("k=1", Shape::Ring, 1, [211.0, 92.0, 107.0], [0.57, 0.60, 0.62]),
    ("sPIN-Ring", Shape::Ring, 4, [212.0, 193.0, 146.0], [0.57, 0.54, 0.44]),
    ("sPIN-PBT", Shape::Tree, 4, [214.0, 2106.0, 1487.0], [0.56, 0.06, 0.06]),
];

/// Size of the writes of Fig. 11: ours, as the paper prints none.
pub const FIG11_BYTES: u64 = 64 << 10;

/// Fig. 11 and Table I.
pub fn fig11() -> Figure {
    let bench = Constants::pspin_test_bench();
    let narrow = Constants { egress_gbit: 400, ..bench.clone() };
    let run = |constants: &Constants| {
        let kinds: Vec<(Shape, u16)> = TABLE_I.iter().map(|kind| (kind.1, kind.2)).collect();
        in_parallel(&kinds, |(shape, k)| saturate(constants, *shape, *k, FIG11_BYTES, 4))
    };
    let (wide, narrow) = (run(&bench), run(&narrow));
    let pbt = |nodes: &[Saturated]| nodes.get(2).and_then(|node| node.handlers[1].mean_ns());
    let statements = statements_of_11(pbt(&narrow), pbt(&wide));
    let budget = |gbit: f64| 32.0 * 2048.0 * 8.0 / gbit;
    let values = |nodes: &[Saturated], of: &dyn Fn(&Saturated, usize) -> Option<f64>| {
        let all = nodes.iter().flat_map(|node| (0..3).map(move |place| of(node, place)));
        all.collect::<Vec<_>>()
    };
    let mean = |node: &Saturated, place: usize| node.handlers[place].mean_ns();
    let ipc = |node: &Saturated, place: usize| node.handlers[place].ipc();
    let quoted = |column: usize| {
        let rows = TABLE_I.iter().flat_map(move |row| if column == 0 { row.3 } else { row.4 });
        rows.map(|value| Some((value, "Table I"))).collect::<Vec<_>>()
    };
    let names = TABLE_I
        .iter()
        .flat_map(|(name, ..)| Handler::ALL.map(|handler| format!("{name} {}", handler.name())));
    let positions: Vec<String> = names.collect();
    let panel = |name, title: &str, unit, better, lines| Panel {
        name,
        title: title.to_owned(),
        x_title: "handler",
        positions: positions.clone(),
        unit,
        better,
        limit: None,
        lines,
    };
    let flat = |value: f64| vec![Some(value); positions.len()];
    let durations = vec![
        Line { paper: quoted(0), ..Line::new("512 Gbit/s out", values(&wide, &mean)) },
        Line::new("400 Gbit/s out", values(&narrow, &mean)),
        Line::new("budget at 400 Gbit/s", flat(budget(400.0))),
        Line::new("budget at 200 Gbit/s", flat(budget(200.0))),
    ];
    let ipcs = vec![
        Line { paper: quoted(1), ..Line::new("512 Gbit/s out", values(&wide, &ipc)) },
        Line::new("400 Gbit/s out", values(&narrow, &ipc)),
    ];
    Figure {
        bench: "nic-fig11",
        title: "Durations of handlers under full load",
        panels: vec![
            panel("duration", "mean duration", "ns", Better::Less, durations),
            panel("ipc", "instructions per cycle", "IPC", Better::More, ipcs),
        ],
        statements,
        notes: vec![
            "PsPIN's test bench: the ports of its simulator in place of host and network. Its \
             outbound port waits a whole number of cycles per 64 bytes; at 400 Gbit/s this is 1 \
             in place of 1.19, so it sends 512 Gbit/s. Table I fits this rate better, which is \
             why the first line has it: so its numbers are no evidence. The second line has the \
             printed 400 Gbit/s. Each handler's cycles without waits are its instructions at the \
             IPC of k = 1.",
        ],
    }
}

/// PBT's payload handler behind an outbound port of 400 Gbit/s, as printed, and behind PsPIN's.
fn statements_of_11(at_400: Option<f64>, at_512: Option<f64>) -> Vec<Statement> {
    let statement = |name, ours, comment| Statement {
        name,
        text: "the longer duration of these handlers does not correspond to an higher complexity \
               but to a lower number of instructions per cycle [...] the egress network bandwidth \
               is limited (400 Gbit/s)",
        place: "section V-B4 and Table I",
        unit: "ns",
        paper: Some(2106.0),
        ours,
        comment,
    };
    vec![
        statement(
            "pbt-payload-400-gbit",
            at_400,
            "the port sends 400 Gbit/s, as printed. 32 HPUs wait for a port that sends two packets \
             per packet that comes, and each takes 41 ns",
        ),
        statement(
            "pbt-payload-512-gbit",
            at_512,
            "the port sends 512 Gbit/s, as PsPIN's simulated port does at its 400 Gbit/s setting: \
             32 x 64 cycles. The setting was chosen by looking at Table I",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross_between_two_sizes() {
        let point = |flat, ring| {
            [None, None, Some(flat), None, Some(ring), None, Some(0.1), Some(0.1), None, None]
        };
        let points = [point(1.0, 2.0), point(2.0, 2.5), point(4.0, 3.0)];
        let sizes = [1024, 2048, 4096];
        // Half a microsecond below, one above: a third of the way from 2 to 4 KiB.
        let crossover = crossover_kib(&sizes, &points).expect("they cross");
        assert!((crossover - (2.0 + 2.0 / 3.0)).abs() < 1e-9, "{crossover}");
        assert_eq!(crossover_kib(&sizes[..2], &points[..2]), None);
    }

    #[test]
    fn a_statement_of_the_printed_rate_names_the_rate_of_its_run() {
        let statements = statements_of_11(Some(2600.0), Some(1928.0));
        for (statement, gbit, ours) in
            [(&statements[0], "400", 2600.0), (&statements[1], "512", 1928.0)]
        {
            assert!(statement.text.contains("400 Gbit/s"));
            assert!(statement.name.ends_with(&format!("-{gbit}-gbit")), "{}", statement.name);
            let setting = format!("the port sends {gbit} Gbit/s, as ");
            assert!(statement.comment.starts_with(&setting), "{}", statement.comment);
            assert_eq!(statement.ours, Some(ours));
        }
    }

    #[test]
    fn our_lines_come_last_and_the_hybrids_are_the_best_of_their_kind_or_nearly() {
        for panel in fig10().panels {
            let names: Vec<&str> = panel.lines.iter().map(|line| line.name).collect();
            assert_eq!(names[OF_THE_PAPER..8], ["Hybrid", "sPIN-Hybrid"]);
            assert_eq!(names[8..], ["Node-Ring", "Node-PBT"]);
            for place in 0..8 {
                let us = |line: &Line| line.values[place].unwrap();
                let least = |lines: &[Line]| lines.iter().map(us).fold(f64::MAX, f64::min);
                let (others, spin) = (least(&panel.lines[..4]), least(&panel.lines[4..6]));
                assert!(us(&panel.lines[6]) <= 1.05 * others, "{} at {place}", panel.name);
                assert!(us(&panel.lines[7]) <= 1.05 * spin, "{} at {place}", panel.name);
            }
        }
    }

    #[test]
    fn the_best_alternative_is_the_fastest_of_the_others() {
        let us = [9.0, 8.0, 6.0, 7.0, 3.0, 4.0, 1.0, 1.0, 0.5, 0.5];
        let point = us.map(Some);
        assert_eq!(spin_and_best(&point), Some((3.0, 6.0)));
        assert!((best_factor(&[point]) - 2.0).abs() < 1e-12);
    }
}
