//! Tables I and II again, by the firmware: its handlers run on the model of a core, and the core
//! counts instructions and cycles.

use anyhow::Context;
use fieldstone_nic::firmware::build;
use fieldstone_nic::firmware::packet::DATA_BYTES;
use fieldstone_nic::firmware::profile::{self, Profile};
use fieldstone_nic::firmware::state::Multiply;
use fieldstone_nic::network::constants::Constants;
use fieldstone_nic::network::handlers::{Cost, Role, Rs};
use fieldstone_nic::network::protocols::Shape;
use fieldstone_nic::riscv::elf::Program;

use super::coding::hpus_needed;
use super::figure::{Figure, Line, Panel, Statement};
use super::measure::{in_parallel, saturate_with};
use crate::row::Better;

/// A row of a table of the paper, as printed. The arrays are header, payload and completion.
struct TableRow {
    name: &'static str,
    role: Role,
    duration_ns: [f64; 3],
    instructions: [f64; 3],
    ipc: [f64; 3],
}

const TABLE_I: [TableRow; 3] = [
    TableRow {
        name: "k=1",
        role: Role::Store { children: 0 },
        duration_ns: [211.0, 92.0, 107.0],
        instructions: [120.0, 55.0, 66.0],
        ipc: [0.57, 0.60, 0.62],
    },
    TableRow {
        name: "k=4, ring",
        role: Role::Store { children: 1 },
        duration_ns: [212.0, 193.0, 146.0],
        instructions: [120.0, 105.0, 65.0],
        ipc: [0.57, 0.54, 0.44],
    },
    TableRow {
        name: "k=4, PBT",
        role: Role::Store { children: 2 },
        duration_ns: [214.0, 2106.0, 1487.0],
        instructions: [120.0, 130.0, 82.0],
        ipc: [0.56, 0.06, 0.06],
    },
];

const TABLE_II: [TableRow; 2] = [
    TableRow {
        name: "RS(3,2)",
        role: Role::Data(Rs { k: 3, m: 2 }),
        duration_ns: [215.0, 16_681.0, 105.0],
        instructions: [120.0, 11_672.0, 35.0],
        ipc: [0.56, 0.7, 0.33],
    },
    TableRow {
        name: "RS(6,3)",
        role: Role::Data(Rs { k: 6, m: 3 }),
        duration_ns: [215.0, 23_018.0, 82.0],
        instructions: [120.0, 16_028.0, 35.0],
        ipc: [0.56, 0.7, 0.43],
    },
];

const HANDLERS: [&str; 3] = ["header", "payload", "completion"];

/// Data of a full packet in Table II.
const BYTES: usize = 2016;

fn program(multiply: Multiply) -> anyhow::Result<Program> {
    build::program(multiply)
        .context("this benchmark compiles firmware/ for the cores of the SmartNIC")
}

fn profiles(
    program: &Program,
    multiply: Multiply,
    rows: &[TableRow],
) -> anyhow::Result<Vec<Profile>> {
    rows.iter()
        .map(|row| Ok(profile::profile(program, multiply, row.role, BYTES)?))
        .collect::<anyhow::Result<_>>()
}

/// Header, payload and completion handlers of each profile.
fn costs(profiles: &[Profile]) -> impl Iterator<Item = Cost> {
    profiles.iter().flat_map(|profile| [profile.header, profile.payload, profile.completion])
}

/// The same, for capabilities that are new; only the header handler knows of it.
fn new_capability(profiles: &[Profile], of: fn(Cost) -> f64) -> Vec<Option<f64>> {
    profiles.iter().flat_map(|profile| [Some(of(profile.header_new)), None, None]).collect()
}

fn instructions(cost: Cost) -> f64 {
    f64::from(cost.instructions)
}

/// A cycle of the cores is 1 ns.
fn nanoseconds(cost: Cost) -> f64 {
    f64::from(cost.cycles)
}

fn ipc(cost: Cost) -> f64 {
    f64::from(cost.instructions) / f64::from(cost.cycles.max(1))
}

fn line(name: &'static str, profiles: &[Profile], of: fn(Cost) -> f64) -> Line {
    Line::new(name, costs(profiles).map(|cost| Some(of(cost))).collect())
}

/// Adds the paper's numbers to a line.
fn with_published(
    mut line: Line,
    rows: &[TableRow],
    table: &'static str,
    of: fn(&TableRow) -> [f64; 3],
) -> Line {
    line.paper = rows.iter().flat_map(of).map(|value| Some((value, table))).collect();
    line
}

fn panel(
    name: &'static str,
    title: &str,
    unit: &'static str,
    rows: &[TableRow],
    lines: Vec<Line>,
) -> Panel {
    let positions =
        rows.iter().flat_map(|row| HANDLERS.map(|handler| format!("{} {handler}", row.name)));
    Panel {
        name,
        title: title.to_owned(),
        x_title: "handler",
        positions: positions.collect(),
        unit,
        better: if unit == "IPC" { Better::More } else { Better::Less },
        limit: None,
        lines,
    }
}

const SETTING: &str = "The core is RI5CY at 1 GHz. Unless a table says that cores run at once, it \
                       has its L1 memory to itself: no conflicts of banks. There are no misses of \
                       the instruction cache. Commands are done at once. The paper's numbers have \
                       these waits. Handlers are compiled by Debian's GCC 12 (rv32imac, -O2), the \
                       paper's by PULP's GCC 7 (-O3, Xpulp).";

/// Table I.
///
/// # Errors
/// If the compiler for the cores is missing.
pub fn table1() -> anyhow::Result<Figure> {
    let rows = &TABLE_I;
    let program = program(Multiply::Table)?;
    let alone = profiles(&program, Multiply::Table, rows)?;
    let without = build::program_without_authentication(Multiply::Table)?;
    let authentication = profile::authentication(&program, &without)?;
    let bench = Constants::pspin_test_bench();
    let narrow = under_load(&Constants { egress_gbit: 400, ..bench.clone() })?;
    let wide = under_load(&bench)?;
    let loaded = |name, nodes: &[Loaded], of: fn(&Loaded) -> Option<f64>| {
        Line::new(name, nodes.iter().map(of).collect())
    };
    let of_table = |line, of| with_published(line, rows, "Table I", of);
    let known = "capability known";
    let new = "capability new";
    let counts = vec![
        of_table(line(known, &alone, instructions), |row| row.instructions),
        Line::new(new, new_capability(&alone, instructions)),
    ];
    let durations = vec![
        of_table(loaded(WIDE, &wide, |load| load.0), |row| row.duration_ns),
        loaded(NARROW, &narrow, |load| load.0),
        line("alone", &alone, nanoseconds),
        Line::new("alone, capability new", new_capability(&alone, nanoseconds)),
    ];
    let ipcs = vec![
        of_table(loaded(WIDE, &wide, |load| load.1), |row| row.ipc),
        loaded(NARROW, &narrow, |load| load.1),
        line("alone", &alone, ipc),
    ];
    let headers = alone.first().map(|profile| [profile.header_new, profile.header]);
    Ok(Figure {
        bench: "nic-table1",
        title: "Handlers of replication, by the firmware",
        panels: vec![
            panel("instructions", "instructions", "instructions", rows, counts),
            panel("duration", "duration", "ns", rows, durations),
            panel("ipc", "instructions per cycle", "IPC", rows, ipcs),
        ],
        statements: statements_of_table1(authentication, headers),
        notes: vec![
            SETTING,
            "Under load: the network model runs PsPIN's test bench, as nic-fig11, with these costs \
             in place of the paper's. 512 Gbit/s out is what PsPIN's simulated port sends at its \
             400 Gbit/s setting; the setting was chosen by looking at Table I.",
        ],
    })
}

/// The statement on authentication, next to ours: alone and with the rest of the header handler,
/// for a capability that is new to the core and for one that it remembers. Both arrays have the new
/// one first.
fn statements_of_table1(alone: [Cost; 2], headers: Option<[Cost; 2]>) -> Vec<Statement> {
    let statement = |name, ours, comment| Statement {
        name,
        text: "The DFS handler that validates client requests takes 200 cycles",
        place: "section IV-A",
        unit: "cycles",
        paper: Some(200.0),
        ours,
        comment,
    };
    let header = |place: usize| headers.map(|headers| nanoseconds(headers[place]));
    vec![
        statement(
            "authentication-known",
            Some(nanoseconds(alone[1])),
            "the authentication alone, of a capability that the core remembers: all 17 words of it \
             are compared, then expiry, rights and segments. It is what the header handler takes \
             more than that of a firmware that lets every capability pass. A core remembers 64",
        ),
        statement(
            "authentication-new",
            Some(nanoseconds(alone[0])),
            "the same for the first write with a capability on a core: its MAC is SipHash-2-4 with \
             128 bits",
        ),
        statement(
            "header-known",
            header(1),
            "the whole header handler: it also checks the headers and the place of the bytes, and \
             fills the message's entry. What the paper's handler computes is not printed",
        ),
        statement("header-new", header(0), "the same with a new capability"),
    ]
}

/// The names of the lines of saturated nodes, with the rate of the outbound port.
const WIDE: &str = "under load, 512 Gbit/s out";
const NARROW: &str = "under load, 400 Gbit/s out";

/// Mean duration and IPC of a handler on a saturated node.
type Loaded = (Option<f64>, Option<f64>);

/// Those of the handlers of Table I.
fn under_load(constants: &Constants) -> anyhow::Result<Vec<Loaded>> {
    let program = build::program(Multiply::Table)?;
    let costs = profile::handler_costs(&program, Multiply::Table)?;
    let kinds = [(Shape::Ring, 1), (Shape::Ring, 4), (Shape::Tree, 4)];
    let nodes = in_parallel(&kinds, |kind| {
        saturate_with(constants, costs.clone(), *kind, super::replication::FIG11_BYTES, 4)
    });
    Ok(nodes
        .iter()
        .flat_map(|node| node.handlers.each_ref().map(|stats| (stats.mean_ns(), stats.ipc())))
        .collect())
}

/// The ways to multiply, and their names in the figure.
const WAYS: [(Multiply, &str); 4] = [
    (Multiply::Table, "table of products"),
    (Multiply::Scheduled, "without stalls"),
    (Multiply::Pairs, "two bytes at a time"),
    (Multiply::Planes, "planes of bits, the dearest column"),
];

/// Cores of a cluster that run the payload handler at once.
const CORES_AT_ONCE: [usize; 4] = [1, 2, 4, 8];

/// Runs with other data and other distances between the cores.
const SEEDS: u64 = 8;

/// The payload handlers of the rows, each on 1, 2, 4 and 8 cores at once: means over the seeds.
fn on_clusters(
    program: &Program,
    multiply: Multiply,
    rows: &[TableRow],
) -> anyhow::Result<Vec<Cost>> {
    let settings: Vec<_> =
        rows.iter().flat_map(|row| CORES_AT_ONCE.map(|cores| (row.role, cores))).collect();
    in_parallel(&settings, |&(role, cores)| {
        let of = |seed| profile::payload_on_cluster(program, multiply, role, BYTES, cores, seed);
        let costs = (0..SEEDS).map(of).collect::<Result<Vec<Cost>, _>>()?;
        let mean = |of: fn(&Cost) -> u32| {
            let sum: u64 = costs.iter().map(|cost| u64::from(of(cost))).sum();
            ((sum + SEEDS / 2) / SEEDS) as u32
        };
        Ok(Cost { instructions: mean(|c| c.instructions), cycles: mean(|c| c.cycles) })
    })
    .into_iter()
    .collect()
}

/// The statements next to Table II. The costs are those of payload handlers on 8 cores of a cluster
/// at once: RS(3,2) and RS(6,3) by the table of products, as the paper's, RS(6,3) by two bytes at a
/// time, and by planes of bits.
fn statements_of_table2([rs32, rs63, pairs, planes]: [Option<Cost>; 4]) -> Vec<Statement> {
    let per_byte = |cost: Cost| instructions(cost) / BYTES as f64;
    let hpus = |cost: Cost| hpus_needed(nanoseconds(cost), 400.0);
    let statement = |name, text, unit, paper, ours, comment| Statement {
        name,
        text,
        place: "section VI-C",
        unit,
        paper: Some(paper),
        ours,
        comment,
    };
    let loop_rs63 = "and 7 for RS(6,3)";
    let hpus_rs63 = "for RS(6,3), a PsPIN configuration with 512 HPUs would allow sustaining 400 \
                     Gbit/s line rate";
    vec![
        statement(
            "loop-rs32",
            "issues 5 instructions per byte for RS(3,2)",
            "instructions per byte",
            5.0,
            rs32.map(per_byte),
            "the whole payload handler; the paper's Table II has 5.8",
        ),
        statement(
            "loop-rs63",
            loop_rs63,
            "instructions per byte",
            7.0,
            rs63.map(per_byte),
            "the whole payload handler; the paper's Table II has 7.95",
        ),
        statement(
            "loop-rs63-pairs",
            loop_rs63,
            "instructions per byte",
            7.0,
            pairs.map(per_byte),
            "two bytes at a time, with a table of 512 KiB for the node's column",
        ),
        statement(
            "loop-rs63-planes",
            loop_rs63,
            "instructions per byte",
            7.0,
            planes.map(per_byte),
            "rs-van with the data in planes of bits, another layout; the column that costs most",
        ),
        statement(
            "hpus-rs63",
            hpus_rs63,
            "HPUs",
            512.0,
            rs63.map(hpus),
            "the paper's algorithm; packets of 2 KiB every 41 ns. The paper's 23,018 ns need 562",
        ),
        statement(
            "hpus-rs63-pairs",
            hpus_rs63,
            "HPUs",
            512.0,
            pairs.map(hpus),
            "another algorithm, two bytes at a time",
        ),
        statement(
            "hpus-rs63-planes",
            hpus_rs63,
            "HPUs",
            512.0,
            planes.map(hpus),
            "another algorithm and another layout of the data, planes of bits; the column that \
             costs most",
        ),
    ]
}

/// Instructions per byte of the payload handlers of data nodes: those of the rows, and of the code
/// with elements.
fn per_byte(ways: &[(&'static str, Vec<Profile>)], zigzag: &[Option<Cost>]) -> Panel {
    let rows = TABLE_II.iter().map(|row| row.name.to_owned());
    let line = |((name, profiles), zigzag): (&(&'static str, Vec<Profile>), &Option<Cost>)| {
        let of_rows = profiles.iter().map(|profile| (profile.payload, BYTES));
        let of_zigzag = zigzag.map(|cost| (cost, DATA_BYTES));
        let all = of_rows.map(Some).chain([of_zigzag]);
        let value = |(cost, bytes): (Cost, usize)| instructions(cost) / bytes as f64;
        Line::new(name, all.map(|cost| cost.map(value)).collect())
    };
    Panel {
        name: "instructions-per-byte",
        title: "instructions per byte of a data node's payload handler".to_owned(),
        x_title: "code",
        positions: rows.chain([format!("{ZIGZAG}, mean of all elements")]).collect(),
        unit: "instructions per byte",
        better: Better::Less,
        limit: None,
        lines: ways.iter().zip(zigzag).map(line).collect(),
    }
}

/// The code with elements that the figure has beside Reed-Solomon.
const ZIGZAG: &str = "zigzag:4+2";

/// Table II.
///
/// # Errors
/// If the compiler for the cores is missing.
pub fn table2() -> anyhow::Result<Figure> {
    let rows = &TABLE_II;
    let mut ways = Vec::new();
    let mut clusters = Vec::new();
    let mut zigzag = Vec::new();
    for (multiply, name) in WAYS {
        let program = program(multiply)?;
        // A table of two bytes has one pair of factors, and elements have several.
        let streams = multiply != Multiply::Pairs;
        let cost = streams.then(|| profile::element_payload(&program, multiply, ZIGZAG));
        zigzag.push(cost.transpose()?);
        ways.push((name, profiles(&program, multiply, rows)?));
        clusters.push((name, on_clusters(&program, multiply, rows)?));
    }
    let lines = |of: fn(Cost) -> f64, paper: fn(&TableRow) -> [f64; 3]| {
        let line = |(place, (name, profiles)): (usize, &(&'static str, Vec<Profile>))| {
            let line = line(name, profiles, of);
            // The first way is the paper's.
            if place == 0 { with_published(line, rows, "Table II", paper) } else { line }
        };
        ways.iter().enumerate().map(line).collect::<Vec<_>>()
    };
    // On 8 cores.
    let payload = |way: usize, row: usize| {
        let costs = &clusters.get(way)?.1;
        costs.get((row + 1) * CORES_AT_ONCE.len() - 1).copied()
    };
    let payloads = [payload(0, 0), payload(0, 1), payload(2, 1), payload(3, 1)];
    let at_once = rows.iter().flat_map(|row| {
        CORES_AT_ONCE.map(|cores| format!("{} payload, {cores} cores at once", row.name))
    });
    Ok(Figure {
        bench: "nic-table2",
        title: "Handlers of erasure coding, by the firmware",
        panels: vec![
            panel(
                "instructions",
                "instructions",
                "instructions",
                rows,
                lines(instructions, |row| row.instructions),
            ),
            panel("duration", "duration", "ns", rows, lines(nanoseconds, |row| row.duration_ns)),
            panel("ipc", "instructions per cycle", "IPC", rows, lines(ipc, |row| row.ipc)),
            per_byte(&ways, &zigzag),
            Panel {
                name: "duration-at-once",
                title: "duration of the payload handler on cores of one cluster at once".to_owned(),
                x_title: "handler, cores",
                positions: at_once.collect(),
                unit: "ns",
                better: Better::Less,
                limit: None,
                lines: clusters
                    .iter()
                    .map(|(name, costs)| {
                        Line::new(name, costs.iter().map(|cost| Some(nanoseconds(*cost))).collect())
                    })
                    .collect(),
            },
        ],
        statements: statements_of_table2(payloads),
        notes: vec![
            SETTING,
            "Each packet has 2016 bytes of data. The header handler's capability is known. A table \
             of 512 KiB in L1 is half of a cluster's memory, and serves one column of one code.",
            "Zigzag: each packet has an element of 2048 bytes. Its products are elements of the \
             parities, at other places in all but the first. The factors are 1 and 2.",
            "At once: the cores of a cluster run the handler on packets of their own, again and \
             again, and wait for each other's accesses to 64 banks of L1. The statements are for 8 \
             cores.",
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of the firmware as it is: the authentication alone is a part of the header
    /// handler, a known capability costs less than a new one, and all are beside the paper's 200.
    #[test]
    #[allow(clippy::print_stderr)]
    fn authentication_stands_alone_and_in_its_handler() {
        let figure = match table1() {
            Ok(figure) => figure,
            Err(error) => {
                let missing = error.downcast_ref::<build::BuildError>();
                assert!(matches!(missing, Some(build::BuildError::NoCompiler { .. })), "{error:?}");
                return eprintln!("skipped: {error:#}");
            }
        };
        let names = ["authentication-known", "authentication-new", "header-known", "header-new"];
        let cycles = names.map(|name| {
            let found = figure.statements.iter().find(|statement| statement.name == name);
            let statement = found.unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(statement.paper, Some(200.0), "{name}");
            statement.ours.unwrap_or_else(|| panic!("{name} has no number"))
        });
        eprintln!("{names:?}: {cycles:?}");
        let [known, new, header_known, header_new] = cycles;
        assert!(0.0 < known && known < header_known && header_known < new && new < header_new);
        // The rest of the handler is the same for both.
        assert!((header_known - known - (header_new - new)).abs() < 0.5, "{cycles:?}");
    }

    /// The paper's number stands next to the paper's algorithm. Another algorithm is a row of its
    /// own, which says so.
    #[test]
    fn the_papers_number_of_cores_is_with_its_algorithm() {
        let cost = |cycles| Some(Cost { instructions: cycles, cycles });
        let statements =
            statements_of_table2([cost(16_000), cost(22_400), cost(6_800), cost(3_900)]);
        let ours = |name: &str| {
            let found = statements.iter().find(|statement| statement.name == name);
            found.unwrap_or_else(|| panic!("{name} is missing"))
        };
        // 22,400 and 6,800 ns in packets of 2,048 bytes, which come every 40.96 ns.
        assert_eq!(ours("hpus-rs63").ours, Some(547.0));
        let pairs = ours("hpus-rs63-pairs");
        assert_eq!(pairs.ours, Some(167.0));
        assert!(pairs.comment.contains("another algorithm"));
    }
}
