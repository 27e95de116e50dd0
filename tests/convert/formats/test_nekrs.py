"""Folders of nekRS-ML: a periodic row of elements, written by 1, 2 and 3 of its ranks."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.convert import ConvertOptions, convert, detect
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from tests.support.nekrs import ELEMENTS, LENGTH, TIMES, write


def read(folder: Path, **options: Any) -> GraphStore:
    out = folder.with_suffix(".h5")
    assert detect(folder)[0] == "nekrs"
    convert(folder, out, format_name="nekrs", options=ConvertOptions(**options))
    return GraphStore.open(out)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("steps", [False, True])
def test_ranks_that_wrote_make_no_difference(tmp_path: Path, size: int, steps: bool) -> None:
    with read(write(tmp_path / "run", size, steps=steps)) as store:
        n = store.num_nodes
        assert n == 2 * ELEMENTS
        # Middle points are numbered after the ids, in the order of the ranks' points.
        assert store.read_original_id(0, n).tolist() == list(range(1, n + 1))
        positions = store.read_positions(0, n)
        assert positions is not None
        expected = np.concatenate([np.arange(ELEMENTS), np.arange(ELEMENTS) + 0.5])
        np.testing.assert_allclose(positions[:, 0], expected * LENGTH / ELEMENTS)
        assert store.box == (LENGTH, 0, 0)
        assert store.undirected
        rows = store.read_adjacency(0, n)
        degrees = np.diff(rows.indptr)
        assert (degrees == 2).all()
        first = rows.indices[:2].tolist()
        assert first == [ELEMENTS, 2 * ELEMENTS - 1]
        assert store.times.tolist() == ([0, 10] if steps else TIMES)
        assert {name: info.num_columns for name, info in store.fields.items()} == {"p": 1, "u": 3}
        for step, time in enumerate(TIMES):
            wave = np.round(np.cos(4 * np.pi * expected / ELEMENTS) + time, 6)
            np.testing.assert_allclose(store.read_field("p", step, 0, n)[:, 0], wave)
            np.testing.assert_allclose(store.read_field("u", step, 0, n)[:, 2], wave)
        store.verify()


def test_times_of_steps_are_given(tmp_path: Path) -> None:
    np.save(tmp_path / "times.npy", [0.5, 0.75])
    folder = write(tmp_path / "run", 2, steps=True, dtype=np.float32)
    with read(folder, times=str(tmp_path / "times.npy")) as store:
        assert store.times.tolist() == [0.5, 0.75]
        assert store.fields["u"].dtype == np.float32


def test_copies_that_differ_are_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", 1)
    file = folder / "fld_p_time_0.0_rank_0_size_1.bin"
    values = np.fromfile(file)
    values[2:4] = 5, 7
    values[0] = np.nan
    values.tofile(file)
    with read(folder) as store:
        field = store.read_field("p", 0, 0, 12)[:, 0]
        assert field[1] == 6
        # One of its copies is missing.
        assert np.isnan(field[0])
    assert "copies of a point differ by up to 2; p is their mean" in capsys.readouterr().err


END = "rank_0_size_2.bin"


def put(name: str, dtype: Any, place: int, value: float) -> Any:
    def change(folder: Path) -> None:
        numbers = np.fromfile(folder / name, dtype)
        numbers[place] = value
        numbers.tofile(folder / name)

    return change


BAD = {
    "other sizes": (
        lambda folder: shutil.copy(
            folder / f"pos_node_{END}", folder / "pos_node_rank_0_size_3.bin"
        ),
        r"for P = \[2, 3\]; give a folder that one run has written",
    ),
    "a rank's ids": (lambda f: (f / "global_ids_rank_1_size_2.bin").unlink(), "no such file"),
    "a rank's positions": (lambda f: (f / "pos_node_rank_1_size_2.bin").unlink(), "no such file"),
    "a rank's edges": (lambda f: (f / "edge_index_rank_1_size_2.bin").unlink(), "no such file"),
    "a rank's field": (
        lambda f: [(f / f"fld_u_time_{t}_rank_1_size_2.bin").unlink() for t in TIMES],
        "the field u of rank 1 is missing",
    ),
    "a rank's time": (
        lambda f: (f / "fld_u_time_0.25_rank_1_size_2.bin").unlink(),
        "u has other times on rank 1",
    ),
    "a field's time": (
        lambda f: [(f / f"fld_u_time_0.25_rank_{r}_size_2.bin").unlink() for r in range(2)],
        "p has 2 times, and u has 1",
    ),
    "cut field": (
        lambda f: np.zeros(5).tofile(f / f"fld_u_time_0.25_{END}"),
        "has 40 bytes, and 216 are expected: 3 numbers for each of 9 points",
    ),
    "cut positions": (
        lambda f: np.zeros(5).tofile(f / f"pos_node_{END}"),
        "27 numbers of 8 bytes are expected",
    ),
    "negative id": (put(f"global_ids_{END}", np.int64, 2, -4), "point 2 has the id -4"),
    "edge": (put(f"edge_index_{END}", np.int32, 3, 9), "must hold pairs of points 0 to 8"),
    "position": (
        put(f"pos_node_{END}", np.float64, 4, np.nan),
        "point 1 of all ranks has no finite position",
    ),
    "no box": (put(f"pos_node_{END}", np.float64, 9, 0.7), "only the periods of a box"),
    "name": (lambda f: (f / f"fld_u_time_x_{END}").touch(), "its name has no field and time"),
    "infinite": (
        put(f"fld_p_time_0.25_{END}", np.float64, 1, np.inf),
        "step 1: node 6 has the value inf",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    folder = write(tmp_path / "run", 2)
    change(folder)
    with pytest.raises(InputError, match=message) as error:
        read(folder)
    assert "\n" not in str(error.value)
