//! Checks everything: each block of each shard, and whether the parities belong to the data.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use fieldstone_codes::{Verdict, check};

use crate::coder::Coders;
use crate::error::Error;
use crate::folder::Folder;
use crate::read::{ReadCounts, StripeReader, UnitFlaw};
use crate::workers::{self, Progress, Stripes, lock};

/// Damaged units that are listed, for each shard; further ones are only counted.
pub const MAX_NAMED: usize = 16;

/// A unit that is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUnit {
    /// The stripe.
    pub stripe: u64,
    /// Offset of its record in the shard file.
    pub offset: u64,
    /// Its flaw.
    pub flaw: UnitFlaw,
}

/// The bad units of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadUnits {
    /// Number of bad units.
    pub count: u64,
    /// The first bad units, at most [`MAX_NAMED`].
    pub first: Vec<BadUnit>,
}

/// Stripes with right checksums whose parities do not belong to the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inconsistent {
    /// Number of such stripes.
    pub count: u64,
    /// The first such stripes, at most [`MAX_NAMED`], each with the wrong shard if it is known.
    pub first: Vec<(u64, Option<usize>)>,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// For each shard, its bad units. Units of shards without a file are not counted.
    pub bad_units: Vec<BadUnits>,
    /// Stripes with too few good units: these parts of the file are lost.
    pub lost_stripes: u64,
    /// Stripes whose units are all good, but contradict each other.
    pub inconsistent: Inconsistent,
    /// Bytes of units read.
    pub read_bytes: u64,
}

impl Findings {
    /// True if no unit has a flaw.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.bad_units.iter().all(|bad| bad.count == 0) && self.inconsistent.count == 0
    }
}

/// Checks the encoding in `folder`, in `jobs` threads on the CPU.
///
/// # Errors
/// As [`verify_with`].
pub fn verify(folder: &Folder, jobs: usize, progress: &Progress) -> Result<Findings, Error> {
    verify_with(folder, &mut Coders::software(jobs), progress)
}

/// Checks the encoding in `folder`, in a thread for each coder.
///
/// # Errors
/// None for errors of shards: these are findings.
pub fn verify_with(
    folder: &Folder,
    coders: &mut Coders,
    progress: &Progress,
) -> Result<Findings, Error> {
    let encoding = &folder.encoding;
    let present = folder.present_stripes();
    let (stripes, counts) = (Stripes::new(present), ReadCounts::default());
    let bad_units = vec![BadUnits::default(); folder.shards.len()];
    let findings = Mutex::new(Findings { bad_units, ..Findings::default() });
    let step = |reader: &mut StripeReader<'_>| {
        let Some(stripe) = stripes.next() else { return Ok(false) };
        check_stripe(folder, reader, stripe, &findings);
        progress.add(encoding.data_len(stripe));
        Ok(true)
    };
    workers::run(coders, |coder| StripeReader::new(folder, &counts, coder), step)?;
    let mut findings = std::mem::take(&mut *lock(&findings));
    // Threads finish stripes in any order.
    findings.bad_units.iter_mut().for_each(|bad| bad.first.sort_by_key(|bad| bad.stripe));
    findings.inconsistent.first.sort_unstable();
    count_absent(folder, present, &mut findings);
    findings.read_bytes = counts.data_bytes.load(Ordering::Relaxed);
    Ok(findings)
}

/// Counts the stripes from `present` on, of which no shard file holds a unit. A header can claim
/// any number of them, so the function does not go through them.
fn count_absent(folder: &Folder, present: u64, findings: &mut Findings) {
    let striping = &folder.encoding.striping;
    let absent = folder.encoding.stripes() - present;
    findings.lost_stripes += absent;
    for (bad, shard) in findings.bad_units.iter_mut().zip(&folder.shards) {
        if shard.file.is_none() {
            continue;
        }
        bad.count += absent;
        let named = absent.min((MAX_NAMED - bad.first.len()) as u64);
        bad.first.extend((present..present + named).map(|stripe| BadUnit {
            stripe,
            offset: striping.offset(stripe),
            flaw: UnitFlaw::CutOff,
        }));
    }
}

fn check_stripe(
    folder: &Folder,
    reader: &mut StripeReader<'_>,
    stripe: u64,
    findings: &Mutex<Findings>,
) {
    let striping = &folder.encoding.striping;
    reader.start(stripe);
    let good = (0..striping.shards()).filter(|&shard| reader.load_whole(shard)).count();
    let inconsistent = (good == striping.shards()).then(|| disagree(folder, reader)).flatten();
    if good == striping.shards() && inconsistent.is_none() {
        return;
    }
    let mut findings = lock(findings);
    findings.lost_stripes += u64::from(good < striping.k());
    if let Some(shard) = inconsistent {
        findings.inconsistent.count += 1;
        if findings.inconsistent.first.len() < MAX_NAMED {
            findings.inconsistent.first.push((stripe, shard));
        }
    }
    for (shard, bad) in findings.bad_units.iter_mut().enumerate() {
        let Some(flaw) = reader.flaw(shard).filter(|flaw| **flaw != UnitFlaw::NoFile) else {
            continue;
        };
        bad.count += 1;
        if bad.first.len() < MAX_NAMED {
            let offset = striping.offset(stripe);
            bad.first.push(BadUnit { stripe, offset, flaw: flaw.clone() });
        }
    }
}

/// Checks whether a stripe of good units contradicts itself. If so, returns the wrong shard, if it
/// is known.
fn disagree(folder: &Folder, reader: &mut StripeReader<'_>) -> Option<Option<usize>> {
    if reader.parities_are_right() {
        return None;
    }
    let striping = &folder.encoding.striping;
    let units: Vec<&[u8]> = (0..striping.shards()).map(|shard| reader.unit(shard)).collect();
    let verdict = check::locate(striping.code(), &units);
    match verdict.expect("the units have the code's number and length") {
        Verdict::Consistent => None,
        Verdict::Wrong(shard) => Some(Some(shard)),
        Verdict::Unknown => Some(None),
    }
}
