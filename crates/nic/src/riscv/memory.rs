//! Memories of the NIC as a handler sees them: regions with latencies, and what it may touch.
//!
//! A [`Memory`] has a few regions, each with its bytes and the cycles that it answers later than
//! the next one. Beside them stands a list of [`Grant`]s. An access is allowed if one grant covers
//! all its bytes with the right that it needs; any other access is denied, and nothing changes. The
//! scheduler of a NIC sets the grants for each run of a handler: its code, its stack, its packet,
//! the entry of its request, and the state of its context. So a handler cannot write outside its
//! request's memory, whatever its packet says, as with the PMP unit of RI5CY (16 entries).

use crate::riscv::isa::{Decoded, Width, decode};

/// Why a bus did not do an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusError {
    /// Not allowed.
    Denied,
    /// Not now: the core waits and tries again.
    Busy,
}

/// Why there is no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// This half word may not be executed.
    Denied(u32),
    /// The word is no instruction of the cores.
    Illegal(u32),
}

/// The answer to a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The value in the lower bits; the upper bits are zero.
    pub value: u32,
    /// Cycles that the answer comes later than from the fastest memory.
    pub extra_cycles: u64,
}

/// The memory and devices of a core.
pub trait Bus {
    /// Says at which cycle of its core the next accesses are.
    fn set_cycle(&mut self, _cycle: u64) {}

    /// The half word at `address`, as an instruction.
    ///
    /// # Errors
    /// [`BusError::Denied`] if it may not be executed.
    fn fetch(&mut self, address: u32) -> Result<u16, BusError>;

    /// The instruction at `pc`. A bus may remember what it has decoded.
    ///
    /// # Errors
    /// [`FetchError`] if it may not be executed, or is none.
    fn instruction(&mut self, pc: u32) -> Result<Decoded, FetchError> {
        fetch_and_decode(self, pc)
    }

    /// Reads.
    ///
    /// # Errors
    /// See [`BusError`].
    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError>;

    /// Writes the lower bits of `value`; the answer is the extra cycles.
    ///
    /// # Errors
    /// See [`BusError`].
    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError>;

    /// Replaces the word at `address` by `change` of it; the answer is the old word.
    ///
    /// # Errors
    /// See [`BusError`].
    fn atomic(
        &mut self,
        address: u32,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError>;
}

fn fetch_and_decode<B: Bus + ?Sized>(bus: &mut B, pc: u32) -> Result<Decoded, FetchError> {
    let mut half = |at| bus.fetch(at).map(u32::from).map_err(|_| FetchError::Denied(at));
    let low = half(pc)?;
    // The lowest bits say whether the instruction has two half words.
    let word = if low & 3 == 3 { half(pc.wrapping_add(2))? << 16 | low } else { low };
    decode(word).ok_or(FetchError::Illegal(word))
}

/// What a grant allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instructions.
    pub execute: bool,
}

impl Permission {
    /// Loads only.
    pub const READ: Permission = Permission { read: true, write: false, execute: false };
    /// Loads and stores.
    pub const WRITE: Permission = Permission { read: true, write: true, execute: false };
    /// Instructions, and loads of the constants between them.
    pub const EXECUTE: Permission = Permission { read: true, write: false, execute: true };
}

/// A range of addresses, and what is allowed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first address.
    pub base: u32,
    /// Length in bytes.
    pub len: u32,
    /// What is allowed.
    pub permission: Permission,
}

impl Grant {
    fn covers(&self, address: u32, bytes: u32) -> bool {
        address.checked_sub(self.base).is_some_and(|at| at < self.len && bytes <= self.len - at)
    }
}

/// The most grants at once: RI5CY's PMP has 16 entries.
pub const MAX_GRANTS: usize = 16;

/// A part of the address space that has bytes.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its name, for messages.
    pub name: &'static str,
    /// The first address.
    pub base: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Cycles that a load is later than from the fastest memory.
    pub load_extra_cycles: u64,
    /// Cycles that a store is later than to the fastest memory.
    pub store_extra_cycles: u64,
    /// Cycles that an atomic operation is later than a load from the fastest memory.
    pub atomic_extra_cycles: u64,
}

impl Region {
    fn offset(&self, address: u32, bytes: usize) -> Option<usize> {
        let at = address.checked_sub(self.base)? as usize;
        (at.checked_add(bytes)? <= self.bytes.len()).then_some(at)
    }
}

/// Why memory could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No region has these bytes.
    #[error("no memory has the {len} bytes at {address:#010x}")]
    NoRegion {
        /// The first address.
        address: u32,
        /// The number of bytes.
        len: usize,
    },
    /// There are more grants than the core has entries for.
    #[error("{0} grants; a core has {MAX_GRANTS} entries for them")]
    TooManyGrants(usize),
}

/// Regions and grants.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    grants: Vec<Grant>,
    /// For each region, its instructions as they were decoded, by the half word where they start.
    /// Empty again after a write to the region.
    decoded: Vec<Vec<Option<Decoded>>>,
}

impl Memory {
    /// Memory of these regions, which must not overlap, without grants.
    #[must_use]
    pub fn new(regions: Vec<Region>) -> Self {
        let decoded = vec![Vec::new(); regions.len()];
        Self { regions, grants: Vec::new(), decoded }
    }

    /// Replaces the grants.
    ///
    /// # Errors
    /// [`MemoryError::TooManyGrants`] for more than [`MAX_GRANTS`].
    pub fn set_grants(&mut self, grants: &[Grant]) -> Result<(), MemoryError> {
        if grants.len() > MAX_GRANTS {
            return Err(MemoryError::TooManyGrants(grants.len()));
        }
        self.grants.clear();
        self.grants.extend_from_slice(grants);
        Ok(())
    }

    /// The bytes at `address`, as the NIC sees them: grants do not apply.
    ///
    /// # Errors
    /// [`MemoryError::NoRegion`] if no region has all of them.
    pub fn bytes(&self, address: u32, len: usize) -> Result<&[u8], MemoryError> {
        self.regions
            .iter()
            .find_map(|region| region.offset(address, len).map(|at| &region.bytes[at..at + len]))
            .ok_or(MemoryError::NoRegion { address, len })
    }

    /// The same, to be written.
    ///
    /// # Errors
    /// [`MemoryError::NoRegion`] if no region has all of them.
    pub fn bytes_mut(&mut self, address: u32, len: usize) -> Result<&mut [u8], MemoryError> {
        for (region, decoded) in self.regions.iter_mut().zip(&mut self.decoded) {
            if let Some(at) = region.offset(address, len) {
                decoded.clear();
                return Ok(&mut region.bytes[at..at + len]);
            }
        }
        Err(MemoryError::NoRegion { address, len })
    }

    /// Whether one grant lets the handler read all of these bytes.
    #[must_use]
    pub fn may_read(&self, address: u32, len: u32) -> bool {
        self.allowed(address, len, |p| p.read)
    }

    fn allowed(&self, address: u32, bytes: u32, right: fn(&Permission) -> bool) -> bool {
        self.grants.iter().any(|g| right(&g.permission) && g.covers(address, bytes))
    }

    fn find(&self, address: u32, bytes: u32) -> Result<(usize, usize), BusError> {
        self.regions
            .iter()
            .enumerate()
            .find_map(|(i, region)| Some((i, region.offset(address, bytes as usize)?)))
            .ok_or(BusError::Denied)
    }
}

fn read(bytes: &[u8], at: usize, len: u32) -> u32 {
    (0..len as usize).fold(0, |value, i| value | u32::from(bytes[at + i]) << (8 * i))
}

fn write(bytes: &mut [u8], at: usize, len: u32, value: u32) {
    let len = len as usize;
    bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

impl Memory {
    /// The instruction at `pc` if it was decoded before, and may still be executed.
    fn remembered(&self, pc: u32) -> Option<Decoded> {
        let (region, at) = self.find(pc, 2).ok()?;
        let decoded = (*self.decoded[region].get(at / 2)?)?;
        (at % 2 == 0 && self.allowed(pc, decoded.len_bytes, |p| p.execute)).then_some(decoded)
    }

    fn remember(&mut self, pc: u32, decoded: Decoded) {
        let Ok((region, at)) = self.find(pc, decoded.len_bytes) else { return };
        if at % 2 == 0 {
            let all = &mut self.decoded[region];
            all.resize(all.len().max(at / 2 + 1), None);
            all[at / 2] = Some(decoded);
        }
    }
}

impl Bus for Memory {
    fn instruction(&mut self, pc: u32) -> Result<Decoded, FetchError> {
        if let Some(decoded) = self.remembered(pc) {
            return Ok(decoded);
        }
        let decoded = fetch_and_decode(self, pc)?;
        self.remember(pc, decoded);
        Ok(decoded)
    }

    fn fetch(&mut self, address: u32) -> Result<u16, BusError> {
        if !self.allowed(address, 2, |p| p.execute) {
            return Err(BusError::Denied);
        }
        let (region, at) = self.find(address, 2)?;
        Ok(read(&self.regions[region].bytes, at, 2) as u16)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<Access, BusError> {
        if !self.allowed(address, width.bytes(), |p| p.read) {
            return Err(BusError::Denied);
        }
        let (region, at) = self.find(address, width.bytes())?;
        let region = &self.regions[region];
        let value = read(&region.bytes, at, width.bytes());
        Ok(Access { value, extra_cycles: region.load_extra_cycles })
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<u64, BusError> {
        if !self.allowed(address, width.bytes(), |p| p.write) {
            return Err(BusError::Denied);
        }
        let (region, at) = self.find(address, width.bytes())?;
        self.decoded[region].clear();
        let region = &mut self.regions[region];
        write(&mut region.bytes, at, width.bytes(), value);
        Ok(region.store_extra_cycles)
    }

    fn atomic(
        &mut self,
        address: u32,
        change: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Access, BusError> {
        if !self.allowed(address, 4, |p| p.read && p.write) {
            return Err(BusError::Denied);
        }
        let (region, at) = self.find(address, 4)?;
        self.decoded[region].clear();
        let region = &mut self.regions[region];
        let value = read(&region.bytes, at, 4);
        write(&mut region.bytes, at, 4, change(value));
        Ok(Access { value, extra_cycles: region.atomic_extra_cycles })
    }
}
