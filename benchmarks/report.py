"""The description of the machine and the software that every result includes."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpi4py import MPI

__all__ = ["circumstances"]

LIBRARIES = ("numpy", "torch", "mpi4py")


def circumstances() -> dict[str, Any]:
    """Return commit, machine, load and versions of the relevant libraries."""
    return {
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "mpi": MPI.Get_library_version().split(",")[0].strip(),
        **{name: version(name) for name in LIBRARIES},
    }


def commit() -> str:
    """Return the commit of the working tree, marked if it has changes; `unknown` without git."""
    words = ["git", "describe", "--always", "--dirty"]
    where = Path(__file__).parent
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
