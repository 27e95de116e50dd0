"""Neighbour groups: rows cut into pieces of a bounded number of non-zeros, for balance.

A small group balances the load, a large one needs fewer additions across groups; the best size
depends on the card and on the structure of the graph (execution-path paper, section 5).
"""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer
from hpcgnn.typing import GlobalIndices, LocalIndices, Offsets

# Each piece of a split row writes a whole state, so pieces are long; hubs are still spread.
ATTENTION_GROUP_SIZE = 64


class GroupRule(Protocol):
    """Chooses the size of the neighbour groups of a pattern."""

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size, at least 1, for products of a pattern with `width` dense columns."""


@dataclass(frozen=True)
class GroupSizeRule:
    """Group size by linear regression on the graph's structure (equation 3).

    The coefficients multiply the number of nodes, the number of edges and edges per node. `largest`
    bounds the size for graphs larger than those of the fit.
    """

    intercept: float
    per_node: float
    per_edge: float
    per_degree: float
    largest: float = math.inf

    def size(self, num_nodes: int, num_edges: int) -> int:
        """Return the size for a graph, at least 1.

        For an execution path, count its edges and the nodes that have edges in it.
        """
        if num_nodes == 0:
            return 1
        value = (
            self.intercept
            + self.per_node * num_nodes
            + self.per_edge * num_edges
            + self.per_degree * num_edges / num_nodes
        )
        return int(max(1, min(self.largest, math.floor(value + 0.5))))

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size for the stored rows and entries of a pattern."""
        return self.size(len(indptr) - 1, len(indices))

    @staticmethod
    def load(path: Path) -> "GroupSizeRule":
        """Read coefficients that `save` wrote.

        Raises `InputError` if the file cannot be read or lacks a coefficient.
        """
        try:
            table = json.loads(path.read_text())
            names = GroupSizeRule.__dataclass_fields__
            values = {name: float(table[name]) for name in names if name != "largest"}
            values["largest"] = float(table.get("largest", math.inf))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: cannot read group-size coefficients ({error})") from error
        except KeyError as error:
            raise InputError(f"{path}: the coefficient {error} is missing") from error
        if not all(math.isfinite(value) for name, value in values.items() if name != "largest"):
            raise InputError(f"{path}: a coefficient is not a finite number")
        return GroupSizeRule(**values)


@dataclass(frozen=True)
class FixedSize:
    """The same size for every pattern."""

    size: int

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size."""
        return self.size


# Fitted by benchmarks.calibrate_group_size on an NVIDIA H100 to graphs of 15,000 to 7.5 million
# edges; on larger graphs 64 was best.
MEASURED_RULE = GroupSizeRule(
    intercept=13.0796, per_node=2.83761e-5, per_edge=1.18664e-6, per_degree=-0.0322562, largest=64
)
# Fitted by the authors on an NVIDIA P100 (section 5).
PAPER_RULE = GroupSizeRule(
    intercept=0.65538, per_node=1.67431e-5, per_edge=-2.24342e-6, per_degree=0.63641
)


@dataclass(frozen=True, eq=False)
class NeighborGroups:
    """Groups of consecutive non-zeros of the same row, at most `size`, in the order of the pattern.

    Attributes
    ----------
    row, start, stop
        ``(groups,)`` int32, int64, int64: row of the pattern, first non-zero, end.
    piece
        ``(groups,)`` int64: -1 if the group is the only one of its row, otherwise its index among
        the groups of all split rows.
    split_rows, split_starts
        ``(split,)`` int32 rows with more than one group, and ``(split + 1,)`` int64 first pieces.
    empty_rows
        int32 rows without non-zeros, which have no group.
    """

    size: int
    row: LocalIndices
    start: Offsets
    stop: Offsets
    piece: GlobalIndices
    split_rows: LocalIndices
    split_starts: Offsets
    empty_rows: LocalIndices

    @property
    def num_pieces(self) -> int:
        """Number of groups of split rows."""
        return int(self.split_starts[-1])


def neighbor_groups(indptr: Offsets, size: int) -> NeighborGroups:
    """Cut the rows of a pattern into groups of at most `size` non-zeros, see `GroupRule`.

    `indptr` are ``(m + 1,)`` int64 offsets, in host memory. Raises `ValueError` for a size below 1,
    or offsets that decrease.
    """
    lengths = np.diff(indptr)
    if size < 1:
        raise ValueError(f"a group has at least one non-zero, not {size}")
    if lengths.size > 0 and int(lengths.min()) < 0:
        raise ValueError("indptr must not decrease")
    counts = -(-lengths // size)
    row = np.repeat(np.arange(lengths.size, dtype=np.int32), counts)
    # The number of a group inside its row.
    inside = np.arange(row.size, dtype=np.int64) - (np.cumsum(counts) - counts)[row]
    start = indptr[row] + inside * size
    is_split = counts > 1
    pieces = is_split[row]
    split_rows = np.flatnonzero(is_split).astype(np.int32)
    return NeighborGroups(
        size=size,
        row=row,
        start=start,
        stop=np.minimum(start + size, indptr[1:][row]),
        piece=np.where(pieces, np.cumsum(pieces) - 1, -1),
        split_rows=split_rows,
        split_starts=np.concatenate([[0], np.cumsum(counts[split_rows])]).astype(np.int64),
        empty_rows=np.flatnonzero(counts == 0).astype(np.int32),
    )


@dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Neighbour groups in device memory, made once for a pattern and given to every product.

    `unstored` are the rows that no group overwrites: the empty and the split rows.
    """

    host: NeighborGroups
    row: DeviceArray
    start: DeviceArray
    stop: DeviceArray
    piece: DeviceArray
    split_rows: DeviceArray
    split_starts: DeviceArray
    empty_rows: DeviceArray
    unstored: DeviceArray

    @staticmethod
    def upload(groups: NeighborGroups) -> "DeviceGroups":
        """Copy groups to the current device."""
        cupy = load_cupy()
        unstored = np.concatenate([groups.empty_rows, groups.split_rows])
        return DeviceGroups(
            host=groups,
            row=cupy.asarray(groups.row),
            start=cupy.asarray(groups.start),
            stop=cupy.asarray(groups.stop),
            piece=cupy.asarray(groups.piece),
            split_rows=cupy.asarray(groups.split_rows),
            split_starts=cupy.asarray(groups.split_starts),
            empty_rows=cupy.asarray(groups.empty_rows),
            unstored=cupy.asarray(unstored),
        )

    @staticmethod
    def of(indptr: DeviceArray, size: int | None = None) -> "DeviceGroups":
        """Make groups for a pattern whose offsets ``(m + 1,)`` int64 are on the device.

        Copies the offsets to the host and waits for them. The default size is that of
        `MEASURED_RULE`.
        """
        offsets = load_cupy().asnumpy(indptr)
        chosen = size or MEASURED_RULE.size(offsets.size - 1, int(offsets[-1]))
        return DeviceGroups.upload(neighbor_groups(offsets, chosen))

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The fields of the kernels' ``Groups``."""
        return {
            "row": pointer(self.row),
            "start": pointer(self.start),
            "stop": pointer(self.stop),
            "piece": pointer(self.piece),
            "split_rows": pointer(self.split_rows),
            "split_starts": pointer(self.split_starts),
            "num_groups": self.host.row.size,
            "num_split": self.host.split_rows.size,
        }
