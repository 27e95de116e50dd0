"""Growth of a process's memory over the epochs of a run, for every objective and source.

    python -m benchmarks.training_growth [--epochs 300] [--only sampled] [--json]

Each case trains on a small graph in a process of its own, on one rank and one thread. Measured is
the resident anonymous memory (RssAnon), as the maximum over the ten epochs that end at 20, at 100
and at the last one, without mapped files such as a store. `growth` is the last over the first.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, print_columns, ratio, text
from benchmarks.report import circumstances

FIRST = 20
Paths = Mapping[str, Path]
NODES = "planted"
SAMPLED = (NODES, "train.task=sampled", "sampling.budget=300", "sampling.steps=3")
LINKS = (NODES, "train.task=links", "links.train=0.4")
SAMPLED_LINKS = (*LINKS, "links.sampled=true", "sampling.budget=300")
NEIGHBOURS = ("sampling.sampler=neighbour", "sampling.fan_outs=[5,5]")
GRAPHS = ("planted-graphs", "train.task=graphs", "model.name=gin", "graphs.batch=32")
FIELDS = (
    "heat",
    "train.task=fields",
    "model.name=meshgraphnet",
    "model.hidden=16",
    "fields.targets=T",
)
CASES: Mapping[str, tuple[str, ...]] = {
    "classes, whole graph": (NODES, "model.name=sage"),
    "classes, whole graph, bfloat16": (NODES, "model.name=sage", "train.precision=bfloat16"),
    "classes, attention": (NODES, "model.name=gat"),
    "numbers, whole graph": (NODES, "model.name=sage", "graph.targets={nodes}"),
    "classes, frontier": (*SAMPLED, "sampling.sampler=frontier"),
    "numbers, walks": (*SAMPLED, "sampling.sampler=walk", "graph.targets={nodes}"),
    "classes, edges": (*SAMPLED, "sampling.sampler=edge"),
    "classes, neighbours": (*SAMPLED, *NEIGHBOURS),
    "classes, partitioned": (*SAMPLED, "sampling.topology=partitioned"),
    "classes of edges": ("edges", "train.task=edges", "model.name=sage", "model.embeddings=true"),
    "links, whole graph": LINKS[:2],
    "links, subgraphs": SAMPLED_LINKS,
    "links, neighbours": (*SAMPLED_LINKS, *NEIGHBOURS),
    "classes of graphs, batches": GRAPHS,
    "numbers of graphs, batches": (*GRAPHS, "graph.targets={graphs}"),
    "classes of graphs, all at once": (*GRAPHS, "graphs.batch=0"),
    "fields": FIELDS,
    "fields, unrolled": (*FIELDS, "fields.unroll=3", "fields.batch=2"),
    "programs": ("programs", "train.task=programs", "programs.epoch_graphs=20"),
}
"""Case to its store, as `make_inputs` names it, and its settings."""
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
    cli.add_argument("--epochs", type=int, default=300, help="epochs of each case (default: 300)")
    cli.add_argument(
        "--only", default="", metavar="PART", help="only cases with this in their name"
    )
    cli.add_argument("--json", action="store_true", help="print one JSON object per case")
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
    """Return a case's memory; graphs that are missing in `folder` are made there."""
    store, *words = CASES[case]
    inputs = make_inputs(folder, store)
    run = [sys.executable, "-m", __spec__.name.replace("training_growth", "resident_memory")]
    settings = [f"graph.store={inputs[store]}", f"train.epochs={epochs}", "run.threads=1"]
    done = subprocess.run(
        [*run, *settings, *(word.format(**inputs) for word in words)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case} failed: {done.stderr[-2000:]}")
    found = {int(epoch): value for epoch, value in json.loads(done.stdout.splitlines()[-1]).items()}
    first, last = found[FIRST], found[epochs]
    middle = found.get(100, last)
    sizes = {"first_mib": first, "middle_mib": middle, "last_mib": last}
    return {"case": case, "epochs": epochs, **sizes, "growth": last / first}


def make_inputs(folder: Path, store: str) -> dict[str, str]:
    """Return the paths of `store` and of tables of numbers; missing files are made in `folder`."""
    paths = {name: folder / f"{name}.csv" for name in ("nodes", "graphs")}
    paths[store] = folder / f"{store}.h5"
    if not paths[store].exists():
        _MAKERS[store](paths, paths[store])
    return {name: str(path) for name, path in paths.items()}


def _make_planted(paths: Paths, store: Path) -> None:
    _command("generate", "planted", "--nodes", "1200", "-o", store)
    values = np.random.default_rng(3).normal(size=1200)
    lines = [f"{node},{value:.6f}" for node, value in enumerate(values)]
    paths["nodes"].write_text("\n".join(["node_id,target", *lines, ""]))


def _make_graphs(paths: Paths, store: Path) -> None:
    targets = ("--targets", paths["graphs"])
    _command("generate", "planted-graphs", "--graphs", "150", *targets, "-o", store)


def _make_edges(_: Paths, store: Path) -> None:
    source, target = np.random.default_rng(4).integers(1200, size=(2, 6000))
    pairs = sorted({*zip(source.tolist(), target.tolist(), strict=True)})
    table = store.with_suffix(".csv")
    lines = [f"{u},{v},{'up' if u < v else 'down'}" for u, v in pairs]
    table.write_text("\n".join(["source,target,kind", *lines, ""]))
    _command("convert", table, "--edge-labels", "kind", "-o", store)


def _make_heat(_: Paths, store: Path) -> None:
    _command("generate", "heat", "--shape", "6,6,6", "--steps", "12", "-o", store)


def _make_programs(_: Paths, store: Path) -> None:
    sources = Path(json.__file__).parent
    _command("convert", "programs", sources, "--granularity", "function", "-o", store)


_MAKERS: Mapping[str, Callable[[Paths, Path], None]] = {
    NODES: _make_planted,
    "planted-graphs": _make_graphs,
    "edges": _make_edges,
    "heat": _make_heat,
    "programs": _make_programs,
}


def _command(*words: object) -> None:
    run = [sys.executable, "-m", f"hpcgnn.{words[0]}", *map(str, words[1:])]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(run)} failed: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
