"""CRC-32 by hardware, and of pieces that several processes read."""

import itertools
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage import GraphArrays, GraphStore, OpenStore, store_from_arrays
from hpcgnn.storage.checksums import RowsRead, array_crc, shift

SIZES = (*range(200), 4095, 4096, 65537)


def test_equals_zlib_at_every_size_and_alignment() -> None:
    data = np.random.default_rng(3).integers(0, 256, 70000, dtype=np.uint8)
    for size in SIZES:
        for start in (0, 1, 7):
            piece = data[start : start + size]
            assert array_crc(piece, size) == zlib.crc32(piece, size)


def test_takes_arrays_of_any_kind() -> None:
    table = np.arange(60.0).reshape(5, 12)
    assert array_crc(table[:, ::2]) == zlib.crc32(table[:, ::2].tobytes())
    assert array_crc(np.zeros((0, 3))) == 0
    pairs = np.zeros(9, np.dtype([("a", "<i4"), ("b", "u1")]))
    assert array_crc(pairs) == zlib.crc32(pairs.tobytes())


def test_pieces_add_up_to_the_whole() -> None:
    rows = np.random.default_rng(5).integers(0, 256, (1000, 13), dtype=np.uint8)
    ranks = [RowsRead(1000, 13) for _ in range(3)]
    cuts = [0, 5, 5, 400, 401, 1000]
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        rank = ranks[number % 3]
        assert rank.add(low, high, array_crc(rows[low:high]))
        assert rank.add(low, high, array_crc(rows[low:high]))
    shares = np.array([rank.share() for rank in ranks])
    assert np.bitwise_xor.reduce(shares[:, 0]) == zlib.crc32(rows)
    assert shares[:, 1].sum() == 1000
    assert not ranks[0].add(0, 5, 12345)


def test_rows_inside_others_count_once() -> None:
    rows = np.random.default_rng(6).integers(0, 256, (100, 8), dtype=np.uint8)
    read = RowsRead(100, 8)
    for low, high in ((0, 3), (3, 40), (0, 40), (0, 20), (20, 40), (40, 100), (90, 100)):
        read.add(low, high, array_crc(rows[low:high]))
    assert read.share() == (zlib.crc32(rows), 100)


@pytest.mark.parametrize("size", [0, 1, 13, 1 << 33])
def test_shift_appends(size: int) -> None:
    if size < 100:
        whole = zlib.crc32(b"x" * 7 + b"y" * size)
        assert shift(zlib.crc32(b"x" * 7), size) ^ zlib.crc32(b"y" * size) == whole
    half = shift(shift(77, size // 2), size - size // 2)
    assert shift(77, size) == half


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    path = tmp_path / "g.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="g",
            num_nodes=50,
            edges={"": (rng.integers(0, 50, 200), rng.integers(0, 50, 200), rng.random(200))},
            features=rng.random((50, 3), np.float32),
            labels=rng.integers(0, 4, 50),
            split=rng.integers(1, 4, 50).astype(np.uint8),
            class_names=("a", "b", "c", "d"),
        ),
    )
    return path


def read_by(path: Path, cuts: list[int]) -> OpenStore:
    """Read a store like ranks that own the rows between `cuts`, and compare."""
    crcs, rows = [], []
    for low, high in itertools.pairwise(cuts):
        with GraphStore.open(path) as store:
            store.read_nodes(low, high)
            store.read_indptr(low, high)
            middle = (low + high) // 2
            store.read_adjacency(low, middle)
            store.read_adjacency(middle, high)
            store.read_adjacency(low, middle)
            crc, count = store.rows_read()
        crcs.append(crc)
        rows.append(count)
    store.check_rows_read(np.bitwise_xor.reduce(crcs), np.sum(rows, axis=0))
    return store


@pytest.mark.parametrize("cuts", [[0, 50], [0, 20, 50], [0, 0, 1, 20, 20, 50, 50]])
def test_ranks_together_read_all(path: Path, cuts: list[int]) -> None:
    read_by(path, cuts)


NAMES = ("adjacency/weights", "nodes/features", "nodes/labels", "nodes/split", "nodes/original_id")


@pytest.mark.parametrize("name", NAMES)
def test_a_change_in_place_is_noticed(path: Path, name: str) -> None:
    with h5py.File(path, "r+") as file:
        values = file[name][...]
        values[17] = values[18] if np.any(values[17] != values[18]) else values[19]
        file[name][...] = values
    with pytest.raises(StorageFormatError, match=f"/{name}: does not match its checksum"):
        read_by(path, [0, 20, 50])


def test_a_changed_name_of_a_class_is_noticed_at_once(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["classes"][1] = b"z"
    with pytest.raises(StorageFormatError, match="/classes: does not match its checksum"):
        GraphStore.open(path)


def test_shares_cover_a_file(path: Path) -> None:
    found = []
    for number in range(3):
        with GraphStore.open(path) as store:
            store.read_share(number, 3)
            found.append(store.rows_read())
    crcs, rows = (np.array(each) for each in zip(*found, strict=True))
    store.check_rows_read(np.bitwise_xor.reduce(crcs), rows.sum(axis=0))
