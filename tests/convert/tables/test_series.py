"""Fields from long tables: a row for each time and node, in text and Parquet."""

import sys
from decimal import Decimal
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore

COMMAND = find_command("convert")
TIMES = [0.0, 0.5, 2.0]
NODES = 4
VALUES = np.random.default_rng(5).random((2, len(TIMES), NODES)).astype(np.float32)
VALUES[:, 1, 2] = np.nan


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: str, comm: MPI.Intracomm | None = None
) -> GraphStore:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["convert", "ring.txt", "-o", "out.h5", *flags.split()])
    COMMAND.call(comm=comm)
    return GraphStore.open(folder / "out.h5")


def write(folder: Path, name: str, nodes: list[object], times: list[object]) -> None:
    """Write all rows except those of missing values, in a random order."""
    order = np.random.default_rng(6).permutation(len(TIMES) * NODES)
    rows = [divmod(int(each), NODES) for each in order if each != NODES + 2]
    table = pa.table(
        {
            "__index_level_0__": list(range(len(rows))),
            "sensor": [nodes[node] for _, node in rows],
            "when": [times[step] for step, _ in rows],
            "flow": [float(VALUES[0, step, node]) for step, node in rows],
            "speed": [float(VALUES[1, step, node]) for step, node in rows],
        }
    )
    if name.endswith(".parquet"):
        pa.parquet.write_table(table, folder / name)
    else:
        pa.csv.write_csv(table, folder / name)
    ring = [f"{nodes[each]},{nodes[(each + 1) % NODES]}" for each in range(NODES)]
    (folder / "ring.txt").write_text("\n".join(ring))


FLAGS = "--series-columns time=when,node=sensor,values=flow:speed"
DATES: list[object] = ["2024-02-29T23:59:59.5", "2024-03-01 00:00:00", "2024-03-01T00:00:01.5"]


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
@pytest.mark.parametrize("nodes", [list(range(NODES)), ["a", "b", "c,d", "é"], [3, 10, 500, 900]])
@pytest.mark.parametrize("times", [TIMES, DATES])
def test_rows_become_fields(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    nodes: list[object],
    times: list[object],
) -> None:
    if "c,d" in nodes:
        nodes = ["a", "b", "c d", "é"]
    write(tmp_path, name, nodes, times)
    relabel = " --relabel" if 900 in nodes else ""
    # By default, all numeric columns other than the index are values.
    flags = FLAGS if times is DATES else FLAGS.rpartition(",")[0]
    with run(tmp_path, monkeypatch, f"--series {name} {flags}{relabel}") as store:
        assert list(store.fields) == ["flow", "speed"]
        assert store.times.tolist() == TIMES
        assert store.time_unit == ("s" if times is DATES else "")
        assert store.has_names == ("a" in nodes)
        for column, field in enumerate(("flow", "speed")):
            for step in range(len(TIMES)):
                rows = store.read_field(field, step, 0, NODES)[:, 0]
                np.testing.assert_array_equal(rows, VALUES[column, step])


@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize("kind", ["dates", "far dates", "timestamps", "numbers", "integers"])
@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_nanoseconds_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    kind: str,
    step: int,
) -> None:
    after = np.array([0, 1, 7]) * step
    whole = 32503680000 if kind == "far dates" else 1700000000
    nanoseconds = [whole * 10**9 + 999_999_990 + each for each in after.tolist()]
    if kind == "timestamps":
        times = list(np.array(nanoseconds).astype("datetime64[ns]"))
    elif kind == "integers":
        times = nanoseconds
    elif kind == "numbers":
        times = [Decimal(each) / 10**9 for each in nanoseconds]
        times = list(map(str, times)) if name.endswith("parquet") else times
    else:
        seconds = [np.datetime64(each // 10**9, "s") for each in nanoseconds]
        times = [f"{s}.{each % 10**9:09}" for s, each in zip(seconds, nanoseconds, strict=True)]
    write(tmp_path, name, list(range(NODES)), times)
    if kind == "numbers" and name.endswith("parquet"):
        table = pa.parquet.read_table(tmp_path / name)
        exact = table["when"].cast(pa.decimal128(30, 9))
        pa.parquet.write_table(table.set_column(2, "when", exact), tmp_path / name)
    with run(tmp_path, monkeypatch, f"--series {name} {FLAGS}") as store:
        due = after * (1.0 if kind == "integers" else 1e-9)
        np.testing.assert_allclose(store.times, due, rtol=1e-12)
        rows = [store.read_field("flow", each, 0, NODES)[:, 0] for each in range(3)]
        np.testing.assert_array_equal(rows, VALUES[0])
    first = {"numbers": "1700000000.99999999", "integers": "1700000000999999990"}.get(kind, "none")
    assert (f"times are counted from the first, {first}," in caplog.text) == (first != "none")


def test_ranks_leave_the_table_to_the_first(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 0:
        write(comm_tmp_path, "table.csv", list(range(NODES)), list(TIMES))
    comm.barrier()
    flags = f"--series table.csv {FLAGS} --dtype float64"
    with run(comm_tmp_path, monkeypatch, flags, comm) as store:
        np.testing.assert_allclose(store.read_field("flow", 2, 0, NODES)[:, 0], VALUES[0, 2])
        assert store.fields["flow"].dtype == np.float64


GOOD = "time,node,a\n0,0,1\n0,1,2\n1,0,3\n"
BAD = {
    "no file": (None, "", "table.csv: no such file"),
    "columns": (GOOD, "--series-columns time=when", "has no column 'when'"),
    "roles": (
        GOOD,
        "--series-columns times=time",
        "--series-columns times: is no role; give time=",
    ),
    "no values": ("time,node\n0,0\n", "", "needs columns of values besides"),
    "values twice": (GOOD, "--series-columns values=a:a", "needs columns of values besides"),
    "one name": ("time,node,a,a\n0,0,1,2\n", "", "two columns are called 'a'"),
    "twice": (GOOD + "0,1,9\n", "", "line 5: this time and node already have a row"),
    "no node": (GOOD + "0,,9\n", "", "line 5, column 2 is empty"),
    "no number": (GOOD + "2s,1,9\n", "", "line 5: the time '2s' is no number"),
    "signalling": (GOOD + "snan,1,9\n", "", "line 5: the time 'snan' is no number"),
    "no time": (GOOD + ",1,9\n", "", "line 5: its time is missing"),
    "a node that is not": (
        GOOD + "2,7,9\n",
        "--num-nodes 4",
        "line 5: its node is not in the graph",
    ),
    "more nodes": (GOOD + "2,7,9\n", "", "line 5: its node is not in .*, or give --num-nodes"),
    "no date in a row": ("time,node,a\n2020-01-01,0,1\n,1,2\n", "", "line 3: its time is miss"),
    "duration": ("time,node,a\n2020-01-01,0,1\n3600,1,2\n", "", "line 3: the time '3600' is no d"),
    "word": (GOOD + "2,1,x\n", "", "line 5"),
    "infinite": (
        GOOD + "2,1,1e300\n",
        "--num-nodes 4",
        "line 5: the value of a is inf",
    ),
    "no date": ("time,node,a\nmon,0,1\ntue,1,2\n", "", "give ISO dates"),
    "zones": (
        "time,node,a\n2020-01-01T01:00-05:00,0,1\n2020-01-01 01:00,1,2\n",
        "",
        "line 3: the time '2020-01-01 01:00' has no zone, and others",
    ),
    "no rows": ("time,node,a\n", "--series-columns values=a", "has no row with a time|holds no"),
    "sparse": (
        "time,node,a\n" + "".join(f"{each},0,1\n" for each in range(9)),
        "--num-nodes 99999",
        "nearly all values would be missing",
    ),
}


@pytest.mark.parametrize(("text", "flags", "message"), BAD.values(), ids=BAD)
def test_bad_tables_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, flags: str, message: str
) -> None:
    (tmp_path / "ring.txt").write_text("0 1\n1 2\n2 3\n3 0\n")
    if text is not None:
        (tmp_path / "table.csv").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        run(tmp_path, monkeypatch, f"--series table.csv {flags}")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.h5").exists()


def test_what_a_table_loses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ring.txt").write_text("0 1\n1 0\n")
    (tmp_path / "table.csv").write_text("time,node,a,kind\n0,0,1,x\n0,1,1700000001,y\n")
    with run(tmp_path, monkeypatch, "--series table.csv") as store:
        assert list(store.fields) == ["a"]
    told = capsys.readouterr().err
    assert "table.csv: columns without numbers in the first rows are left out: kind; " in told
    assert "line 3: the value of a is rounded from 1700000001 to 1700000000" in told
