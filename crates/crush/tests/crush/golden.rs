//! Compares this crate's compiler, formats and mapper with crushtool's results for the same maps.
//!
//! `data/` holds the results of crushtool 16.2.15 and 20.2.4:
//!
//! - `maps/NAME.txt`: the text maps;
//! - `binaries.tsv`: name, release, length and 64-bit FNV-1a hash of the binary map that crushtool
//!   of that release compiles from each (16 knows no MSR rules);
//! - `binary/NAME.RELEASE.crush`: five of those binary maps;
//! - `runs.tsv`: map, run, and the arguments of `crushtool --test --show-mappings`;
//! - `rows/NAME.rows`: the answers. A line has a run, a rule, the first x, and one word per x. A
//!   word has a character for every device: device 0 is `!`, 1 is `"` and so on through ASCII; a
//!   hole is `~`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;

use fieldstone_crush::binary::{self, Release};
use fieldstone_crush::{ItemId, Map, OsdId, RuleId, WEIGHT_ONE, hash, text};

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(data(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A number of the tables.
fn number<T: FromStr>(word: &str) -> T {
    word.parse().ok().unwrap_or_else(|| panic!("{word} is not such a number"))
}

fn map(name: &str) -> Map {
    text::parse(&read(&format!("maps/{name}.txt"))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Map, release, length and hash of every binary map.
fn binaries() -> Vec<(String, Release, usize, u64)> {
    let table = read("binaries.tsv");
    let rows = table.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, release, len_bytes, hash] = fields[..] else { panic!("bad line {line}") };
        let release = if release == "16" { Release::V16 } else { Release::V19 };
        let hash = u64::from_str_radix(hash, 16).expect("a hash");
        (name.to_owned(), release, number(len_bytes), hash)
    });
    rows.collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// One call of `crushtool --test`.
#[derive(Default)]
struct Run {
    width: usize,
    pool: Option<u32>,
    /// Device and reweight.
    reweights: Vec<(usize, u32)>,
}

impl Run {
    fn new(arguments: &str) -> Self {
        let mut run = Self::default();
        let mut words = arguments.split(' ');
        while let Some(option) = words.next() {
            let mut value = || words.next().expect("the option has a value");
            match option {
                "--num-rep" => run.width = number(value()),
                "--pool-id" => run.pool = Some(number(value())),
                "--weight" => {
                    let osd = number(value());
                    let weight: f32 = number(value());
                    run.reweights.push((osd, (weight * 65536.0) as u32));
                }
                // The rows contain their x.
                "--min-x" | "--max-x" => drop(value()),
                other => panic!("unknown option {other}"),
            }
        }
        run
    }

    /// Devices of the map have weight 1.0 unless the run sets another.
    fn weights(&self, map: &Map) -> Vec<u32> {
        let default = |osd| if map.contains_device(OsdId(osd)) { WEIGHT_ONE } else { 0 };
        let mut weights: Vec<u32> = (0..map.max_devices()).map(default).collect();
        for &(osd, weight) in &self.reweights {
            if let Some(slot) = weights.get_mut(osd) {
                *slot = weight;
            }
        }
        weights
    }

    fn seed(&self, x: u32) -> u32 {
        self.pool.map_or(x, |pool| hash::hash2(x, pool))
    }
}

fn items(word: &str) -> Vec<ItemId> {
    let item = |byte| if byte == b'~' { ItemId::NONE } else { ItemId(i32::from(byte - b'!')) };
    word.bytes().map(item).collect()
}

/// Checks all rows of one map, for many x at once and for one at a time. Returns the number of
/// rows.
fn check_rows(name: &str, runs: &HashMap<&str, Run>) -> usize {
    let map = map(name);
    let mut rows = 0;
    for line in read(&format!("rows/{name}.rows")).lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [run_name, rule_id, first_x, answers] = fields[..] else { panic!("{name}: {line}") };
        let run = &runs[run_name];
        let weights = run.weights(&map);
        let args = map.choose_args_for_pool(0);
        let rule =
            map.rule(RuleId(number(rule_id))).expect("the rule exists").with_choose_args(args);
        let first_x: u32 = number(first_x);
        let expected: Vec<Vec<ItemId>> = answers.split(' ').map(items).collect();
        let seeds: Vec<u32> = (first_x..).take(expected.len()).map(|x| run.seed(x)).collect();
        let table = rule.map_rows(&seeds, run.width, &weights);
        assert_eq!(table.len(), expected.len());
        for (((row, expected), &seed), x) in table.iter().zip(&expected).zip(&seeds).zip(first_x..)
        {
            assert_eq!(row, expected, "{name}: run {run_name}, rule {rule_id}, x {x}");
            let single = rule.map(seed, run.width, &weights);
            let single: Vec<ItemId> =
                single.iter().map(|osd| osd.map_or(ItemId::NONE, ItemId::from)).collect();
            assert_eq!(&single, expected, "{name}: run {run_name}, rule {rule_id}, x {x}");
        }
        rows += expected.len();
    }
    rows
}

#[test]
fn every_row_of_crushtool_is_matched() {
    let table = read("runs.tsv");
    let mut runs: HashMap<&str, HashMap<&str, Run>> = HashMap::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, run, arguments] = fields[..] else { panic!("bad line {line}") };
        runs.entry(name).or_default().insert(run, Run::new(arguments));
    }
    assert_eq!(runs.values().map(HashMap::len).sum::<usize>(), 100);
    let rows: usize = runs.iter().map(|(name, runs)| check_rows(name, runs)).sum();
    assert_eq!(rows, 51_672);
}

#[test]
fn text_compiles_to_the_bytes_of_crushtool() {
    let binaries = binaries();
    assert_eq!(binaries.len(), 46 + 48);
    for (name, release, len_bytes, hash) in binaries {
        let bytes = binary::encode(&map(&name), release);
        assert_eq!((bytes.len(), fnv(&bytes)), (len_bytes, hash), "{name}, {release:?}");
    }
}

#[test]
fn binary_maps_of_crushtool_are_those_of_the_texts_and_come_back_byte_for_byte() {
    let stored = [
        ("classes", Release::V16, "16"),
        ("choose_args_pos2ids", Release::V16, "16"),
        ("edge", Release::V16, "16"),
        ("msr_tun", Release::V19, "20"),
        ("prof_argonaut_mix", Release::V19, "20"),
    ];
    let hashes: HashMap<_, _> = binaries().into_iter().map(|b| ((b.0, b.1), b.3)).collect();
    for (name, release, suffix) in stored {
        let bytes = std::fs::read(data(&format!("binary/{name}.{suffix}.crush"))).unwrap();
        assert_eq!(fnv(&bytes), hashes[&(name.to_owned(), release)], "{name}");
        let decoded = binary::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(binary::encode(&decoded, release), bytes, "{name}");
        assert_eq!(decoded.buckets().collect::<Vec<_>>(), map(name).buckets().collect::<Vec<_>>());
    }
}

#[test]
fn both_encodings_and_text_carry_the_same_map() {
    for (name, release, ..) in binaries() {
        let map = map(&name);
        let decoded = binary::decode(&binary::encode(&map, release)).unwrap();
        let printed = text::print(&decoded);
        let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{name}: {e}\n{printed}"));
        assert_eq!(parsed, decoded, "{name}, {release:?}");
        assert_eq!(text::print(&parsed), printed, "{name}, {release:?}");
        if release == Release::V16 {
            assert_eq!(decoded, map, "{name}");
        }
    }
}
