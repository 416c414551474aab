//! The memories that the control side of a node sets up for the firmware: keys, extents,
//! coefficients and tables. The layouts are those of `firmware/layout.h`.

use std::hash::Hasher;

use fieldstone_codes::Profile;
use fieldstone_gf::{Source, Target};
use fieldstone_proto::capability::MasterKey;
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};
use siphasher::sip128::{Hasher128, SipHasher24};

/// Keys that a NIC holds at once.
pub const KEYS: usize = 8;
/// Segments that a NIC takes writes for at once.
pub const EXTENTS: usize = 256;
/// Entries of the extents' table that may have a segment.
const EXTENT_TRIES: usize = 8;
pub(super) const EXTENT_BYTES: usize = (4 + 2 + 2 + 1) * 4;
/// Parity nodes of a write.
pub const MAX_PARITIES: usize = 4;
/// Data nodes of a write.
pub const MAX_DATA_NODES: usize = 16;
/// Elements of a chunk of a code whose parities the NIC makes.
pub const MAX_ELEMENTS: usize = 15;
/// Bytes of the entry of a message: below the 77 of the paper's write descriptor.
pub const REQUEST_BYTES: usize = 68;
/// Bytes of the capabilities that a core remembers.
pub const CACHE_BYTES: usize = 64 * 68;
/// Bytes of the accumulators and of who uses them.
pub const POOL_BYTES: usize = ACCUMULATORS_AT + ACCUMULATORS * ACCUMULATOR_BYTES;
/// Parity writes at once.
pub(super) const GROUPS: usize = 16;
/// Packets of parity at once, and the bytes of each.
pub(super) const ACCUMULATORS: usize = 64;
pub(super) const ACCUMULATOR_BYTES: usize = 2048;
/// Packets of a parity write that the NIC aggregates.
pub(super) const GROUP_PACKETS: usize = 16;
/// Where the parity writes are in the pool, and the accumulators.
pub(super) const GROUPS_AT: usize = 8 + ACCUMULATORS * 4;
pub(super) const ACCUMULATORS_AT: usize = GROUPS_AT + GROUPS * GROUP_BYTES;
/// Bytes of the core's own memory.
pub const SCRATCH_BYTES: usize = 8192;
pub(super) const GROUP_BYTES: usize = (23 + MAX_DATA_NODES + 3 * GROUP_PACKETS) * 4;
const KEY_BYTES: usize = (4 + 2 + 8) * 4;
/// Where the tables start in the context: a multiple of 16.
pub(super) const TABLES_AT: usize = 9824;
/// The most bytes of context and tables: with the tables of two bytes at a time, which take 512 KiB
/// and are beyond what the rest leaves of L1. The model gives the context a bank of its own.
pub(super) const CONTEXT_BYTES: usize = TABLES_AT + (8 << 16);
/// Where fields of the context are: the end of storage, the coefficients with the place of the
/// tables behind them, the length of the staging areas, the extents, and the elements, which the
/// tables follow.
pub(super) const HOST_LEN_AT: usize = 4;
pub(super) const COEFFICIENTS_AT: usize = 16 + KEYS * KEY_BYTES;
pub(super) const STAGING_LEN_AT: usize = EXTENTS_AT - 8;
pub(super) const EXTENTS_AT: usize = COEFFICIENTS_AT + MAX_PARITIES * MAX_DATA_NODES + 12;
pub(super) const ELEMENTS_AT: usize = EXTENTS_AT + EXTENTS * EXTENT_BYTES;
const _: () = assert!(MAX_ELEMENTS < MAX_DATA_NODES);
const _: () = assert!(ELEMENTS_AT + 4 + MAX_PARITIES * (MAX_ELEMENTS + 1) <= TABLES_AT);
/// In the place of a column: the tables serve all.
const ANY_COLUMN: u8 = 0xff;
/// The data of a staged message starts here in its staging area; its headers are before it.
pub const STAGED_DATA: u32 = 256;
/// The most bytes of a staging area.
pub const MAX_STAGING_LEN: u32 = 4 << 20;

/// How the firmware multiplies: `firmware/gf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiply {
    /// A table of products, as in the paper.
    Table,
    /// The same with its loads ordered against stalls.
    Scheduled,
    /// Two bytes at a time.
    Pairs,
    /// 32 elements at a time. The data are in planes of bits.
    Planes,
}

impl Multiply {
    /// The name in the firmware's build.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Multiply::Table => "TABLE",
            Multiply::Scheduled => "SCHEDULED",
            Multiply::Pairs => "PAIRS",
            Multiply::Planes => "PLANES",
        }
    }

    /// The family of codes, as crates/codes names it. Planes take the one whose coefficients have
    /// the fewest sums; in the other ways all coefficients cost the same.
    #[must_use]
    pub fn family(self) -> &'static str {
        match self {
            Multiply::Table | Multiply::Scheduled | Multiply::Pairs => "rs",
            Multiply::Planes => "rs-van",
        }
    }

    /// Coefficients of the code with k data shards and m parities of this [family](Self::family):
    /// what data node `column` adds to parity `p` is `coefficients[p][column]` times its elements.
    ///
    /// # Errors
    /// If the code does not exist.
    pub fn coefficients(self, k: usize, m: usize) -> Result<Vec<Vec<u8>>, String> {
        let profile: Profile =
            format!("{}:{k}+{m}", self.family()).parse().map_err(|e| format!("{e}"))?;
        let code = profile.code();
        let mut rows = vec![vec![0; k]; m];
        // Encode unit vectors: the parities are the columns of the matrix.
        for column in 0..k {
            let data: Vec<Vec<u8>> = (0..k).map(|i| vec![u8::from(i == column)]).collect();
            let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut parities = vec![vec![0u8]; m];
            let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode().execute(&inputs, &mut outputs).map_err(|e| e.to_string())?;
            for (row, parity) in rows.iter_mut().zip(&parities) {
                row[column] = parity[0];
            }
        }
        Ok(rows)
    }
}

/// What one data node of a code with elements contributes: each element of its chunk to one element
/// of each parity's chunk, times a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementColumn {
    /// Data nodes of the code.
    pub k: u8,
    /// Parity nodes.
    pub m: u8,
    /// The data node.
    pub column: u8,
    /// By parity and element of the data: the element of the parity, and the factor.
    pub terms: Vec<Vec<(u8, u8)>>,
}

impl ElementColumn {
    /// The column of a code.
    ///
    /// # Errors
    /// The code or the column does not exist; or an element contributes to several elements of a
    /// parity, as in Clay: each packet would become several packets; or a chunk has more than
    /// [`MAX_ELEMENTS`] elements.
    pub fn of(code: &str, column: u8) -> Result<Self, String> {
        let profile: Profile = code.parse().map_err(|error| format!("{error}"))?;
        let (code, shard) = (profile.code(), usize::from(column));
        let elements = code.elements();
        let delta = code.delta(shard, 0..elements).map_err(|error| error.to_string())?;
        if elements as usize > MAX_ELEMENTS {
            return Err(format!("{profile} has {elements} elements, more than {MAX_ELEMENTS}"));
        }
        let mut terms = vec![vec![None; elements as usize]; code.m()];
        for row in delta.map.steps().iter().flatten() {
            let Target::Output(to) = row.target else { return Err("a code in steps".to_owned()) };
            let write = &delta.writes[usize::from(to.shard)];
            let mut written = write.elements.iter().cloned().flatten();
            let place = written.nth(to.index as usize).ok_or("no such element")?;
            for term in &row.terms {
                let Source::Input(from) = term.source else { return Err("steps".to_owned()) };
                let of = &mut terms[write.shard - code.k()][from.index as usize];
                if of.replace((place as u8, term.coefficient)).is_some() {
                    let what = "contributes to several elements of a parity";
                    return Err(format!("an element of {profile} {what}"));
                }
            }
        }
        let row = |row: Vec<Option<(u8, u8)>>| row.into_iter().collect::<Option<Vec<_>>>();
        let terms = terms.into_iter().map(row).collect::<Option<Vec<_>>>();
        let terms = terms.ok_or("an element that contributes nothing")?;
        let (k, m) = (code.k() as u8, code.m() as u8);
        Ok(Self { k, m, column, terms })
    }

    /// Each parity gets every element once.
    fn is_valid(&self) -> bool {
        let count = self.terms.first().map_or(0, Vec::len);
        let is_permutation = |row: &Vec<(u8, u8)>| {
            let mut places: Vec<usize> = row.iter().map(|(place, _)| usize::from(*place)).collect();
            places.sort_unstable();
            places == (0..count).collect::<Vec<_>>()
        };
        (1..=MAX_ELEMENTS).contains(&count)
            && (1..=MAX_PARITIES).contains(&self.terms.len())
            && self.terms.len() == usize::from(self.m)
            && self.terms.iter().all(is_permutation)
    }
}

/// Where a segment of a volume is in the node's storage. The NIC takes no write outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The volume.
    pub volume: VolumeId,
    /// The segment.
    pub segment: SegmentId,
    /// The address of its first byte.
    pub base: u64,
    /// Its bytes on this node.
    pub length: u32,
}

impl Extent {
    fn name(&self) -> (u128, u64) {
        (self.volume.0, self.segment.0)
    }

    fn end(&self) -> Option<u64> {
        self.base.checked_add(u64::from(self.length))
    }

    /// The first entry of the table that may have it.
    fn first_entry(&self) -> usize {
        (self.volume.0 as u32).wrapping_add(self.segment.0 as u32) as usize % EXTENTS
    }

    fn bytes(&self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        bytes[..16].copy_from_slice(&self.volume.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.base.to_le_bytes());
        bytes[32..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

/// Why settings make no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There are more keys than a NIC holds.
    #[error("{0} keys: a NIC holds {KEYS} at once")]
    Keys(usize),
    /// An extent is not inside of storage.
    #[error(
        "segment {} of volume {:032x}: {} bytes at {:#x} are not inside of storage",
        .0.segment.0, .0.volume.0, .0.length, .0.base
    )]
    Outside(Extent),
    /// Two extents share bytes, or are of the same segment.
    #[error(
        "segment {} of volume {:032x} and segment {} of volume {:032x} are one, or share bytes",
        .0.segment.0, .0.volume.0, .1.segment.0, .1.volume.0
    )]
    Overlap(Extent, Extent),
    /// The table of extents has no entry left where the firmware would find this one.
    #[error(
        "segment {} of volume {:032x}: a NIC takes writes for at most {EXTENTS} segments, and has \
         no entry left for this one; end the writes of another segment first",
        .0.segment.0, .0.volume.0
    )]
    NoEntry(Extent),
    /// What the node contributes is not one element of each parity for each element of the data.
    #[error(
        "a data node of a code with elements contributes each of its 1 to {MAX_ELEMENTS} elements \
         to one place of each parity, and no two to one place"
    )]
    Elements,
}

/// What the control side of a node gives its NIC.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node.
    pub node: u32,
    /// Storage addresses are below this; the staging areas follow.
    pub host_len: u64,
    /// Bytes of the staging area of each message, at most [`MAX_STAGING_LEN`].
    pub staging_len: u32,
    /// Volumes and epochs whose capabilities the NIC accepts: at most [`KEYS`].
    pub keys: Vec<(MasterKey, VolumeId, Epoch)>,
    /// The segments that may be written now, at most [`EXTENTS`].
    pub extents: Vec<Extent>,
    /// Coefficients by parity and column: those of the one code that the node encodes as a data
    /// node. Without any it refuses to.
    pub coefficients: Vec<Vec<u8>>,
    /// How the firmware multiplies.
    pub multiply: Multiply,
    /// The column that the table of [`Multiply::Pairs`] serves.
    pub column: usize,
    /// In place of coefficients: what the node contributes as a data node of a code with elements.
    /// [`Multiply::Pairs`] has no tables for it, so the node then refuses to.
    pub elements: Option<ElementColumn>,
}

/// The product of two elements of GF(2^8) with the polynomial 0x11d.
fn product(a: u8, b: u8) -> u8 {
    fieldstone_gf::field::mul(a, b)
}

impl Settings {
    /// The context's bytes: fields, and the tables after them. A NIC that runs gets new ones by
    /// [`Nic::set_context`](super::nic::Nic::set_context).
    ///
    /// # Errors
    /// [`SettingsError`] if a NIC cannot hold the keys, the extents or the elements.
    pub fn context(&self) -> Result<Vec<u8>, SettingsError> {
        if self.keys.len() > KEYS {
            return Err(SettingsError::Keys(self.keys.len()));
        }
        if self.elements.as_ref().is_some_and(|elements| !elements.is_valid()) {
            return Err(SettingsError::Elements);
        }
        let extents = self.extent_table()?;
        let mut bytes = Vec::new();
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.host_len.to_le_bytes());
        bytes.extend((self.keys.len() as u32).to_le_bytes());
        for index in 0..KEYS {
            let key = self.keys.get(index).map_or([0; KEY_BYTES], |(master, volume, epoch)| {
                key_bytes(master, *volume, *epoch)
            });
            bytes.extend(key);
        }
        for parity in 0..MAX_PARITIES {
            bytes.extend((0..MAX_DATA_NODES).map(|column| self.coefficient(parity, column)));
        }
        bytes.extend((TABLES_AT as u32).to_le_bytes());
        bytes.extend(self.staging_len.min(MAX_STAGING_LEN).to_le_bytes());
        bytes.extend(self.code());
        for extent in extents {
            bytes.extend(extent.map_or([0; EXTENT_BYTES], |extent| extent.bytes()));
        }
        let terms = self.elements.as_ref().map_or(&[][..], |elements| &elements.terms);
        bytes.extend((terms.first().map_or(0, Vec::len) as u32).to_le_bytes());
        for parity in 0..MAX_PARITIES {
            let row = terms.get(parity).map_or(&[][..], Vec::as_slice);
            let place = |at: usize| row.get(at).map_or(0, |(place, _)| *place);
            bytes.extend((0..=MAX_ELEMENTS).map(place));
        }
        bytes.resize(TABLES_AT, 0);
        bytes.extend(self.tables());
        Ok(bytes)
    }

    /// The coefficient of a parity and a column; with elements, of a parity and an element.
    fn coefficient(&self, parity: usize, column: usize) -> u8 {
        if let Some(elements) = &self.elements {
            let row = elements.terms.get(parity);
            return row.and_then(|row| row.get(column)).map_or(0, |(_, factor)| *factor);
        }
        self.coefficients.get(parity).and_then(|row| row.get(column)).copied().unwrap_or(0)
    }

    /// The entries of the extents' table.
    fn extent_table(&self) -> Result<[Option<Extent>; EXTENTS], SettingsError> {
        for extent in &self.extents {
            if extent.end().is_none_or(|end| end > self.host_len) {
                return Err(SettingsError::Outside(*extent));
            }
        }
        self.check_pairs(Extent::name, |a, b| a.name() == b.name())?;
        self.check_pairs(|extent| extent.base, |a, b| a.end() > Some(b.base))?;
        let mut table = [None; EXTENTS];
        for extent in &self.extents {
            let first = extent.first_entry();
            let free = (first..first + EXTENT_TRIES)
                .map(|at| at % EXTENTS)
                .find(|&at| table[at].is_none())
                .ok_or(SettingsError::NoEntry(*extent))?;
            table[free] = Some(*extent);
        }
        Ok(table)
    }

    /// That no extent contradicts the next one in the order of `key`.
    fn check_pairs<K: Ord>(
        &self,
        key: impl Fn(&Extent) -> K,
        contradict: impl Fn(&Extent, &Extent) -> bool,
    ) -> Result<(), SettingsError> {
        let mut sorted = self.extents.clone();
        sorted.sort_by_key(key);
        match sorted.windows(2).find(|pair| contradict(&pair[0], &pair[1])) {
            Some(pair) => Err(SettingsError::Overlap(pair[0], pair[1])),
            None => Ok(()),
        }
    }

    /// The code of the coefficients, in the places of `write_header.scheme`.
    fn code(&self) -> [u8; 4] {
        if let Some(ElementColumn { k, m, column, .. }) = self.elements {
            return if self.multiply == Multiply::Pairs { [0; 4] } else { [0, k, m, column] };
        }
        let columns = self.coefficients.first().map_or(0, Vec::len);
        let byte = |n: usize| u8::try_from(n).unwrap_or(0);
        let column = if self.multiply == Multiply::Pairs {
            // A column that no code has is served to no write.
            u8::try_from(self.column).unwrap_or(u8::MAX).min(ANY_COLUMN - 1)
        } else {
            ANY_COLUMN
        };
        [0, byte(columns), byte(self.coefficients.len()), column]
    }

    fn tables(&self) -> Vec<u8> {
        if self.coefficients.is_empty() && self.elements.is_none() {
            return Vec::new();
        }
        if self.multiply != Multiply::Pairs {
            return (0..=u16::MAX).map(|i| product((i >> 8) as u8, i as u8)).collect();
        }
        // The products of each byte, by byte and parity; an entry of the table has those of two.
        let mut products = [[0; MAX_PARITIES]; 256];
        for (byte, of) in (0..=u8::MAX).zip(&mut products) {
            for (row, product_of_row) in self.coefficients.iter().zip(of) {
                *product_of_row = product(row.get(self.column).copied().unwrap_or(0), byte);
            }
        }
        let mut tables = Vec::with_capacity(8 << 16);
        for high in &products {
            for low in &products {
                for (&low, &high) in low.iter().zip(high) {
                    tables.extend([low, high]);
                }
            }
        }
        tables
    }

    /// Where the staging area of the entry `slot` starts in the host's memory.
    #[must_use]
    pub fn staging_at(&self, slot: u32) -> u64 {
        self.host_len + u64::from(slot) * u64::from(self.staging_len)
    }
}

/// The key of capabilities of `volume` at `epoch`, as `MasterKey::derive` of proto makes it.
fn derive(master: &MasterKey, volume: VolumeId, epoch: Epoch) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(&master.0);
    hasher.write(b"fieldstone capability key");
    hasher.write(&volume.0.to_le_bytes());
    hasher.write(&epoch.0.to_le_bytes());
    hasher.finish128().as_bytes()
}

fn key_bytes(master: &MasterKey, volume: VolumeId, epoch: Epoch) -> [u8; KEY_BYTES] {
    let key = derive(master, volume, epoch);
    let mut prefix = [0; 24];
    prefix[..16].copy_from_slice(&volume.0.to_le_bytes());
    prefix[16..].copy_from_slice(&epoch.0.to_le_bytes());
    let mut bytes = [0; KEY_BYTES];
    bytes[..24].copy_from_slice(&prefix);
    for (to, word) in bytes[24..].chunks_exact_mut(8).zip(midstate(key, &prefix)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The state of SipHash-2-4-128 after whole words of 8 bytes.
fn midstate(key: [u8; 16], prefix: &[u8; 24]) -> [u64; 4] {
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for block in prefix.chunks_exact(8) {
        let block = word(block);
        v[3] ^= block;
        for _ in 0..2 {
            v = sip_round(v);
        }
        v[0] ^= block;
    }
    v
}

fn sip_round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v2 = v2.wrapping_add(v3);
    v1 = v1.rotate_left(13) ^ v0;
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v1);
    v0 = v0.wrapping_add(v3);
    v1 = v1.rotate_left(17) ^ v2;
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

/// The pool as the control side makes it: all accumulators free and zero.
#[must_use]
pub fn new_pool() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(POOL_BYTES);
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((ACCUMULATORS as u32).to_le_bytes());
    for accumulator in 0..ACCUMULATORS as u32 {
        bytes.extend(accumulator.to_le_bytes());
    }
    bytes.resize(POOL_BYTES, 0);
    bytes
}
