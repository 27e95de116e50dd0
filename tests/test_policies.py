"""The claims of docs/policies.md about this package: its tests exist, and some are here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn import __version__

ROOT = Path(__file__).resolve().parents[1]
NATIVE = sorted(ROOT.glob("hpcgnn/*/_*.so"))


def test_tests_that_the_page_names_exist() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    assert len(re.findall(r"^\| P[1-9] ", page, re.MULTILINE)) == 9
    assert len(re.findall(r"^\| M\d+ ", page, re.MULTILINE)) == 17
    file = ""
    named = re.findall(r"`(tests/[\w/.]*|)(?:::(\w+))?`", page)
    for path, function in named:
        file = path or file
        assert (ROOT / file).exists(), file
        assert not function or f"def {function}(" in (ROOT / file).read_text(), function
    assert sum(bool(function) for _, function in named) > 10


def test_the_world_is_named_once() -> None:
    """Only the start of commands uses the world; a process without MPI has its own."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("hpcgnn/**/*.py")
        if re.search(r"\.COMM_WORLD|^COMM_SELF = COMM_WORLD|import COMM_WORLD", path.read_text())
    }
    assert found == {"hpcgnn/spmd.py"}


@pytest.mark.slow
def test_loading_the_library_changes_nothing() -> None:
    script = """
import locale, os, signal
numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
def state():
    handlers = [signal.getsignal(n) for n in numbers]
    return handlers, locale.setlocale(locale.LC_ALL), os.umask(0o22)
state()
before = state()
import hpcgnn
hpcgnn.open_graph
assert state() == before
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name.partition(".")[0])
def test_native_parts_show_no_names(path: Path) -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no nm")
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert f"PyInit_{path.name.partition('.')[0]}" in names
    # Weak symbols of the C++ library and of nanobind are the same in every package with them.
    assert [name for name in names if re.match(r"_ZN?K?6hpcgnn|hpcgnn", name)] == []


def test_pointers_are_64_bits() -> None:
    assert sys.maxsize == 2**63 - 1


def test_metadata_has_the_version() -> None:
    facts = json.loads((ROOT / "codemeta.json").read_text())
    assert facts["version"] == __version__
    assert facts["license"].endswith("/MIT")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "MIT License" in (ROOT / "LICENSE").read_text()
