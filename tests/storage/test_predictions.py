"""Files of predictions: whole or absent, in every format."""

import csv
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from pyarrow import parquet

from hpcgnn.errors import InputError
from hpcgnn.storage import (
    CsvPredictions,
    H5Predictions,
    NamesOf,
    NpyPredictions,
    ParquetPredictions,
    PredictionFile,
    TableColumns,
)
from hpcgnn.typing import GlobalIndices
from tests.support.full_disk import largest_file, unsynced

RNG = np.random.default_rng(3)
IDS = np.array([7, -3, 2**62, 0, 11], np.int64)
VALUES = RNG.random((5, 3), np.float32)
CLASSES = np.array([2, 0, 1, 1, 2], np.int32)


def write(file: PredictionFile, *, with_classes: bool = True) -> None:
    with file:
        for start, stop in ((0, 2), (2, 2), (2, 5)):
            classes = CLASSES[start:stop] if with_classes else None
            file.append(IDS[start:stop], VALUES[start:stop], classes)


def test_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    names = ("red", "grün", "blue, or so")
    write(H5Predictions(path, "probabilities", names, {"run": "a/b", "seed": 3}))
    with h5py.File(path) as file:
        assert sorted(file) == ["classes", "node_id", "prediction", "probabilities"]
        np.testing.assert_array_equal(file["node_id"], IDS)
        np.testing.assert_array_equal(file["probabilities"], VALUES)
        np.testing.assert_array_equal(file["prediction"], CLASSES)
        assert [name.decode() for name in file["classes"]] == list(names)
        assert all(file[name].fletcher32 for name in file)
        assert file.attrs["format"].decode() == "hpcgnn predictions"
        assert file.attrs["run"].decode() == "a/b"
        assert file.attrs["seed"] == 3
        assert file.attrs["format_version"] == 1


def test_hdf5_of_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    write(H5Predictions(path, "embeddings"), with_classes=False)
    with h5py.File(path) as file:
        assert sorted(file) == ["embeddings", "node_id"]
        np.testing.assert_array_equal(file["embeddings"], VALUES)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write(CsvPredictions(path, TableColumns(["p_red", "p_grün", 'p_"blue", or so'])))
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["node_id", "p_red", "p_grün", 'p_"blue", or so']
    assert [int(row[0]) for row in rows] == IDS.tolist()
    np.testing.assert_array_equal(np.array([row[1:] for row in rows], np.float32), VALUES)


@pytest.mark.parametrize("kind", [CsvPredictions, ParquetPredictions])
def test_nodes_that_share_a_name_differ_by_type(
    tmp_path: Path, kind: type[CsvPredictions | ParquetPredictions]
) -> None:
    path = tmp_path / f"out.{kind.__name__[:3].lower()}"
    about: dict[str, NamesOf] = {
        "name": lambda ids: ["Ann"] * len(ids),
        "type": lambda ids: [f"t{i}" for i in ids],
    }
    write(kind(path, TableColumns("abc", about=about)), with_classes=False)
    if kind is CsvPredictions:
        header, *rows = csv.reader(path.read_text().splitlines())
        found = [tuple(row[:3]) for row in rows]
    else:
        table = parquet.read_table(path)
        header = table.column_names
        found = [tuple(map(str, row.values()))[:3] for row in table.to_pylist()]
    assert list(header[:3]) == ["node_id", "name", "type"]
    assert found == [(str(i), "Ann", f"t{i}") for i in IDS]


def test_names_that_are_formulas_are_counted_and_kept(tmp_path: Path) -> None:
    names = ["=1+1", "-5", "@SUM(A1)", "plain", "+x"]
    columns = TableColumns("abc", about={"name": lambda _: names})
    with CsvPredictions(tmp_path / "out.csv", columns) as file:
        file.append(IDS, VALUES - 1, None)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as read:
        assert [row[1] for row in csv.reader(read)][1:] == names
    # A negative number is not a node, and neither are the values.
    assert file.num_formulas == 3


COLUMNS = TableColumns(
    ["p_red", "p_b"],
    predicts=True,
    class_names=["red", "b; x"],
    about={"name": lambda ids: [f'n "{i}", ' for i in ids]},
)
TWO = VALUES[:, :2]
SEVERAL = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 1]], np.uint8)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", [CsvPredictions, ParquetPredictions])
def test_names_and_classes(tmp_path: Path, kind: type[PredictionFile], several: bool) -> None:
    path = tmp_path / "out"
    predicted = SEVERAL if several else np.array([0, 1, 1, 0, 1], np.int32)
    with kind(path, COLUMNS) as file:
        for rows in (slice(0, 2), slice(2, 2), slice(2, 5)):
            file.append(IDS[rows], TWO[rows], predicted[rows])
    if kind is CsvPredictions:
        with path.open(newline="", encoding="utf-8") as lines:
            header, *found = csv.reader(lines)
    else:
        table = parquet.read_table(path)
        header = table.column_names
        found = [[str(each) for each in row.values()] for row in table.to_pylist()]
        assert [str(each) for each in table.schema.types[2:4]] == ["float", "float"]
    assert header == ["node_id", "name", "p_red", "p_b", "prediction", "class"]
    assert [row[:2] for row in found] == [[str(i), f'n "{i}", '] for i in IDS]
    np.testing.assert_array_equal(np.array([row[2:4] for row in found], np.float32), TWO)
    numbers = ["0", "0 1", "", "1", "0 1"] if several else ["0", "1", "1", "0", "1"]
    texts = [[("red", "b; x")[int(each)] for each in number.split()] for number in numbers]
    assert [row[4] for row in found] == numbers
    assert [row[5] for row in found] == ["; ".join(each) for each in texts]


def test_names_in_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    write(H5Predictions(path, "probabilities", names_of=lambda ids: [f"ü{i}" for i in ids]))
    with h5py.File(path) as file:
        whole, ends = file["name_bytes"][...].tobytes(), file["name_ends"][...].tolist()
    found = [whole[low:high].decode() for low, high in zip([0, *ends], ends, strict=False)]
    assert found == [f"ü{i}" for i in IDS]


def test_npy_with_ids_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    file = NpyPredictions(path, VALUES.shape)
    write(file)
    np.testing.assert_array_equal(np.load(path), VALUES)
    assert file.ids_path == tmp_path / "out.ids.npy"
    np.testing.assert_array_equal(np.load(file.ids_path), IDS)
    counted = NpyPredictions(path, VALUES.shape)
    with counted:
        counted.append(np.arange(3), VALUES[:3])
        counted.append(np.arange(3, 5), VALUES[3:])
    assert not counted.has_ids
    assert [each.name for each in tmp_path.iterdir()] == ["out.npy"]


@pytest.mark.parametrize("ids", [IDS[::-1], np.arange(5)])
def test_ids_stay_those_of_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: GlobalIndices
) -> None:
    file = NpyPredictions(tmp_path / "out.npy", VALUES.shape)
    write(file)
    again = NpyPredictions(file.path, VALUES.shape)
    unsynced(monkeypatch, file.path)
    with pytest.raises(InputError, match=r"out\.npy: cannot be written"), again:
        again.append(ids, VALUES + 1)
    np.testing.assert_array_equal(np.load(file.path), VALUES)
    np.testing.assert_array_equal(np.load(file.ids_path), IDS)


MAKERS: dict[str, Callable[[Path], PredictionFile]] = {
    "h5": lambda path: H5Predictions(path, "probabilities"),
    "csv": lambda path: CsvPredictions(path, TableColumns("abc")),
    "parquet": lambda path: ParquetPredictions(path, TableColumns("abc")),
    "npy": lambda path: NpyPredictions(path, VALUES.shape),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_error_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"out.{kind}"
    path.write_text("earlier")

    def fail(file: PredictionFile) -> None:
        with file:
            file.append(IDS, VALUES)
            raise KeyError("elsewhere")

    with pytest.raises(KeyError):
        fail(MAKERS[kind](path))
    assert path.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_full_disk(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"out.{kind}"
    path.write_text("earlier")
    rows = np.zeros((400_000, 3), np.float32)

    def fill(file: PredictionFile) -> None:
        with file:
            for _ in range(4):
                file.append(np.arange(len(rows)), rows)

    fault = pytest.raises(InputError, match=r"cannot be written \(File too large\)")
    with largest_file(1_000_000), fault as caught:
        fill(MAKERS[kind](path))
    assert "\n" not in str(caught.value)
    assert path.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", MAKERS)
def test_unwritable(tmp_path: Path, kind: str) -> None:
    with (
        pytest.raises(InputError, match=r"none/out: cannot be written \(No such file"),
        MAKERS[kind](tmp_path / "none" / "out"),
    ):
        pass
