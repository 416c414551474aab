//! Folders that an attacker made to do harm: links, pipes and devices among the files, and headers
//! and manifests that claim more data than there is.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crc_fast::{CrcAlgorithm, checksum};
use fieldstone_files::{
    Error, FileKind, Folder, Input, MAX_FILE_BYTES, MAX_MANIFEST_BYTES, ManifestState, Output,
    Progress, Scope, ShardState, UnitFlaw,
};
use tempfile::TempDir;

use crate::support::{Encoded, striping};

fn sample() -> Encoded {
    Encoded::new(&striping("rs:4+2", 100), 1234, 14)
}

/// Replaces `path` by a file of this kind.
fn plant(kind: FileKind, path: &Path, target: &Path) {
    let _ = fs::remove_file(path);
    match kind {
        FileKind::Link => symlink(target, path).expect("a link is made"),
        FileKind::Folder => fs::create_dir(path).expect("a folder is made"),
        FileKind::Pipe => {
            let path = CString::new(path.as_os_str().as_bytes()).expect("no zeros");
            // SAFETY: the path ends with a zero.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }
        FileKind::Socket => drop(UnixListener::bind(path).expect("a socket is made")),
        FileKind::Device => panic!("only root makes devices"),
    }
}

const KINDS: [FileKind; 4] = [FileKind::Link, FileKind::Folder, FileKind::Pipe, FileKind::Socket];

/// A file outside the folder that no job may change.
struct Outside {
    _root: TempDir,
    path: std::path::PathBuf,
    bytes: Vec<u8>,
}

impl Outside {
    fn new(bytes: Vec<u8>) -> Self {
        let root = TempDir::new().expect("a folder is made");
        let path = root.path().join("outside");
        fs::write(&path, &bytes).expect("it is written");
        Self { _root: root, path, bytes }
    }

    fn assert_untouched(&self) {
        let bytes = fs::read(&self.path).expect("it is there");
        assert!(bytes == self.bytes, "a file outside was written to");
    }
}

#[test]
fn a_shard_that_is_no_regular_file_is_not_opened() {
    for kind in KINDS {
        let encoded = sample();
        // The link's target would be a valid shard.
        let outside = Outside::new(encoded.shard(2));
        plant(kind, &encoded.path(2), &outside.path);
        assert_eq!(encoded.open().unwrap().shards[2].state, ShardState::NotRegular(kind));
        assert_eq!(encoded.decode().unwrap().rebuilt_units, 4);
        assert_eq!(encoded.verify().lost_stripes, 0);
        for scope in [Scope::Lost, Scope::All] {
            let error = encoded.repair(scope).unwrap_err();
            let names = matches!(&error, Error::NotRegular { path, found }
                if *path == encoded.path(2) && *found == kind);
            assert!(names, "{error}");
        }
        outside.assert_untouched();
        // Without it, too few shards are left; the message names its kind.
        encoded.remove(0);
        encoded.remove(1);
        let message = encoded.decode().unwrap_err().to_string();
        assert!(message.contains(&format!("shard 2 is {kind}")), "{message}");
    }
}

#[test]
fn a_manifest_that_is_no_regular_file_is_not_opened() {
    for kind in KINDS {
        let encoded = sample();
        let outside = Outside::new(fs::read(encoded.manifest()).unwrap());
        plant(kind, &encoded.manifest(), &outside.path);
        assert_eq!(encoded.open().unwrap().manifest, ManifestState::NotRegular(kind));
        encoded.decode().unwrap();
        let error = encoded.repair(Scope::Lost).unwrap_err();
        assert!(matches!(error, Error::NotRegular { found, .. } if found == kind), "{error}");
        outside.assert_untouched();
    }
}

#[test]
fn what_lies_under_a_temporary_name_is_not_written_to() {
    for kind in KINDS {
        for name in ["shard.2.part", "manifest.json.part"] {
            let encoded = sample();
            let outside = Outside::new(vec![7; 100]);
            encoded.remove(2);
            fs::remove_file(encoded.manifest()).unwrap();
            plant(kind, &encoded.folder().join(name), &outside.path);
            encoded.decode().unwrap();
            let error = encoded.repair(Scope::Lost).unwrap_err();
            let names = matches!(&error, Error::NotRegular { path, found }
                if path.ends_with(name) && *found == kind);
            assert!(names, "{error}");
            outside.assert_untouched();
        }
        let (root, outside) = (TempDir::new().unwrap(), Outside::new(vec![7; 100]));
        plant(kind, &root.path().join("shard.1.part"), &outside.path);
        let input = Input { bytes: Box::new(&b"12"[..]), name: "two bytes".into() };
        let striping = striping("rs:4+2", 1);
        let made = fieldstone_files::encode(input, root.path(), &striping, 1, &Progress::default());
        assert!(matches!(made, Err(Error::NotRegular { found, .. }) if found == kind));
        outside.assert_untouched();
    }
}

/// Two names of one file. The other name may belong to any user.
#[test]
fn a_hard_link_under_a_temporary_name_is_not_written_through() {
    let encoded = sample();
    let victim = encoded.folder().join("victim");
    fs::write(&victim, [7; 100]).unwrap();
    fs::hard_link(&victim, encoded.folder().join("shard.2.part")).unwrap();
    encoded.remove(2);
    assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [2]);
    assert_eq!(fs::read(&victim).unwrap(), [7; 100]);
    fs::remove_file(victim).unwrap();
    encoded.assert_as_at_first();
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_not_mended() {
    for link in [true, false] {
        let encoded = sample();
        encoded.change(3, |bytes| *bytes.last_mut().unwrap() ^= 1);
        let outside = Outside::new(encoded.shard(3));
        let folder = Folder::open_to_change(&encoded.folder()).unwrap();
        if link {
            plant(FileKind::Link, &encoded.path(3), &outside.path);
        } else {
            encoded.remove(3);
            fs::hard_link(&outside.path, encoded.path(3))
                .or_else(|_| fs::copy(&outside.path, encoded.path(3)).map(|_| ()))
                .unwrap();
        }
        let error = fieldstone_files::repair(&folder, Scope::All, 1, &Progress::default());
        let message = error.unwrap_err().to_string();
        let expected = if link { "is a symbolic link" } else { "was replaced" };
        assert!(message.contains(expected), "{message}");
        outside.assert_untouched();
    }
}

#[test]
fn a_folder_that_is_none_is_not_waited_for() {
    let root = TempDir::new().unwrap();
    let pipe = root.path().join("pipe");
    plant(FileKind::Pipe, &pipe, &pipe);
    let message = Folder::open(&pipe).err().unwrap();
    assert!(matches!(message, Error::Io { .. }), "{message}");
}

#[test]
fn a_manifest_is_read_up_to_its_bound() {
    let encoded = sample();
    let text = fs::read_to_string(encoded.manifest()).unwrap();
    let padded = |len_bytes: u64| format!("{text}{}", " ".repeat(len_bytes as usize - text.len()));
    fs::write(encoded.manifest(), padded(MAX_MANIFEST_BYTES)).unwrap();
    assert_eq!(encoded.open().unwrap().manifest, ManifestState::Good);
    fs::write(encoded.manifest(), padded(MAX_MANIFEST_BYTES + 1)).unwrap();
    let why = format!("it has more than {MAX_MANIFEST_BYTES} bytes");
    assert_eq!(encoded.open().unwrap().manifest, ManifestState::Damaged(why));
    // Longer than any memory, but almost empty on the disk.
    let huge = fs::File::create(encoded.manifest()).unwrap();
    huge.set_len(1 << 42).unwrap();
    assert!(matches!(encoded.open().unwrap().manifest, ManifestState::Damaged(_)));
    encoded.decode().unwrap();
}

/// Changes fields of a header, and corrects its checksum.
fn forge(encoded: &Encoded, shard: usize, at: usize, field: &[u8]) {
    encoded.change(shard, |bytes| {
        bytes[at..at + field.len()].copy_from_slice(field);
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes[12..512]) as u32;
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    });
}

#[test]
fn lengths_are_not_believed_beyond_the_files() {
    // The real length of units, and the longest length for six shards.
    for (unit_bytes, present) in [(100, 3), ((1u64 << 30) / 6, 0)] {
        let stripes = MAX_FILE_BYTES.div_ceil(4 * unit_bytes);
        let encoded = sample();
        fs::remove_file(encoded.manifest()).unwrap();
        for shard in 0..6 {
            forge(&encoded, shard, 32, &MAX_FILE_BYTES.to_le_bytes());
            forge(&encoded, shard, 40, &unit_bytes.to_le_bytes());
        }
        let folder = encoded.open().unwrap();
        assert_eq!(folder.encoding.stripes(), stripes);
        assert!(matches!(folder.shards[0].state, ShardState::WrongLength { .. }));
        drop(folder);
        // A loop over all stripes that the header claims would take for ever.
        let found = encoded.verify();
        assert_eq!(found.lost_stripes, stripes - present);
        assert_eq!(found.bad_units[0].count, found.lost_stripes);
        assert_eq!(found.bad_units[0].first.len(), fieldstone_files::MAX_NAMED);
        assert_eq!(found.bad_units[0].first[15].flaw, UnitFlaw::CutOff);
        let message = encoded.decode().unwrap_err().to_string();
        assert!(message.contains("needs 4 good shards there, and 0 are"), "{message}");
        let error = encoded.repair(Scope::All).unwrap_err();
        assert!(matches!(error, Error::TooFewShards { .. }), "{error}");
        assert!(!encoded.folder().join("shard.0.part").exists());
        let mut stream = Vec::new();
        let output = Output::Stream { bytes: Box::new(&mut stream), name: "stream".into() };
        let folder = encoded.open().unwrap();
        fieldstone_files::decode(&folder, output, 8, &Progress::default()).unwrap_err();
        assert_eq!(stream.len() as u64, present * 400);
        assert_eq!(stream[..], encoded.data[..stream.len()]);
    }
}

#[test]
fn a_code_that_cannot_be_made_is_refused_with_file_and_bound() {
    let encoded = sample();
    let mut code = [0; 72];
    code[..4].copy_from_slice(&10u32.to_le_bytes());
    code[4..14].copy_from_slice(b"clay:60+60");
    let impossible = |says: &str| {
        assert!(says.contains("clay:60+60 is out of bounds"), "{says}");
        assert!(says.contains(&fieldstone_codes::MAX_CODE_TERMS.to_string()), "{says}");
    };
    // One such shard does not prevent reading the others, but the repair does not overwrite it.
    forge(&encoded, 1, 56, &code);
    let folder = encoded.open().unwrap();
    let ShardState::Impossible { reason } = &folder.shards[1].state else { panic!() };
    impossible(reason);
    drop(folder);
    assert_eq!(encoded.decode().unwrap().rebuilt_units, 4);
    let error = encoded.repair(Scope::Lost).unwrap_err();
    assert!(matches!(&error, Error::InTheWay { path, .. } if *path == encoded.path(1)), "{error}");
    impossible(&error.to_string());
    fs::remove_file(encoded.manifest()).unwrap();
    assert_eq!(encoded.decode().unwrap().rebuilt_units, 4);
    // If all shards are such, the error names the first.
    (0..6).for_each(|shard| forge(&encoded, shard, 56, &code));
    let error = encoded.open().err().unwrap();
    assert!(matches!(&error, Error::Impossible { path, .. } if *path == encoded.path(0)));
    impossible(&error.to_string());
}

#[test]
fn one_forged_header_does_not_outvote_the_others() {
    for shard in 0..6 {
        let encoded = sample();
        fs::remove_file(encoded.manifest()).unwrap();
        forge(&encoded, shard, 32, &(1u64 << 50).to_le_bytes());
        assert_eq!(encoded.open().unwrap().shards[shard].state, ShardState::BadHeader);
        encoded.decode().unwrap();
        assert_eq!(encoded.repair(Scope::Lost).unwrap().rebuilt_shards, [shard]);
        encoded.assert_as_at_first();
    }
}
