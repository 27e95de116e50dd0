"""Edge features from positions: equal to values by hand, for any number of ranks."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

import hpcgnn
from hpcgnn.comm import ProcessGrid
from hpcgnn.convert import convert
from hpcgnn.errors import CollectiveInputError
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.graph.read_edges import read_edge_rows_of
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.partition import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore, Split
from hpcgnn.train.run.saved_model import open_saved_model
from tests.support import training
from tests.support.planned import planned

BOX, WIDTH = np.array([0.0, 2.0, 1.5]), 2
RELATIVE = "graph.positions=relative"


def arrays() -> dict[str, np.ndarray]:
    graph, rng = training.make_graph(), np.random.default_rng(7)
    targets, sources = graph.adjacency.nonzero()
    codes = {"train": Split.TRAIN, "val": Split.VALID, "test": Split.TEST}
    masks = {name: (graph.split == code) & (graph.labels >= 0) for name, code in codes.items()}
    return {
        "src": sources,
        "dst": targets,
        "x": graph.features,
        "y": graph.labels,
        "positions": rng.uniform(0, 2, (len(graph.ids), 3)),
        "box": BOX,
        "edge_attr": rng.normal(size=(len(sources), WIDTH)).astype(np.float32),
        **{f"{name}_mask": mask for name, mask in masks.items()},
    }


def write(comm: MPI.Intracomm, folder: Path, **changes: np.ndarray | None) -> Path:
    """Write the graph in four parts or more, one of them empty."""
    path = folder / "mesh.h5"
    if comm.rank == 0:
        given = {name: each for name, each in (arrays() | changes).items() if each is not None}
        np.savez(folder / "mesh.npz", **given)
        convert(folder / "mesh.npz", folder / "plain.h5", format_name="npz")
        count = max(4, comm.size)
        used = np.delete(np.arange(count, dtype=np.int32), 1)
        part = np.random.default_rng(2).choice(used, len(given["x"]))
        with GraphStore.open(folder / "plain.h5") as store:
            write_partitioned(store, path, Partition(part, count), method="block", seed=0)
    comm.Barrier()
    return path


def by_hand() -> np.ndarray:
    """Return (E, 2 + 3 + 1) targets, first stored feature, steps and lengths, rows in order."""
    given = arrays()
    steps = given["positions"][given["src"]] - given["positions"][given["dst"]]
    images = np.array([[0, y, z] for y in (-1, 0, 1) for z in (-1, 0, 1)]) * BOX
    near = steps[:, None] + images
    nearest = np.square(near).sum(2).argmin(1)
    steps = near[np.arange(len(near)), nearest]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    columns = [given["dst"][:, None], given["edge_attr"], steps, lengths]
    columns[2:] = [each / lengths.mean() for each in columns[2:]]
    return in_order(np.concatenate(columns, axis=1))


def in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def test_features_are_those_of_the_nearest_images(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write(comm, comm_tmp_path)
    sections = {"graph": {"positions": "relative"}, "train": {"dtype": "float64"}}
    with hpcgnn.open_graph(comm, store, model={"name": "pna"}, **sections) as graph:
        edges = graph.view.edges
        targets = graph.view.node_ids[edges.targets.numpy()]
        mine = np.concatenate([targets[:, None], edges.features.numpy()], axis=1)
    found = in_order(np.concatenate(comm.allgather(mine)))
    np.testing.assert_allclose(found, by_hand(), rtol=1e-12, atol=1e-13)


def test_another_graph_is_measured_by_the_length_of_training(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    words = ("model.name=gine", RELATIVE, "train.dtype=float64", "train.epochs=1")
    store = write(comm, comm_tmp_path)
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *words))
    write(comm, comm_tmp_path, positions=2 * arrays()["positions"], box=2 * BOX)
    saved = open_saved_model(run.path, None, str(store))
    with (
        ProcessGrid(comm) as grid,
        StoredRows.opened(Context(grid, saved.config, scales=saved.scales()), ()) as stored,
    ):
        edges = read_edge_rows_of(stored)
        ids = stored.store.read_original_id(stored.row_map.start, stored.row_map.stop)
    mine = np.concatenate([ids[edges.targets][:, None], edges.features], axis=1)
    expected = by_hand() * [1, *[1] * WIDTH, *[2] * 4]
    found = in_order(np.concatenate(comm.allgather(mine)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.several_ranks
def test_reproducible_features_have_equal_bits(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("model.name=gine", RELATIVE, "train.dtype=float64", "train.reproducible=true")
    config = training.make_config(write(comm, comm_tmp_path), comm_tmp_path / "run", *words)
    points = np.random.default_rng(1)

    def features(ranks: MPI.Intracomm) -> np.ndarray:
        with (
            ProcessGrid(ranks) as grid,
            computing_as(grid, config),
            StoredRows.opened(Context(grid, config), ()) as stored,
        ):
            return np.concatenate(ranks.allgather(read_edge_rows_of(stored).features))

    # The order of a sum changes its last bit for some positions only.
    for _ in range(8):
        drawn = points.uniform(0, 2, (len(training.make_graph().ids), 3))
        monkeypatch.setattr(GraphStore, "read_positions", lambda _, a, b, rows=drawn: rows[a:b])
        np.testing.assert_array_equal(features(comm), features(MPI.COMM_SELF))


CASES = {
    "meshgraphnet": ("model.options.maps=1",),
    "gat": ("model.edge_features=true", "exchange.method=joint"),
    "sage": ("model.edge_features=true", "train.inductive=true"),
    "gine": ("train.task=sampled", "sampling.subgraphs=2", "sampling.budget=40"),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", CASES)
def test_losses_do_not_depend_on_ranks(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    bare = {"edge_attr": None} if name == "meshgraphnet" else {}
    store = write(comm, comm_tmp_path, **bare)
    words = [f"model.name={name}", RELATIVE, "train.dtype=float64", "train.epochs=3", *CASES[name]]
    config = training.make_config(store, comm_tmp_path / "run", *words, "train.evaluate_every=3")
    run = training.train(comm, config)
    single = [word for word in words if not word.startswith("exchange.")]
    config = training.make_config(store, comm_tmp_path / "alone", *single)
    expected = training.train_alone(comm, config).column("train_loss")
    np.testing.assert_allclose(run.column("train_loss"), expected, rtol=1e-9)
    if name == "meshgraphnet" and comm.rank == 0:
        _, _, (_, epoch, _) = planned(config, comm.size, None, 3)
        assert run.column("rows_sent")[0] == epoch.rows.sum()


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        (
            {"positions": None, "box": None},
            ("model.name=gine",),
            "^graph.positions = 'relative' does not work with a graph without positions .*: it "
            "has none; .*convert with --positions",
        ),
        (
            {},
            ("model.name=gcn",),
            "with model.name = 'gcn': it reads no features of edges; set graph.pos",
        ),
        ({}, ("model.name=gat",), "nothing reads features of edges; .*model.edge_features = true"),
    ],
)
def test_faults_are_one_line(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    changes: dict[str, np.ndarray | None],
    words: tuple[str, ...],
    message: str,
) -> None:
    store = write(comm, comm_tmp_path, **changes)
    config = training.make_config(store, comm_tmp_path / "run", RELATIVE, *words)
    with pytest.raises(CollectiveInputError, match=message):
        training.train(comm, config)
