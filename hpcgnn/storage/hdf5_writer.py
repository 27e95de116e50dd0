"""What all writers of HDF5 files share."""

from abc import abstractmethod

import h5py

from hpcgnn.storage.atomic import AtomicWriter
from hpcgnn.storage.datasets import text_type

__all__ = ["HDF5Writer"]

# Older HDF5 (a site's parallel build) reads this version, and its metadata carry checksums.
LIBRARY_VERSIONS = ("v110", "v110")


class HDF5Writer(AtomicWriter):
    """Write an HDF5 file, whole or not at all; subclasses fill `_file`."""

    def _begin(self) -> None:
        self._file = h5py.File(self._output, "w", libver=LIBRARY_VERSIONS)

    def _end(self, *, complete: bool) -> None:
        try:
            if complete:
                self._finish()
        finally:
            self._file.close()

    @abstractmethod
    def _finish(self) -> None:
        """Complete the datasets, and write the attributes."""

    def _set_text(self, holder: h5py.Group, name: str, text: str) -> None:
        holder.attrs.create(name, text.encode(), dtype=text_type(text))
