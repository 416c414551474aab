//! The buffers of Python that a call borrows, and the arrays that Python gets back.
//!
//! A buffer is held from its addition until the call ends. Meanwhile its owner can neither free nor
//! resize it (`bytearray` refuses to), so the addresses stay valid while the interpreter is
//! released. As with every such library, a call gives undefined results if another thread writes
//! its buffers during the call.

use fieldstone_codes::foreign_buffers::{ForeignBuffers, Slices};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::{CodeError, refused};

/// The buffers of one call.
#[derive(Default)]
pub(crate) struct Buffers {
    held: Vec<PyUntypedBuffer>,
    foreign: ForeignBuffers,
}

impl Buffers {
    /// Adds a buffer for reading. Returns its length in bytes.
    pub(crate) fn read(
        &mut self,
        argument: &'static str,
        index: Option<usize>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let buffer = take(&name(argument, index), object)?;
        let (start, len_bytes) = (buffer.buf_ptr().cast(), buffer.len_bytes());
        self.foreign.read(argument, index, start, len_bytes).map_err(|error| refused(&error))?;
        self.held.push(buffer);
        Ok(len_bytes)
    }

    /// Adds a buffer for writing. Returns its length in bytes.
    pub(crate) fn write(
        &mut self,
        argument: &'static str,
        index: Option<usize>,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let name = name(argument, index);
        let buffer = take(&name, object)?;
        if buffer.readonly() {
            return Err(CodeError::new_err(format!("{name} is read-only")));
        }
        let (start, len_bytes) = (buffer.buf_ptr().cast(), buffer.len_bytes());
        self.foreign.write(argument, index, start, len_bytes).map_err(|error| refused(&error))?;
        self.held.push(buffer);
        Ok(len_bytes)
    }

    /// Adds all buffers of a list, or rows of an array, for reading. Returns their lengths.
    pub(crate) fn read_all(
        &mut self,
        argument: &'static str,
        objects: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let all = objects.try_iter()?.enumerate();
        all.map(|(at, object)| self.read(argument, Some(at), &object?)).collect()
    }

    /// Adds all buffers of a list, or rows of an array, for writing. Returns their lengths.
    pub(crate) fn write_all(
        &mut self,
        argument: &'static str,
        objects: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let all = objects.try_iter()?.enumerate();
        all.map(|(at, object)| self.write(argument, Some(at), &object?)).collect()
    }

    /// Computes with the added buffers, while other Python threads run.
    pub(crate) fn compute<T: Send, E: std::error::Error + Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Slices<'_>) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        // SAFETY: the buffers are held until after this call, so their memory stays where it is.
        // They are contiguous, and writable where they must be. The documentation requires callers
        // to let no other thread use them meanwhile.
        let slices = unsafe { self.foreign.slices() }.map_err(|error| refused(&error))?;
        py.detach(|| work(slices)).map_err(|error| refused(&error))
    }
}

fn name(argument: &str, index: Option<usize>) -> String {
    index.map_or_else(|| argument.to_owned(), |index| format!("{argument}[{index}]"))
}

/// The buffer of an object, if it is contiguous and has bytes.
fn take(name: &str, object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object).map_err(|_| {
        let kind = object.get_type();
        PyTypeError::new_err(format!("{name} must be a buffer of bytes, not {kind}"))
    })?;
    let unsigned_bytes = ElementType::UnsignedInteger { bytes: 1 };
    if ElementType::from_format(buffer.format()) != unsigned_bytes {
        let format = buffer.format().to_string_lossy();
        let message =
            format!("{name} must be a buffer of bytes (uint8), not of items of format {format:?}");
        return Err(PyTypeError::new_err(message));
    }
    if !buffer.is_c_contiguous() {
        return Err(CodeError::new_err(format!("{name} is not contiguous")));
    }
    Ok(buffer)
}

/// A new NumPy array of bytes, whose content is not set.
pub(crate) fn new_array<'py>(
    py: Python<'py>,
    rows: usize,
    row_bytes: usize,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("numpy")?.getattr("empty")?.call1(((rows, row_bytes), "uint8"))
}
