"""Eight defects, planted where ranks of a launcher run the whole ``hpcgnn selftest``.

    python -m tests.selftest.defects FOLDER [--ranks 4] [--mpiexec WORDS] [--other WORDS] [NAME...]

Prints a line for each: status, seconds, CPU seconds, and the line that names it; returns 1 if one
was not found. The link is a real one between emulated hosts and the disk a file system of 8 MB
(both need root), too many threads are started, and `--other` is the launcher of an MPI other than
this Python's. Kernel, messages, library, locks and clock are changed inside the ranks.
"""

import argparse
import errno
import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness import children_cpu_s
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.doctor import host
from hpcgnn.selftest import checks, command
from hpcgnn.spmd import world_of_ranks
from tests.selftest.test_selftest import COMMAND, Swapped, broken_clock, wrong_kernel
from tests.supervise.kills import NAMES, hosts

SLOW = "200mbit"
LIMIT_S = 300


def swapped_ranks(patch: pytest.MonkeyPatch) -> None:
    def messages(fixtures: checks.Fixtures) -> object:
        return checks.messages(checks.Fixtures(Swapped(fixtures.comm), fixtures.folder))  # type: ignore[arg-type]

    others = [check for check in checks.CHECKS if check is not checks.messages]
    patch.setattr(command, "CHECKS", (messages, *others))


def wrong_library(patch: pytest.MonkeyPatch) -> None:
    comm = world_of_ranks()
    if comm.rank == comm.size - 1:
        patch.setattr(host, "mpi_library", lambda: "MPICH 0.1")


def missing_locks(patch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    patch.setattr(fcntl, "flock", none)


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "none": lambda _: None,
    "wrong kernel": wrong_kernel,
    "swapped ranks": swapped_ranks,
    "wrong library": wrong_library,
    "missing locks": missing_locks,
    "broken clock": broken_clock,
}
"""Defects inside a rank."""

FOUND = {
    "none": r"selftest on \d+ ranks?: all passed.*",
    "wrong kernel": r"fault  kernels float64: rank .*",
    "swapped ranks": r"fault  messages: rank .* received other data from rank.*",
    "slow link": r"remark  network: .* at worst \((node\d and )?node3( and node\d)?\).*",
    "full disk": r"fault  files: .*No space left on device.*",
    "wrong library": r"fault  versions: .*",
    # MPICH's launcher ends by itself under Open MPI's.
    "wrong launcher": r"error: .*, but this process is alone in its MPI world.*|"
    r"Runtime environment uses unsupported PMI version.*",
    "missing locks": r"remark  file locks: .*",
    "oversubscription": r"remark  cores: .*more threads than cores.*",
    "broken clock": r"fault  clocks: .*",
}
"""For each defect, the line that must name it."""
NEED_OTHERS = ("swapped ranks", "slow link", "wrong library", "wrong launcher")


@dataclass(frozen=True)
class Site:
    """The environment: a folder, the words of two launchers, and the number of ranks."""

    folder: Path
    mpiexec: Sequence[str]
    other: Sequence[str]
    ranks: int

    def run(self, name: str) -> tuple[int, str, float, float]:
        """Return status, output, seconds and CPU seconds of a selftest with a defect."""
        words = [*self.mpiexec, "-n", str(self.ranks)]
        folder, settings = self.folder, ["OMP_NUM_THREADS=1"]
        if name == "slow link":
            script = Path("benchmarks", "hosts.sh").resolve()
            each = ",".join(f"{host}:1" for host in NAMES[: self.ranks])
            launcher = [self.mpiexec[0], *words[len(self.mpiexec) :]]
            words = ["bash", str(script), "mpiexec", str(folder / "hosts"), each, *launcher]
        elif name == "full disk":
            folder = folder / "full"
        elif name == "wrong launcher":
            words = [*self.other, "-n", str(self.ranks)]
        elif name == "oversubscription":
            settings = [f"OMP_NUM_THREADS={len(os.sched_getaffinity(0)) + 1}"]
        inside = name if name in PLANTS else "none"
        words += ["env", *settings, sys.executable, "-m", "tests.selftest.defects"]
        words += [str(folder), "--inside", inside]
        began, used = time.monotonic(), children_cpu_s()
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
        seconds = time.monotonic() - began, children_cpu_s() - used
        return done.returncode, done.stdout + done.stderr, *seconds


def prepare(name: str, folder: Path, *, remove: bool) -> None:
    """Make, or remove, the resources that a defect needs."""
    full = folder / "full"
    if name == "full disk" and remove:
        subprocess.run(["umount", full], check=True)
    elif name == "full disk":
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", full], check=True)
    elif name == "slow link" and remove:
        hosts("down", folder / "hosts")
    elif name == "slow link":
        for words in (("up", folder / "hosts", *NAMES), ("rate", folder / "hosts", SLOW, "node3")):
            done = hosts(*words)
            assert done.returncode == 0, done.stderr


def main() -> None:
    """Run the command, or one rank of it."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("names", nargs="*", default=list(FOUND), metavar="NAME")
    cli.add_argument("--ranks", type=int, default=4)
    own = str(Path(sys.prefix, "bin", "mpiexec"))
    cli.add_argument("--mpiexec", default=own, help="the launcher and its options")
    cli.add_argument("--other", default="", help="the launcher of another MPI")
    cli.add_argument("--inside", choices=PLANTS, help=argparse.SUPPRESS)
    options = cli.parse_args()
    if options.inside:
        with pytest.MonkeyPatch.context() as patch:
            PLANTS[options.inside](patch)
            words = ["--dir", str(options.folder)]
            run_mpi_command("selftest", lambda world: COMMAND.call(words, world) or 0)
    if unknown := set(options.names) - set(FOUND):
        cli.error(f"{', '.join(unknown)}: choose of {', '.join(FOUND)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    site = Site(
        options.folder.resolve(), options.mpiexec.split(), options.other.split(), options.ranks
    )
    missed = 0
    for name in options.names:
        if (name in NEED_OTHERS and site.ranks == 1) or (
            name == "wrong launcher" and not site.other
        ):
            continue
        try:
            prepare(name, site.folder, remove=False)
            status, output, seconds, used = site.run(name)
        finally:
            prepare(name, site.folder, remove=True)
        found = re.search(FOUND[name], output)
        missed += not found
        line = found[0] if found else f"NOT FOUND in: {output[-800:]}"
        cells = (name, site.ranks, status, f"{seconds:.0f}", f"{used:.0f}", line)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    sys.exit(int(bool(missed)))


if __name__ == "__main__":
    main()
