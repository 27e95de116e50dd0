"""Processor seconds and peak memory of converting an edge list, by edges and distinct ids.

    python -m benchmarks.bench_convert [--edges 1,5,20,50] [--nodes 0.02,0.4] [--memory M] [--json]
    python -m benchmarks.bench_convert --edges 2 --nodes 0.1 --ids numbers --repeat 5 [--json]
    python -m benchmarks.bench_convert --edges 50 --nodes 0.02 --ids numbers --ranks 1,2,4 [--json]

With `--ranks`, ranks convert it together, started with ``mpiexec -n P`` (or the command in
MPIEXEC): CPU seconds are the sum over ranks, and the peak is the largest over ranks.

The input is generated first: lines of two random ids. `nodes` is the number of ids to draw from, as
a share of the edges. `read` is the time to read the columns of the file, without start-up; all
other figures, including the peak of the resident set, are for the whole command in its own process.
"""

import argparse
import json
import os
import resource
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.report import circumstances
from hpcgnn.commands.arguments import comma_separated
from hpcgnn.console import print_json, print_table

MILLION = 1_000_000
LINES = 1 << 20
"""Lines generated at a time."""


@dataclass(frozen=True)
class Case:
    """An input: lines with two of `num_ids` ids, which are names if `named`, else numbers."""

    num_edges: int
    num_ids: int
    named: bool


def main() -> None:
    """Measure and print, or do one of the hidden steps that `measure` runs in a subprocess."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--edges", type=comma_separated, default=("1", "5", "20", "50"), metavar="M")
    cli.add_argument("--nodes", type=comma_separated, default=("0.02", "0.4"), metavar="SHARE")
    cli.add_argument("--ids", choices=("names", "numbers"), default="names")
    cli.add_argument("--memory", default="1024", metavar="MIB")
    cli.add_argument("--repeat", type=int, default=1, help="runs of each case; medians are shown")
    cli.add_argument("--ranks", type=comma_separated, default=(), metavar="P")
    cli.add_argument("--files", type=int, default=0, help="Parquet files instead of one text")
    cli.add_argument("--json", action="store_true")
    cli.add_argument("--as-rank", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    cli.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    cli.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = cli.parse_args()
    named = options.ids == "names"
    cases = [
        Case(int(float(edges) * MILLION), int(float(edges) * float(share) * MILLION), named)
        for edges, share in product(options.edges, options.nodes)
    ]
    if options.as_rank:
        convert_as_rank(options.as_rank)
    elif options.make:
        make(options.make, cases[0], options.files)
    elif options.read:
        read(options.read, named=named)
    elif options.ranks:
        ranks = [int(each) for each in options.ranks]
        show_ranks(
            [row for case in cases for row in measure_ranks(case, options, ranks)],
            as_json=options.json,
        )
    else:
        found = [measure(case, options.memory, options.repeat) for case in cases]
        show(found, options.memory, as_json=options.json)


def show(found: list[dict[str, Any]], memory: str, *, as_json: bool) -> None:
    """Print the cases."""
    if as_json:
        print_json([{**each, "memory_mib": int(memory), **circumstances()} for each in found])
        return
    print_table(
        f"convert --memory {memory}",
        ("edges", "nodes", "MB of text", "read CPU s", "CPU s", "s", "peak MiB"),
        [
            [
                f"{each['num_edges']:,}",
                f"{each['num_nodes']:,}",
                f"{each['text_bytes'] / 1e6:.0f}",
                *(f"{each[key]:.2f}" for key in ("read_cpu_s", "cpu_s", "seconds")),
                f"{each['peak_mib']:.0f}",
            ]
            for each in found
        ],
    )


def measure(case: Case, memory: str, repeat: int) -> dict[str, Any]:
    """Return the time and memory of converting a case; the input is removed again."""
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
        path, out = Path(folder) / "edges.tsv", Path(folder) / "out.h5"
        share = str(case.num_ids / case.num_edges)
        ids = "names" if case.named else "numbers"
        this = ["-m", "benchmarks.bench_convert", "--edges", str(case.num_edges / MILLION)]
        this += ["--nodes", share, "--ids", ids]
        run([*this, "--make", str(path)])
        runs = []
        for _ in range(repeat):
            reading = float(run([*this, "--read", str(path)])[0])
            command = ["-m", "hpcgnn.convert", str(path), "-o", str(out), "--memory", memory]
            _, seconds, usage = run([*command, "--json"])
            runs.append((reading, usage.ru_utime + usage.ru_stime, seconds, usage.ru_maxrss / 1024))
        read_s, cpu_s, seconds, peak = (statistics.median(each) for each in zip(*runs, strict=True))
        return {
            "num_edges": case.num_edges,
            "num_nodes": num_nodes(out),
            "ids": ids,
            "text_bytes": path.stat().st_size,
            "read_cpu_s": read_s,
            "cpu_s": cpu_s,
            "seconds": seconds,
            "peak_mib": peak,
        }


def measure_ranks(
    case: Case, options: argparse.Namespace, ranks: list[int]
) -> list[dict[str, Any]]:
    """Return the time and memory of converting a case on each number of ranks."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
        path, out, usage = (Path(folder) / name for name in ("edges.tsv", "out.h5", "usage"))
        usage.mkdir()
        share = str(case.num_ids / case.num_edges)
        words = ["--edges", str(case.num_edges / MILLION), "--nodes", share, "--ids", options.ids]
        words += ["--files", str(options.files), "--make", str(path)]
        run(["-m", "benchmarks.bench_convert", *words])
        inputs = sorted(map(str, Path(folder).glob("edges*")))
        for number in ranks:
            command = [*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(number)]
            command += [sys.executable, "-m", "benchmarks.bench_convert", "--as-rank", str(usage)]
            command += [*inputs, "-o", str(out), "--memory", options.memory, "--json"]
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds = time.perf_counter() - start
            each = [json.loads(file.read_text()) for file in usage.iterdir()]
            for file in usage.iterdir():
                file.unlink()
            rows.append(
                {
                    "num_edges": case.num_edges,
                    "ids": options.ids,
                    "files": len(inputs),
                    "memory_mib": int(options.memory),
                    "ranks": number,
                    "cpu_s": sum(rank["cpu_s"] for rank in each),
                    "seconds": seconds,
                    "peak_mib": max(rank["peak_mib"] for rank in each),
                    "fingerprint": fingerprint(out),
                }
            )
    return rows


def show_ranks(found: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the results by number of ranks."""
    if as_json:
        print_json([{**each, **circumstances()} for each in found])
        return
    keys = ("num_edges", "ids", "files", "ranks", "cpu_s", "seconds", "peak_mib", "fingerprint")
    text = [[f"{v:.1f}" if isinstance(v, float) else v for v in map(r.get, keys)] for r in found]
    print_table("convert by ranks", keys, text)


def convert_as_rank(words: list[str]) -> None:
    """Convert as one rank, and write its time and memory into the folder of the first word."""
    sys.argv = ["convert", *words[1:]]
    try:
        runpy.run_module("hpcgnn.convert", run_name="__main__", alter_sys=True)
    finally:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        took = {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_mib": usage.ru_maxrss / 1024}
        (Path(words[0]) / f"{os.getpid()}.json").write_text(json.dumps(took))


def run(arguments: list[str]) -> tuple[str, float, Any]:
    """Run Python; return its output, elapsed seconds and resource usage."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with status {status}")
    return text, time.perf_counter() - start, usage


# The functions below import their modules late: a process inherits the peak memory of its parent.


def make(path: Path, case: Case, files: int) -> None:
    """Write the lines of a case, in one text file or in Parquet files."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.csv as pa_csv  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    draw = np.random.default_rng(7)
    plain = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with ExitStack() as stack:
        file = None if files else stack.enter_context(path.open("wb"))
        lines = -(-case.num_edges // files) if files else LINES
        for first in range(0, case.num_edges, lines):
            count = min(lines, case.num_edges - first)
            columns = [pa.array(draw.integers(0, case.num_ids, count)) for _ in range(2)]
            if case.named:
                columns = [
                    pc.binary_join_element_wise("user_", column.cast(pa.string()), "")
                    for column in columns
                ]
            table = pa.table(columns, ["src", "dst"])
            if file is None:
                pq.write_table(table, path.with_name(f"edges-{first:012}.parquet"))
            else:
                pa_csv.write_csv(table, file, plain)


def read(path: Path, *, named: bool) -> None:
    """Print the processor seconds of reading the columns of a file."""
    from hpcgnn.convert.read.tables import Kind, TableFile  # noqa: PLC0415

    kind: Kind = "text" if named else "integer"
    start = time.process_time()
    for table in TableFile.open(path, frozenset()).blocks({0: kind, 1: kind}):
        assert table.num_rows
    sys.stdout.write(f"{time.process_time() - start}\n")


def fingerprint(store: Path) -> str:
    """Return the fingerprint of a store."""
    from hpcgnn.storage import GraphStore  # noqa: PLC0415

    with GraphStore.open(store) as graph:
        return str(graph.fingerprint)


def num_nodes(store: Path) -> int:
    """Return the number of nodes in a store."""
    from hpcgnn.storage import GraphStore  # noqa: PLC0415

    with GraphStore.open(store) as graph:
        return graph.num_nodes


if __name__ == "__main__":
    main()
