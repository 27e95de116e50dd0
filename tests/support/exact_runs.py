"""Reproducible runs of every model, mode and objective: stores, settings, differences of bits."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np

from tests.support.labelled_edges import ugly_edges
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.series import planted, with_holes, write_series
from tests.support.training import MOVED, Run, lasting, make_graph, write_store

MODELS = {
    "gcn": ("model.dropout=0.3", "train.clip_norm=0.5", "train.label_augmentation=0.5"),
    "sage": ("model.norm=batch", "model.dropout=0.3", "model.residual=true"),
    "gin": ("model.norm=graph", "model.jumping=concat", "model.activation=gelu"),
    "rgcn": ("model.norm=batch", "model.dropout=0.3", "model.num_bases=2"),
    "mixhop": ("model.hidden=6", "model.norm=batch", "train.label_smoothing=0.1"),
    "gat": ("model.heads=2", "model.hidden=6", "model.dropout=0.2", "model.activation=elu"),
    "gcnii": ("model.norm=batch", "train.optimizer=adamw"),
    "sign": ("model.dropout=0.3",),
    "gatv2": ("model.heads=2", "model.hidden=6", "model.dropout=0.2", "model.norm=layer"),
    "transformer": ("model.heads=2", "model.hidden=6", "model.options.gate=true"),
    "hgt": ("model.heads=2", "model.hidden=6", "model.dropout=0.2", "model.norm=layer"),
    "rgat": ("model.heads=2", "model.hidden=6", "model.norm=batch", "model.activation=gelu"),
    "appnp": ("model.hops=3", "exchange.active_sets=false"),
}
EDGE_MODELS = {
    "gine": ("model.norm=batch", "model.dropout=0.3", "model.residual=true"),
    "nnconv": ("model.norm=layer", "model.options.inner=4"),
    "pna": ("model.norm=batch", "model.activation=elu"),
    "gatedgcn": ("model.dropout=0.2",),
    "sage of edges": ("model.edge_features=true", "model.norm=batch"),
    "gat of edges": ("model.edge_features=true", "model.heads=2", "model.hidden=6"),
    "gatv2 of edges": ("model.edge_features=true", "model.heads=2", "model.hidden=6"),
    "transformer of edges": ("model.edge_features=true", "model.heads=2", "model.hidden=6"),
    "meshgraphnet": ("model.options.maps=2", "model.activation=elu"),
    "own_meshgraphnet:MeshNet": ("exchange.keep_states=never",),
}
MODELS |= EDGE_MODELS
SMOOTHED = tuple(
    f"correct_and_smooth.{each}" for each in ("enabled=true", "correct_steps=5", "smooth_steps=5")
)
MODES = {
    "numbers": ("graph.targets=TARGETS", "graph.normalize_features=standard"),
    "spectral": ("graph.structure=spectral", "graph.structure_columns=5"),
    "projection": ("graph.structure=projection", "graph.structure_columns=5"),
    "smoothed": (*SMOOTHED, "correct_and_smooth.smooth_matrix=AD"),
    "smoothed labels": (*SMOOTHED, "model.norm=batch"),
    "vectors": ("model.embeddings=true", "train.clip_norm=0.1", "train.weight_decay=0.01"),
}
OBJECTIVES = {
    "classes of edges": ("model.name=sage", "model.dropout=0.3", "model.norm=batch"),
    "several of edges": ("model.name=gat", "model.heads=2", "model.hidden=6", "edges.width=4"),
    "numbers of edges": (
        "model.name=gine",
        "edges.hidden=9",
        "graph.normalize_edge_features=standard",
    ),
    "links by dot": ("model.name=gcn", "links.negatives=batch", "links.ranking=all"),
    "links by distmult": ("model.name=rgcn", "links.scorer=distmult", "links.loss=margin"),
    "links by complex": ("links.scorer=complex", "links.width=6", "links.loss=cross_entropy"),
    "links by mlp": ("model.name=gat", "model.hidden=6", "links.scorer=mlp", "model.dropout=0.2"),
    "graphs by mean": ("model.name=gin", "graphs.batch=0", "model.dropout=0.3"),
    "graphs by sum": ("model.name=gcn", "graphs.batch=0", "graphs.readout=sum", "NUMBERS"),
    "graphs by max": ("model.name=sage", "graphs.batch=0", "graphs.readout=max"),
    "graphs by attention": ("model.name=gat", "graphs.batch=0", "graphs.readout=attention"),
}
WALKS = ("sampling.sampler=walk", "sampling.budget=30", "sampling.subgraphs=5")
NEIGHBOURS = (
    "sampling.sampler=neighbour",
    "sampling.budget=20",
    "sampling.fan_outs=[3,4]",
    "sampling.subgraphs=5",
)
OBJECTIVES |= {
    "sampled": (*WALKS, "model.dropout=0.3", "model.norm=batch", "sampling.estimator=ratio"),
    "sampled, gat": (*WALKS, "model.name=gat", "model.heads=2", "model.hidden=6"),
    "sampled, rgcn": (*WALKS, "model.name=rgcn", "sampling.coverage=0"),
    "sampled, gine": (*WALKS, "model.name=gine", "model.norm=layer"),
    "sampled by neighbours": (*NEIGHBOURS, "model.name=gcn", "model.norm=batch"),
    "sampled by neighbours, gatv2": (*NEIGHBOURS, "model.name=gatv2", "model.dropout=0.2"),
    "sampled by neighbours, gine": (*NEIGHBOURS, "model.name=gine", "model.norm=graph"),
    "sampled, hgt": (*WALKS, "model.name=hgt", "model.heads=2", "model.hidden=6"),
    "sampled by neighbours, rgat": (*NEIGHBOURS, "model.name=rgat", "model.hidden=6"),
    "numbers of sampled edges": (*WALKS, "model.name=transformer", "edges.sampled=true"),
    "classes of sampled edges": (*NEIGHBOURS, "model.name=rgcn", "edges.sampled=true"),
    "links sampled": (*WALKS, "links.sampled=true", "links.scorer=mlp"),
    "links sampled by neighbours": (
        *NEIGHBOURS,
        "model.name=gat",
        "links.sampled=true",
        "links.scorer=distmult",
        "links.negatives=batch",
    ),
    "graphs in batches": ("model.name=gat", "graphs.batch=7", "model.norm=batch"),
    "graphs in batches, gine": ("model.name=gine", "graphs.batch=7", "graphs.readout=attention"),
}


JOINED = {
    "full+links+edges": ("model.name=gcn", "model.norm=batch", "train.task_weights=[1, 0.5, 2]"),
    "full+edges": ("model.name=gatv2", "model.heads=2", "model.hidden=6", "model.dropout=0.2"),
    "full+links": ("model.name=rgcn", "links.scorer=distmult"),
}
FIELDS = {
    "fields": ("fields.unroll=2", "fields.noise=0.1", "fields.predict=difference"),
    "fields, sage": ("model.name=sage", "fields.batch=2", "fields.fixed=feature:1"),
    "fields, gat": ("model.name=gat", "model.hidden=6", "model.num_layers=2"),
}


def write_model(
    comm: MPI.Intracomm, folder: Path, model: str, num_nodes: int = 97
) -> tuple[Path, list[str]]:
    """Write a store in 8 parts for a model of `MODELS`; return it, and the settings."""
    of_edges = model in EDGE_MODELS
    graph = make_graph(
        weighted=model in ("gcn", "gin"),
        directed=not model.startswith("sage"),
        multi_label=model in ("rgcn", "sign"),
        num_nodes=num_nodes,
    )
    if model in ("rgcn", "hgt", "rgat") or of_edges:
        graph = graph.with_relations()
    store = write_store(comm, folder, graph, parts=8, edge_width=3 * of_edges)
    name = model.partition(" ")[0]
    return store, [f"model.name={name}", "model.num_layers=3", *MODELS[model]]


def write_mode(
    comm: MPI.Intracomm, folder: Path, mode: str, num_nodes: int = 97
) -> tuple[Path, list[str]]:
    """Write a store in 8 parts, one empty, for a mode of `MODES`; return it, and the settings."""
    graph = make_graph(num_nodes=num_nodes, multi_label=mode == "smoothed labels")
    graph = graph.with_types() if mode == "vectors" else graph
    store = write_store(comm, folder, graph, method="empty second", parts=8)
    targets = folder / "targets.npy"
    if comm.rank == 0:
        numbers = np.random.default_rng(2).normal(3, 1e3, (num_nodes, 3))
        numbers[::7, 1] = np.nan
        np.save(targets, numbers)
    return store, [word.replace("TARGETS", str(targets)) for word in MODES[mode]]


def write_joined(comm: MPI.Intracomm, folder: Path, task: str) -> tuple[Path, list[str]]:
    """Write a store in 8 parts for the tasks of `JOINED`; return it, and the settings."""
    rng, graph = np.random.default_rng(4), ugly_edges("classes", relations=True)
    labels = rng.integers(-1, 2, graph.num_nodes).astype(np.int32)
    split = rng.integers(0, 4, graph.num_nodes).astype(np.uint8)
    store = replace(graph, node_labels=labels, node_split=split).write(comm, folder, parts=8)
    return store, [f"train.task={task}", "links.train=0.3", *JOINED[task]]


def write_fields(comm: MPI.Intracomm, folder: Path, name: str) -> tuple[Path, list[str]]:
    """Write a store of fields in 8 parts for `FIELDS`; return it, and the settings."""
    store = write_series(comm, folder, with_holes(planted()), parts=8)
    words = ("train.task=fields", "fields.targets=u", "fields.valid=0.25", "fields.test=0.25")
    return store, [*words, "fields.evaluated=4", *FIELDS[name]]


def write_objective(comm: MPI.Intracomm, folder: Path, objective: str) -> tuple[Path, list[str]]:
    """Write a store for an objective of `OBJECTIVES`; return it, and the settings."""
    store, words = _of_task(comm, folder, objective)
    words.append(f"train.dtype={'float64' if len(objective) % 2 else 'float32'}")
    return store, words + [word for word in OBJECTIVES[objective] if word != "NUMBERS"]


def _of_task(comm: MPI.Intracomm, folder: Path, objective: str) -> tuple[Path, list[str]]:
    task = next(t for t in ("sampled,", "edges", "links", "graphs", "sampled") if t in objective)
    task = task.strip(",")
    words = [f"train.task={task}"]
    if task == "edges":
        graph = ugly_edges(objective.split()[0], undirected="several" in objective, relations=True)
        return graph.write(comm, folder, parts=8), words
    if task == "links":
        graph = make_graph(num_nodes=97, weighted="gat" not in OBJECTIVES[objective][0])
        share = ("links.train=0.3", "links.valid=0.2", "links.test=0.2", "links.ranked=20")
        return write_store(comm, folder, graph.with_relations(), parts=8), [*words, *share]
    if task == "sampled":
        graph, width = make_graph(num_nodes=97).with_relations(), 3 * ("gine" in objective)
        return write_store(comm, folder, graph, parts=8, edge_width=width), words
    numbers = [f"graph.targets={folder / 'targets.npy'}"] * ("NUMBERS" in OBJECTIVES[objective])
    many = write_graphs(comm, folder, make_graphs(), parts=8, edge_features="gine" in objective)
    return many, [*words, *numbers]


def differences(run: Run, other: Run) -> list[str]:
    """Return the differences between two runs, in a few words; none if all bits are equal."""
    found, kinds = [], ("tensors", "predictions")
    pairs = [(run.tensors(), other.tensors()), (_predictions(run), _predictions(other))]
    for kind, (mine, theirs) in zip(kinds, pairs, strict=True):
        names = sorted(mine.keys() | theirs.keys())
        found += [
            f"{kind} {name}" for name in names if not _equal(mine.get(name), theirs.get(name))
        ]
    rows = [[_told(row) for row in each.metrics] for each in (run, other)]
    found += [f"epoch {n}" for n, pair in enumerate(zip(*rows, strict=True)) if pair[0] != pair[1]]
    smoothed = [[seed.get("smoothed") for seed in each.summary["seeds"]] for each in (run, other)]
    return found + ["smoothed scores"] * (smoothed[0] != smoothed[1])


def _predictions(run: Run) -> dict[str, np.ndarray]:
    """Return the numbers in all prediction files: one for each task, none for fields."""
    found = {}
    for path in run.path.glob("predictions*.h5"):
        with h5py.File(path) as file:
            found |= {f"{path.stem} {name}": file[name][...] for name in file}
    return found


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Tell whether two arrays have the same bytes, including signs of zeros and kinds of NaN."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return (
        one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    )


def _told(row: dict[str, object]) -> str:
    """Return a line of metrics without values that depend on ranks: times and traffic."""
    return str({key: value for key, value in lasting(row).items() if key not in MOVED})
