"""File objects that verify: files in a Holdfast mount, with a checksum per block of 4 KiB.

    import holdfast
    with holdfast.open("/mnt/ledger", "a") as file:
        file.write("credit 100\n")

What is written is taken by the mount only if it has the checksums that were made over the program's buffer, and what is read is verified
where it has arrived. IntegrityError says what was bad: side ("memory" or "device"), operation, offset, blocks.
"""

from ._errors import IntegrityError, UnsupportedError
from ._file import BLOCK_BYTES, Capabilities, Features, FileIO, features, open
from ._native import __version__

__all__ = [
    "BLOCK_BYTES",
    "Capabilities",
    "Features",
    "FileIO",
    "IntegrityError",
    "UnsupportedError",
    "__version__",
    "features",
    "open",
]
