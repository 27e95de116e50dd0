"""``hpcgnn``: lists the commands and runs them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn import __version__
from hpcgnn.__main__ import COMMANDS, main
from hpcgnn.commands.analyse import ANALYSES
from hpcgnn.commands.command import find_command

ROOT = Path(__file__).resolve().parents[1]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run `main` as the console script does; return the exit status, None without one."""
    monkeypatch.setattr(sys, "argv", ["hpcgnn", *arguments])
    try:
        main()
    except SystemExit as end:
        return end.code
    return None


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert call(monkeypatch, *arguments) is None
    shown = capsys.readouterr().out
    for name, purpose in COMMANDS.items():
        assert f"  {name} " in shown
        assert purpose in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    "names",
    [
        # Analyses differ only in their options.
        [*COMMANDS, f"analyse {next(iter(ANALYSES))}"],
        pytest.param([f"analyse {name}" for name in ANALYSES], marks=pytest.mark.slow),
    ],
    ids=["commands", "analyses"],
)
def test_helps_need_no_mpi_and_no_torch(tmp_path: Path, names: list[str]) -> None:
    # A child for each command, of a process that has made the imports common to all commands.
    script = f"""
import importlib.abc, os, runpy, sys
from pathlib import Path

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("mpi4py", "torch"):
            raise ModuleNotFoundError(f"{{name}} is not installed", name=name)

sys.meta_path.insert(0, Absent())
os.environ["COLUMNS"] = "80"
import hpcgnn.commands.command, hpcgnn.sparse
for name in {names!r}:
    if not (child := os.fork()):
        words = name.split()
        shown = open(Path({str(tmp_path)!r}) / name, "w")
        os.dup2(shown.fileno(), 1)
        sys.argv = [*words, "--help"]
        runpy.run_module("hpcgnn." + words[0], run_name="__main__", alter_sys=True)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name in names:
        shown = (tmp_path / name).read_text()
        assert shown.startswith(f"usage: hpcgnn {name} ")
        if name in COMMANDS:
            assert re.search(rf"^examples:\n  .*hpcgnn {name} ", shown, re.MULTILINE)
        assert max(map(len, shown.splitlines())) <= 80
        assert "(default: )" not in shown


def test_a_source_tree_without_its_native_parts_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "hpcgnn",
        tmp_path / "hpcgnn",
        ignore=shutil.ignore_patterns("*.so", "__pycache__", "analysis", "jobs"),
    )
    for words in (["hpcgnn.train"], ["hpcgnn", "train"], ["hpcgnn", "convert"]):
        done = subprocess.run(
            [sys.executable, "-m", *words, "x"],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert line.startswith(f"hpcgnn: error: {tmp_path / 'hpcgnn'} is a source tree")


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") is None
    assert capsys.readouterr().out == f"hpcgnn {__version__}\n"


def test_unknown_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "partitions", "x.toml") == 2
    expected = "hpcgnn: error: no command 'partitions'; did you mean 'partition'?\n"
    assert capsys.readouterr().err == expected


def test_a_far_name_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "qqq") == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "hpcgnn: error: no command 'qqq'; choose one of analyse, clean, completion, convert"
    )
    assert call(monkeypatch, "-q", "train") == 2
    assert "options come after the command: hpcgnn COMMAND -q" in capsys.readouterr().err
    assert call(monkeypatch, "analysis") == 2
    assert "did you mean 'analyse'?" in capsys.readouterr().err


def test_hands_the_arguments_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(monkeypatch, "inspect", str(tmp_path / "none.h5")) == 2
    assert capsys.readouterr().err.startswith("hpcgnn inspect: error: ")


def test_lists_the_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert find_command("train").call(["--keys"], MPI.COMM_SELF) == 0
    shown = capsys.readouterr().out
    assert "train.learning_rate" in shown
    assert "exchange.method" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("closed", ["reader", "all"])
def test_a_stream_without_a_reader_ends_no_command(tmp_path: Path, closed: str) -> None:
    code = (
        "from hpcgnn.__main__ import main; from hpcgnn.console import print_table; main();"
        "print_table('t', ['a'], [[1]]); open('out', 'w').write('whole')"
    )
    words = shlex.join([sys.executable, "-c", code])
    ends = {"reader": "", "all": "<&- >&- 2>&-"}[closed]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        ["sh", "-c", f"exec {words} {ends}"], stdout=write, stderr=subprocess.PIPE, cwd=tmp_path
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out").read_text() == "whole"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_full_disk_under_a_stream_is_one_line(tmp_path: Path, stream: int) -> None:
    (tmp_path / "links.tsv").write_text("0\t1\n1\t2\n")
    words = ["convert", "links.tsv", "-o", "g.h5"]
    command = shlex.join([sys.executable, "-m", "hpcgnn", *words])
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {stream}>/dev/full"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == (2 if stream == 1 else 0)
    assert ("standard output: cannot be written (No space" in done.stderr) == (stream == 1)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "g.h5").exists()


@pytest.mark.parametrize("words", ["", "--version", "train --help", "train --keys", "inspect -h"])
def test_an_answer_that_cannot_be_written_is_one_line(words: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m hpcgnn {words} >/dev/full"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"hpcgnn.*: error: standard output: cannot be .*\n", done.stderr)
