//! Rebuilds lost shards, and reads as little as the code allows.
//!
//! A shard is *lost* if it is known, without reading its units, that it is not whole: its file is
//! missing, has the wrong length or a bad header. The repair writes a new file, which then takes
//! the name. From the other shards, the repair reads only the elements that the repair plan names,
//! with their checksums. So the content of the new shard has been checked.
//!
//! If the repair finds a *damaged* unit of another shard, it recomputes this unit, too, and
//! overwrites it in place. The bytes there were bad before, so an interruption does no harm. With
//! [`Scope::All`], or if no shard is lost, the repair reads every unit, and so finds all damage.
//!
//! A shard that only [lacks its name](ShardState::Unnamed) gets the name after all units were read
//! and repaired.
//!
//! The repair never overwrites a file that might be the only copy: shards of another encoding,
//! shards with the name of another, files that may not be read. It neither follows nor replaces
//! files that the encoder cannot have made: links, pipes and devices. It names such a file and
//! ends.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coder::Coders;
use crate::error::Error;
use crate::folder::{Access, Folder, MANIFEST_FILE, ManifestState, ShardState, shard_name};
use crate::header;
use crate::manifest;
use crate::opening;
use crate::output::{self, NewFile, sync_folder};
use crate::read::{ReadCounts, StripeReader, UnitFlaw};
use crate::workers::{self, Progress, Stripes, lock};

/// The extent of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// As little as possible, if a shard is lost; else everything.
    Lost,
    /// Every unit of every shard.
    All,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Rebuilt shards.
    pub rebuilt_shards: Vec<usize>,
    /// Shards with temporary names that got their names.
    pub named_shards: Vec<usize>,
    /// For each shard, the number of units that were overwritten in place.
    pub mended_units: Vec<u64>,
    /// True if the manifest was written anew.
    pub rebuilt_manifest: bool,
    /// True if every unit of every shard was read.
    pub read_everything: bool,
    /// Bytes of units read.
    pub read_bytes: u64,
    /// Bytes of checksums read.
    pub read_record_bytes: u64,
    /// Bytes that Reed-Solomon would have read for the same repair: k units of each stripe.
    pub reed_solomon_bytes: u64,
    /// Bytes of units written.
    pub written_bytes: u64,
}

/// The state of a repair.
struct Repair<'a> {
    folder: &'a Folder,
    /// Lost shards and the files that replace them.
    lost: Vec<(usize, NewFile)>,
    everything: bool,
    mended: Mutex<Vec<u64>>,
    reed_solomon_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Repairs the encoding in `folder`, in `jobs` threads on the CPU.
///
/// # Panics
/// As [`repair_with`].
///
/// # Errors
/// As [`repair_with`].
pub fn repair(
    folder: &Folder,
    scope: Scope,
    jobs: usize,
    progress: &Progress,
) -> Result<Repaired, Error> {
    repair_with(folder, scope, &mut Coders::software(jobs), progress)
}

/// Repairs the encoding in `folder`, which was [opened to change](Folder::open_to_change), in a
/// thread for each coder. Open the folder again afterwards, because `folder` describes the old
/// files.
///
/// # Panics
/// When the folder was opened only to read.
///
/// # Errors
/// A stripe has too few good shards, another file has the name of a lost shard, or the shards
/// cannot be written. Then lost shards are still lost, but overwritten units stay repaired.
pub fn repair_with(
    folder: &Folder,
    scope: Scope,
    coders: &mut Coders,
    progress: &Progress,
) -> Result<Repaired, Error> {
    assert_eq!(folder.access, Access::Change, "the folder was opened to read only");
    refuse_what_is_in_the_way(folder)?;
    let is_lost = |&shard: &usize| !folder.shards[shard].is_whole();
    let lost: Vec<usize> = (0..folder.shards.len()).filter(is_lost).collect();
    // A power failure can interrupt a repair before its new shards are stable.
    let unnamed = folder.shards.iter().any(|found| found.state == ShardState::Unnamed);
    let everything = scope == Scope::All || lost.is_empty() || unnamed;
    let create = |&shard: &usize| {
        let new = NewFile::create(&folder.path.join(shard_name(shard)), true)?;
        Ok((shard, new))
    };
    let repair = Repair {
        lost: lost.iter().map(create).collect::<Result<_, Error>>()?,
        everything,
        mended: Mutex::new(vec![0; folder.shards.len()]),
        reed_solomon_bytes: AtomicU64::new(0),
        written_bytes: AtomicU64::new(0),
        folder,
    };
    if !everything && plan_skips(folder, &lost) {
        expect_random_reads(folder);
    }
    let (stripes, counts) = (Stripes::new(folder.present_stripes()), ReadCounts::default());
    let step = |reader: &mut StripeReader<'_>| {
        let Some(stripe) = stripes.next() else { return Ok(false) };
        repair.stripe(reader, stripe)?;
        progress.add(folder.encoding.data_len(stripe));
        Ok(true)
    };
    workers::run(coders, |coder| StripeReader::new(folder, &counts, coder), step)?;
    folder.check_all_present()?;
    let mut repaired = repair.finish()?;
    repaired.read_bytes = counts.data_bytes.load(Ordering::Relaxed);
    repaired.read_record_bytes = counts.record_bytes.load(Ordering::Relaxed);
    Ok(repaired)
}

fn refuse_what_is_in_the_way(folder: &Folder) -> Result<(), Error> {
    if let ManifestState::NotRegular(found) = folder.manifest {
        return Err(Error::NotRegular { path: folder.path.join(MANIFEST_FILE), found });
    }
    for (shard, found) in folder.shards.iter().enumerate() {
        let (what, cure) = match &found.state {
            ShardState::Misnamed => {
                (format!("is shard {shard}"), format!("rename it to {} first", shard_name(shard)))
            }
            ShardState::Foreign(id) => (
                format!("belongs to another encoding, {id}"),
                "move it to where it belongs first".to_owned(),
            ),
            ShardState::NotRegular(kind) => {
                return Err(Error::NotRegular { path: found.path.clone(), found: *kind });
            }
            ShardState::Impossible { reason } => (
                format!("describes an encoding that cannot be: {reason}"),
                "move it away, or remove it to have it rebuilt".to_owned(),
            ),
            ShardState::Unreadable { reason, denied: true } => (
                format!("cannot be read: {reason}"),
                "make it readable, or remove it to have it rebuilt".to_owned(),
            ),
            _ => continue,
        };
        return Err(Error::InTheWay { path: found.path.clone(), what, cure });
    }
    Ok(())
}

/// Gives finished shards their names. Returns these shards.
fn name_finished(folder: &Folder) -> Result<Vec<usize>, Error> {
    let all = folder.shards.iter().enumerate();
    let unnamed = all.filter(|(_, found)| found.state == ShardState::Unnamed);
    unnamed
        .map(|(shard, found)| {
            let name = folder.path.join(shard_name(shard));
            fs::rename(&found.path, &name).map_err(Error::io("create", &name))?;
            Ok(shard)
        })
        .collect()
}

/// True if the plan for the lost shards skips parts of units.
fn plan_skips(folder: &Folder, lost: &[usize]) -> bool {
    let code = folder.encoding.striping.code();
    let others: Vec<usize> =
        (0..folder.shards.len()).filter(|shard| !lost.contains(shard)).collect();
    let plan = code.repair(lost, &others);
    plan.is_ok_and(|plan| plan.reads.iter().any(|read| read.element_count() != code.elements()))
}

/// Tells the system not to read ahead, because the plan does not read the bytes between its ranges.
fn expect_random_reads(folder: &Folder) {
    for file in folder.shards.iter().filter_map(|shard| shard.file.as_ref()) {
        // SAFETY: the descriptor is that of an open file; the call does not access memory of this
        // process. It is a hint, so a failure does not matter.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    }
}

impl Repair<'_> {
    fn stripe(&self, reader: &mut StripeReader<'_>, stripe: u64) -> Result<(), Error> {
        let lost: Vec<usize> = self.lost.iter().map(|(shard, _)| *shard).collect();
        reader.start(stripe);
        if self.everything {
            for shard in (0..self.folder.shards.len()).filter(|shard| !lost.contains(shard)) {
                reader.load_whole(shard);
            }
        }
        let bad = self.recover(reader, &lost)?;
        if bad.is_empty() {
            return Ok(());
        }
        let encoding = &self.folder.encoding;
        let unit_len = encoding.unit_len(stripe) as u64;
        let would_read = unit_len * encoding.striping.k() as u64;
        self.reed_solomon_bytes.fetch_add(would_read, Ordering::Relaxed);
        self.written_bytes.fetch_add(unit_len * bad.len() as u64, Ordering::Relaxed);
        let offset = encoding.striping.offset(stripe);
        for shard in bad {
            match self.lost.iter().find(|(lost, _)| *lost == shard) {
                Some((_, new)) => new.write(reader.stored(shard), offset)?,
                None => self.mend(shard, reader.stored(shard), offset)?,
            }
        }
        Ok(())
    }

    /// Recomputes all units that must be written. Returns their shards.
    fn recover(&self, reader: &mut StripeReader<'_>, lost: &[usize]) -> Result<Vec<usize>, Error> {
        let mut bad = self.bad(reader, lost);
        while !bad.is_empty() {
            match reader.recover(&bad) {
                Err(Error::TooFewShards { .. }) => {
                    // A lost shard may still have this unit.
                    let gone: Vec<usize> =
                        bad.iter().copied().filter(|&shard| !reader.load_whole(shard)).collect();
                    if !gone.is_empty() {
                        reader.recover(&gone)?;
                    }
                }
                other => other?,
            }
            // The recovery may have found more damage.
            let now = self.bad(reader, lost);
            if now == bad {
                break;
            }
            bad = now;
        }
        Ok(bad)
    }

    /// Shards that must be recomputed in this stripe, as far as is known.
    fn bad(&self, reader: &StripeReader<'_>, lost: &[usize]) -> Vec<usize> {
        let damaged =
            |shard: usize| reader.flaw(shard).is_some_and(|flaw| *flaw != UnitFlaw::NoFile);
        (0..self.folder.shards.len())
            .filter(|&shard| lost.contains(&shard) || damaged(shard))
            .collect()
    }

    /// Overwrites a damaged unit.
    fn mend(&self, shard: usize, stored: &[u8], offset: u64) -> Result<(), Error> {
        let path = &self.folder.shards[shard].path;
        let file = self.open_to_mend(shard)?;
        file.write_all_at(stored, offset).map_err(Error::io("write to", path))?;
        lock(&self.mended)[shard] += 1;
        Ok(())
    }

    /// Opens the file that the units of a shard were read from.
    fn open_to_mend(&self, shard: usize) -> Result<File, Error> {
        let found = &self.folder.shards[shard];
        let read = found.file.as_ref().expect("units that are mended were read from a file");
        opening::open_again(&found.path, read)
    }

    /// Makes all files stable and gives new shards their names.
    fn finish(self) -> Result<Repaired, Error> {
        let params = self.folder.encoding.params();
        let mended_units = std::mem::take(&mut *lock(&self.mended));
        for (shard, _) in mended_units.iter().enumerate().filter(|(_, count)| **count > 0) {
            let path = &self.folder.shards[shard].path;
            self.open_to_mend(shard)?.sync_all().map_err(Error::io("write to", path))?;
        }
        for (shard, new) in &self.lost {
            new.write(&header::to_bytes(&params, *shard), 0)?;
            new.sync()?;
        }
        let rebuilt_shards: Vec<usize> = self.lost.iter().map(|(shard, _)| *shard).collect();
        self.lost.into_iter().try_for_each(|(_, new)| new.publish())?;
        let named_shards = name_finished(self.folder)?;
        let rebuilt_manifest = self.folder.manifest != ManifestState::Good;
        if rebuilt_manifest {
            let text = manifest::to_text(&params);
            output::replace(&self.folder.path.join(MANIFEST_FILE), text.as_bytes())?;
        }
        sync_folder(&self.folder.path)?;
        Ok(Repaired {
            rebuilt_shards,
            named_shards,
            mended_units,
            rebuilt_manifest,
            read_everything: self.everything,
            reed_solomon_bytes: self.reed_solomon_bytes.into_inner(),
            written_bytes: self.written_bytes.into_inner(),
            ..Repaired::default()
        })
    }
}
