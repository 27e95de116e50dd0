"""Fields, positions and weights in .npy files beside graphs of other formats."""

import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore

COMMAND = find_command("convert")
STEPS, NODES = 4, 19
ARRAYS = {
    "u": np.random.default_rng(2).standard_normal((STEPS, NODES, 2)).astype(np.float16),
    "p": np.asfortranarray(np.arange(STEPS * NODES).reshape(STEPS, NODES)),
    "times": np.array([0, 0.5, 0, 1]),
    "trajectories": np.array([0, 2, STEPS]),
    "xyz": np.arange(NODES * 3.0).reshape(NODES, 3),
    "w": np.arange(NODES, dtype=np.float32),
}


def save(folder: Path, **changes: Any) -> None:
    for name, array in (ARRAYS | changes).items():
        np.save(folder / f"{name}.npy", array)
    # The last node has no edge: the arrays give the number of nodes.
    (folder / "ring.txt").write_text("\n".join(f"{each} {each + 1}" for each in range(NODES - 2)))
    (folder / "ring.graph").write_text(f"{NODES} 1\n2\n1\n" + "\n" * (NODES - 2))
    np.savez(folder / "ring.npz", src=[0], dst=[1], field_v=np.zeros((STEPS, NODES)))


FLAGS = (
    "--fields u=u.npy,p=p.npy --units u=m/s,times=s --times times.npy --trajectories "
    "trajectories.npy --positions xyz.npy --box 0,3,0 --node-weights w.npy"
)


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str = "ring.txt",
    flags: str = FLAGS,
    comm: MPI.Intracomm | None = None,
) -> Path:
    monkeypatch.chdir(folder)
    words = ["convert", source, "-o", "out.h5", *flags.split()]
    monkeypatch.setattr(sys, "argv", words)
    COMMAND.call(comm=comm)
    return folder / "out.h5"


@pytest.mark.parametrize("source", ["ring.txt", "ring.graph"])
def test_files_beside_a_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if comm.rank == 0:
        save(comm_tmp_path)
    comm.barrier()
    out = run(comm_tmp_path, monkeypatch, source, comm=comm)
    with GraphStore.open(out) as store:
        store.verify()
        assert store.num_nodes == NODES
        for step in range(STEPS):
            np.testing.assert_array_equal(store.read_field("u", step, 0, NODES), ARRAYS["u"][step])
            np.testing.assert_array_equal(
                store.read_field("p", step, 0, NODES)[:, 0], ARRAYS["p"][step]
            )
        assert {name: info.unit for name, info in store.fields.items()} == {"u": "m/s", "p": ""}
        np.testing.assert_array_equal(store.times, ARRAYS["times"])
        np.testing.assert_array_equal(store.trajectory_starts, ARRAYS["trajectories"])
        np.testing.assert_array_equal(store.read_positions(0, NODES), ARRAYS["xyz"])
        np.testing.assert_array_equal(store.read_node_weights(0, NODES), ARRAYS["w"])
        assert (store.box, store.time_unit) == ((0, 3, 0), "s")


def test_times_of_a_format_with_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, times=np.arange(4) * 3)
    out = run(tmp_path, monkeypatch, "ring.npz", "--times times.npy")
    with GraphStore.open(out) as store:
        assert store.times.tolist() == [0, 3, 6, 9]


def test_whole_numbers_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    after = np.array([0, 1, 101, 201])
    save(tmp_path, times=1_700_000_000_000_000_001 + after)
    with GraphStore.open(
        run(tmp_path, monkeypatch, flags="--fields u=u.npy --times times.npy")
    ) as s:
        np.testing.assert_array_equal(s.times, after)
    assert "times are counted from the first, 1700000000000000001," in caplog.text
    save(tmp_path, times=1_700_000_000_000 + after)
    with GraphStore.open(
        run(tmp_path, monkeypatch, flags="--fields u=u.npy --times times.npy")
    ) as s:
        np.testing.assert_array_equal(s.times, 1_700_000_000_000 + after)


PLACES = {"d": (4.0, 40.0), "b": (2.0, 20.0), "a": (1.0, 10.0), "c": (3.0, 30.0)}


def write_places(folder: Path, name: str, rows: dict[str, tuple[float, float]]) -> None:
    """Write positions for a road between nodes with names, or with ids that are not numbers."""
    (folder / "roads.csv").write_text("src,dst\na,b\nb,c\na,d\n")
    (folder / "ids.csv").write_text("src,dst\n10,20\n20,30\n10,40\n")
    table = {
        "sensor": list(rows),
        "lat": [lat for lat, _ in rows.values()],
        "road": ["main"] * len(rows),
        "lon": [lon for _, lon in rows.values()],
        "nid": [10 * (1 + ord(each) - ord("a")) for each in rows],
    }
    if name.startswith("ids"):
        del table["sensor"]
    else:
        del table["nid"]
    if name.endswith("parquet"):
        pq.write_table(pa.table(table), folder / name)
        return
    lines = [table, *zip(*table.values(), strict=True)]
    (folder / name).write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("places.csv", "roads.csv --undirected"),
        ("places.parquet", "roads.csv --undirected"),
        ("ids.parquet", "ids.csv --relabel"),
    ],
)
def test_tables_of_positions_name_their_nodes(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: str,
) -> None:
    if comm.rank == 0:
        write_places(comm_tmp_path, name, PLACES)
        (comm_tmp_path / "sizes.csv").write_text("node,size\nc,3\na,1\nd,4\nb,2\n")
    comm.Barrier()
    path, *words = source.split()
    flags = [*words, "--positions", name]
    if path == "roads.csv":
        flags += ["--node-weights", "sizes.csv"]
    with GraphStore.open(run(comm_tmp_path, monkeypatch, path, " ".join(flags), comm)) as store:
        ids = store.read_original_id(0, 4)
        letters = ["abcd"[each // 10 - 1] for each in ids]
        letters = store.names(ids) if store.has_names else letters
        assert sorted(letters) == list("abcd")
        expected = [PLACES[each] for each in letters]
        np.testing.assert_array_equal(store.read_positions(0, 4), expected)
        if store.has_names:
            sizes = [ord(each) - ord("a") + 1 for each in letters]
            np.testing.assert_array_equal(store.read_node_weights(0, 4), sizes)


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        ({"a": (1.0, 1.0)}, "--positions places.csv", "has no row for 3 nodes, such as 'b'; add"),
        ({**PLACES, "e": (5.0, 5.0)}, "--positions places.csv", "line 6: its node is not in the"),
        (PLACES, "--node-weights places.csv", r"needs 1 columns of numbers, not 2 \(lat, lon\)"),
        (
            {**PLACES, "a": (np.nan, 1.0)},
            "--positions places.csv",
            "line 4: a number is missing; give",
        ),
    ],
)
def test_tables_of_positions_have_a_row_for_each_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: dict[str, tuple[float, float]],
    flags: str,
    message: str,
) -> None:
    write_places(tmp_path, "places.csv", rows)
    with pytest.raises(InputError, match=message) as error:
        run(tmp_path, monkeypatch, "roads.csv", flags)
    assert "\n" not in str(error.value)


def test_a_node_has_one_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_places(tmp_path, "places.csv", PLACES)
    with (tmp_path / "places.csv").open("a") as file:
        file.write("b,1,main,2\n")
    with pytest.raises(InputError, match="line 6: this node already has a row; remove one"):
        run(tmp_path, monkeypatch, "roads.csv", "--positions places.csv")


BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no file": ({}, "ring.txt", "--fields u=v.npy", "v.npy: no such file"),
    "no name": ({}, "ring.txt", "--fields u.npy", "--fields u.npy: give NAME="),
    "twice": ({}, "ring.txt", "--fields u=u.npy,u=p.npy", "--fields u=p.npy: give NAME="),
    "shape": ({}, "ring.txt", "--fields w=w.npy", r"w.npy has shape \(19,\)"),
    "rows": (
        {"p": np.zeros((4, 18))},
        "ring.txt",
        "--fields u=u.npy,p=p.npy",
        "p.npy: has rows for 18 nodes",
    ),
    "nodes without": (
        {"u": np.zeros((4, 5))},
        "ring.txt",
        "--fields u=u.npy",
        "is outside 0..4; fields have 5 rows a step, and need one for each node",
    ),
    "another graph": (
        {"u": np.zeros((4, 18))},
        "ring.graph",
        "--fields u=u.npy",
        "rows for 18 nodes",
    ),
    "weights": (
        {"w": np.zeros(18)},
        "ring.txt",
        "--fields u=u.npy --node-weights w.npy",
        "and the graph has 1",
    ),
    "times": ({"times": np.zeros(3)}, "ring.txt", FLAGS, r"times have the shape \(3,\)"),
    "order": ({"times": np.array([3, 2, 1, 0])}, "ring.txt", FLAGS, "step 1 is at 2, and step 0"),
    "trajectories": (
        {"trajectories": np.array([0, 5])},
        "ring.txt",
        FLAGS,
        "^times.npy and trajectories.npy: .*from 0 to the number of steps, 4",
    ),
    "trajectories alone": (
        {"trajectories": np.array([1, 4])},
        "ring.txt",
        "--fields u=u.npy --trajectories trajectories.npy",
        "^trajectories.npy: ",
    ),
    "infinite": (
        {"u": np.full((4, 19), np.inf)},
        "ring.txt",
        FLAGS,
        "step 0: node 0 has the value inf",
    ),
    "text": ({"u": np.full((4, 19), "a")}, "ring.txt", FLAGS, "a field has numbers"),
    "unit": ({}, "ring.txt", "--fields u=u.npy --units v=m", "--units v: is neither a field"),
    "times of nothing": ({}, "ring.txt", "--times times.npy", "--times: has no effect"),
    "box of nothing": ({}, "ring.txt", "--box 1,1,1", "--box: there are no positions"),
    "box": ({}, "ring.txt", "--positions xyz.npy --box a,b,c", "--box a,b,c: give the period"),
    "axes": ({}, "ring.txt", "--positions xyz.npy --box 1,1", "a period for each of 3 axes"),
    "ids": ({}, "ring.txt", "--names --fields u=u.npy", "have ids of their own"),
    "two series": ({}, "ring.npz", "--fields u=u.npy", "the input has fields of its own"),
}


@pytest.mark.parametrize(("changes", "source", "flags", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    source: str,
    flags: str,
    message: str,
) -> None:
    save(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as error:
        run(tmp_path, monkeypatch, source, flags)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.h5").exists()
