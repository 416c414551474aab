//! The matrices of Jerasure, as Ceph's `jerasure` plugin uses them, over words of 8, 16 or 32 bits.
//! A matrix is a list of parity rows.
//!
//! **`reed_sol_van`.** Jerasure takes the extended Vandermonde matrix of k + m rows (row x is x^0,
//! x^1, ..; the last row is 0, .., 0, 1) and makes its top the identity by column operations. Then
//! it scales parity columns, then parity rows, so that the first row and the first column of the
//! parities are ones. The result has a closed form. Column operations do not change the code that
//! the rows span. Row x holds the values at x of the Lagrange polynomials of the points 0 .. k-1.
//! In column c that is P(x) / ((x - c) W(c)), with P(x) = product of (x - j), and
//! W(c) = product of (c - j) over j != c. The last row holds their leading coefficients 1 / W(c).
//! The division by the first parity row, x = k, cancels W: column c becomes (k - c) / (x - c) times
//! a factor that depends on x alone, and the last scaling fixes this factor. With subtraction as
//! XOR:
//!
//! - first parity: 1
//! - parity of point x, k < x < k + m - 1: ((k xor c) x) / ((x xor c) k)
//! - last parity: (k xor c) / k
//!
//! **`reed_sol_r6_op`.** Two parities: ones, and 2^c.
//!
//! **`cauchy_orig`.** 1 / (i xor (m + c)) for parity i.
//!
//! **`cauchy_good`.** For two parities of 8 bits: ones, and the elements with the fewest ones in
//! their bit matrices, smallest first. Otherwise: `cauchy_orig` with each column divided by its
//! entry in the first row. Then each further row is divided by the one of its entries that leaves
//! the fewest ones in the row's bit matrices (or is left as it is).

use fieldstone_gf::WordField;

/// Parity rows of coefficients.
pub(crate) type WordMatrix = Vec<Vec<u32>>;

const DISTINCT: &str = "the points of a matrix are distinct, so no divisor is zero";

/// `reed_sol_van`; k + m is at most 2^w.
pub(crate) fn vandermonde(field: WordField, k: usize, m: usize) -> WordMatrix {
    let k = k as u32;
    let quotient = |a, b| field.div(a, b).expect(DISTINCT);
    let row = |parity: usize| -> Vec<u32> {
        let x = k + parity as u32;
        let column = |c: u32| match parity {
            0 => 1,
            _ if parity + 1 == m => quotient(k ^ c, k),
            _ => quotient(field.mul(k ^ c, x), field.mul(x ^ c, k)),
        };
        (0..k).map(column).collect()
    };
    (0..m).map(row).collect()
}

/// `reed_sol_r6_op`; k is at most 2^w - 1.
pub(crate) fn raid6(field: WordField, k: usize) -> WordMatrix {
    let powers = std::iter::successors(Some(1), |&power| Some(field.mul(power, 2)));
    vec![vec![1; k], powers.take(k).collect()]
}

/// `cauchy_orig`; k + m is at most 2^w.
pub(crate) fn cauchy_orig(field: WordField, k: usize, m: usize) -> WordMatrix {
    let entry = |i: usize, c: usize| field.inverse((i ^ (m + c)) as u32).expect(DISTINCT);
    (0..m).map(|i| (0..k).map(|c| entry(i, c)).collect()).collect()
}

/// `cauchy_good`; k + m is at most 2^w.
pub(crate) fn cauchy_good(field: WordField, k: usize, m: usize) -> WordMatrix {
    if field == WordField::W8 && m == 2 {
        let mut cheapest: Vec<u32> = (1..256).collect();
        cheapest.sort_by_key(|&element| field.bit_ones(element));
        cheapest.truncate(k);
        return vec![vec![1; k], cheapest];
    }
    let mut matrix = cauchy_orig(field, k, m);
    let divisors = matrix[0].clone();
    for row in &mut matrix {
        for (entry, &divisor) in row.iter_mut().zip(&divisors) {
            *entry = field.div(*entry, divisor).expect(DISTINCT);
        }
    }
    for row in matrix.iter_mut().skip(1) {
        *row = cheapest_multiple(field, row);
    }
    matrix
}

/// The row itself, or the row divided by one of its entries: the one with the fewest ones; among
/// equals, the first.
fn cheapest_multiple(field: WordField, row: &[u32]) -> Vec<u32> {
    let ones = |row: &[u32]| row.iter().map(|&entry| field.bit_ones(entry)).sum::<u32>();
    let divided = |divisor: &u32| -> Vec<u32> {
        let factor = field.inverse(*divisor).expect(DISTINCT);
        row.iter().map(|&entry| field.mul(entry, factor)).collect()
    };
    let candidates = row.iter().filter(|&&entry| entry != 1).map(divided);
    // min_by_key returns the first of equal minima.
    std::iter::once(row.to_vec())
        .chain(candidates)
        .min_by_key(|row| ones(row))
        .expect("the row itself is a candidate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrices_of_4_2_8_are_those_that_jerasure_prints() {
        let field = WordField::W8;
        assert_eq!(vandermonde(field, 4, 2), [[1, 1, 1, 1], [1, 70, 143, 200]]);
        assert_eq!(vandermonde(field, 4, 1), [[1, 1, 1, 1]]);
        assert_eq!(cauchy_orig(field, 4, 2), [[142, 244, 71, 167], [244, 142, 167, 71]]);
        assert_eq!(raid6(field, 4), [[1, 1, 1, 1], [1, 2, 4, 8]]);
        let best = [1, 2, 142, 4, 71, 8, 70, 173, 3, 35, 143, 16, 17, 67, 134];
        assert_eq!(cauchy_good(field, 15, 2)[1], best);
    }

    /// Jerasure's procedure as the literature describes it, with column operations.
    fn by_elimination(field: WordField, k: usize, m: usize) -> WordMatrix {
        let power = |x: u32, j: usize| (0..j).fold(1, |power, _| field.mul(power, x));
        let mut rows: WordMatrix =
            (0..k + m - 1).map(|x| (0..k).map(|j| power(x as u32, j)).collect()).collect();
        rows.push((0..k).map(|j| u32::from(j + 1 == k)).collect());
        for i in 1..k {
            let scale = field.inverse(rows[i][i]).unwrap();
            let pivot: Vec<u32> = rows[i].clone();
            for row in &mut rows {
                let column = field.mul(row[i], scale);
                for (c, entry) in row.iter_mut().enumerate() {
                    *entry = if c == i { column } else { *entry ^ field.mul(pivot[c], column) };
                }
            }
        }
        let mut parities = rows.split_off(k);
        let (first, last) = (parities[0].clone(), parities.len());
        for row in &mut parities {
            for (entry, &divisor) in row.iter_mut().zip(&first) {
                *entry = field.div(*entry, divisor).unwrap();
            }
        }
        for row in &mut parities[1..last] {
            let divisor = row[0];
            row.iter_mut().for_each(|entry| *entry = field.div(*entry, divisor).unwrap());
        }
        parities
    }

    #[test]
    fn the_closed_form_is_what_elimination_gives() {
        for field in WordField::ALL {
            for (k, m) in [(1, 1), (1, 3), (2, 2), (5, 1), (7, 4), (13, 6)] {
                assert_eq!(
                    vandermonde(field, k, m),
                    by_elimination(field, k, m),
                    "{k}+{m} {field}"
                );
            }
        }
        assert_eq!(vandermonde(WordField::W8, 40, 9), by_elimination(WordField::W8, 40, 9));
    }
}
