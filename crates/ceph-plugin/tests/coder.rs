//! The coder as an OSD uses it: golden vectors of Ceph's plug-ins, every loss, repairs from parts.

use fieldstone_ceph_plugin::coder::{Coder, Read};
use fieldstone_ceph_plugin::request::{self, Keys};
use fieldstone_ceph_plugin::{EINVAL, EIO};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// Profiles of all techniques, as users write them.
const PROFILES: [&str; 14] = [
    "technique=reed_sol_van k=4 m=2",
    "technique=reed_sol_van k=5 m=3 w=16",
    "technique=reed_sol_van k=4 m=3 matrix=isa",
    "technique=reed_sol_r6_op k=5",
    "technique=cauchy k=5 m=4",
    "technique=cauchy_orig k=3 m=2 packetsize=8",
    "technique=cauchy_good k=4 m=3 packetsize=32",
    "technique=zigzag k=4 m=2",
    "technique=zigzag k=3 m=3",
    "technique=zigzag k=8 m=2 elements=4",
    "technique=clay k=4 m=2",
    "technique=clay k=5 m=3 scalar_mds=isa",
    "technique=clay k=4 m=3 d=5 scalar_mds=isa scalar_technique=cauchy",
    "technique=clay k=2 m=2",
];

fn keys(text: &str) -> Keys {
    let pair = |word: &str| {
        let (key, value) = word.split_once('=').expect("key=value");
        (key.to_owned(), value.to_owned())
    };
    text.split_whitespace().map(pair).collect()
}

fn coder(text: &str) -> Coder {
    let request = request::read(&keys(text), 255);
    Coder::new(&request.unwrap_or_else(|refusal| panic!("{text}: {refusal}")))
}

fn slices(chunks: &[Vec<u8>]) -> Vec<&[u8]> {
    chunks.iter().map(Vec::as_slice).collect()
}

/// A stripe of `object_bytes` random bytes, filled up with zeros.
fn stripe(coder: &Coder, object_bytes: u32, rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let chunk_bytes = coder.chunk_bytes(object_bytes) as usize;
    let mut object: Vec<u8> = (0..object_bytes).map(|_| rng.random()).collect();
    object.resize(chunk_bytes * coder.k(), 0);
    let mut chunks: Vec<Vec<u8>> = object.chunks(chunk_bytes).map(<[u8]>::to_vec).collect();
    chunks.extend(encode(coder, &chunks));
    chunks
}

fn encode(coder: &Coder, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut coding = vec![vec![0x5a; data[0].len()]; coder.m()];
    let mut outputs: Vec<&mut [u8]> = coding.iter_mut().map(Vec::as_mut_slice).collect();
    coder.encode(&slices(data), &mut outputs).expect("lengths fit");
    coding
}

/// Every set of 1 to m chunks.
fn losses(coder: &Coder) -> Vec<Vec<usize>> {
    let (chunks, m) = (coder.chunks(), coder.m() as u32);
    let sets = (1u32..1 << chunks).filter(|set| set.count_ones() <= m);
    sets.map(|set| (0..chunks).filter(|chunk| set >> chunk & 1 == 1).collect()).collect()
}

/// Restores the chunks `lost` of a stripe as an OSD does: it asks what to read, reads that, and
/// asks once more, with what it read, before it decodes. Gives the bytes that were read.
fn restore(coder: &Coder, chunks: &[Vec<u8>], lost: &[usize]) -> usize {
    let available: Vec<usize> = (0..chunks.len()).filter(|chunk| !lost.contains(chunk)).collect();
    let reads = coder.minimum(lost, &available).expect("enough are left");
    let sub_chunk_bytes = chunks[0].len() / coder.sub_chunks() as usize;
    let mut given: Vec<Option<Vec<u8>>> = vec![None; chunks.len()];
    for Read { chunk, sub_chunks } in &reads {
        let bytes =
            sub_chunks.start as usize * sub_chunk_bytes..sub_chunks.end as usize * sub_chunk_bytes;
        given[*chunk].get_or_insert_default().extend(&chunks[*chunk][bytes]);
    }
    let lengths: Vec<usize> = given.iter().flatten().map(Vec::len).collect();
    assert!(lengths.iter().all(|&length| length == lengths[0]), "the OSD wants equal lengths");
    let read: Vec<usize> = (0..chunks.len()).filter(|&chunk| given[chunk].is_some()).collect();
    assert_eq!(coder.minimum(lost, &read).expect("as before"), reads);
    let given: Vec<Option<&[u8]>> = given.iter().map(Option::as_deref).collect();
    let mut restored = vec![vec![0xa5; chunks[0].len()]; lost.len()];
    let mut outputs: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
    coder.decode(&given, lost, &mut outputs).expect("lengths fit");
    for (&chunk, restored) in lost.iter().zip(&restored) {
        assert!(*restored == chunks[chunk], "chunk {chunk} of a loss of {lost:?}");
    }
    lengths.iter().sum()
}

#[test]
fn every_loss_is_restored() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for text in PROFILES {
        let coder = coder(text);
        let object_bytes = rng.random_range(1..20_000);
        let chunks = stripe(&coder, object_bytes, &mut rng);
        for lost in losses(&coder) {
            let read = restore(&coder, &chunks, &lost);
            assert!(read <= coder.k() * chunks[0].len(), "{text}: {lost:?}");
        }
    }
}

#[test]
fn a_repair_reads_as_little_as_the_code_promises() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for (text, data_part, coding_part) in [
        // Of five chunks, half: 2.5 chunks instead of 4. Zigzag reads k chunks for a lost parity.
        ("technique=clay k=4 m=2", 2.5, 2.5),
        ("technique=zigzag k=4 m=2", 2.5, 4.0),
        ("technique=clay k=8 m=3 d=10", 10.0 / 3.0, 10.0 / 3.0),
        ("technique=zigzag k=4 m=3", 2.0, 4.0),
        ("technique=zigzag k=6 m=3 elements=243", 8.0 / 3.0, 6.0),
        ("technique=reed_sol_van k=4 m=2", 4.0, 4.0),
    ] {
        let coder = coder(text);
        let chunks = stripe(&coder, 16_384, &mut rng);
        for lost in 0..coder.chunks() {
            let part = restore(&coder, &chunks, &[lost]) as f64 / chunks[0].len() as f64;
            let promised = if lost < coder.k() { data_part } else { coding_part };
            assert!((part - promised).abs() < 1e-9, "{text}: chunk {lost}: {part} chunks read");
        }
    }
}

/// With fewer than 3^5 elements, the repair of some chunks needs different amounts of the others.
#[test]
fn a_repair_with_unequal_reads_reads_whole_chunks() {
    let coder = coder("technique=zigzag k=6 m=3");
    let chunks = stripe(&coder, 16_384, &mut ChaCha8Rng::seed_from_u64(4));
    let read = |lost: usize| restore(&coder, &chunks, &[lost]);
    assert_eq!(read(0), 6 * chunks[0].len());
    assert_eq!(read(2), 8 * chunks[0].len() / 3);
}

#[test]
fn what_is_there_is_not_computed() {
    let coder = coder("technique=clay k=4 m=2");
    let whole = |chunks: &[usize]| {
        let read = |&chunk: &usize| Read { chunk, sub_chunks: 0..8 };
        chunks.iter().map(read).collect::<Vec<_>>()
    };
    assert_eq!(coder.minimum(&[3, 1], &[5, 3, 2, 1]).unwrap(), whole(&[1, 3]));
    // A client reads all data while a chunk is lost: whole chunks, and none twice.
    assert_eq!(coder.minimum(&[0, 1, 2, 3], &[1, 2, 3, 4, 5]).unwrap(), whole(&[1, 2, 3, 4]));
    assert_eq!(coder.minimum(&[0, 1, 2, 3], &[5, 4, 3, 2, 1]).unwrap(), whole(&[1, 2, 3, 5]));
    // Two losses are repaired from k chunks, in the order of preference.
    assert_eq!(coder.minimum(&[0, 5], &[4, 3, 2, 1]).unwrap(), whole(&[1, 2, 3, 4]));
    // Whether a placement group can be recovered, the OSD finds out by asking for all chunks.
    assert_eq!(coder.minimum(&[0, 1, 2, 3, 4, 5], &[2, 3, 4, 5]).unwrap(), whole(&[2, 3, 4, 5]));
    let refused = coder.minimum(&[0, 1, 2, 3, 4, 5], &[3, 4, 5]).unwrap_err();
    assert_eq!(refused.errno, EIO);
    assert!(refused.message.contains("needs 4 chunks to restore a lost one, and 3 are available"));
    for (wanted, available) in
        [(&[6][..], &[1, 2, 3, 4][..]), (&[0], &[1, 2, 3, 7]), (&[0], &[1, 1])]
    {
        assert_eq!(coder.minimum(wanted, available).unwrap_err().errno, EINVAL);
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let coder = coder("technique=clay k=4 m=2");
    let chunks = stripe(&coder, 4096, &mut ChaCha8Rng::seed_from_u64(3));
    let decode = |lengths: [usize; 6], output: usize| {
        let given: Vec<Option<&[u8]>> =
            (0..6).map(|at| (lengths[at] > 0).then(|| &chunks[at][..lengths[at]])).collect();
        let mut restored = vec![0; output];
        coder.decode(&given, &[0], &mut [&mut restored])
    };
    assert_eq!(decode([0, 1024, 1024, 1024, 1024, 0], 1024), Ok(()));
    assert_eq!(decode([0, 512, 512, 512, 512, 512], 1024), Ok(()));
    for (lengths, output) in [
        ([0, 512, 512, 512, 512, 0], 1024),
        ([0, 512, 512, 512, 512, 511], 1024),
        ([0, 512, 1024, 512, 512, 512], 1024),
        ([0, 1024, 1024, 1024, 1016, 0], 1024),
        ([0, 1020, 1020, 1020, 1020, 0], 1020),
        ([0, 1024, 1024, 1024, 1024, 0], 512),
    ] {
        assert_eq!(decode(lengths, output).unwrap_err().errno, EINVAL, "{lengths:?} {output}");
    }
    assert_eq!(decode([0, 1024, 1024, 1024, 0, 0], 1024).unwrap_err().errno, EIO);
}

/// The vectors that the codes are tested with, by the names of Ceph's profiles.
#[test]
fn golden_vectors_are_met_through_profiles_of_ceph() {
    let json: Value =
        serde_json::from_str(include_str!("../../codes/tests/data/ceph.json")).expect("JSON");
    let mut rest = &include_bytes!("../../codes/tests/data/ceph.bin")[..];
    let mut checked = 0;
    for vector in json["vectors"].as_array().expect("a list") {
        let name = vector["code"].as_str().expect("a name");
        let chunk_bytes = vector["shard_bytes"].as_u64().expect("a number") as usize;
        let own = profile_of(name);
        let ceph = own.replace("matrix=isa ", "").replace("plugin=fieldstone ", "");
        let shards = coder(&own).chunks();
        let (bytes, next) = rest.split_at(shards * chunk_bytes);
        rest = next;
        let chunks: Vec<Vec<u8>> = bytes.chunks(chunk_bytes).map(<[u8]>::to_vec).collect();
        // As a profile of this plug-in, and as one of the plug-in whose place it may take.
        let plugin = if own.contains("matrix=isa ") { "isa" } else { "jerasure" };
        let taken = if name.starts_with("clay") {
            ceph.replace("technique=clay ", "plugin=clay ").replace("scalar_technique", "technique")
        } else {
            format!("plugin={plugin} {ceph}")
        };
        for text in [&own, &taken] {
            let coder = coder(text);
            assert!(encode(&coder, &chunks[..coder.k()]) == chunks[coder.k()..], "{text}");
            assert_eq!(coder.chunk_bytes(1) as usize, chunk_bytes, "{text}");
        }
        checked += 1;
    }
    assert_eq!((checked, rest.len()), (72, 0));
}

/// A name of a code as a profile of this plug-in.
fn profile_of(name: &str) -> String {
    let (code, parameters) = name.split_once(':').expect("a colon");
    let mut parts = parameters.split(',');
    let (k, m) = parts.next().and_then(|part| part.split_once('+')).expect("K+M");
    let technique = match code {
        "rs" => "matrix=isa technique=cauchy",
        "rs-van" => "matrix=isa technique=reed_sol_van",
        "jerasure-van" => "technique=reed_sol_van",
        "jerasure-r6" => "technique=reed_sol_r6_op",
        "cauchy-orig" => "technique=cauchy_orig",
        "cauchy-good" => "technique=cauchy_good",
        other => return clay_of(other, k, m, parts),
    };
    let option = |part: &str| format!(" {}", part.replace("ps=", "packetsize="));
    let options: String = parts.map(option).collect();
    format!("plugin=fieldstone {technique} k={k} m={m}{options}")
}

fn clay_of<'a>(code: &str, k: &str, m: &str, parts: impl Iterator<Item = &'a str>) -> String {
    assert_eq!(code, "clay");
    let mut text = format!("plugin=fieldstone technique=clay k={k} m={m}");
    for part in parts {
        text += match part {
            "mds=rs" => " scalar_mds=isa scalar_technique=cauchy".to_owned(),
            "mds=rs-van" => " scalar_mds=isa".to_owned(),
            other => format!(" {other}"),
        }
        .as_str();
    }
    text
}
