//! Decodes an encoding back into the file.
//!
//! Each thread takes the next stripe, reads its data units and rebuilds those that are missing or
//! bad. It writes the units to their place in a file, or in order to a stream. Before a file gets
//! its name, the whole file is compared with the checksum of the original file.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checksum::{StreamChecksum, crc32c_of};
use crate::coder::Coders;
use crate::error::Error;
use crate::folder::Folder;
use crate::output::{NewFile, sync_folder};
use crate::read::{ReadCounts, StripeReader};
use crate::workers::{self, Progress, Sequencer, Stripes, lock};

/// The output of a decode.
pub enum Output<'a> {
    /// Into a new file.
    File(PathBuf),
    /// A stream, which only takes bytes one after the other.
    Stream {
        /// The stream.
        bytes: Box<dyn Write + Send + 'a>,
        /// Its name in errors.
        name: PathBuf,
    },
}

/// The result of a decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Units that were rebuilt from other units.
    pub rebuilt_units: u64,
    /// Bytes of units read.
    pub read_bytes: u64,
}

/// The destination of stripes' units.
enum Sink<'a> {
    File(NewFile),
    Stream { bytes: Sequencer<Box<dyn Write + Send + 'a>>, name: PathBuf },
}

/// Decodes the encoding in `folder`, in `jobs` threads on the CPU.
///
/// # Errors
/// As [`decode_with`].
pub fn decode(
    folder: &Folder,
    output: Output<'_>,
    jobs: usize,
    progress: &Progress,
) -> Result<Decoded, Error> {
    decode_with(folder, output, &mut Coders::software(jobs), progress)
}

/// Decodes the encoding in `folder`, in a thread for each coder.
///
/// # Errors
/// The output exists or cannot be written, or a stripe has too few good shards. Then no file is
/// made.
pub fn decode_with(
    folder: &Folder,
    output: Output<'_>,
    coders: &mut Coders,
    progress: &Progress,
) -> Result<Decoded, Error> {
    let sink = match output {
        Output::File(path) => {
            if path.symlink_metadata().is_ok() {
                return Err(Error::OutputExists(path));
            }
            Sink::File(NewFile::create(&path, false)?)
        }
        Output::Stream { bytes, name } => Sink::Stream { bytes: Sequencer::new(bytes), name },
    };
    let encoding = &folder.encoding;
    let (stripes, counts) = (Stripes::new(folder.present_stripes()), ReadCounts::default());
    let (checksum, rebuilt) = (Mutex::new(StreamChecksum::default()), AtomicU64::new(0));
    let step = |reader: &mut StripeReader<'_>| {
        let Some(stripe) = stripes.next() else { return Ok(false) };
        rebuilt.fetch_add(load_data(reader, encoding.striping.k(), stripe)?, Ordering::Relaxed);
        let parts = file_parts(reader, encoding.data_len(stripe));
        let crc = crc32c_of(parts.iter().copied());
        lock(&checksum).add(stripe, crc, encoding.data_len(stripe) as u64);
        let more = sink.write(stripe, encoding.stripe_start(stripe), &parts)?;
        progress.add(encoding.data_len(stripe));
        Ok(more)
    };
    let guarded = |reader: &mut StripeReader<'_>| step(reader).inspect_err(|_| sink.give_up());
    workers::run(coders, |coder| StripeReader::new(folder, &counts, coder), guarded)?;
    folder.check_all_present()?;
    let (expected, found) = (encoding.file_crc, lock(&checksum).value());
    if expected != found {
        return Err(Error::WrongFile { expected, found });
    }
    sink.finish()?;
    let read_bytes = counts.data_bytes.load(Ordering::Relaxed);
    Ok(Decoded { rebuilt_units: rebuilt.load(Ordering::Relaxed), read_bytes })
}

/// Loads all data units of a stripe. Returns the number of rebuilt units.
fn load_data(reader: &mut StripeReader<'_>, k: usize, stripe: u64) -> Result<u64, Error> {
    reader.start(stripe);
    let lost: Vec<usize> = (0..k).filter(|&shard| !reader.load_whole(shard)).collect();
    if !lost.is_empty() {
        reader.recover(&lost)?;
    }
    Ok(lost.len() as u64)
}

/// The parts of the data units that belong to the file.
fn file_parts<'a>(reader: &'a StripeReader<'_>, data_len: usize) -> Vec<&'a [u8]> {
    let unit_len = reader.unit(0).len();
    let units = (0..data_len.div_ceil(unit_len)).map(|shard| {
        let count = unit_len.min(data_len - shard * unit_len);
        &reader.unit(shard)[..count]
    });
    units.collect()
}

impl Sink<'_> {
    /// Writes the parts of a stripe. False if another thread has failed.
    fn write(&self, stripe: u64, start: u64, parts: &[&[u8]]) -> Result<bool, Error> {
        match self {
            Self::File(file) => {
                let mut offset = start;
                for part in parts {
                    file.write(part, offset)?;
                    offset += part.len() as u64;
                }
                Ok(true)
            }
            Self::Stream { bytes, name } => {
                let written = bytes
                    .take(stripe, |bytes| parts.iter().try_for_each(|part| bytes.write_all(part)));
                match written {
                    None => Ok(false),
                    Some(result) => result.map_err(Error::io("write to", name)).map(|()| true),
                }
            }
        }
    }

    /// Ends the waits of all threads at the sequencer.
    fn give_up(&self) {
        if let Self::Stream { bytes, .. } = self {
            bytes.end();
        }
    }

    fn finish(self) -> Result<(), Error> {
        match self {
            Self::File(file) => {
                file.sync()?;
                let path = file.path().to_path_buf();
                file.publish()?;
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                sync_folder(parent.unwrap_or(std::path::Path::new(".")))
            }
            Self::Stream { bytes, name } => {
                bytes.into_inner().flush().map_err(Error::io("write to", &name))
            }
        }
    }
}
