"""The joules of a run: of its epochs and in total, in its files and on its pages."""

from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest

from hpcgnn.analysis import report
from hpcgnn.train import open_run
from hpcgnn.train.run.report import print_results
from hpcgnn.train.seed_run import SeedRun
from tests.support import training


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return training.write_store(comm, comm_tmp_path, training.make_graph())


def test_counters_of_a_host_count_once(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone, used = comm_tmp_path / "intel-rapl:0", [0]
    zone.mkdir(exist_ok=True)
    if comm.rank == 0:
        for name, value in {"name": "package-0", "max_energy_range_uj": 10**9}.items():
            (zone / name).write_text(str(value), encoding="ascii")
        (zone / "energy_uj").write_text("0", encoding="ascii")
    comm.Barrier()
    end = SeedRun.end_epoch

    def costly(*arguments: Any) -> Any:
        # 3 J between the steps of the epoch and its end; none in the evaluation.
        if comm.rank == 0:
            used[0] += 3_000_000
            (zone / "energy_uj").write_text(str(used[0]), encoding="ascii")
        return end(*arguments)

    monkeypatch.setattr(SeedRun, "end_epoch", costly)
    monkeypatch.setattr(open_run, "open_meter", partial(open_run.open_meter, folder=comm_tmp_path))
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=3")
    run = training.train(comm, config)
    comm.Barrier()
    assert run.column("epoch_j") == pytest.approx([3.0] * 3)
    summary = run.summary
    assert summary["epoch_j"] == pytest.approx(3.0)
    assert summary["energy"]["joules"] == pytest.approx(9.0)
    assert summary["energy"] == summary["sessions"][-1]["energy"]
    (host,) = summary["sessions"][-1]["hosts"]
    assert summary["energy"]["core_share"] == host["cores"] / host["host_cores"] <= 1


def test_core_seconds_of_all_ranks_at_the_power_given(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for watts in (0, 4):
        settings = ("train.epochs=3", f"run.watts_per_core={watts}")
        config = training.make_config(store, comm_tmp_path / f"run{watts}", *settings)
        found[watts] = training.train(comm, config)
    comm.Barrier()
    without, run = found[0].summary, found[4].summary
    assert without["energy"] is None
    assert without["epoch_j"] is None
    cpu_s = sum(rank["usage"]["cpu_s"] for rank in run["ranks_detail"])
    assert 0 < sum(found[4].column("epoch_j")) <= run["energy"]["joules"]
    assert run["energy"]["joules"] == pytest.approx(4 * cpu_s, rel=0.2)
    if comm.rank == 0:
        for watts, shown in ((0, False), (4, True)):
            print_results(found[watts].summary, found[watts].path)
            assert ("by core seconds at 4 W" in capsys.readouterr().err) == shown
            page = comm_tmp_path / f"{watts}.html"
            report.main([str(found[watts].path), "-o", str(page)])
            assert ("J an epoch" in page.read_text(encoding="utf-8")) == shown
