"""Distributed sparse matrices: a block row on each rank, split into local and ghost columns.

`read_adjacency` reads the chosen relations of a store, `DistCSR` splits a rank's rows, `normalise`
scales them, and `active_sets` and `restrict` reduce them to the entries that some outputs need.
"""

from hpcgnn.sparse.active_sets import active_sets, restrict
from hpcgnn.sparse.assemble import PatternRows, read_adjacency
from hpcgnn.sparse.edge_rows import (
    EdgeEntries,
    EdgeFeatures,
    EdgeRows,
    EdgeTable,
    mean_rows,
    read_edge_features,
    read_edge_rows,
)
from hpcgnn.sparse.graph_copies import copies_of
from hpcgnn.sparse.hide_edges import EdgesOutside, HiddenEdges, local_rows
from hpcgnn.sparse.integers import Factors, IntegerCSR, round_weights
from hpcgnn.sparse.local import MAIN, Kinds, LocalCSR, LocalMatrix, Memory, turned
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.sparse.normalise import scale, scale_factors
from hpcgnn.sparse.relations import read_relations, stack_relations, unite_relations
