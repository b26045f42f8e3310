//! Buffers of Python's, as bytes in a row. All `unsafe` about them is here.
//!
//! Any object with a buffer in one piece will do, whatever its items are, as with the built-in raw files: asked for is what these
//! ask for (PyBUF_SIMPLE, PyBUF_WRITABLE). pyo3's buffers ask for shape and strides, which those of ctypes do not have.
//!
//! A buffer stays where it is for as long as it is held here (its exporter refuses to resize it). Other threads may touch its bytes while
//! the interpreter's lock is released, as with `os.preadv`; nobody can be kept from it. Then bytes do not have their checksum, which is
//! found. For Rust that is a deviation, known and accepted: what two threads fill at once has two `&mut`. It stays without consequences,
//! as the bytes are only copied, given to the kernel and summed, which takes any values, and nothing depends on reading the same twice.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

/// A buffer that is held, in a thread that has the interpreter.
struct Held<'py> {
    /// At one place: exporters may let it point into itself.
    view: Box<ffi::Py_buffer>,
    attached: PhantomData<Python<'py>>,
}

impl<'py> Held<'py> {
    fn new(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Held<'py>> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object lives, the interpreter is this thread's, and there is room for the answer.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } {
            0 => Ok(Held { view, attached: PhantomData }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.view.len).expect("a length is not negative")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, and released once; the interpreter is still this thread's, as `attached` says.
        unsafe { ffi::PyBuffer_Release(&mut *self.view) }
    }
}

/// To be filled.
pub(crate) struct Target<'py>(Held<'py>);

impl<'py> Target<'py> {
    pub(crate) fn new(buffer: &Bound<'py, PyAny>) -> PyResult<Target<'py>> {
        Held::new(buffer, ffi::PyBUF_WRITABLE).map(Target).map_err(|reason| {
            let error = PyTypeError::new_err("a buffer in one piece that can be written to is needed");
            error.set_cause(buffer.py(), Some(reason));
            error
        })
    }

    pub(crate) fn slice(&mut self) -> IoSliceMut<'_> {
        let bytes = match self.0.bytes() {
            // Without bytes it may have no address.
            0 => &mut [],
            // SAFETY: the exporter keeps so many bytes there for as long as the buffer is held, and says that they can be written to. Not that
            // nobody else has them: see above.
            length => unsafe { std::slice::from_raw_parts_mut(self.0.view.buf.cast::<u8>(), length) },
        };
        IoSliceMut::new(bytes)
    }
}

/// To be read from.
pub(crate) struct Source<'py>(Held<'py>);

impl<'py> Source<'py> {
    pub(crate) fn new(buffer: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        Held::new(buffer, ffi::PyBUF_SIMPLE).map(Source)
    }

    pub(crate) fn slice(&self) -> IoSlice<'_> {
        let bytes = match self.0.bytes() {
            // Without bytes it may have no address.
            0 => &[],
            // SAFETY: the exporter keeps so many bytes there for as long as the buffer is held. Not that nobody changes them: see above.
            length => unsafe { std::slice::from_raw_parts(self.0.view.buf.cast::<u8>(), length) },
        };
        IoSlice::new(bytes)
    }
}
