//! Every family, every difficult length: the decoded file is the original, for every loss.

use std::io::{self, Cursor, Read};

use fieldstone_files::{Error, Input, Output, Progress, Scope, Striping};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tempfile::TempDir;

use crate::support::{CODES, Encoded, names, noise, striping};

/// Lengths around every possible boundary.
fn awkward_lengths(stripe_bytes: usize, unit_bytes: usize) -> Vec<usize> {
    let around = [0, unit_bytes, stripe_bytes, 2 * stripe_bytes, 3 * stripe_bytes + unit_bytes];
    let mut lengths: Vec<usize> =
        around.iter().flat_map(|&at| [at.saturating_sub(1), at, at + 1]).collect();
    lengths.dedup();
    lengths
}

#[test]
fn every_family_keeps_files_of_every_length() {
    for code in CODES {
        let striping = striping(code, 3);
        let lengths = awkward_lengths(striping.stripe_bytes(), striping.unit_bytes());
        for (seed, len_bytes) in lengths.into_iter().enumerate() {
            let encoded = Encoded::new(&striping, len_bytes, seed as u64);
            assert!(encoded.is_clean(), "{code}, {len_bytes} bytes");
            assert_eq!(encoded.decode().unwrap().rebuilt_units, 0);
            for (shard, original) in encoded.originals.iter().enumerate() {
                assert_eq!(original.len() as u64, encoded.encoding.shard_file_bytes());
                if striping.shards() == 1 {
                    continue;
                }
                encoded.remove(shard);
                encoded.decode().unwrap();
                assert!(encoded.decode_stream(3).unwrap() == encoded.data);
                let repaired = encoded.repair(Scope::Lost).unwrap();
                assert_eq!(repaired.rebuilt_shards, [shard], "{code}, {len_bytes} bytes");
                assert!(encoded.shard(shard) == *original, "{code}, {len_bytes}: {shard}");
            }
        }
    }
}

#[test]
fn a_repair_reads_what_the_plan_names_and_no_more() {
    for (code, shard, share) in [
        ("rs:4+2", 0, 1.0),
        ("jerasure-van:4+2,w=16", 5, 1.0),
        ("cauchy-good:4+2,ps=4", 1, 1.0),
        // Five helpers, half of each; Reed-Solomon reads four shards.
        ("zigzag:4+2", 0, 5.0 / 8.0),
        ("zigzag:4+2", 3, 5.0 / 8.0),
        ("zigzag:4+2", 4, 1.0),
        ("clay:4+2", 0, 5.0 / 8.0),
        ("clay:4+2", 5, 5.0 / 8.0),
        // Six helpers, a third of each.
        ("zigzag:4+3", 2, 2.0 / 4.0),
        ("copies:3", 1, 1.0),
    ] {
        let striping = striping(code, 64);
        let encoded = Encoded::new(&striping, 5 * striping.stripe_bytes() + 77, 3);
        encoded.remove(shard);
        let repaired = encoded.repair(Scope::Lost).unwrap();
        let reed_solomon = encoded.encoding.shard_data_bytes() * striping.k() as u64;
        assert_eq!(repaired.reed_solomon_bytes, reed_solomon, "{code}");
        assert_eq!(repaired.read_bytes as f64, reed_solomon as f64 * share, "{code} {shard}");
        assert_eq!(repaired.written_bytes, encoded.encoding.shard_data_bytes());
        assert!(!repaired.read_everything);
        encoded.assert_as_at_first();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_m_shards_may_be_lost(
        code in select(&CODES[..]),
        granules in 1u64..5,
        stripes in 0usize..4,
        rest in 0usize..2000,
        seed: u64,
        order in subsequence((0..12).collect::<Vec<usize>>(), 0..12),
    ) {
        let striping = striping(code, granules);
        let len_bytes = stripes * striping.stripe_bytes() + rest;
        let encoded = Encoded::new(&striping, len_bytes, seed);
        let lost: Vec<usize> = (order.into_iter())
            .filter(|&shard| shard < striping.shards())
            .take(striping.profile().m())
            .collect();
        lost.iter().for_each(|&shard| encoded.remove(shard));
        encoded.decode().unwrap();
        prop_assert!(encoded.decode_stream(3).unwrap() == encoded.data);
        let repaired = encoded.repair(Scope::Lost).unwrap();
        prop_assert_eq!(repaired.rebuilt_shards, lost);
        encoded.assert_as_at_first();
    }
}

/// Gives a few bytes per read, and fails at the end if the test asks for it.
struct Trickle<'a> {
    bytes: &'a [u8],
    step: usize,
    fail: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.step = self.step % 7 + 1;
        let count = self.step.min(buffer.len()).min(self.bytes.len());
        if count == 0 && self.fail {
            return Err(io::Error::other("the cable is cut"));
        }
        buffer[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Ok(count)
    }
}

#[test]
fn inputs_that_trickle_are_read_to_the_end_and_broken_ones_leave_nothing() {
    let striping = striping("zigzag:4+2", 2);
    let data = noise(1000, 9);
    let root = TempDir::new().unwrap();
    let encode = |folder: &str, fail| {
        let bytes = Box::new(Trickle { bytes: &data, step: 0, fail });
        let input = Input { bytes, name: "trickle".into() };
        let folder = root.path().join(folder);
        fieldstone_files::encode(input, &folder, &striping, 2, &Progress::default())
    };
    let encoding = encode("whole", false).unwrap();
    assert_eq!(encoding.file_bytes, 1000);
    let message = encode("broken", true).unwrap_err().to_string();
    assert!(message.contains("cannot read trickle"), "{message}");
    assert_eq!(names(root.path()), ["whole"]);
    // A folder that existed before is not removed.
    std::fs::create_dir(root.path().join("mine")).unwrap();
    encode("mine", true).unwrap_err();
    assert!(names(&root.path().join("mine")).is_empty());
}

/// Takes some bytes and then fails, like a full disk.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = bytes.len().min(self.0);
        self.0 -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_that_takes_no_more_ends_the_decode() {
    let striping = striping("rs:4+2", 100);
    let encoded = Encoded::new(&striping, 100_000, 1);
    for room in [0, 1, 50_000, 99_999] {
        let output = Output::Stream { bytes: Box::new(Full(room)), name: "pipe".into() };
        let folder = encoded.open().unwrap();
        let error = fieldstone_files::decode(&folder, output, 4, &Progress::default()).unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    }
}

#[test]
fn the_same_file_twice_gives_shards_that_cannot_be_mixed() {
    let striping = striping("rs:4+2", 100);
    let (one, two) = (Encoded::new(&striping, 999, 1), Encoded::new(&striping, 999, 1));
    assert_eq!(one.data, two.data);
    assert_ne!(one.encoding.id, two.encoding.id);
    let input = Input { bytes: Box::new(Cursor::new(vec![0; 10])), name: "zeros".into() };
    let error = fieldstone_files::encode(input, &one.folder(), &striping, 1, &Progress::default());
    assert!(matches!(error, Err(Error::NotEmpty { .. })));
    one.assert_as_at_first();
}

/// docs/formats.md, byte by byte.
#[test]
fn units_lie_where_the_format_says() {
    let striping = Striping::new("rs:2+1".parse().unwrap(), Some(100)).unwrap();
    let data = noise(641, 4);
    let root = TempDir::new().unwrap();
    let input = Input { bytes: Box::new(Cursor::new(&data)), name: "noise".into() };
    // One thread, so that the buffer of the last stripe is full of bytes of earlier stripes.
    fieldstone_files::encode(input, &root.path().join("e"), &striping, 1, &Progress::default())
        .unwrap();
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    for shard in 0..2 {
        let stored = std::fs::read(root.path().join("e").join(format!("shard.{shard}"))).unwrap();
        assert_eq!(stored.len(), 512 + 3 * 108 + 8 + 21);
        for stripe in 0..4 {
            let record = 512 + stripe * 108;
            let unit_bytes = if stripe < 3 { 100 } else { 21 };
            let unit = &stored[record + 8..record + 8 + unit_bytes];
            assert_eq!(stored[record + 4..record + 8], crc(unit).to_le_bytes());
            let start = stripe * 200 + shard * unit_bytes;
            let of_file = &data[start..data.len().min(start + unit_bytes)];
            assert_eq!(&unit[..of_file.len()], of_file);
            assert!(unit[of_file.len()..].iter().all(|&byte| byte == 0), "beyond the end");
        }
        // The last unit of shard 1 is one byte longer than its data.
        assert_eq!(stored[stored.len() - 1] == 0, shard == 1);
    }
}
