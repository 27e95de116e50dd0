"""Program graphs on dense hardware: supergraphs, and propagation inside a band of their matrix.

`pack_lanes` says which graphs share a `Supergraph`. `BandedOperator` multiplies its adjacency
matrices as dense blocks, `TypedPairs` as a sparse pattern; both are `AggregationOperator`s on one
rank. Graphs of one supergraph stay apart: their blocks lie on one diagonal.
"""

from hpcgnn.banded.bands import BandedOperator, inside_band
from hpcgnn.banded.edges import TypedEdges, both_ways
from hpcgnn.banded.packing import Window, first_fit_decreasing, pack_lanes
from hpcgnn.banded.pairs import LocalOperator, TypedPairs
from hpcgnn.banded.supergraph import Supergraph

__all__ = [
    "BandedOperator",
    "LocalOperator",
    "Supergraph",
    "TypedEdges",
    "TypedPairs",
    "Window",
    "both_ways",
    "first_fit_decreasing",
    "inside_band",
    "pack_lanes",
]
