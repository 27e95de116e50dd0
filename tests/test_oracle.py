"""Random runs equal their references; the oracle's printed commands replay them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import pytest

from tests import oracle
from tests.support.oracle_cases import draw_case

SEED, MANY = 2026, 1000


def run(
    comm: MPI.Intracomm, folder: Path, indices: Iterable[int], seed: int = SEED, task: str = ""
) -> Counter[str]:
    """Run cases on all ranks; return how many trained, and how many were refused."""
    counts: Counter[str] = Counter()
    for index in indices:
        case = draw_case(seed, index, [comm.size], task)
        place = folder / str(index)
        place.mkdir(exist_ok=True)
        comm.Barrier()
        kind, wrong = oracle.run_case(comm, case, place)
        assert not wrong, "\n".join([f"case {index}: {case.command()}", *wrong])
        counts[kind] += 1
    return counts


@pytest.mark.timeout(600)
def test_some_cases_equal_their_references(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    # Ranks have other and fewer cases than one rank, and take as long together.
    few = 30 if comm.size == 1 else 20
    counts = run(comm, comm_tmp_path, range(30 * comm.size, 30 * comm.size + few))
    assert counts["trained"] > few // 2


def test_fields_equal_their_references(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    # A plan that diverged, running means of unrolled steps, prescribed nodes of scaled features.
    counts = run(comm, comm_tmp_path, (4, 9, 336), 20, "fields")
    assert counts["trained"] == 3


def test_gradients_that_cancel_before_a_norm_round(tmp_path: Path) -> None:
    # Graph norm of two nearly equal nodes multiplies gradients by 300.
    case = draw_case(SEED, 689, [1])
    assert oracle.run_case(MPI.COMM_SELF, case, tmp_path) == ("trained", [])


def test_labels_hidden_in_sparse_features_change_in_all_copies(tmp_path: Path) -> None:
    # After a few products of few columns, a matrix keeps a copy ordered by length.
    case = replace(draw_case(SEED, 76, [2]), ranks=1)
    assert oracle.run_case(MPI.COMM_SELF, case, tmp_path) == ("trained", [])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_cases_equal_their_references(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    run(comm, comm_tmp_path, range(MANY))


def test_a_seed_and_an_index_are_one_case() -> None:
    cases = [draw_case(7, index, [1, 2, 3, 4]) for index in (5, 5, 6)]
    one, same, other = (case.command() for case in cases)
    assert one == same != other
    assert "mpi_run" in one


def test_differences_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "WITHIN", 1e-18)
    monkeypatch.setattr(oracle, "ROUNDINGS", 0)
    wrong = []
    for index in range(4):
        (tmp_path / str(index)).mkdir()
        case = draw_case(1, index, [1])
        wrong += oracle.run_case(MPI.COMM_SELF, case, tmp_path / str(index))[1]
    assert any("off" in each for each in wrong)
