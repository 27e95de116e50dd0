"""Inputs of sampled steps other than features: vectors of nodes, and labels of training nodes."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.storage import Split
from hpcgnn.train.tasks import load_task
from tests.support.training import NUM_CLASSES, make_config, make_graph, train, write_store
from tests.train.sampled.test_relations import ALL
from tests.train.sampled.test_sampled import losses, losses_alone

COMMON = (
    "model.name=sage",
    "train.dtype=float64",
    "train.epochs=3",
    "run.save_predictions=false",
    "graph.undirected=true",
    "sampling.walkers=5",
)
INPUTS = {"vectors": "model.embeddings=true", "labels": "train.label_augmentation=0.6"}
TASKS = {
    "subgraphs": ("train.task=sampled", "sampling.budget=30", "sampling.subgraphs=3"),
    "unbiased": ("train.task=sampled", "sampling.coverage=2", "sampling.estimator=unbiased"),
    "batches": (
        "train.task=sampled",
        "sampling.sampler=neighbour",
        "sampling.budget=9",
        "sampling.fan_outs=[3, 2]",
        "model.norm=batch",
    ),
    "links": ("train.task=links", "links.sampled=true", "links.train=0.3", "sampling.budget=40"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("vectors", "fan-outs"), ("vectors", "parts"), ("labels", "subgraph"), ("labels", "parts")],
)
def test_a_sample_of_everything_is_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, kind: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph().with_types(), parts=comm.size)
    words = (*COMMON, INPUTS[name], "model.dropout=0")
    full = losses(comm, comm_tmp_path / "full", store, *words)
    of_all = ("train.task=sampled", "sampling.steps=1", *ALL[kind])
    sampled = losses(comm, comm_tmp_path / "sampled", store, *words, *of_all)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "task"), [("vectors", "batches"), ("vectors", "links"), ("labels", "unbiased")]
)
def test_losses_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, task: str
) -> None:
    if comm.size == 1:
        pytest.skip("one rank is alone")
    store = write_store(comm, comm_tmp_path, make_graph().with_types(), method="empty second")
    words = (*COMMON, INPUTS[name], *TASKS[task], "model.dropout=0.3", "train.clip_norm=0.5")
    together = losses(comm, comm_tmp_path / "run", store, *words)
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_reproducible_vectors_have_equal_bits(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size == 1:
        pytest.skip("one rank is alone")
    store = write_store(comm, comm_tmp_path, make_graph().with_types(), method="empty second")
    words = (*COMMON, INPUTS["vectors"], *TASKS["subgraphs"], "train.dtype=float32")
    words += ("train.reproducible=true",)
    together = losses(comm, comm_tmp_path / "run", store, *words)
    np.testing.assert_array_equal(
        together, losses_alone(comm, comm_tmp_path / "alone", store, *words)
    )


@pytest.mark.parametrize("task", ["subgraphs", "batches", "parts"])
def test_no_step_tells_the_labels_that_it_predicts(
    comm: MPI.Intracomm, comm_tmp_path: Path, task: str
) -> None:
    graph = make_graph()
    more = ("graph.sparse_features=always",) if task == "batches" else ()
    store = write_store(comm, comm_tmp_path, graph, parts=comm.size)
    of_task = ("train.task=sampled", *ALL["parts"]) if task == "parts" else TASKS[task]
    words = (*COMMON, INPUTS["labels"], *of_task, *more)
    config = make_config(store, comm_tmp_path / "run", *words)
    trained = (graph.split == Split.TRAIN) & (graph.labels >= 0)
    shown, predicted = set[int](), set[int]()
    with ProcessGrid(comm) as grid:
        source = load_task(Context(grid, config)).source
        for ready, _ in source.steps(1, 0):
            step = ready()
            of_inputs = step.view.active[0] if step.view.active else step.view
            ids = of_inputs.node_ids
            rows = step.features
            # Sparse rows times a matrix of ones are dense.
            columns = (rows @ torch.eye(rows.shape[1], dtype=rows.dtype)).numpy()
            labels = columns[:, -NUM_CLASSES:]
            told = labels.any(1)
            assert trained[ids[told]].all()
            np.testing.assert_array_equal(labels[told].argmax(1), graph.labels[ids[told]])
            outputs = np.arange(len(ids))
            for layer in step.view.active or ():
                outputs = outputs[layer.output_positions.cpu().numpy()]
            if step.rows is not None:
                outputs = outputs[step.rows.cpu().numpy()]
            assert len(outputs) == len(step.targets)
            assert not told[outputs].any()
            shown |= set(ids[told].tolist())
            predicted |= set(ids[outputs].tolist())
    shown = set().union(*comm.allgather(shown))
    predicted = set().union(*comm.allgather(predicted))
    # For an epoch: no step shows a label that another one predicts.
    assert len(shown) > 5
    assert len(predicted) > 5
    assert not shown & predicted


def test_random_labels_cannot_be_told(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    """Random labels stay at chance, though a model that saw them would know them."""
    graph = make_graph(num_nodes=400)
    labels = np.random.default_rng(5).integers(0, 2, 400).astype(np.int32)
    split = np.full(400, Split.TRAIN, np.uint8)
    split[:40] = Split.VALID
    graph = replace(graph, labels=labels, split=split, features=np.ones((400, 1), np.float32))
    store = write_store(comm, comm_tmp_path, graph)
    of_task = (
        *TASKS["batches"],
        "sampling.budget=200",
        "train.epochs=12",
        "train.learning_rate=0.03",
    )
    config = make_config(store, comm_tmp_path / "run", *COMMON, INPUTS["labels"], *of_task)
    found = train(comm, config).column("train_loss")
    assert min(found) > 0.85 * np.log(2)
