"""Cost of each rank from mpiexec to its first epoch, by number of ranks.

    python -m benchmarks.bench_startup --ranks 4,16 --json

The run trains on a grid of 64,000 nodes in 64 parts by METIS. Each rank stops when its first epoch
begins, and reports its processor seconds by `STAGES`; waiting ranks sleep, so that waiting costs
next to nothing. Open MPI's monitoring counts messages, including those of collectives. If strace is
installed, it counts the files opened by the last rank, which is then excluded from the seconds.
`busiest` is the maximum over ranks. Each rank needs 200 MB.
"""

import argparse
import ctypes
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.columns import Columns, count, print_columns, seconds
from benchmarks.harness import surroundings

PARTS = 64
SHAPE = "40,40,40"
STAGES = ("imports", "MPI", "set-up")
COLUMNS: Columns = {
    "ranks": ("ranks", count),
    **{f"{stage} CPU s": (stage, seconds) for stage in STAGES},
    "messages": ("messages", count),
    "of the busiest": ("messages_busiest", count),
    "bytes": ("bytes", count),
    "peers": ("peers", count),
    "files": ("files", count),
}

_WATCHED = {
    # Waiting ranks sleep for a millisecond at a time.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "1000000",
    "OMP_NUM_THREADS": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_pml_monitoring_enable": "1",
    # Its monitoring of collectives fails for neighbourhood collectives.
    "OMPI_MCA_coll": "^monitoring",
}
_CLASS_SIZE = 2
"""MPI_T_PVAR_CLASS_SIZE, as Open MPI numbers it."""
_OPENED = re.compile(r'openat\([^"]*"([^"]+)".*= \d+$', re.MULTILINE)


def main() -> None:
    """Run every number of ranks and print the results."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--ranks", default="4,16", metavar="P,P", help="numbers of ranks (4,16)")
    cli.add_argument("--json", action="store_true", help="print one JSON object per number")
    cli.add_argument("--rank", nargs="+", help=argparse.SUPPRESS)
    options = cli.parse_args()
    if options.rank:
        be_a_rank(Path(options.rank[0]), options.rank[1:])
        return
    with tempfile.TemporaryDirectory(prefix="hpcgnn-startup-") as folder:
        store = make_store(Path(folder))
        found = [start(ranks, Path(folder), store) for ranks in map(int, options.ranks.split(","))]
    if options.json:
        for each in found:
            print(json.dumps(each | surroundings("mpi4py", "torch")))
    else:
        print_columns(COLUMNS, found)


def make_store(folder: Path) -> Path:
    """Write the partitioned graph; return the file."""
    plain, parts = folder / "plain.h5", folder / "parts.h5"
    made = ["generate", "grid3d", "--shape", SHAPE, "--features", "16", "-o", plain]
    cut = ["partition", plain, "--parts", PARTS, "--method", "metis", "-o", parts]
    for words in (made, cut):
        subprocess.run([sys.executable, "-m", "hpcgnn", *map(str, words), "-q"], check=True)
    return parts


def start(ranks: int, folder: Path, store: Path) -> dict[str, Any]:
    """Start `ranks` ranks, wait for them, and return their results."""
    place = folder / str(ranks)
    place.mkdir()
    own = [sys.executable, "-m", "benchmarks.bench_startup", "--rank", str(place)]
    own += [f"graph.store={store}", f"run.dir={place / 'run'}", "model.hidden=16"]
    last = own
    if strace := shutil.which("strace"):
        where = str(place / "opened")
        last = [strace, "-f", "--seccomp-bpf", "-e", "trace=openat", "-o", where, *own]
    launcher = shlex.split(os.environ.get("MPIEXEC", "mpiexec"))
    command = [*launcher, "-n", str(ranks - 1), *own, ":", "-n", "1", *last]
    # Ranks exit without finalising MPI, which is not part of the start; launchers complain.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=False, env=os.environ | _WATCHED, **quiet)
    return read(ranks, place)


def be_a_rank(folder: Path, words: list[str]) -> None:
    """Start a run up to its first epoch, and write this rank's usage into a folder."""
    used = [time.process_time()]
    # In the order of the hpcgnn command: imports come before MPI.
    from hpcgnn.spmd import all_of_launcher  # noqa: PLC0415
    from hpcgnn.train.command import config_of, run_training, stop_on_signals  # noqa: PLC0415
    from hpcgnn.train.seed_run import SeedRun  # noqa: PLC0415

    used.append(time.process_time())
    comm = all_of_launcher()
    used.append(time.process_time())
    sent = SentTo(comm)

    def end(_: SeedRun) -> None:
        used.append(time.process_time())
        counts = {
            "cpu_s": [after - before for before, after in pairwise(used)],
            "sent": sent.now(),
            "private_bytes": private_bytes(),
        }
        (folder / f"rank.{comm.rank}.json").write_text(json.dumps(counts), encoding="ascii")
        comm.Barrier()
        os._exit(0)

    SeedRun.begin_epoch = end  # type: ignore[method-assign, assignment]
    with stop_on_signals() as stop:
        run_training(comm, config_of(words), stop)


def private_bytes() -> int:
    """Return the private memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10


class SentTo:
    """Counts messages that this process sends to each rank, including those of collectives.

    It uses Open MPI's counters through MPI's tool interface, which mpi4py does not have.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI  # noqa: PLC0415

        self._tool, self._size = ctypes.CDLL(MPI.__file__), comm.size
        self._session, self._handles = ctypes.c_void_p(), dict[str, ctypes.c_void_p]()
        world = ctypes.c_void_p(MPI._handleof(MPI.COMM_WORLD))
        self._call("init_thread", 0, ctypes.byref(ctypes.c_int()))
        self._call("pvar_session_create", ctypes.byref(self._session))
        for what in ("count", "size"):
            index, handle, length = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
            name = f"pml_monitoring_messages_{what}".encode()
            self._call("pvar_get_index", name, _CLASS_SIZE, ctypes.byref(index))
            places = map(ctypes.byref, (world, handle, length))
            self._call("pvar_handle_alloc", self._session, index, *places)
            self._call("pvar_start", self._session, handle)
            self._handles[what] = handle

    def now(self) -> dict[str, list[int]]:
        """Return ``count`` of messages and ``size`` in bytes, by receiving rank."""
        found = {what: (ctypes.c_size_t * self._size)() for what in self._handles}
        for what, numbers in found.items():
            self._call("pvar_read", self._session, self._handles[what], numbers)
        return {what: list(numbers) for what, numbers in found.items()}

    def _call(self, name: str, *arguments: Any) -> None:
        if status := self._tool[f"MPI_T_{name}"](*arguments):
            raise RuntimeError(f"MPI_T_{name} ends with status {status}")


def read(ranks: int, folder: Path) -> dict[str, Any]:
    """Return medians and means over the ranks' results in a folder."""
    told = [json.loads((folder / f"rank.{rank}.json").read_text("ascii")) for rank in range(ranks)]
    messages, size = ([sum(each["sent"][what]) for each in told] for what in ("count", "size"))
    stages = zip(*(each["cpu_s"] for each in told[: ranks - 1] or told), strict=True)
    files = opened(folder / "opened")
    return {
        "ranks": ranks,
        **{
            stage: statistics.median(of_ranks)
            for stage, of_ranks in zip(STAGES, stages, strict=True)
        },
        "messages": round(statistics.fmean(messages)),
        "messages_busiest": max(messages),
        "bytes": round(statistics.fmean(size)),
        "bytes_busiest": max(size),
        "peers": round(statistics.fmean(sum(map(bool, each["sent"]["count"])) for each in told)),
        "private_bytes": max(each["private_bytes"] for each in told),
        "files": files and sum(files.values()),
        "files_by_place": files,
    }


def opened(file: Path) -> dict[str, int] | None:
    """Return the number of opened files by location, from strace's output; None without it."""
    if not file.exists():
        return None
    names = _OPENED.findall(file.read_text(encoding="utf-8", errors="replace"))
    system = ("/proc/", "/sys/", "/dev/", "/etc/", "/tmp/prte")
    own = f"{file.parent.parent}/"
    kinds = (
        "job" if name.startswith(own) else "system" if name.startswith(system) else "installed"
        for name in names
    )
    return dict(Counter(kinds))


if __name__ == "__main__":
    main()
