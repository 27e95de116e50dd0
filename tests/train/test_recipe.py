"""Label augmentation and Correct and Smooth in the training command."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.storage import Split
from hpcgnn.train.run.saved_model import (
    load_saved_graph,
    open_saved_model,
)
from tests.support import training
from tests.support.training_oracle import assert_reference

AUGMENTED = ("train.label_augmentation=0.6", "model.dropout=0.2", "train.dtype=float64")
SMOOTHED = ("correct_and_smooth.enabled=true", "correct_and_smooth.correct_steps=5")


@pytest.mark.parametrize("active", ["true", "false"])
@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_hidden_labels_are_predicted(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, active: str
) -> None:
    graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph)
    words = (f"model.name={model}", f"exchange.active_sets={active}", "train.epochs=3")
    config = training.make_config(store, comm_tmp_path / "run", *AUGMENTED, *words)
    assert_reference(comm, training.train(comm, config), graph, config, 1e-11)


@pytest.mark.parametrize("multi_label", [False, True])
def test_results_do_not_depend_on_the_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, multi_label: bool
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(multi_label=multi_label))
    words = (*AUGMENTED, *SMOOTHED, "train.epochs=3")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "all", *words))
    single = training.train_alone(
        comm, training.make_config(store, comm_tmp_path / "alone", *words)
    )
    np.testing.assert_allclose(run.column("train_loss"), single.column("train_loss"), rtol=1e-11)
    ours, theirs = (each.summary["seeds"][0]["smoothed"] for each in (run, single))
    assert ours == theirs
    np.testing.assert_allclose(
        run.predictions()["probabilities"], single.predictions()["probabilities"], rtol=1e-5
    )


def test_predictions_are_the_smoothed_ones(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph)
    run = training.train(
        comm, training.make_config(store, comm_tmp_path / "run", *SMOOTHED, "train.epochs=3")
    )
    (seed,) = run.summary["seeds"]
    rows = (graph.split == Split.TEST) & (graph.labels >= 0)
    right = run.predictions()["prediction"][rows] == graph.labels[rows]
    assert right.mean() == seed["smoothed"]["test"]
    assert run.summary["smoothed"]["mean"] == seed["smoothed"]


def test_resume(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = (*AUGMENTED, *SMOOTHED, "train.epochs=3", "run.checkpoint_every=1")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    config = training.make_config(store, comm_tmp_path / "parts", *words)
    training.train(comm, config, training.StopAfter(2))
    training.assert_same(whole, training.train(comm, config))


def test_a_graph_without_training_nodes_has_no_labels_to_give(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph)
    run = training.train(
        comm, training.make_config(store, comm_tmp_path / "run", *AUGMENTED, "train.epochs=1")
    )
    (comm_tmp_path / "other").mkdir(exist_ok=True)
    bare = training.write_store(comm, comm_tmp_path / "other", replace(graph, split=None))
    saved = open_saved_model(run.path, None, str(bare))
    with (
        ProcessGrid(comm) as grid,
        pytest.raises(CollectiveInputError, match="has no node split"),
    ):
        load_saved_graph(grid, saved)
