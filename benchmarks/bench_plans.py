"""Compare the predictions of ``hpcgnn plan`` with runs: seconds of an epoch and peak memory.

    python -m benchmarks.bench_plans ROWS.jsonl [--cases sage,gat] [--rounds 3]
    python -m benchmarks.bench_plans ROWS.jsonl --show

A case is a model on a partitioned graph, with a number of ranks, an exchange and a schedule. Its
plan and its run follow each other in every round; the medians are compared. Ranks share cores if
there are too few, and the plan is told so. If ranks are on hosts of a network, ``MPIEXEC`` starts
them there, and ``--bandwidth`` (GB/s of a rank) and ``--latency`` (microseconds) describe the
network; `bench_hosts.sh plans` does so. ROWS gets a JSON object per case that it does not have yet.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.harness import surroundings
from hpcgnn.console import print_table

GRAPHS = MappingProxyType(
    {
        "debian": ("debian-packages",),
        "rmat16": ("rmat", "--scale", "16", "--undirected", "--features", "64"),
        "grid40": ("grid3d", "--shape", "40,40,40"),
        "planted": ("planted", "--nodes", "50000", "--features", "64", "--classes", "16"),
    }
)
RELATIONS = "depends,pre-depends,recommends,suggests"


@dataclass(frozen=True)
class Case:
    """A configuration to plan and to run; METIS makes `parts` parts."""

    graph: str
    ranks: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The configuration in one line."""
        values = " ".join(word.split("=", 1)[1] for word in self.words)
        return f"{self.graph} {self.ranks} {values}"


def _case(graph: str, ranks: int, model: str, exchange: str, *more: str) -> Case:
    name, _, hidden = model.partition("-")
    words = (f"model.name={name}", f"model.hidden={hidden}", f"exchange.method={exchange}")
    return Case(graph, ranks, (*words, *more))


SEQUENTIAL = "exchange.schedule=sequential"
CASES = (
    _case("debian", 1, "gcn-16", "aware"),
    _case("debian", 2, "gcn-16", "joint"),
    _case("debian", 4, "gcn-16", "joint"),
    _case("debian", 1, "sage-128", "aware"),
    _case("debian", 2, "sage-128", "aware"),
    _case("debian", 2, "sage-128", "joint"),
    _case("debian", 4, "sage-128", "joint"),
    _case("debian", 4, "sage-128", "aware", SEQUENTIAL),
    _case("debian", 2, "gat-64", "aware"),
    _case("debian", 4, "gat-64", "joint"),
    _case("debian", 2, "rgcn-16", "joint"),
    _case("rmat16", 1, "sage-64", "aware"),
    _case("rmat16", 2, "sage-64", "joint"),
    _case("rmat16", 4, "sage-64", "joint"),
    _case("rmat16", 2, "gin-64", "aware"),
    _case("rmat16", 4, "gcn-64", "push"),
    _case("grid40", 2, "gcn-64", "aware"),
    _case("grid40", 4, "sage-64", "aware", "train.precision=bfloat16"),
    _case("planted", 2, "sage-64", "joint", "train.precision=bfloat16"),
    _case("planted", 2, "gat-64", "aware", SEQUENTIAL),
)
ON_HOSTS = (
    _case("debian", 2, "sage-128", "aware"),
    _case("debian", 2, "sage-128", "joint"),
    _case("debian", 2, "gcn-64", "joint"),
    _case("rmat16", 2, "sage-64", "joint"),
    _case("rmat16", 2, "gat-64", "aware"),
    _case("planted", 2, "sage-64", "joint", SEQUENTIAL, "exchange.prefetch=1"),
)


def call(command: Sequence[str]) -> str:
    """Return the output of a command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: {done.stderr}")
    return done.stdout


def hpcgnn(*words: str) -> str:
    """Return the output of an hpcgnn command."""
    return call([sys.executable, "-m", "hpcgnn", *words])


def store_of(graph: str, parts: int, folder: Path) -> Path:
    """Return the store of a graph in `parts` parts, which is made if it is missing."""
    whole, cut = folder / f"{graph}.h5", folder / f"{graph}.{parts}.h5"
    if not whole.is_file():
        hpcgnn("generate", *GRAPHS[graph], "-o", str(whole), "-q")
    if not cut.is_file():
        chosen = ("--relations", RELATIONS) if graph == "debian" else ()
        words = ("--parts", str(parts), "--method", "metis", *chosen)
        hpcgnn("partition", str(whole), *words, "-o", str(cut), "-q")
    return cut


def measure(case: Case, folder: Path, links: Sequence[str], epochs: int) -> dict[str, float]:
    """Return the planned and measured seconds of an epoch and peak bytes of a rank."""
    cores = len(os.sched_getaffinity(0))
    words = [f"graph.store={store_of(case.graph, case.ranks, folder)}", *case.words]
    words += [f"run.threads={max(cores // case.ranks, 1) if not links else 1}"]
    if case.graph == "debian":
        words.append(f"graph.relations={json.dumps(RELATIONS.split(','))}")
    exchange = next(word for word in case.words if word.startswith("exchange.method="))
    asked = ("--ranks", str(case.ranks), "--exchange", exchange.partition("=")[2])
    host = ("--cores-per-host", str(cores), "--beside", str(min(cores, case.ranks)))
    plan, *_ = json.loads(hpcgnn("plan", *words, *asked, *host, *links, "--json", "-q"))
    start = shlex.split(os.environ.get("MPIEXEC", "mpiexec"))
    with tempfile.TemporaryDirectory() as run:
        more = (f"run.dir={run}/run", f"train.epochs={epochs}", "train.evaluate_every=1000")
        still = ("run.save_predictions=false", "run.checkpoint_share=0")
        train = (sys.executable, "-m", "hpcgnn.train", *words, *more, *still)
        call([*start, "-n", str(case.ranks), *train])
        summary = json.loads(Path(run, "run", "summary.json").read_text(encoding="utf-8"))
    peak = max(rank["peak_rss_bytes"] for rank in summary["ranks_detail"])
    parts = ("epoch_s", "compute_s", "exchange_s", "hidden_s", "crowding")
    return {
        "run_s": summary["epoch_s"]["median"],
        "run_bytes": peak,
        "plan_bytes": plan["peak_bytes"],
        **{f"plan_{name}": plan[name] for name in parts},
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows, and the errors of the plans."""
    cells, off = [], []
    for row in rows:
        seconds = row["plan_epoch_s"] / row["run_s"] - 1
        memory = row["plan_bytes"] / row["run_bytes"] - 1
        off.append((abs(seconds), abs(memory)))
        parts = [f"{row[f'plan_{name}']:.3f}" for name in ("compute_s", "exchange_s", "hidden_s")]
        figures = [f"{row['run_s']:.3f}", f"{row['plan_epoch_s']:.3f}", f"{100 * seconds:+.0f} %"]
        cells.append(
            (row["case"], *figures, *parts, f"{row['plan_crowding']:.2f}", f"{100 * memory:+.0f} %")
        )
    columns = ("case", "run s", "plan s", "off", "computing", "messages", "hidden", "crowding")
    print_table("plans beside runs", (*columns, "memory off"), cells)
    for name, values in zip(("seconds", "memory"), zip(*off, strict=True), strict=True):
        middle, most = 100 * statistics.median(values), 100 * max(values)
        print(f"{name}: {middle:.1f} % off in the median, {most:.1f} % at most, {len(off)} cases")


def main() -> None:
    """Plan, run, compare and print."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.bench_plans")
    cli.add_argument("rows", type=Path)
    cli.add_argument("--cases", default="", help="only cases whose names contain one of these")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--epochs", type=int, default=12, help="epochs of each run (default: 12)")
    cli.add_argument("--stores", type=Path, help="folder of graphs (default: a temporary one)")
    cli.add_argument("--bandwidth", help="GB/s between hosts, with one rank each")
    cli.add_argument("--latency", default="50", help="microseconds of a message between hosts")
    cli.add_argument("--show", action="store_true", help="only print the table of ROWS")
    options = cli.parse_args()
    text = options.rows.read_text(encoding="utf-8") if options.rows.is_file() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    if not options.show:
        links: tuple[str, ...] = ()
        if options.bandwidth:
            links = ("--bandwidth", options.bandwidth, "--latency", options.latency)
            links += ("--ranks-per-host", "1")
        words = options.cases.split(",")
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.stores or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            for case in ON_HOSTS if links else CASES:
                name = case.name + (f" {options.bandwidth} GB/s" if links else "")
                if any(row["case"] == name for row in rows) or not any(w in name for w in words):
                    continue
                rounds = [
                    measure(case, folder, links, options.epochs) for _ in range(options.rounds)
                ]
                medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
                rows.append({"case": name, **medians, **surroundings()})
                with options.rows.open("a", encoding="utf-8") as file:
                    print(json.dumps(rows[-1]), file=file)
    show(rows)


if __name__ == "__main__":
    main()
