"""What one epoch of a traced run moved and took, forward and backward pass apart."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from analysis.load import RankTrace, Run, SpanRecord

__all__ = ["AGGREGATION", "PassTotals", "pass_totals"]

AGGREGATION = frozenset({"exchange", "wait", "interior", "boundary"})
"""Phases of a product; their spans inside a pass make its aggregation."""

PASSES = ("forward", "backward")
_NANO = 1e-9


@dataclass
class PassTotals:
    """One pass of the steady epochs of one rank, without evaluations.

    Attributes
    ----------
    sent
        (ranks,) bytes of an epoch to each rank.
    aggregation_s
        Median over epochs of the seconds of products, communication included.
    """

    sent: NDArray[np.int64]
    aggregation_s: float = 0.0
    _seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))


def pass_totals(run: Run) -> dict[str, list[PassTotals]]:
    """Return what every rank did in each pass; the first epoch, which builds things, is left out.

    Raises
    ------
    InputError
        When the run has no trace.
    """
    traces = run.traces()
    return {name: [_rank_pass(trace, name, len(traces)) for trace in traces] for name in PASSES}


def _rank_pass(trace: RankTrace, name: str, num_ranks: int) -> PassTotals:
    spans = [span for span in trace.spans() if span.epoch is not None and span.epoch > 0]
    outer = {span.epoch: span for span in spans if span.name == f"dense.{name}"}
    totals = PassTotals(np.zeros(num_ranks, np.int64))
    for span in spans:
        around = outer.get(span.epoch)
        if around is None or span.phase not in AGGREGATION or not _inside(span, around):
            continue
        assert span.epoch is not None
        totals._seconds[span.epoch] += span.self_ns * _NANO
        for peer, _, size in span.peers or ():
            totals.sent[peer] += size
    totals.sent //= max(len(outer), 1)
    totals.aggregation_s = median(totals._seconds.values()) if totals._seconds else 0.0
    return totals


def _inside(span: SpanRecord, outer: SpanRecord) -> bool:
    return outer.start_ns <= span.start_ns and span.stop_ns <= outer.stop_ns
