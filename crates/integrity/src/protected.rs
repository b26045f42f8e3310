//! Protected buffers and checksum chaining.
//!
//! A buffer never travels without its checksum. When data moves between buffers whose sizes or algorithms differ, a
//! new checksum is needed, and *checksum chaining* keeps the data covered meanwhile: **the new checksum is generated
//! before the old one is verified**. If the bytes change before the generation, the old checksum tells; if they change
//! after it, the new one does. In the other order, a change between the two gets a checksum that matches it, and is
//! never seen again. (Y. Zhang, *Cooperative Data Protection*, §4.3.1: data object, origin ORG, destination DST, five
//! cases; the operations here are named with their case.)
//!
//! Rules that every operation here keeps:
//!
//! 1. the new checksum is generated from where the bytes come from, before they move, so that an error of the move
//!    itself is covered by it;
//! 2. after the generation each source is verified whole; only then the destination is touched;
//! 3. each step reads memory anew (`look`).

use std::ops::Range;

use crate::{Algorithm, Checksum, Mismatch, Unverified, Verified};

/// Bytes with the checksum they should have.
///
/// That the bytes match is claimed, not known: a `Protected` may have come from a disk or have been lying in memory.
/// Its bytes can be had only by a verification or by a name that says otherwise.
#[derive(Clone)]
pub struct Protected<B> {
    bytes: B,
    checksum: Checksum,
}

/// Any protected buffer, by reference; see [`Protected::source`].
pub type Source<'a> = Protected<&'a dyn AsRef<[u8]>>;

/// A part of one of several sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which source.
    pub source: usize,
    /// Which of its bytes.
    pub range: Range<usize>,
}

/// A chaining operation was refused. The destination's contents are then not to be used; that of
/// [`Protected::overwrite`] is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A source does not have its checksum.
    #[error("source {index}: {mismatch}")]
    Mismatch {
        /// The source's number; of operations on one origin, 0 is the origin and 1 the destination's old contents.
        index: usize,
        /// What was expected and found.
        mismatch: Mismatch,
    },
    /// A range does not lie within its buffer, or there is no such source.
    #[error("bytes {start}..{end} of source {index} do not exist")]
    Range {
        /// The source's number, as in [`ChainError::Mismatch`].
        index: usize,
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// The destination has not the size of what is moved to it.
    #[error("the destination has {got} bytes for {expected}")]
    Size {
        /// Bytes to be moved.
        expected: usize,
        /// Bytes in the destination.
        got: usize,
    },
}

/// The bytes, read anew: the compiler may not assume that they are what they were when it last looked, and so may not
/// make one computation of a generation and the verification that follows.
#[inline]
pub(crate) fn look<B: AsRef<[u8]> + ?Sized>(bytes: &B) -> &[u8] {
    std::hint::black_box(bytes.as_ref())
}

impl<B> Protected<B> {
    /// Bytes with a checksum that came with them (checksum forwarding). Nothing is computed.
    pub fn from_parts(bytes: B, checksum: Checksum) -> Self {
        Protected { bytes, checksum }
    }

    /// The checksum that the bytes should have.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The bytes, not verified, and their checksum.
    pub fn into_parts(self) -> (Unverified<B>, Checksum)
    where
        B: AsRef<[u8]>,
    {
        (Unverified::new(self.bytes), self.checksum)
    }
}

impl<B: AsRef<[u8]>> Protected<B> {
    /// Generates the first checksum of new data: the start of its protection.
    pub fn seal(bytes: B, algorithm: Algorithm) -> Self {
        let checksum = algorithm.sum(look(&bytes));
        Protected { bytes, checksum }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.as_ref().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Compares the bytes as they are now with the checksum.
    ///
    /// # Errors
    /// [`Mismatch`] if they differ.
    pub fn verify(&self) -> Result<(), Mismatch> {
        self.checksum.verify(look(&self.bytes))
    }

    /// The bytes for use at once, verified: the last moment before they leave.
    ///
    /// # Errors
    /// [`Mismatch`] if they do not have the checksum.
    pub fn open(&self) -> Result<Verified<&[u8]>, Mismatch> {
        self.unverified().verify(self.checksum)
    }

    /// The bytes as they are: for repair, and for moving them together with [`Protected::checksum`].
    pub fn unverified(&self) -> Unverified<&[u8]> {
        Unverified::new(look(&self.bytes))
    }

    /// This buffer as an origin for [`assemble`].
    pub fn source(&self) -> Source<'_> {
        Protected { bytes: &self.bytes, checksum: self.checksum }
    }

    /// Case 1, checksum forwarding: moves all bytes to `dst`, whose checksum is this one's. Nothing is computed, and
    /// nothing noticed; whoever uses `dst` verifies it.
    ///
    /// # Errors
    /// [`ChainError::Size`] if `dst` has another length.
    pub fn forward<D: AsMut<[u8]>>(&self, mut dst: D) -> Result<Protected<D>, ChainError> {
        let org = look(&self.bytes);
        let to = dst.as_mut();
        check_size(org.len(), to.len())?;
        to.copy_from_slice(org);
        Ok(Protected::from_parts(dst, self.checksum))
    }

    /// Case 1′: forwarding with a verification, at the destination, so that an error is found in time to be repaired.
    ///
    /// # Errors
    /// [`ChainError::Size`] as for [`Protected::forward`], [`ChainError::Mismatch`] if what arrived is damaged.
    pub fn forward_verified<D>(&self, dst: D) -> Result<Protected<D>, ChainError>
    where
        D: AsRef<[u8]> + AsMut<[u8]>,
    {
        let moved = self.forward(dst)?;
        moved.verify().map_err(at_source(0))?;
        Ok(moved)
    }

    /// Case 2: moves all bytes to `dst`, under another algorithm.
    ///
    /// # Errors
    /// [`ChainError::Size`] if `dst` has another length, [`ChainError::Mismatch`] if this buffer is damaged.
    pub fn convert<D: AsMut<[u8]>>(&self, algorithm: Algorithm, dst: D) -> Result<Protected<D>, ChainError> {
        self.extract(0..self.len(), algorithm, dst)
    }

    /// Case 2 in place: the checksum is replaced by one of another algorithm (the checksum switching of Z²FS).
    ///
    /// # Errors
    /// [`Mismatch`] if the buffer is damaged; its checksum is then still the old one.
    pub fn switch(&mut self, algorithm: Algorithm) -> Result<(), Mismatch> {
        let new = algorithm.sum(look(&self.bytes));
        self.verify()?;
        self.checksum = new;
        Ok(())
    }

    /// Case 3, partial to full: moves a part of this buffer to `dst`, which it fills.
    ///
    /// # Errors
    /// [`ChainError::Range`] if there is no such part, [`ChainError::Size`] if `dst` has another length than it,
    /// [`ChainError::Mismatch`] if this buffer is damaged anywhere.
    pub fn extract<D: AsMut<[u8]>>(
        &self,
        range: Range<usize>,
        algorithm: Algorithm,
        dst: D,
    ) -> Result<Protected<D>, ChainError> {
        let piece = Piece { source: 0, range };
        assemble(&[self.source()], &[piece], algorithm, dst)
    }

    /// Case 3 without a move: a part of this buffer, protected by itself.
    ///
    /// # Errors
    /// [`ChainError::Range`] if there is no such part, [`ChainError::Mismatch`] if this buffer is damaged anywhere.
    pub fn slice(&self, range: Range<usize>, algorithm: Algorithm) -> Result<Protected<&[u8]>, ChainError> {
        let source = [self.source()];
        let piece = Piece { source: 0, range };
        let checksum = chain(&source, std::slice::from_ref(&piece), algorithm)?;
        Ok(Protected::from_parts(part(look(&self.bytes), &piece)?, checksum))
    }

    /// Cases 4 and 5: moves `range` of `org` (all of it: case 4, a part: case 5) into this buffer at byte `at`.
    ///
    /// The buffer must be private to the caller: between the change of its checksum and that of its bytes they do not
    /// match. A published page is never overwritten; a new version is made by [`assemble`] or
    /// [`merge_page`](crate::merge_page).
    ///
    /// # Errors
    /// [`ChainError::Range`] if either range does not exist, [`ChainError::Mismatch`] if `org` (0) or this buffer (1) is
    /// damaged. The buffer and its checksum are then unchanged.
    pub fn overwrite<O: AsRef<[u8]>>(
        &mut self,
        at: usize,
        org: &Protected<O>,
        range: Range<usize>,
    ) -> Result<(), ChainError>
    where
        B: AsMut<[u8]>,
    {
        let moved = Piece { source: 0, range };
        let len = part(org.bytes.as_ref(), &moved)?.len();
        let end = at.checked_add(len).ok_or(ChainError::Range { index: 1, start: at, end: usize::MAX })?;
        if end > self.len() {
            return Err(ChainError::Range { index: 1, start: at, end });
        }
        let keep = |range| Piece { source: 1, range };
        let pieces = [keep(0..at), moved.clone(), keep(end..self.len())];
        let new = chain(&[org.source(), self.source()], &pieces, self.checksum.algorithm())?;
        self.checksum = new;
        self.bytes.as_mut()[at..end].copy_from_slice(part(look(&org.bytes), &moved)?);
        Ok(())
    }
}

/// All cases in one: `dst` becomes the given pieces of the sources, one after another, under `algorithm`.
///
/// Case 3 over several pages is an unaligned read (pages to a user's buffer, the dissertation's figure 4.15); case 4 with
/// a new page version is the old page's head, the written bytes, the old page's tail; fragments that tile a page
/// merge into it. Each source is verified once, whole, whatever the number of its pieces; sources without a piece too.
///
/// ```
/// use holdfast_integrity::{Algorithm, Piece, Protected, assemble};
/// let old = Protected::seal(vec![b'.'; 8], Algorithm::Crc64Nvme);
/// let new = Protected::seal(*b"abc", Algorithm::Xor64);
/// let piece = |source, range| Piece { source, range };
/// let page = assemble(
///     &[old.source(), new.source()],
///     &[piece(0, 0..2), piece(1, 0..3), piece(0, 5..8)],
///     Algorithm::Crc64Nvme,
///     vec![0; 8],
/// )?;
/// assert_eq!(&*page.open()?, b"..abc...");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ChainError::Range`] if a piece does not exist, [`ChainError::Size`] if the pieces together have not the length of
/// `dst`, [`ChainError::Mismatch`] for the first source that is damaged.
pub fn assemble<D: AsMut<[u8]>>(
    sources: &[Source<'_>],
    pieces: &[Piece],
    algorithm: Algorithm,
    mut dst: D,
) -> Result<Protected<D>, ChainError> {
    let mut expected = 0usize;
    for piece in pieces {
        expected = expected.saturating_add(source_part(sources, piece)?.len());
    }
    check_size(expected, dst.as_mut().len())?;

    let checksum = chain(sources, pieces, algorithm)?;
    let mut rest = dst.as_mut();
    for piece in pieces {
        let from = source_part(sources, piece)?;
        let (to, after) = rest.split_at_mut(from.len());
        to.copy_from_slice(from);
        rest = after;
    }
    Ok(Protected::from_parts(dst, checksum))
}

/// The heart: generates the checksum of the pieces, then verifies every source.
fn chain(sources: &[Source<'_>], pieces: &[Piece], algorithm: Algorithm) -> Result<Checksum, ChainError> {
    let new = if let [piece] = pieces {
        algorithm.sum(source_part(sources, piece)?)
    } else {
        let mut digest = algorithm.digest();
        for piece in pieces {
            digest.update(source_part(sources, piece)?);
        }
        digest.finish()
    };
    for (index, source) in sources.iter().enumerate() {
        source.verify().map_err(at_source(index))?;
    }
    Ok(new)
}

fn source_part<'a>(sources: &[Source<'a>], piece: &Piece) -> Result<&'a [u8], ChainError> {
    let source = sources.get(piece.source).ok_or(ChainError::Range {
        index: piece.source,
        start: piece.range.start,
        end: piece.range.end,
    })?;
    part(look::<dyn AsRef<[u8]>>(source.bytes), piece)
}

fn part<'a>(bytes: &'a [u8], piece: &Piece) -> Result<&'a [u8], ChainError> {
    bytes.get(piece.range.clone()).ok_or(ChainError::Range {
        index: piece.source,
        start: piece.range.start,
        end: piece.range.end,
    })
}

fn check_size(expected: usize, got: usize) -> Result<(), ChainError> {
    if expected == got { Ok(()) } else { Err(ChainError::Size { expected, got }) }
}

fn at_source(index: usize) -> impl Fn(Mismatch) -> ChainError {
    move |mismatch| ChainError::Mismatch { index, mismatch }
}

/// Shows no contents.
impl<B: AsRef<[u8]>> std::fmt::Debug for Protected<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Protected({} bytes, {})", self.len(), self.checksum)
    }
}

#[cfg(test)]
#[path = "protected_tests.rs"]
mod tests;
