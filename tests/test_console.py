"""The contents of a file cannot send commands to a terminal."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn.__main__ import main
from hpcgnn.console import number, print_table, print_values, report, show_from, warn
from hpcgnn.errors import InputError, named, one_line, printable
from hpcgnn.storage import write_whole


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x07b\u202e"
    report(evil)
    print_table(evil, ("name",), [(evil,)])
    shown = "".join(capsys.readouterr()) + one_line(InputError(f"{evil}\n{evil}"))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert shown.count(r"a\x1b[2J\x07b\u202e") == 5


def test_numbers_are_read_by_people(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"num_nodes": 1522464, "edge_cut": 0.05530009757715293, "classes": None, "on": True}
    print_values("store", {**values, "split": {"train": 6000, "test": 2}, "parts": [1, 2]})
    shown = capsys.readouterr().out
    rows = [re.split(r" *│ *", line)[1:3] for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["nodes", "1,522,464"],
        ["edge cut", "0.0553"],
        ["classes", ""],
        ["on", "yes"],
        ["split", "train 6,000, test 2"],
        ["parts", "1, 2"],
    ]
    told = [number(1, "rank"), number(2, "rank"), number(2000, "node")]
    assert told == ["1 rank", "2 ranks", "2,000 nodes"]


def test_quiet_hides_what_was_made(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: show_from(logging.INFO))
    show_from(logging.WARNING)
    for made in (True, False):
        print_values("made" if made else "answer", {"rows": 1}, made=made)
    report("made", sys.stdout)
    warn("late")
    found = capsys.readouterr()
    assert found.out.startswith("answer")
    assert "made" not in found.out
    assert found.err == "late\n"


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write keeps the earlier file, and leaves nothing beside it; a pipe stays a pipe."""
    file, pipe = tmp_path / "a.txt", tmp_path / "pipe"
    write_whole(file, b"one")
    link = tmp_path / "link"
    link.symlink_to(file)
    write_whole(link, b"two")
    assert (file.read_bytes(), link.is_symlink()) == (b"two", True)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"three", streams=True)
    assert (os.read(reader, 9), pipe.is_fifo()) == (b"three", True)
    os.close(reader)
    with pytest.raises(InputError, match="pipe: is a device or a pipe; name a file"):
        write_whole(pipe, b"four")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"a\.txt: cannot be written \(No space left"):
        write_whole(file, b"five")
    assert file.read_bytes() == b"two"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "link", "pipe"]


def test_what_is_missing_is_named() -> None:
    assert named([]) == ""
    assert named([5, 6, 7]) == "5, 6, 7"
    assert named(["a", "b", "c", *range(1000)]) == "'a', 'b', 'c' and 1,000 more"


def test_other_text_stays() -> None:
    assert printable("größe 3 \n日本") == "größe 3 \n日本"


def test_the_middle_of_a_long_message_is_left_out() -> None:
    text = one_line(InputError(f"--nodes {'9' * 5000}: give fewer"))
    assert len(text) < 2010
    assert text.startswith("--nodes 999")
    assert text.endswith("give fewer")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("clean",), "hpcgnn clean: error: the following arguments are required: FOLDER; see"),
        (("generate", "rmat", "-o", "x"), "hpcgnn generate rmat: error: the following arguments"),
        (("convert", "-q", "-v", "x"), "hpcgnn convert: error: argument -v/--verbose: not allowed"),
        (("analyse", "trace"), "hpcgnn analyse trace: error: the following arguments are required"),
        (
            ("partition", "--method", "metiss"),
            "hpcgnn partition: error: argument --method: 'metiss'",
        ),
        (("plan", "graph.store=x"), "hpcgnn plan: error: the following arguments are required"),
        (("analyse", "report", "none"), "hpcgnn analyse report: error: none: is not a directory"),
    ],
)
def test_wrong_words_cost_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    fault: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hpcgnn", *words])
    # As in a new process: modules that run as programs must not be loaded yet.
    programs = {f"hpcgnn.{words[0]}", *(f"hpcgnn.analysis.{word}" for word in words[1:])}
    for name, module in list(sys.modules.items()):
        if name.endswith(".__main__") or (name in programs and not hasattr(module, "__path__")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr()
    assert ended.value.code == 2
    assert found.out == ""
    assert found.err.startswith(fault)
    assert found.err.count("\n") == 1


@pytest.mark.slow
def test_what_makes_something_is_silent_when_asked(tmp_path: Path) -> None:
    """-q does not hide an answer, which is the only purpose of its command."""

    def quietly(*words: str) -> str:
        command = [sys.executable, "-m", "hpcgnn", *words, "-q"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
        assert done.stderr == ""
        return done.stdout

    table = ("convert", "tables/links.tsv", "--nodes", "tables/people.csv", "-o", "people.h5")
    for words in (
        ("generate", "tables", "-o", "tables"),
        ("generate", "planted", "--nodes", "300", "-o", "a.h5"),
        (*table, "--undirected", "--random-split", "60,20,20"),
        ("partition", "a.h5", "--parts", "2", "-o", "b.h5"),
        ("split", "a.h5", "--random-split", "60,20,20", "--name", "mine", "-o", "c.h5"),
        ("init", "b.h5", "-o", "b.toml"),
        ("train", "b.toml", "train.epochs=2", "run.dir=run", "trace.enabled=true"),
        ("predict", "run", "-o", "answers.csv"),
        ("export", "run", "--to", "torch", "-o", "exported"),
        ("analyse", "report", "run"),
        ("analyse", "trace", "run"),
        ("clean", "."),
    ):
        assert quietly(*words) == ""
    for words, answer in (
        (("inspect", "b.h5"), "store"),
        (("doctor", "--seconds", "0"), "  ok  "),
        (("plan", "b.toml", "--ranks", "1"), "resident"),
        (("analyse", "epoch_breakdown", "run"), "epoch"),
        (("partition", "a.h5", "--parts", "2", "-o", "d.h5", "--json"), '"parts": 2'),
    ):
        assert answer in quietly(*words)
