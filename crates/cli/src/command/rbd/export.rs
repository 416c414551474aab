//! `rbd export`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use fieldstone_block::{Op, Payload, Piece};

use super::super::ceph::CephArgs;
use super::names::PlaceArgs;
use super::transfer::{OpenImage, reads_of};
use crate::progress::byte_bar;

/// Zeroes for a stream, a part at a time.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Options of `rbd export`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image or snapshot, as [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT].
    image: String,
    /// The file to write; - for stdout. It must not exist. [default: the name of the image]
    file: Option<PathBuf>,
}

/// Where the bytes of an image go.
enum Target {
    /// A new file: zeroes stay holes. It gets its length at the end, so that no program takes the
    /// file of an export that was broken off for a whole one.
    File(File),
    /// A stream.
    Stream(Box<dyn Write>),
}

/// Makes a new file.
pub(super) fn new_file(path: &Path) -> anyhow::Result<File> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{}: it exists already; remove it, or name another file", path.display())
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Removes a file that could not be finished.
pub(super) fn remove_part(path: &Path) {
    if path != Path::new("-")
        && let Err(error) = std::fs::remove_file(path)
    {
        eprint_line!("fieldstone: {}: a part of it is left: {error}", path.display());
    }
}

impl Target {
    fn open(path: &Path) -> anyhow::Result<Self> {
        match path == Path::new("-") {
            true => Ok(Target::Stream(Box::new(io::stdout().lock()))),
            false => Ok(Target::File(new_file(path)?)),
        }
    }

    fn write(&mut self, mut offset_bytes: u64, pieces: &[Piece]) -> io::Result<()> {
        for piece in pieces {
            match (piece, &mut *self) {
                (Piece::Data(data), Target::File(_)) if is_zero(data) => {}
                (Piece::Data(data), Target::File(file)) => file.write_all_at(data, offset_bytes)?,
                (Piece::Data(data), Target::Stream(stream)) => stream.write_all(data)?,
                (Piece::Zeroes(_), Target::File(_)) => {}
                (Piece::Zeroes(len), Target::Stream(stream)) => write_zeroes(stream, *len)?,
            }
            offset_bytes += u64::from(piece.len_bytes());
        }
        Ok(())
    }

    fn finish(self, size_bytes: u64) -> io::Result<()> {
        match self {
            Target::File(file) => file.set_len(size_bytes),
            Target::Stream(mut stream) => stream.flush(),
        }
    }
}

fn write_zeroes(stream: &mut dyn Write, len_bytes: u32) -> io::Result<()> {
    let mut rest = len_bytes as usize;
    while rest > 0 {
        let part = rest.min(ZEROES.len());
        stream.write_all(&ZEROES[..part])?;
        rest -= part;
    }
    Ok(())
}

/// True if all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROES.len()).all(|part| *part == ZEROES[..part.len()])
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = args.place.name(&args.image)?;
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(&name.image));
    let mut session = ceph.connect()?;
    let exported = (|| {
        let mut image = OpenImage::open(&mut session, name.spec())?;
        let size_bytes = image.size_bytes();
        let mut target = Target::open(&path)?;
        let bar = byte_bar("export", size_bytes);
        let mut reads = reads_of(0, size_bytes);
        let done = image.pump(
            Op::Read,
            || Ok(reads.next()),
            |read, payload| {
                let Payload::Data(pieces) = payload else { bail!("{}: no data", name.path()) };
                let written = target.write(read.offset_bytes, &pieces);
                written.with_context(|| path.display().to_string())?;
                bar.set_position(read.offset_bytes + read.len_bytes);
                Ok(())
            },
        );
        bar.finish_and_clear();
        let closed = image.close();
        let finished = || target.finish(size_bytes).with_context(|| path.display().to_string());
        let done = done.and(closed).and_then(|()| finished());
        done.inspect_err(|_| remove_part(&path))
    })();
    session.close();
    exported
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pieces() -> [Piece; 4] {
        let data = |byte: u8, len| Piece::Data(vec![byte; len].into());
        [data(7, 5000), Piece::Zeroes(100_000), data(0, 200_000), data(9, 3)]
    }

    fn expected() -> Vec<u8> {
        [vec![7; 5000], vec![0; 300_000], vec![9; 3]].concat()
    }

    #[test]
    fn a_file_gets_what_a_stream_gets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        let mut target = Target::open(&path).expect("a new file");
        target.write(0, &pieces()).expect("written");
        target.finish(305_003).expect("finished");
        let mut found = Vec::new();
        File::open(&path).expect("there").read_to_end(&mut found).expect("read");
        assert!(found == expected());
        let error = Target::open(&path).err().expect("it exists").to_string();
        assert!(error.contains("exists already"), "{error}");

        let place = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        struct Into(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);
        impl Write for Into {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.borrow_mut().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut target = Target::Stream(Box::new(Into(std::rc::Rc::clone(&place))));
        target.write(0, &pieces()).expect("written");
        assert!(*place.borrow() == expected());
    }

    #[test]
    fn zeroes_are_known() {
        assert!(is_zero(&[]) && is_zero(&[0; 100_000]));
        let mut bytes = vec![0; 100_000];
        bytes[99_999] = 1;
        assert!(!is_zero(&bytes));
    }
}
