"""Positions, weights and fields of .npz files, through conversion, partition and inspect.

A store written by many ranks is compared with the one of a single process.
"""

import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import RankGroup
from hpcgnn.commands.command import find_command
from hpcgnn.convert import convert
from hpcgnn.errors import InputError
from hpcgnn.inspect import inspect_path
from hpcgnn.inspect.show import show, store_rows
from hpcgnn.storage import GraphStore, datasets
from hpcgnn.storage import format as file_format

PARTITION = find_command("partition")
STEPS, NODES = 5, 23


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    velocity = rng.standard_normal((STEPS, NODES, 3)).astype(np.float32)
    velocity[2, 4:6, 0] = np.nan
    given = {
        "src": np.arange(NODES),
        "dst": np.roll(np.arange(NODES), 1),
        "positions": rng.standard_normal((NODES, 3)),
        "box": np.array([0, 2.0, 0]),
        "node_weights": rng.random(NODES),
        "field_u": velocity,
        "unit_u": np.array("m/s"),
        "field_count": rng.integers(0, 9, (STEPS, NODES)),
        "times": np.array([0, 1, 2, 0, 0.5]),
        "unit_times": np.array("s"),
        "trajectory_starts": np.array([0, 3, STEPS]),
    }
    return {name: array for name, array in (given | changes).items() if array is not None}


def convert_npz(folder: Path, ranks: RankGroup | None = None, **changes: Any) -> Path:
    source, out = folder / "mesh.npz", folder / "mesh.h5"
    np.savez_compressed(source, **arrays(**changes))
    convert(source, out, format_name="npz", ranks=ranks or RankGroup())
    return out


def check_by_id(store: GraphStore) -> None:
    """Check the data of nodes in any order of the store."""
    given, ids = arrays(), store.read_original_id(0, NODES)
    np.testing.assert_array_equal(store.read_positions(0, NODES), given["positions"][ids])
    np.testing.assert_array_equal(store.read_node_weights(0, NODES), given["node_weights"][ids])
    np.testing.assert_array_equal(store.times, given["times"])
    assert store.trajectory_starts.tolist() == [0, 3, STEPS]
    assert store.box == (0, 2, 0)
    assert store.time_unit == "s"
    assert {info.name: info.unit for info in store.fields.values()} == {"u": "m/s", "count": ""}
    for step in range(STEPS):
        np.testing.assert_array_equal(
            store.read_field("u", step, 0, NODES), given["field_u"][step, ids]
        )
        counts = store.read_field("count", step, 5, NODES)[:, 0]
        np.testing.assert_array_equal(counts, given["field_count"][step, ids[5:]])
    store.verify()


def test_arrays_become_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "mesh.npz", tmp_path / "mesh.h5"
    given = arrays()
    given["pos"] = given.pop("positions")
    np.savez(source, **given)
    report = convert(source, out, format_name="npz")
    assert report.fields == {"u": 3, "count": 1}
    assert report.num_steps == STEPS
    assert report.missing_values == {"u": 2}
    assert not report.ignored
    assert not report.missing
    with GraphStore.open(out) as store:
        check_by_id(store)
    content = inspect_path(out, verify=True, quiet=True)
    said = dict(store_rows(content))
    assert said["positions"] == "3 axes, periods 0 x 2 x 0 (0: none); nodes with weights"
    assert said["fields"] == (
        "count (1 column, float64), u (3 columns, float32, m/s); 5 steps of 2 trajectories, "
        "0 to 2 s"
    )
    show(content)
    assert "u (3 columns" in capsys.readouterr().out


def test_ranks_keep_rows_by_original_id(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 60)
    monkeypatch.setattr(datasets, "PIECE_BYTES", 130)
    monkeypatch.setattr("hpcgnn.partition.permute.STEP_BYTES", 70)
    if comm.rank == 0:
        np.savez(comm_tmp_path / "mesh.npz", **arrays())
    comm.barrier()
    source, out = comm_tmp_path / "mesh.npz", comm_tmp_path / "mesh.h5"
    report = convert(source, out, format_name="npz", ranks=RankGroup.of(comm))
    assert report.missing_values == {"u": 2}
    parted = comm_tmp_path / "parted.h5"
    arguments = [out, "-o", parted, "--method", "random", "--parts", 5, "--json"]
    monkeypatch.setattr(sys, "argv", ["partition", *map(str, arguments)])
    PARTITION.call(comm=comm)
    with GraphStore.open(parted) as store:
        assert store.num_parts == 5
        assert (store.read_original_id(0, NODES) != np.arange(NODES)).any()
        check_by_id(store)


BAD = {
    "times of other length": ({"times": np.arange(4)}, r"shape \(4,\) .* for 5 steps"),
    "times out of order": (
        {"times": np.array([0, 2, 1, 3, 4]), "trajectory_starts": None},
        "step 2 is at 1, and step 1 before it at 2; times must rise in each trajectory",
    ),
    "trajectories": ({"trajectory_starts": np.array([1, 5])}, "from 0 to the number of steps, 5"),
    "other nodes": ({"field_u": np.zeros((5, 22, 3))}, "field_u has 5 of 22; give all the same"),
    "other steps": (
        {"field_u": np.zeros((4, 23, 3))},
        "has 5 steps of 23 nodes, and .*field_u has 4",
    ),
    "one dimension": ({"field_u": np.zeros(23)}, r"has shape \(23,\)"),
    "infinite": ({"field_u": np.full((5, 23), np.inf)}, "step 0: node 0 has the value inf"),
    "box": ({"box": np.zeros(2)}, "a period for each of 3 axes"),
    "positions": ({"positions": np.zeros(23)}, r"positions has shape \(23,\)"),
    "a position that is not": ({"positions": np.full((23, 2), np.nan)}, "node 0 has the value nan"),
    "weights": ({"node_weights": -np.ones(23)}, "node 0 has the weight -1"),
    "no field": ({"field_u": None, "unit_u": None, "field_count": None}, "there is no field_NAME"),
    "unit": ({"unit_u": np.array([1, 2])}, "must be one word"),
    "unit of nothing": ({"unit_v": np.array("m")}, "unit_v has no array field_v"),
    "misspelt": ({"times": None, "time": np.arange(5)}, "is it times"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        convert_npz(tmp_path, **changes)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mesh.npz"]
