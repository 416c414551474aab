//! Encodes a file into shards.
//!
//! Each thread takes the next stripe from the input, codes it, and writes a unit to every shard. So
//! memory holds one stripe per thread, for files of any length.
//!
//! **Crashes.** The encoder writes shards under temporary names and without a header, so an
//! unfinished file does not look like a shard. When all units are written, the encoder writes the
//! headers and makes the shards stable. Then it gives the shards their names, and finally writes
//! the manifest. An interruption before the first name leaves a folder with `.part` files, which
//! the next encode into the folder replaces. After the first name, the encoding is whole: the
//! remaining `.part` files are [read](crate::ShardState::Unnamed) like any shard, and a repair
//! gives them their names.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::checksum::{StreamChecksum, crc32c_of};
use crate::coder::{Coder, Coders};
use crate::error::Error;
use crate::folder::{Access, Lock, MANIFEST_FILE, is_part, shard_name};
use crate::header;
use crate::manifest;
use crate::opening;
use crate::output::{self, NewFile, sync_folder};
use crate::record::UnitAddress;
use crate::stripe::StripeBuffer;
use crate::striping::{Encoding, EncodingId, MAX_FILE_BYTES, Striping};
use crate::workers::{self, Progress, lock};

/// The input of an encode.
pub struct Input<'a> {
    /// The bytes.
    pub bytes: Box<dyn Read + Send + 'a>,
    /// Its name in errors.
    pub name: PathBuf,
}

/// The input while it is read.
struct Source<'a> {
    input: Input<'a>,
    stripe: u64,
    file_bytes: u64,
    ended: bool,
}

/// Encodes `input` into `folder`, which must be new or empty, in `jobs` threads on the CPU.
///
/// # Errors
/// As [`encode_with`].
pub fn encode(
    input: Input<'_>,
    folder: &Path,
    striping: &Striping,
    jobs: usize,
    progress: &Progress,
) -> Result<Encoding, Error> {
    encode_with(input, folder, striping, &mut Coders::software(jobs), progress)
}

/// Encodes `input` into `folder`, which must be new or empty, in a thread for each coder.
///
/// # Errors
/// The folder is not empty or in use, the input cannot be read, or the shards cannot be written.
/// Then the written files are removed.
pub fn encode_with(
    input: Input<'_>,
    folder: &Path,
    striping: &Striping,
    coders: &mut Coders,
    progress: &Progress,
) -> Result<Encoding, Error> {
    let made = make_folder(folder)?;
    let encoded = encode_into(input, folder, striping, coders, progress);
    if encoded.is_err() && made {
        // This fails if the folder still has a file; the user then finds it.
        let _ = fs::remove_dir(folder);
    }
    let encoding = encoded?;
    if made {
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(encoding)
}

/// Makes the folder. False if it exists.
fn make_folder(folder: &Path) -> Result<bool, Error> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("make the folder", folder)(error)),
    }
}

/// Refuses a folder with any other file than the regular files that an interrupted encode left, and
/// removes those.
fn clear(folder: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut leftovers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", folder))?;
        if !is_part(&entry.file_name()) {
            let found = entry.file_name().to_string_lossy().into_owned();
            return Err(Error::NotEmpty { folder: folder.to_path_buf(), found });
        }
        leftovers.push(entry.path());
    }
    leftovers.iter().try_for_each(|path| opening::remove_leftover(path))
}

fn encode_into(
    input: Input<'_>,
    folder: &Path,
    striping: &Striping,
    coders: &mut Coders,
    progress: &Progress,
) -> Result<Encoding, Error> {
    let _lock = Lock::take(folder, Access::Change)?;
    clear(folder)?;
    let id = random_id()?;
    let create = |shard| NewFile::create(&folder.join(shard_name(shard)), true);
    let shards: Vec<NewFile> = (0..striping.shards()).map(create).collect::<Result<_, _>>()?;
    let source = Mutex::new(Source { input, stripe: 0, file_bytes: 0, ended: false });
    let checksum = Mutex::new(StreamChecksum::default());
    let step = |(buffer, coder): &mut (StripeBuffer, &mut Coder)| {
        let Some((stripe, data_len)) = lock(&source).fill(striping, buffer)? else {
            return Ok(false);
        };
        let unit_len = striping.unit_len(data_len);
        code(striping, unit_len, buffer, coder);
        seal(id, stripe, unit_len, buffer);
        let crc = data_checksum(buffer, unit_len, data_len);
        lock(&checksum).add(stripe, crc, data_len as u64);
        for (shard, file) in shards.iter().enumerate() {
            file.write(buffer.stored(shard, unit_len), striping.offset(stripe))?;
        }
        progress.add(data_len);
        Ok(true)
    };
    let state = |coder| (StripeBuffer::new(striping, striping.unit_bytes()), coder);
    workers::run(coders, state, step)?;
    let file_bytes = lock(&source).file_bytes;
    let file_crc = lock(&checksum).value();
    let encoding = Encoding { id, striping: striping.clone(), file_bytes, file_crc };
    publish(&encoding, folder, shards)?;
    Ok(encoding)
}

/// Gives finished shards their headers and names, and then writes the manifest.
fn publish(encoding: &Encoding, folder: &Path, shards: Vec<NewFile>) -> Result<(), Error> {
    let params = encoding.params();
    for (shard, file) in shards.iter().enumerate() {
        file.write(&header::to_bytes(&params, shard), 0)?;
    }
    shards.iter().try_for_each(NewFile::sync)?;
    shards.into_iter().try_for_each(NewFile::publish)?;
    sync_folder(folder)?;
    let text = manifest::to_text(&params);
    output::replace(&folder.join(MANIFEST_FILE), text.as_bytes())?;
    sync_folder(folder)
}

impl Source<'_> {
    /// Reads the next stripe into the data units. Returns its number and the number of its bytes of
    /// the file, or `None` at the end.
    fn fill(
        &mut self,
        striping: &Striping,
        buffer: &mut StripeBuffer,
    ) -> Result<Option<(u64, usize)>, Error> {
        if self.ended {
            return Ok(None);
        }
        let unit_bytes = striping.unit_bytes();
        let mut data_len = 0;
        for stored in buffer.all(unit_bytes).take(striping.k()) {
            let count = read_full(&mut self.input, stored.unit)?;
            data_len += count;
            if count < unit_bytes {
                self.ended = true;
                break;
            }
        }
        if data_len == 0 {
            return Ok(None);
        }
        if self.ended {
            shorten(striping, buffer, data_len);
        }
        let stripe = self.stripe;
        self.stripe += 1;
        self.file_bytes += data_len as u64;
        if self.file_bytes > MAX_FILE_BYTES {
            return Err(Error::TooLong);
        }
        Ok(Some((stripe, data_len)))
    }
}

/// Reads until the buffer is full or the input ends.
fn read_full(input: &mut Input<'_>, mut buffer: &mut [u8]) -> Result<usize, Error> {
    let wanted = buffer.len();
    while !buffer.is_empty() {
        match input.bytes.read(buffer) {
            Ok(0) => break,
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read", &input.name)(error)),
        }
    }
    Ok(wanted - buffer.len())
}

/// Lays out the last stripe, which was read into units of full length, on shorter units.
fn shorten(striping: &Striping, buffer: &mut StripeBuffer, data_len: usize) {
    let unit_bytes = striping.unit_bytes();
    let mut data = Vec::with_capacity(data_len);
    for shard in 0..data_len.div_ceil(unit_bytes) {
        let count = unit_bytes.min(data_len - data.len());
        data.extend_from_slice(&buffer.unit(shard, unit_bytes)[..count]);
    }
    let unit_len = striping.unit_len(data_len);
    let mut rest = &data[..];
    for stored in buffer.all(unit_len).take(striping.k()) {
        let (part, next) = rest.split_at(rest.len().min(unit_len));
        stored.unit[..part.len()].copy_from_slice(part);
        stored.unit[part.len()..].fill(0);
        rest = next;
    }
}

/// Computes the parity units.
fn code(striping: &Striping, unit_len: usize, buffer: &mut StripeBuffer, coder: &mut Coder) {
    let (code, k) = (striping.code(), striping.k());
    let mut data: Vec<&[u8]> = Vec::with_capacity(k);
    let mut parities: Vec<&mut [u8]> = Vec::with_capacity(striping.shards() - k);
    for (shard, stored) in buffer.all(unit_len).enumerate() {
        if shard < k { data.push(stored.unit) } else { parities.push(stored.unit) }
    }
    // copies:1 has no parities, and so its map has no outputs.
    if !parities.is_empty() {
        let done = coder.execute(code.layout(), code.encode(), &data, &mut parities);
        done.expect("the buffers were made for the code");
    }
}

/// Computes all records.
fn seal(id: EncodingId, stripe: u64, unit_len: usize, buffer: &mut StripeBuffer) {
    for (shard, stored) in buffer.all(unit_len).enumerate() {
        UnitAddress { id, shard, stripe, unit_len }.seal(stored.unit, stored.record);
    }
}

/// The checksum of a stripe's bytes of the file.
pub(crate) fn data_checksum(buffer: &StripeBuffer, unit_len: usize, data_len: usize) -> u32 {
    let units = (0..data_len.div_ceil(unit_len)).map(|shard| {
        let count = unit_len.min(data_len - shard * unit_len);
        &buffer.unit(shard, unit_len)[..count]
    });
    crc32c_of(units)
}

fn random_id() -> Result<EncodingId, Error> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::io("read", path))?;
    Ok(EncodingId(u128::from_le_bytes(bytes)))
}
