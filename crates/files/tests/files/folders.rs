//! Files in wrong places, and wrong kinds of files.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use fieldstone_files::{
    Error, Folder, Input, ManifestState, Output, Progress, Scope, ShardState, Striping,
};
use tempfile::TempDir;

use crate::support::{CODES, Encoded, names, striping};

fn sample(seed: u64) -> Encoded {
    Encoded::new(&striping("rs:4+2", 100), 1234, seed)
}

#[test]
fn the_manifest_may_be_lost_or_damaged() {
    for code in CODES {
        let encoded = Encoded::new(&striping(code, 1), 777, 4);
        let text = fs::read(encoded.manifest()).unwrap();
        fs::remove_file(encoded.manifest()).unwrap();
        assert_eq!(encoded.open().unwrap().manifest, ManifestState::Missing);
        encoded.decode().unwrap();
        assert!(encoded.repair(Scope::Lost).unwrap().rebuilt_manifest);
        assert_eq!(fs::read(encoded.manifest()).unwrap(), text);
        fs::write(encoded.manifest(), b"{}").unwrap();
        assert!(matches!(encoded.open().unwrap().manifest, ManifestState::Damaged(_)));
        encoded.decode().unwrap();
        encoded.repair(Scope::Lost).unwrap();
        encoded.assert_as_at_first();
    }
}

#[test]
fn swapped_names_are_harmless_and_named() {
    let encoded = sample(1);
    let aside = encoded.folder().join("aside");
    for (from, to) in [(0, 3), (4, 1)] {
        fs::rename(encoded.path(from), &aside).unwrap();
        fs::rename(encoded.path(to), encoded.path(from)).unwrap();
        fs::rename(&aside, encoded.path(to)).unwrap();
    }
    assert_eq!(encoded.decode().unwrap().rebuilt_units, 0);
    let folder = encoded.open().unwrap();
    for (shard, lies_in) in [(0, 3), (3, 0), (1, 4), (4, 1)] {
        assert_eq!(folder.shards[shard].state, ShardState::Misnamed);
        assert_eq!(folder.shards[shard].path, encoded.path(lies_in));
    }
    drop(folder);
    // The repair overwrites no file that may be the only copy.
    let message = encoded.repair(Scope::Lost).unwrap_err().to_string();
    assert!(message.contains("shard.3 is shard 0; rename it to shard.0 first"), "{message}");
    assert_eq!(encoded.decode().unwrap().rebuilt_units, 0);
}

/// An encode that is killed while it gives its shards their names leaves some shards without names.
#[test]
fn a_finished_shard_is_read_before_it_has_its_name() {
    let part = |encoded: &Encoded, shard: usize| {
        let path = encoded.path(shard);
        path.with_file_name(format!("shard.{shard}.part"))
    };
    for named in 0..=6 {
        let encoded = sample(1);
        for shard in named..6 {
            fs::rename(encoded.path(shard), part(&encoded, shard)).unwrap();
        }
        fs::remove_file(encoded.manifest()).unwrap();
        if named == 0 {
            let message = encoded.open().err().unwrap().to_string();
            assert!(message.contains("an encode was interrupted here"), "{message}");
            continue;
        }
        assert_eq!(encoded.decode().unwrap().rebuilt_units, 0);
        let states: Vec<bool> =
            encoded.open().unwrap().shards.iter().map(|shard| shard.is_good()).collect();
        assert_eq!(states, (0..6).map(|shard| shard < named).collect::<Vec<_>>());
        let repaired = encoded.repair(Scope::Lost).unwrap();
        assert_eq!(repaired.named_shards, (named..6).collect::<Vec<_>>());
        assert!(repaired.rebuilt_shards.is_empty() && repaired.read_everything);
        encoded.assert_as_at_first();
    }
}

#[test]
fn an_unfinished_shard_is_not_read() {
    let encoded = sample(1);
    let part = encoded.folder().join("shard.2.part");
    fs::rename(encoded.path(2), &part).unwrap();
    let whole = fs::read(&part).unwrap();
    let mut without_header = whole.clone();
    without_header[..512].fill(0);
    let cut_off = whole[..whole.len() - 1].to_vec();
    for unfinished in [without_header, cut_off, encoded.shard(3)] {
        fs::write(&part, unfinished).unwrap();
        assert_eq!(encoded.open().unwrap().shards[2].state, ShardState::Missing);
        encoded.decode().unwrap();
    }
    assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [2]);
    encoded.assert_as_at_first();
    // A shard with a bad unit, after a power failure, is repaired before it gets its name.
    let mut bytes = whole;
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(encoded.path(2)).unwrap();
    fs::write(&part, bytes).unwrap();
    encoded.decode().unwrap();
    let repaired = encoded.repair(Scope::Lost).unwrap();
    assert_eq!((&repaired.named_shards[..], repaired.mended_units[2]), (&[2][..], 1));
    encoded.assert_as_at_first();
}

#[test]
fn a_copy_of_another_shard_counts_as_a_missing_one() {
    let encoded = sample(1);
    fs::copy(encoded.path(1), encoded.path(5)).unwrap();
    assert_eq!(encoded.open().unwrap().shards[5].state, ShardState::NameTaken(1));
    encoded.decode().unwrap();
    assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [5]);
    encoded.assert_as_at_first();
}

#[test]
fn shards_of_another_encoding_are_not_used_and_not_overwritten() {
    let (encoded, other) = (sample(1), sample(2));
    fs::copy(other.path(2), encoded.path(2)).unwrap();
    let id = other.encoding.id;
    assert_eq!(encoded.open().unwrap().shards[2].state, ShardState::Foreign(id));
    encoded.decode().unwrap();
    let message = encoded.repair(Scope::Lost).unwrap_err().to_string();
    assert!(message.contains("shard.2 belongs to another encoding"), "{message}");
    assert!(encoded.shard(2) == other.shard(2), "a foreign shard was overwritten");
    // Without the manifest no program can know which encoding is the right one.
    fs::remove_file(encoded.manifest()).unwrap();
    let message = encoded.open().err().unwrap().to_string();
    assert!(message.contains(&id.to_string()), "{message}");
    assert!(message.contains(&encoded.encoding.id.to_string()), "{message}");
}

#[test]
fn a_folder_without_an_encoding_is_told_from_a_damaged_one() {
    let root = TempDir::new().unwrap();
    let message = || Folder::open(root.path()).err().unwrap().to_string();
    assert!(message().contains("neither a manifest.json nor a shard"), "{}", message());
    fs::write(root.path().join("shard.0.part"), b"half").unwrap();
    assert!(message().contains("an encode was interrupted"), "{}", message());
    fs::write(root.path().join("manifest.json"), b"x").unwrap();
    fs::write(root.path().join("shard.0"), b"x").unwrap();
    assert!(message().contains("is damaged (it is not a JSON object)"), "{}", message());
    let missing = Folder::open(&root.path().join("nothing")).err().unwrap().to_string();
    assert!(missing.contains("cannot open") && missing.contains("nothing"), "{missing}");
}

#[test]
fn newer_formats_are_refused_by_name() {
    let encoded = sample(3);
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    encoded.change(3, |bytes| {
        bytes[12] = 2;
        let sum = crc(&bytes[12..512]).to_le_bytes();
        bytes[8..12].copy_from_slice(&sum);
    });
    let message = encoded.decode().unwrap_err().to_string();
    assert!(message.contains("shard.3 has format 2"), "{message}");
    assert!(message.contains("use a newer one"), "{message}");
    encoded.repair(Scope::All).unwrap_err();
    // The checksum of a manifest does not depend on its format.
    let sum = crc(br#"{"format":7,"leaves":"many"}"#);
    let text = format!(r#"{{"leaves": "many", "format": 7, "crc32c": "{sum:08x}"}}"#);
    fs::write(encoded.manifest(), text).unwrap();
    encoded.change(3, |bytes| bytes[12] = 1);
    let message = encoded.decode().unwrap_err().to_string();
    assert!(message.contains("manifest.json has format 7"), "{message}");
}

#[test]
fn an_interrupted_encode_looks_like_nothing_and_can_be_run_again() {
    let striping = striping("rs:4+2", 100);
    let root = TempDir::new().unwrap();
    for name in ["shard.0.part", "shard.5.part", "manifest.json.part"] {
        fs::write(root.path().join(name), vec![0; 2000]).unwrap();
    }
    assert!(matches!(Folder::open(root.path()), Err(Error::NothingHere { .. })));
    let encode = |path: &Path| {
        let input = Input { bytes: Box::new(Cursor::new([7; 500])), name: "sevens".into() };
        fieldstone_files::encode(input, path, &striping, 1, &Progress::default())
    };
    // The encode removes no file that might be the user's own.
    let precious = root.path().join("shard.x.part");
    fs::write(&precious, b"precious").unwrap();
    let message = encode(root.path()).unwrap_err().to_string();
    assert!(message.contains("is not empty (shard.x.part is in it)"), "{message}");
    assert_eq!(names(root.path()).len(), 4);
    fs::remove_file(&precious).unwrap();
    encode(root.path()).unwrap();
    assert_eq!(names(root.path()).len(), 7);
}

#[test]
fn only_one_may_change_a_folder_and_nobody_reads_it_then() {
    let encoded = sample(5);
    let reader = encoded.open().unwrap();
    assert!(matches!(encoded.repair(Scope::Lost), Err(Error::InUse(_))));
    encoded.open().unwrap();
    drop(reader);
    encoded.repair(Scope::Lost).unwrap();
}

#[test]
fn outputs_that_exist_are_kept() {
    let encoded = sample(6);
    let root = TempDir::new().unwrap();
    let out = root.path().join("out");
    let decode = || {
        let folder = encoded.open().unwrap();
        fieldstone_files::decode(&folder, Output::File(out.clone()), 1, &Progress::default())
    };
    fs::write(root.path().join("out.part"), b"mine").unwrap();
    assert!(matches!(decode(), Err(Error::OutputExists(path)) if path.ends_with("out.part")));
    fs::remove_file(root.path().join("out.part")).unwrap();
    fs::write(&out, b"mine").unwrap();
    assert!(matches!(decode(), Err(Error::OutputExists(path)) if path == out));
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    fs::remove_file(&out).unwrap();
    std::os::unix::fs::symlink("nowhere", &out).unwrap();
    assert!(matches!(decode(), Err(Error::OutputExists(_))), "a dangling link was followed");
}

#[test]
fn an_empty_file_needs_nothing_but_its_manifest() {
    let encoded = Encoded::new(&Striping::new("clay:4+2".parse().unwrap(), None).unwrap(), 0, 0);
    (0..6).for_each(|shard| encoded.remove(shard));
    encoded.decode().unwrap();
    assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards.len(), 6);
    encoded.assert_as_at_first();
}
