//! Buffers of Python's, as bytes in a row. All `unsafe` about them is here.
//!
//! A buffer stays where it is for as long as it is held here (its exporter refuses to resize it). Other threads may write to it while
//! the interpreter's lock is released, as with `os.preadv`: then bytes do not have their checksum, which is found.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::io::{IoSlice, IoSliceMut};

fn in_a_row(buffer: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let bytes = PyBuffer::<u8>::get(buffer)?;
    if !bytes.is_c_contiguous() {
        return Err(PyValueError::new_err("the buffer is not in one piece"));
    }
    Ok(bytes)
}

/// To be filled.
pub(crate) struct Target(PyBuffer<u8>);

impl Target {
    pub(crate) fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Target> {
        let bytes = in_a_row(buffer)?;
        if bytes.readonly() {
            return Err(PyTypeError::new_err("a buffer that can be written to is needed"));
        }
        Ok(Target(bytes))
    }

    pub(crate) fn slice(&mut self) -> IoSliceMut<'_> {
        let bytes = match self.0.len_bytes() {
            // Without bytes it may have no address.
            0 => &mut [],
            // SAFETY: the exporter keeps so many bytes there for as long as the buffer is held, and says that they can be written to.
            length => unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), length) },
        };
        IoSliceMut::new(bytes)
    }
}

/// To be read from.
pub(crate) struct Source(PyBuffer<u8>);

impl Source {
    pub(crate) fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Source> {
        in_a_row(buffer).map(Source)
    }

    pub(crate) fn slice(&self) -> IoSlice<'_> {
        let bytes = match self.0.len_bytes() {
            // Without bytes it may have no address.
            0 => &[],
            // SAFETY: the exporter keeps so many bytes there for as long as the buffer is held.
            length => unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), length) },
        };
        IoSlice::new(bytes)
    }
}
