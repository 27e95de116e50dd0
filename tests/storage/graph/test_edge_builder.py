"""Edges in any order, in any pieces, with any memory, give the same sorted rows."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

from hpcgnn.errors import InputError
from hpcgnn.storage import CSRBlock, EdgeBuilder, EdgeColumns, GraphStore, StoreHeader, StoreWriter
from hpcgnn.storage.graph.sorting import MAX_ID, Duplicates, SortedRun, make_keys, row_ranges
from tests.support.full_disk import largest_file

TINY = 1
"""Memory for few edges, so that every test spills."""


def build(path: Path, builder: EdgeBuilder, *, num_nodes: int | None = None) -> CSRBlock:
    header = StoreHeader(name="g", num_nodes=num_nodes or builder.num_nodes)
    with StoreWriter(path, header) as writer:
        counted = builder.count(0, header.num_nodes)
        builder.write(writer)
    with GraphStore.open(path) as store:
        block = store.read_adjacency(0, store.num_nodes)
    assert block.num_edges == counted
    return block


def oracle(
    n: int, edges: list[tuple[int, int, float]], options: dict[str, Any]
) -> dict[tuple[int, int], float]:
    """Return the non-zeros by (row, column), by going through the edges one by one."""
    found: dict[tuple[int, int], float] = {}
    for src, dst, weight in edges:
        if options["self_loops"] == "drop" and src == dst:
            continue
        ends = {(dst, src), (src, dst)} if options["undirected"] else {(dst, src)}
        for entry in ends:
            if entry not in found:
                found[entry] = weight
            elif options["duplicates"] == "sum":
                found[entry] += weight
    if options["duplicates"] == "sum":
        found = {entry: weight for entry, weight in found.items() if weight != 0}
    if options["self_loops"] == "add":
        for node in range(n):
            found.setdefault((node, node), 1.0)
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, float]], dict[str, Any]]:
    n = draw(st.integers(1, 15))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([0, 1, 5, 63, 64, 65, 300]))
    ends = rng.integers(0, n, (count, 2))
    # Quarters add up without rounding.
    weights = rng.integers(-8, 9, count) / 4
    edges = [(int(s), int(d), float(w)) for (s, d), w in zip(ends, weights, strict=True)]
    options = {
        "undirected": draw(st.booleans()),
        "self_loops": draw(st.sampled_from(["keep", "add", "drop"])),
        "duplicates": draw(st.sampled_from(["first", "sum"])),
    }
    return n, edges, options


@settings(max_examples=60)
@given(case=cases(), weighted=st.booleans(), piece=st.sampled_from([1, 7, 1000]))
def test_against_oracle(
    case: tuple[int, list[tuple[int, int, float]], dict[str, Any]],
    weighted: bool,
    piece: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    n, edges, options = case
    base = tmp_path_factory.mktemp("edges")
    if not weighted:
        edges = [(src, dst, 1.0) for src, dst, _ in edges]
    entries = oracle(n, edges, options)
    for memory_bytes in (TINY, 1 << 30):
        with EdgeBuilder(
            n, columns=EdgeColumns(weighted), memory_bytes=memory_bytes, scratch=base, **options
        ) as builder:
            for low in range(0, len(edges), piece):
                columns = np.array(edges[low : low + piece])
                ends = columns[:, :2].astype(np.int64).T
                builder.add(*ends, *([columns[:, 2]] if weighted else []))
            block = build(base / "g.h5", builder)
        rows = np.repeat(np.arange(n), np.diff(block.indptr))
        found = list(zip(rows.tolist(), block.indices.tolist(), strict=True))
        assert found == sorted(entries)
        if weighted or options["duplicates"] == "sum":
            assert block.weights is not None
            assert block.weights.tolist() == [entries[entry] for entry in found]
        else:
            assert block.weights is None
        assert [file.name for file in base.iterdir()] == ["g.h5"]


def test_large_random_graph_against_scipy(tmp_path: Path) -> None:
    n = 1003
    rng = np.random.default_rng(17)
    src, dst = rng.integers(0, n, (2, 40_000), dtype=np.int32)
    # Half of all edges end at one node, whose row is larger than a run.
    dst[::2] = 700
    weights = rng.random(40_000, dtype=np.float32)
    expected = sp.coo_matrix((weights.astype(np.float64), (dst, src)), (n, n)).tocsr()
    expected.sum_duplicates()
    for memory_bytes in (100_000, 1 << 30):
        with EdgeBuilder(
            n,
            columns=EdgeColumns(True),
            duplicates="sum",
            memory_bytes=memory_bytes,
            scratch=tmp_path,
        ) as builder:
            builder.add(src, dst, weights)
            block = build(tmp_path / "g.h5", builder)
        np.testing.assert_array_equal(block.indptr, expected.indptr)
        np.testing.assert_array_equal(block.indices, expected.indices)
        np.testing.assert_array_equal(block.weights, expected.data.astype(np.float32))


def test_ranges_are_bounded() -> None:
    rng = np.random.default_rng(3)
    n, limit = 500, 100
    runs = []
    for _ in range(7):
        rows = np.minimum(rng.geometric(0.01, 900), n - 1)
        runs.append(SortedRun(np.sort(make_keys(rows, rng.integers(0, n, 900))), None))
    ranges = list(row_ranges(runs, range(n), limit))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == n
    assert [r[0] for r in ranges[1:]] == [r[1] for r in ranges[:-1]]
    for start, stop, places in ranges:
        assert sum(high - low for low, high in places) <= limit or stop == start + 1
    for run in range(7):
        ends = [r[2][run] for r in ranges]
        assert ends[0][0] == 0
        assert ends[-1][1] == 900
        assert [low for low, _ in ends[1:]] == [high for _, high in ends[:-1]]


def test_ranges_of_few_edges_are_bounded() -> None:
    # Every edge is checked: of every second edge, none would be in rows 4 and 5.
    runs = [
        SortedRun(make_keys(np.array([0, row]), np.zeros(2, np.int64)), None)
        for row in (4, 4, 5, 5)
    ]
    for start, stop, places in row_ranges(runs, range(6), 3):
        assert sum(high - low for low, high in places) <= 3 or stop == start + 1


def test_number_of_nodes_follows_the_largest_id(tmp_path: Path) -> None:
    with EdgeBuilder(None) as builder:
        assert builder.num_nodes == 0
        builder.add(np.array([3], np.uint8), np.array([1], np.int16))
        builder.add([0], [6])
        assert builder.num_nodes == 7
        block = build(tmp_path / "g.h5", builder, num_nodes=9)
    assert block.indptr.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]


def test_no_nodes_at_all(tmp_path: Path) -> None:
    with EdgeBuilder(None) as builder, pytest.raises(InputError, match="has 0 nodes"):
        build(tmp_path / "g.h5", builder)


def test_the_largest_id_that_can_be_sorted() -> None:
    last = np.array([MAX_ID, 0])
    with EdgeBuilder(None, undirected=True) as builder:
        builder.add(last, last[::-1])
        assert builder.num_nodes == MAX_ID + 1
        with pytest.raises(InputError, match=r"edge 2: target 4294967296 is outside"):
            builder.add([0], [MAX_ID + 1])
    run = SortedRun(make_keys(last[:1], last[:1]), None)
    assert run.positions(np.array([0, MAX_ID, MAX_ID + 1])).tolist() == [0, 0, 1]
    with pytest.raises(InputError, match="4294967297 nodes are given"):
        EdgeBuilder(MAX_ID + 2)


@pytest.mark.parametrize("memory_bytes", [TINY, 1 << 30])
def test_duplicates_can_be_refused(memory_bytes: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"duplicates": "error", "memory_bytes": memory_bytes}
    with EdgeBuilder(90, **options) as builder:
        builder.add(np.arange(80), np.zeros(80, int))
        builder.add([80, 7], [0, 0])
        with pytest.raises(InputError, match=r"edge 7 -> 0 is given more than once"):
            build(tmp_path / "g.h5", builder)
    assert list(tmp_path.iterdir()) == []


REFUSED: list[tuple[tuple[Any, ...], str]] = [
    (([0, -3], [0, 0]), "edge 2: source -3 is outside 0..4"),
    (([0], [5]), "edge 1: target 5 is outside 0..4"),
    (([np.uint64(2**64 - 1)], [0]), "edge 1: source 18446744073709551615 is outside 0..4"),
    (([0.5], [1]), "the edges' source ids have shape (1,) and type float64"),
    (([[0]], [[1]]), "the edges' source ids have shape (1, 1)"),
    (([0, 1], [1]), "edges have 2 sources, 1 targets"),
]


@pytest.mark.parametrize(("arrays", "message"), REFUSED)
def test_refused_edges(arrays: tuple[Any, ...], message: str) -> None:
    with EdgeBuilder(5) as builder:
        builder.add([1], [2])
        with pytest.raises(InputError) as caught:
            builder.add(*arrays)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, np.nan], "edge 1: weight nan is not a finite"),
        ([1e39, 0], "edge 0: weight 1e+39 is not a finite"),
        ([1.0], "2 sources, 2 targets and weights of shape (1,)"),
        (["a", "b"], "the edges' weights have type"),
    ],
)
def test_refused_weights(weights: Any, message: str) -> None:
    with EdgeBuilder(5, columns=EdgeColumns(True)) as builder, pytest.raises(InputError) as caught:
        builder.add([1, 2], [2, 3], weights)
    assert message in str(caught.value)


def test_weights_go_with_the_builder() -> None:
    with EdgeBuilder(5) as builder, pytest.raises(ValueError, match="if and only if"):
        builder.add([1], [2], [1.0])
    with (
        EdgeBuilder(5, columns=EdgeColumns(True)) as builder,
        pytest.raises(ValueError, match="if and only if"),
    ):
        builder.add([1], [2])


def test_unusable_scratch(tmp_path: Path) -> None:
    builder = EdgeBuilder(5, memory_bytes=TINY, scratch=tmp_path / "missing")
    with builder, pytest.raises(InputError, match="no scratch file can be made there"):
        builder.add(np.zeros(100, int), np.zeros(100, int))


def test_full_scratch(tmp_path: Path) -> None:
    fault = pytest.raises(InputError, match="no more scratch data fit there")
    with largest_file(100), EdgeBuilder(500, memory_bytes=TINY, scratch=tmp_path) as builder, fault:
        builder.add(np.arange(400), np.arange(400))
    assert list(tmp_path.iterdir()) == []


def _open_below(folder: Path) -> int:
    """Return how many files in a folder this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # The descriptor of the listing itself is gone by now.
        with contextlib.suppress(OSError):
            names.append(str(descriptor.readlink()))
    return sum(name.startswith(str(folder)) for name in names)


def test_scratch_file_has_no_name_and_is_closed(tmp_path: Path) -> None:
    """A killed process leaves nothing, and a forgotten builder no descriptor."""
    builder = EdgeBuilder(500, memory_bytes=TINY, scratch=tmp_path)
    builder.add(np.arange(400), np.arange(400))
    assert list(tmp_path.iterdir()) == []
    assert _open_below(tmp_path) == 1
    del builder
    assert _open_below(tmp_path) == 0


MEMORY = """
import sys
import numpy as np
from hpcgnn.plan.forks import status_bytes
from hpcgnn.storage import EdgeBuilder, StoreHeader, StoreWriter
n, rng = 1 << 16, np.random.default_rng(1)
# The system's maximum of the process would begin with that of the one that started it.
peak = lambda: status_bytes("VmHWM")
# Once small, for what the libraries take themselves.
for count in (1, 24):
    with EdgeBuilder(n, memory_bytes=16 << 20, scratch=sys.argv[1]) as builder:
        for _ in range(count):
            builder.add(*rng.integers(0, n, (2, 1 << 17), dtype=np.int32))
        with StoreWriter(sys.argv[1] + "/g.h5", StoreHeader(name="g", num_nodes=n)) as writer:
            builder.write(writer)
    if count == 1:
        before = peak()
print((peak() - before) / 2**20)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, check=True
    )
    # 3.1 M edges would take 100 MiB and more at once.
    assert float(done.stdout) < 24


def test_policies_are_those_of_the_signature() -> None:
    assert get_args(Duplicates) == ("first", "sum", "error")
