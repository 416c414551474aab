//! Binary maps that are damaged, hostile or old.

use fieldstone_crush::binary::{self, DecodeError, Problem, Release};
use fieldstone_crush::fuzz::{binary_seeds, text_seeds};
use fieldstone_crush::{BuildError, Map, Tunables, text};

fn seed(index: usize) -> Map {
    let text = String::from_utf8(text_seeds().swap_remove(index)).expect("seeds are UTF-8");
    text::parse(&text).expect("seeds are maps")
}

fn little(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn problem(bytes: &[u8]) -> (usize, Problem) {
    let DecodeError { at_byte, problem } = binary::decode(bytes).expect_err("this is no map");
    (at_byte, problem)
}

/// A map of one straw2 bucket with the given items.
fn one_bucket(id: i32, items: &[i32]) -> Vec<u8> {
    let mut bytes = little(&[binary::MAGIC, 1, 0, 0, 5, id as u32]);
    bytes.extend([1, 0, 5, 0]);
    bytes.extend(little(&[0, items.len() as u32]));
    bytes.extend(items.iter().flat_map(|item| item.to_le_bytes()));
    bytes.extend(little(&vec![0x1_0000; items.len()]));
    bytes.extend(little(&[0, 0, 0]));
    bytes
}

#[test]
fn every_cut_map_is_an_error_or_an_older_map() {
    for bytes in binary_seeds() {
        let whole = binary::decode(&bytes).unwrap();
        for len in 0..bytes.len() {
            match binary::decode(&bytes[..len]) {
                Err(DecodeError { at_byte, problem }) => {
                    assert!(matches!(problem, Problem::Truncated { .. }), "{len}: {problem}");
                    assert!(at_byte <= len);
                }
                // An older release ended here: the later parts are missing, the rest is the same.
                Ok(cut) => assert!(cut.buckets().eq(whole.buckets()), "{len}"),
            }
        }
    }
}

#[test]
fn maps_of_old_releases_have_legacy_tunables() {
    let map = binary::decode(&one_bucket(-1, &[0, 1])).unwrap();
    assert_eq!(*map.tunables(), Tunables::LEGACY);
    assert_eq!(map.max_devices(), 2);
    let mut bytes = one_bucket(-1, &[0, 1]);
    bytes.extend(little(&[7, 8, 9, 1]));
    let map = binary::decode(&bytes).unwrap();
    let expected = Tunables {
        choose_local_tries: 7,
        choose_local_fallback_tries: 8,
        choose_total_tries: 9,
        chooseleaf_descend_once: true,
        ..Tunables::LEGACY
    };
    assert_eq!(*map.tunables(), expected);
}

#[test]
fn names_with_64_bit_keys_are_read() {
    let mut bytes = one_bucket(-1, &[0]);
    bytes.truncate(bytes.len() - 12);
    // Types: key 1 in 64 bits, then "host"; items and rules: none.
    bytes.extend(little(&[1, 1, 0, 4]));
    bytes.extend(b"host");
    bytes.extend(little(&[0, 0]));
    let map = binary::decode(&bytes).unwrap();
    assert_eq!(map.names().types.values().collect::<Vec<_>>(), ["host"]);
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    // Buckets, rules, devices.
    assert_eq!(problem(&little(&[binary::MAGIC, u32::MAX, 0, 0])).0, 4);
    assert_eq!(problem(&little(&[binary::MAGIC, 0, 257, 0])).0, 8);
    assert_eq!(problem(&little(&[binary::MAGIC, 0, 0, 0x8000_0000])).0, 12);
    // Items of a bucket: the count is two.
    let mut bytes = one_bucket(-1, &[0, 1]);
    bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    let (at_byte, found) = problem(&bytes);
    assert_eq!(at_byte, 32);
    assert!(matches!(found, Problem::Truncated { needs: 0x3_ffff_fffc, .. }), "{found}");
    // Steps of a rule, names.
    for numbers in [&[0, 1, 0, 1, u32::MAX, 0][..], &[0, 0, 0, u32::MAX][..]] {
        let bytes = [&little(&[binary::MAGIC])[..], &little(numbers)].concat();
        let found = problem(&bytes).1;
        assert!(matches!(found, Problem::Truncated { .. }), "{found}");
    }
}

#[test]
fn what_makes_no_sense_is_told_with_its_place() {
    assert_eq!(problem(b"tunable choose"), (0, Problem::Magic { found: 0x616e_7574 }));
    assert_eq!(problem(&one_bucket(-2, &[])), (20, Problem::Slot { found: -2, slot_of: -1 }));
    let changed = |at: usize, to: u8| {
        let mut bytes = one_bucket(-1, &[0]);
        bytes[at] = to;
        problem(&bytes)
    };
    let value = |(at_byte, problem)| match problem {
        Problem::Value { value, .. } => (at_byte, value),
        other => panic!("{at_byte}: {other}"),
    };
    assert_eq!(value(changed(16, 6)), (16, 6), "algorithm");
    assert_eq!(value(changed(26, 4)), (26, 4), "algorithm again");
    assert_eq!(value(changed(27, 2)), (27, 2), "hash");
    let mut long = binary::encode(&seed(0), Release::V19);
    let len = long.len();
    long.push(0);
    assert_eq!(problem(&long), (len, Problem::Trailing { count: 1 }));
    assert_eq!(binary::decode_prefix(&long).unwrap().1, len);
}

#[test]
fn cycles_and_missing_items_are_refused() {
    let cycle = problem(&one_bucket(-1, &[-1])).1;
    assert!(matches!(cycle, Problem::Map(BuildError::CycleOrTooDeep(_))), "{cycle}");
    let missing = problem(&one_bucket(-1, &[-2])).1;
    assert!(matches!(missing, Problem::Map(BuildError::NoSuchItem { .. })), "{missing}");
}

#[test]
fn each_release_keeps_what_it_knows() {
    let map = seed(2);
    assert_eq!(Release::min_for(&map), Release::V19);
    let [old, new] = [Release::V16, Release::V19]
        .map(|release| binary::decode(&binary::encode(&map, release)).unwrap());
    assert_eq!((old.tunables().msr_descents, new.tunables().msr_descents), (100, 7));
    let map = seed(0);
    assert_eq!(Release::min_for(&map), Release::V16);
    assert_eq!(binary::decode(&binary::encode(&map, Release::V16)), Ok(map.clone()));
    let sizes = |map: &Map| map.rules().map(|(_, r)| (r.min_size, r.max_size)).collect::<Vec<_>>();
    let new = binary::decode(&binary::encode(&map, Release::V19)).unwrap();
    assert_eq!((sizes(&map), sizes(&new)), (vec![(1, 10), (3, 20)], vec![(1, 100); 2]));
}
