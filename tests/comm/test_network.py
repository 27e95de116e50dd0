import math
from time import perf_counter_ns

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import Network, clock_offset, network
from hpcgnn.comm.network import Sent
from hpcgnn.errors import InputError


@pytest.mark.parametrize("rounds", [1, 16])
@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("more_of_first", [0, 1, 2])
def test_offsets_of_shifted_clocks_lie_within_their_bounds(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    ranks_per_host: int,
    more_of_first: int,
) -> None:
    """Four ranks are also on three hosts, of which the first has two."""
    monkeypatch.setattr(network, "ROUNDS", rounds)
    # All ranks of a test run on one machine and share its monotonic clock.
    numbers = [max(rank - more_of_first, 0) // ranks_per_host for rank in range(comm.size)]
    host, hosts = numbers[comm.rank], [f"host{number}" for number in numbers]
    shift = 3_000_000_007 * (host * (-1) ** host)
    began = perf_counter_ns()
    found = clock_offset(comm, hosts, lambda: perf_counter_ns() + shift)
    # Rank 0 may have started earlier than this rank.
    longest = comm.allreduce(perf_counter_ns(), MPI.MAX) - comm.allreduce(began, MPI.MIN)
    assert abs(found.offset_ns + shift) <= found.bound_ns
    assert (found.bound_ns > 0) == (host > 0)
    assert found.bound_ns <= longest


def test_seconds_are_those_of_the_rank_that_needs_longest() -> None:
    """Two ranks on one host and one on another: only ranks of the same host share its link."""
    sent = Sent(*map(np.array, ([0, 0, 0], [700, 30, 50], [90, 640, 50], [3, 2, 2])))
    between = Sent(*map(np.array, ([0, 0, 0], [100, 20, 50], [40, 30, 50], [1, 1, 1])))
    links = Network(10.0, 2.0, 2, 100.0, 0.5)
    # The first rank sends 600 bytes inside its host; the host sends 120, at twice a rank's speed.
    assert (
        links.seconds(sent, between, np.array([0, 0, 1], np.int32))
        == 600 / 100 + 2 * 0.5 + 120 / 20 + 2.0
    )
    into = Sent(sent.rows, sent.bytes_in, sent.bytes_out, sent.messages)
    back = Sent(between.rows, between.bytes_in, between.bytes_out, between.messages)
    assert links.seconds(into, back, np.array([0, 0, 1], np.int32)) == 15.0
    # Without separate figures, messages inside a host cost as much as between hosts.
    assert Network(10.0, 2.0, 2).seconds(sent, between, np.array([0, 0, 1], np.int32)) == 72.0


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.inf, math.nan])
def test_a_bandwidth_that_no_link_has_is_refused(bandwidth: float) -> None:
    for links in ({"bandwidth": bandwidth}, {"inside_bandwidth": bandwidth}):
        with pytest.raises(InputError, match="must be positive"):
            Network(**links)
