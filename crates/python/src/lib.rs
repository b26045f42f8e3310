//! The native part of the Python package `holdfast`: transfers with a checksum per block, on descriptors.
//!
//! The interpreter's lock is released while a transfer runs. What is raised is defined in Python (`holdfast/_errors.py`), as are the
//! file objects (`holdfast/_file.py`).

mod memory;

use holdfast_client::{Algorithm, Error, File, Kind, Operation, descriptor};
use memory::{Source, Target};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::os::fd::BorrowedFd;

/// A descriptor that a Python program has named.
fn borrowed<'a>(fd: i32) -> PyResult<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(PyOSError::new_err((libc::EBADF, "no descriptor")));
    }
    // SAFETY: not negative; whether it is open the kernel says.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// As the system's own exception, with how much was done.
fn plain(py: Python<'_>, error: &Error) -> PyErr {
    let made = PyOSError::new_err((error.errno, error.words().into_owned()));
    let told = made.value(py);
    let noted = told.setattr("done", error.done).and_then(|()| told.setattr("offset", error.offset));
    noted.err().unwrap_or(made)
}

/// As an exception of the package's.
fn raised(py: Python<'_>, error: Error) -> PyErr {
    let name = match error.kind {
        Kind::Memory | Kind::Device => "IntegrityError",
        Kind::Unsupported => "UnsupportedError",
        _ => return plain(py, &error),
    };
    let side = match error.kind {
        Kind::Memory => Some("memory"),
        Kind::Device => Some("device"),
        _ => None,
    };
    let operation = match error.operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let words = error.words().into_owned();
    let Error { errno, offset, done, blocks, device_address, in_transfer, .. } = error;
    let details = (errno, words, side, operation, offset, done, blocks, device_address, in_transfer);
    let made = py.import("holdfast._errors").and_then(|module| module.getattr(name)?.call1(details));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// As os.pread and os.pwrite have it; what is beyond a position's type is an OverflowError before.
fn position(offset: i64) -> PyResult<u64> {
    u64::try_from(offset).map_err(|_negative| PyOSError::new_err((libc::EINVAL, "negative position")))
}

fn algorithm(number: u8) -> PyResult<Algorithm> {
    Algorithm::parse(number).map_err(|unknown| PyValueError::new_err(unknown.to_string()))
}

/// Fills a buffer from a position on; gives how many bytes there were. With `some`, those before the first bad block, if there are any: the
/// next read is that of the block.
#[pyfunction]
fn pread_into(
    py: Python<'_>,
    fd: i32,
    buffer: &Bound<'_, PyAny>,
    offset: i64,
    number: u8,
    some: bool,
) -> PyResult<usize> {
    let (fd, offset, algorithm) = (borrowed(fd)?, position(offset)?, algorithm(number)?);
    let mut target = Target::new(buffer)?;
    let mut slices = [target.slice()];
    let read = py.detach(|| descriptor::read_at(fd, &mut slices, offset, algorithm, &mut Vec::new()));
    read.or_else(|error| if some && error.done > 0 { Ok(error.done) } else { Err(raised(py, error)) })
}

/// Writes all of a buffer at a position.
#[pyfunction]
fn pwrite(py: Python<'_>, fd: i32, buffer: &Bound<'_, PyAny>, offset: i64, number: u8) -> PyResult<usize> {
    let (fd, offset, algorithm) = (borrowed(fd)?, position(offset)?, algorithm(number)?);
    let source = Source::new(buffer)?;
    let slices = [source.slice()];
    py.detach(|| descriptor::write_at(fd, &slices, offset, algorithm, None)).map_err(|error| raised(py, error))
}

/// Appends bytes from the start of a buffer on; gives where, and how many.
#[pyfunction]
fn append(py: Python<'_>, fd: i32, buffer: &Bound<'_, PyAny>, number: u8) -> PyResult<(u64, usize)> {
    let (fd, algorithm) = (borrowed(fd)?, algorithm(number)?);
    let source = Source::new(buffer)?;
    let slice = source.slice();
    py.detach(|| descriptor::append_part(fd, &slice, algorithm)).map_err(|error| raised(py, error))
}

/// What the mount offers: version, the first that it still knows, capabilities, mode, algorithm of pages, algorithms, most bytes of a request, may
/// read, may write.
type Features = (u16, u16, u64, String, u8, Vec<(u8, String)>, usize, bool, bool);

/// Asks what the mount offers.
#[pyfunction]
fn features(py: Python<'_>, fd: i32) -> PyResult<Features> {
    let fd = borrowed(fd)?;
    let file = py.detach(|| File::new(fd)).map_err(|error| raised(py, error))?;
    let features = file.features();
    let algorithms = features.algorithms.iter().map(|algorithm| (algorithm.id(), algorithm.to_string())).collect();
    let (versions, capabilities) = ((features.version, features.version_least), features.capabilities.0);
    let (mode, access, most) = (features.mode.clone(), features.access, features.transfer_bytes_max);
    let own = file.algorithm().id();
    Ok((versions.0, versions.1, capabilities, mode, own, algorithms, most, access.read, access.write))
}

/// Blocks that went bad in memory before they were stored, from a block on.
#[pyfunction]
fn bad_blocks(py: Python<'_>, fd: i32, first: u64) -> PyResult<Vec<u64>> {
    let fd = borrowed(fd)?;
    py.detach(|| descriptor::bad_blocks(fd, first, usize::MAX)).map_err(|error| raised(py, error))
}

/// The native part of the package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("BLOCK_BYTES", holdfast_client::BLOCK_BYTES)?;
    module.add_function(wrap_pyfunction!(pread_into, module)?)?;
    module.add_function(wrap_pyfunction!(pwrite, module)?)?;
    module.add_function(wrap_pyfunction!(append, module)?)?;
    module.add_function(wrap_pyfunction!(features, module)?)?;
    module.add_function(wrap_pyfunction!(bad_blocks, module)?)
}
