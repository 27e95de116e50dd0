"""Turn any number of edges in any order into sorted, unique rows, within bounded memory."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.format import first_true
from hpcgnn.storage.graph.blocks import EdgeData, SortedRows
from hpcgnn.storage.graph.sorting import (
    MAX_ID,
    MIRRORED,
    Duplicates,
    Keys,
    SortedRun,
    SpilledRun,
    SpillFile,
    add_loops,
    keep_first,
    key_columns,
    key_rows,
    make_keys,
    merge_pieces,
    row_ranges,
    sort_edges,
)
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.typing import Array, FloatArray, Offsets

PIECE = 1 << 20
"""Edges to check and pack at a time."""

MIN_RUN = 64

# The most memory per edge while a run is sorted, including a share for the blocks being written.
BYTES_PER_EDGE = 32
_BYTES_OF_ORDER = 8

_NO_DATA = EdgeData()


@dataclass(frozen=True)
class EdgeColumns:
    """The data of every edge of a relation: a weight, a role in a split, features, labels.

    `ordered` edges come with their `EdgeData.order` and may be added in any order; `placed` edges
    come with their `EdgeData.place`.
    """

    weighted: bool = False
    split: bool = False
    num_features: int = 0
    dtype: str = "<f4"
    ordered: bool = False
    num_labels: int = 0
    label_dtype: str = "<i4"
    placed: bool = False

    @classmethod
    def of(cls, data: EdgeData, *, weighted: bool) -> "EdgeColumns":
        """Return the columns that fit `data`; features that are not floats become float32."""
        columns = cls(weighted, data.split is not None)
        if data.features is not None:
            is_float = data.features.dtype.kind == "f"
            width, dtype = data.features.shape[1], data.features.dtype.str if is_float else "<f4"
            columns = replace(columns, num_features=width, dtype=dtype)
        if data.labels is not None:
            width, dtype = data.labels.shape[1], data.labels.dtype.str
            columns = replace(columns, num_labels=width, label_dtype=dtype)
        return columns

    @property
    def has_data(self) -> bool:
        """Whether edges have stored data other than a weight."""
        return self.split or self.num_features > 0 or self.num_labels > 0

    def record(self) -> Any:
        """Return the type of the values that are sorted with the edges, None without values."""
        if not (self.has_data or self.ordered or self.placed):
            return np.dtype("<f4") if self.weighted else None
        fields: list[Any] = [("order", "<u8")] if self.ordered else []
        fields += [("place", "<u8")] if self.placed else []
        fields += [("weight", "<f4")] if self.weighted else []
        fields += [("split", "u1")] if self.split else []
        if self.num_features:
            fields.append(("features", self.dtype, (self.num_features,)))
        if self.num_labels:
            fields.append(("labels", self.label_dtype, (self.num_labels,)))
        return np.dtype(fields)

    def pack(self, weights: Array | None, data: EdgeData) -> Array | None:
        """Return the values of edges as one array; raises `ValueError` if a column is missing."""
        if not (self.has_data or self.ordered or self.placed):
            return weights
        columns = {
            "weight": weights,
            "split": data.split,
            "features": data.features,
            "labels": data.labels,
            "order": data.order,
            "place": data.place,
        }
        parts = {name: array for name, array in columns.items() if array is not None}
        dtype = self.record()
        if set(parts) != set(dtype.names):
            raise ValueError(f"give {', '.join(dtype.names)} of the edges, not {', '.join(parts)}")
        values = np.empty(len(next(iter(parts.values()))), dtype)
        for name, array in parts.items():
            values[name] = array
        return values

    def unpack(self, values: Array | None) -> tuple[FloatArray | None, EdgeData]:
        """Split values into weights and data."""
        if values is None or values.dtype.names is None:
            return values, _NO_DATA
        parts = {name: np.ascontiguousarray(values[name]) for name in values.dtype.names or ()}
        return parts.get("weight"), EdgeData(
            **{name: array for name, array in parts.items() if name != "weight"}
        )

    def no_rows(self) -> SortedRows:
        """Return a block without rows."""
        dtype = self.record()
        values = None if dtype is None else np.empty(0, dtype)
        return SortedRows(np.zeros(1, np.int64), np.empty(0, np.int64), *self.unpack(values))


class EdgeBuilder:
    """Collect the edges of one relation, then write them to a store.

    An edge src -> dst becomes the non-zero in row dst, column src. `undirected` adds the reverse of
    every edge, with its data. `duplicates`: keep the "first" edge of a pair, "sum" the weights
    (edges without weights count as 1, and the result has weights; a sum of 0 is no edge), or raise
    an "error".
    `self_loops` "add" gives each node without a loop one of weight 1. `num_nodes` None means 1 +
    the largest id.

    Edges beyond `memory_bytes` are sorted and spilled to an unnamed file in the folder `scratch`
    (default: the system's, see TMPDIR); if `scratch` is a `SpillFile`, another builder can continue
    from it. A single row is never split. The result does not depend on `memory_bytes`, nor on how
    edges are distributed over calls of `add`.
    """

    def __init__(
        self,
        num_nodes: int | None,
        *,
        undirected: bool = False,
        self_loops: Literal["keep", "add", "drop"] = "keep",
        duplicates: Duplicates = "first",
        columns: EdgeColumns = EdgeColumns(),
        memory_bytes: int = 1 << 30,
        scratch: str | os.PathLike[str] | SpillFile | None = None,
    ) -> None:
        if num_nodes is not None and not 0 <= num_nodes <= MAX_ID + 1:
            raise InputError(f"{num_nodes} nodes are given; edges of 0..{MAX_ID + 1} can be sorted")
        self._given_nodes = num_nodes
        self._undirected, self._self_loops = undirected, self_loops
        self._duplicates: Duplicates = duplicates
        self._reads_weights = columns.weighted
        if duplicates == "sum":
            if columns.has_data:
                raise InputError(
                    "edges with features, a split or labels cannot be summed; choose another way "
                    "to treat duplicates (first, error)"
                )
            columns = EdgeColumns(weighted=True, ordered=columns.ordered, placed=columns.placed)
        self._columns, self._dtype = columns, columns.record()
        row_bytes = BYTES_PER_EDGE
        if self._dtype is not None:
            row_bytes += _BYTES_OF_ORDER + 2 * self._dtype.itemsize
        self._run_edges = max(MIN_RUN, memory_bytes // row_bytes)
        self._scratch = scratch if isinstance(scratch, SpillFile) else None
        self._scratch_parent = None if isinstance(scratch, SpillFile) else scratch
        self._largest = -1
        self._num_added = 0
        self._runs: list[SortedRun] = []
        self._pending: list[tuple[Keys, Array | None]] = []
        self._pending_edges = 0

    @property
    def num_nodes(self) -> int:
        """The number of nodes, final after the last `add`."""
        return self._largest + 1 if self._given_nodes is None else self._given_nodes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all edges and the file they were spilled to."""
        self._runs, self._pending, self._pending_edges = [], [], 0
        self._scratch = None

    def add(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        weights: ArrayLike | None = None,
        data: EdgeData = _NO_DATA,
    ) -> None:
        """Add edges src -> dst, arrays (m,) of any integer type, with the data of `columns`.

        Raises `InputError` with the edge's number, counted from 0 over all calls, for ids that are
        negative or not below `num_nodes` and for weights that are not finite.
        """
        sources, targets = np.asarray(src), np.asarray(dst)
        values = None if weights is None else np.asarray(weights)
        if (values is not None) != self._reads_weights:
            raise ValueError("give weights if and only if the builder is weighted")
        check_arrays(sources, targets, values)
        for low in range(0, len(sources), PIECE):
            part = slice(low, low + PIECE)
            piece = None if values is None else values[part]
            self._add_piece(sources[part], targets[part], piece, data.take(part))

    def save(self) -> dict[str, Any]:
        """Write all edges to the `SpillFile`; return the state for `restore`, as JSON."""
        self._close_run(spill=True)
        assert self._scratch is not None, "a spill file was given"
        self._scratch.sync()
        runs = [run.places for run in self._runs if isinstance(run, SpilledRun)]
        scratch = self._scratch
        return {
            "runs": runs,
            "size": scratch.size,
            "crc32": scratch.crc,
            "largest": self._largest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of another builder; `InputError` if its file is damaged."""
        assert self._scratch is not None, "a spill file was given"
        self._scratch.go_on(state["size"], state["crc32"])
        self._largest = state["largest"]
        self._runs = [SpilledRun(self._scratch, tuple(p), self._dtype) for p in state["runs"]]

    def write(self, writer: StoreWriter, relation: str = "") -> None:
        """Append all rows to `writer`, whose graph may have more nodes, and empty the builder."""
        num_nodes = writer.header.num_nodes
        if num_nodes < self.num_nodes:
            raise ValueError(f"the store has {num_nodes} nodes, the edges have {self.num_nodes}")
        for block in self.blocks(0, num_nodes):
            writer.append_rows(block, relation)

    def count(self, start: int, stop: int) -> int:
        """Return how many non-zeros `blocks` will yield; raises `InputError` if it would."""
        # Weights tell which sums are 0.
        dtype = self._dtype if self._duplicates == "sum" else None
        return sum(len(keys) for _, keys, _ in self._merged(start, stop, dtype))

    def no_rows(self) -> SortedRows:
        """Return an empty block with the same data columns as those of `blocks`."""
        return self._columns.no_rows()

    def blocks(self, start: int, stop: int) -> Iterator[SortedRows]:
        """Yield rows `start` to `stop` - 1, which contain all edges, and empty the builder."""
        yield from self.rows(start, stop)
        self.close()

    def rows(self, start: int, stop: int) -> Iterator[SortedRows]:
        """Yield the same rows as `blocks`, but keep the edges."""
        for indptr, keys, values in self._merged(start, stop, self._dtype):
            yield SortedRows(indptr, key_columns(keys), *self._columns.unpack(values))

    def _merged(
        self, start: int, stop: int, dtype: Any
    ) -> Iterator[tuple[Offsets, Keys, Array | None]]:
        """Yield rows as offsets, keys and values; without values if `dtype` is None."""
        self._close_run(spill=bool(self._runs))
        limit = max(MIN_RUN, self._run_edges // 4)
        for first, last, spans in row_ranges(self._runs, range(start, stop), limit):
            pieces = [
                run.piece(low, high, dtype)
                for run, (low, high) in zip(self._runs, spans, strict=True)
                if high > low
            ]
            keys, values = merge_pieces(pieces, self._duplicates, dtype)
            if self._self_loops == "add":
                keys, values = add_loops(keys, values, first, last)
            degrees = np.bincount(key_rows(keys) - first, minlength=last - first)
            yield np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64), keys, values

    def _add_piece(
        self, sources: Array, targets: Array, given: Array | None, data: EdgeData
    ) -> None:
        first, limit = self._num_added, MAX_ID
        if self._given_nodes is not None:
            limit = self._given_nodes - 1
        check_ids("source", sources, limit, first)
        check_ids("target", targets, limit, first)
        weights: FloatArray | None = None
        if given is not None:
            weights = finite_weights(given, lambda edge: f"edge {first + edge}")
        elif self._columns.weighted:
            weights = np.ones(len(sources), np.float32)
        values = self._columns.pack(weights, data)
        self._num_added += len(sources)
        self._largest = max(self._largest, int(sources.max()), int(targets.max()))
        if self._self_loops == "drop" and (loops := sources == targets).any():
            sources, targets = sources[~loops], targets[~loops]
            values = None if values is None else values[~loops]
        if self._undirected:
            ends = sources.astype(np.uint32), targets.astype(np.uint32)
            sources, targets, *more = both_ways(*ends, values)
            values = more[0] if more else None
        self._keep(make_keys(targets, sources), values)

    def _keep(self, keys: Keys, values: Array | None) -> None:
        while len(keys):
            room = self._run_edges - self._pending_edges
            self._pending.append((keys[:room], None if values is None else values[:room]))
            self._pending_edges += min(room, len(keys))
            keys, values = keys[room:], None if values is None else values[room:]
            if self._pending_edges == self._run_edges:
                self._close_run(spill=True)

    def _close_run(self, *, spill: bool) -> None:
        if not self._pending:
            return
        keys = np.concatenate([keys for keys, _ in self._pending])
        values: Array | None = None
        if self._dtype is not None:
            values = np.concatenate([v for _, v in self._pending if v is not None])
        self._pending, self._pending_edges = [], 0
        keys, values = sort_edges(keys, values)
        if self._duplicates == "first":
            keys, values = keep_first(keys, values)
        run = SortedRun(keys, values)
        if spill:
            self._scratch = self._scratch or SpillFile(self._scratch_parent)
            run = SpilledRun.write(run, self._scratch)
        self._runs.append(run)


def both_ways(src: Array, dst: Array, *data: Array | None) -> list[Array]:
    """Return each edge followed by its reverse, both with the edge's data; a loop occurs once.

    `MIRRORED` is set in the places of reverses.
    """
    # Interleaved, so that "first" keeps the same edge in both directions.
    arrays = [np.stack(pair, axis=1).reshape(-1) for pair in ((src, dst), (dst, src))]
    arrays += [np.repeat(array, 2) for array in data if array is not None]
    for array in arrays[2:]:
        if "place" in (array.dtype.names or ()):
            array["place"][1::2] |= MIRRORED
    loops = src == dst
    if not loops.any():
        return arrays
    stays = np.ones(2 * len(src), np.bool_)
    stays[1::2] = ~loops
    return [array[stays] for array in arrays]


def check_arrays(sources: Array, targets: Array, weights: Array | None) -> None:
    """Raise `InputError` unless these are integers (m,), integers (m,) and numbers (m,)."""
    for name, array in (("source", sources), ("target", targets)):
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            kind = f"shape {array.shape} and type {array.dtype}"
            raise InputError(f"the edges' {name} ids have {kind}; give integers (m,)")
    if len(sources) != len(targets) or (weights is not None and weights.shape != sources.shape):
        counts = f"{len(sources)} sources, {len(targets)} targets"
        if weights is not None:
            counts += f" and weights of shape {weights.shape}"
        raise InputError(f"edges have {counts}; give one of each for every edge")
    if weights is not None and weights.dtype.kind not in "iuf":
        raise InputError(f"the edges' weights have type {weights.dtype}; give numbers")


def check_ids(role: str, ids: Array, limit: int, first_edge: int) -> None:
    """Raise `InputError` unless the ids, at least one, lie in 0..limit."""
    if ids.min() >= 0 and ids.max() <= limit:
        return
    position = int(((ids < 0) | (ids > limit)).argmax())
    raise InputError(
        f"edge {first_edge + position}: {role} {ids[position]} is outside 0..{limit}; "
        "number the nodes from 0 and below their number"
    )


def finite_weights(weights: Array, locate: Callable[[int], str]) -> FloatArray:
    """Return the weights as float32; raises `InputError` for infinite values and NaN."""
    with np.errstate(over="ignore"):
        # Values that overflow become infinite and are refused below.
        single = weights.astype(np.float32)
    if (edge := first_true(~np.isfinite(single))) is not None:
        raise InputError(
            f"{locate(edge)}: weight {weights[edge]} is not a finite float32 number; correct or "
            "remove the edge"
        )
    return single
