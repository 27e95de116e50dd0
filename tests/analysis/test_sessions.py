import pytest

from hpcgnn.analysis import comm_matrix, epoch_breakdown
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.trace import trace_file


def epochs_of(trace, rank):
    """Count the exchanges of each (session, epoch)."""
    counts = {}
    for span in trace.spans(rank):
        if span.phase == "exchange":
            counts[span.session, span.epoch] = counts.get((span.session, span.epoch), 0) + 1
    return counts


@pytest.fixture
def trace_of(writer):
    return lambda: Trace(open_run(writer.path))


def test_one_session(writer, trace_of):
    writer.session(ranks=3)
    trace = trace_of()
    assert (trace.ranks, trace.num_ranks, trace.missing) == ([0, 1, 2], 3, [])
    assert trace.num_sessions == 1
    assert epochs_of(trace, 2) == {(0, 0): 1, (0, 1): 1, (0, 2): 1}


def test_missing_ranks_are_named(writer, trace_of):
    writer.session(ranks=4)
    trace_file(writer.path, 0).unlink()
    trace_file(writer.path, 2).unlink()
    trace = trace_of()
    assert (trace.ranks, trace.num_ranks, trace.missing) == ([1, 3], 4, [0, 2])


def test_a_resumed_session_replaces_the_epochs_from_its_checkpoint_on(writer, trace_of):
    writer.session(ranks=2, epochs=range(6))
    writer.session(ranks=2, epochs=range(4, 5), append=True)
    trace = trace_of()
    assert trace.num_sessions == 2
    for rank in range(2):
        assert epochs_of(trace, rank) == {(0, e): 1 for e in range(4)} | {(1, 4): 1}


def test_other_seeds_are_untouched(writer, trace_of):
    writer.session(ranks=1, epochs=range(4), seed=5)
    writer.session(ranks=1, epochs=range(2), seed=6, append=True)
    assert epochs_of(trace_of(), 0) == {(0, e): 1 for e in range(4)} | {(1, e): 1 for e in range(2)}


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_resumed_on_another_number_of_ranks(writer, trace_of, before, after):
    writer.session(ranks=before, epochs=range(4))
    writer.session(ranks=after, epochs=range(2, 5), append=True)
    trace = trace_of()
    assert (trace.num_ranks, trace.missing, trace.num_sessions) == (after, [], 2)
    assert (trace.ranks, trace.every_rank) == (list(range(after)), [0, 1, 2, 3])
    for rank in trace.ranks:
        assert {epoch for _, epoch in epochs_of(trace, rank)} == {2, 3, 4}
    breakdown, matrix = epoch_breakdown.summarise(trace), comm_matrix.summarise(trace)
    assert (breakdown["epochs"], matrix["epochs"], len(matrix["rows"]["matrix"])) == (3, 3, after)


def test_a_start_without_epochs_on_another_number_of_ranks(writer, trace_of):
    writer.session(ranks=4, epochs=range(4))
    writer.session(ranks=2, epochs=(), append=True)
    assert trace_of().num_ranks == 4


def test_set_up_of_every_session_counts(writer, trace_of):
    writer.session(ranks=1)
    writer.session(ranks=1, append=True)
    assert sum(span.phase == "read" for span in trace_of().spans(0)) == 2
