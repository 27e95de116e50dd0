"""Runs take no more memory after many epochs than after a few, for all objectives."""

from pathlib import Path

import pytest

from benchmarks.training_growth import CASES, measured

MOST = 1.02


def test_resident_memory_stays(tmp_path: Path) -> None:
    # The heap is still settling in the first epochs: without bounds it grows by half.
    assert measured("classes of graphs, batches", tmp_path, 60)["growth"] < 1.04


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_resident_memory_stays_for_300_epochs(tmp_path: Path, case: str) -> None:
    assert measured(case, tmp_path, 300)["growth"] < MOST
