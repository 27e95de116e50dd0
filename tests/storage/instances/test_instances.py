from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage import (
    CANDIDATE_DTYPE,
    GRAPH_DTYPE,
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
    InstanceStore,
    InstanceWriter,
)

HEADER = InstanceHeader(name="toy", edge_names=("Child", "NextToken"), num_buckets=16, steps=8)


def batch_of(sizes: list[int], split: InstanceSplit, seed: int = 0) -> InstanceBatch:
    """Return random graphs with these numbers of nodes, each with two candidates."""
    rng = np.random.default_rng(seed)
    graphs = np.zeros(len(sizes), GRAPH_DTYPE)
    graphs["num_nodes"] = sizes
    graphs["num_edges"] = [2 * size for size in sizes]
    graphs["num_candidates"], graphs["label"], graphs["split"] = 2, 1, split
    counts = rng.integers(0, 4, sum(sizes)).astype(np.uint8)
    ends = np.cumsum(sizes)
    graphs["num_subtokens"] = [
        counts[end - size : end].sum() for end, size in zip(ends, sizes, strict=True)
    ]
    limits = np.repeat(sizes, graphs["num_edges"])[:, None]
    candidates = np.zeros(2 * len(sizes), CANDIDATE_DTYPE)
    candidates["node"][1::2] = np.array(sizes) - 1
    return InstanceBatch(
        graphs,
        counts,
        rng.integers(0, 16, int(counts.sum())).astype(np.uint16),
        rng.integers(0, 2, len(limits)).astype(np.uint8),
        rng.integers(0, limits, (len(limits), 2)).astype(np.int32),
        candidates,
    )


def equal(a: InstanceBatch, b: InstanceBatch) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__annotations__)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "toy.h5"
    with InstanceWriter(path, HEADER, ["one.py", "two.py"]) as writer:
        writer.append(batch_of([3, 1, 7], InstanceSplit.TRAIN))
        writer.append(InstanceBatch.empty())
        writer.append(batch_of([5], InstanceSplit.UNSEEN, 1))
    return path


def test_round_trip_and_ranges(store: Path) -> None:
    with InstanceStore.open(store) as found:
        assert found.header == HEADER
        assert found.files == ("one.py", "two.py")
        assert found.split_range(InstanceSplit.TRAIN) == (0, 3)
        assert found.split_range(InstanceSplit.VALID) == (3, 3)
        assert found.split_range(InstanceSplit.UNSEEN) == (3, 4)
        train = batch_of([3, 1, 7], InstanceSplit.TRAIN)
        assert equal(found.read(0, 3), train)
        assert equal(found.read(1, 2), train.select([1]))
        assert len(found.read(2, 2)) == 0
        assert equal(found.read_graphs(np.array([0, 2])), train.select([0, 2]))
        assert equal(found.read_graphs(np.array([0, 1, 2])), train)
        assert len(found.read_graphs(np.array([], np.int64))) == 0
        found.verify()


def test_select_and_join() -> None:
    batch = batch_of([3, 1, 7], InstanceSplit.TRAIN)
    again = InstanceBatch.join([batch.select([2]), batch.select([0, 1])]).select([1, 2, 0])
    assert equal(again, batch)
    assert len(batch.select([])) == 0


@pytest.mark.parametrize("name", ["subtokens", "edges", "graphs", "candidates", "subtoken_counts"])
def test_damage_is_found(store: Path, name: str) -> None:
    with h5py.File(store, "r+") as file:
        offset, size = file[name].id.get_chunk_info(0).byte_offset, file[name].nbytes
    raw = bytearray(store.read_bytes())
    raw[offset + size // 2] ^= 1
    store.write_bytes(raw)
    with pytest.raises(StorageFormatError, match=name), InstanceStore.open(store) as found:
        found.verify()


def test_wrong_graphs_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.h5"
    good = batch_of([3], InstanceSplit.TEST)
    for name, value, column in (
        ("graphs", 9, "label"),
        ("graphs", 5, "file"),
        ("candidates", 3, "node"),
        ("graphs", 9, "split"),
    ):
        batch = good.select([0])
        getattr(batch, name)[column][0] = value
        with pytest.raises(InputError), InstanceWriter(path, HEADER, ["one.py"]) as writer:
            writer.append(batch)
    mixed = InstanceBatch.join([good, batch_of([3], InstanceSplit.TRAIN)])
    with pytest.raises(InputError, match="order"), InstanceWriter(path, HEADER, ["a"]) as writer:
        writer.append(mixed)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_named(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file.attrs["format"] = "something"
    with pytest.raises(StorageFormatError, match="program graphs"):
        InstanceStore.open(other)
    with h5py.File(store, "r+") as file:
        file.attrs["steps"] = np.int64(9)
    with pytest.raises(StorageFormatError, match="fingerprint"):
        InstanceStore.open(store)
