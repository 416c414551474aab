//! Functions that unit tests share.

use fieldstone_gf::{Matrix, field};

/// True if every square part of a matrix of up to four rows is invertible, so the code with these
/// parity rows is MDS. The function uses expansion of determinants, so it is independent of
/// elimination.
pub(crate) fn every_square_part_is_invertible(matrix: &Matrix) -> bool {
    let rows: Vec<usize> = (0..matrix.rows()).collect();
    let columns: Vec<usize> = (0..matrix.columns()).collect();
    (1..=matrix.rows().min(matrix.columns())).all(|size| {
        subsets(&rows, size).iter().all(|rows| {
            subsets(&columns, size).iter().all(|columns| determinant(matrix, rows, columns) != 0)
        })
    })
}

/// All subsets of a size, in order.
pub(crate) fn subsets(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    match (size, items) {
        (0, _) => vec![Vec::new()],
        (_, []) => Vec::new(),
        (_, [first, rest @ ..]) => {
            let with = subsets(rest, size - 1).into_iter().map(|mut subset| {
                subset.insert(0, *first);
                subset
            });
            with.chain(subsets(rest, size)).collect()
        }
    }
}

fn determinant(matrix: &Matrix, rows: &[usize], columns: &[usize]) -> u8 {
    let [row, rest @ ..] = rows else { return 1 };
    (0..columns.len()).fold(0, |sum, at| {
        let mut others = columns.to_vec();
        let column = others.remove(at);
        sum ^ field::mul(matrix[(*row, column)], determinant(matrix, rest, &others))
    })
}
