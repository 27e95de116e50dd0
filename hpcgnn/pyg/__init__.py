"""Run modules written for one process over ranks, such as unmodified torch_geometric layers.

A rank has the edges that end at its nodes. Sources are numbered among its own rows, followed by the
rows that other ranks own. A torch function mode detects where a module indexes by the sources, and
fetches their rows, or returns sums at them to their owners.
"""

from hpcgnn.pyg.builtin_layers import Call, builtin_layers
from hpcgnn.pyg.calls import distribute, distributed, prepare, share_of
from hpcgnn.pyg.edges import EdgeList, EdgePlaceholder, EdgeShare, RowShare
from hpcgnn.pyg.row_axis import mark
