"""Positions, weights and fields of a store: written, read, refused, and damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from hpcgnn.comm import RankGroup, agree
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage import (
    FieldInfo,
    GraphStore,
    ShareSizes,
    SortedRows,
    StoreHeader,
    StoreWriter,
    add_splits,
    datasets,
)
from hpcgnn.storage import format as file_format
from hpcgnn.storage.by_ranks import open_store

TIMES, STARTS = np.array([0, 0.1, 0.4, 0.0, 2.0]), [0, 3, 5]
INFOS = {
    "u": FieldInfo("u", 3, np.dtype("<f4"), "m/s", ("x", "y", "z")),
    "a/b%2F": FieldInfo("a/b%2F", 1, np.dtype("<f8")),
    "h": FieldInfo("h", 2, np.dtype("<f2"), "°C"),
}


def values_of(num_nodes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    fields = {
        name: rng.standard_normal((len(TIMES), num_nodes, info.num_columns)).astype(info.dtype)
        for name, info in INFOS.items()
    }
    fields["u"][1, num_nodes // 2, 1] = np.nan
    return fields


def append(writer: StoreWriter, start: int, stop: int, fields: dict[str, np.ndarray]) -> None:
    """Append rows of the nodes, and the field rows that the writer requests, in uneven blocks."""
    writer.append_rows(SortedRows(np.zeros(stop - start + 1, int), np.zeros(0, int)))
    rows = np.arange(start, stop)
    writer.append_positions(np.stack([rows, rows / 2], axis=1), (0, 2.5))
    writer.append_weights(rows)
    writer.begin_fields(TIMES, STARTS, "s")
    if stop == start:
        for name, info in INFOS.items():
            writer.append_field(name, 0, fields[name][0, :0], info)
        return
    for step in range(len(TIMES)):
        for name, info in INFOS.items():
            own = writer.field_rows(info)
            for low in range(own.start, own.stop, 7):
                block = fields[name][step, low : min(low + 7, own.stop)]
                writer.append_field(name, step, block, info)


def write(path: Path, num_nodes: int) -> dict[str, np.ndarray]:
    fields = values_of(num_nodes)
    with StoreWriter(path, StoreHeader(name="mesh", num_nodes=num_nodes)) as writer:
        append(writer, 0, num_nodes, fields)
    return fields


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 100)
    monkeypatch.setattr(datasets, "PIECE_BYTES", 150)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("num_nodes", [1, 8, 61])
def test_what_is_written_is_read(tmp_path: Path, num_nodes: int) -> None:
    path = tmp_path / "mesh.h5"
    fields = write(path, num_nodes)
    with GraphStore.open(path) as store:
        store.verify()
        assert dict(store.fields) == INFOS
        assert store.time_unit == "s"
        assert store.box == (0.0, 2.5)
        np.testing.assert_array_equal(store.times, TIMES)
        np.testing.assert_array_equal(store.trajectory_starts, STARTS)
        for low, high in ((0, num_nodes), (num_nodes // 3, num_nodes // 2), (0, 0)):
            for name, values in fields.items():
                for step in (0, 4, 1):
                    rows = store.read_field(name, step, low, high)
                    assert rows.dtype == values.dtype
                    np.testing.assert_array_equal(rows, values[step, low:high])
            positions = store.read_positions(low, high)
            assert positions is not None
            np.testing.assert_array_equal(positions[:, 1], np.arange(low, high) / 2)
            np.testing.assert_array_equal(store.read_node_weights(low, high), range(low, high))
        for wrong, error in ((("v", 0, 0, 1), InputError), (("u", 5, 0, 1), ValueError)):
            with pytest.raises(error, match=r"no field 'v'; it has|step 5 is not within"):
                store.read_field(*wrong)
        add_splits(store, path, {"more": np.ones(num_nodes, np.uint8)}, {})
    with GraphStore.open(path) as store:
        store.verify()
        assert dict(store.fields) == INFOS
        np.testing.assert_array_equal(store.read_field("h", 2, 0, num_nodes), fields["h"][2])


def test_without_fields_there_are_none(plain_store: Path) -> None:
    with GraphStore.open(plain_store) as store:
        assert not store.fields
        assert store.times.shape == (0,)
        assert store.trajectory_starts.tolist() == [0]
        assert store.read_positions(0, 5) is None
        assert store.read_node_weights(0, 5) is None
        assert store.box == ()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("how", ["equal", "first", "last"])
@pytest.mark.parametrize("num_nodes", [3, 61])
def test_ranks_write_the_store_of_one(
    comm: MPI.Intracomm, comm_tmp_path: Path, num_nodes: int, how: str
) -> None:
    bounds = [num_nodes * rank // comm.size for rank in range(comm.size + 1)]
    if how != "equal":
        bounds = [0, *[num_nodes if how == "first" else 0] * (comm.size - 1), num_nodes]
    start, stop = bounds[comm.rank : comm.rank + 2]
    fields, header = values_of(num_nodes), StoreHeader(name="mesh", num_nodes=num_nodes)
    together, alone = comm_tmp_path / "together.h5", comm_tmp_path / "alone.h5"
    sizes = ShareSizes(stop - start, {"": 0})

    def declare(writer: StoreWriter) -> None:
        append(writer, 0, 0, fields)

    store = open_store(RankGroup.of(comm), together, header, lambda: sizes, declare)
    with store as writer, agree(comm):
        if stop > start:
            append(writer, start, stop, fields)
    if comm.rank == 0:
        write(alone, num_nodes)
        with GraphStore.open(alone) as one, GraphStore.open(together) as several:
            several.verify()
            assert several.described() == one.described()
            assert several.fingerprint == one.fingerprint


def ask(**changes: Any) -> Callable[[StoreWriter], None]:
    """Return a function that writes two nodes at three steps, with changes."""

    def fill(writer: StoreWriter) -> None:
        given = {"times": [0, 1, 2], "starts": [0, 3], "steps": [0, 1, 2], "info": {}} | changes
        writer.append_rows(SortedRows(np.array([0, 0, 0]), np.zeros(0, int)))
        if "positions" in given:
            writer.append_positions(given["positions"], given["box"])
        if "weights" in given:
            writer.append_weights(given["weights"])
        if given["times"] is not None:
            writer.begin_fields(given["times"], given["starts"], "s")
        info = FieldInfo(
            **({"name": "u", "num_columns": 1, "dtype": np.dtype("f4")} | given["info"])
        )
        for step in given["steps"]:
            writer.append_field("u", step, given.get("block", np.zeros((2, 1), np.float32)), info)

    return fill


REFUSED = {
    "times fall": (ask(times=[0, 2, 1]), "step 2 is at 1, and step 1 before it at 2"),
    "times stand": (ask(times=[0, 1, 1]), "step 2 is at 1, and step 1 before it at 1"),
    "time without end": (ask(times=[0, 1, np.inf]), "step 2 is at the time inf"),
    "no times": (ask(times=None), "is given before the times"),
    "empty trajectory": (ask(starts=[0, 2, 2, 3]), "from 0 to the number of steps, 3"),
    "other end": (ask(starts=[0, 2]), "from 0 to the number of steps, 3"),
    "a step left out": (ask(steps=[0, 2]), "2 rows of step 2 are given, but 2 rows of step 1 are"),
    "a step missing": (ask(steps=[0, 1]), "has 2 of 3 steps"),
    "too many rows": (ask(block=np.zeros((3, 1))), "3 rows of step 0 are given, but 2 rows"),
    "other columns": (ask(block=np.zeros((2, 2))), r"give numbers \(m, 1\)"),
    "text": (ask(block=np.array([["a"], ["b"]])), r"give numbers \(m, 1\)"),
    "infinite": (ask(block=np.array([[0], [-np.inf]])), "step 0: node 1 has the value -inf"),
    "too large": (ask(block=np.array([[0], [1e300]])), "step 0: node 1 has the value inf"),
    "integers": (ask(info={"dtype": np.dtype("i4")}), "columns of int32; give at least one of"),
    "no column": (ask(info={"num_columns": 0}), "has 0 columns"),
    "components": (ask(info={"components": ("x", "y")}), "2 components are named for 1 columns"),
    "unit": (ask(info={"unit": "m\n"}), "unprintable"),
    "box": (ask(positions=np.zeros((2, 2)), box=(1,)), "a period for each of 2 axes"),
    "negative box": (ask(positions=np.zeros((2, 1)), box=(-1,)), "a period for each of 1 axes"),
    "positions": (ask(positions=np.array([[0], [np.nan]]), box=(0,)), "node 1 has the value nan"),
    "weights": (ask(weights=[1, -2]), "node 1 has the weight -2"),
    "rows": (ask(weights=[1]), "has 1 rows for 2 nodes"),
}


@pytest.mark.parametrize(("fill", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused(
    tmp_path: Path, fill: Callable[[StoreWriter], None], message: str
) -> None:
    with (
        pytest.raises(InputError, match=message) as error,
        StoreWriter(tmp_path / "mesh.h5", StoreHeader(name="mesh", num_nodes=2)) as writer,
    ):
        fill(writer)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def drop(path: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(path)


def attribute(path: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file[path].attrs.__setitem__(name, value)


def put(path: str, place: Any, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file[path].__setitem__(place, value)


def grow(file: h5py.File) -> None:
    del file["/fields/values/h"]
    shape, chunks = (5, 8, 10**12), (1, 1, 100)
    file.create_dataset("/fields/values/h", shape, "f2", chunks=chunks, fletcher32=True)


DAMAGED = {
    "no times": (drop("/fields/times"), "/fields/times: is missing"),
    "no trajectories": (drop("/fields/trajectory_starts"), "trajectory_starts: is missing"),
    "no fields": (drop("/fields/values"), "/fields/values: is missing"),
    "unit": (lambda file: file["/fields/values/u"].attrs.__delitem__("unit"), "unit: is missing"),
    "components": (attribute("/fields/values/u", "components", b"["), "u: cannot be read"),
    "other components": (attribute("/fields/values/u", "components", b'["x"]'), "1 components are"),
    "box": (attribute("/nodes/positions", "box", np.ones(3)), "box: is not a period at least 0"),
    "times": (put("/fields/times", 2, 0.05), "step 2 is at 0.05, and step 1 before"),
    "starts": (put("/fields/trajectory_starts", 1, 5), "from 0 to the number of steps, 5"),
    "value": (put("/fields/values/u", (0, 0, 0), np.inf), "node 0 has the value inf in column 0"),
    "weight": (put("/nodes/weights", 3, -1.0), "node 3 has the weight -1"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_in_one_line(
    tmp_path: Path, forge: Callable[..., None], change: Callable[[h5py.File], None], message: str
) -> None:
    path = tmp_path / "mesh.h5"
    write(path, 8)

    def read() -> None:
        with GraphStore.open(path) as store:
            store.read_positions(0, 8)
            store.read_node_weights(0, 8)
            for name in store.fields:
                store.read_field(name, 0, 0, 8)

    forge(path, lambda _: None)
    read()
    forge(path, change)
    with pytest.raises(StorageFormatError, match=message) as error:
        read()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("/fields/values/u", (3, 5, 1), 7.0), "fields/values/u: does not match its checksum"),
        (put("/fields/times", 0, -1.0), "/fields/times: does not match its checksum"),
        (attribute("/fields/values/u", "unit", b"km/s"), "fingerprint: does not belong"),
        (attribute("/nodes/positions", "box", np.ones(2)), "fingerprint: does not belong"),
        (grow, "fields/values/h: declares 80000000000000 bytes, and holds fewer"),
        (attribute("/fields/times", "unit", b"h"), "fingerprint: does not belong"),
    ],
)
def test_edits_do_not_match_checksums(
    tmp_path: Path, change: Callable[[h5py.File], None], message: str
) -> None:
    write(tmp_path / "mesh.h5", 8)
    with h5py.File(tmp_path / "mesh.h5", "r+", libver=("v110", "v110")) as file:
        change(file)
    with (
        pytest.raises(StorageFormatError, match=message),
        GraphStore.open(tmp_path / "mesh.h5") as store,
    ):
        store.verify()
