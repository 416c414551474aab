//! Arithmetic in GF(2^8), and the linear program to which every erasure code compiles.
//!
//! Every code of this project is linear over GF(2^8): each output element is a sum of coefficients
//! times input elements. So encoding, decoding of any pattern of losses, regenerating rebuild,
//! parity update and plain replication are the same job with other tables. [`LinearMap`] is that
//! table: an immutable, validated program. This crate executes it on byte slices; other devices
//! (RTL, GPU) can read and execute it with identical bits.
//!
//! The idea is that of the MSR engine paper: one engine for encode and rebuild, where only the
//! index and coefficient tables differ. Here it is the interface between codes and machines.
//!
//! | module     | idea |
//! |------------|------|
//! | [`field`]  | the field 0x11d: tables made by `const fn`, multiply, divide, power |
//! | [`word`]   | the fields of 8, 16 and 32 bits, for the matrices of codes over words |
//! | [`matrix`] | small dense matrices: product and inverse, for deriving decode tables |
//! | `map`      | [`LinearMap`]: shape, steps, rows, terms, and the rules of validity |
//! | `compile`  | rows become *passes*: groups of rows that share sources, with kernel tables |
//! | `execute`  | shape check, the loop over column slices |
//! | `stores`   | plain or streaming stores, chosen by what the thread wrote and measured |
//! | `check`    | [`OutputCheck`]: whether outputs are right, without computing them again |
//! | `kernel`   | scalar, AVX2, GFNI-256 and GFNI-512 inner loops, and run-time choice among them |

mod check;
mod compile;
mod execute;
pub mod field;
mod kernel;
mod map;
pub mod matrix;
mod restrict;
mod stores;
pub mod word;

pub use check::OutputCheck;
pub use execute::{Options, ShapeError, StoreMode, Update};
pub use kernel::Kernel;
pub use map::{
    Element, LinearMap, MAX_ELEMENTS, MAX_SHARDS, MAX_TERMS, MapError, Row, Shape, Source, Step,
    Target, Term,
};
pub use matrix::{Matrix, MatrixError};
pub use restrict::Restricted;
pub use word::WordField;
