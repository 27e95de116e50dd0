"""The partitioning command on many ranks: one store, equal to that of the serial permutation."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import CollectiveInputError, InputError
from hpcgnn.partition import Partition, measure, permute, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from hpcgnn.storage import format as file_format
from hpcgnn.storage.atomic import OutputFile

COMMAND = find_command("partition")

NUM_NODES = 150


def make_store(path: Path, *, typed: bool, sparse: bool = False) -> None:
    generator = np.random.default_rng(617)
    draw = lambda size: (NUM_NODES * generator.random(size) ** 2).astype(int)  # noqa: E731
    weights = generator.random(900, np.float32)
    data = EdgeData(generator.random((900, 2)), generator.integers(0, 3, 900).astype(np.uint8))
    types = generator.integers(0, 2, NUM_NODES)
    features = generator.standard_normal((NUM_NODES, 5))
    common = {
        "name": "small",
        "num_nodes": NUM_NODES,
        "edges": {"cites": (draw(700), draw(700)), "likes": (draw(900), draw(900), weights)},
        "edge_data": {"likes": data},
        "labels": generator.integers(-1, 4, NUM_NODES),
        "positions": np.random.default_rng(3).integers(-4, 5, (NUM_NODES, 2)) / 4,
        "num_classes": 4,
        "original_id": np.arange(NUM_NODES)[::-1],
        "names": [f"node {each:04}" for each in range(NUM_NODES)],
    }
    if typed:
        common |= {
            "types": types,
            "type_features": {"a": features[types == 0], "b": None, "none": np.zeros((0, 3))},
        }
        del common["names"]
    else:
        splits = generator.integers(0, 4, (2, NUM_NODES)).astype(np.uint8)
        if sparse:
            features = np.maximum(features - 1, 0)
        common |= {"features": features, "splits": {"one": splits[0], "two": splits[1]}}
        common["sparse_features"] = sparse
    store_from_arrays(path, GraphArrays(**common))


def run(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, store: Path, out: Path, *words: object
) -> int:
    arguments = [store, "-o", out, "--method", "volume", "--preset", "fast", "--json", *words]
    monkeypatch.setattr(sys, "argv", ["partition", *map(str, arguments)])
    return COMMAND.call(comm=comm)


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("step_bytes", "typed", "sparse"),
    [
        (3000, False, False),
        (3000, True, False),
        (1 << 20, False, False),
        (3000, False, True),
        (1 << 20, False, True),
    ],
)
def test_store_is_that_of_the_serial_permutation(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_bytes: int,
    typed: bool,
    sparse: bool,
) -> None:
    monkeypatch.setattr(permute, "STEP_BYTES", step_bytes)
    path, out, serial = (comm_tmp_path / name for name in ("in.h5", "out.h5", "serial.h5"))
    if comm.rank == 0:
        make_store(path, typed=typed, sparse=sparse)
    comm.Barrier()
    words = ("--parts", 5, "--objective", "max_send", "--relations", "cites,likes")
    assert run(comm, monkeypatch, path, out, *words) == 0
    if comm.rank > 0:
        return
    with GraphStore.open(path) as old, GraphStore.open(out) as new:
        new.verify()
        assert new.num_parts == 5
        # Original ids were those of the old order, reversed.
        part = np.empty(NUM_NODES, np.int32)
        ids = NUM_NODES - 1 - new.read_original_id(0, NUM_NODES)
        part[ids] = np.repeat(np.arange(5), np.diff(new.row_starts))
        info = new.partition_info
        found = measure(read_pattern(old), part, 5)
        assert {key: info["metrics"][key] for key in vars(found)} == vars(found)
        assert found.imbalance <= 0.05
        write_partitioned(
            old,
            serial,
            Partition(part, 5),
            method="volume",
            seed=0,
            metrics=info["metrics"],
            provenance=new.provenance,
        )
        with GraphStore.open(serial) as expected:
            assert new.described() == expected.described()
            assert new.header({}) == expected.header({})


def test_present_parts_are_refined(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first, out = (comm_tmp_path / name for name in ("in.h5", "first.h5", "out.h5"))
    if comm.rank == 0:
        make_store(path, typed=False)
        with GraphStore.open(path) as store:
            part = np.random.default_rng(5).integers(0, 4, NUM_NODES).astype(np.int32)
            rest = {"method": "random", "seed": 0, "metrics": {}, "provenance": {}}
            write_partitioned(store, first, Partition(part, 4), **rest)
    comm.Barrier()
    # With the largest seed.
    words = ("--refine", "present", "--objective", "total", "--undirected", "--seed", 2**63 - 1)
    assert run(comm, monkeypatch, first, out, *words) == 0
    with GraphStore.open(first) as before, GraphStore.open(out) as after:
        assert after.num_parts == 4
        graph = read_pattern(before, undirected=True)
        parts = np.repeat(np.arange(4, dtype=np.int32), np.diff(before.row_starts))
        start, end = measure(graph, parts, 4), after.partition_info["metrics"]
    assert end["total_rows"] < start.total_rows


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "method", ["metis", "streaming", "rcb", "rcb --undirected", "random", "block", "file"]
)
@pytest.mark.parametrize("typed", [False, True])
def test_the_store_is_that_of_one_process(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    method: str,
    typed: bool,
) -> None:
    monkeypatch.setattr(permute, "STEP_BYTES", 3000)
    path, out, alone = (comm_tmp_path / name for name in ("in.h5", "out.h5", "alone.h5"))
    if comm.rank == 0:
        make_store(path, typed=typed)
        np.save(comm_tmp_path / "parts.npy", np.arange(NUM_NODES) % 5)
    comm.Barrier()
    chosen = [f"file:{comm_tmp_path / 'parts.npy'}"] if method == "file" else method.split()
    words = ["partition", str(path), "--method", *chosen, "--parts", "5", "--json", "-o"]
    monkeypatch.setattr(sys, "argv", [*words, str(out)])
    assert COMMAND.call(comm=comm) == 0
    assert bool(capsys.readouterr().out) == (comm.rank == 0)
    if comm.rank == 0:
        monkeypatch.setattr(sys, "argv", [*words, str(alone)])
        COMMAND.call()
        with GraphStore.open(out) as found, GraphStore.open(alone) as expected:
            found.verify()
            assert found.described() == expected.described()
            infos = [each.partition_info for each in (found, expected)]
            for info in infos:
                del info["metrics"]["seconds"]
            assert infos[0] == infos[1]


def test_a_fault_of_the_first_rank_is_one_of_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = comm_tmp_path / "in.h5", comm_tmp_path / "out.h5"
    if comm.rank == 0:
        make_store(path, typed=False)
    comm.Barrier()
    words = ["partition", str(path), "--method", "metis", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(CollectiveInputError, match="--parts K is missing"):
        COMMAND.call(comm=comm)
    assert [each.name for each in comm_tmp_path.iterdir()] == ["in.h5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--parts", NUM_NODES + 1), "not more than the 150 nodes"),
        (("--parts", 3, "--threads", 2), "--threads belongs to one process"),
        (("--parts", 3, "--refine", "parts.txt"), "many ranks refine present parts only"),
        ((), "--parts K is missing"),
        (("--parts", 3, "--relations", "hates"), "no relation 'hates'"),
    ],
)
def test_what_many_ranks_cannot_do_is_one_line(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    message: str,
) -> None:
    path, out = comm_tmp_path / "in.h5", comm_tmp_path / "out.h5"
    if comm.rank == 0:
        make_store(path, typed=False)
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match=message):
        run(comm, monkeypatch, path, out, *words)
    assert not out.exists()


@pytest.mark.max_ranks(4)
def test_a_failing_rank_leaves_nothing(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = comm_tmp_path / "in.h5", comm_tmp_path / "out.h5"
    if comm.rank == 0:
        make_store(path, typed=False)
    comm.Barrier()
    read = GraphStore.read_nodes

    def fails(store: GraphStore, start: int, stop: int, *split: str, **options: Any) -> object:
        if comm.rank == comm.size - 1 and stop == NUM_NODES:
            raise RuntimeError("lost")
        return read(store, start, stop, *split, **options)

    monkeypatch.setattr(GraphStore, "read_nodes", fails)
    with pytest.raises(RuntimeError, match="lost"):
        run(comm, monkeypatch, path, out, "--parts", 3)
    comm.Barrier()
    assert [each.name for each in comm_tmp_path.iterdir()] == ["in.h5"]


def test_a_disk_that_is_full_for_one_rank_is_an_error_of_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = comm_tmp_path / "in.h5", comm_tmp_path / "out.h5"
    if comm.rank == 0:
        make_store(path, typed=False)
    comm.Barrier()

    def full(file: OutputFile, *_: object) -> None:
        file.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # So that every rank has its own chunks.
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 64)
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(OutputFile, "write_at", full)
    with pytest.raises(CollectiveInputError, match="No space left on device"):
        run(comm, monkeypatch, path, out, "--parts", 16)
    comm.Barrier()
    assert [each.name for each in comm_tmp_path.iterdir()] == ["in.h5"]


def test_the_input_is_not_written_over(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = comm_tmp_path / "in.h5", comm_tmp_path / "link.h5"
    if comm.rank == 0:
        make_store(path, typed=False)
        link.symlink_to(path)
    comm.Barrier()
    before = path.read_bytes()
    for out in (path, link):
        with pytest.raises(CollectiveInputError, match=f"{out.name}: is the input itself"):
            run(comm, monkeypatch, path, out, "--parts", 3)
    monkeypatch.setattr(sys, "argv", ["partition", str(path), "--parts", "3", "-o", str(link)])
    with pytest.raises(InputError, match="is the input itself"):
        COMMAND.call()
    assert path.read_bytes() == before
