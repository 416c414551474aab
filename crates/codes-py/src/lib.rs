//! The erasure codes as a Python package, `fieldstone_codes`.
//!
//! `fieldstone_codes.pyi`, which type checkers and editors also read, describes the interface. This
//! side does three things. It takes any object with the buffer protocol (`bytes`, `bytearray`,
//! `memoryview`, `mmap`, NumPy arrays) without copying a byte. It checks the properties that types
//! do not express (contiguous, writable, not overlapping; [`fieldstone_codes::foreign_buffers`] and
//! [`fieldstone_codes::stripe`] do the rest). It lets other Python threads run while it computes.
//!
//! It is built for Python's stable ABI from 3.11 on, the first version with the buffer protocol, so
//! one library serves all later versions. NumPy only makes the returned arrays: the package is not
//! compiled against NumPy.
//!
//! | module    | idea |
//! |-----------|------|
//! | `buffers` | the buffers of Python that a call borrows, and the arrays that Python gets back |
//! | `code`    | `Code`: encode, decode, update, verify, locate |
//! | `repair`  | `RepairPlan` and `Read`: the ranges to read, and how to compute the shards |

mod buffers;
mod code;
mod repair;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pyo3::create_exception!(
    fieldstone_codes,
    CodeError,
    PyValueError,
    "What was asked for does not fit the code: its name, shards, lengths or buffers."
);

/// Turns any error of the library into a `CodeError`.
fn refused(error: &dyn std::error::Error) -> PyErr {
    CodeError::new_err(error.to_string())
}

/// Erasure codes: Reed-Solomon as ISA-L and Jerasure make it, Zigzag, Clay and copies.
#[pymodule(name = "fieldstone_codes")]
fn fill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<code::Code>()?;
    module.add_class::<repair::RepairPlan>()?;
    module.add_class::<repair::Read>()?;
    module.add("CodeError", module.py().get_type::<CodeError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
