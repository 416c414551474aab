//! Compares with Ceph's plugins bit for bit: 72 vectors, in `tests/data/ceph.*`.

use crate::common::{check_repair, code, encode, patterns, slices};
use fieldstone_codes::Profile;
use fieldstone_gf::WordField;
use serde_json::Value;

struct Vector {
    profile: Profile,
    shards: Vec<Vec<u8>>,
    json: Value,
}

fn vectors() -> Vec<Vector> {
    let json: Value = serde_json::from_str(include_str!("../data/ceph.json")).expect("JSON");
    let mut rest = &include_bytes!("../data/ceph.bin")[..];
    let list = json["vectors"].as_array().expect("a list").iter();
    let vectors = list.map(|json| {
        let name = json["code"].as_str().expect("a name");
        let profile: Profile = name.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.to_string(), name);
        let shard_bytes = json["shard_bytes"].as_u64().expect("a number") as usize;
        let (stripe, next) = rest.split_at(profile.shards() * shard_bytes);
        rest = next;
        let shards = stripe.chunks(shard_bytes).map(<[u8]>::to_vec).collect();
        Vector { profile, shards, json: json.clone() }
    });
    let vectors: Vec<Vector> = vectors.collect();
    assert_eq!((vectors.len(), rest.len()), (72, 0));
    vectors
}

#[test]
fn parities_chunk_sizes_and_elements_are_those_of_the_plugins() {
    for Vector { profile, shards, json } in vectors() {
        let code = profile.code();
        let (data, parities) = shards.split_at(profile.k());
        assert!(encode(&*code, &slices(data)) == parities, "{profile}");
        // The vectors were made with the chunk size of an object of one byte.
        assert_eq!(profile.chunk_bytes(1), Some(shards[0].len() as u64), "{profile}");
        if let Some(elements) = json["elements"].as_u64() {
            assert_eq!(u64::from(code.elements()), elements, "{profile}");
        }
    }
}

#[test]
fn matrices_are_those_of_the_libraries() {
    let mut checked = 0;
    for Vector { profile, json, .. } in vectors() {
        let code = profile.code();
        if json["matrix"].is_null() || code.elements() > 1 {
            continue;
        }
        let terms = |row: usize| code.encode().steps()[0][row].terms.iter().map(|t| t.coefficient);
        let matrix: Vec<Vec<u8>> = (0..profile.m()).map(|row| terms(row).collect()).collect();
        assert_eq!(serde_json::json!(matrix), json["matrix"], "{profile}");
        checked += 1;
    }
    assert_eq!(checked, 24, "6 + 4 of jerasure with w = 8, and 14 of isa");
}

#[test]
fn the_cheapest_elements_are_those_of_cauchy_good() {
    let json: Value = serde_json::from_str(include_str!("../data/ceph.json")).expect("JSON");
    let row: Vec<u64> =
        json["cheapest"].as_array().expect("a list").iter().map(|x| x.as_u64().unwrap()).collect();
    assert_eq!(row.len(), 255);
    // Bit column 0 of a block of the encoder is the coefficient itself.
    let code = code("cauchy-good:253+2,ps=4");
    let bit = |l: usize, shard: usize| {
        let terms = &code.encode().steps()[0][8 + l].terms;
        let term = fieldstone_gf::Term::input(shard as u16, 0, 1);
        u64::from(terms.contains(&term)) << l
    };
    for (shard, &element) in row[..253].iter().enumerate() {
        let coefficient = (0..8).map(|l| bit(l, shard)).sum::<u64>();
        assert_eq!(coefficient, element, "shard {shard}");
        assert!(WordField::W8.bit_ones(coefficient as u32) >= 8);
    }
}

#[test]
fn what_the_plugins_made_is_repaired() {
    for Vector { profile, shards, .. } in vectors() {
        let code = profile.code();
        // Small codes: all patterns. Large codes: a sample in which every shard is lost.
        let step = if profile.shards() <= 6 { 1 } else { 97 };
        let singles = (0..profile.shards()).map(|lost| {
            (vec![lost], (0..profile.shards()).filter(|&shard| shard != lost).collect())
        });
        for (lost, available) in patterns(&*code).step_by(step).chain(singles) {
            check_repair(&*code, &shards, &lost, &available);
        }
    }
}
