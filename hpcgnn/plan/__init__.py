"""What a run would need, before it is started: rows, memory and seconds by exchange and schedule.

One process reads the pattern of the whole graph and counts what every rank would send and receive,
exactly as training counts it. Then it rehearses the rank with the most non-zeros and the one with
the most rows: their shares of the graph, the real model, the real products and the real optimiser,
with messages replaced by zeros of the same size. So memory and the seconds of computing are
measured, rows and bytes are counted, and only the seconds of messages are computed, from a
bandwidth and a latency.
"""

from hpcgnn.plan.candidates import Candidate, predict
from hpcgnn.plan.degree_graph import DegreeGraph
from hpcgnn.plan.network import sent_by_rank
from hpcgnn.plan.rehearsal import Rehearsal, rehearse
from hpcgnn.plan.shape import Shape, write_shape
from hpcgnn.plan.share import Share, make_share
from hpcgnn.plan.stand_ins import MOVEMENTS, Movement
from hpcgnn.plan.survey import Survey, count_traffic
from hpcgnn.plan.traffic import Ranks, Traffic
from hpcgnn.plan.whole_graph import WholeGraph

__all__ = [
    "MOVEMENTS",
    "Candidate",
    "DegreeGraph",
    "Movement",
    "Ranks",
    "Rehearsal",
    "Shape",
    "Share",
    "Survey",
    "Traffic",
    "WholeGraph",
    "count_traffic",
    "make_share",
    "predict",
    "rehearse",
    "sent_by_rank",
    "write_shape",
]
