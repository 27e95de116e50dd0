"""``hpcgnn``: lists the commands and runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn import __version__
from hpcgnn.__main__ import COMMANDS, main

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


def test_every_command_is_a_module() -> None:
    package = ROOT / "hpcgnn"
    for name in COMMANDS:
        assert (package / f"{name}.py").is_file() or (package / name / "__main__.py").is_file()


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
    assert "options come behind the command: hpcgnn COMMAND -q" in capsys.readouterr().err
    assert call(monkeypatch, "analysis") == 2
    assert "did you mean 'analyse'?" in capsys.readouterr().err


def test_hands_the_arguments_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Tests of the command may have imported it already, which runpy warns of.
    monkeypatch.delitem(sys.modules, "hpcgnn.inspect.__main__", raising=False)
    assert call(monkeypatch, "inspect", str(tmp_path / "none.h5")) == 2
    assert capsys.readouterr().err.startswith("hpcgnn inspect: error: ")


def test_runs_as_a_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hpcgnn", "train", "--keys"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "train.learning_rate" in ended.stdout
    assert "exchange.method" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
