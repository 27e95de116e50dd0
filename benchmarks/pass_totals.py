"""Traffic and time of an epoch of a traced run, for the forward and backward pass separately."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hpcgnn.analysis.load import RankTrace, Run, SpanRecord

__all__ = ["PASSES", "PassTotals", "pass_totals"]

PASSES = ("forward", "backward")
COMMUNICATION = frozenset({"exchange", "wait"})
AGGREGATION = COMMUNICATION | {"interior", "boundary"}
"""Phases of a product; their spans inside a pass are its aggregation."""

_NANO = 1e-9


@dataclass(frozen=True)
class PassTotals:
    """One pass of a steady epoch over all ranks, without evaluations.

    Attributes
    ----------
    sent
        (products, ranks, ranks) bytes that each rank sends to each in every product.
    row_bytes
        (products,) bytes of one sent row; 0 if none was sent.
    aggregation_s, communication_s
        Median over epochs of the slowest rank's seconds in products, and of its seconds of packing,
        sending and waiting.
    """

    sent: NDArray[np.int64]
    row_bytes: NDArray[np.int64]
    aggregation_s: float
    communication_s: float

    def link_bytes(self, hosts: Sequence[str]) -> int:
        """Return the bytes over the busiest link, summed over products.

        A link carries a host's sent bytes one way and its received bytes the other way. Products
        follow each other, so these bytes bound the time of a pass. `hosts` has a name per rank.
        """
        names = sorted(set(hosts))
        on_host = np.array([[host == name for host in hosts] for name in names], np.int64)
        between = on_host @ self.sent @ on_host.T
        between[:, range(len(names)), range(len(names))] = 0
        return int(np.maximum(between.sum(axis=1), between.sum(axis=2)).max(axis=1).sum())


def pass_totals(run: Run) -> dict[str, PassTotals]:
    """Return the totals of each pass, without the first epoch, which builds buffers.

    Raises
    ------
    InputError
        If the run has no trace.
    """
    traces = run.traces()
    return {name: _totals([_epochs(trace, name) for trace in traces]) for name in PASSES}


def _epochs(trace: RankTrace, name: str) -> dict[int, list[SpanRecord]]:
    """Return the spans of products inside a pass, by epoch, in order."""
    spans = [span for span in trace.spans() if span.epoch]
    outer = {span.epoch: span for span in spans if span.name == f"dense.{name}"}
    epochs = defaultdict(list)
    for span in sorted(spans, key=lambda each: each.start_ns):
        assert span.epoch is not None
        around = outer.get(span.epoch)
        if around is not None and span.phase in AGGREGATION and _inside(span, around):
            epochs[span.epoch].append(span)
    return epochs


def _inside(span: SpanRecord, outer: SpanRecord) -> bool:
    return outer.start_ns <= span.start_ns and span.stop_ns <= outer.stop_ns


def _totals(ranks: Sequence[dict[int, list[SpanRecord]]]) -> PassTotals:
    epochs = sorted(ranks[0])
    products = [list(_products(rank[epochs[0]])) for rank in ranks]
    sent = np.array(
        [[_sent(spans, len(ranks)) for spans in rank] for rank in products], np.int64
    ).reshape(len(ranks), -1, len(ranks))
    everyone = [[span for rank in each for span in rank] for each in zip(*products, strict=True)]
    return PassTotals(
        sent.transpose(1, 0, 2),
        np.array([_row_bytes(spans) for spans in everyone], np.int64),
        *(
            median(max(_seconds(rank[epoch], phases) for rank in ranks) for epoch in epochs)
            for phases in (AGGREGATION, COMMUNICATION)
        ),
    )


def _products(spans: Sequence[SpanRecord]) -> Iterator[list[SpanRecord]]:
    """Yield the exchange spans of each product: all those that start before its wait."""
    product: list[SpanRecord] = []
    for span in spans:
        if span.phase == "exchange":
            product.append(span)
        elif span.phase == "wait" and product:
            yield product
            product = []


def _sent(spans: Sequence[SpanRecord], num_ranks: int) -> NDArray[np.int64]:
    sent = np.zeros(num_ranks, np.int64)
    for span in spans:
        for peer, _, size in span.peers or ():
            sent[peer] += size
    return sent


def _row_bytes(spans: Sequence[SpanRecord]) -> int:
    return max((span.bytes // span.rows for span in spans if span.rows), default=0)


def _seconds(spans: Sequence[SpanRecord], phases: frozenset[str]) -> float:
    return sum(span.self_ns for span in spans if span.phase in phases) * _NANO
