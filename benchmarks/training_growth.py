"""Memory of a process over the epochs of a run, for every objective and source.

    python -m benchmarks.training_growth [--epochs 300] [--only sampled] [--json]

Each case trains on a small graph in a process of its own, on one rank and one thread. What is
measured is the anonymous memory that is resident (RssAnon), as the most of the ten epochs that end
at 20, at 100 and at the last one: files that are mapped, such as a store, do not count. `growth` is
the last over that at epoch 20.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, print_columns, ratio, text
from benchmarks.report import circumstances

FIRST = 20
SAMPLED = ("train.task=sampled", "sampling.budget=300", "sampling.steps=3")
LINKS = ("train.task=links", "links.sampled=true", "sampling.budget=300", "links.train=0.4")
GRAPHS = ("train.task=graphs", "model.name=gin", "graphs.batch=32")
CASES: Mapping[str, tuple[str, ...]] = {
    "classes, whole graph": ("model.name=sage",),
    "classes, whole graph, bfloat16": ("model.name=sage", "train.precision=bfloat16"),
    "classes, attention": ("model.name=gat",),
    "numbers, whole graph": ("model.name=sage", "graph.targets={nodes}"),
    "classes, frontier": (*SAMPLED, "sampling.sampler=frontier"),
    "numbers, walks": (*SAMPLED, "sampling.sampler=walk", "graph.targets={nodes}"),
    "classes, edges": (*SAMPLED, "sampling.sampler=edge"),
    "classes, neighbours": (*SAMPLED, "sampling.sampler=neighbour", "sampling.fan_outs=[5,5]"),
    "classes, partitioned": (*SAMPLED, "sampling.topology=partitioned"),
    "links, whole graph": ("train.task=links",),
    "links, subgraphs": LINKS,
    "links, neighbours": (*LINKS, "sampling.sampler=neighbour", "sampling.fan_outs=[5,5]"),
    "classes of graphs, batches": GRAPHS,
    "numbers of graphs, batches": (*GRAPHS, "graph.targets={graphs}"),
    "classes of graphs, all at once": (*GRAPHS, "graphs.batch=0"),
    "programs": ("train.task=programs", "programs.epoch_graphs=20"),
}
COLUMNS: Columns = {
    "case": ("case", text),
    "epochs": ("epochs", count),
    "MiB at 20": ("first_mib", ratio),
    "MiB at 100": ("middle_mib", ratio),
    "MiB at the end": ("last_mib", ratio),
    "growth": ("growth", ratio),
}


def main() -> None:
    """Print a line for each case."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--epochs", type=int, default=300, help="of each case (default: 300)")
    cli.add_argument("--only", default="", metavar="PART", help="cases with this in their name")
    cli.add_argument("--json", action="store_true", help="print one JSON object a case")
    options = cli.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if options.only in case:
                rows.append(measured(case, Path(folder), options.epochs))
                if options.json:
                    print(json.dumps(rows[-1] | circumstances()), flush=True)
    if not options.json:
        print_columns(COLUMNS, rows)


def measured(case: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Return a case's memory; its graphs are made in `folder` where they are missing."""
    inputs = make_inputs(folder, programs=case == "programs")
    store = inputs["programs" if case == "programs" else "g" if "graphs" in case else "n"]
    words = [each.format(**inputs) for each in CASES[case]]
    run = [sys.executable, "-m", __spec__.name.replace("training_growth", "resident_memory")]
    settings = [f"graph.store={store}", f"train.epochs={epochs}", "run.threads=1"]
    done = subprocess.run([*run, *settings, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} failed: {done.stderr[-2000:]}")
    found = {int(epoch): value for epoch, value in json.loads(done.stdout.splitlines()[-1]).items()}
    first, last = found[FIRST], found[epochs]
    middle = found.get(100, last)
    sizes = {"first_mib": first, "middle_mib": middle, "last_mib": last}
    return {"case": case, "epochs": epochs, **sizes, "growth": last / first}


def make_inputs(folder: Path, *, programs: bool) -> dict[str, str]:
    """Return the paths of the stores, and of tables of numbers, that cases train on."""
    paths = {name: folder / f"{name}.h5" for name in ("n", "g", "programs")}
    paths |= {name: folder / f"{name}.csv" for name in ("nodes", "graphs")}
    if not paths["n"].exists():
        _command("generate", "planted", "--nodes", "1200", "-o", paths["n"])
        values = np.random.default_rng(3).normal(size=1200)
        lines = [f"{node},{value:.6f}" for node, value in enumerate(values)]
        paths["nodes"].write_text("\n".join(["node_id,target", *lines, ""]))
        targets = ("--targets", paths["graphs"])
        _command("generate", "planted-graphs", "--graphs", "150", *targets, "-o", paths["g"])
    if programs and not paths["programs"].exists():
        sources = Path(json.__file__).parent
        _command(
            "convert", "programs", sources, "--granularity", "function", "-o", paths["programs"]
        )
    return {name: str(path) for name, path in paths.items()}


def _command(*words: object) -> None:
    run = [sys.executable, "-m", f"hpcgnn.{words[0]}", *map(str, words[1:])]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(run)} failed: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
