"""Join the traces of ranks, and drop the epochs that a resumed run repeated.

Each header record starts a session. A session that begins at epoch e of a seed replaces what
earlier sessions recorded for that seed from e on, on every rank. Epochs on another number of ranks
than the last ones do not count: their ranks had other shares of the graph.
"""

from collections.abc import Iterator, Sequence

from hpcgnn.analysis.load import Json, Run, SpanRecord
from hpcgnn.trace import steady


class Trace:
    """The spans of every rank that left a file.

    `num_ranks` is the number of ranks of the last epochs, and `ranks` are those of them that have a
    file, ascending; `every_rank` has all files. `num_sessions` is 1 plus the number of times that
    the run was resumed. `starts_ns` is the Unix time in ns at which each session began, on a rank
    that took part in all. `epoch_s` are the seconds of the counted epochs; None without metrics:
    then all epochs count.
    """

    def __init__(self, run: Run) -> None:
        self._traces = {trace.rank: trace for trace in run.traces()}
        self.every_rank = list(self._traces)
        # The rank with most headers took part in every session, even if rank counts differ.
        longest = max(self._traces.values(), key=lambda trace: len(trace.headers))
        self.starts_ns = [header["start_unix_ns"] for header in longest.headers]
        self.num_sessions = len(self.starts_ns)
        # Clocks of hosts differ by much less than the time between two sessions.
        self._sessions = {
            rank: [_nearest(self.starts_ns, header["start_unix_ns"]) for header in trace.headers]
            for rank, trace in self._traces.items()
        }
        self._first_epochs = self._find_first_epochs()
        trained = max((max(firsts) for firsts in self._first_epochs.values()), default=-1)
        self._sizes = [header["ranks"] for header in longest.headers]
        self.num_ranks = self._sizes[trained]
        self.ranks = [rank for rank in self.every_rank if rank < self.num_ranks]
        self.epoch_s = _epoch_seconds(run)

    @property
    def missing(self) -> list[int]:
        """Ranks that ran but left no file here."""
        return sorted(set(range(self.num_ranks)) - set(self.ranks))

    def spans(self, rank: int) -> list[SpanRecord]:
        """Return the spans of `rank` that count, in the order of their ends."""
        sessions = self._sessions[rank]
        return [
            span
            for span in self._traces[rank].spans()
            if not self._is_left_out(span, sessions[span.session])
        ]

    def whole_sessions(self, rank: int) -> Iterator[tuple[int, Json, list[SpanRecord]]]:
        """Yield the number, the header and all spans of each session of `rank`.

        The spans include those that a later session replaced.
        """
        trace = self._traces[rank]
        spans: list[list[SpanRecord]] = [[] for _ in trace.headers]
        for span in trace.spans():
            spans[span.session].append(span)
        yield from zip(self._sessions[rank], trace.headers, spans, strict=True)

    def _find_first_epochs(self) -> dict[int | None, dict[int, int]]:
        """Return the first epoch of each session, by seed."""
        first: dict[int | None, dict[int, int]] = {}
        if self.num_sessions == 1:
            return first
        for rank, trace in self._traces.items():
            for span in trace.spans():
                if span.epoch is not None:
                    sessions = first.setdefault(span.seed, {})
                    session = self._sessions[rank][span.session]
                    sessions[session] = min(sessions.get(session, span.epoch), span.epoch)
        return first

    def _is_left_out(self, span: SpanRecord, session: int) -> bool:
        if span.epoch is None:
            return False
        if self._sizes[session] != self.num_ranks:
            return True
        firsts = self._first_epochs.get(span.seed, {})
        return any(later > session and first <= span.epoch for later, first in firsts.items())


def _epoch_seconds(run: Run) -> dict[tuple[int | None, int | None], float] | None:
    rows = steady(run.metrics()) if run.has_metrics else []
    return {
        (row.get("seed"), row["epoch"]): row["epoch_s"] for row in rows if "epoch_s" in row
    } or None


def _nearest(values: Sequence[int], value: int) -> int:
    return min(range(len(values)), key=lambda position: abs(values[position] - value))
