"""Faulty input gives the same one-line error on every rank, and earlier results stay intact."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from tests.support.training import (
    Graph,
    assert_same,
    make_config,
    make_graph,
    train,
    write_store,
)
from tests.support.training_oracle import assert_reference

Change = Callable[[h5py.File], None]


def change_store(path: Path, change: Change) -> None:
    """Change the file like a faulty tool, without updating the recorded checksums."""
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        change(file)


def flip_byte(path: Path, dataset: str) -> None:
    with h5py.File(path) as file:
        place = file[dataset].id.get_chunk_info(0).byte_offset + 9
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def put(name: str, row: int, value: float) -> Callable[[Path], None]:
    """Return a change of one row; the last row is on the last rank."""

    def change(file: h5py.File) -> None:
        file[name][row] = value

    return lambda path: change_store(path, change)


def attribute(name: str, value: Any) -> Callable[[Path], None]:
    return lambda path: change_store(path, lambda file: file.attrs.__setitem__(name, value))


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, r"store.h5: cannot be opened \(No such file"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:3000]), r"store.h5: "),
    "not HDF5": (lambda path: path.write_text("a graph"), r"store.h5: is not an HDF5 file"),
    "other version": (attribute("format_version", 9), r"store.h5: .*version"),
    "flipped byte": (lambda path: flip_byte(path, "/nodes/features"), r"store.h5: /nodes/features"),
    "flipped index": (
        lambda path: flip_byte(path, "/adjacency/indices"),
        r"store.h5: /adjacency/indices",
    ),
    "NaN": (
        put("/nodes/features", -1, np.nan),
        r"store.h5: /nodes/features: node 60 has the value nan",
    ),
    "infinite": (
        put("/nodes/features", 0, np.inf),
        r"store.h5: /nodes/features: node 0 has the value inf",
    ),
    "label": (
        put("/nodes/labels", -1, 4),
        r"store.h5: /nodes/labels: node 60 has label 4, outside",
    ),
    "split": (put("/nodes/split", -1, 9), r"store.h5: /nodes/split: node 60 has the split value 9"),
    "column": (put("/adjacency/indices", -1, 61), r"store.h5: /adjacency/indices: .*61"),
}


def refuse(comm: MPI.Intracomm, store: Path, run: Path, message: str, *settings: str) -> None:
    """Require that a fresh start fails with `message` on every rank."""
    config = make_config(store, run, "run.resume=never", "train.epochs=2", *settings)
    with pytest.raises(CollectiveInputError, match=message) as caught:
        train(comm, config)
    assert "\n" not in str(caught.value)
    assert len(set(comm.allgather(str(caught.value)))) == 1


def test_damaged_stores(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    good = write_store(comm, comm_tmp_path, make_graph())
    earlier = train(comm, make_config(good, comm_tmp_path / "run", "train.epochs=1"))
    comm.Barrier()
    files = {path: path.read_bytes() for path in earlier.path.rglob("[!.]*") if path.is_file()}
    # Only the log reports the fault.
    del files[earlier.path / "log.txt"]
    assert len(files) >= 8
    for name, (spoil, message) in FAULTS.items():
        store = comm_tmp_path / name / "store.h5"
        if comm.rank == 0:
            store.parent.mkdir()
            store.write_bytes(good.read_bytes())
            spoil(store)
        comm.Barrier()
        refuse(comm, store, earlier.path, message)
        comm.Barrier()
        assert {path: path.read_bytes() for path in files} == files, name
        assert [path.name for path in earlier.path.glob(".*")] == [".lock"]


def without(graph: Graph, split: int) -> Graph:
    return replace(graph, split=np.where(graph.split == split, 0, graph.split).astype(np.uint8))


GAT = ("model.name=gat", "model.heads=2", "model.hidden=8")
UNFIT: dict[str, tuple[Graph, tuple[str, ...], str]] = {
    "no training nodes": (without(make_graph(), 1), (), r"no labelled node is in the training"),
    "nothing to be patient about": (
        without(make_graph(), 2),
        ("train.patience=3",),
        r"train.patience = 3, but .* no labelled validation node",
    ),
    "too large": (
        replace(make_graph(), features=make_graph().features.astype(np.float64) * 1e300),
        (),
        r"too large for train.dtype = 'float32'",
    ),
    "relation": (make_graph(), ("graph.relations=['cites']",), r"no relation 'cites'"),
    "diverging": (
        make_graph(),
        ("train.optimizer=sgd", "train.learning_rate=1e30", "train.epochs=5"),
        r"training diverges in epoch [01] of seed 1: .*; lower train.learning_rate",
    ),
    "two bits of states": (make_graph(), (*GAT, "exchange.wire=int8/int2"), r"attention .* 2 bits"),
    "sums of states": (
        make_graph(),
        (*GAT, "exchange.method=hierarchical_joint"),
        r"does not work with model\.name = 'gat': attention pushes states",
    ),
    "replication": (make_graph(), ("exchange.replication=7",), r"replication 7 does not divide"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_graphs_that_do_not_fit(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    graph, settings, message = UNFIT[name]
    store = write_store(comm, comm_tmp_path, graph)
    refuse(comm, store, comm_tmp_path / "run", message, *settings)


def test_missing_node_data(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    from hpcgnn.storage import GraphArrays, store_from_arrays

    graph = make_graph()
    data = {"features": graph.features, "labels": graph.labels, "split": graph.split}
    rows, columns = graph.adjacency.nonzero()
    remedies = {"features": "hpcgnn convert --nodes", "labels": "column `label`"}
    remedies["split"] = r"hpcgnn split .*no-split\.h5 --random-split"
    for field, remedy in remedies.items():
        store = comm_tmp_path / f"no-{field}.h5"
        if comm.rank == 0:
            rest = {name: array for name, array in data.items() if name != field}
            edges = {"": (columns, rows)}
            store_from_arrays(store, GraphArrays(name="bare", num_nodes=61, edges=edges, **rest))
        comm.Barrier()
        refuse(comm, store, comm_tmp_path / "run", f"has no node {field}.*{remedy}")


def test_fewer_parts_than_ranks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size == 1:
        pytest.skip("one rank needs one part, which every store has")
    store = write_store(comm, comm_tmp_path, make_graph(), parts=comm.size - 1)
    message = f"the store has {comm.size - 1} parts?, too few for {comm.size} ranks"
    refuse(comm, store, comm_tmp_path / "run", message)


def test_ranks_must_agree_on_the_configuration(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    last = comm.rank == comm.size - 1
    config = make_config(Path("g.h5"), comm_tmp_path / "run", f"model.hidden={3 + last}")
    with pytest.raises(CollectiveInputError, match=f"rank {comm.size - 1} has a configuration"):
        train(comm, config)


@pytest.mark.parametrize("place", ["file/run", "file", "/proc/none"])
def test_unwritable_directory(comm: MPI.Intracomm, comm_tmp_path: Path, place: str) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    if comm.rank == 0:
        (comm_tmp_path / "file").touch()
    comm.Barrier()
    message = rf"run.dir .*{place}: .*; choose a directory that can be written"
    refuse(comm, store, comm_tmp_path / place, message)


def test_weights_under_attention_are_refused_or_left_out(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    folders = []
    for weighted in (True, False):
        graph = replace(make_graph(weighted=True), weighted=weighted)
        folder = comm_tmp_path / str(weighted)
        folder.mkdir(exist_ok=True)
        folders.append((folder, write_store(comm, folder, graph)))
    (folder, store), (plain_folder, plain) = folders
    words = ("model.name=gat", "train.epochs=2")
    message = "attention does not use them; set graph.weights = .ignore."
    refuse(comm, store, folder / "refused", message, *words, "graph.weights=use")
    for name in ("gat", "sage"):
        settings = (f"model.name={name}", "train.epochs=2", "graph.weights=ignore")
        left = train(comm, make_config(store, folder / name, *settings))
        assert_same(left, train(comm, make_config(plain, plain_folder / name, *settings)))


def test_negative_weights_have_no_mean_and_a_sum(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    made = make_graph(weighted=True)
    made.adjacency.data[::3] *= -1
    store = write_store(comm, comm_tmp_path, made)
    for words in (
        ("model.name=gcn",),
        ("model.name=gin", "graph.structure=projection"),
        ("model.name=gin", "correct_and_smooth.enabled=true"),
    ):
        refuse(
            comm, store, comm_tmp_path / "no", "with negative edge weights there is no mean", *words
        )
    words = ("model.name=gin", "train.dtype=float64", "train.epochs=3")
    config = make_config(store, comm_tmp_path / "run", *words)
    assert_reference(comm, train(comm, config), made, config, 1e-12)
