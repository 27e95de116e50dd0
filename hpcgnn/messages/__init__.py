"""Messages of edges over a distributed pattern: which edges a rank has, and how rows reach them.

Whoever computes messages, in torch, gets edges part by part: those of own sources, then those of
each stage of the exchange, and those whose sums are pushed.
"""

from hpcgnn.messages.exact import ExactMessages, OrderedMessages
from hpcgnn.messages.ghosts import source_places, take_home, with_ghosts
from hpcgnn.messages.operator import EdgePart, MessageOperator, PushedEdges
from hpcgnn.messages.remote_rows import Fetched, RemoteRows
from hpcgnn.sparse import EdgeTable
