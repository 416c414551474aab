//! One file of a simulated disk: the page cache, the stable content, and the writes between them.
//!
//! Content is kept per 4 KiB page as shared bytes, so a write costs no copy. `None` is a hole.
//! Reads see `current`. `stable` is the content that certainly survives a power failure. In
//! addition, each write that was not synced may be there, be lost, or be torn at sectors.

use bytes::{Bytes, BytesMut};
use fieldstone_buf::AlignedBuf;

use crate::random::RandomStream;

/// Size of a page of the page cache.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The content of one page; `None` is a hole, which reads as zeroes.
pub(crate) type Page = Option<Bytes>;

/// A write, cut into pages.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// First page written.
    pub first_page: usize,
    /// The pages.
    pub pages: Vec<Page>,
}

impl Change {
    /// The numbers of its pages.
    fn pages(&self) -> std::ops::Range<usize> {
        self.first_page..self.first_page + self.pages.len()
    }

    /// Its pages, each as a separate change.
    fn split(self) -> impl Iterator<Item = Change> {
        (self.first_page..)
            .zip(self.pages)
            .map(|(first_page, page)| Change { first_page, pages: vec![page] })
    }
}

#[derive(Clone, Debug)]
struct Unsynced {
    number: u64,
    change: Change,
    /// A sync that covered this write failed, so no later sync makes it stable (as on Linux). If a
    /// later write became stable, this one is lost for good.
    abandoned: bool,
}

/// A file.
#[derive(Debug, Default)]
pub(crate) struct SimFile {
    /// The file's length is reserved: writes inside it never lack space.
    pub reserved: bool,
    len_bytes: u64,
    current: Vec<Page>,
    stable: Vec<Page>,
    /// By page, the number of the write that is stable there.
    stable_since: Vec<u64>,
    unsynced: Vec<Unsynced>,
    writes: u64,
}

impl SimFile {
    /// A file of this length, all holes.
    pub fn new(len_bytes: u64, reserved: bool) -> Self {
        Self { reserved, len_bytes, ..Self::default() }
    }

    /// The content that certainly survives a power loss.
    pub fn stable_copy(&self) -> Self {
        Self {
            reserved: self.reserved,
            len_bytes: self.len_bytes,
            current: self.stable.clone(),
            stable: self.stable.clone(),
            ..Self::default()
        }
    }

    /// A file of these bytes, all stable. Pages of zeroes are holes.
    pub fn of(bytes: &[u8], reserved: bool) -> Self {
        let page = |part: &[u8]| {
            let mut page = BytesMut::zeroed(PAGE_BYTES);
            page[..part.len()].copy_from_slice(part);
            part.iter().any(|byte| *byte != 0).then(|| page.freeze())
        };
        let current: Vec<Page> = bytes.chunks(PAGE_BYTES).map(page).collect();
        let stable = current.clone();
        Self { reserved, len_bytes: bytes.len() as u64, current, stable, ..Self::default() }
    }

    /// Number of pages, without holes at the end.
    pub fn pages(&self) -> usize {
        self.current.len()
    }

    /// Pages that take space on the device.
    pub fn used_pages(&self) -> u64 {
        let written = self.current.iter().flatten().count() as u64;
        if self.reserved {
            written.max(self.len_bytes.div_ceil(PAGE_BYTES as u64))
        } else {
            written
        }
    }

    /// The number of the last completed write. A sync that starts now covers writes up to this
    /// number.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Pages of `change` that would take new space.
    pub fn growth_pages(&self, change: &Change) -> u64 {
        let reserved_pages =
            if self.reserved { self.len_bytes.div_ceil(PAGE_BYTES as u64) as usize } else { 0 };
        let new = |page: &usize| {
            *page >= reserved_pages && self.current.get(*page).is_none_or(Option::is_none)
        };
        change.pages().filter(new).count() as u64
    }

    /// Reads from the page cache; zeroes behind the end.
    pub fn read(&self, offset_bytes: u64, len_bytes: usize) -> Bytes {
        let first = offset_bytes as usize / PAGE_BYTES;
        if len_bytes == PAGE_BYTES
            && let Some(Some(page)) = self.current.get(first)
        {
            return page.clone();
        }
        let mut out = AlignedBuf::stale(len_bytes);
        for (index, part) in out.chunks_mut(PAGE_BYTES).enumerate() {
            match self.current.get(first + index) {
                Some(Some(page)) => part.copy_from_slice(&page[..part.len()]),
                _ => part.fill(0),
            }
        }
        out.freeze()
    }

    /// The page that reads see.
    pub fn page(&self, page: usize) -> Page {
        self.current.get(page).cloned().flatten()
    }

    /// The page that certainly survives a power loss.
    pub fn stable_page(&self, page: usize) -> Page {
        self.stable.get(page).cloned().flatten()
    }

    /// Completes a write: reads see it, and a sync that starts later covers it.
    pub fn write(&mut self, change: Change) {
        apply(&mut self.current, &change);
        let end = ((change.first_page + change.pages.len()) * PAGE_BYTES) as u64;
        self.len_bytes = self.len_bytes.max(end);
        self.writes += 1;
        self.unsynced.push(Unsynced { number: self.writes, change, abandoned: false });
    }

    /// Makes the writes up to `covered` stable.
    pub fn sync(&mut self, covered: u64) {
        let Self { unsynced, stable, stable_since, .. } = self;
        unsynced.retain(|write| {
            let done = write.number <= covered && !write.abandoned;
            if done {
                let pages = write.change.pages();
                apply(stable, &write.change);
                stable_since.resize(stable.len(), 0);
                stable_since[pages].fill(write.number);
            }
            !done
        });
    }

    /// A sync of the writes up to `covered` failed: no later sync will make them stable.
    pub fn sync_failed(&mut self, covered: u64) {
        for write in self.unsynced.iter_mut().filter(|write| write.number <= covered) {
            write.abandoned = true;
        }
    }

    /// The process died while it was writing `change`: none, all or the first pages reached the
    /// file.
    pub fn interrupted(&mut self, mut change: Change, rng: &mut RandomStream) {
        let kept = rng.between(0, change.pages.len() as u64) as usize;
        change.pages.truncate(kept);
        if kept > 0 {
            self.write(change);
        }
    }

    /// The power failed: each write that was not synced is kept, lost or torn.
    pub fn power_loss(
        &mut self,
        in_flight: Vec<Change>,
        sector_bytes: usize,
        rng: &mut RandomStream,
    ) {
        let mut writes = Vec::new();
        for Unsynced { number, change, abandoned } in self.unsynced.drain(..) {
            if !abandoned {
                writes.push(change);
                continue;
            }
            let since = |page: usize| self.stable_since.get(page).copied().unwrap_or(0);
            writes.extend(change.split().filter(|part| since(part.first_page) < number));
        }
        writes.extend(in_flight);
        rng.shuffle(&mut writes);
        // Some failures lose all writes, some lose almost none. A fair coin per write would hide
        // both cases.
        let (keep, tear) =
            rng.pick(&[(0, 0), (0, 100), (330, 330), (500, 0), (900, 50), (1000, 0)]);
        for write in writes {
            if rng.chance(keep) {
                apply(&mut self.stable, &write);
            } else if rng.chance(tear) {
                let torn = tear_sectors(&self.stable, &write, sector_bytes, rng);
                apply(&mut self.stable, &torn);
            }
        }
        self.current.clone_from(&self.stable);
        self.len_bytes = self.len_bytes.max((self.stable.len() * PAGE_BYTES) as u64);
    }

    /// Flips one bit of the first `within_bytes` of a stable page that equals the page cache's.
    /// Returns the byte's offset in the file, or `None` if there is no such page.
    pub fn flip_bit(&mut self, within_bytes: usize, rng: &mut RandomStream) -> Option<u64> {
        let dirty =
            |page: usize| self.unsynced.iter().any(|write| write.change.pages().contains(&page));
        let clean: Vec<usize> =
            (0..self.stable.len()).filter(|page| self.stable[*page].is_some()).collect();
        if clean.is_empty() {
            return None;
        }
        let page = rng.pick(&clean);
        if dirty(page) {
            return None;
        }
        let bit = rng.index(within_bytes.min(PAGE_BYTES) * 8);
        let mut bytes = BytesMut::from(self.stable[page].as_deref()?);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flipped = Some(bytes.freeze());
        self.current[page].clone_from(&flipped);
        self.stable[page] = flipped;
        Some((page * PAGE_BYTES + bit / 8) as u64)
    }
}

fn apply(pages: &mut Vec<Page>, change: &Change) {
    let end = change.first_page + change.pages.len();
    if pages.len() < end {
        pages.resize(end, None);
    }
    pages[change.first_page..end].clone_from_slice(&change.pages);
}

/// `write` with each sector either new or as in `stable`.
fn tear_sectors(
    stable: &[Page],
    write: &Change,
    sector_bytes: usize,
    rng: &mut RandomStream,
) -> Change {
    let mut torn = write.clone();
    for (index, page) in torn.pages.iter_mut().enumerate() {
        let old = stable.get(write.first_page + index).cloned().flatten();
        let mut mixed = BytesMut::zeroed(PAGE_BYTES);
        for (sector, part) in mixed.chunks_mut(sector_bytes).enumerate() {
            let source = if rng.chance(500) { page.as_ref() } else { old.as_ref() };
            if let Some(source) = source {
                part.copy_from_slice(&source[sector * sector_bytes..][..sector_bytes]);
            }
        }
        *page = Some(mixed.freeze());
    }
    torn
}

/// Cuts a gather list into pages, without copying where a page lies within one part.
pub(crate) fn pages_of(data: &[Bytes]) -> Vec<Page> {
    let total: usize = data.iter().map(Bytes::len).sum();
    let mut pages = Vec::with_capacity(total.div_ceil(PAGE_BYTES));
    let mut partial = BytesMut::new();
    for part in data {
        let mut rest = part.clone();
        if !partial.is_empty() {
            let head = rest.split_to(rest.len().min(PAGE_BYTES - partial.len()));
            partial.extend_from_slice(&head);
            if partial.len() == PAGE_BYTES {
                pages.push(Some(partial.split().freeze()));
            }
        }
        while rest.len() >= PAGE_BYTES {
            pages.push(Some(rest.split_to(PAGE_BYTES)));
        }
        partial.extend_from_slice(&rest);
    }
    if !partial.is_empty() {
        partial.resize(PAGE_BYTES, 0);
        pages.push(Some(partial.freeze()));
    }
    pages
}
