"""The cost of each step from generating a graph to a trained model, by scale, on one host.

    python -m benchmarks.bench_pipeline --scales 16,17,18 --dir /scratch --json >> costs.jsonl
    python -m benchmarks.bench_pipeline --show costs.jsonl --figure costs.svg

Every scale runs hpcgnn's commands, each on `--ranks` ranks: ``hpcgnn generate`` makes an undirected
R-MAT graph, or a grid whose edges have features; ``hpcgnn partition`` cuts it into `--parts` by
`--method` and writes a new store; ``hpcgnn train`` trains each of `--models` for two epochs with
an evaluation in each. One JSON object per step:

- ``wall_s``, ``cpu_s``: elapsed seconds, and processor seconds of all processes of the step,
  including start-up and waiting for each other.
- ``peak_bytes``: sum of the high-water marks (VmHWM) of all processes of the step, read five times
  a second. It is an upper bound: ranks need not reach their peaks together, and shared pages count
  for each process.
- ``disk_bytes``: size of the store or run directory that the step writes.
- for partitioning, ``rows`` (its metrics) and ``search_s``, the seconds until the parts are found;
  the rest is writing. For training, ``setup_s`` by phase (including reading), ``epoch_s``, and
  ``sent_bytes`` of all ranks in an epoch.

`--show` fits, for each step, exponents over the number of stored edges, after subtracting the cost
of the smallest scale in the file as start-up.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, print_columns, text
from benchmarks.harness import surroundings
from hpcgnn.console import print_json, report

MODELS: dict[str, dict[str, Any]] = {
    "gcn-16": {"name": "gcn", "hidden": 16},
    "sage-64": {"name": "sage", "hidden": 64},
    "sage-edges-16": {"name": "sage", "hidden": 16, "edge_features": True},
    "sage-edges-32": {"name": "sage", "hidden": 32, "edge_features": True},
    "gine-16": {"name": "gine", "hidden": 16},
}
GRAPHS: dict[str, tuple[str, str, str]] = {
    "rmat": ("--scale {0} --edge-factor {1.edge_factor} --undirected", "volume", "gcn-16,sage-64"),
    "grid3d": ("--shape {0},{0},{0} --classes 4 --edge-features", "rcb", "sage-edges-16,gine-16"),
}
"""Arguments of `hpcgnn generate` (scale, options), default method and default models by graph."""
METHODS = {"volume": "--objective max_send --preset {0.preset}", "rcb": ""}
"""Arguments of `hpcgnn partition` by method."""
COLUMNS: Columns = {
    "scale": ("scale", text),
    "step": ("step", text),
    "edges": ("edges", count),
    "wall s": ("wall_s", lambda value: f"{value:.1f}"),
    "CPU s": ("cpu_s", lambda value: f"{value:.1f}"),
    "peak GB": ("peak_bytes", lambda value: f"{value / 1e9:.2f}"),
    "bytes an edge": ("bytes_an_edge", lambda value: f"{value:.1f}"),
}
COSTS = ("cpu_s", "wall_s", "peak_bytes", "disk_bytes", "sent_bytes")
_POLL_S = 0.2


@dataclass(frozen=True)
class Used:
    """Time and memory used by a command."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def main() -> None:
    """Run the pipeline at every scale, or show earlier results."""
    options = parse()
    if options.show is not None:
        found = [json.loads(line) for line in options.show.read_text("utf-8").splitlines()]
        show(found)
        if options.figure is not None:
            draw(found, options.figure)
        return
    found = []
    for scale in map(int, options.scales.split(",")):
        folder = options.dir / f"pipeline-{scale}"
        folder.mkdir(parents=True)
        try:
            for step in pipeline(scale, folder, options):
                found.append(step | surroundings())
                if options.json:
                    print_json(found[-1])
        finally:
            shutil.rmtree(folder)
    if not options.json:
        show(found)


def parse() -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="python -m benchmarks.bench_pipeline")
    cli.add_argument("--graph", default="rmat", choices=GRAPHS, help="(rmat)")
    scales = "rmat: log2 of the nodes; grid3d: nodes on an axis (8,14,15,16)"
    cli.add_argument("--scales", default="8,14,15,16", help=scales)
    cli.add_argument("--edge-factor", type=int, default=16, help="edges drawn per node (16)")
    cli.add_argument("--features", type=int, default=64, help="columns (64)")
    cli.add_argument("--ranks", type=int, default=4, help="ranks of every step (4)")
    cli.add_argument("--parts", type=int, default=64, help="(64)")
    cli.add_argument("--method", choices=METHODS, help="partitioner (grid3d: rcb, else volume)")
    cli.add_argument("--preset", default="fast", help="preset of --method volume (fast)")
    cli.add_argument("--models", help="from " + ", ".join(MODELS))
    cli.add_argument("--train", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    cli.add_argument("--dir", type=Path, default=Path(), help="folder of the temporary stores")
    cli.add_argument("--json", action="store_true", help="one JSON object per step, no table")
    cli.add_argument(
        "--show", type=Path, metavar="FILE", help="run nothing, read results from a file"
    )
    cli.add_argument("--figure", type=Path, metavar="FILE", help="with --show: draw them")
    return cli.parse_args()


def pipeline(scale: int, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the steps of one scale."""
    made, cut = folder / "made.h5", folder / "cut.h5"
    describe, method, models = GRAPHS[options.graph]
    method = options.method or method
    words = [options.graph, *describe.format(scale, options).split()]
    words += ["--features", str(options.features), "-o", str(made), "--json"]
    used, said = run(options.ranks, "generate", *words)
    facts = json.loads(said)
    case = {"scale": scale, "nodes": facts["num_nodes"], "edges": facts["num_edges"]}
    case |= {"ranks": options.ranks, "parts": options.parts, "features": options.features}
    yield case | {"step": "generate"} | asdict(used) | {"disk_bytes": made.stat().st_size}

    words = [made, "--parts", options.parts, "--method", method]
    asked = METHODS[method].format(options)
    used, said = run(options.ranks, "partition", *words, *asked.split(), "-o", cut, "--json")
    metrics = json.loads(said)
    facts = {"search_s": metrics["seconds"], "rows": metrics, "disk_bytes": cut.stat().st_size}
    yield case | {"step": "partition", "asked": asked} | asdict(used) | facts
    made.unlink()

    for model in (options.models or models).split(","):
        yield case | train(model, cut, options)


def train(model: str, cut: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a model on a store for two epochs, in the store's folder; return the step."""
    config, directory = cut.parent / "config.toml", cut.parent / model
    chosen = MODELS[model].items()
    config.write_text("".join(f"model.{k} = {json.dumps(v)}\n" for k, v in chosen))
    words = [config, f"graph.store={cut}", f"run.dir={directory}", "train.epochs=2"]
    used, _ = run(options.ranks, "train", *words, *options.train)
    summary = json.loads((directory / "summary.json").read_text("utf-8"))
    facts = {
        "settings": options.train,
        "setup_s": summary["sessions"][-1]["setup_s"],
        "epoch_s": summary["epoch_s"],
        "sent_bytes": sum(each["bytes_sent"] for each in summary["ranks_detail"]) // 2,
        "disk_bytes": sum(each.stat().st_size for each in directory.rglob("*.*")),
    }
    shutil.rmtree(directory)
    return {"step": model} | asdict(used) | facts


def run(ranks: int, command: str, *words: object) -> tuple[Used, str]:
    """Run an hpcgnn command on `ranks`; return its time and memory, and its output."""
    launch = ["bash", "-c", '. jobs/env.sh && mpi_exec "$@"', "bash", str(ranks), sys.executable]
    launch += ["-m", f"hpcgnn.{command}", *map(str, words)]
    report(f"{command} {' '.join(map(str, words))}")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    peaks: dict[int, int] = {}
    with subprocess.Popen(launch, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            for pid in descendants(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), high_water(pid))
            time.sleep(_POLL_S)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Used(time.perf_counter() - began, cpu, sum(peaks.values())), said


def descendants(pid: int) -> list[int]:
    """Return a process and its running descendants."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may contain anything: state, then parent.
            fields = (each / "stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            continue
        children.setdefault(int(fields.split()[1]), []).append(int(each.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def high_water(pid: int) -> int:
    """Return the peak resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def show(found: list[dict[str, Any]]) -> None:
    """Print the steps, and the exponents of their costs."""
    for each in found:
        each["bytes_an_edge"] = each["peak_bytes"] / each["edges"]
    print_columns(COLUMNS, found)
    print("\nexponents over edges, without start-up:")
    for step in dict.fromkeys(each["step"] for each in found):
        fits = [(key, exponent(found, step, key)) for key in COSTS]
        print(f"  {step}: " + ", ".join(f"{key} {fit:.2f}" for key, fit in fits if fit is not None))


def exponent(found: list[dict[str, Any]], step: str, key: str) -> float | None:
    """Return the slope of log(cost) over log(edges); None if fewer than two scales have it."""
    edges, costs = above_start(found, step, key)
    if len(edges) < 2:
        return None
    return float(np.polyfit(np.log(edges), np.log(costs), 1)[0])


def above_start(
    found: list[dict[str, Any]], step: str, key: str
) -> tuple[list[float], list[float]]:
    """Return edges and costs by scale, less those of the smallest scale."""
    cases = sorted((e for e in found if e["step"] == step and key in e), key=lambda e: e["scale"])
    rest = [(each["edges"], each[key] - cases[0][key]) for each in cases[1:]]
    rest = [(edges, cost) for edges, cost in rest if cost > 0]
    return [edges for edges, _ in rest], [cost for _, cost in rest]


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw processor seconds and peak memory over edges, by step."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle("Sum over ranks, less the cost of the smallest graph")
    left, right = figure.subplots(1, 2)
    for axes, key, unit, divisor in (
        (left, "cpu_s", "processor seconds", 1),
        (right, "peak_bytes", "peak memory, GB", 1e9),
    ):
        for step in dict.fromkeys(each["step"] for each in found):
            edges, costs = above_start(found, step, key)
            slope = exponent(found, step, key)
            label = step if slope is None else f"{step}, exponent {slope:.2f}"
            axes.loglog(edges, np.array(costs) / divisor, marker="o", label=label)
        axes.set(xlabel="stored edges", ylabel=unit)
        axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
