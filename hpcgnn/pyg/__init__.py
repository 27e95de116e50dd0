"""Modules written for one process, over ranks: layers of torch_geometric as they are.

A rank has the edges that end at its nodes. Their sources are numbered among the own rows and,
behind these, the rows that other ranks own. A mode of torch sees where a module indexes by the
sources, and fetches their rows, or takes sums at them home.
"""

from hpcgnn.pyg.calls import distribute, distributed, mark_rows, prepare, share_of
from hpcgnn.pyg.edges import Edges, EdgeShare, Pattern, RowShare
from hpcgnn.pyg.own_layers import Call, own_layers
