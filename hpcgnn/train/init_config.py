"""The command ``init``: write a configuration for a store, with its keys explained."""

import argparse
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from hpcgnn.config.command_line import COMMON
from hpcgnn.config.file import describe_keys, load_config
from hpcgnn.console import report, start_of
from hpcgnn.errors import InputError
from hpcgnn.graph.inputs import far_columns
from hpcgnn.storage import GraphStore, InstanceStore, NodeBlock, check_output, is_instance_store
from hpcgnn.typing import FloatArray

_JOBS = Path("jobs")
_CHECKOUT_VENV = "$HPCGNN_ROOT/.venv"

_MANY_RELATIONS = 8
_OF_EDGES = {"model.name": "meshgraphnet", "exchange.method": "aware"}
"""Settings for stores that have fields on edges only."""
_NUM_INSPECTED = 4096
_WIDTH = 100


def main(options: argparse.Namespace) -> None:
    """Write the configuration, or the folder of job scripts."""
    if options.jobs:
        write_jobs()
        return
    name = options.store.name.removesuffix(".h5")
    output = options.output or Path(f"{name}.toml")
    check_output(output)
    chosen, steps, ranks = choose(options.store)
    chosen["run.dir"] = str(options.run_dir or Path("runs") / name)
    text = configuration(chosen, everything=options.all)
    made = False
    try:
        # Mode "x" never overwrites a file that somebody has edited.
        with output.open("x", encoding="utf-8") as file:
            made = True
            file.write(text)
    except FileExistsError:
        raise InputError(f"{output}: exists already; name another file with -o") from None
    except OSError as error:
        if made:
            output.unlink(missing_ok=True)
        raise InputError(f"{output}: cannot be written ({error.strerror})") from error
    load_config(output)
    report(f"wrote {output}: {', '.join(f'{key} = {json.dumps(chosen[key])}' for key in chosen)}")
    for step in [*steps, f"next: {start_of(ranks)} {shlex.quote(str(output))}"]:
        report(step)


def write_jobs() -> None:
    """Write the folder ``jobs`` for the Python environment of this command."""
    if _JOBS.exists():
        raise InputError(f"{_JOBS}: exists already; call this in another folder")
    try:
        shutil.copytree(
            Path(__file__).parents[1] / "jobs", _JOBS, ignore=shutil.ignore_patterns("site.env")
        )
        script = _JOBS / "env.sh"
        text = script.read_text(encoding="utf-8")
        script.write_text(text.replace(_CHECKOUT_VENV, sys.prefix), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(_JOBS, ignore_errors=True)
        # `copytree` raises a list with the error of each file.
        reason = error.strerror or error.args[0][0][2]
        raise InputError(f"{_JOBS}: cannot be written ({reason})") from error
    report(f"wrote {_JOBS}")
    report(f"next: bash {_JOBS}/quickstart.sh")


def choose(path: Path) -> tuple[dict[str, Any], list[str], int]:
    """Return the keys to set for a store, the steps to take before training, and the ranks to use.

    Each rank has at least one part of the store and one core of this host.
    """
    cores = len(os.sched_getaffinity(0))
    if is_instance_store(path):
        with InstanceStore.open(path):
            return {"graph.store": str(path), "train.task": "programs"}, [], cores
    chosen: dict[str, Any] = {"graph.store": str(path)}
    steps = []
    with GraphStore.open(path) as store:
        if len(store.relations) > 1 or store.node_types:
            chosen["model.name"] = "rgcn"
            if len(store.relations) > _MANY_RELATIONS:
                chosen["model.num_bases"] = _MANY_RELATIONS
        if any(node_type.num_features == 0 for node_type in store.node_types):
            chosen["model.embeddings"] = True
        if not (store.has_features or store.node_types or store.all_fields):
            steps.append(f"{path} has no features: convert it with a table of nodes (--nodes)")
        elif not store.undirected:
            chosen["graph.undirected"] = chosen.get("model.name") != "rgcn"
        nodes = store.read_nodes(0, min(store.num_nodes, _NUM_INSPECTED))
        if _has_far_columns([nodes.features, *nodes.type_features]):
            chosen["graph.normalize_features"] = "standard"
        if store.has_graphs and not _labels_nodes(nodes):
            chosen["train.task"] = "graphs"
        if store.all_fields:
            chosen |= {"train.task": "fields", "model.dropout": 0.0}
            if store.fields:
                chosen["fields.targets"] = list(store.fields)
            else:
                chosen |= {"fields.edge_targets": [*store.edge_fields], **_OF_EDGES}
                # Reverse edges that training adds would have no fields.
                chosen.pop("graph.undirected", None)
        elif not store.has_labels and not store.has_graphs:
            chosen["train.task"] = "edges" if store.edge_labels else "links"
            read = (store.read_edge_data(nodes.start, nodes.stop, name) for name in store.relations)
            if store.edge_labels and _has_far_columns([data.features for data in read]):
                chosen["graph.normalize_edge_features"] = "standard"
        elif not store.has_split:
            steps.append(f"{path} has no split: hpcgnn split {path} --random-split 60,20,20")
        if store.num_parts == 1:
            steps.append(
                f"{path} is in one part, for one rank; for more, with that store: "
                f"hpcgnn partition {path} --parts {cores} -o {path.with_suffix(f'.{cores}.h5')}"
            )
        ranks = min(store.num_parts, cores)
    chosen.setdefault("exchange.method", "joint")
    return chosen, steps, ranks


def _has_far_columns(tables: list[FloatArray | None]) -> bool:
    return any(len(far_columns(table)) > 0 for table in tables if table is not None)


def _labels_nodes(nodes: NodeBlock) -> bool:
    """Return whether nodes of the same graph have different labels."""
    if nodes.graph is None or nodes.labels is None:
        return False
    _, first, inverse = np.unique(nodes.graph, return_index=True, return_inverse=True)
    return not np.array_equal(nodes.labels, nodes.labels[first][inverse])


def configuration(chosen: dict[str, Any], *, everything: bool) -> str:
    """Return TOML with the chosen keys, and the common keys, or `everything`, as comments."""
    lines = [
        "# Keys without # are set for this store, the others show their defaults. The command line",
        "# (section.key=value) overrides this file. hpcgnn train --keys lists all keys.",
    ]
    section = ""
    for key, default, meaning in describe_keys():
        if not (everything or key in COMMON or key in chosen):
            continue
        table, _, name = key.partition(".")
        if table != section:
            lines += ["", f"[{table}]"]
            section = table
        lines += wrap(meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        value = f"{name} = {json.dumps(chosen[key])}" if key in chosen else f"# {name} = {default}"
        lines += [value, ""]
    return "\n".join(lines) + "\n"
