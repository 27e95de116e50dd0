"""Describe the installation: versions of packages, and how the native modules were built."""

import argparse
import importlib.metadata
import importlib.util
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hpcgnn
from hpcgnn.comm import installed_mpi
from hpcgnn.console import commit_of, print_json, version_of
from hpcgnn.kernels import available_isas
from hpcgnn.storage import HDF5_VERSION

_NATIVE = ("kernels._kernels", "partition._volpart", "sampling._sampling", "storage._checksum")
_COMPILER = re.compile(rb"(GCC: \([^)\0]*\) [\d.]+|[A-Za-z ]*clang version [\d.]+)")
_SANITIZERS = re.compile(rb"lib([atu]|ub)san\.so")


def describe() -> dict[str, Any]:
    """Return the description as plain data.

    It has ``hpcgnn`` and ``commit`` (None outside a checkout), ``python``, ``system``, ``mpi``
    (None if no library is loaded, else ``library`` and ``standard``), ``hdf5``, ``packages``
    (required ones, "unknown" if missing; ``pymetis`` contains METIS), ``optional`` (those that are
    installed), ``kernels`` (``available``: instruction sets of this processor, the widest last) and
    ``build``: for each native module its ``compiler`` and whether it is ``sanitized``.
    """
    mpi = installed_mpi()
    return {
        "hpcgnn": hpcgnn.__version__,
        "commit": commit_of(Path(hpcgnn.__file__).parents[1]),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "mpi": dict(zip(("library", "standard"), mpi, strict=True)) if mpi else None,
        "hdf5": HDF5_VERSION,
        "packages": {name: version_of(name) for name in _required()},
        "optional": {
            name: version
            for name in _required(of_options=True)
            if (version := version_of(name)) != "unknown"
        },
        "kernels": {"available": available_isas()},
        "build": {
            "abi": sysconfig.get_config_var("SOABI"),
            **{name: _built(name) for name in _NATIVE},
        },
    }


def _required(*, of_options: bool = False) -> list[str]:
    """Return the required packages, or those of optional dependencies."""
    try:
        requirements = importlib.metadata.requires("hpcgnn") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    chosen = [text for text in requirements if ("extra ==" in text) == of_options]
    return [re.split(r"[^\w-]", text)[0] for text in chosen]


def _built(name: str) -> Mapping[str, Any]:
    spec = importlib.util.find_spec(f"hpcgnn.{name}")
    if spec is None or spec.origin is None:
        return {"file": None}
    content = Path(spec.origin).read_bytes()
    compiler = _COMPILER.search(content)
    return {
        "file": Path(spec.origin).name,
        "compiler": compiler[1].decode(errors="replace") if compiler else "unknown",
        "sanitized": bool(_SANITIZERS.search(content)),
    }


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    installation = describe()
    if options.json:
        print_json(installation)
        return
    for line in _lines(installation):
        sys.stdout.write(line + "\n")


def _lines(values: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
        else:
            shown = ", ".join(value) if isinstance(value, list) else value
            lines.append(f"{indent}{name}: {'none' if shown is None else shown}")
    return lines
