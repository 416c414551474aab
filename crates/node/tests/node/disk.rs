//! A simulated disk with the behaviour that real disks may show.
//!
//! - Operations complete in any order.
//! - A sync covers the writes that completed before it was submitted, and no others.
//! - At a power loss every sector of every write that no sync covers is kept or lost on its own.
//!   Operations in flight happen in part or not at all.
//! - With faults: writes fail after a part of their sectors, and reads fail. A failed sync drops
//!   some writes that it should have made stable, so that the next sync succeeds without them.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, FileId};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

const SECTOR: usize = 512;

/// One in this many operations fails; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub create_one_in: u32,
    pub remove_one_in: u32,
    pub write_one_in: u32,
    pub read_one_in: u32,
    pub sync_one_in: u32,
    pub full_one_in: u32,
    /// Every sync of this file fails.
    pub sync_of: Option<FileId>,
}

#[derive(Debug, Default)]
pub struct File {
    stable: Vec<u8>,
    pub current: Vec<u8>,
    /// Completed writes that no sync covers: number, offset, bytes.
    unsynced: Vec<(u64, usize, Vec<u8>)>,
}

impl File {
    fn write(&mut self, number: u64, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[at..end].copy_from_slice(bytes);
        self.unsynced.push((number, at, bytes.to_vec()));
    }

    fn stabilise(stable: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if stable.len() < end {
            stable.resize(end, 0);
        }
        stable[at..end].copy_from_slice(bytes);
    }

    fn lose_power(&mut self, rng: &mut ChaCha8Rng) {
        let keep_percent = [0, 50, 100, 90][rng.random_range(0..4)];
        for (_, at, bytes) in std::mem::take(&mut self.unsynced) {
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if rng.random_range(0..100) < keep_percent {
                    Self::stabilise(&mut self.stable, at + index * SECTOR, sector);
                }
            }
        }
        self.current = self.stable.clone();
    }
}

#[derive(Debug)]
struct InFlight {
    id: DiskId,
    op: DiskOp,
    /// The write number at the time of submission.
    mark: u64,
}

#[derive(Debug, Default)]
pub struct Disk {
    pub files: BTreeMap<FileId, File>,
    in_flight: Vec<InFlight>,
    writes: u64,
    /// A failed sync dropped a write that reads still show.
    dropped: bool,
    pub faults: Faults,
    /// Syncs so far.
    pub syncs: u64,
}

fn index_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("test files are small")
}

fn one_in(rng: &mut ChaCha8Rng, n: u32) -> bool {
    n > 0 && rng.random_ratio(1, n)
}

impl Disk {
    pub fn submit(&mut self, id: DiskId, op: DiskOp) {
        let aligned = match &op {
            DiskOp::Read { offset_bytes, len_bytes, .. } => offset_bytes | u64::from(*len_bytes),
            DiskOp::Write { offset_bytes, data, .. } => {
                offset_bytes | data.iter().map(Bytes::len).sum::<usize>() as u64
            }
            _ => 0,
        };
        assert!(aligned.is_multiple_of(4096), "unaligned: {op:?}");
        self.syncs += u64::from(matches!(op, DiskOp::Sync { .. }));
        self.in_flight.push(InFlight { id, op, mark: self.writes });
    }

    pub fn complete_one(
        &mut self,
        rng: &mut ChaCha8Rng,
    ) -> Option<(DiskId, Result<DiskOutput, DiskError>)> {
        if self.in_flight.is_empty() {
            return None;
        }
        let InFlight { id, op, mark } =
            self.in_flight.swap_remove(rng.random_range(0..self.in_flight.len()));
        Some((id, self.carry_out(op, mark, rng)))
    }

    pub fn crash(&mut self, power_loss: bool, rng: &mut ChaCha8Rng) {
        for InFlight { op, mark, .. } in std::mem::take(&mut self.in_flight) {
            match op {
                DiskOp::Write { file, offset_bytes, data } => {
                    self.write_in_part(file, offset_bytes, &data.concat(), rng);
                }
                op if rng.random() => {
                    let faults = std::mem::take(&mut self.faults);
                    let _ = self.carry_out(op, mark, rng);
                    self.faults = faults;
                }
                _ => {}
            }
        }
        let dropped = std::mem::take(&mut self.dropped);
        // A node cannot survive the death of a process before it could note a failed sync (see
        // `start/failed_sync.rs`). This simulation excludes that fault, so writes that such a sync
        // dropped are gone here.
        let noted = self.files.contains_key(&FileId::Doubt);
        if power_loss || (dropped && !noted) {
            for file in self.files.values_mut() {
                file.lose_power(rng);
            }
        }
    }

    fn write_in_part(&mut self, file: FileId, offset: u64, bytes: &[u8], rng: &mut ChaCha8Rng) {
        let Some(file) = self.files.get_mut(&file) else { return };
        let keep_percent = [0, 50, 100][rng.random_range(0..3)];
        for (index, sector) in bytes.chunks(SECTOR).enumerate() {
            if rng.random_range(0..100) < keep_percent {
                self.writes += 1;
                file.write(self.writes, index_of(offset) + index * SECTOR, sector);
            }
        }
    }

    fn carry_out(
        &mut self,
        op: DiskOp,
        mark: u64,
        rng: &mut ChaCha8Rng,
    ) -> Result<DiskOutput, DiskError> {
        match op {
            DiskOp::List => Ok(DiskOutput::Files(self.files.keys().copied().collect())),
            DiskOp::Read { file, offset_bytes, len_bytes } => {
                if one_in(rng, self.faults.read_one_in) {
                    return Err(DiskError::Io("injected".to_owned()));
                }
                let file = self.files.get(&file).ok_or(DiskError::NotFound)?;
                let at = index_of(offset_bytes);
                let mut out = vec![0; len_bytes as usize];
                let there = file.current.len().saturating_sub(at).min(out.len());
                out[..there].copy_from_slice(&file.current[at..at + there]);
                Ok(DiskOutput::Data(Bytes::from(out)))
            }
            DiskOp::Write { file, offset_bytes, data } => {
                let data = data.concat();
                if !self.files.contains_key(&file) {
                    return Err(DiskError::NotFound);
                }
                if one_in(rng, self.faults.write_one_in) {
                    self.write_in_part(file, offset_bytes, &data, rng);
                    return Err(DiskError::Io("injected".to_owned()));
                }
                if file == FileId::Data && one_in(rng, self.faults.full_one_in) {
                    return Err(DiskError::NoSpace);
                }
                self.writes += 1;
                let number = self.writes;
                let at = index_of(offset_bytes);
                self.files.get_mut(&file).expect("it is there").write(number, at, &data);
                Ok(DiskOutput::Done)
            }
            DiskOp::Sync { file } => {
                let fails =
                    one_in(rng, self.faults.sync_one_in) || self.faults.sync_of == Some(file);
                let file = self.files.get_mut(&file).ok_or(DiskError::NotFound)?;
                for (number, at, bytes) in std::mem::take(&mut file.unsynced) {
                    if fails && rng.random() {
                        // The write is lost for good, though reads still show it.
                        self.dropped = true;
                    } else if fails || number > mark {
                        file.unsynced.push((number, at, bytes));
                    } else {
                        File::stabilise(&mut file.stable, at, &bytes);
                    }
                }
                if fails { Err(DiskError::Io("injected".to_owned())) } else { Ok(DiskOutput::Done) }
            }
            DiskOp::Create { .. } if one_in(rng, self.faults.create_one_in) => {
                Err(DiskError::Io("injected".to_owned()))
            }
            DiskOp::Create { file, len_bytes, .. } => {
                let len = index_of(len_bytes);
                self.files.entry(file).or_insert_with(|| File {
                    stable: vec![0; len],
                    current: vec![0; len],
                    unsynced: Vec::new(),
                });
                Ok(DiskOutput::Done)
            }
            DiskOp::Remove { .. } if one_in(rng, self.faults.remove_one_in) => {
                Err(DiskError::Io("injected".to_owned()))
            }
            DiskOp::Remove { file } => {
                self.files.remove(&file).map(|_| DiskOutput::Done).ok_or(DiskError::NotFound)
            }
            DiskOp::Discard { file, offset_bytes, len_bytes } => {
                let at = index_of(offset_bytes);
                let zeroes = vec![0; index_of(len_bytes)];
                self.writes += 1;
                let number = self.writes;
                let file = self.files.get_mut(&file).ok_or(DiskError::NotFound)?;
                if rng.random() {
                    file.write(number, at, &zeroes);
                }
                Ok(DiskOutput::Done)
            }
        }
    }
}
