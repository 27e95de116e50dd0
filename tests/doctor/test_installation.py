"""``hpcgnn version`` prints what is installed, without starting MPI."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import h5py
import pytest

from hpcgnn import __version__
from hpcgnn.doctor import installation

ROOT = Path(__file__).resolve().parents[2]


def test_version_as_json_without_mpi() -> None:
    script = """
import sys
sys.argv = ["hpcgnn", "version", "--json"]
from hpcgnn.__main__ import main
try:
    main()
finally:
    from mpi4py import MPI
    assert not MPI.Is_initialized()
    assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["hpcgnn"] == __version__
    assert found["hdf5"] == h5py.version.hdf5_version
    assert found["mpi"]["library"]
    assert found["kernels"]["available"][0] == "portable"
    build = found["build"]["kernels._kernels"]
    assert build["file"].startswith("_kernels.")
    assert build["sanitized"] is False
    assert {"numpy", "torch", "mpi4py", "pymetis"} <= set(found["packages"])
    assert "unknown" not in found["packages"].values()
    assert "pyyaml" in found["optional"]
    assert set(found["optional"]).isdisjoint(found["packages"])
    assert found["commit"] is None or len(found["commit"].removesuffix("-dirty")) == 40


def test_version_as_lines() -> None:
    lines = installation._lines({"a": None, "b": {"c": ["x", "y"], "d": {"e": 1}}})
    assert lines == ["a: none", "b:", "  c: x, y", "  d:", "    e: 1"]


def test_what_options_need_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["torch>=2.4", 'torch-geometric>=2.8; extra == "pyg"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: asked)
    assert installation._required() == ["torch"]
    assert installation._required(of_options=True) == ["torch-geometric"]


def test_parts_and_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise PackageNotFoundError

    assert installation._built("kernels._nothing") == {"file": None}
    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert installation._required() == []
    assert installation._required(of_options=True) == []
