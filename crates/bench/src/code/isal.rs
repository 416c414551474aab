//! Intel's ISA-L, through its C interface (`erasure_code.h`).
//!
//! Its tables are made once per matrix and kept, as its users do and as our engine does. The
//! version of ISA-L decides which kernel runs: 2.30, which Debian 12 has, does not use GFNI. For a
//! comparison with the best kernel, pass a build of the current source with `--isal`.

use std::path::{Path, PathBuf};

use fieldstone_gf::{LinearMap, Source};

use crate::library::{Library, Symbol};

/// Bytes of table that `ec_init_tables` makes for one coefficient.
const TABLE_BYTES: usize = 32;

type InitTables = unsafe extern "C" fn(i32, i32, *const u8, *mut u8);
type EncodeData = unsafe extern "C" fn(i32, i32, i32, *const u8, *const *mut u8, *const *mut u8);
type EncodeDataUpdate =
    unsafe extern "C" fn(i32, i32, i32, i32, *const u8, *const u8, *const *mut u8);

/// The library's functions.
#[derive(Clone, Debug)]
pub struct Isal {
    /// The path from which it was loaded.
    pub path: PathBuf,
    init_tables: InitTables,
    encode_data: EncodeData,
    encode_data_update: EncodeDataUpdate,
}

impl Isal {
    /// Loads the library.
    ///
    /// # Errors
    /// The library does not exist, or lacks a function.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let library = Library::load(path)?;
        let init = library.symbol(c"ec_init_tables")?;
        let encode = library.symbol(c"ec_encode_data")?;
        let update = library.symbol(c"ec_encode_data_update")?;
        // SAFETY: these are the types that ISA-L's header gives these functions.
        unsafe {
            Ok(Self {
                path: path.to_owned(),
                init_tables: std::mem::transmute::<Symbol, InitTables>(init),
                encode_data: std::mem::transmute::<Symbol, EncodeData>(encode),
                encode_data_update: std::mem::transmute::<Symbol, EncodeDataUpdate>(update),
            })
        }
    }

    /// Tables for a map of one element per shard.
    pub fn tables(&self, map: &LinearMap) -> Tables {
        let (k, rows) = (map.inputs(), map.outputs());
        let coefficients = coefficients(map);
        let mut bytes = vec![0; TABLE_BYTES * k * rows];
        // SAFETY: the matrix has rows * k bytes, and the tables 32 bytes for each of them.
        unsafe {
            (self.init_tables)(k as i32, rows as i32, coefficients.as_ptr(), bytes.as_mut_ptr());
        }
        Tables { isal: self.clone(), k, rows, bytes }
    }
}

/// The matrix of a map of one element per shard, row after row.
pub fn coefficients(map: &LinearMap) -> Vec<u8> {
    let mut matrix = vec![0; map.inputs() * map.outputs()];
    for (row, coefficients) in
        map.steps().iter().flatten().zip(matrix.chunks_exact_mut(map.inputs()))
    {
        for term in &row.terms {
            if let Source::Input(element) = term.source {
                coefficients[usize::from(element.shard)] ^= term.coefficient;
            }
        }
    }
    matrix
}

/// A matrix in the form that ISA-L's kernels read.
#[derive(Clone, Debug)]
pub struct Tables {
    isal: Isal,
    k: usize,
    rows: usize,
    bytes: Vec<u8>,
}

impl Tables {
    /// Computes the outputs.
    ///
    /// # Safety
    /// All k inputs are valid for reading, and all outputs for writing, `len_bytes` bytes.
    pub unsafe fn encode(&self, inputs: &[*mut u8], outputs: &[*mut u8], len_bytes: usize) {
        assert!(inputs.len() >= self.k && outputs.len() >= self.rows, "buffers for every shard");
        // SAFETY: the caller's contract; the tables were made for this shape.
        unsafe {
            (self.isal.encode_data)(
                len_bytes as i32,
                self.k as i32,
                self.rows as i32,
                self.bytes.as_ptr(),
                inputs.as_ptr(),
                outputs.as_ptr(),
            );
        }
    }

    /// Adds the products of one input to the outputs.
    ///
    /// # Safety
    /// The input is valid for reading, and all outputs for reading and writing, `len_bytes` bytes.
    pub unsafe fn update(&self, at: usize, input: *mut u8, outputs: &[*mut u8], len_bytes: usize) {
        assert!(at < self.k && outputs.len() >= self.rows, "a shard, and buffers for every output");
        // SAFETY: the caller's contract; the tables were made for this shape.
        unsafe {
            (self.isal.encode_data_update)(
                len_bytes as i32,
                self.k as i32,
                self.rows as i32,
                at as i32,
                self.bytes.as_ptr(),
                input,
                outputs.as_ptr(),
            );
        }
    }
}
