"""Equal bits of losses, weights and predictions, however a graph is spread and its rows travel."""

from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from tests.support.examples import EXAMPLES
from tests.support.labelled_edges import ugly_edges
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.training import (
    MOVED,
    Run,
    lasting,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

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
MODES = {
    "numbers": ("graph.targets=TARGETS", "graph.normalize_features=standard"),
    "spectral": ("graph.structure=spectral", "graph.structure_columns=5"),
    "projection": ("graph.structure=projection", "graph.structure_columns=5"),
    "smoothed": ("correct_and_smooth.enabled=true", "correct_and_smooth.smooth_matrix=AD"),
    "smoothed labels": ("correct_and_smooth.enabled=true", "model.norm=batch"),
    "vectors": ("model.embeddings=true", "train.clip_norm=0.1", "train.weight_decay=0.01"),
}
QUICK = ("gcn", "gat", "rgcn", "gatedgcn", "gatv2", "transformer of edges", "rgat")
WAYS = (
    ("exchange.method=push",),
    ("exchange.method=joint", "exchange.schedule=sequential", "exchange.prefetch=1"),
    ("exchange.method=hierarchical", "exchange.schedule=sequential"),
    ("exchange.method=aware",),
    ("exchange.method=oblivious",),
)


def moved(name: str) -> bool:
    return name in MOVED


def assert_equal_bits(run: Run, other: Run) -> None:
    mine, theirs = run.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    rows = [
        [{name: value for name, value in lasting(row).items() if not moved(name)} for row in each]
        for each in (run.metrics, other.metrics)
    ]
    assert rows[0] == rows[1]
    predicted = other.predictions()
    for name, value in run.predictions().items():
        np.testing.assert_array_equal(value, predicted[name], err_msg=name)


@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=() if each in QUICK else (pytest.mark.slow,)) for each in MODELS],
)
def test_equal_bits(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    weighted = model in ("gcn", "gin")
    graph = make_graph(
        weighted=weighted,
        directed=not model.startswith("sage"),
        multi_label=model in ("rgcn", "sign"),
        num_nodes=97,
    )
    of_edges = model in EDGE_MODELS
    if model in ("rgcn", "hgt", "rgat") or of_edges:
        graph = graph.with_relations()
    store = write_store(comm, comm_tmp_path, graph, parts=8, edge_width=3 * of_edges)
    options = (
        f"model.name={model.partition(' ')[0]}",
        "train.reproducible=true",
        "train.epochs=2",
        "model.num_layers=3",
        *MODELS[model],
    )
    if comm.rank == 0:
        train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *options))
    comm.Barrier()
    alone = Run(comm_tmp_path / "alone", 0)
    # The quick models come by all exchanges over the numbers of ranks, the slow ones at each.
    pulls = of_edges or model == "rgat"
    ways = tuple(way for way in WAYS if not (pulls and way[0].endswith(("push", "joint"))))
    if model in QUICK:
        ways = ways[comm.size - 2 :: 2]
    if comm.size == 1:
        ways = (("run.threads=2",),)
    for place, way in enumerate(ways):
        replication = comm.size // (1 + place % 2) if comm.size % 2 == 0 else 1
        options_here = (*options, f"exchange.replication={replication}", *way)
        run = train(comm, make_config(store, comm_tmp_path / f"way{place}", *options_here))
        assert_equal_bits(run, alone)


@pytest.mark.parametrize("mode", MODES)
def test_equal_bits_of_modes(comm: MPI.Intracomm, comm_tmp_path: Path, mode: str) -> None:
    graph = make_graph(num_nodes=97, multi_label=mode == "smoothed labels")
    graph = graph.with_types() if mode == "vectors" else graph
    method = "empty second" if comm.size > 1 else "random"
    store = write_store(comm, comm_tmp_path, graph, method=method, parts=8)
    targets = comm_tmp_path / "targets.npy"
    if comm.rank == 0:
        numbers = np.random.default_rng(2).normal(3, 1e3, (97, 3))
        numbers[::7, 1] = np.nan
        np.save(targets, numbers)
    words = [word.replace("TARGETS", str(targets)) for word in MODES[mode]]
    options = ("train.reproducible=true", "train.epochs=3", *words)
    if comm.rank == 0:
        train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *options))
    comm.Barrier()
    alone = Run(comm_tmp_path / "alone", 0)
    for place, way in enumerate((("exchange.method=joint",), ("exchange.schedule=sequential",))):
        run = train(comm, make_config(store, comm_tmp_path / f"way{place}", *options, *way))
        assert_equal_bits(run, alone)
        smoothed = [each.summary["seeds"][0].get("smoothed") for each in (run, alone)]
        assert smoothed[0] == smoothed[1]


OBJECTIVES = {
    "classes of edges": ("model.name=sage", "model.dropout=0.3", "model.norm=batch"),
    "several of edges": ("model.name=gat", "model.heads=2", "model.hidden=6", "edges.width=4"),
    "numbers of edges": ("model.name=gine", "edges.hidden=9"),
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


def write_for(comm: MPI.Intracomm, folder: Path, objective: str) -> tuple[Path, list[str]]:
    """Write a store for an objective; return it, and the settings of its task."""
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


QUICK_OBJECTIVES = (
    "classes of edges",
    "links by mlp",
    "graphs by attention",
    "sampled, rgcn",
    "sampled by neighbours, gine",
    "graphs in batches",
)


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(each, marks=() if each in QUICK_OBJECTIVES else (pytest.mark.slow,))
        for each in OBJECTIVES
    ],
)
def test_equal_bits_of_objectives(comm: MPI.Intracomm, comm_tmp_path: Path, objective: str) -> None:
    store, words = write_for(comm, comm_tmp_path, objective)
    wide = len(objective) % 2
    words += [f"train.dtype={'float64' if wide else 'float32'}", "train.epochs=3"]
    words += [word for word in OBJECTIVES[objective] if word != "NUMBERS"]
    options = (*words, "train.reproducible=true")
    if comm.rank == 0:
        train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *options))
    comm.Barrier()
    alone = Run(comm_tmp_path / "alone", 0)
    for place, way in enumerate((("exchange.method=aware",), WAYS[2])):
        run = train(comm, make_config(store, comm_tmp_path / f"way{place}", *options, *way))
        assert_equal_bits(run, alone)
    usual = train(comm, make_config(store, comm_tmp_path / "usual", *words))
    # Weights of edges are rounded to 24 bits.
    within = 1e-6 if wide else 1e-4
    np.testing.assert_allclose(alone.column("train_loss"), usual.column("train_loss"), rtol=within)


@pytest.mark.parametrize("model", QUICK)
def test_equal_bits_where_a_rank_has_no_rows(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str
) -> None:
    graph = make_graph(num_nodes=40).with_relations()
    width = 3 * (model in EDGE_MODELS)
    parts = max(comm.size, 2)
    store = write_store(
        comm, comm_tmp_path, graph, method="empty second", parts=parts, edge_width=width
    )
    name = model.partition(" ")[0]
    options = (f"model.name={name}", "train.reproducible=true", "train.epochs=2", *MODELS[model])
    if comm.rank == 0:
        train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *options))
    comm.Barrier()
    run = train(comm, make_config(store, comm_tmp_path / "spread", *options))
    assert_equal_bits(run, Run(comm_tmp_path / "alone", 0))


@pytest.mark.quality
@pytest.mark.parametrize(
    "model",
    [
        "sage of edges",
        "gat of edges",
        "gatv2 of edges",
        "gatv2",
        "transformer of edges",
        "hgt",
        "rgat",
    ],
)
def test_learns_as_the_default_does(comm_tmp_path: Path, comm: MPI.Intracomm, model: str) -> None:
    width, graph = 3 * (model in EDGE_MODELS), make_graph(num_nodes=97).with_relations()
    store = write_store(comm, comm_tmp_path, graph, parts=4, edge_width=width)
    name = model.partition(" ")[0]
    options = (f"model.name={name}", *MODELS[model], "model.dropout=0", "train.epochs=5")
    losses = [
        train(
            comm, make_config(store, comm_tmp_path / word, *options, f"train.reproducible={word}")
        ).column("train_loss")
        for word in ("true", "false")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_predict_gives_the_same_bits(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(num_nodes=97), parts=4)
    options = ("model.name=gcn", "train.epochs=2", "train.reproducible=true")
    if comm.rank == 0:
        train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "run", *options))
    comm.Barrier()
    run = Run(comm_tmp_path / "run", 0)
    output = comm_tmp_path / "again.h5"
    predict_with(comm, run, monkeypatch, capsys)(output)
    with h5py.File(output) as file:
        np.testing.assert_array_equal(
            file["probabilities"][...], run.predictions()["probabilities"]
        )
