"""Training over several splits equals a run on each of them, also after a stop in between."""

import statistics
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.config.config import Config
from hpcgnn.config.file import dump_toml, load_config
from hpcgnn.convert.splits import random_split
from hpcgnn.errors import EXIT_REQUEUE, InputError
from hpcgnn.storage import GraphStore, add_splits
from hpcgnn.train.loop import train_over_splits
from hpcgnn.train.process import StopRequest
from hpcgnn.train.run.report import print_results
from hpcgnn.train.run.saved_model import open_saved_model
from hpcgnn.train.tasks import check_run
from tests.support.training import (
    Run,
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    train,
    write_store,
)

SPLITS = ("0", "1", "2")
TASKS = {
    "full": (),
    "sampled": (
        "train.task=sampled",
        "sampling.walkers=5",
        "sampling.steps=3",
        "sampling.budget=40",
        "sampling.subgraphs=2",
    ),
}
SHORT = ("train.epochs=2", "train.seeds=[1,4]", "run.save_predictions=true")


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    graph = make_graph()
    path = write_store(comm, comm_tmp_path, graph)
    out = comm_tmp_path / "splits.h5"
    if comm.rank == 0:
        with GraphStore.open(path) as opened:
            ids = opened.read_original_id(0, opened.num_nodes)
            drawn = {
                name: random_split(graph.labels, len(ids), (50, 25, 25), seed=int(name))[ids]
                for name in SPLITS
            }
            add_splits(opened, out, drawn, {})
    comm.Barrier()
    return out


def over(comm: MPI.Intracomm, config: Config, stop: StopRequest | None = None) -> Run:
    _, status = train_over_splits(comm, config, stop or StopRequest())
    return Run(Path(config.run.dir), status)


@pytest.mark.parametrize("task", TASKS)
def test_splits_equal_single_runs(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, task: str
) -> None:
    words = (*SHORT, *TASKS[task])
    config = make_config(store, comm_tmp_path / "all", *words, "train.splits=[0,1,2]")
    assert config.train.splits == SPLITS
    many = over(comm, config)
    results = []
    for name in SPLITS:
        alone = make_config(store, comm_tmp_path / f"alone-{name}", *words, f"graph.split={name}")
        single = train(comm, alone)
        assert_same(Run(many.path / f"split-{name}", 0), single)
        results += [{"split": name, **each} for each in single.summary["seeds"]]
    assert many.summary["seeds"] == results
    for part in ("valid", "test"):
        values = [each[part] for each in results]
        assert many.summary["mean"][part] == statistics.fmean(values)
        assert many.summary["std"][part] == statistics.stdev(values)
    assert [each["name"] for each in many.summary["splits"]] == list(SPLITS)
    assert len({each["final_train_loss"] for each in results}) == len(results)


def test_stop_in_the_middle(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    words = (*SHORT, "train.splits=[0,1,2]")
    whole = over(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    # Each run checks once before its first epoch.
    stopped = over(comm, config, StopAfter(8))
    assert stopped.status == EXIT_REQUEUE
    assert (stopped.path / "split-1").is_dir()
    assert not (stopped.path / "split-2").exists()
    ended = over(comm, make_config(store, comm_tmp_path / "parts", *words, "run.resume=must"))
    assert ended.status == 0
    assert ended.summary["seeds"] == whole.summary["seeds"]
    for name in SPLITS:
        assert_same(*(Run(each.path / f"split-{name}", 0) for each in (ended, whole)))


def test_table_and_messages(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(store, comm_tmp_path / "run", *SHORT, "train.splits=[2,1]")
    run = over(comm, config)
    capsys.readouterr()
    print_results(run.summary, run.path)
    shown = capsys.readouterr().out
    assert "split 2 seed 1" in shown
    assert "split 1 std" in shown
    with pytest.raises(InputError, match=r"has a run for each split; give one, such as .*split-1"):
        open_saved_model(run.path)
    assert open_saved_model(run.path / "split-2").config.graph.split == "2"


def test_unknown_split(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    with pytest.raises(InputError, match=r"has no split '7'; it has default, 0, 1, 2; hpcgnn spl"):
        train(comm, make_config(store, comm_tmp_path / "run", "graph.split=7"))


def test_first_split_is_the_default(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    runs = [
        train(comm, make_config(store, comm_tmp_path / f"run{number}", *SHORT, *words))
        for number, words in enumerate(((), ("graph.split=default",)))
    ]
    assert_same(*runs)


def test_configuration(tmp_path: Path) -> None:
    config = make_config(tmp_path / "g.h5", tmp_path, "train.splits=[0, 'geom']")
    (tmp_path / "c.toml").write_text(dump_toml(config))
    assert load_config(tmp_path / "c.toml").train.splits == ("0", "geom")
    for word in ("train.splits=[1, 1]", "train.splits=['']"):
        with pytest.raises(InputError, match=r"train\.splits .*different names"):
            make_config(tmp_path / "g.h5", tmp_path, word)
    for task in ("programs", "links"):
        words = (f"graph.store={tmp_path}", f"run.dir={tmp_path}", "train.splits=[1]")
        with pytest.raises(InputError, match=rf"train\.splits .* does not work with .* '{task}'"):
            check_run(load_config(None, (*words, f"train.task={task}")))
