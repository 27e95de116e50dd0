"""All ranks write a store: it equals that of one process, or there is none."""

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from hpcgnn.comm import RankGroup, agree
from hpcgnn.errors import CollectiveInputError, InputError
from hpcgnn.storage import (
    EdgeData,
    GraphStore,
    ShareSizes,
    SortedRows,
    SparseRows,
    StoreHeader,
    StoreWriter,
)
from hpcgnn.storage import format as file_format
from hpcgnn.storage.atomic import OutputFile
from hpcgnn.storage.by_ranks import open_store
from hpcgnn.storage.graph.names import Names

CHUNK = 256
"""Bytes of a chunk in these tests."""

ROWS = {"int64": CHUNK // 8, "uint8": CHUNK}


@dataclass(frozen=True, eq=False)
class Made:
    """A graph with everything that a store can hold, and the order of writing its rows."""

    num_nodes: int
    typed: bool
    names: bool = False
    sparse: bool = False
    seed: int = 5

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        n = self.num_nodes
        values: dict[str, Any] = {
            "types": rng.integers(0, 2, n).astype(np.uint8) * 2,
            "labels": rng.integers(-1, 5, n),
            "split": rng.integers(0, 4, n),
            "original": rng.permutation(n),
            "features": np.maximum(0, rng.standard_normal((n, 3)) - 1).astype(np.float32),
            "other": rng.standard_normal((n, 70)).astype(np.float16),
            "texts": Names.of(sorted(f"{each}ü" for each in range(n))),
        }
        # A hub, and nodes without edges.
        degrees = np.where(rng.random(n) < 0.3, 0, rng.integers(0, 4, n))
        degrees[n // 2] = n
        degrees = np.minimum(degrees, n)
        columns = [np.sort(rng.choice(n, degree, replace=False)) for degree in degrees]
        values["indptr"] = np.concatenate([[0], np.cumsum(degrees)])
        values["indices"] = np.concatenate(columns)
        count = len(values["indices"])
        values["weights"] = rng.standard_normal(count).astype(np.float32)
        values["data"] = EdgeData(
            rng.standard_normal((count, 2)), rng.integers(0, 4, count).astype(np.uint8)
        )
        vars(self)["values"] = values

    values: "dict[str, Any]" = None  # type: ignore[assignment]

    @property
    def header(self) -> StoreHeader:
        return StoreHeader(
            name="made",
            num_nodes=self.num_nodes,
            num_classes=5,
            node_types=("a", "ab", "c/d") if self.typed else (),
            class_names=("v", "w", "x", "y", "z"),
            sparse_columns=3 * self.sparse,
        )

    def sizes(self, start: int, stop: int) -> ShareSizes:
        values, types = self.values, ()
        edges = int(values["indptr"][stop] - values["indptr"][start])
        if self.typed:
            counts = np.bincount(values["types"][start:stop], minlength=3)
            types = tuple(counts.tolist())
        named = stop - start if self.names else 0
        texts = values["texts"].offsets
        size = int(texts[stop] - texts[start]) if self.names else 0
        each = {"r": edges, "r%": 0} if self.typed else {"": edges}
        entries = np.count_nonzero(values["features"][start:stop]) * self.sparse
        return ShareSizes(stop - start, each, types, named, size, features=entries)

    def append(self, writer: StoreWriter, start: int, stop: int) -> None:
        values, rows = self.values, slice(start, stop)
        bounds = values["indptr"][start : stop + 1]
        entries = slice(int(bounds[0]), int(bounds[-1]))
        indices, bounds = values["indices"][entries], bounds - bounds[0]
        if self.typed:
            data, weights = values["data"].take(entries), values["weights"][entries]
            writer.append_rows(SortedRows(bounds, indices, weights, data), "r")
            writer.append_rows(SortedRows(np.zeros_like(bounds), indices[:0]), "r%")
            types = values["types"][rows]
            writer.append_types(types)
            writer.append_type_features("a", values["features"][rows][types == 0])
            # There are no nodes of the second type, which has columns all the same.
            writer.append_type_features("ab", values["features"][:0])
            writer.append_type_features("c/d", values["other"][rows][types == 2])
        else:
            writer.append_rows(SortedRows(bounds, indices))
            if self.sparse:
                features = SparseRows.of(values["features"][rows])
                writer.append_sparse_features(features.to_store())
            else:
                writer.append_features(values["features"][rows])
            writer.append_original_id(values["original"][rows])
        writer.append_labels(values["labels"][rows])
        writer.append_split(values["split"][rows])
        if self.names:
            texts = values["texts"].offsets[start : stop + 1]
            writer.append_names(texts - texts[0], values["texts"].data[texts[0] : texts[-1]])

    def write(
        self,
        comm: MPI.Intracomm,
        path: Path,
        bounds: list[int],
        append: "Append | None" = None,
        declare: "Declare | None" = None,
    ) -> None:
        """Write each rank's rows; `append` and `declare` replace the functions for that."""
        start, stop = bounds[comm.rank : comm.rank + 2]
        sizes = self.sizes(start, stop)
        declare = declare or (lambda writer: self.append(writer, 0, 0))
        store = open_store(RankGroup.of(comm), path, self.header, lambda: sizes, declare)
        with store as writer, agree(comm):
            (append or self.append)(writer, start, stop)


Append: TypeAlias = Callable[[StoreWriter, int, int], None]
Declare: TypeAlias = Callable[[StoreWriter], None]


def divided(num_nodes: int, size: int, how: str) -> list[int]:
    """Return the first row of each rank, and the number of all rows."""
    if how == "equal":
        return [num_nodes * rank // size for rank in range(size + 1)]
    if how == "last":
        return [0] * size + [num_nodes]
    if how == "first":
        return [0] + [num_nodes] * size
    # Some ranks without rows between others, and some with a few.
    cuts = sorted(min(num_nodes, 3 * (rank // 2)) for rank in range(1, size))
    return [0, *cuts, num_nodes]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "CHUNK_BYTES", CHUNK)


@pytest.mark.several_ranks
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("how", ["equal", "last", "first", "few"])
@pytest.mark.parametrize(
    "made",
    [
        Made(211, typed=False),
        Made(211, typed=True),
        Made(150, typed=False, names=True),
        Made(157, typed=False, sparse=True),
        Made(1, typed=False, sparse=True),
        Made(3, typed=True),
        Made(1, typed=False),
        # Exactly a chunk of offsets, and then of int64, int32 and uint8.
        Made(ROWS["int64"] - 1, typed=False),
        Made(ROWS["int64"], typed=False),
        Made(ROWS["int64"] * 2, typed=True),
        Made(ROWS["uint8"], typed=False, names=True),
    ],
    ids=lambda made: (
        f"{made.num_nodes}{' typed' * made.typed}{' names' * made.names}{' sparse' * made.sparse}"
    ),
)
def test_store_is_that_of_one_process(
    comm: MPI.Intracomm, comm_tmp_path: Path, made: Made, how: str
) -> None:
    bounds = divided(made.num_nodes, comm.size, how)

    def in_steps(writer: StoreWriter, start: int, stop: int) -> None:
        for low in range(start, stop, 37):
            made.append(writer, low, min(low + 37, stop))

    made.write(comm, comm_tmp_path / "together.h5", bounds, in_steps)
    if comm.rank:
        return
    with StoreWriter(comm_tmp_path / "alone.h5", made.header) as writer:
        made.append(writer, 0, made.num_nodes)
    made.write(MPI.COMM_SELF, comm_tmp_path / "one.h5", [0, made.num_nodes])
    with (
        GraphStore.open(comm_tmp_path / "alone.h5") as expected,
        GraphStore.open(comm_tmp_path / "together.h5") as found,
    ):
        found.verify()
        assert found.fingerprint == expected.fingerprint
        assert found.described() == expected.described()
    assert layout(comm_tmp_path / "together.h5") == layout(comm_tmp_path / "alone.h5")
    # It equals that of any other number of ranks byte by byte.
    whole = (comm_tmp_path / "together.h5").read_bytes()
    assert whole == (comm_tmp_path / "one.h5").read_bytes()
    assert len(list(comm_tmp_path.iterdir())) == 3


def layout(path: Path) -> dict[str, object]:
    """Return the layout of each dataset of a file, and its attributes."""
    found: dict[str, object] = {}

    def look(name: str, each: h5py.Dataset | h5py.Group) -> None:
        found[name] = {key: str(value) for key, value in each.attrs.items()}
        if isinstance(each, h5py.Dataset):
            sums = each.fletcher32, each.id.get_num_chunks()
            found[name] = found[name], each.shape, each.maxshape, each.chunks, each.dtype, *sums

    with h5py.File(path) as file:
        file.visititems(look)
        look("/", file)
    return found


def test_chunks_and_metadata_share_no_page(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 3 * mmap.PAGESIZE)
    written: list[range] = []
    write = OutputFile.write

    def noted(self: OutputFile, data: "memoryview[int]") -> int:
        if np.frombuffer(data, np.uint8).any():
            written.append(range(self.tell(), self.tell() + len(data)))
        return write(self, data)

    monkeypatch.setattr(OutputFile, "write", noted)
    made, path = Made(3000, typed=True), comm_tmp_path / "store.h5"
    made.write(comm, path, divided(made.num_nodes, comm.size, "equal"))
    if comm.rank:
        return
    with h5py.File(path) as file:
        relation = file["adjacency/r"]
        places = [relation[name] for name in relation] + [file["nodes/features/a"]]
        chunks = [
            each.id.get_chunk_info(i) for each in places for i in range(each.id.get_num_chunks())
        ]
    taken: set[int] = set()
    assert len(chunks) > len(places)
    for chunk in chunks:
        pages = set(pages_of(range(chunk.byte_offset, chunk.byte_offset + chunk.size)))
        assert not taken & pages
        taken |= pages
    assert written
    # Of those writes, only the small datasets and the metadata remain.
    assert not any(taken & set(pages_of(each)) for each in written)


def pages_of(places: range) -> range:
    """Return the pages that a range of bytes touches."""
    return range(places.start // mmap.PAGESIZE, (places.stop - 1) // mmap.PAGESIZE + 1)


def test_zeros_behind_the_end_are_a_hole(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "file")
    file.write(memoryview(bytes(1 << 20)))
    file.write(memoryview(b"end"))
    file.seek(1 << 19)
    file.write(memoryview(bytes(range(256)) * 32))
    file.seek(1 << 19)
    # This is not at the end: it replaces existing bytes.
    file.write(memoryview(bytes(1 << 12)))
    file.publish()
    file.abandon()
    found = (tmp_path / "file").read_bytes()
    middle = bytes(1 << 12) + bytes(range(256)) * 16
    assert found == bytes(1 << 19) + middle + bytes((1 << 19) - (1 << 13)) + b"end"
    assert (tmp_path / "file").stat().st_blocks * 512 < 1 << 18


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("when", ["begin", "append", "pwrite", "fsync"])
def test_what_one_rank_cannot_write_is_an_error_of_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made, faulty = Made(211, typed=True), min(2, comm.size - 1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def begin(writer: StoreWriter) -> None:
        made.append(writer, 0, 0)
        if comm.rank == faulty and when == "begin":
            raise InputError("No space left on device")

    def append(writer: StoreWriter, start: int, stop: int) -> None:
        here = comm.rank == faulty
        if here and when == "append":
            monkeypatch.setattr(os, "pwrite", full)
        made.append(writer, start, stop)
        if here and when in ("pwrite", "fsync"):
            monkeypatch.setattr(os, when, full)

    bounds = divided(made.num_nodes, comm.size, "equal")
    with pytest.raises(CollectiveInputError, match="No space left on device"):
        made.write(comm, comm_tmp_path / "s.h5", bounds, append, begin)
    monkeypatch.undo()
    comm.Barrier()
    assert not list(comm_tmp_path.iterdir())


@pytest.mark.usefixtures("small_chunks")
def test_rows_that_are_not_as_announced_are_refused(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    made, path = Made(100, typed=False), comm_tmp_path / "s.h5"
    bounds, last = divided(made.num_nodes, comm.size, "equal"), comm.rank == comm.size - 1

    def too_few(writer: StoreWriter, start: int, stop: int) -> None:
        made.append(writer, start + last, stop)

    def too_many(writer: StoreWriter, start: int, stop: int) -> None:
        made.append(writer, start, stop)
        if comm.rank == 0:
            made.append(writer, 0, 1)

    for append, text in ((too_few, "rows of a process are missing"), (too_many, "more rows")):
        with pytest.raises(CollectiveInputError, match=text):
            made.write(comm, path, bounds, append)
    with pytest.raises(CollectiveInputError, match="99 rows are declared for 100 nodes"):
        made.write(comm, path, [*bounds[:-1], 99])
    comm.Barrier()
    assert not list(comm_tmp_path.iterdir())


@pytest.mark.usefixtures("small_chunks")
def test_rows_of_relations_may_be_of_other_nodes(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    made = Made(150, typed=False)
    low, high = divided(150, comm.size, "few")[comm.rank : comm.rank + 2]
    start, stop = divided(150, comm.size, "first")[comm.rank : comm.rank + 2]
    sizes = ShareSizes(stop - start, made.sizes(low, high).edges, rows=high - low)

    def append(writer: StoreWriter, nodes: slice, rows: slice) -> None:
        bounds = made.values["indptr"][rows.start : rows.stop + 1]
        indices = made.values["indices"][bounds[0] : bounds[-1]]
        writer.append_rows(SortedRows(bounds - bounds[0], indices))
        writer.append_features(made.values["features"][nodes])
        writer.append_labels(made.values["labels"][nodes])

    def declare(writer: StoreWriter) -> None:
        append(writer, slice(0, 0), slice(0, 0))

    path = comm_tmp_path / "together.h5"
    store = open_store(RankGroup.of(comm), path, made.header, lambda: sizes, declare)
    with store as share, agree(comm):
        append(share, slice(start, stop), slice(low, high))
    if comm.rank:
        return
    with StoreWriter(comm_tmp_path / "alone.h5", made.header) as alone:
        append(alone, slice(0, 150), slice(0, 150))
    assert layout(path) == layout(comm_tmp_path / "alone.h5")


@pytest.mark.usefixtures("small_chunks")
def test_names_are_in_order_where_ranks_meet(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    made = Made(40, typed=False, names=True)
    texts = made.values["texts"].texts()
    # The first name of the second half is out of order.
    texts[20] = texts[19]
    made.values["texts"] = Names.of(texts)
    with pytest.raises(CollectiveInputError, match="name 20 does not come after the one before"):
        made.write(comm, comm_tmp_path / "s.h5", divided(40, comm.size, "equal"))
    comm.Barrier()
    assert not list(comm_tmp_path.iterdir())


def test_a_directory_that_a_host_does_not_see_is_named(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, openers = Made(20, typed=False), os.open

    def elsewhere(path: object, *rest: object) -> int:
        if str(path).endswith(".tmp") and comm.rank == comm.size - 1:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return openers(path, *rest)  # type: ignore[arg-type]

    if comm.size == 1:
        pytest.skip("the first rank sees its own file")
    monkeypatch.setattr(os, "open", elsewhere)
    with pytest.raises(CollectiveInputError, match="choose a directory that all hosts share"):
        made.write(comm, comm_tmp_path / "s.h5", divided(20, comm.size, "equal"))
    monkeypatch.undo()
    comm.Barrier()
    assert not list(comm_tmp_path.iterdir())
