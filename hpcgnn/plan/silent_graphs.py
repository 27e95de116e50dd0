"""The read-outs of a rehearsed rank: rows of other ranks are zeros, and are counted."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import Communicator
from hpcgnn.plan.graph_pieces import GRAPHS, GraphShare
from hpcgnn.plan.silent_pairs import SilentRequest
from hpcgnn.plan.stand_ins import Log, Movement
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, Mask


@dataclass(frozen=True, eq=False)
class RehearsedMembers(GraphMembers):
    """Members whose rows of other ranks are zeros, and are counted; see `GraphMembers`.

    Parameters
    ----------
    trained
        What other ranks would say of the nodes.
    """

    trained: Mask

    def at_nodes(self, values: Array) -> Array:
        """Return the nodes of training graphs, the only values that are asked for."""
        return self.trained


def rehearsed_members(comm: Communicator, share: GraphShare, block: int, log: Log) -> GraphMembers:
    """Return the members of a rank's graphs, whose messages a log hears of."""
    mine, pieces = np.unique(share.node_graph, return_inverse=True)
    ids, places = np.unique(share.found, return_inverse=True)
    own = np.flatnonzero(share.holders == block)
    # Those that others own do not matter here: they bring zeros.
    own_rows = np.searchsorted(mine, share.found[own]).astype(np.int32)

    def note(reverse: bool, row_bytes: int) -> None:
        log(Movement(GRAPHS, "fetched", reverse, row_bytes))

    asked = np.argsort(share.owners, kind="stable").astype(np.int32)
    request = SilentRequest(
        comm, np.sort(share.owners), asked, share.holders, len(mine), note, own, own_rows
    )
    return RehearsedMembers(
        pieces=torch.from_numpy(pieces.astype(np.int64)),
        num_pieces=len(mine),
        graphs=torch.from_numpy(places.astype(np.int64)),
        ids=ids,
        request=request,
        trace=TraceRecorder.off(),
        trained=share.trained,
    )
