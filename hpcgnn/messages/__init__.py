"""Messages along the edges of a distributed pattern: a rank's edges and the rows they read.

Torch code that computes messages gets the edges in parts: those with own sources, then those of
each stage of the exchange, then those whose sums are pushed.
"""

from hpcgnn.messages.exact import ExactMessages, OrderedMessages
from hpcgnn.messages.ghosts import source_places, take_home, with_ghosts
from hpcgnn.messages.operator import EdgePart, MessageOperator, PushedEdges
from hpcgnn.messages.remote_rows import Fetched
from hpcgnn.sparse import EdgeTable
