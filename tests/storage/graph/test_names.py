"""Names of nodes and several splits: kept, looked up, kept by a partition, and checked."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.partition.parts import random
from hpcgnn.partition.pattern import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from hpcgnn.storage.graph import names as names_module
from hpcgnn.storage.graph.names import Names

NAMES = ("/m/027rn", "Zürich Süd", "a", "ab", "b", "user_1", "user_10")
SPLITS = {"0": [1, 1, 2, 3, 0, 0, 1], "ten": [3, 2, 1, 1, 1, 0, 0]}


def in_order(names: Any) -> list[str]:
    return sorted(names, key=str.encode)


def write(path: Path, **more: Any) -> Path:
    store_from_arrays(
        path,
        GraphArrays(
            name="named",
            num_nodes=7,
            edges={"": ([0, 1, 2, 3], [1, 2, 0, 6])},
            labels=[0, 1, 0, 1, 0, 1, -1],
            **more,
        ),
    )
    return path


@pytest.fixture
def named(tmp_path: Path) -> Path:
    return write(tmp_path / "named.h5", names=NAMES, splits=SPLITS)


def test_names_are_kept_and_found(named: Path) -> None:
    with GraphStore.open(named) as store:
        store.verify()
        assert store.has_names
        assert store.names(np.array([6, 0, 6, 3])) == ["user_10", "/m/027rn", "user_10", "ab"]
        wanted = ["user_10", "nobody", "/m/027rn", "", "zz"]
        assert store.find_names(wanted).tolist() == [6, -1, 0, -1, -1]
        assert store.names(np.zeros(0, np.int64)) == []
        with pytest.raises(IndexError, match=r"outside 0\.\.6"):
            store.names(np.array([7]))


@given(st.sets(st.text(st.characters(min_codepoint=32, exclude_categories=["C"]), min_size=1)))
def test_any_names_over_pages(texts: set[str]) -> None:
    names = in_order({*texts, "x"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "PAGE_NAMES", 3)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "any.h5"
            n = len(names)
            store_from_arrays(
                path, GraphArrays(name="any", num_nodes=n, edges={"": ([], [])}, names=names)
            )
            with GraphStore.open(path) as store:
                assert store.names(np.arange(n)) == names
                assert store.find_names(names[::-1]).tolist() == list(range(n))[::-1]


def test_types_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "types.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="types",
            num_nodes=5,
            edges={"buys": ([0], [3])},
            types=[0, 0, 0, 1, 1],
            type_features={"user": None, "item": None},
            names=("item:z", "m", "n", "m", "z"),
        ),
    )
    with GraphStore.open(path) as store:
        with pytest.raises(InputError, match="several types are called 'm'; write item:m"):
            store.find_names(["z", "m"])
        wanted = ["z", "user:m", "item:m", "user:z", "m:", "item:z"]
        assert store.find_names(wanted).tolist() == [4, 1, 3, -1, -1, 0]
        assert store.names(np.array([3, 0])) == ["m", "item:z"]


def test_splits_are_chosen_by_name(named: Path) -> None:
    with GraphStore.open(named) as store:
        assert store.splits == ("0", "ten")
        for name, values in SPLITS.items():
            assert store.read_split(0, 7, name).tolist() == values
            assert store.read_nodes(2, 5, name).split.tolist() == values[2:5]
        assert store.read_split(0, 7).tolist() == SPLITS["0"]
        with pytest.raises(InputError, match=r"no split 'x'; it has 0, ten; hpcgnn split adds one"):
            store.read_split(0, 7, "x")


def test_partition_carries_all(named: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts.h5"
    with GraphStore.open(named) as store:
        partition = random(3)(read_pattern(store), 3)
        write_partitioned(store, out, partition, method="random", seed=3)
    with GraphStore.open(out) as store:
        store.verify()
        ids = store.read_nodes(0, 7).original_id
        assert ids.tolist() != list(range(7))
        assert store.names(ids) == [NAMES[each] for each in ids]
        assert store.find_names(NAMES).tolist() == list(range(7))
        for name, values in SPLITS.items():
            assert store.read_split(0, 7, name).tolist() == np.array(values)[ids].tolist()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (NAMES[::-1], "name 1 does not come after the one before it"),
        ((*NAMES[:-1], "user_1"), "name 6 does not come after the one before it"),
        (NAMES[:-1], "has 6 names for 7 nodes"),
        ((*NAMES, "z"), "has more names than the 7 nodes"),
        (("", *NAMES[1:]), "name 0 is empty"),
        (("\t", *NAMES[1:]), "name 0 has unprintable characters"),
    ],
)
def test_wrong_names(names: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        write(tmp_path / "wrong.h5", names=names)
    assert not list(tmp_path.iterdir())


def test_names_need_ids_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"with names, ids are 0\.\.6, not 0\.\.16"):
        write(tmp_path / "wrong.h5", names=NAMES, original_id=np.arange(7) + 10)


def test_a_single_node_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "single.h5"
    store_from_arrays(
        path, GraphArrays(name="single", num_nodes=1, edges={"": ([], [])}, names=["only"])
    )
    with GraphStore.open(path) as store:
        assert store.names(np.array([0])) == ["only"]


@pytest.mark.parametrize("name", ["a/b", "..", "a\nb", ""])
def test_wrong_split_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="split"):
        write(tmp_path / "wrong.h5", splits={name: [1] * 7})


def test_stores_without_them_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.h5", split=SPLITS["0"])
    with h5py.File(path) as file:
        assert file.attrs["format_version"] == 1
        assert "names" not in file["nodes"]
    with GraphStore.open(path) as store:
        assert (store.splits, store.has_names) == (("default",), False)
        assert store.read_split(0, 7, "default").tolist() == SPLITS["0"]
    with GraphStore.open(write(tmp_path / "bare.h5")) as store:
        assert store.splits == ()


def test_damage(named: Path, forge: Callable[..., None]) -> None:
    def shorten(file: h5py.File) -> None:
        file["nodes/names/offsets"][7] = 3

    forge(named, shorten)
    with pytest.raises(StorageFormatError, match="runs from 0 to 3, not from 0 to"):
        GraphStore.open(named)


def test_offsets_that_point_elsewhere(named: Path, forge: Callable[..., None]) -> None:
    def move(file: h5py.File) -> None:
        file["nodes/names/offsets"][3] = 1 << 40

    forge(named, move)
    with GraphStore.open(named) as store, pytest.raises(StorageFormatError, match="points outside"):
        store.names(np.array([2]))


def test_blocks_of_names() -> None:
    names = Names.of(("a", "äh"))
    assert (names.offsets.tolist(), len(names), names.texts()) == ([0, 1, 4], 2, ["a", "äh"])
