//! `rbd import`.
//!
//! Blocks of zeroes are not written. A stream has no known length: its image begins with
//! [`FIRST_BYTES`], doubles when it is full, and is cut to the right length at the end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use fieldstone_block::Op;
use fieldstone_host::ceph::Session;
use fieldstone_rbd::ImageSpec;
use fieldstone_rbd::pool::CreateOptions;
use fieldstone_units as units;
use indicatif::ProgressBar;

use super::super::ceph::{self, CephArgs};
use super::Context;
use super::create::LayoutArgs;
use super::export::is_zero;
use super::names::{Name, PlaceArgs};
use super::transfer::{CHUNK_BYTES, OpenImage, Piece};
use crate::progress::byte_bar;

/// The size with which the image of a stream begins.
const FIRST_BYTES: u64 = 1 << 30;

/// Options of `rbd import`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Blocks of this size that are zero are not written.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "4K")]
    sparse_size: u64,
    /// The file to read; - for stdin.
    file: PathBuf,
    /// The new image, as [POOL/[NAMESPACE/]]IMAGE. [default: the name of the file]
    image: Option<String>,
}

/// A file in chunks.
struct Source {
    bytes: Box<dyn Read>,
    path: PathBuf,
    /// The length, if it is known before the end.
    len_bytes: Option<u64>,
    at_bytes: u64,
    block_bytes: usize,
    /// The chunk that is being written, and the parts of it that are left, last first.
    chunk: Bytes,
    parts: Vec<Range<usize>>,
    chunk_at_bytes: u64,
    is_at_end: bool,
}

impl Source {
    fn open(path: &Path, block_bytes: usize) -> anyhow::Result<Self> {
        let (bytes, len_bytes): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(io::stdin()), None)
        } else {
            let mut file = File::open(path).with_context(|| path.display().to_string())?;
            // A pipe cannot seek.
            let len_bytes = file.seek(SeekFrom::End(0)).ok();
            if len_bytes.is_some() {
                file.rewind().with_context(|| path.display().to_string())?;
            }
            (Box::new(file), len_bytes)
        };
        Ok(Self {
            bytes,
            path: path.to_owned(),
            len_bytes,
            at_bytes: 0,
            block_bytes,
            chunk: Bytes::new(),
            parts: Vec::new(),
            chunk_at_bytes: 0,
            is_at_end: false,
        })
    }

    /// The next bytes to write, before `end_bytes`. `None` at that place, or at the end of the
    /// file.
    fn next(&mut self, end_bytes: u64) -> anyhow::Result<Option<Piece>> {
        loop {
            if let Some(part) = self.parts.pop() {
                return Ok(Some(Piece {
                    offset_bytes: self.chunk_at_bytes + part.start as u64,
                    len_bytes: part.len() as u64,
                    data: self.chunk.slice(part),
                }));
            }
            let want = CHUNK_BYTES.min(end_bytes - self.at_bytes);
            if self.is_at_end || want == 0 {
                return Ok(None);
            }
            let mut chunk = Vec::with_capacity(want as usize);
            let read = (&mut self.bytes).take(want).read_to_end(&mut chunk);
            read.with_context(|| self.path.display().to_string())?;
            self.is_at_end = (chunk.len() as u64) < want;
            self.chunk_at_bytes = self.at_bytes;
            self.at_bytes += chunk.len() as u64;
            self.parts = data_parts(&chunk, self.block_bytes);
            self.parts.reverse();
            self.chunk = chunk.into();
        }
    }
}

/// The parts of a chunk that are not zero, in whole blocks.
fn data_parts(chunk: &[u8], block_bytes: usize) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (index, block) in chunk.chunks(block_bytes).enumerate() {
        if is_zero(block) {
            continue;
        }
        let start = index * block_bytes;
        let end = start + block.len();
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(start..end),
        }
    }
    parts
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = match &args.image {
        Some(image) => args.place.image(image)?,
        None => match args.file.file_name().and_then(|name| name.to_str()) {
            Some(file) if args.file != Path::new("-") => args.place.image(file)?,
            _ => bail!("stdin has no name; name the image too"),
        },
    };
    if !(512..=CHUNK_BYTES).contains(&args.sparse_size) || !args.sparse_size.is_power_of_two() {
        bail!("--sparse-size {}: it must be a power of two from 512 to 4M", args.sparse_size);
    }
    let mut source = Source::open(&args.file, args.sparse_size as usize)?;
    let size_bytes = source.len_bytes.unwrap_or(FIRST_BYTES);
    let options = args.layout.options(size_bytes, None)?;
    let mut session = ceph.connect()?;
    let imported = create(&mut session, &name, options).and_then(|()| {
        let bar = byte_bar("import", source.len_bytes.unwrap_or(0));
        let filled = fill(&mut session, &name, &mut source, size_bytes, &bar);
        bar.finish_and_clear();
        filled.inspect_err(|_| remove(&mut session, &name))
    });
    session.close();
    imported
}

fn create(session: &mut Session, name: &Name, options: CreateOptions) -> anyhow::Result<()> {
    let (context, name) = (Context::of(session), name.clone());
    ceph::run(session, async move {
        let pool = context.pool(&name.place).await?;
        pool.create(&name.image, &options).await?;
        Ok(())
    })
}

/// Removes an image that could not be filled.
fn remove(session: &mut Session, name: &Name) {
    let (context, path, name) = (Context::of(session), name.path(), name.clone());
    let removed = ceph::run(session, async move {
        let pool = context.pool(&name.place).await?;
        Ok(pool.remove(&name.image, &mut |_, _| {}).await?)
    });
    if let Err(error) = removed {
        eprint_line!("fieldstone: a part of image {path} is left; remove it: {error:#}");
    }
}

fn resize(session: &mut Session, name: &Name, size_bytes: u64) -> anyhow::Result<()> {
    let (context, name) = (Context::of(session), name.clone());
    ceph::run(session, async move {
        let pool = context.pool(&name.place).await?;
        Ok(pool.resize(&name.image, size_bytes, true, &mut |_, _| {}).await?)
    })
}

fn fill(
    session: &mut Session,
    name: &Name,
    source: &mut Source,
    mut size_bytes: u64,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    loop {
        let spec = ImageSpec { read_only: false, ..name.spec() };
        let mut image = OpenImage::open(session, spec)?;
        let written = image.pump(
            Op::Write,
            || {
                let piece = source.next(size_bytes);
                bar.set_position(source.at_bytes);
                piece
            },
            |_, _| Ok(()),
        );
        let closed = image.close();
        written.and(closed)?;
        if source.len_bytes.is_some() || source.is_at_end {
            break;
        }
        size_bytes *= 2;
        resize(session, name, size_bytes)?;
    }
    match source.len_bytes {
        Some(len) if source.at_bytes < len => bail!(
            "{}: it ended at {} of {len} bytes; was it changed meanwhile?",
            source.path.display(),
            source.at_bytes
        ),
        None if source.at_bytes != size_bytes => resize(session, name, source.at_bytes),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_blocks_are_left_out() {
        let parts = |chunk: &[u8]| -> Vec<(usize, usize)> {
            data_parts(chunk, 8).iter().map(|part| (part.start, part.end)).collect()
        };
        let mut chunk = vec![0; 40];
        assert!(parts(&chunk).is_empty());
        chunk[8] = 1;
        chunk[23] = 1;
        chunk[39] = 1;
        assert_eq!(parts(&chunk), [(8, 24), (32, 40)]);
        assert_eq!(parts(&chunk[..37]), [(8, 24)]);
        assert_eq!(parts(&[1; 5]), [(0, 5)]);
    }

    #[test]
    fn a_source_ends_at_the_limit_and_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let mut bytes = vec![0; CHUNK_BYTES as usize + 100];
        bytes[10] = 1;
        bytes[CHUNK_BYTES as usize + 50] = 1;
        std::fs::write(&path, &bytes).expect("written");
        let mut source = Source::open(&path, 4096).expect("open");
        assert_eq!(source.len_bytes, Some(bytes.len() as u64));
        let first = source.next(CHUNK_BYTES).expect("read").expect("a piece");
        assert_eq!((first.offset_bytes, first.len_bytes), (0, 4096));
        assert!(source.next(CHUNK_BYTES).expect("read").is_none());
        assert!(!source.is_at_end);
        let second = source.next(2 * CHUNK_BYTES).expect("read").expect("a piece");
        assert_eq!((second.offset_bytes, second.len_bytes), (CHUNK_BYTES, 100));
        assert!(source.next(2 * CHUNK_BYTES).expect("read").is_none());
        assert!(source.is_at_end);
    }
}
