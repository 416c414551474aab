//! `rbd export-diff`: what changed between two states of an image, for `rbd import-diff` of Ceph.
//!
//! ```text
//! "rbd diff v1\n"
//! 'f' text            the older snapshot; without one, all data is in the file
//! 't' text            the snapshot that is reached
//! 's' u64             the size of the image
//! 'w' u64 u64 bytes   data: offset, length
//! 'z' u64 u64         zeroes: offset, length
//! 'e'                 the end
//! ```
//!
//! A text is a u32 length and bytes; numbers are little-endian. Objects that changed are written
//! whole.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use fieldstone_block::{Op, Payload, Piece};
use fieldstone_host::ceph::Session;
use fieldstone_rados::cluster::SnapId;

use super::super::ceph::{self, CephArgs};
use super::export::{is_zero, new_file, remove_part};
use super::info::state_of;
use super::names::{Name, PlaceArgs};
use super::objects::{Objects, Versions, changed_in};
use super::transfer::{OpenImage, Piece as Read, reads_of};
use super::{Context, show_on};
use crate::progress::{byte_bar, counting_bar};

const MAGIC: &[u8] = b"rbd diff v1\n";

/// Options of `rbd export-diff`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The older snapshot. [default: none; the file gets all data]
    #[arg(long, value_name = "SNAPSHOT")]
    from_snap: Option<String>,
    /// The image or snapshot, as [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT].
    image: String,
    /// The file to write; - for stdout. It must not exist.
    file: PathBuf,
}

/// What changed.
struct Changes {
    size_bytes: u64,
    /// Ranges of the image, as (offset, length).
    ranges: Vec<(u64, u64)>,
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = args.place.name(&args.image)?;
    let mut session = ceph.connect()?;
    let exported = export(&mut session, &name, args);
    session.close();
    exported
}

fn export(session: &mut Session, name: &Name, args: &Args) -> anyhow::Result<()> {
    let (context, of, from) = (Context::of(session), name.clone(), args.from_snap.clone());
    let changes = ceph::run(session, async move { find(&context, of, from).await })?;
    let out: Box<dyn Write> = match args.file == Path::new("-") {
        true => Box::new(io::stdout().lock()),
        false => Box::new(new_file(&args.file)?),
    };
    let mut records = Records { out: BufWriter::with_capacity(1 << 20, out) };
    let written = write(session, name, args, &changes, &mut records);
    written.inspect_err(|_| remove_part(&args.file))
}

/// Writes the file.
fn write<W: Write>(
    session: &mut Session,
    name: &Name,
    args: &Args,
    changes: &Changes,
    records: &mut Records<W>,
) -> anyhow::Result<()> {
    let failed = || args.file.display().to_string();
    let from = args.from_snap.as_deref();
    let begun = records.begin(from, name.snapshot.as_deref(), changes.size_bytes);
    begun.with_context(failed)?;

    let total = changes.ranges.iter().map(|(_, len)| len).sum();
    let mut image = OpenImage::open(session, name.spec())?;
    let bar = byte_bar("export-diff", total);
    let mut reads = changes.ranges.iter().flat_map(|&(offset, len)| reads_of(offset, len));
    let done = image.pump(
        Op::Read,
        || Ok(reads.next()),
        |read: &Read, payload| {
            let Payload::Data(pieces) = payload else { bail!("{}: no data", name.path()) };
            bar.inc(read.len_bytes);
            let written = records.data(read.offset_bytes, &pieces, from.is_some());
            written.with_context(failed)
        },
    );
    bar.finish_and_clear();
    let closed = image.close();
    done.and(closed)?;
    records.end().with_context(failed)
}

/// Finds the objects that changed.
async fn find(context: &Context, name: Name, from: Option<String>) -> anyhow::Result<Changes> {
    let pool = context.pool(&name.place).await?;
    let header = pool.info(&name.image).await?;
    let (state, size_bytes) = state_of(&header, &name)?;
    let from = match &from {
        None => None,
        Some(from) => Some(header.snapshot_named(from)?.info.id),
    };
    if from.is_some_and(|from| from >= state) {
        bail!("{}: --from-snap names a snapshot that is not older", name.path());
    }
    let objects = Objects { header, store: context.store(&pool, &name.place), path: name.path() };
    let layout = objects.header.layout;
    let count = layout.objects(size_bytes);
    let mut changed = vec![false; usize::try_from(count)?];
    let mut mark = |object: u64| {
        if let Some(flag) = changed.get_mut(object as usize) {
            *flag = true;
        }
    };
    for object in parent_changes(&objects, from, state) {
        mark(object);
    }
    let between: Vec<SnapId> = objects
        .states()
        .into_iter()
        .filter(|&at| at <= state && at >= from.unwrap_or(state))
        .collect();
    match objects.maps(&between).await? {
        Some(maps) => (0..count)
            .filter(|&object| match from {
                Some(_) => changed_in(&maps, object),
                None => maps.last().is_some_and(|map| map.get(object).may_exist()),
            })
            .for_each(mark),
        None => {
            let ends = [from.unwrap_or(state), state];
            let add = |object, versions: &Versions| match from {
                Some(_) if versions[0] == versions[1] => {}
                None if versions[1].is_none() => {}
                _ => mark(object),
            };
            let bar = counting_bar("export-diff", "objects", 0);
            let asked = objects.each_history(&ends, add, show_on(&bar)).await;
            bar.finish_and_clear();
            asked?;
        }
    }
    let numbers = (0..count).filter(|&object| changed[object as usize]);
    let parts = numbers.flat_map(|object| layout.unmap(object, 0, layout.object_bytes()));
    let ranges = parts
        .map(|part| (part.offset_bytes, part.len_bytes))
        .filter(|&(offset, _)| offset < size_bytes)
        .map(|(offset, len)| (offset, len.min(size_bytes - offset)));
    Ok(Changes { size_bytes, ranges: ranges.collect() })
}

/// Objects in which another part of the parent shows.
fn parent_changes(objects: &Objects, from: Option<SnapId>, to: SnapId) -> Vec<u64> {
    let overlap = |state| objects.header.parent_at(state).map_or(0, |(_, bytes)| bytes);
    let (before, after) = (from.map_or(0, overlap), overlap(to));
    let (start, end) = (before.min(after), before.max(after));
    let parts = objects.header.layout.map(start, end - start);
    let mut numbers: Vec<u64> = parts.iter().map(|part| part.object).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Writes the file.
struct Records<W: Write> {
    out: W,
}

impl<W: Write> Records<W> {
    fn begin(&mut self, from: Option<&str>, to: Option<&str>, size_bytes: u64) -> io::Result<()> {
        self.out.write_all(MAGIC)?;
        for (tag, name) in [(b'f', from), (b't', to)] {
            if let Some(name) = name {
                self.out.write_all(&[tag])?;
                self.out.write_all(&(name.len() as u32).to_le_bytes())?;
                self.out.write_all(name.as_bytes())?;
            }
        }
        self.out.write_all(b"s")?;
        self.out.write_all(&size_bytes.to_le_bytes())
    }

    fn range(&mut self, tag: u8, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.out.write_all(&[tag])?;
        self.out.write_all(&offset_bytes.to_le_bytes())?;
        self.out.write_all(&len_bytes.to_le_bytes())
    }

    /// Writes bytes of the image. Zeroes are only told if something may be there.
    fn data(&mut self, mut at_bytes: u64, pieces: &[Piece], with_zeroes: bool) -> io::Result<()> {
        for piece in pieces {
            let len_bytes = u64::from(piece.len_bytes());
            match piece {
                Piece::Data(data) if !is_zero(data) => {
                    self.range(b'w', at_bytes, len_bytes)?;
                    self.out.write_all(data)?;
                }
                _ if with_zeroes && len_bytes > 0 => self.range(b'z', at_bytes, len_bytes)?,
                _ => {}
            }
            at_bytes += len_bytes;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(b"e")?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_ceph_s_format() {
        let mut records = Records { out: Vec::new() };
        records.begin(Some("a"), Some("bc"), 0x1000).expect("written");
        let pieces = [Piece::Data(b"xy".to_vec().into()), Piece::Zeroes(3)];
        records.data(16, &pieces, true).expect("written");
        records.data(32, &pieces[1..], false).expect("written");
        records.end().expect("written");
        let mut expected = b"rbd diff v1\nf\x01\0\0\0at\x02\0\0\0bcs\0\x10\0\0\0\0\0\0".to_vec();
        expected.extend(b"w\x10\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0xy");
        expected.extend(b"z\x12\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0e");
        assert_eq!(records.out, expected);
    }
}
