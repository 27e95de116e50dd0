"""The plan of a run that a test makes."""

import numpy as np

from hpcgnn.comm import ProcessGrid, Sent
from hpcgnn.config.config import Config
from hpcgnn.plan.rehearsal import Rehearsal, rehearse
from hpcgnn.plan.traffic import Ranks, sent_by_groups
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore


def planned(
    config: Config, ranks: int, per_host: int | None, epochs: int
) -> tuple[Rehearsal, int, tuple[Sent, Sent, Sent]]:
    """Return a rehearsal, its rank, and each rank's traffic once, in an epoch, in an evaluation."""
    replication = config.exchange.replication
    with GraphStore.open(config.graph.store) as store, ProcessGrid.of_this_process() as alone:
        whole = WholeGraph(alone, config, store)
        starts = whole.row_starts(ranks // (replication * config.exchange.groups))
        every = Ranks(starts, config.exchange, per_host)
        surveys = whole.surveys(every)
        traffic = {key: survey.traffic(every) for key, survey in surveys.items()}
        traffic |= {key: e.traffic(replication) for key, e in whole.requests(starts).items()}
        # As in hpcgnn plan: a rank that trains.
        block = int(np.flatnonzero(whole.trains(starts))[-1])
        share = whole.share(config, every, surveys, block)
        found = rehearse(alone, share, epochs)
        once, epoch, evaluation = (
            sent_by_groups(groups, traffic, replication)
            for groups in (found.once, found.epoch, found.evaluation)
        )
        return found, block * replication + share.position.replica, (once, epoch, evaluation)
