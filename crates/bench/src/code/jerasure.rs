//! Jerasure on gf-complete, the library of Ceph's plugin `jerasure`, through its C interface
//! (`jerasure.h`, `galois.h`).
//!
//! The benchmark measures two things: Jerasure's encoder and decoder for matrices, where the
//! interface makes the decoder invert the matrix in every call; and the multiply-and-add of one
//! region, with which the MSR paper's CPU encoder computes element by element.

use std::path::{Path, PathBuf};

use crate::library::{Library, Symbol};

/// Bits of a symbol in all these measurements.
const W: i32 = 8;

type MatrixEncode =
    unsafe extern "C" fn(i32, i32, i32, *const i32, *const *mut u8, *const *mut u8, i32);
type MatrixDecode = unsafe extern "C" fn(
    i32,
    i32,
    i32,
    *const i32,
    i32,
    *const i32,
    *const *mut u8,
    *const *mut u8,
    i32,
) -> i32;
type RegionMultiply = unsafe extern "C" fn(*mut u8, i32, i32, *mut u8, i32);

/// The library's functions.
#[derive(Clone, Debug)]
pub struct Jerasure {
    /// The path from which it was loaded.
    pub path: PathBuf,
    matrix_encode: MatrixEncode,
    matrix_decode: MatrixDecode,
    region_multiply: RegionMultiply,
}

impl Jerasure {
    /// Loads the library.
    ///
    /// # Errors
    /// The library does not exist, lacks a function, or uses another field.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let library = Library::load(path)?;
        let encode = library.symbol(c"jerasure_matrix_encode")?;
        let decode = library.symbol(c"jerasure_matrix_decode")?;
        let region = library.symbol(c"galois_w08_region_multiply")?;
        // SAFETY: these are the types that Jerasure's headers give these functions.
        let jerasure = unsafe {
            Self {
                path: path.to_owned(),
                matrix_encode: std::mem::transmute::<Symbol, MatrixEncode>(encode),
                matrix_decode: std::mem::transmute::<Symbol, MatrixDecode>(decode),
                region_multiply: std::mem::transmute::<Symbol, RegionMultiply>(region),
            }
        };
        // The first use makes the library's tables, which is not safe in several threads.
        let (mut from, mut to) = ([1u8; 64], [0u8; 64]);
        // SAFETY: both arrays have 64 bytes.
        unsafe { jerasure.multiply_add(from.as_mut_ptr(), 2, to.as_mut_ptr(), from.len(), false) };
        anyhow::ensure!(to == [2; 64], "its multiplication is not that of the field 0x11d");
        Ok(jerasure)
    }

    /// Computes `outputs` from `inputs` with a matrix of rows of `inputs.len()` coefficients.
    ///
    /// # Safety
    /// All buffers are valid for `len_bytes` bytes, and the matrix has a row for every output.
    pub unsafe fn encode(
        &self,
        matrix: &[i32],
        inputs: &[*mut u8],
        outputs: &[*mut u8],
        len_bytes: usize,
    ) {
        assert_eq!(matrix.len(), inputs.len() * outputs.len(), "one coefficient for each pair");
        // SAFETY: the caller's contract.
        unsafe {
            (self.matrix_encode)(
                inputs.len() as i32,
                outputs.len() as i32,
                W,
                matrix.as_ptr(),
                inputs.as_ptr(),
                outputs.as_ptr(),
                len_bytes as i32,
            );
        }
    }

    /// Recomputes the `lost` shards. `data` and `parity` hold all shards; the lost ones are
    /// outputs.
    ///
    /// # Safety
    /// All buffers are valid for `len_bytes` bytes; `matrix` has a row for every parity.
    pub unsafe fn decode(
        &self,
        matrix: &[i32],
        lost: &[i32],
        data: &[*mut u8],
        parity: &[*mut u8],
        len_bytes: usize,
    ) {
        assert_eq!(matrix.len(), data.len() * parity.len(), "one coefficient for each pair");
        // Jerasure requires -1 at the end of the list.
        let lost: Vec<i32> = lost.iter().copied().chain([-1]).collect();
        // SAFETY: the caller's contract.
        let result = unsafe {
            (self.matrix_decode)(
                data.len() as i32,
                parity.len() as i32,
                W,
                matrix.as_ptr(),
                0,
                lost.as_ptr(),
                data.as_ptr(),
                parity.as_ptr(),
                len_bytes as i32,
            )
        };
        assert_eq!(result, 0, "at most m shards are lost");
    }

    /// Sets `to` to `coefficient` times `from`, or adds the product to `to` if `add`.
    ///
    /// # Safety
    /// Both are valid for `len_bytes` bytes.
    pub unsafe fn multiply_add(
        &self,
        from: *mut u8,
        coefficient: u8,
        to: *mut u8,
        len_bytes: usize,
        add: bool,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            (self.region_multiply)(
                from,
                i32::from(coefficient),
                len_bytes as i32,
                to,
                i32::from(add),
            );
        }
    }
}
