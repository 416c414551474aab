//! `docs/nic.md`: its figures, and the sentences below them. The compiler decides the numbers, so
//! they are compared where the compiler is the document's.

use std::process::Command;

use super::super::coding::hpus_needed;
use super::super::firmware;
use super::{FIRMWARE, MODEL, Shared, ours, paper, says, statement, table, thousands};

static TABLE1: Shared = Shared::new(|| firmware::table1().unwrap());
static TABLE2: Shared = Shared::new(|| firmware::table2().unwrap());

/// The compiler of the document's numbers.
const COMPILER: (&str, &str) = ("riscv64-unknown-elf-gcc", "12.2");

/// Whether the compiler is the document's. If not, the reason is on stderr.
fn has_compiler() -> bool {
    let (name, version) = COMPILER;
    says(FIRMWARE, &format!("with Debian's GCC {version}."));
    let Ok(output) = Command::new(name).arg("-dumpversion").output() else {
        eprint_line!("skipped: {name} is not installed");
        return false;
    };
    let found = String::from_utf8_lossy(&output.stdout);
    let is_same = found.trim().strip_prefix(version).is_some_and(|rest| rest.starts_with('.'));
    if !is_same {
        eprint_line!("skipped: {name} is {}, and the document has {version}", found.trim());
    }
    is_same
}

#[test]
fn the_table_of_replication_handlers_is_that_of_the_figure() {
    if !has_compiler() {
        return;
    }
    let known = |label: &str, case: &str| {
        let count = format!("instructions/{case}/capability known");
        let time = |line: &str| format!("duration/{case}/{line}");
        let wide = time("under load, 512 Gbit/s out");
        vec![
            label.to_owned(),
            thousands(paper(&TABLE1, &count)),
            thousands(ours(&TABLE1, &count)),
            format!("{:.0} ns", paper(&TABLE1, &wide)),
            thousands(ours(&TABLE1, &time("alone"))),
            thousands(ours(&TABLE1, &wide)),
            thousands(ours(&TABLE1, &time("under load, 400 Gbit/s out"))),
        ]
    };
    let mut expected = Vec::new();
    for handler in ["header", "payload", "completion"] {
        for (shape, case) in [("k = 1", "k=1"), ("ring", "k=4, ring"), ("tree", "k=4, PBT")] {
            let is_first = (handler, shape) == ("header", "k = 1");
            let more = if is_first { ", capability known" } else { "" };
            let case = format!("{case} {handler}");
            expected.push(known(&format!("{handler}, {shape}{more}"), &case));
            if is_first {
                let count = ours(&TABLE1, &format!("instructions/{case}/capability new"));
                let time = ours(&TABLE1, &format!("duration/{case}/alone, capability new"));
                let (count, time) = (thousands(count), thousands(time));
                let cells = ["the same, capability new", "", &count, "", &time, "", ""];
                expected.push(cells.map(str::to_owned).to_vec());
            }
        }
    }
    let head = "| handler | instructions, paper | ours | duration, paper | alone \
                | under load, 512 Gbit/s out | 400 Gbit/s out |";
    assert_eq!(table(FIRMWARE, head), expected);
}

#[test]
fn the_sentences_about_replication_handlers_are_true() {
    if !has_compiler() {
        return;
    }
    let tree =
        |figure: &str, line: &str| ours(&TABLE1, &format!("{figure}/k=4, PBT payload/{line}"));
    let (alone, wide) = (tree("duration", "alone"), tree("ipc", "under load, 512 Gbit/s out"));
    let narrow = tree("ipc", "under load, 400 Gbit/s out");
    says(FIRMWARE, &format!("**The tree's payload handler** takes {alone:.0} ns alone."));
    let ipc =
        format!("{wide:.2} instructions per cycle behind 512 Gbit/s, and {narrow:.2} behind 400");
    says(FIRMWARE, &ipc);
    let ring = |case: &str| ours(&TABLE1, &format!("{case}/k=4, ring payload/alone"));
    let count = ours(&TABLE1, "instructions/k=4, ring payload/capability known");
    let time = ring("duration");
    let ipc = ring("ipc");
    says(MODEL, &format!("the payload handler takes {time:.0} ns for {count:.0} instructions."));
    let theirs = paper(&TABLE1, "ipc/k=4, ring payload/under load, 512 Gbit/s out");
    says(MODEL, &format!("the paper's {theirs:.2} instructions per cycle, against {ipc:.2}"));
}

/// A payload handler of Table II.
#[derive(Clone, Copy)]
struct Payload {
    instructions: f64,
    alone: f64,
    /// With 8 cores at once.
    at_once: f64,
}

/// The names of the ways to multiply, in the figure.
const PRODUCTS: &str = "table of products";
const SCHEDULED: &str = "without stalls";
const PAIRS: &str = "two bytes at a time";
const PLANES: &str = "planes of bits, the dearest column";

fn payload(code: &str, way: &str) -> Payload {
    Payload {
        instructions: ours(&TABLE2, &format!("instructions/{code} payload/{way}")),
        alone: ours(&TABLE2, &format!("duration/{code} payload/{way}")),
        at_once: ours(&TABLE2, &format!("duration-at-once/{code} payload, 8 cores at once/{way}")),
    }
}

/// The paper's instructions and duration.
fn published(code: &str) -> [f64; 2] {
    ["instructions", "duration"]
        .map(|name| paper(&TABLE2, &format!("{name}/{code} payload/{PRODUCTS}")))
}

#[test]
fn the_table_of_coding_handlers_is_that_of_the_figure() {
    if !has_compiler() {
        return;
    }
    let rows = [
        ("RS(3,2)", PRODUCTS, "table of products"),
        ("RS(6,3)", PRODUCTS, "table of products"),
        ("RS(6,3)", SCHEDULED, "loads in another order"),
        ("RS(6,3)", PAIRS, "two bytes at a time"),
        ("RS(3,2)", PLANES, "planes of bits"),
        ("RS(6,3)", PLANES, "planes of bits"),
    ];
    let expected = rows.map(|(code, way, label)| {
        let handler = payload(code, way);
        let [count, time] = match way {
            PRODUCTS => published(code).map(thousands),
            _ => [String::new(), String::new()],
        };
        let time = if time.is_empty() { time } else { format!("{time} ns") };
        let ours = [handler.instructions, handler.alone, handler.at_once].map(thousands);
        let [instructions, alone, at_once] = ours;
        [format!("{code}, {label}"), count, instructions, time, alone, at_once]
    });
    let head = "| payload handler | instructions, paper | ours | duration, paper | alone \
                | 8 cores at once |";
    assert_eq!(table(FIRMWARE, head), expected);
}

#[test]
fn the_sentences_about_coding_handlers_are_true() {
    if !has_compiler() {
        return;
    }
    let codes = ["RS(3,2)", "RS(6,3)"];
    let less = |part: f64, whole: f64| 100.0 * (whole - part) / whole;
    let [small, large] = codes.map(|code| (payload(code, PRODUCTS), published(code)));
    let time = |(ours, paper): (Payload, [f64; 2])| less(ours.at_once, paper[1]);
    says(
        FIRMWARE,
        &format!(
            "our durations are {:.1} % and {:.1} % less than the paper's",
            time(small),
            time(large)
        ),
    );
    let count = |(ours, paper): (Payload, [f64; 2])| less(ours.instructions, paper[0]);
    let waits = |ours: Payload| ours.at_once - ours.instructions;
    let more = |(ours, paper): (Payload, [f64; 2])| -less(waits(ours), paper[1] - paper[0]);
    let ipc = |ours: Payload| ours.instructions / ours.at_once;
    says(
        FIRMWARE,
        &format!(
            "our handlers have {:.0} % and {:.0} % fewer instructions, and {:.0} % and {:.0} % \
             more cycles in which the core waits ({:.2} and {:.2} instructions per cycle; the \
             paper has {:.2})",
            count(small),
            count(large),
            more(small),
            more(large),
            ipc(small.0),
            ipc(large.0),
            paper(&TABLE2, &format!("ipc/RS(6,3) payload/{PRODUCTS}")),
        ),
    );
    for (ours, _) in [small, large] {
        let conflicts = 100.0 * (ours.at_once - ours.alone) / waits(ours);
        says(FIRMWARE, &format!("Conflicts of banks are {conflicts:.0} % of them."));
    }
    let scheduled = payload("RS(6,3)", SCHEDULED);
    says(
        FIRMWARE,
        &format!(
            "{:.0} % less time on a core alone, and {:.0} % less with 8 cores",
            less(scheduled.alone, large.0.alone),
            less(scheduled.at_once, large.0.at_once)
        ),
    );
    let conflicts = less(scheduled.alone, scheduled.at_once);
    says(FIRMWARE, &format!("{conflicts:.0} % of its time are conflicts"));
}

#[test]
fn the_sentences_about_bytes_and_cores_are_true() {
    if !has_compiler() {
        return;
    }
    let per_byte =
        |code: &str, way: &str| ours(&TABLE2, &format!("instructions-per-byte/{code}/{way}"));
    let cores = |name: &str| statement(&TABLE2, name).ours.unwrap();
    let (products, pairs, planes) =
        (cores("hpus-rs63"), cores("hpus-rs63-pairs"), cores("hpus-rs63-planes"));
    let theirs = hpus_needed(published("RS(6,3)")[1], 400.0);
    says(
        FIRMWARE,
        &format!(
            "take half of the instructions again: {:.1} per byte. At 400 Gbit/s, RS(6,3) needs \
             {pairs} cores, and {products} by the table of products; the paper's duration needs \
             {theirs}.",
            per_byte("RS(6,3)", PAIRS)
        ),
    );
    let two = payload("RS(3,2)", PAIRS);
    says(
        FIRMWARE,
        &format!(
            "the handler {} for RS(3,2): {:.1} per byte",
            thousands(two.instructions),
            per_byte("RS(3,2)", PAIRS)
        ),
    );
    says(
        FIRMWARE,
        &format!(
            "take {:.1} instructions per byte for RS(6,3), {:.1} for RS(3,2).",
            per_byte("RS(6,3)", PLANES),
            per_byte("RS(3,2)", PLANES)
        ),
    );
    says(FIRMWARE, &format!("At 400 Gbit/s, RS(6,3) needs {planes} cores, on a node"));
    let zigzag = "zigzag:4+2, mean of all elements";
    says(
        FIRMWARE,
        &format!(
            "{:.1} instructions per byte for `zigzag:4+2` by the table of products, and {:.2} in \
             planes of bits",
            per_byte(zigzag, PRODUCTS),
            per_byte(zigzag, PLANES)
        ),
    );
}
