"""Files left by killed commands are removed; those of running ones are not."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.storage import atomic, check_output
from hpcgnn.storage.atomic import OutputFile, scratch_folder, scratch_folders

COMMAND = find_command("clean")

WRITE = """
import sys, time
from pathlib import Path
from hpcgnn.storage.atomic import OutputFile
file = OutputFile(Path(sys.argv[1]))
file.write(b"half of it")
print("there", flush=True)
time.sleep(600)
"""
TERMINATED = """
import sys, time
from pathlib import Path
from hpcgnn.commands.launch import run_command
from hpcgnn.storage import store_from_arrays, StoreHeader, StoreWriter
def main():
    with StoreWriter(Path(sys.argv[1]), StoreHeader(name="g", num_nodes=3)):
        print("there", flush=True)
        time.sleep(600)
run_command("test", main)
"""


IN_HDF5 = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from hpcgnn.commands.launch import run_command
from hpcgnn.storage.files import HDF5Writer
class Writer(HDF5Writer):
    def _finish(self):
        pass
def main():
    with Writer(Path(sys.argv[1])) as writer:
        os.pwrite = interrupted
        writer._write_column("/a", np.arange(1, 1 << 20))
        writer._file.flush()
        time.sleep(60)
def interrupted(*words):
    os.pwrite = write
    signal.raise_signal(int(sys.argv[2]))
    return write(*words)
write = os.pwrite
run_command("test", main)
"""
WHERE_EXCEPTIONS_ARE_DROPPED = """
import signal, sys, time, weakref
from pathlib import Path
from hpcgnn.commands.launch import run_command
from hpcgnn.storage.atomic import OutputFile
class Value:
    pass
def main():
    file, value = OutputFile(Path(sys.argv[1])), Value()
    try:
        called = weakref.ref(value, lambda _: signal.raise_signal(int(sys.argv[2])))
        del value
        time.sleep(60)
    finally:
        file.abandon()
run_command("test", main)
"""


def stopped(script: str, output: Path, number: int) -> int:
    """Start a writer, end it by a signal while it writes, and return its status."""
    command = [sys.executable, "-c", script, str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        return process.wait(60)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_the_next_writer_of_the_file_sweeps(tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    assert stopped(WRITE, output, signal.SIGKILL) == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".out.h5.")
    # Files of another output, and files with similar names, are left alone.
    check_output(tmp_path / "out.h5.other")
    (tmp_path / ".out.h5.notes.tmp").touch()
    assert left in names(tmp_path)
    check_output(output)
    assert names(tmp_path) == [".out.h5.notes.tmp"]


def test_a_living_writer_keeps_its_file(tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    first = OutputFile(output)
    first.write(b"1")
    second = OutputFile(output)
    second.write(b"22")
    first.publish()
    first.abandon()
    assert output.read_bytes() == b"1"
    second.publish()
    second.abandon()
    assert names(tmp_path) == ["out.h5"]
    assert output.read_bytes() == b"22"


def test_clean_reaches_outputs_that_nobody_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped(WRITE, tmp_path / "a.h5", signal.SIGKILL)
    running = OutputFile(tmp_path / "b.h5")
    monkeypatch.setattr(sys, "argv", ["clean", str(tmp_path)])
    COMMAND.call()
    assert "removed 1 leftovers" in capsys.readouterr().err
    assert len(names(tmp_path)) == 1
    running.abandon()


def test_sigterm_removes_what_is_half_written(tmp_path: Path) -> None:
    assert stopped(TERMINATED, tmp_path / "out.h5", signal.SIGTERM) == 128 + signal.SIGTERM
    assert names(tmp_path) == []


@pytest.mark.parametrize("script", [IN_HDF5, WHERE_EXCEPTIONS_ARE_DROPPED], ids=["hdf5", "weak"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_signals_at_awkward_moments_end_a_command(
    tmp_path: Path, script: str, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", script, str(tmp_path / "out.h5"), str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    said = "hpcgnn test: interrupted\n" if number == signal.SIGINT else ""
    assert (done.returncode, done.stderr) == (128 + number, said)
    assert names(tmp_path) == []


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "being removed"])
def test_what_is_swept_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    hold, made = atomic.hold, list[Path]()

    def late(descriptor: int) -> bool:
        made.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        if len(made) > 1:
            return hold(descriptor)
        if removed:
            made[0].rmdir() if made[0].is_dir() else made[0].unlink()
        return removed

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(atomic, "hold", late)
    with scratch_folder() as folder:
        assert folder == made[1]
        assert folder.is_dir()
    made.clear()
    output = OutputFile(tmp_path / "out.h5")
    assert output.temporary == made[1]
    output.publish()
    output.abandon()


def test_scratch_folders_of_the_dead_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder() as first:
        dead = first.with_name(first.name + "0")
        dead.mkdir()
        (dead / "share").touch()
        with scratch_folder() as second:
            assert scratch_folders() == sorted([first, second])
    assert names(tmp_path) == []
