from time import perf_counter_ns

from mpi4py import MPI

import pytest

from hpcgnn.comm import clock_offset, network


@pytest.mark.parametrize("rounds", [1, 16])
def test_offsets_of_shifted_clocks_lie_within_their_bounds(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(network, "ROUNDS", rounds)
    # All ranks of a test run on one machine, whose monotonic clock they share.
    shift = 3_000_000_007 * (comm.rank * (-1) ** comm.rank)
    found = clock_offset(comm, lambda: perf_counter_ns() + shift)
    assert abs(found.offset_ns + shift) <= found.bound_ns
    assert (found.bound_ns > 0) == (comm.rank > 0)
    assert found.bound_ns < 2_000_000_000
