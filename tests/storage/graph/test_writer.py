"""The writer's refusals, and that a file appears as a whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.errors import InputError
from hpcgnn.storage import (
    EdgeData,
    GraphStore,
    SortedRows,
    StoreHeader,
    StoreWriter,
    check_output,
)
from hpcgnn.storage import format as store_format
from tests.support.full_disk import largest_file

HEADER = StoreHeader(name="g", num_nodes=3, num_classes=2)


def write(path: Path, *steps: Callable[[StoreWriter], None], header: StoreHeader = HEADER) -> None:
    with StoreWriter(path, header) as writer:
        for step in steps:
            step(writer)


def adjacency(
    indptr: Any, indices: Any, weights: Any = None, relation: str = "", data: Any = None
) -> Callable[[StoreWriter], None]:
    rows = SortedRows(indptr, indices, weights, data or EdgeData())
    return lambda writer: writer.append_rows(rows, relation)


def labels(block: Any) -> Callable[[StoreWriter], None]:
    return lambda writer: writer.append_labels(block)


EDGES = adjacency([0, 1, 1, 3], [2, 0, 1])
LABELS = labels([0, 1, -1])

REFUSED: list[tuple[str, list[Callable[[StoreWriter], None]], str]] = [
    ("no adjacency", [LABELS], "has no adjacency"),
    ("few rows", [adjacency([0, 1], [2]), LABELS], "1 rows were written for 3 nodes"),
    ("many rows", [EDGES, adjacency([0, 0], [])], "more rows were given than the 3 nodes"),
    ("indptr start", [adjacency([1, 1], [0])], "must run from 0 to the block's 1 non-zeros"),
    ("indptr end", [adjacency([0, 2], [0])], "must run from 0 to the block's 1 non-zeros"),
    ("indptr falls", [adjacency([0, 2, 1, 2], [0, 1])], "row 1 ends at 1 before it starts at 2"),
    ("indptr type", [adjacency([0.0, 1.0], [0])], "/adjacency/indptr: has shape (2,) and type"),
    ("no indptr", [adjacency([], [])], "must run from 0"),
    ("column", [adjacency([0, 1], [3])], "column 3 is outside 0..2"),
    ("negative", [adjacency([0, 1], [-1])], "column -1 is outside 0..2"),
    ("unsorted", [adjacency([0, 1, 3], [0, 2, 1])], "the columns of row 1 are not sorted"),
    ("repeated", [adjacency([0, 0], []), adjacency([0, 2], [1, 1])], "columns of row 1 are not"),
    ("weight", [adjacency([0, 1], [0], [np.inf])], "weight inf is not a finite number"),
    ("large weight", [adjacency([0, 1], [0], [1e39])], "weight inf is not a finite number"),
    ("weights", [adjacency([0, 1], [0], [1.0, 2.0])], "/adjacency/weights: has shape (2,)"),
    ("some weights", [adjacency([0, 1], [0], [1.0]), adjacency([0, 0], [])], "for some rows only"),
    ("mixed", [EDGES, adjacency([0], [], None, "a")], "one untyped relation or named ones"),
    ("long", [adjacency([0], [], None, "/" * 334)], "cannot be stored: a name takes at most 1000"),
    ("unprintable", [adjacency([0], [], None, "a\nb")], "unprintable"),
    ("nan", [lambda w: w.append_features([[0.0], [np.nan]])], "node 1 has the value nan"),
    ("integers", [lambda w: w.append_features([[1], [2]])], "/nodes/features: has shape (2, 1)"),
    ("no columns", [lambda w: w.append_features(np.ones((3, 0)))], "at least one column"),
    ("few labels", [EDGES, labels([0])], "/nodes/labels: has 1 rows for 3 nodes"),
    ("many labels", [labels([0, 0, 0, 0])], "has at least 4 rows for 3 nodes"),
    ("no labels", [EDGES], "/nodes/labels: is missing, but num_classes is 2"),
    ("label", [labels([0, 2])], "node 1 has label 2, outside 0..1"),
    ("wrapping label", [labels(np.array([2**32]))], "has label 4294967296"),
    ("float labels", [labels([0.0])], "/nodes/labels: has shape (1,) and type float64"),
    ("multi-label", [labels([[0, 1]])], "/nodes/labels: has shape (1, 2)"),
    ("split", [lambda w: w.append_split([0, 1, 4])], "node 2 has the split value 4"),
    ("split type", [lambda w: w.append_split([True])], "/nodes/split: has shape (1,)"),
    ("ids", [lambda w: w.append_original_id([[1]])], "/nodes/original_id: has shape (1, 1)"),
    ("row_starts", [lambda w: w.set_partition([0, 2], "m", 0, {})], "must run from 0 to 3"),
    ("parts", [lambda w: w.set_partition([0, 2, 1, 3], "m", 0, {})], "part 1 ends before"),
    ("metrics", [lambda w: w.set_partition([0, 3], "m", 0, {"k": "x" * 70_000})], "bytes as JSON"),
]


@pytest.mark.parametrize(
    ("steps", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(
    steps: list[Callable[[StoreWriter], None]], message: str, plain_store: Path
) -> None:
    before = plain_store.read_bytes()
    with pytest.raises(InputError) as caught:
        write(plain_store, *steps)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert plain_store.read_bytes() == before
    assert list(plain_store.parent.iterdir()) == [plain_store]


def test_every_split_of_the_header_is_due(tmp_path: Path) -> None:
    header = StoreHeader(name="g", num_nodes=3, splits=("first", "second"))
    with pytest.raises(InputError, match=r"splits/second: is missing"):
        write(tmp_path / "a.h5", EDGES, lambda w: w.append_split([1, 2, 3], "first"), header=header)


def test_refused_features_that_change(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give float32 rows of shape"):
        write(
            tmp_path / "a.h5",
            lambda w: w.append_features(np.ones((1, 2), np.float32)),
            lambda w: w.append_features(np.ones((1, 2), np.float64)),
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_nodes": 0}, "has 0 nodes; a store needs at least one node"),
        ({"num_nodes": -4}, "has -4 nodes"),
        ({"num_classes": -1}, "num_classes is -1"),
        ({"num_classes": 3, "class_names": ("a",)}, "1 class names for 3 classes"),
        ({"num_classes": 1, "class_names": ("",)}, "class name ''"),
        ({"name": ""}, "graph name ''"),
        ({"name": "a\0"}, "unprintable"),
    ],
)
def test_refused_headers(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StoreHeader(**{"name": "g", "num_nodes": 3, **fields})


def test_labels_need_classes(tmp_path: Path) -> None:
    header = StoreHeader(name="g", num_nodes=3)
    with pytest.raises(InputError, match="num_classes is 0"):
        write(tmp_path / "a.h5", labels([-1, -1, -1]), header=header)


def test_other_exceptions_leave_nothing(plain_store: Path) -> None:
    before = plain_store.read_bytes()

    def interrupt(writer: StoreWriter) -> None:
        temporary = writer.path.parent.glob(".plain.h5.*.tmp")
        assert len(list(temporary)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(plain_store, EDGES, interrupt)
    assert plain_store.read_bytes() == before
    assert list(plain_store.parent.iterdir()) == [plain_store]


def test_earlier_store_is_replaced_while_it_is_read(plain_store: Path) -> None:
    with GraphStore.open(plain_store) as old:
        write(plain_store, EDGES, LABELS)
        assert old.read_nodes(0, 5).original_id.tolist() == [0, 1, 2, 3, 4]
        with GraphStore.open(plain_store) as new:
            assert new.num_nodes == 3


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.h5"
    link.symlink_to(tmp_path / "real" / "a.h5")
    write(link, EDGES, LABELS)
    assert link.is_symlink()
    assert [file.name for file in (tmp_path / "real").iterdir()] == ["a.h5"]


def test_permissions_follow_the_mask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write(tmp_path / "a.h5", EDGES, LABELS)
    finally:
        os.umask(old)
    assert (tmp_path / "a.h5").stat().st_mode & 0o777 == 0o640


def test_unwritable_places(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path, reason in (
        (tmp_path / "loop" / "a.h5", "cannot be written"),
        (tmp_path / "missing" / "a.h5", "No such file or directory"),
        (tmp_path / "file" / "a.h5", "Not a directory"),
        (tmp_path, "is a directory"),
    ):
        for attempt in (check_output, lambda p: write(p, EDGES, LABELS)):
            with pytest.raises(InputError, match=reason):
                attempt(path)


def test_directory_without_permission(tmp_path: Path, lose_rights: Callable[[], None]) -> None:
    lose_rights()
    with pytest.raises(InputError, match="Permission denied"):
        check_output(tmp_path / "a.h5")


def test_check_output_leaves_nothing(tmp_path: Path) -> None:
    check_output(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 700, 10_000, 1_000_000, 3_160_000])
@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 20])
def test_full_disk(
    limit: int, chunk_bytes: int, plain_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_format, "CHUNK_BYTES", chunk_bytes)
    before, n = plain_store.read_bytes(), 40_000
    with largest_file(limit), pytest.raises(InputError) as fault:
        write(
            plain_store,
            adjacency(np.zeros(n + 1, int), []),
            *[lambda writer: writer.append_features(np.ones((n // 10, 8)))] * 10,
            header=StoreHeader(name="g", num_nodes=n),
        )
    assert str(fault.value) == (
        f"{plain_store}: cannot be written (File too large); "
        "choose a directory that is writable and has room"
    )
    assert plain_store.read_bytes() == before
    assert list(plain_store.parent.iterdir()) == [plain_store]


def test_chunks_fit_the_data(tmp_path: Path) -> None:
    assert store_format.chunk_shape((10, 4), 4) == (10, 4)
    assert store_format.chunk_shape((1 << 20,), 8) == (1 << 17,)
    assert store_format.chunk_shape((0,), 8) == (1,)
    assert store_format.chunk_shape((9, 1 << 22), 4) == (1, 1 << 22)
    write(tmp_path / "a.h5", EDGES, LABELS)
    assert (tmp_path / "a.h5").stat().st_size < 10_000
