"""Fields of edges stay with their edges through merging, sorting, partitions and ranks."""

import json
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.partition import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore

STEPS, NODES = 5, 13
RNG = np.random.default_rng(4)
EDGES = RNG.integers(0, NODES - 2, (60, 2))
"""A graph with duplicates, loops and pairs in both directions; the last two nodes have no edge."""
Q = RNG.standard_normal((STEPS, len(EDGES), 2)).astype(np.float32)
Q[1, 3, 1] = np.nan
F = RNG.standard_normal((STEPS, len(EDGES)))
TIMES = np.array([0, 0.5, 1, 0, 2])
STARTS = np.array([0, 3, STEPS])
FLAGS = (
    "--num-nodes 13 --edge-fields q=q.npy,f=f.npy --units q=kg/s,times=s --times times.npy "
    "--trajectories starts.npy"
)


def save(folder: Path, **changes: Any) -> None:
    arrays = {"q": Q, "f": F, "times": TIMES, "starts": STARTS} | changes
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savetxt(folder / "edges.txt", EDGES, fmt="%d")
    fields = {"edge_field_q": Q, "edge_field_f": F, "unit_q": "kg/s", "unit_times": "s"}
    when = {"times": TIMES, "trajectory_starts": STARTS}
    np.savez(folder / "edges.npz", edge_index=EDGES.T, num_nodes=NODES, **fields, **when)


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    flags: str,
    comm: MPI.Intracomm | None = None,
) -> Path:
    monkeypatch.chdir(folder)
    out = f"out-{0 if comm is None else comm.size}.h5"
    monkeypatch.setattr(sys, "argv", ["convert", source, "-o", out, *flags.split()])
    find_command("convert").call(comm=comm)
    return folder / out


def expected(*, undirected: bool = False, loops: str = "keep") -> dict[tuple[int, int], int]:
    """Return the first input edge that each stored edge (target, source) is; -1: added.

    An edge that the input has only in the other direction is the reverse of the first.
    """
    first: dict[tuple[int, int], int] = {}
    for turn in (-1, 1)[: 1 + undirected]:
        for number, pair in enumerate(EDGES.tolist()):
            if loops != "drop" or pair[0] != pair[1]:
                first.setdefault(tuple(pair[::turn]), number)
    if loops == "add":
        for node in range(NODES):
            first.setdefault((node, node), -1)
    return first


def check(path: Path, first: dict[tuple[int, int], int], flux: str = "") -> None:
    """Compare each value with that of the input's edge; a `flux` is negated in its reverse."""
    with GraphStore.open(path) as store:
        store.verify()
        assert store.num_nodes == NODES
        assert store.num_edges() == len(first)
        infos = store.edge_fields
        assert {n: (i.num_columns, i.dtype.str, i.unit) for n, i in infos.items()} == {
            "f": (1, "<f8", ""),
            "q": (2, "<f4", "kg/s"),
        }
        np.testing.assert_array_equal(store.times, TIMES)
        np.testing.assert_array_equal(store.trajectory_starts, STARTS)
        block, ids = store.read_adjacency(0, NODES), store.read_original_id(0, NODES)
        rows = np.repeat(np.arange(NODES), np.diff(block.indptr))
        ends = np.stack([ids[block.indices], ids[rows]], axis=1)
        places = [first[pair] for pair in map(tuple, ends[:, ::-1].tolist())]
        turned = (EDGES[places] != ends).any(axis=1) & (np.array(places) >= 0)
        for name, values in (("q", Q), ("f", F[:, :, None])):
            for step in (0, 3, 1, 4, 2):
                due = np.where(np.array(places)[:, None] < 0, 0, values[step, places])
                due[turned] *= -1 if name == flux else 1
                for low, high in ((0, len(first)), (5, 9)):
                    found = store.read_field(name, step, low, high)
                    np.testing.assert_array_equal(found, due[low:high])


@pytest.mark.parametrize("source", ["edges.txt", "edges.npz"])
@pytest.mark.parametrize(
    "way",
    [
        "",
        "--undirected",
        "--undirected --fluxes q",
        "--undirected --fluxes q --memory 1KiB",
        "--undirected --fluxes q --duplicates sum",
        "--self-loops drop",
        "--self-loops add",
    ],
)
def test_values_stay_with_their_edges(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    way: str,
) -> None:
    if comm.rank == 0:
        save(comm_tmp_path)
    comm.barrier()
    flags = f"{FLAGS if source == 'edges.txt' else ''} {way}"
    out = run(comm_tmp_path, monkeypatch, source, flags, comm=comm)
    if comm.rank == 0:
        loops = way.split()[-1] if "loops" in way else "keep"
        check(
            out,
            expected(undirected="undirected" in way, loops=loops),
            "q" if "fluxes q" in way else "",
        )
        alone = run(comm_tmp_path, monkeypatch, source, flags)
        with GraphStore.open(out) as together, GraphStore.open(alone) as one:
            assert together.fingerprint == one.fingerprint
    comm.barrier()


@pytest.mark.parametrize("parts", [1, 3])
def test_partitions_move_them(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    if comm.rank == 0:
        save(comm_tmp_path)
        run(comm_tmp_path, monkeypatch, "edges.txt", FLAGS)
        with GraphStore.open(comm_tmp_path / "out-0.h5") as store:
            part = np.random.default_rng(1).integers(0, parts, NODES).astype(np.int32)
            write_partitioned(
                store, comm_tmp_path / "one.h5", Partition(part, parts), method="random", seed=0
            )
        check(comm_tmp_path / "one.h5", expected())
    comm.barrier()
    monkeypatch.chdir(comm_tmp_path)
    words = ["partition", "out-0.h5", "-o", "all.h5", "--parts", str(parts), "--method", "random"]
    monkeypatch.setattr(sys, "argv", words)
    find_command("partition").call(comm=comm)
    if comm.rank == 0:
        check(comm_tmp_path / "all.h5", expected())
    comm.barrier()


def test_tables_of_pairs(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = sorted({tuple(sorted(pair)) for pair in EDGES.tolist()})
    values = np.random.default_rng(2).random((3, len(pairs)))
    lines = [
        f"{time},n{pair[::turn][0]},n{pair[::turn][1]},{values[step, number]}"
        for step, time in enumerate((0.5, 1, 4))
        for number, pair in enumerate(pairs)
        for turn in (1 if (number + step) % 2 else -1,)
        if (step, number) != (1, 2)
    ]
    if comm.rank == 0:
        (comm_tmp_path / "q.csv").write_text("\n".join(["when,from,to,flow", *lines[::-1]]))
        edges = [f"n{source},n{target}" for source, target in EDGES.tolist()]
        (comm_tmp_path / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    comm.barrier()
    columns = "time=when,source=from,target=to,values=flow"
    flags = f"--undirected --relabel --edge-series q.csv --edge-series-columns {columns}"
    flags += " --dtype float64"
    out = run(comm_tmp_path, monkeypatch, "edges.csv", flags, comm=comm)
    with GraphStore.open(out) as store:
        assert store.times.tolist() == [0.5, 1, 4]
        n = store.num_nodes
        block = store.read_adjacency(0, n)
        names = store.names(store.read_original_id(0, n))
        rows = np.repeat(np.arange(n), np.diff(block.indptr))
        numbers = [
            pairs.index(tuple(sorted((int(names[a][1:]), int(names[b][1:])))))
            for a, b in zip(rows, block.indices, strict=True)
        ]
        for step in range(3):
            due = values[step, numbers]
            due[(np.array(numbers) == 2) & (step == 1)] = np.nan
            found = store.read_field("flow", step, 0, store.num_edges())
            np.testing.assert_array_equal(found[:, 0], due)


PIPES = [(0, 1), (2, 1), (2, 3), (3, 0)]
FLOWS = np.array([[1.0, -2, 3, 4], [5, 6, -7, 0.5]], np.float32)
WATER = {
    # Edges, ends and signs of the table's rows, and the expected values of a flow's reverse.
    "one way": (PIPES, [(*p, 1) for p in PIPES], "--undirected --fluxes flow", -1),
    "one way, no flux": (PIPES, [(*p, 1) for p in PIPES], "--undirected", 1),
    "against the edge": (PIPES, [(*p[::-1], -1) for p in PIPES], "--undirected --fluxes flow", -1),
    "both ways": (
        [*PIPES, *(p[::-1] for p in PIPES)],
        [(*p, 1) for p in PIPES] + [(*p[::-1], -1) for p in PIPES],
        "",
        -1,
    ),
}


@pytest.mark.parametrize("kind", ["csv", "npy", "npz"])
@pytest.mark.parametrize("case", WATER)
def test_flows_of_pipes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: str,
    kind: str,
) -> None:
    edges, rows, flags, sign = WATER[case]
    np.savetxt(tmp_path / "pipes.txt", edges, fmt="%d")
    lines = [
        f"{time},{a},{b},{turn * FLOWS[time, number % 4]}"
        for time in range(2)
        for number, (a, b, turn) in enumerate(rows)
    ]
    (tmp_path / "flow.csv").write_text("\n".join(["time,source,target,flow", *lines]))
    given = np.concatenate([FLOWS, -FLOWS], axis=1)[:, : len(edges)]
    np.save(tmp_path / "flow.npy", given)
    np.savez(tmp_path / "pipes.npz", edge_index=np.transpose(edges), edge_field_flow=given)
    source = "pipes.npz" if kind == "npz" else "pipes.txt"
    beside = {"csv": "--edge-series flow.csv", "npy": "--edge-fields flow=flow.npy", "npz": ""}
    with GraphStore.open(run(tmp_path, monkeypatch, source, f"{flags} {beside[kind]}")) as store:
        assert (store.undirected, store.num_edges()) == (True, 8)
        block = store.read_adjacency(0, 4)
        targets = np.repeat(np.arange(4), np.diff(block.indptr))
        for step in range(2):
            found = store.read_field("flow", step, 0, 8)[:, 0].tolist()
            ends = map(tuple, np.stack([block.indices, targets], axis=1).tolist())
            found = dict(zip(ends, found, strict=True))
            for pipe, flow in zip(PIPES, FLOWS[step].tolist(), strict=True):
                assert (found[pipe], found[pipe[::-1]]) == (flow, sign * flow)
    told = "flow: reverse edges get their edge's value; --fluxes flow negates it"
    assert (told in caplog.text) == ("no flux" in case)


def test_beside_fields_of_nodes_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, u=RNG.random((STEPS, NODES, 3)))
    out = run(
        tmp_path,
        monkeypatch,
        "edges.npz",
        "--edge-fields x=f.npy",
    )
    with GraphStore.open(out) as store:
        assert list(store.edge_fields) == ["f", "q", "x"]
        np.testing.assert_array_equal(store.times, TIMES)
    out = run(tmp_path, monkeypatch, "edges.txt", f"{FLAGS} --fields u=u.npy")
    with GraphStore.open(out) as store:
        assert (list(store.fields), list(store.edge_fields)) == (["u"], ["f", "q"])
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["inspect", str(out), "--json"])
    find_command("inspect").call()
    told = json.loads(capsys.readouterr().out)["fields"]["fields"]
    assert {each["name"]: each["of"] for each in told} == {"u": "nodes", "f": "edges", "q": "edges"}
    monkeypatch.setattr(sys, "argv", ["inspect", str(out)])
    find_command("inspect").call()
    assert "float32, kg/s, of edges" in " ".join(capsys.readouterr().out.split())


TABLE = "time,source,target,v\n0,{},1\n"
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "rows": (
        {"q": Q[:, 1:]},
        FLAGS.replace(",f=f.npy", ""),
        r"'q' has rows for 59 edges, and edges.txt has 60",
    ),
    "other rows": ({"q": Q[:, 1:]}, FLAGS, "f.npy has 5 steps of 60 edges, and q.npy has 5 of 59"),
    "shape": ({"q": np.zeros(3)}, FLAGS, r"q.npy has shape \(3,\) .* \(T, E, F\) or \(T, E\)"),
    "steps": (
        {"u": np.zeros((4, 13))},
        f"{FLAGS} --fields u=u.npy",
        "q.npy has 5 steps, and u.npy has 4",
    ),
    "a name twice": ({"u": np.zeros((5, 13))}, f"{FLAGS} --fields f=u.npy", "two fields 'f'"),
    "infinite": (
        {"f": np.where(F > 2, np.inf, F)},
        FLAGS,
        "out-0.h5: /fields/edge_values/f: step ",
    ),
    "no edge": (
        {"table": TABLE.format("0,12")},
        "--num-nodes 13 --edge-series t.csv",
        "line 2: its edge is not in the graph",
    ),
    "a row twice": (
        {"table": TABLE.format("0,0") + "0,0,0,2\n"},
        "--edge-series t.csv",
        "this time and edge already have a row",
    ),
    "a row of each direction": (
        {"table": TABLE.format("0,0") + "0,1,0,2\n0,0,1,2\n"},
        "--undirected --edge-series t.csv",
        "already have a row; remove one, or give all edges in both directions and leave out --und",
    ),
    "no flux": (
        {},
        f"{FLAGS} --undirected --fluxes g",
        "--fluxes g: is no field of edges; choose one",
    ),
    "no reverses": ({}, f"{FLAGS} --fluxes f", "--fluxes: has no effect"),
    "no column": (
        {"table": "time,source,v\n0,1,2\n"},
        "--edge-series t.csv",
        "t.csv has no column 'target'; it has time",
    ),
    "a role": (
        {},
        "--edge-series f.npy --edge-series-columns when=t",
        "--edge-series-columns when: is no role; give time=A,source=B,target=C,values=D:E",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    changes, flags, message = BAD[case]
    table = changes.get("table", "time,source,target,v\n")
    save(tmp_path, **{k: v for k, v in changes.items() if k != "table"})
    with (tmp_path / "edges.txt").open("a") as file:
        file.write("0 0\n1 0\n" if "table" in changes else "")
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(InputError, match=message):
        run(
            tmp_path,
            monkeypatch,
            "edges.txt",
            flags.replace("f.npy --edge-series-c", "t.csv --edge-series-c"),
        )


def test_of_several_relations_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    lines = [f"{a} {b} r{a % 2}" for a, b in EDGES.tolist()]
    (tmp_path / "edges.txt").write_text("\n".join(lines))
    flags = f"{FLAGS} --format typed-edge-list --columns src,dst,relation"
    with pytest.raises(
        InputError, match="fields of edges need a graph with a single unnamed relation"
    ):
        run(tmp_path, monkeypatch, "edges.txt", flags)
