"""Training on sparse features gives the losses of dense ones, for any number of ranks."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import hpcgnn
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from tests.support.training import load_config, train

N, F = 157, 83
SAMPLED = ("train.task=sampled", "sampling.budget=30")
MODELS = ("gcn", "sage", "appnp", "gcnii")


@cache
def written() -> dict[str, bytes]:
    """Return the files of the graph with sparse and with dense features; part 2 has no nodes."""
    rng, found = np.random.default_rng(3), {}
    features = sp.random(N, F, 0.05, "csr", np.float64, rng).toarray()
    features[7] = 0
    ends, labels = rng.integers(0, N - 9, (2, 900)), rng.integers(0, 4, N)
    of_edges = EdgeData(rng.normal(size=(900, 2)).astype(np.float32))
    part = Partition(np.delete(np.arange(9, dtype=np.int32), 2)[rng.integers(0, 8, N)], 9)
    for name in ("sparse", "dense"):
        arrays = GraphArrays(
            name="words",
            num_nodes=N,
            edges={"": (ends[0], ends[1])},
            edge_data={"": of_edges},
            features=features,
            sparse_features=name == "sparse",
            labels=labels,
            split=np.arange(N) % 3 + 1,
        )
        with TemporaryDirectory() as folder:
            whole, path = Path(folder, "whole.h5"), Path(folder, "parts.h5")
            store_from_arrays(whole, arrays)
            with GraphStore.open(whole) as store:
                write_partitioned(store, path, part, method="block", seed=0)
            found[name] = path.read_bytes()
    return found


@pytest.fixture
def stores(comm: MPI.Intracomm, comm_tmp_path: Path) -> dict[str, Path]:
    """The graph with sparse features and with dense ones, in parts, one of them empty."""
    paths = {name: comm_tmp_path / f"{name}.h5" for name in ("sparse", "dense")}
    for name, path in paths.items() if comm.rank == 0 else ():
        path.write_bytes(written()[name])
    comm.Barrier()
    return paths


def settings(store: Path, folder: Path, *more: str) -> list[str]:
    return [
        f"graph.store={store}",
        f"run.dir={folder}",
        "model.hidden=8",
        "train.dtype=float64",
        "train.epochs=2",
        "run.threads=1",
        "trace.enabled=false",
        *more,
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "more",
    [
        ("model.dropout=0",),
        ("model.input_dropout=0.4", "model.dropout=0.3"),
        ("graph.normalize_features=row", "exchange.active_sets=true"),
        ("graph.normalize_features=l2", "exchange.schedule=sequential", "train.inductive=true"),
    ],
    ids=["plain", "dropout", "active sets", "inductive"],
)
def test_losses_are_those_of_dense_features(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    stores: dict[str, Path],
    model: str,
    more: tuple[str, ...],
) -> None:
    runs = []
    for number, (store, kept) in enumerate(
        [("dense", "never"), ("sparse", "auto"), ("dense", "always"), ("sparse", "never")]
    ):
        words = settings(
            stores[store], comm_tmp_path / f"run{number}", f"model.name={model}", *more
        )
        runs.append(train(comm, load_config(None, [*words, f"graph.sparse_features={kept}"])))
    if comm.rank > 0:
        return
    dense, *others = runs
    assert len(set(dense.column("train_loss"))) == 2
    for run in others:
        for name in ("train_loss", "valid_loss"):
            assert run.column(name) == pytest.approx(dense.column(name), rel=1e-10, abs=0)
        mine, theirs = run.predictions(), dense.predictions()
        for name, rows in theirs.items():
            np.testing.assert_allclose(mine[name], rows, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "words",
    [
        ("gat", "model.heads=2", "model.input_dropout=0.4"),
        ("gatv2", "exchange.schedule=sequential"),
        # The map of all relations is narrower than the features, and wider.
        ("rgcn", "model.num_bases=2"),
        ("rgcn", "model.hidden=64"),
        ("rgat", "model.heads=2"),
        ("mixhop", "exchange.active_sets=true", "model.residual=true"),
        ("gin", "model.num_layers=1", "model.input_dropout=0.4"),
        ("gine", "model.hidden=4"),
        ("nnconv", "model.hidden=4"),
        ("pna", "model.hidden=4"),
        ("gatedgcn", "model.num_layers=1"),
        ("meshgraphnet", "model.num_layers=1"),
        ("sign", "exchange.active_sets=true"),
        ("transformer", "train.label_augmentation=0.5"),
        ("hgt", "graph.structure=degree"),
        ("sage", "model.edge_features=true", "train.label_augmentation=0.5"),
        ("gcn", *SAMPLED, "sampling.sampler=node", "sampling.subgraphs=3"),
        ("rgcn", *SAMPLED, "sampling.sampler=neighbour", "sampling.fan_outs=[3,3]"),
        ("gat", *SAMPLED, "sampling.topology=partitioned", "model.input_dropout=0.4"),
        ("gin", "train.task=links", "links.sampled=true", "sampling.budget=60"),
    ],
    ids=lambda words: " ".join(word.partition("=")[2] or word for word in words[:3]),
)
def test_any_model_reads_them(
    comm: MPI.Intracomm, comm_tmp_path: Path, stores: dict[str, Path], words: tuple[str, ...]
) -> None:
    dense, sparse = (
        train(
            comm,
            load_config(
                None,
                settings(stores[kind], comm_tmp_path / kind, f"model.name={words[0]}", *words[1:]),
            ),
        )
        for kind in ("dense", "sparse")
    )
    if comm.rank == 0:
        for name in ("train_loss", "valid_loss"):
            assert sparse.column(name) == pytest.approx(dense.column(name), rel=1e-9, abs=0)
        mine, theirs = sparse.predictions(), dense.predictions()
        for name in {"probabilities", "embeddings"} & {*theirs}:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("store", "more", "is_sparse"),
    [
        ("sparse", (), True),
        ("dense", (), False),
        ("dense", ("graph.sparse_features=always",), True),
        ("sparse", ("graph.sparse_features=never",), False),
        ("sparse", ("model.name=gat",), True),
        ("sparse", ("graph.normalize_features=standard",), False),
        ("sparse", ("graph.structure=degree",), True),
        ("sparse", ("train.reproducible=true", "train.dtype=float32"), True),
        ("sparse", ("exchange.keep_products=always",), False),
    ],
)
def test_what_is_chosen(
    comm: MPI.Intracomm,
    stores: dict[str, Path],
    store: str,
    more: tuple[str, ...],
    is_sparse: bool,
) -> None:
    config = load_config(None, settings(stores[store], Path("none"), "model.name=gcn", *more))
    for taken in (False, True):
        with ProcessGrid(comm) as grid:
            graph = load_graph(Context(grid, config, takes_sparse=taken))
            kind = type(graph.features).__name__
            assert kind == ("SparseFeatures" if is_sparse and taken else "Tensor")
            assert tuple(graph.features.shape) == (
                graph.row_map.num_local,
                F + 2 * ("graph.structure=degree" in more),
            )


def test_loops_of_ones_own_read_sparse_rows(comm: MPI.Intracomm, stores: dict[str, Path]) -> None:
    totals = []
    for name, kind in (("sparse", "SparseFeatures"), ("dense", "Tensor")):
        how = {"sparse_features": "always" if name == "sparse" else "never"}
        with hpcgnn.open_graph(
            comm, str(stores[name]), graph=how, model={"name": "gcn"}, train={"dtype": "float64"}
        ) as graph:
            assert type(graph.features).__name__ == kind
            model = graph.make_model(1)
            loss = graph.loss(model(graph.view, graph.features, None))
            loss.backward()
            hpcgnn.sum_gradients(graph, model)
            first = next(model.parameters()).grad
            assert first is not None
            totals.append((graph.total(loss), first.clone()))
    assert totals[0][0] == pytest.approx(totals[1][0], rel=1e-10)
    torch.testing.assert_close(totals[0][1], totals[1][1], rtol=1e-9, atol=1e-13)
    how = {"sparse_features": "always"}
    with (
        hpcgnn.open_graph(comm, str(stores["sparse"]), graph=how, aggregations=["messages"]) as own,
        pytest.raises(InputError, match="modules read dense rows"),
    ):
        own.data  # noqa: B018


def test_types_keep_theirs_in_samples(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    types = rng.integers(0, 3, N)
    counts, ends = np.bincount(types), rng.integers(0, N, (2, 800))
    tables = {
        "wide": sp.random(int(counts[0]), 40, 0.1, "csr", np.float32, rng).toarray(),
        "bare": None,
        "dense": sp.random(int(counts[2]), 20, 0.2, "csr", np.float32, rng).toarray(),
    }
    arrays = GraphArrays(
        name="types",
        num_nodes=N,
        edges={"": (ends[0], ends[1])},
        types=types,
        type_features=tables,
        labels=rng.integers(0, 3, N),
        split=np.arange(N) % 3 + 1,
    )
    if comm.rank == 0:
        count = max(4, comm.size)
        part = Partition(rng.integers(0, count, N).astype(np.int32), count)
        store_from_arrays(comm_tmp_path / "whole.h5", arrays)
        with GraphStore.open(comm_tmp_path / "whole.h5") as store:
            write_partitioned(store, comm_tmp_path / "t.h5", part, method="block", seed=0)
    comm.Barrier()
    for name, words in {
        "shared": (*SAMPLED, "sampling.subgraphs=3", "train.label_augmentation=0.5"),
        "parts": (*SAMPLED, "sampling.topology=partitioned", "model.embeddings=true"),
    }.items():
        runs = [
            train(
                comm,
                load_config(
                    None,
                    settings(
                        comm_tmp_path / "t.h5",
                        comm_tmp_path / f"{name}-{kept}",
                        "model.name=sage",
                        f"graph.sparse_features={kept}",
                        *words,
                    ),
                ),
            )
            for kept in ("never", "always")
        ]
        dense, sparse = (run.column("train_loss") for run in runs)
        assert len(set(dense)) == 2
        assert sparse == pytest.approx(dense, rel=1e-10, abs=0)
