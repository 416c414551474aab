//! Programs for the cores: 32-bit ELF files, little endian, for RISC-V.
//!
//! Only what a linked program without relocations needs is read: the segments that are loaded, and
//! the symbols. Every number of the file is checked before it is used; a file that does not hold is
//! refused with the reason. (System V ABI, chapters 4 and 5; RISC-V ELF psABI for the machine.)

use std::collections::BTreeMap;

/// The most bytes of a program: the NIC's program memory.
pub const MAX_PROGRAM_BYTES: u32 = 32 << 10;
/// The most symbols that are read.
const MAX_SYMBOLS: u32 = 4096;

const MACHINE_RISCV: u16 = 243;
const TYPE_EXECUTABLE: u16 = 2;
const SEGMENT_LOAD: u32 = 1;
const SECTION_SYMBOLS: u32 = 2;

/// A program: bytes at addresses, and names of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The address of the first byte.
    pub base: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The address of each named symbol.
    pub symbols: BTreeMap<String, u32>,
}

/// Why a file is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The file ends before something that it names.
    #[error("the file ends before its {0}")]
    Truncated(&'static str),
    /// Another kind of file.
    #[error("the file is no 32-bit little-endian ELF program for RISC-V")]
    Kind,
    /// Its segments are not in one range of at most [`MAX_PROGRAM_BYTES`].
    #[error("the program takes more than {MAX_PROGRAM_BYTES} bytes of program memory")]
    TooLarge,
    /// No segment has bytes.
    #[error("the program has no code")]
    Empty,
    /// A symbol that is needed is missing.
    #[error("the program has no function {0}")]
    NoSymbol(String),
}

struct File<'a>(&'a [u8]);

impl<'a> File<'a> {
    fn bytes(&self, at: u32, len: u32, what: &'static str) -> Result<&'a [u8], ElfError> {
        let end = u64::from(at) + u64::from(len);
        if end > self.0.len() as u64 {
            return Err(ElfError::Truncated(what));
        }
        Ok(&self.0[at as usize..end as usize])
    }

    fn half(&self, at: u32, what: &'static str) -> Result<u16, ElfError> {
        let b = self.bytes(at, 2, what)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    fn word(&self, at: u32, what: &'static str) -> Result<u32, ElfError> {
        let b = self.bytes(at, 4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// The start of entry `index` of a table.
fn entry(start: u32, index: u32, size: u32, what: &'static str) -> Result<u32, ElfError> {
    index
        .checked_mul(size)
        .and_then(|at| at.checked_add(start))
        .filter(|at| at.checked_add(64).is_some())
        .ok_or(ElfError::Truncated(what))
}

impl Program {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ElfError`] says what does not hold.
    pub fn parse(file: &[u8]) -> Result<Self, ElfError> {
        let file = File(file);
        let ident = file.bytes(0, 16, "header")?;
        if !ident.starts_with(b"\x7fELF\x01\x01")
            || file.half(16, "header")? != TYPE_EXECUTABLE
            || file.half(18, "header")? != MACHINE_RISCV
        {
            return Err(ElfError::Kind);
        }
        let (base, bytes) = segments(&file)?;
        let symbols = symbols(&file)?;
        Ok(Self { base, bytes, symbols })
    }

    /// The address of function `name`.
    ///
    /// # Errors
    /// [`ElfError::NoSymbol`].
    pub fn symbol(&self, name: &str) -> Result<u32, ElfError> {
        self.symbols.get(name).copied().ok_or_else(|| ElfError::NoSymbol(name.to_owned()))
    }
}

fn segments(file: &File<'_>) -> Result<(u32, Vec<u8>), ElfError> {
    const WHAT: &str = "program headers";
    let start = file.word(28, WHAT)?;
    let size = u32::from(file.half(42, WHAT)?);
    let count = u32::from(file.half(44, WHAT)?);
    let mut loaded = Vec::new();
    for index in 0..count {
        let at = entry(start, index, size, WHAT)?;
        let memory_len = file.word(at + 20, WHAT)?;
        if file.word(at, WHAT)? != SEGMENT_LOAD || memory_len == 0 {
            continue;
        }
        let bytes = file.bytes(file.word(at + 4, WHAT)?, file.word(at + 16, WHAT)?, "segments")?;
        let address = file.word(at + 8, WHAT)?;
        if bytes.len() as u64 > u64::from(memory_len) || address.checked_add(memory_len).is_none() {
            return Err(ElfError::TooLarge);
        }
        loaded.push((address, memory_len, bytes));
    }
    let base = loaded.iter().map(|s| s.0).min().ok_or(ElfError::Empty)?;
    let end = loaded.iter().map(|s| s.0 + s.1).max().unwrap_or(base);
    if end - base > MAX_PROGRAM_BYTES {
        return Err(ElfError::TooLarge);
    }
    let mut memory = vec![0; (end - base) as usize];
    for (address, _, bytes) in loaded {
        let at = (address - base) as usize;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
    Ok((base, memory))
}

fn symbols(file: &File<'_>) -> Result<BTreeMap<String, u32>, ElfError> {
    const WHAT: &str = "symbols";
    let start = file.word(32, WHAT)?;
    let size = u32::from(file.half(46, WHAT)?);
    let count = u32::from(file.half(48, WHAT)?);
    let mut found = BTreeMap::new();
    for index in 0..count {
        let at = entry(start, index, size, WHAT)?;
        if file.word(at + 4, WHAT)? != SECTION_SYMBOLS {
            continue;
        }
        let names = entry(start, file.word(at + 24, WHAT)?, size, WHAT)?;
        let names = file.bytes(file.word(names + 16, WHAT)?, file.word(names + 20, WHAT)?, WHAT)?;
        let table = file.word(at + 16, WHAT)?;
        for symbol in 0..(file.word(at + 20, WHAT)? / 16).min(MAX_SYMBOLS) {
            let symbol = entry(table, symbol, 16, WHAT)?;
            let name = file.word(symbol, WHAT)? as usize;
            let name = names.get(name..).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if let (Ok(name), false) = (std::str::from_utf8(name), name.is_empty()) {
                found.insert(name.to_owned(), file.word(symbol + 4, WHAT)?);
            }
        }
    }
    Ok(found)
}
