"""Processor seconds and peak memory of converting an edge list, by edges and distinct names.

    python -m benchmarks.bench_convert [--edges 1,5,20,50] [--nodes 0.02,0.4] [--memory M] [--json]
    python -m benchmarks.bench_convert --edges 2 --nodes 0.1 --ids numbers --repeat 5 [--json]

The input is made first: lines of two ids that are drawn at random. `nodes` is the number of ids
that are drawn from, as a share of the edges. `read` are seconds of reading the file's columns
alone, without start-up; all else is of the whole command in a process of its own, its peak of the
resident set too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.report import circumstances
from hpcgnn.console import comma_separated, print_json, print_table

MILLION = 1_000_000
LINES = 1 << 20
"""Lines that are made at a time."""


@dataclass(frozen=True)
class Case:
    """An input: lines of two of `num_ids` ids, names or numbers."""

    num_edges: int
    num_ids: int
    named: bool


def main() -> None:
    """Measure and print, or do what `measure` asks of another process."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--edges", type=comma_separated, default=("1", "5", "20", "50"), metavar="M")
    cli.add_argument("--nodes", type=comma_separated, default=("0.02", "0.4"), metavar="SHARE")
    cli.add_argument("--ids", choices=("names", "numbers"), default="names")
    cli.add_argument("--memory", default="1024", metavar="MIB")
    cli.add_argument("--repeat", type=int, default=1, help="runs of each case; medians are shown")
    cli.add_argument("--json", action="store_true")
    cli.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    cli.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = cli.parse_args()
    named = options.ids == "names"
    cases = [
        Case(int(float(edges) * MILLION), int(float(edges) * float(share) * MILLION), named)
        for edges, share in product(options.edges, options.nodes)
    ]
    if options.make:
        make(options.make, cases[0])
    elif options.read:
        read(options.read, named=named)
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
    """Return what the conversion of a case takes; the input is removed again."""
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


def run(arguments: list[str]) -> tuple[str, float, Any]:
    """Run Python; return what it printed, its seconds and its resources."""
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


# What follows imports what it needs itself: a process inherits the peak of the one that starts it.


def make(path: Path, case: Case) -> None:
    """Write the lines of a case."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.csv as pa_csv  # noqa: PLC0415

    draw = np.random.default_rng(7)
    plain = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for first in range(0, case.num_edges, LINES):
            count = min(LINES, case.num_edges - first)
            columns = [pa.array(draw.integers(0, case.num_ids, count)) for _ in range(2)]
            if case.named:
                columns = [
                    pc.binary_join_element_wise("user_", column.cast(pa.string()), "")
                    for column in columns
                ]
            pa_csv.write_csv(pa.table(columns, ["src", "dst"]), file, plain)


def read(path: Path, *, named: bool) -> None:
    """Print the processor seconds of reading the columns of a file."""
    from hpcgnn.convert.read.tables import Kind, TableFile  # noqa: PLC0415

    kind: Kind = "text" if named else "integer"
    start = time.process_time()
    for table in TableFile.open(path, frozenset()).blocks({0: kind, 1: kind}):
        assert table.num_rows
    sys.stdout.write(f"{time.process_time() - start}\n")


def num_nodes(store: Path) -> int:
    """Return the number of nodes in a store."""
    from hpcgnn.storage import GraphStore  # noqa: PLC0415

    with GraphStore.open(store) as graph:
        return graph.num_nodes


if __name__ == "__main__":
    main()
