//! Zigzag codes: k data and r = m parity shards of n = r^M elements, where one lost data shard is
//! rebuilt from 1/r of each survivor (Tamo, Wang, Bruck, *Zigzag codes: MDS array codes with
//! optimal rebuilding*, IEEE Trans. Inf. Theory 2013).
//!
//! **Construction.** Number the n rows (elements of a shard) by M digits in base r, with digit 0
//! the least significant. Column j of the data *shifts* one digit, or none. Parity l adds data
//! elements along a zigzag: `P_l[y] = sum over j of c_{l,j}(x) D_j[x]`, where x is y with the digit
//! of column j lowered by l (mod r). So parity 0 is the plain XOR of rows.
//!
//! **Rebuild of column j** that shifts digit i: lost row x comes from parity -x_i (mod r), in the
//! row whose digit i is 0. Every other column that does not shift digit i has its rows with digit 0
//! there, too. So the rebuild reads only those n/r rows of every survivor. For a column without a
//! shift, it uses parity (sum of digits of x) mod r instead. Columns that shift the same digit help
//! each other less: they exist if k exceeds M + 1, and then the rebuild reads more (see the table
//! below).
//!
//! **Two families of coefficients**, over GF(2^8):
//! - *The paper's* (r = 2, k <= 6, n = 2^(k-1)): column j shifts digit j - 1, and the coefficient
//!   in parity 1 is 2 if the digits 0 .. j-1 of x have an odd sum, else 1. With k = 4 these are
//!   equations 2 to 5 of the MSR engine paper, whose {6,4,8} is `zigzag:4+2`.
//! - *The product family* (all other codes): column col = c (M+1) + j shifts digit j - 1 (none for
//!   j = 0). A_j is the shift by one, multiplied by 2^(r j) for a digit that wraps around. Parity l
//!   applies 2^(c (M+1) l) A_j^l.
//!
//! **Why the product family is MDS.** Its shifts commute and A_j^r = 2^(r j). So the determinant of
//! a square block part is the product of the determinants of the parts of the matrix `mu_col^l`,
//! over all choices of eigenvalues: mu_col is 2^col times an r-th root of unity. The only 2nd and
//! 4th root is 1. So for r = 2 and r = 4 the code is MDS exactly if the Vandermonde matrix of the
//! 2^col is: k <= 253 (the bound of a stripe) and k <= 21. The cube roots are 1, 2^85 and 2^170. So
//! for r = 3 the eigenvalues stay distinct for k <= 85, and so do their squares; that covers all
//! parts of three rows. More parities are not offered.
//!
//! | k+m  | n   | nodes' worth of reads per lost data shard | with Reed-Solomon |
//! |------|-----|-------------------------------------------|-------------------|
//! | 4+2  | 8   | 2.5                                       | 4                 |
//! | 6+2  | 32  | 3.5                                       | 6                 |
//! | 6+3  | 9   | 3.33                                      | 6                 |
//! | 8+3  | 27  | 4.0                                       | 8                 |
//! | 10+4 | 64  | 4.0 to 4.75                               | 10                |
//!
//! For a lost parity, or several losses, the repair reads k whole shards: [`decode`].

mod decode;
mod rebuild;

use fieldstone_gf::{LinearMap, Term, field};

use crate::cache::PlanKey;
use crate::construction::{Construction, data_first};
use crate::{RepairPlan, zigzag};

/// Most elements per shard unless the profile asks for more. Shards of 256 KiB then have elements
/// of 4 KiB, the unit of storage.
pub const ZIGZAG_DEFAULT_MAX_ELEMENTS: u32 = 64;
/// Most elements per shard for two or three parities.
pub const ZIGZAG_MAX_ELEMENTS: u32 = 1024;
/// Most elements per shard for four parities, whose decode tables grow fastest.
pub const ZIGZAG_MAX_ELEMENTS_OF_4: u32 = 256;

/// The reason why the numbers are no Zigzag code; `None` if they are one.
pub(crate) fn refusal(k: usize, m: usize, n: u32) -> Option<String> {
    let Some(most_k) = max_k(m) else {
        return Some(
            "M must be 2, 3 or 4: these are the parities it is known to be MDS for".into(),
        );
    };
    if k < 2 || k > most_k {
        return Some(format!("with M = {m}, K must be 2 to {most_k}"));
    }
    let most = if m == 4 { ZIGZAG_MAX_ELEMENTS_OF_4 } else { ZIGZAG_MAX_ELEMENTS };
    let Some(digits) = digits(m, n).filter(|&digits| digits >= 1 && n <= most) else {
        return Some(format!("n must be a power of {m} from {m} to {most}"));
    };
    (digits >= k).then(|| format!("n must be at most {m}^{}, which is optimal", k - 1))
}

/// Most data shards for m parities: the code must be MDS, and a stripe must hold the shards.
fn max_k(m: usize) -> Option<usize> {
    match m {
        2 => Some(crate::MAX_SHARDS - 2),
        3 => Some(85),
        4 => Some(21),
        _ => None,
    }
}

/// An upper bound for the terms of every program of the code. For numbers that [`refusal`] accepts.
///
/// With e <= m missing columns, each of e n syndromes has a term for itself and for every column
/// read. Each of e n missing elements has a term for every syndrome of its [part](decode), at most
/// e m^e. A missing element may be copied. Lost parities, of which there are m at most, are sums
/// over all k columns.
pub(crate) fn most_terms(k: usize, m: usize, n: u32) -> usize {
    let n = n as usize;
    let part = (m * m.pow(m as u32)).min(m * n);
    let syndromes = m * n * k;
    let missing = m * n * (part + 1);
    syndromes + missing + m * n * k
}

/// M, if n = r^M.
fn digits(r: usize, n: u32) -> Option<usize> {
    (0..32).find(|&digits| (r as u64).checked_pow(digits) == Some(u64::from(n))).map(|d| d as usize)
}

/// Default n: r^(k-1), the smallest number with optimal rebuilding, or the largest power of r
/// within [`ZIGZAG_DEFAULT_MAX_ELEMENTS`].
pub(crate) fn default_elements(k: usize, m: usize) -> u32 {
    let r = m.max(2) as u32;
    let powers = std::iter::successors(Some(r), |power| power.checked_mul(r));
    let allowed = powers.take_while(|&n| n <= ZIGZAG_DEFAULT_MAX_ELEMENTS.max(r));
    allowed.take(k.saturating_sub(1).max(1)).last().unwrap_or(r)
}

/// A Zigzag code.
pub(crate) struct Zigzag {
    k: usize,
    r: usize,
    n: u32,
    /// The number M.
    digits: usize,
    /// True for the paper's coefficients, false for the product family's.
    paper: bool,
}

impl Zigzag {
    /// The code, for numbers that [`refusal`] accepts.
    pub(crate) fn new(k: usize, r: usize, n: u32) -> Self {
        let digits = zigzag::digits(r, n).expect("n was checked to be a power of r");
        let paper = r == 2 && k <= 6 && digits == k - 1;
        Self { k, r, n, digits, paper }
    }

    /// Digit i of row x.
    fn digit(&self, x: u32, i: usize) -> usize {
        x as usize / self.r.pow(i as u32) % self.r
    }

    /// The digit that a column shifts, if any.
    fn shifted(&self, column: usize) -> Option<usize> {
        (column % (self.digits + 1)).checked_sub(1)
    }

    /// x with the column's digit raised by `by` (mod r).
    fn shift(&self, column: usize, by: usize, x: u32) -> u32 {
        let Some(i) = self.shifted(column) else { return x };
        let (old, unit) = (self.digit(x, i), self.r.pow(i as u32));
        let new = (old + by) % self.r;
        (x as usize - old * unit + new * unit) as u32
    }

    /// The row of a data column that row y of parity l contains.
    fn data_row(&self, column: usize, parity: usize, y: u32) -> u32 {
        self.shift(column, self.r - parity, y)
    }

    /// The coefficient of row x of a data column in parity l.
    fn coefficient(&self, column: usize, parity: usize, x: u32) -> u8 {
        if self.paper {
            let below = x & ((1 << column) - 1);
            return if parity == 1 && below.count_ones() % 2 == 1 { 2 } else { 1 };
        }
        let copies = column / (self.digits + 1) * (self.digits + 1);
        let wraps = self.shifted(column).filter(|&i| self.digit(x, i) + parity >= self.r);
        field::exp(copies * parity + wraps.map_or(0, |i| self.r * (i + 1)))
    }

    /// The terms of row y of parity l: (column, row, coefficient) for every data column.
    fn zigzag(&self, parity: usize, y: u32) -> impl Iterator<Item = (usize, u32, u8)> {
        (0..self.k).map(move |column| {
            let x = self.data_row(column, parity, y);
            (column, x, self.coefficient(column, parity, x))
        })
    }
}

impl Construction for Zigzag {
    fn elements(&self) -> u32 {
        self.n
    }

    fn encode(&self) -> LinearMap {
        let row = |parity, y| {
            let terms = self.zigzag(parity, y);
            terms.map(|(column, x, c)| Term::input(column as u16, x, c)).collect()
        };
        let rows = (0..self.r).flat_map(|parity| (0..self.n).map(move |y| (parity, y)));
        let rows = rows.map(|(parity, y)| row(parity, y)).collect();
        LinearMap::new(self.k, self.r, self.n, rows).expect("profiles bound k and n")
    }

    fn choose(&self, lost: &[usize], available: &[usize]) -> Vec<usize> {
        match lost {
            [shard] if *shard < self.k && available.len() == self.k + self.r - 1 => {
                available.to_vec()
            }
            _ => data_first(self.k, available),
        }
    }

    fn plan(&self, key: &PlanKey) -> RepairPlan {
        match key.lost[..] {
            [column] if key.reads.len() == self.k + self.r - 1 => self.rebuild(column),
            _ => self.decode(&key.lost, &key.reads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa;
    use crate::test_support::every_square_part_is_invertible;

    #[test]
    fn the_default_number_of_elements_is_optimal_or_the_largest_allowed() {
        let expected = [
            (2, 2, 2),
            (4, 2, 8),
            (6, 2, 32),
            (8, 2, 64),
            (3, 3, 9),
            (6, 3, 27),
            (2, 4, 4),
            (10, 4, 64),
        ];
        for (k, m, n) in expected {
            assert_eq!(default_elements(k, m), n, "{k}+{m}");
            assert_eq!(refusal(k, m, n), None);
        }
    }

    #[test]
    fn bounds_are_where_the_eigenvalues_stop_giving_an_mds_code() {
        // For r = 2 and 4 the eigenvalues are those of ISA-L's Vandermonde matrix.
        assert!(every_square_part_is_invertible(&isa::vandermonde(253, 2)));
        assert!(every_square_part_is_invertible(&isa::vandermonde(21, 4)));
        assert!(!every_square_part_is_invertible(&isa::vandermonde(22, 4)));
        // For r = 3, the eigenvalues of columns are distinct, and so are their squares.
        let roots = [0, 85, 170];
        let mut seen = std::collections::HashMap::new();
        for column in 0..85 {
            for root in roots {
                let eigenvalue = field::exp(column + root);
                assert_eq!(*seen.entry(eigenvalue).or_insert(column), column);
                let square = field::mul(eigenvalue, eigenvalue);
                assert_eq!(field::pow(eigenvalue, 2), square);
            }
        }
        assert_eq!(seen.len(), 255, "there is no room for another column");
    }
}
