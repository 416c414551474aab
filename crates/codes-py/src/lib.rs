//! The erasure codes as a Python package, `fieldstone_codes`.
//!
//! What it offers is in `fieldstone_codes.pyi`, which type checkers and editors read too. This side
//! does three things: it takes any object with the buffer protocol (`bytes`, `bytearray`,
//! `memoryview`, `mmap`, NumPy arrays) without copying a byte, checks what no type says (contiguous,
//! writable, not overlapping; [`fieldstone_codes::lent`] and [`fieldstone_codes::stripe`] do the
//! rest), and lets other Python threads run while it computes.
//!
//! It is built for Python's stable ABI from 3.11 on, the first one with the buffer protocol, so one
//! library serves all later versions. NumPy only makes the arrays that are returned: nothing here is
//! compiled against it.
//!
//! | module    | idea |
//! |-----------|------|
//! | `buffers` | what Python lends for a call, and arrays that it gets back |
//! | `code`    | `Code`: encode, decode, update, verify, locate |
//! | `repair`  | `RepairPlan` and `Read`: what to read, and what to make of it |

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

/// Any error of ours as a `CodeError`.
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
