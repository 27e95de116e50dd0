"""Training on program graphs: equal results for any number of ranks, resuming, refusals."""

from collections.abc import Mapping
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.errors import EXIT_REQUEUE
from hpcgnn.storage import (
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
    InstanceWriter,
)
from tests.support.supergraphs import NUM_BUCKETS, NUM_FORWARD, random_batch
from tests.support.training import Run, StopAfter, assert_same, train

SIZES = {
    InstanceSplit.TRAIN: [9, 30, 4, 4, 17, 60, 8, 12, 25, 3, 7, 11, 40, 5],
    InstanceSplit.VALID: [6, 9, 14],
    InstanceSplit.TEST: [11],
    InstanceSplit.UNSEEN: [8, 5],
}


def learnable(sizes: list[int], split: InstanceSplit) -> InstanceBatch:
    """Return graphs whose right candidate is the one in a separate bucket."""
    batch = random_batch(sizes, 9, seed=int(split), split=split)
    starts = np.concatenate([[0], np.cumsum(batch.subtoken_counts, dtype=np.int64)])
    for row, first in enumerate(batch.starts("num_nodes")[:-1]):
        chosen = batch.starts("num_candidates")[row] + batch.graphs["label"][row]
        node = first + batch.candidates["node"][chosen]
        batch.subtokens[starts[node] : starts[node + 1]] = NUM_BUCKETS - 1
    return batch


def write(path: Path, sizes: Mapping[InstanceSplit, list[int]], num_buckets: int) -> None:
    names = tuple(f"Type{number}" for number in range(NUM_FORWARD))
    header = InstanceHeader(name="toy", edge_names=names, num_buckets=num_buckets, steps=3)
    with InstanceWriter(path, header, ["one.py"]) as writer:
        for split, each in sizes.items():
            batch = learnable(each, split)
            batch.subtokens[batch.subtokens >= num_buckets] = 0
            writer.append(batch)


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    path = comm_tmp_path / "programs.h5"
    if comm.rank == 0:
        write(path, SIZES, NUM_BUCKETS)
    comm.Barrier()
    return path


def make(store: Path, run: Path, *settings: str) -> Config:
    """Return the configuration of a short run."""
    usual = (
        "train.task=programs",
        "train.epochs=4",
        "train.dtype=float64",
        "programs.hidden=8",
        "programs.nodes=50",
        "programs.supergraphs=3",
        "programs.dropout=0.1",
        "run.threads=1",
    )
    return load_config(None, [f"graph.store={store}", f"run.dir={run}", *usual, *settings])


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("propagator", "supernodes"), [("sparse", 0), ("banded", 0), ("hybrid", 0), ("banded", 4)]
)
def test_ranks_change_nothing(
    comm: MPI.Intracomm, store: Path, comm_tmp_path: Path, propagator: str, supernodes: int
) -> None:
    band = ("programs.block=8", f"programs.supernodes={supernodes}")
    settings = (f"programs.propagator={propagator}", *band)
    run = train(comm, make(store, comm_tmp_path / "all", *settings))
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, make(store, comm_tmp_path / "alone", *settings))
        for name in ("train_loss", "valid_loss", "unseen_loss"):
            np.testing.assert_allclose(run.column(name), alone.column(name), rtol=1e-12)
        trained = run.summary["trained"]
        assert trained == alone.summary["trained"]
        assert trained["graphs"] == 4 * len(SIZES[InstanceSplit.TRAIN])
        if not supernodes:
            assert (trained["dropped_edges"] > 0) == (propagator != "hybrid")
        assert (trained["supernode_edges"] > trained["supernodes"] > 0) == (supernodes > 0)
        found = run.predictions()
        assert found["graph_id"].tolist() == list(range(14, 20))
        np.testing.assert_allclose(found["probabilities"].sum(axis=1), 1, rtol=1e-6)
    comm.Barrier()


def test_a_stop_changes_nothing(comm: MPI.Intracomm, store: Path, comm_tmp_path: Path) -> None:
    falls = ("train.schedule=linear", "train.decay_steps=7")
    whole = train(comm, make(store, comm_tmp_path / "whole", *falls))
    parts = make(store, comm_tmp_path / "parts", "run.checkpoint_every=0", *falls)
    assert train(comm, parts, StopAfter(2)).status == EXIT_REQUEUE
    resumed = train(comm, parts)
    if comm.rank == 0:
        assert_same(resumed, Run(whole.path, 0))


@pytest.mark.max_ranks(2)
def test_it_learns(comm: MPI.Intracomm, store: Path, comm_tmp_path: Path) -> None:
    settings = ("train.epochs=25", "train.learning_rate=0.02", "train.schedule=linear")
    settings += ("programs.self_edges=true",)
    run = train(comm, make(store, comm_tmp_path / "run", *settings))
    if comm.rank == 0:
        summary = run.summary
        (seed,) = summary["seeds"]
        assert seed["all_graphs"]["valid_accuracy"] == 1.0
        assert seed["final_train_loss"] < 0.1
        assert summary["chance"]["valid"] < 0.5


def test_another_store_is_judged(comm: MPI.Intracomm, store: Path, comm_tmp_path: Path) -> None:
    other = comm_tmp_path / "other.h5"
    if comm.rank == 0:
        write(other, {InstanceSplit.VALID: [6, 9, 14, 8], InstanceSplit.UNSEEN: [5]}, 17)
        write(comm_tmp_path / "wrong.h5", {InstanceSplit.VALID: [6]}, 16)
    comm.Barrier()
    run = train(comm, make(store, comm_tmp_path / "run", f"programs.judge_store={other}"))
    if comm.rank == 0:
        assert "test_loss" not in run.metrics[-1]
        assert run.predictions()["graph_id"].tolist() == list(range(5))
    wrong = make(store, comm_tmp_path / "no", f"programs.judge_store={comm_tmp_path / 'wrong.h5'}")
    with pytest.raises(CollectiveInputError, match="num_buckets"):
        train(comm, wrong)


@pytest.mark.parametrize(
    "setting",
    [
        "model.hidden=3",
        "graph.targets=t.npy",
        "graph.split=other",
        "graph.undirected=true",
        "correct_and_smooth.smooth_steps=5",
        "sampling.budget=9",
        "links.sampled=true",
        "graphs.batch=0",
        "train.label_augmentation=0.5",
        "exchange.replication=2",
    ],
)
def test_what_does_not_apply_is_refused(
    comm: MPI.Intracomm, store: Path, comm_tmp_path: Path, setting: str
) -> None:
    if comm.size % 2 and "replication" in setting:
        pytest.skip("of an even number of ranks")
    with pytest.raises(CollectiveInputError, match=f"^{setting.partition('=')[0]}") as caught:
        train(comm, make(store, comm_tmp_path / "run", setting))
    assert "\n" not in str(caught.value)


def test_a_band_that_no_graph_fits(comm: MPI.Intracomm, store: Path, comm_tmp_path: Path) -> None:
    words = ("programs.block=1", "programs.filter=true")
    with pytest.raises(CollectiveInputError, match="no graph is left to train on"):
        train(comm, make(store, comm_tmp_path / "run", *words))


def test_patience_needs_validation_graphs(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.rank == 0:
        write(comm_tmp_path / "none.h5", {InstanceSplit.TRAIN: [9, 30, 4]}, NUM_BUCKETS)
    comm.Barrier()
    config = make(comm_tmp_path / "none.h5", comm_tmp_path / "run", "train.patience=2")
    with pytest.raises(CollectiveInputError, match=r"train.patience = 2, but .*none.h5 has no"):
        train(comm, config)
