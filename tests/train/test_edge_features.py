"""Models that read edge features: equal for any number of ranks; invalid settings."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from tests.support import training
from tests.support.examples import EXAMPLES
from tests.support.planned import planned
from tests.support.training import MOVED, TIMES

WORDS = (
    "model.name=gine",
    "model.norm=batch",
    "model.dropout=0.3",
    "train.dtype=float64",
    "train.epochs=3",
)
EDGE_MODELS = {
    "meshgraphnet": ("model.options.maps=2",),
    "gatedgcn": (),
    "pna": ("model.norm=batch",),
    "nnconv": ("model.norm=layer", "model.options.inner=4"),
    "own_meshgraphnet:MeshNet": (),
}
SAMPLED = ("train.task=sampled", "model.norm=none")
ATTENTION = (*WORDS[1:], "model.edge_features=true", "model.heads=2", "model.hidden=8")


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def write(
    comm: MPI.Intracomm,
    directory: Path,
    widths: tuple[int, int] = (3, 3),
    dtype: type[np.floating[Any]] = np.float32,
) -> Path:
    """Write a graph of two relations with edge features in four parts or more, some empty."""
    path = directory / "edges.h5"
    directory.mkdir(exist_ok=True)
    if comm.rank == 0:
        path.write_bytes(written(widths, dtype, max(4, comm.size)))
    comm.Barrier()
    return path


@cache
def written(widths: tuple[int, int], dtype: type[np.floating[Any]], parts: int) -> bytes:
    graph = training.make_graph().with_relations()
    edges, data, rng = {}, {}, np.random.default_rng(6)
    for name, width in zip(("cites", "names"), widths, strict=True):
        rows, columns = graph.relations[name].nonzero()
        edges[name] = (columns, rows)
        if width:
            features = rng.normal(size=(len(rows), width)).astype(np.float16).astype(dtype)
            data[name] = EdgeData(features=features)
    part = rng.choice([0, 2, 3], len(graph.ids)).astype(np.int32)
    with TemporaryDirectory() as folder:
        plain, path = Path(folder, "plain.h5"), Path(folder, "edges.h5")
        store_from_arrays(
            plain,
            GraphArrays(
                name="edges",
                num_nodes=len(graph.ids),
                edges=edges,
                edge_data=data,
                features=graph.features,
                labels=graph.labels,
                split=graph.split,
            ),
        )
        with GraphStore.open(plain) as store:
            write_partitioned(store, path, Partition(part, parts), method="block", seed=0)
        return path.read_bytes()


def check(comm: MPI.Intracomm, directory: Path, words: tuple[str, ...]) -> None:
    """Compare the metrics of a run with those of one rank."""
    if "exchange.replication=2" in words and comm.size % 2:
        pytest.skip("replicas in pairs")
    store = write(comm, directory)
    together = training.train(comm, training.make_config(store, directory / "run", *words))
    single = [word for word in words if not word.startswith("exchange.")]
    alone = training.train_alone(comm, training.make_config(store, directory / "alone", *single))
    for mine, theirs in zip(together.metrics, alone.metrics, strict=True):
        for name, value in theirs.items():
            if name not in (*TIMES, *MOVED):
                assert mine[name] == pytest.approx(value, rel=1e-9), name
    first, *later = together.column("train_loss")
    assert first not in later


NARROW = {
    "gine": (),
    "pna": (),
    "gatedgcn": (),
    "sage": ("model.edge_features=true",),
    "gat": ("model.edge_features=true",),
}


@pytest.mark.parametrize("relations", ["['cites']", "['cites', 'names']"])
@pytest.mark.parametrize("model", NARROW)
def test_features_of_16_bits_are_as_the_same_ones_of_32(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, relations: str
) -> None:
    words = (f"model.name={model}", *NARROW[model], f"graph.relations={relations}")
    words += ("train.precision=bfloat16", "exchange.schedule=sequential", "train.epochs=2")
    found = []
    for dtype in (np.float16, np.float32):
        folder = comm_tmp_path / dtype.__name__
        store = write(comm, folder, dtype=dtype)
        run = training.train(comm, training.make_config(store, folder / "run", *words))
        found.append(run.column("train_loss"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("train.inductive=true", "model.norm=layer", "graph.relations=['names']"),
        ("train.task=links", "links.train=0.3", "model.norm=none"),
        ("exchange.replication=2",),
        ("exchange.method=hierarchical", "exchange.schedule=sequential"),
        ("exchange.method=oblivious", "exchange.replication=2", "model.norm=none"),
        (*SAMPLED, "sampling.subgraphs=2", "sampling.budget=40"),
        (*SAMPLED, "sampling.sampler=neighbour", "sampling.fan_outs=[3,2]"),
        ("train.task=links", "links.sampled=true", "links.train=0.3", "model.norm=none"),
    ],
    ids=[
        *("full", "inductive", "links", "replicated", "sequential", "oblivious"),
        *("subgraphs", "neighbours", "sampled links"),
    ],
)
def test_losses_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    check(comm, comm_tmp_path, (*WORDS, *more))


MODULE = ("model.name=pyg:torch_geometric.nn:GAT", "model.options.norm=batch_norm")


MODULES = (
    pytest.mark.skipif(find_spec("torch_geometric") is None, reason="needs torch_geometric"),
    # The function imports it.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
)


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            ("exchange.method=hierarchical", "exchange.schedule=sequential"), marks=MODULES
        ),
        pytest.param(("exchange.method=oblivious",), marks=MODULES),
    ],
    ids=["sequential", "oblivious"],
)
def test_modules_of_one_process_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    words = ("model.hidden=16", "model.dropout=0.1", *WORDS[3:])
    check(comm, comm_tmp_path, (*MODULE, *words, *more))


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", EDGE_MODELS)
@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
def test_networks_on_edges_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, numbers: bool
) -> None:
    words = [f"model.name={name}", *EDGE_MODELS[name], *WORDS[2:], "model.hidden=8"]
    if numbers:
        path = comm_tmp_path / "targets.npy"
        num_nodes = len(training.make_graph().ids)
        if comm.rank == 0:
            np.save(path, np.random.default_rng(3).normal(size=(num_nodes, 2)))
        words.append(f"graph.targets={path}")
    check(comm, comm_tmp_path, tuple(words))


@pytest.mark.parametrize("name", EDGE_MODELS)
def test_networks_on_edges_compute_what_the_loss_reaches(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    words = [f"model.name={name}", "train.dtype=float64", "train.epochs=2", "model.num_layers=3"]
    losses, store = [], write(comm, comm_tmp_path)
    for kind in ("false", "backward"):
        more = (*words, f"exchange.active_sets={kind}", "exchange.method=hierarchical")
        run = training.train(comm, training.make_config(store, comm_tmp_path / kind, *more))
        losses.append(run.column("train_loss"))
    np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("meshgraphnet", ("exchange.active_sets=true", "model.options.maps=1")),
        ("gatedgcn", ("exchange.schedule=sequential", "model.dropout=0.3")),
    ],
)
def test_states_that_are_made_again_have_equal_bits(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    words = [f"model.name={name}", "model.num_layers=4", "train.epochs=2", *more]
    found, store = [], write(comm, comm_tmp_path)
    for keep in ("always", "never"):
        given = (*words, f"exchange.keep_states={keep}")
        found.append(
            training.train(comm, training.make_config(store, comm_tmp_path / keep, *given))
        )
    kept, again = found
    assert kept.column("train_loss") == again.column("train_loss")
    found = again.tensors()
    for weights, value in kept.tensors().items():
        np.testing.assert_array_equal(value, found[weights], err_msg=weights)
    if comm.size > 1:
        assert kept.column("bytes_sent")[0] < again.column("bytes_sent")[0]


@pytest.mark.parametrize("name", EDGE_MODELS)
def test_networks_on_edges_go_on_where_they_stopped(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    store = write(comm, comm_tmp_path)
    words = [f"model.name={name}", *EDGE_MODELS[name], *WORDS[2:], "model.hidden=8"]
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    training.train(
        comm, training.make_config(store, comm_tmp_path / "run", *words, "train.epochs=1")
    )
    more = training.make_config(store, comm_tmp_path / "run", *words, "run.resume=must")
    resumed = training.train(comm, more)
    training.assert_same(resumed, whole)


@pytest.mark.parametrize(
    "more",
    [
        ("model.name=gat", "exchange.method=joint", "exchange.schedule=sequential"),
        ("model.name=gatv2", "exchange.method=push", "model.norm=layer"),
        ("model.name=transformer", "exchange.method=joint", "train.inductive=true",
         "model.norm=layer"),
        ("model.name=gat", "train.task=links", "links.train=0.3", "model.norm=none"),
        ("model.name=sage", "model.heads=1", "exchange.method=joint", "model.norm=none",
         "exchange.active_sets=true"),
        ("model.name=transformer", "exchange.replication=2", "model.edge_dropout=0.2"),
    ],
    ids=["gat", "gatv2", "inductive", "links", "messages", "replicated"],
)  # fmt: skip
def test_attention_does_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    check(comm, comm_tmp_path, (*ATTENTION, *more))


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        (*ATTENTION, "model.name=gat"),
        (*ATTENTION, "model.heads=1", "model.name=sage"),
    ],
    ids=["gine", "gat", "sage"],
)
def test_features_of_edges_matter(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    (comm_tmp_path / "zeros").mkdir(exist_ok=True)
    losses = []
    for directory, widths in ((comm_tmp_path, (3, 3)), (comm_tmp_path / "zeros", (2, 2))):
        store = write(comm, directory, widths)
        config = training.make_config(store, directory / "run", *words, "train.epochs=1")
        losses.append(training.train(comm, config).column("train_loss")[0])
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("widths", "words", "message"),
    [
        ((3, 0), (), "relation 'names' has none; convert with --edge-features"),
        ((3, 2), (), r"unequal numbers of edge features \(cites 3, names 2\)"),
        ((3, 3), ("graph.undirected=true",), "graph.undirected = true does not work with model.n"),
    ],
)
@pytest.mark.max_ranks(2)
def test_faults_are_one_line(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    widths: tuple[int, int],
    words: tuple[str, ...],
    message: str,
) -> None:
    store = write(comm, comm_tmp_path, widths)
    with pytest.raises(CollectiveInputError, match=message):
        training.train(comm, training.make_config(store, comm_tmp_path / "run", *WORDS, *words))


@pytest.mark.parametrize(
    "more",
    [
        ("exchange.method=hierarchical", "model.name=gatedgcn"),
        (
            "exchange.schedule=sequential",
            "exchange.prefetch=1",
            "model.name=meshgraphnet",
            "model.num_layers=3",
        ),
        ("exchange.method=oblivious", "exchange.active_sets=true", "model.name=pna"),
        ("exchange.wire=int8", "train.dtype=float32", "model.name=nnconv"),
        ("train.precision=bfloat16", "train.dtype=float32", "model.name=gine"),
        pytest.param((*MODULE, "model.dropout=0"), marks=MODULES),
    ],
    ids=["hierarchical", "sequential", "active", "int8", "bfloat16", "module"],
)
def test_planned_rows_and_bytes_are_those_sent(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    words = ("train.epochs=2", "train.evaluate_every=2", "run.save_predictions=false", *more)
    config = training.make_config(write(comm, comm_tmp_path), comm_tmp_path / "run", *words)
    run = training.train(comm, config)
    if comm.rank == 0:
        _, _, (_, epoch, evaluation) = planned(config, comm.size, None, 2)
        for name, counts in (("rows_sent", "rows"), ("bytes_sent", "bytes_out")):
            first, both = (
                int(sum(getattr(each, counts).sum() for each in parts))
                for parts in ((epoch,), (epoch, evaluation))
            )
            assert run.column(name) == [first, both]
    comm.Barrier()
