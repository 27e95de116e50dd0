"""Messages of edges over a distributed pattern: which edges a rank has, and how rows reach them.

Whoever computes messages, in torch, gets edges part by part: those of own sources, then those of
each stage of the exchange.
"""

from hpcgnn.messages.exact import ExactMessages, OrderedMessages
from hpcgnn.messages.ghosts import source_places, take_home, with_ghosts
from hpcgnn.messages.operator import EdgePart, Fetched, MessageOperator
from hpcgnn.sparse import EdgeTable
