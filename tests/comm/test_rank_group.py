"""Keys that are divided among ranks."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ONE_PROCESS, RankGroup


@pytest.mark.parametrize("kind", [np.int64, "S4"])
def test_ranks_get_about_as_many_keys(comm: MPI.Intracomm, kind: object) -> None:
    ranks = RankGroup.of(comm)
    keys = np.random.default_rng(comm.rank).integers(0, 1000, 500).astype(kind)
    borders = ranks.borders(lambda: keys)
    assert len(borders) == comm.size - 1
    assert (borders[1:] >= borders[:-1]).all()
    owners = ranks.ranks_of(keys, borders)
    assert owners.dtype == np.int32
    for rank in range(comm.size):
        low = borders[rank - 1] if rank else min(keys)
        assert (keys[owners == rank] >= low).all()
        if rank + 1 < comm.size:
            assert (keys[owners == rank] < borders[rank]).all()
    counts = ranks.sum(np.bincount(owners, minlength=comm.size))
    assert counts.min() > 400


def test_without_keys_all_are_of_one_rank(comm: MPI.Intracomm) -> None:
    ranks = RankGroup.of(comm)
    borders = ranks.borders(lambda: np.zeros(0, np.int64))
    assert borders.tolist() == [0] * (comm.size - 1)
    assert set(ranks.ranks_of(np.arange(5), borders).tolist()) == {comm.size - 1}


def test_one_process_asks_for_no_keys() -> None:
    def asked() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        raise AssertionError

    borders = ONE_PROCESS.borders(asked)
    assert len(borders) == 0
    assert ONE_PROCESS.ranks_of(np.arange(3), borders).tolist() == [0, 0, 0]
    assert not ONE_PROCESS.moves_rows
