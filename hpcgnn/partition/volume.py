"""Exact communication volume of a partition, in rows per forward aggregation."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.partition.blocks import row_positions
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.typing import LocalIndices, Offsets

__all__ = ["VolumeMetrics", "measure"]


@dataclass(frozen=True)
class VolumeMetrics:
    """What the parts exchange in one forward aggregation, one rank a part, fetching rows.

    Row j is sent once to every other part that has a non-zero in column j.

    Attributes
    ----------
    edge_cut
        Non-zeros whose row and column lie in different parts (an undirected edge counts twice).
    total_rows, max_send_rows, max_recv_rows, max_pair_rows
        Rows sent by all parts, by the busiest sender, to the busiest receiver, and between the
        busiest ordered pair.
    imbalance
        Maximum over the parts of non-zeros / max(average, heaviest row of the part) - 1.
    parts
        Number of parts.
    """

    edge_cut: int
    total_rows: int
    max_send_rows: int
    max_recv_rows: int
    max_pair_rows: int
    imbalance: float
    parts: int


def measure(graph: CSRGraph, row_part: LocalIndices, num_parts: int) -> VolumeMetrics:
    """Return the volume metrics of `row_part`, int32[n], on `graph`.

    Memory is O(n) plus a few times the non-zeros of one part. A diagonal entry changes nothing.
    Raises ValueError for a part array that does not fit the graph.
    """
    partition = Partition(row_part, num_parts)
    partition.validate()
    if row_part.size != graph.num_nodes:
        raise ValueError(f"{row_part.size} part numbers for {graph.num_nodes} nodes")
    order, starts = partition.permutation(), partition.row_starts()
    edge_cut = total = max_recv = max_pair = 0
    send = np.zeros(num_parts, np.int64)
    for part in range(num_parts):
        rows = order[starts[part] : starts[part + 1]]
        columns = graph.indices[row_positions(graph.indptr, rows)]
        outside = columns[row_part[columns] != part]
        ghosts = np.unique(outside)
        from_part = np.bincount(row_part[ghosts], minlength=num_parts)
        send += from_part
        edge_cut += outside.size
        total += ghosts.size
        max_recv = max(max_recv, ghosts.size)
        max_pair = max(max_pair, int(from_part.max()))
    return VolumeMetrics(
        edge_cut=edge_cut,
        total_rows=total,
        max_send_rows=int(send.max()),
        max_recv_rows=max_recv,
        max_pair_rows=max_pair,
        imbalance=_imbalance(np.diff(graph.indptr), row_part, num_parts),
        parts=num_parts,
    )


def _imbalance(row_lengths: Offsets, row_part: LocalIndices, num_parts: int) -> float:
    """Return the work of the worst part over what no partition could avoid, minus one."""
    total = int(row_lengths.sum())
    if not total:
        return 0.0
    # Not bincount with weights: float64 sums would lose counts above 2**53.
    work = np.zeros(num_parts, np.int64)
    np.add.at(work, row_part, row_lengths)
    heaviest = np.zeros(num_parts, np.int64)
    np.maximum.at(heaviest, row_part, row_lengths)
    return float(np.max(work / np.maximum(total / num_parts, heaviest)) - 1)
