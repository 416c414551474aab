//! Reads a LUKS header from the store in steps, and makes the work that opens it.
//!
//! ```text
//!   the first 4 KiB ──> all of the header ──> key material of the slots ──> work, in a thread
//! ```
//!
//! If the device does not begin with a header, the second step looks for the second copy that LUKS2
//! has.

use std::ops::Range;
use std::path::PathBuf;

use fieldstone_luks::{Header, LuksError, Material, PREFIX_BYTES, Passphrase, Probe, Unlocked};

use crate::layer::{OpenFailure, Work, WorkResult};
use crate::pieces::to_bytes;
use crate::{BlockError, Info, Payload};

/// The longest read of a header.
const READ_BYTES: u64 = 1 << 20;

/// What the layer does next.
pub(super) enum Step {
    Wait,
    /// Reads: the number of the part, its place and its length.
    Read(Vec<(usize, u64, u32)>),
    Failed(OpenFailure),
}

enum HeaderPart {
    Prefix,
    Metadata,
    Materials(Header),
}

/// What is read at the moment.
struct Fetch {
    part: HeaderPart,
    ranges: Vec<Range<u64>>,
    /// The parts of all ranges: place, length, and the bytes when they are there.
    parts: Vec<(u64, u32, Option<Vec<u8>>)>,
}

/// A header that is being opened.
pub(super) struct Opening {
    passphrase_file: Option<PathBuf>,
    size_bytes: u64,
    block_bytes: u64,
    fetch: Option<Fetch>,
    work: Option<Work>,
    begun: bool,
}

impl Opening {
    pub(super) fn new(passphrase_file: Option<PathBuf>) -> Self {
        Self {
            passphrase_file,
            size_bytes: 0,
            block_bytes: 1,
            fetch: None,
            work: None,
            begun: false,
        }
    }

    /// Notes the properties of the store. A store that opens has no size.
    pub(super) fn note(&mut self, below: &Info) {
        if !self.begun {
            self.size_bytes = below.size_bytes;
            self.block_bytes = u64::from(below.block_bytes.max(1));
        }
    }

    /// Begins when the store has a size.
    pub(super) fn begin(&mut self) -> Step {
        if self.begun || self.size_bytes == 0 {
            return Step::Wait;
        }
        self.begun = true;
        if self.passphrase_file.is_none() {
            return lasting("the option passphrase-file is missing");
        }
        let prefix = 0..(PREFIX_BYTES as u64).min(self.size_bytes);
        self.fetch(HeaderPart::Prefix, &[prefix])
    }

    fn fetch(&mut self, part: HeaderPart, ranges: &[Range<u64>]) -> Step {
        let mut parts = Vec::new();
        for range in ranges {
            let mut at = range.start - range.start % self.block_bytes;
            // The last block of the store may be incomplete; headers do not reach it.
            let end = range.end.next_multiple_of(self.block_bytes);
            while at < end {
                let step = READ_BYTES.next_multiple_of(self.block_bytes);
                let len = step.min(end - at);
                parts.push((at, u32::try_from(len).unwrap_or(u32::MAX), None));
                at += len;
            }
            if end > self.size_bytes {
                return lasting("the device is shorter than a LUKS header");
            }
        }
        let reads = parts.iter().enumerate().map(|(part, (at, len, _))| (part, *at, *len));
        let reads = reads.collect();
        self.fetch = Some(Fetch { part, ranges: ranges.to_vec(), parts });
        Step::Read(reads)
    }

    /// Takes the answer of a read.
    pub(super) fn read_done(&mut self, part: usize, result: Result<Payload, BlockError>) -> Step {
        let Some(fetch) = &mut self.fetch else { return Step::Wait };
        let (_, len, bytes) = &mut fetch.parts[part];
        match result {
            Ok(Payload::Data(pieces)) => {
                let read = to_bytes(&pieces);
                if read.len() != *len as usize {
                    return passing("the header was read in part");
                }
                *bytes = Some(read.to_vec());
            }
            Ok(_) => return passing("the header was not read"),
            Err(error) => return passing(format!("the header cannot be read: {error}")),
        }
        if fetch.parts.iter().any(|(_, _, bytes)| bytes.is_none()) {
            return Step::Wait;
        }
        let Some(fetch) = self.fetch.take() else { return Step::Wait };
        self.fetched(fetch).unwrap_or_else(|error| lasting(error.to_string()))
    }

    fn fetched(&mut self, fetch: Fetch) -> Result<Step, LuksError> {
        let mut ranges = fetch.ranges.iter().map(|range| fetch.bytes(range)).collect::<Vec<_>>();
        match fetch.part {
            HeaderPart::Prefix => {
                let bytes = ranges.swap_remove(0);
                let wanted = match fieldstone_luks::probe(&bytes) {
                    Probe::Clone => return Err(LuksError::Clone),
                    Probe::Header { metadata_bytes, .. } => metadata_bytes,
                    Probe::Nothing => Probe::SEARCHED_BYTES,
                };
                let wanted = wanted.min(self.size_bytes - self.size_bytes % self.block_bytes);
                if wanted <= bytes.len() as u64 {
                    return self.parsed(Header::parse(&bytes, self.size_bytes)?);
                }
                let metadata = 0..wanted;
                Ok(self.fetch(HeaderPart::Metadata, &[metadata]))
            }
            HeaderPart::Metadata => {
                let bytes = ranges.swap_remove(0);
                self.parsed(Header::parse(&bytes, self.size_bytes)?)
            }
            HeaderPart::Materials(header) => {
                let slots: Vec<u32> = header.materials().map(|(slot, _)| slot).collect();
                let materials = slots.into_iter().zip(ranges);
                let materials = materials.map(|(slot, bytes)| Material { slot, bytes }).collect();
                self.work = self.passphrase_file.take().map(|file| work(header, materials, file));
                Ok(Step::Wait)
            }
        }
    }

    fn parsed(&mut self, header: Header) -> Result<Step, LuksError> {
        let ranges: Vec<Range<u64>> = header.materials().map(|(_, range)| range).collect();
        if ranges.is_empty() {
            // It says why no slot can be used.
            let passphrase = Passphrase::new(vec![0])?;
            header.unlock(&passphrase, &[])?;
        }
        Ok(self.fetch(HeaderPart::Materials(header), &ranges))
    }

    pub(super) fn take_work(&mut self) -> Option<Work> {
        self.work.take()
    }
}

impl Fetch {
    /// The bytes of a range.
    fn bytes(&self, range: &Range<u64>) -> Vec<u8> {
        let mut all = Vec::new();
        for (at, len, bytes) in &self.parts {
            let end = at + u64::from(*len);
            let (from, to) = (range.start.max(*at), range.end.min(end));
            if let Some(bytes) = bytes
                && from < to
                && all.len() as u64 == from - range.start
            {
                all.extend_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        all
    }
}

/// Ends with a failure that another opening would have, too.
fn lasting(reason: impl Into<String>) -> Step {
    Step::Failed(OpenFailure::lasting(reason))
}

/// Ends with a failure that another opening may not have.
fn passing(reason: impl Into<String>) -> Step {
    Step::Failed(OpenFailure::passing(reason))
}

/// Opens the header, in a thread of its own.
fn work(header: Header, materials: Vec<Material>, file: PathBuf) -> Work {
    let unlock = move || {
        let passphrase = Passphrase::read(&file).map_err(|error| error.to_string())?;
        header.unlock(&passphrase, &materials).map_err(|error| match error {
            LuksError::NoSlotOpens { .. } => format!("{error}, of the file {}", file.display()),
            other => other.to_string(),
        })
    };
    Box::new(move || match unlock() {
        Ok(unlocked) => Ok(Box::new(unlocked)),
        Err(reason) => Err(OpenFailure::lasting(reason)),
    })
}

/// What the work gave.
pub(super) fn outcome(result: WorkResult) -> Result<Unlocked, OpenFailure> {
    let unlocked = result?.downcast::<Unlocked>();
    let unlocked = unlocked.map(|unlocked| *unlocked);
    unlocked.map_err(|_| OpenFailure::passing("the work gave no key"))
}
