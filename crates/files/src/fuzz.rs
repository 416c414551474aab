//! Fuzzes the metadata of a shard folder: any headers and manifest as input, and the properties
//! that must hold for all of them.
//!
//! The input's first byte has options: [`MEND`] corrects checksums, because a fuzzer does not guess
//! checksums. The second byte gives the number of shard files, and their length after the header.
//! Then come 512 bytes: the header of all shards, without the shard's number. The rest is the
//! manifest. The properties:
//!
//! - no input causes a panic;
//! - a header or manifest that was understood, written and read again gives the same parameters;
//! - no claimed length makes a job take long: data that no file holds counts as lost, and is not
//!   scanned;
//! - a folder of such files is opened, verified, decoded and repaired, or refused; a decode without
//!   an error gives as many bytes as the manifest says.
//!
//! The cargo-fuzz target in the repository's `fuzz/` folder and a property test use [`folder`];
//! [`seeds`] gives valid inputs to start from.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checksum::crc32c;
use crate::folder::{Folder, MANIFEST_FILE, shard_name};
use crate::header::{self, HEADER_BYTES};
use crate::manifest;
use crate::striping::{EncodingId, EncodingParams};
use crate::{Output, Progress, Scope, decode, repair, verify};

/// Bit of the first byte: correct checksums.
pub const MEND: u8 = 1;
/// Codes with more terms are not made here, because the fuzzer must try many inputs per second.
const MAX_TERMS: usize = 1 << 12;
/// Most bytes of the shard files after their headers.
const MAX_TAIL_BYTES: usize = 15 * TAIL_STEP_BYTES;
const TAIL_STEP_BYTES: usize = 67;

/// The stages that an input has passed, so that a test can judge its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The header was understood.
    pub header: bool,
    /// The manifest was understood.
    pub manifest: bool,
    /// Jobs ran on a folder with both.
    pub jobs: bool,
}

/// Reads `input` as a header and a manifest. If both are understood, runs jobs on a folder with
/// them. The folder is made in `scratch`, and removed again.
///
/// # Panics
/// If a property does not hold: that is the finding. Also if `scratch` cannot be written.
pub fn folder(input: &[u8], scratch: &Path) -> Coverage {
    let (options, rest) = input.split_at(input.len().min(2));
    let [options, files] = [0, 1].map(|at| options.get(at).copied().unwrap_or(0));
    let (front, text) = rest.split_at(rest.len().min(HEADER_BYTES));
    let mut bytes = [0; HEADER_BYTES];
    bytes[..front.len()].copy_from_slice(front);
    let mut text = String::from_utf8_lossy(text).into_owned();
    if options & MEND != 0 {
        mend(&mut bytes);
        text = manifest::mended(&text).unwrap_or(text);
    }
    let described = header::from_bytes(&bytes).ok().map(|(params, _)| params);
    if let Some(params) = described {
        let again = header::from_bytes(&header::to_bytes(&params, 0));
        assert_eq!(again, Ok((params, 0)), "a header changes");
    }
    let manifest = manifest::from_text(&text).ok();
    if let Some(params) = manifest {
        assert_eq!(manifest::from_text(&manifest::to_text(&params)), Ok(params));
    }
    let cheap = |params: &EncodingParams| params.profile.most_terms() <= MAX_TERMS;
    let found: Vec<EncodingParams> = described.into_iter().chain(manifest).collect();
    let jobs = !found.is_empty() && found.iter().all(cheap);
    if jobs {
        let scratch = Scratch::new(scratch);
        write(&scratch.0, &bytes, &text, files, options & MEND != 0).expect("files are written");
        work(&scratch.0);
    }
    Coverage { header: described.is_some(), manifest: manifest.is_some(), jobs }
}

/// Corrects a header's magic and checksum.
fn mend(bytes: &mut [u8; HEADER_BYTES]) {
    bytes[..8].copy_from_slice(b"FSTNFILE");
    let crc = crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Writes a folder: up to 15 shards with the same header except the number.
fn write(
    path: &Path,
    header: &[u8; HEADER_BYTES],
    text: &str,
    files: u8,
    mended: bool,
) -> io::Result<()> {
    let tail = vec![0x5a; usize::from(files >> 4) * TAIL_STEP_BYTES];
    debug_assert!(tail.len() <= MAX_TAIL_BYTES);
    for shard in 0..usize::from(files & 15) {
        let mut bytes = *header;
        if mended {
            bytes[52..56].copy_from_slice(&(shard as u32).to_le_bytes());
            mend(&mut bytes);
        }
        fs::write(path.join(shard_name(shard)), [&bytes[..], &tail].concat())?;
    }
    fs::write(path.join(MANIFEST_FILE), text)
}

/// Runs every job on a folder, if it can be opened.
fn work(path: &Path) {
    let progress = Progress::default();
    let Ok(opened) = Folder::open(path) else { return };
    let encoding = opened.encoding.clone();
    let present = opened.present_stripes();
    let tail_bytes = MAX_TAIL_BYTES as u64;
    assert!(present <= tail_bytes, "{present} stripes in files of {tail_bytes} bytes");
    let findings = verify(&opened, 1, &progress).expect("damage is no error");
    assert!(findings.lost_stripes >= encoding.stripes() - present, "{findings:?}");
    let mut count = Count(0);
    let output = Output::Stream { bytes: Box::new(&mut count), name: PathBuf::from("count") };
    let decoded = decode(&opened, output, 1, &progress);
    match decoded {
        Ok(_) => assert_eq!(count.0, encoding.file_bytes, "a decode of another length"),
        Err(_) => assert!(count.0 <= tail_bytes * 255, "{} bytes of nothing", count.0),
    }
    drop(opened);
    let Ok(opened) = Folder::open_to_change(path) else { return };
    if repair(&opened, Scope::All, 1, &progress).is_ok() {
        drop(opened);
        let again = Folder::open(path).expect("what was repaired can be opened");
        assert!(again.shards.iter().all(super::Shard::is_good), "a repair leaves bad shards");
    }
}

/// Counts bytes, and drops them.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A new folder, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("folder-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("the folder for scratch can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, the files remain in the scratch folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Valid inputs: a header and a manifest of one encoding, for codes of every family.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let codes = [
        ("rs:4+2", 16),
        ("copies:3", 16),
        ("zigzag:4+2", 16),
        ("clay:4+2", 16),
        ("clay:4+3,d=5", 16),
        ("jerasure-van:3+2,w=16", 16),
        ("jerasure-r6:4+2", 16),
        ("cauchy-good:4+2,ps=4", 32),
        ("rs-van:4+2", 16),
    ];
    let seed = |(number, (code, unit_bytes)): (usize, (&str, u64))| {
        let params = EncodingParams {
            id: EncodingId(number as u128 + 1),
            profile: code.parse().expect("a code of the list"),
            unit_bytes,
            file_bytes: 200 * number as u64,
            file_crc: 0,
        };
        let text = manifest::to_text(&params);
        let header = header::to_bytes(&params, 0);
        [&[MEND, 0x46][..], &header, text.as_bytes()].concat()
    };
    codes.into_iter().enumerate().map(seed).collect()
}
