//! A folder for one encoding, and the operations of the tests on it.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use fieldstone_files::{
    Coders, Decoded, Encoding, Error, Findings, Folder, Input, Output, Progress, Repaired, Scope,
    Striping,
};
use tempfile::TempDir;

/// Every family, with codes that are small enough for many encodes in a test.
pub const CODES: [&str; 16] = [
    "rs:4+2",
    "rs:1+1",
    "rs:7+3",
    "rs-van:5+3",
    "jerasure-van:4+2",
    "jerasure-van:3+2,w=16",
    "jerasure-van:3+2,w=32",
    "jerasure-r6:5+2",
    "cauchy-orig:3+3,ps=8",
    "cauchy-good:4+2,ps=4",
    "zigzag:4+2",
    "zigzag:4+3",
    "clay:4+2",
    "clay:5+3",
    "copies:3",
    "copies:1",
];

/// An encoding in a temporary folder.
pub struct Encoded {
    root: TempDir,
    /// The file that was encoded.
    pub data: Vec<u8>,
    /// Its encoding.
    pub encoding: Encoding,
    /// The original shard files.
    pub originals: Vec<Vec<u8>>,
}

/// In memory if possible, because every encode waits for the disk several times.
fn temporary_folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder is made")
}

/// Bytes without any pattern.
pub fn noise(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len_bytes).map(|_| next()).collect()
}

/// Units of `granules` times the code's granule.
pub fn striping(code: &str, granules: u64) -> Striping {
    let profile: fieldstone_codes::Profile = code.parse().expect("a code of the list");
    let code = profile.code();
    let granule_bytes = code.layout().granule_bytes(code.elements()) as u64;
    Striping::new(profile, Some(granules * granule_bytes)).expect("a multiple of the granule")
}

impl Encoded {
    pub fn new(striping: &Striping, len_bytes: usize, seed: u64) -> Self {
        Self::with(striping, len_bytes, seed, &mut Coders::software(3))
    }

    pub fn with(striping: &Striping, len_bytes: usize, seed: u64, coders: &mut Coders) -> Self {
        let root = temporary_folder();
        let data = noise(len_bytes, seed);
        let input = Input { bytes: Box::new(Cursor::new(&data)), name: "noise".into() };
        let progress = Progress::default();
        let encoding = fieldstone_files::encode_with(
            input,
            &root.path().join("e"),
            striping,
            coders,
            &progress,
        )
        .expect("the folder is new");
        assert_eq!(progress.done_bytes(), len_bytes as u64);
        let mut encoded = Self { root, data, encoding, originals: Vec::new() };
        encoded.originals = (0..striping.shards()).map(|shard| encoded.shard(shard)).collect();
        encoded
    }

    pub fn folder(&self) -> PathBuf {
        self.root.path().join("e")
    }

    pub fn path(&self, shard: usize) -> PathBuf {
        self.folder().join(fieldstone_files::shard_name(shard))
    }

    pub fn manifest(&self) -> PathBuf {
        self.folder().join(fieldstone_files::MANIFEST_FILE)
    }

    /// The bytes of a shard file.
    pub fn shard(&self, shard: usize) -> Vec<u8> {
        fs::read(self.path(shard)).expect("the shard is there")
    }

    pub fn remove(&self, shard: usize) {
        fs::remove_file(self.path(shard)).expect("the shard is there");
    }

    /// Changes the bytes of a shard file.
    pub fn change(&self, shard: usize, how: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.shard(shard);
        how(&mut bytes);
        fs::write(self.path(shard), bytes).expect("the shard is written");
    }

    pub fn open(&self) -> Result<Folder, Error> {
        Folder::open(&self.folder())
    }

    /// Decodes into a file, and compares.
    pub fn decode(&self) -> Result<Decoded, Error> {
        let out = self.root.path().join("out");
        let progress = Progress::default();
        let decoded =
            fieldstone_files::decode(&self.open()?, Output::File(out.clone()), 2, &progress);
        match &decoded {
            Ok(_) => {
                assert!(
                    fs::read(&out).expect("decode made it") == self.data,
                    "other bytes than were encoded"
                );
                fs::remove_file(&out).expect("decode made it");
            }
            Err(_) => assert!(!out.exists(), "a failed decode leaves a file"),
        }
        assert_eq!(names(self.root.path()).len(), 1, "leftovers");
        decoded
    }

    /// Decodes into a stream.
    pub fn decode_stream(&self, jobs: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let output = Output::Stream { bytes: Box::new(&mut bytes), name: "stream".into() };
        fieldstone_files::decode(&self.open()?, output, jobs, &Progress::default())?;
        Ok(bytes)
    }

    pub fn verify(&self) -> Findings {
        let folder = self.open().expect("the encoding is found");
        fieldstone_files::verify(&folder, 2, &Progress::default()).expect("damage is no error")
    }

    /// True if neither the files nor their content show an error.
    pub fn is_clean(&self) -> bool {
        let folder = self.open().expect("the encoding is found");
        folder.shards.iter().all(|shard| shard.is_good())
            && folder.manifest == fieldstone_files::ManifestState::Good
            && self.verify().is_clean()
    }

    pub fn repair(&self, scope: Scope) -> Result<Repaired, Error> {
        let folder = Folder::open_to_change(&self.folder())?;
        fieldstone_files::repair(&folder, scope, 2, &Progress::default())
    }

    /// Checks that all shard files have their original bytes, and that there are no other files.
    pub fn assert_as_at_first(&self) {
        for (shard, original) in self.originals.iter().enumerate() {
            assert!(self.shard(shard) == *original, "shard {shard} differs");
        }
        assert_eq!(names(&self.folder()).len(), self.originals.len() + 1);
        assert!(self.is_clean());
    }
}

/// Names in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("the folder is there");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("the folder is read").file_name().to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}
