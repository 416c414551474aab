//! Damage inside files: it is found, named, avoided and repaired, and never becomes wrong bytes.

use std::fs;

use fieldstone_files::{Error, Scope, ShardState, UnitFlaw};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::support::{CODES, Encoded, striping};

/// The shards that the findings name.
fn named(encoded: &Encoded) -> Vec<usize> {
    let folder = encoded.open().expect("the encoding is found");
    let findings = encoded.verify();
    let bad =
        |&shard: &usize| !folder.shards[shard].is_good() || findings.bad_units[shard].count > 0;
    (0..folder.shards.len()).filter(bad).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_flipped_bit_is_named_and_mended(
        code in select(&CODES[..15]),
        len_bytes in 0usize..5000,
        shard: Index,
        bits in prop::collection::vec((any::<Index>(), 0u8..8), 1..4),
    ) {
        let striping = striping(code, 2);
        let encoded = Encoded::new(&striping, len_bytes, 5);
        let shard = shard.index(striping.shards());
        encoded.change(shard, |bytes| {
            for (at, bit) in bits {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
        });
        if encoded.shard(shard) == encoded.originals[shard] {
            return Ok(());
        }
        prop_assert_eq!(named(&encoded), [shard]);
        encoded.decode().unwrap();
        // The first repair finds the damage in its reads; the second finds all damage.
        encoded.repair(Scope::Lost).unwrap();
        encoded.repair(Scope::All).unwrap();
        encoded.assert_as_at_first();
    }

    #[test]
    fn truncated_and_lengthened_shards_are_named_and_made_anew(
        code in select(&CODES[..15]),
        len_bytes in 0usize..5000,
        shard: Index,
        length: Index,
    ) {
        let striping = striping(code, 2);
        let encoded = Encoded::new(&striping, len_bytes, 6);
        let shard = shard.index(striping.shards());
        let old = encoded.originals[shard].len();
        let new = length.index(old + 100);
        prop_assume!(new != old);
        encoded.change(shard, |bytes| bytes.resize(new, 0x5a));
        prop_assert_eq!(named(&encoded), [shard]);
        encoded.decode().unwrap();
        prop_assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [shard]);
        encoded.assert_as_at_first();
    }

    #[test]
    fn damage_in_many_shards_is_mended_or_refused_but_never_hidden(
        code in select(&CODES[..15]),
        hits in prop::collection::vec((any::<Index>(), any::<Index>()), 1..10),
    ) {
        let striping = striping(code, 2);
        let encoded = Encoded::new(&striping, 3 * striping.stripe_bytes() + 5, 8);
        for (shard, at) in &hits {
            encoded.change(shard.index(striping.shards()), |bytes| {
                let at = at.index(bytes.len());
                bytes[at] ^= 0x10;
            });
        }
        // `decode` compares its result with the file.
        let decoded = encoded.decode();
        let restorable = encoded.open().is_ok() && encoded.verify().lost_stripes == 0;
        if restorable {
            decoded.unwrap();
            encoded.repair(Scope::All).unwrap();
            encoded.assert_as_at_first();
        } else {
            let too_few = matches!(decoded, Err(Error::TooFewShards { .. }));
            prop_assert!(too_few, "{:?}", decoded);
            let refused = encoded.repair(Scope::All);
            let too_few = matches!(refused, Err(Error::TooFewShards { .. }));
            prop_assert!(too_few, "{:?}", refused);
        }
    }
}

#[test]
fn damage_is_named_with_its_place() {
    let striping = striping("zigzag:4+2", 16);
    let encoded = Encoded::new(&striping, 3 * striping.stripe_bytes(), 2);
    let offset = striping.offset(1);
    let block_bytes = striping.unit_bytes() / 8;
    let in_block_5 = offset as usize + striping.record_bytes() + 5 * block_bytes + 3;
    encoded.change(2, |bytes| bytes[in_block_5] ^= 1);
    encoded.change(4, |bytes| bytes[striping.offset(2) as usize + 1] ^= 1);
    let findings = encoded.verify();
    let only = |shard: usize| match &findings.bad_units[shard].first[..] {
        [unit] => (unit.stripe, unit.offset, unit.flaw.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(only(2), (1, offset, UnitFlaw::Block(5)));
    assert_eq!(only(4), (2, striping.offset(2), UnitFlaw::Record));
    assert_eq!((findings.lost_stripes, findings.inconsistent.count), (0, 0));
    let repaired = encoded.repair(Scope::Lost).unwrap();
    assert_eq!(repaired.mended_units, [0, 0, 1, 0, 1, 0]);
    assert!(repaired.read_everything && repaired.rebuilt_shards.is_empty());
    encoded.assert_as_at_first();
}

#[test]
fn too_little_that_is_left_is_named_with_reasons() {
    let striping = striping("rs:4+2", 100);
    let encoded = Encoded::new(&striping, 3 * striping.stripe_bytes(), 2);
    encoded.remove(0);
    encoded.change(1, |bytes| bytes.truncate(striping.offset(2) as usize + 5));
    encoded.change(5, |bytes| bytes[striping.offset(2) as usize + 50] ^= 4);
    let message = encoded.decode().unwrap_err().to_string();
    for part in [
        "stripe 2 (bytes 800 to 1200 of the file)",
        "rs:4+2 needs 4 good shards there, and 3 are",
        "shard 0 missing",
        "shard 1 cut off",
        "shard 5 block 0 damaged",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The two lost shards can still be rebuilt in stripes where shard 5 is good, but not as a
    // whole.
    encoded.repair(Scope::Lost).unwrap_err();
    assert!(!encoded.path(0).exists());
    assert_eq!(encoded.verify().lost_stripes, 1);
}

#[test]
fn lost_shards_give_what_is_good_in_them_when_it_is_needed() {
    let striping = striping("rs:4+2", 100);
    let encoded = Encoded::new(&striping, 4 * striping.stripe_bytes(), 2);
    // Four of six shards are not whole, but no stripe misses more than two units.
    for (shard, stripe) in [(0, 3), (1, 3)] {
        encoded.change(shard, |bytes| bytes.truncate(striping.offset(stripe) as usize));
    }
    for shard in [2, 3] {
        encoded.change(shard, |bytes| bytes[20] ^= 1);
        encoded.change(shard, |bytes| bytes[striping.offset(0) as usize + 9] ^= 1);
    }
    encoded.decode().unwrap();
    assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [0, 1, 2, 3]);
    encoded.assert_as_at_first();
}

#[test]
fn units_that_lie_elsewhere_are_not_taken() {
    let striping = striping("copies:3", 100);
    let encoded = Encoded::new(&striping, 400, 2);
    let unit = striping.offset(1) as usize..striping.offset(2) as usize;
    // A unit of another stripe of the same shard, as after a write to a wrong place.
    let other = encoded.originals[0][striping.offset(2) as usize..][..unit.len()].to_vec();
    encoded.change(0, |bytes| bytes[unit.clone()].copy_from_slice(&other));
    // A unit of the same stripe of another shard, whose bytes are even equal here.
    let twin = encoded.originals[2][unit.clone()].to_vec();
    encoded.change(1, |bytes| bytes[unit].copy_from_slice(&twin));
    assert_eq!(named(&encoded), [0, 1]);
    assert_eq!(encoded.decode().unwrap().rebuilt_units, 1);
    encoded.repair(Scope::All).unwrap();
    encoded.assert_as_at_first();
}

#[test]
fn parities_that_are_not_of_the_data_are_noticed() {
    // Two encodings of different files with the same id, as a faulty encoder could make them.
    let striping = striping("rs:4+2", 100);
    let (encoded, other) = (Encoded::new(&striping, 800, 1), Encoded::new(&striping, 800, 2));
    // The record of a unit binds it to id, shard and stripe, so the test forges those of the other
    // encoding.
    let manifest = fs::read(encoded.manifest()).unwrap();
    let mut shards: Vec<Vec<u8>> = (0..6).map(|shard| encoded.shard(shard)).collect();
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    let at = striping.offset(1) as usize;
    shards[4][at + 8..at + 108].copy_from_slice(&other.shard(4)[at + 8..at + 108]);
    let checksum = crc(&shards[4][at + 8..at + 108]).to_le_bytes();
    shards[4][at + 4..at + 8].copy_from_slice(&checksum);
    let mut place = encoded.encoding.id.0.to_le_bytes().to_vec();
    place.extend(4u32.to_le_bytes());
    place.extend(1u64.to_le_bytes());
    place.extend(100u64.to_le_bytes());
    place.extend(checksum);
    shards[4][at..at + 4].copy_from_slice(&crc(&place).to_le_bytes());
    fs::write(encoded.path(4), &shards[4]).unwrap();
    assert_eq!(manifest, fs::read(encoded.manifest()).unwrap());
    let findings = encoded.verify();
    assert!(findings.bad_units.iter().all(|bad| bad.count == 0), "{findings:?}");
    assert_eq!(findings.inconsistent.count, 1);
    assert_eq!(findings.inconsistent.first, [(1, Some(4))]);
    // And decode does not return a file that such a parity would damage.
    encoded.remove(0);
    encoded.remove(5);
    assert!(matches!(encoded.decode(), Err(Error::WrongFile { .. })));
}

#[test]
fn a_shard_without_a_valid_header_still_serves() {
    let striping = striping("rs:2+1", 100);
    let encoded = Encoded::new(&striping, 1000, 2);
    encoded.change(0, |bytes| bytes[..512].fill(0));
    encoded.remove(1);
    assert_eq!(encoded.open().unwrap().shards[0].state, ShardState::BadHeader);
    encoded.decode().unwrap();
    encoded.repair(Scope::Lost).unwrap();
    encoded.assert_as_at_first();
}
