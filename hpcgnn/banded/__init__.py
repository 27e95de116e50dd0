"""Program graphs on dense hardware: supergraphs, and propagation within a band of their matrix.

`BandedOperator` multiplies the adjacency matrices of a `Supergraph` as dense blocks, plus dense
slices for the supernodes that `lay_out` chose. `TypedPairs` multiplies them as a sparse pattern.
Both work on one rank.
"""

from hpcgnn.banded.bands import BandedOperator, held_edges, inside_band
from hpcgnn.banded.edges import TypedEdges, TypedPairs, both_ways
from hpcgnn.banded.supergraph import Supergraph, Window, first_fit_decreasing, pack_lanes
from hpcgnn.banded.supernodes import Slice, Supernodes, lay_out
