"""MPI, started at its first use: whoever only imports layers and models starts none.

mpi4py starts MPI when its module is loaded, which fails where no MPI library is found, and takes a
second where one is. `MPI` loads it when something is first asked of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:

    class _FirstUse:
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("mpi4py.MPI"), name)
            setattr(self, name, value)
            return value

    MPI = _FirstUse()


def mpi_library() -> str:
    """Return the name and version of the MPI library, the first words of what it says of itself."""
    words: str = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    return words.partition(",")[0].strip()


Communicator: TypeAlias = "MPI.Intracomm"
"""For annotations, also above this package, which do not import mpi4py."""
