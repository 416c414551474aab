//! `checksum TARGET [LAYER…]` reads a whole store and prints a checksum of it, for example
//! `checksum file:disk.img`. It has up to 16 requests under way.
//!
//! An event loop would poll the eventfd of the completion queue. This program only waits.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use fieldstone_embed::{CompletionQueue, Data, Device, Operation, Options};

const CHUNK_BYTES: usize = 1 << 20;
const UNDER_WAY: usize = 16;

/// Reads the store. Returns its size in bytes and a checksum.
///
/// # Errors
/// The store cannot be opened, a read fails, or the store is not closed cleanly.
pub fn checksum(target: &str, layers: &[String]) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    let options = Options { read_only: true, layers: layers.to_vec(), ..Options::default() };
    let device = Device::open(target, &options)?;
    let completions = CompletionQueue::new(UNDER_WAY)?;
    let size_bytes = device.size_bytes();
    let (mut asked, mut summed) = (0, 0);
    // Data that arrived before the data of lower offsets.
    let mut early: BTreeMap<u64, Data> = BTreeMap::new();
    let mut sum = DefaultHasher::new();
    let mut done = Vec::new();
    while summed < size_bytes {
        while asked < size_bytes && asked - summed < (UNDER_WAY * CHUNK_BYTES) as u64 {
            let rest = usize::try_from(size_bytes - asked).unwrap_or(usize::MAX);
            let len_bytes = rest.min(CHUNK_BYTES);
            let operation = Operation::Read { offset_bytes: asked, len_bytes };
            device.submit(operation, completions.on_complete(asked))?;
            asked += len_bytes as u64;
        }
        completions.wait(Duration::from_secs(1), UNDER_WAY, &mut done);
        for done in done.drain(..) {
            early.insert(done.tag, done.answer?);
        }
        while let Some(data) = early.remove(&summed) {
            let mut bytes = vec![0; data.len_bytes()];
            data.scatter(&mut [std::io::IoSliceMut::new(&mut bytes)]);
            sum.write(&bytes);
            summed += bytes.len() as u64;
        }
    }
    device.close()?;
    Ok((size_bytes, sum.finish()))
}

/// Reads the arguments.
///
/// # Errors
/// As [`checksum`].
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, layers @ ..] = arguments.as_slice() else { return Err("give a TARGET".into()) };
    let (size_bytes, sum) = checksum(target, layers)?;
    println!("{size_bytes} bytes, checksum {sum:016x}");
    Ok(())
}
