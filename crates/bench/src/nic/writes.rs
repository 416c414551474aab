//! Figs. 4, 6 and 7: concurrent writes, latencies of writes, the steps of a packet.

use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::handlers::HandlerCosts;
use fieldstone_nic::network::load;
use fieldstone_nic::network::protocols::Shape;
use fieldstone_nic::network::protocols::flat::Flat;
use fieldstone_nic::network::protocols::rpc::Rpc;
use fieldstone_nic::network::protocols::rpc_rdma::RpcRdma;
use fieldstone_nic::network::protocols::spin_replicate::SpinReplicate;
use fieldstone_nic::network::spin::{Handler, Span};
use fieldstone_nic::network::world::{Layout, World};

use super::figure::{Figure, Line, Panel, Statement};
use super::measure::{in_parallel, latency_us, names, saturate, sizes};
use crate::row::Better;

const ONE: Layout = Layout { clients: 1, nodes: 1 };

/// The runs of handlers on a node for one write into an idle network.
fn spans(constants: &Constants, bytes: u64) -> Vec<Span> {
    let protocol = SpinReplicate::new(ONE, Shape::Ring, 1);
    let mut world = World::new(constants.clone(), HandlerCosts::default(), ONE, protocol);
    world.fabric.trace_handlers(ONE.node(0));
    load::latency(&mut world, bytes);
    let spin = world.fabric.spin(ONE.node(0));
    spin.and_then(|spin| spin.trace.clone()).unwrap_or_default()
}

/// The time that a write has an entry in the request table of an idle node: from its header
/// handler to the end of its completion handler.
fn time_in_table_ns(constants: &Constants, bytes: u64) -> f64 {
    let spans = spans(constants, bytes);
    let begin = spans.iter().map(|span| span.begin).min();
    let end = spans.iter().map(|span| span.end).max();
    begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_ns())
}

/// Fig. 4.
pub fn fig4() -> Figure {
    let constants = Constants::default();
    let sizes = sizes(1 << 10, 512 << 10);
    let by_law = in_parallel(&sizes, |bytes| {
        let per_ns = constants.link_gbit as f64 / 8.0 / *bytes as f64;
        per_ns * time_in_table_ns(&constants, *bytes)
    });
    let measured =
        in_parallel(&sizes, |bytes| saturate(&constants, Shape::Ring, 1, *bytes, 4).entries);
    let memory = |entries: &[f64]| -> Vec<Option<f64>> {
        entries.iter().map(|count| Some(count * constants.request_bytes as f64)).collect()
    };
    let panel = |name, title: &str, unit, law, real| Panel {
        name,
        title: title.to_owned(),
        x_title: "size of a write",
        positions: names(&sizes),
        unit,
        better: Better::Less,
        limit: None,
        lines: vec![Line::new("Little's law", law), Line::new("64 writes at a node", real)],
    };
    let some = |values: &[f64]| values.iter().map(|value| Some(*value)).collect();
    Figure {
        bench: "nic-fig4",
        title: "Concurrent writes at a node, and the memory of their descriptors",
        panels: vec![
            panel("entries", "writes in progress", "writes", some(&by_law), some(&measured)),
            panel("memory", "request table", "bytes", memory(&by_law), memory(&measured)),
        ],
        statements: vec![Statement {
            name: "concurrent-writes",
            text: "This allows us to serve up to 82 K concurrent writes for each storage node",
            place: "section III-B2",
            unit: "writes",
            paper: Some(82_000.0),
            ours: Some(constants.requests() as f64),
            comment: "6 MiB of entries of 77 bytes",
        }],
        notes: vec![
            "Little's law: writes of one size at 400 Gbit/s, times the time that one write has an \
             entry in an idle node. The other line is a run: 16 clients with 4 writes each, mean \
             entries of the table.",
        ],
    }
}

/// Fig. 6.
pub fn fig6() -> Figure {
    let constants = Constants::default();
    let sizes = sizes(1 << 10, 1 << 20);
    let c = &constants;
    let points = in_parallel(&sizes, |bytes| {
        [
            latency_us(c, ONE, Flat::new(ONE, 1), *bytes),
            latency_us(c, ONE, SpinReplicate::new(ONE, Shape::Ring, 1), *bytes),
            latency_us(c, ONE, Rpc::new(ONE), *bytes),
            latency_us(c, ONE, RpcRdma::new(ONE), *bytes),
            latency_us(c, ONE, Flat::without_flush(ONE, 1), *bytes),
        ]
    });
    let lines = ["Raw", "sPIN", "RPC", "RPC+RDMA", "Raw without flush"];
    let line = |(place, name): (usize, &'static str)| {
        Line::new(name, points.iter().map(|point| point[place]).collect())
    };
    let over_raw = points.iter().filter_map(|p| Some(p[1]? / p[0]? - 1.0)).fold(0.0, f64::max);
    let best = points.iter().filter_map(|p| Some(p[2]?.min(p[3]?) / p[1]?)).fold(0.0, f64::max);
    let last = points.last().and_then(|p| Some(p[1]? / p[0]? - 1.0));
    Figure {
        bench: "nic-fig6",
        title: "Latency of authenticated writes",
        panels: vec![Panel {
            name: "latency",
            title: "write latency".to_owned(),
            x_title: "size of a write",
            positions: names(&sizes),
            unit: "us",
            better: Better::Less,
            limit: None,
            lines: lines.into_iter().enumerate().map(line).collect(),
        }],
        statements: vec![
            Statement {
                name: "overhead-small",
                text: "For small writes, sPIN [...] shows higher overheads (up to 27%) than the \
                       raw writes",
                place: "section IV-A",
                unit: "%",
                paper: Some(27.0),
                ours: Some(100.0 * over_raw),
                comment: "post_ns was fitted to this",
            },
            Statement {
                name: "overhead-large",
                text: "For large writes, the per-request validation [...] becomes negligible",
                place: "section IV-A",
                unit: "%",
                paper: None,
                ours: last.map(|part| 100.0 * part),
                comment: "overhead at 1 MiB",
            },
            Statement {
                name: "over-alternatives",
                text: "latency improvements for writes (up to 2x)",
                place: "abstract",
                unit: "x",
                paper: Some(2.0),
                ours: Some(best),
                comment: "the better of RPC and RPC+RDMA over sPIN; rpc_dispatch_ns was fitted to \
                          this",
            },
        ],
        notes: vec![
            "Every line but the last answers when the data is in memory. \"Raw without flush\" is \
             what RDMA does by itself: it answers on arrival.",
        ],
    }
}

/// Fig. 7. The model's steps, each measured as the difference that it makes.
pub fn fig7() -> Figure {
    let constants = Constants::default();
    // With its headers, one packet of 2 KiB.
    let bytes = constants.packet_payload_bytes() - constants.dfs_header_bytes;
    let header = |constants: &Constants| {
        let spans = spans(constants, bytes);
        spans.into_iter().find(|span| span.handler == Handler::Header)
    };
    let begin_ns = |constants: &Constants| header(constants).map(|span| span.begin.as_ns());
    let all = begin_ns(&constants);
    let without = |other: Constants| Some(all? - begin_ns(&other)?);
    // A port that takes a packet in one beat: what is left out is 31 beats, in and to the cluster.
    let wide = Constants { port_bytes: 2048, ..constants.clone() };
    let beats = without(wide).map(|two| two / 2.0 + 1.0);
    let latency = without(Constants { l1_copy_ns: 0, ..constants.clone() });
    let steps = [
        ("packet to packet buffer", beats, 32.0),
        ("schedule", without(Constants { schedule_ns: 0, ..constants.clone() }), 2.0),
        ("copy to cluster", beats.zip(latency).map(|(a, b)| a + b), 43.0),
        ("dispatch", without(Constants { dispatch_ns: 0, ..constants.clone() }), 1.0),
        ("header handler", header(&constants).map(|s| (s.end - s.begin).as_ns()), 200.0),
    ];
    let paper = |(_, _, value): &(_, _, f64)| Some((*value, "Fig. 7, section IV-A"));
    let line = Line {
        name: "sPIN",
        values: steps.iter().map(|step| step.1).collect(),
        paper: steps.iter().map(paper).collect(),
    };
    let total: Option<f64> = steps.iter().map(|step| step.1).sum();
    Figure {
        bench: "nic-fig7",
        title: "Steps of a header packet of 2 KiB in PsPIN",
        panels: vec![Panel {
            name: "steps",
            title: "time of each step".to_owned(),
            x_title: "step",
            positions: steps.iter().map(|step| step.0.to_owned()).collect(),
            unit: "ns",
            better: Better::Less,
            limit: None,
            lines: vec![line],
        }],
        statements: vec![Statement {
            name: "total",
            text: "32 cycles [...] 2 cycles [...] 43 cycles [...] 1 ns [...] 200 cycles",
            place: "section IV-A",
            unit: "ns",
            paper: Some(278.0),
            ours: total,
            comment: "the sum; Table I gives the handler 211",
        }],
        notes: vec![
            "The steps before the handler are constants of the model. Each is measured here by a \
             run without it.",
        ],
    }
}
