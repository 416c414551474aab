//! Zigzag codes: exactly the paper's tables, and no more reads than the construction promises.

use crate::common::{check_repair, code, encode, random_stripe, slices};
use fieldstone_gf::{LinearMap, Source};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

fn paper() -> Value {
    serde_json::from_str(include_str!("../data/zigzag-648.json")).expect("the tables are JSON")
}

/// Number of a shard of the paper: D1..D4, P1, P2.
fn shard(name: &str) -> usize {
    let number: usize = name[1..].parse().expect("a number");
    number - 1 + if name.starts_with('P') { 4 } else { 0 }
}

/// The terms of row `row` of output `output` of a one-step map, sorted, as (shard, row from 0,
/// coefficient).
fn sum(map: &LinearMap, row: usize, name: impl Fn(u16, u32) -> (usize, u32)) -> Vec<Sum> {
    assert_eq!(map.steps().len(), 1);
    let terms = map.steps()[0][row].terms.iter().map(|term| match term.source {
        Source::Input(element) => {
            let (shard, row) = name(element.shard, element.index);
            (shard, row, u64::from(term.coefficient))
        }
        Source::Scratch(_) => panic!("one step has no scratch"),
    });
    let mut terms: Vec<Sum> = terms.collect();
    terms.sort_unstable();
    terms
}

type Sum = (usize, u32, u64);

fn expected(terms: &Value) -> Vec<Sum> {
    let term = |term: &Value| {
        let number = |at: usize| term[at].as_u64().expect("a number");
        (shard(term[0].as_str().expect("a shard")), number(1) as u32 - 1, number(2))
    };
    let mut terms: Vec<Sum> = terms.as_array().expect("a list").iter().map(term).collect();
    terms.sort_unstable();
    terms
}

#[test]
fn encoding_is_equations_2_to_5_of_the_msr_engine_paper() {
    let (tables, code) = (paper(), code("zigzag:4+2"));
    assert_eq!((code.k(), code.m(), code.elements()), (4, 2, 8));
    let mut rows = 0;
    for (name, terms) in tables["encode"].as_object().expect("rows") {
        let (parity, row) = name.split_once('r').expect("P1r1");
        let row = (shard(parity) - 4) * 8 + row.parse::<usize>().expect("a number") - 1;
        let sum = sum(code.encode(), row, |shard, index| (usize::from(shard), index));
        assert_eq!(sum, expected(terms), "{name}");
        rows += 1;
    }
    assert_eq!(rows, 16);
}

#[test]
fn rebuilding_is_the_papers_table_and_reads_20_of_40_elements() {
    let (tables, code) = (paper(), code("zigzag:4+2"));
    for lost in 0..4usize {
        let available: Vec<usize> = (0..6).filter(|&shard| shard != lost).collect();
        let plan = code.repair(&[lost], &available).expect("all others are there");
        assert_eq!(plan.read_bytes(1), 20);
        assert!(plan.reads.iter().all(|read| read.element_count() == 4));
        let name = |input: u16, index: u32| {
            let read = &plan.reads[usize::from(input)];
            let elements: Vec<u32> = read.elements.iter().cloned().flatten().collect();
            (read.shard, elements[index as usize])
        };
        for row in 0..8 {
            let key = format!("D{}", lost + 1);
            let terms = &tables["rebuild"][&key][format!("{key}r{}", row + 1)];
            assert_eq!(sum(&plan.map, row, name), expected(terms), "{key}r{}", row + 1);
        }
    }
}

#[test]
fn the_example_of_the_tables_is_encoded() {
    let (tables, code) = (paper(), code("zigzag:4+2"));
    let shards = |name: &str| -> Vec<Vec<u8>> {
        let shards = tables[name].as_array().expect("a list").iter();
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
                .collect()
        };
        let elements = |shard: &Value| -> Vec<u8> {
            let elements = shard.as_array().expect("a list").iter();
            elements.flat_map(|element| bytes(element.as_str().expect("hexadecimal"))).collect()
        };
        shards.map(elements).collect()
    };
    assert_eq!(encode(&*code, &slices(&shards("data"))), shards("parity"));
}

#[test]
fn every_data_shard_is_rebuilt_with_the_promised_reads() {
    let mut rng = ChaCha8Rng::seed_from_u64(648);
    // Elements, and elements read: for the cheapest data shard, for the most expensive, and for
    // all.
    for (name, n, min, max, sum) in [
        ("zigzag:2+2", 2, 3, 3, 6),
        ("zigzag:4+2", 8, 20, 20, 80),
        ("zigzag:4+2,n=4", 4, 10, 12, 44),
        ("zigzag:6+2", 32, 112, 112, 672),
        ("zigzag:6+2,n=8", 8, 28, 32, 184),
        ("zigzag:8+2,n=8", 8, 40, 40, 320),
        ("zigzag:8+2,n=128", 128, 576, 576, 4608),
        ("zigzag:10+2,n=8", 8, 48, 52, 504),
        ("zigzag:6+3,n=9", 9, 30, 30, 180),
        ("zigzag:6+3,n=243", 243, 648, 648, 3888),
        ("zigzag:8+3,n=9", 9, 36, 42, 324),
        ("zigzag:8+3", 27, 108, 108, 864),
        ("zigzag:10+4,n=4", 4, 25, 25, 250),
        ("zigzag:10+4,n=16", 16, 76, 88, 808),
        ("zigzag:12+4,n=16", 16, 96, 96, 1152),
        ("zigzag:10+4", 64, 256, 304, 2848),
    ] {
        let code = code(name);
        assert_eq!(code.elements(), n, "{name}");
        let shards = random_stripe(&*code, n as usize * 3, &mut rng);
        let reads: Vec<u64> = (0..code.k())
            .map(|lost| {
                let available: Vec<usize> =
                    (0..code.k() + code.m()).filter(|&shard| shard != lost).collect();
                check_repair(&*code, &shards, &[lost], &available).read_bytes(1)
            })
            .collect();
        let range = (reads.iter().min().copied(), reads.iter().max().copied());
        assert_eq!(range, (Some(min), Some(max)), "{name}: {reads:?}");
        assert_eq!(reads.iter().sum::<u64>(), sum, "{name}: {reads:?}");
    }
}

#[test]
fn with_a_survivor_missing_k_whole_shards_are_read() {
    let mut rng = ChaCha8Rng::seed_from_u64(649);
    let code = code("zigzag:4+2");
    let shards = random_stripe(&*code, 8 * 5, &mut rng);
    for missing in 1..6 {
        let available: Vec<usize> = (1..6).filter(|&shard| shard != missing).collect();
        let plan = check_repair(&*code, &shards, &[0], &available);
        assert_eq!(plan.read_bytes(1), 32);
    }
    // For a lost parity, the repair cannot read less.
    let plan = check_repair(&*code, &shards, &[5], &[0, 1, 2, 3, 4]);
    assert_eq!(plan.read_bytes(1), 32);
}
