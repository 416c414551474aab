//! The matrices of ISA-L, as Ceph's `isa` plugin uses them. Coefficients are in GF(2^8), 0x11d.
//!
//! With m = 1, that plugin uses a plain XOR for every technique.

use fieldstone_gf::{Matrix, field};

/// Parity rows of `gf_gen_cauchy1_matrix`: coefficient j of parity i is 1 / ((k + i) xor j). Every
/// square part of such a matrix is invertible.
pub(crate) fn cauchy(k: usize, m: usize) -> Matrix {
    Matrix::from_fn(m, k, |row, column| match m {
        1 => 1,
        // k + row >= k > column, so the two differ, and both are below 256.
        _ => field::inverse(((k + row) ^ column) as u8).expect("different numbers have a xor"),
    })
}

/// Parity rows of `gf_gen_rs_matrix`: coefficient j of parity i is 2^(i j). Not every square part
/// of the matrix is invertible: see [`vandermonde_is_mds`].
pub(crate) fn vandermonde(k: usize, m: usize) -> Matrix {
    Matrix::from_fn(m, k, |row, column| if m == 1 { 1 } else { field::exp(row * column) })
}

/// Most data shards of the Vandermonde code.
pub(crate) const VANDERMONDE_MAX_K: usize = 32;
/// Most parities of the Vandermonde code.
pub(crate) const VANDERMONDE_MAX_M: usize = 4;
/// Most data shards for four parities: with 22, some patterns of four losses cannot be repaired.
pub(crate) const VANDERMONDE_MAX_K_OF_4: usize = 21;

/// True if the Vandermonde code is within the bounds of Ceph's plugin. Within them it repairs every
/// pattern of m losses.
pub(crate) fn vandermonde_is_mds(k: usize, m: usize) -> bool {
    let most = if m == 4 { VANDERMONDE_MAX_K_OF_4 } else { VANDERMONDE_MAX_K };
    k <= most && m <= VANDERMONDE_MAX_M
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::every_square_part_is_invertible;

    #[test]
    fn vandermonde_is_mds_up_to_its_bounds_and_not_beyond() {
        for (k, m) in [(32, 2), (32, 3), (21, 4)] {
            assert!(vandermonde_is_mds(k, m));
            assert!(every_square_part_is_invertible(&vandermonde(k, m)), "{k}+{m}");
        }
        for (k, m) in [(33, 2), (22, 4), (4, 5)] {
            assert!(!vandermonde_is_mds(k, m));
        }
        assert!(!every_square_part_is_invertible(&vandermonde(22, 4)));
    }

    #[test]
    fn cauchy_is_mds() {
        for (k, m) in [(12, 4), (20, 3), (5, 5)] {
            assert!(every_square_part_is_invertible(&cauchy(k, m)), "{k}+{m}");
        }
    }
}
