//! Dense matrices over GF(2^8), of the size that codes need (at most a few hundred rows). They turn
//! lists of lost and available shards into decode coefficients.

use std::fmt;
use std::ops::{Index, IndexMut};

use thiserror::Error;

use crate::field::{inverse, mul};

/// Why a matrix operation has no result.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MatrixError {
    /// The rows are linearly dependent, so there is no inverse.
    #[error("the {size} x {size} matrix is singular (found at column {column})")]
    Singular {
        /// Rows and columns of the matrix.
        size: usize,
        /// First column without a pivot.
        column: usize,
    },
    /// Inner dimensions differ, or the matrix is not square.
    #[error("matrix shapes do not fit: {left_columns} columns against {right_rows} rows")]
    Shape {
        /// Columns of the left operand.
        left_columns: usize,
        /// Rows of the right operand.
        right_rows: usize,
    },
}

/// A matrix of field elements, row by row.
#[derive(Clone, PartialEq, Eq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<u8>,
}

impl Matrix {
    /// A matrix from a function of (row, column).
    #[must_use]
    pub fn from_fn(rows: usize, columns: usize, mut value: impl FnMut(usize, usize) -> u8) -> Self {
        let values = (0..rows * columns).map(|at| value(at / columns, at % columns)).collect();
        Self { rows, columns, values }
    }

    /// The identity matrix of the given size.
    #[must_use]
    pub fn identity(size: usize) -> Self {
        Self::from_fn(size, size, |row, column| u8::from(row == column))
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One row as a slice.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// The matrix of the given rows, in the given order.
    #[must_use]
    pub fn select_rows(&self, rows: &[usize]) -> Self {
        let values = rows.iter().flat_map(|&row| self.row(row).iter().copied()).collect();
        Self { rows: rows.len(), columns: self.columns, values }
    }

    /// The product `self` times `right`.
    pub fn multiply(&self, right: &Self) -> Result<Self, MatrixError> {
        if self.columns != right.rows {
            return Err(MatrixError::Shape { left_columns: self.columns, right_rows: right.rows });
        }
        let mut product = Self::from_fn(self.rows, right.columns, |_, _| 0);
        for row in 0..self.rows {
            let target = &mut product.values[row * right.columns..(row + 1) * right.columns];
            for (inner, &coefficient) in self.row(row).iter().enumerate() {
                add_scaled(target, right.row(inner), coefficient);
            }
        }
        Ok(product)
    }

    /// The inverse, by Gauss-Jordan elimination.
    pub fn invert(&self) -> Result<Self, MatrixError> {
        let size = self.rows;
        if size != self.columns {
            return Err(MatrixError::Shape { left_columns: self.columns, right_rows: self.rows });
        }
        let (mut left, mut right) = (self.clone(), Self::identity(size));
        for column in 0..size {
            let pivot = (column..size)
                .find(|&row| left[(row, column)] != 0)
                .ok_or(MatrixError::Singular { size, column })?;
            left.swap_rows(pivot, column);
            right.swap_rows(pivot, column);
            let scale = inverse(left[(column, column)]).expect("the pivot is not zero");
            for matrix in [&mut left, &mut right] {
                for value in &mut matrix.values[column * size..(column + 1) * size] {
                    *value = mul(*value, scale);
                }
            }
            let pivot_rows = (left.row(column).to_vec(), right.row(column).to_vec());
            for row in (0..size).filter(|&row| row != column) {
                let factor = left[(row, column)];
                let range = row * size..(row + 1) * size;
                add_scaled(&mut left.values[range.clone()], &pivot_rows.0, factor);
                add_scaled(&mut right.values[range], &pivot_rows.1, factor);
            }
        }
        Ok(right)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        for column in 0..self.columns {
            self.values.swap(a * self.columns + column, b * self.columns + column);
        }
    }
}

/// `target += coefficient * source`. Zero coefficients are common (identity rows) and free.
fn add_scaled(target: &mut [u8], source: &[u8], coefficient: u8) {
    if coefficient != 0 {
        for (t, &s) in target.iter_mut().zip(source) {
            *t ^= mul(coefficient, s);
        }
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = u8;
    fn index(&self, (row, column): (usize, usize)) -> &u8 {
        &self.row(row)[column]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut u8 {
        &mut self.values[row * self.columns..(row + 1) * self.columns][column]
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.rows).map(|row| self.row(row))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn square() -> impl Strategy<Value = Matrix> {
        (1usize..12).prop_flat_map(|size| {
            proptest::collection::vec(any::<u8>(), size * size).prop_map(move |values| Matrix {
                rows: size,
                columns: size,
                values,
            })
        })
    }

    proptest! {
        #[test]
        fn an_inverse_times_its_matrix_is_the_identity(matrix in square()) {
            match matrix.invert() {
                Ok(inverse) => {
                    let identity = Matrix::identity(matrix.rows());
                    prop_assert_eq!(matrix.multiply(&inverse).unwrap(), identity.clone());
                    prop_assert_eq!(inverse.multiply(&matrix).unwrap(), identity);
                }
                Err(error) => {
                    let singular = matches!(error, MatrixError::Singular { .. });
                    prop_assert!(singular, "{}", error);
                }
            }
        }

        #[test]
        fn a_repeated_row_is_singular(matrix in square()) {
            let mut rows: Vec<usize> = (0..matrix.rows()).collect();
            if rows.len() > 1 {
                rows[0] = 1;
                prop_assert!(matrix.select_rows(&rows).invert().is_err());
            }
        }
    }

    #[test]
    fn a_zero_column_and_bad_shapes_are_errors() {
        let zero = Matrix::from_fn(3, 3, |row, column| u8::from(row == column && row != 1));
        assert_eq!(zero.invert(), Err(MatrixError::Singular { size: 3, column: 1 }));
        let wide = Matrix::from_fn(2, 3, |_, _| 1);
        assert!(wide.invert().is_err());
        assert!(wide.multiply(&wide).is_err());
        assert_eq!(wide.multiply(&zero).unwrap().rows(), 2);
    }

    #[test]
    fn a_large_permutation_inverts_to_its_transpose() {
        let permutation =
            Matrix::from_fn(255, 255, |row, column| u8::from(row * 7 % 255 == column));
        let inverse = permutation.invert().unwrap();
        assert_eq!(inverse, Matrix::from_fn(255, 255, |row, column| permutation[(column, row)]));
    }
}
