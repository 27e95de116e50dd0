"""Links on sampled subgraphs: equal on any ranks, without leaks, with positives inside, learned."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.gallery import planted
from hpcgnn.graph.context import Context
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.sampled.input import StepInput, SubgraphInput
from hpcgnn.train.tasks import Task, load_task
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    train,
    train_alone,
    write_store,
)
from tests.train.links.test_links import WORDS, figures

SAMPLED = (*WORDS, "links.sampled=true", "graph.undirected=true", "train.epochs=3")
BATCHES = ("sampling.sampler=neighbour", "sampling.fan_outs=[4, 3]", "sampling.budget=16")
WALKS = (
    "sampling.sampler=walk",
    "sampling.budget=30",
    "sampling.subgraphs=3",
    "sampling.coverage=3",
)


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "setting",
    [
        (*BATCHES, "model.name=sage", "model.norm=layer"),
        (*BATCHES, "model.name=gat", "links.negatives=degree", "links.scorer=mlp"),
        # A last batch of one edge would have no negatives.
        (
            *(*BATCHES, "sampling.steps=3"),
            *("model.name=gcn", "links.negatives=batch", "links.loss=cross_entropy"),
        ),
        (*WALKS, "model.name=sage", "links.scorer=distmult"),
        (*WALKS, "model.name=gcn", "links.loss=margin", "sampling.threads=0"),
        (*BATCHES, "model.name=sage", "types"),
        (*WALKS, "model.name=sage", "types"),
    ],
    ids=lambda setting: "-".join(setting[3 if "neighbour" in setting[0] else 4 :]),
)
def test_losses_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    graph = make_graph(weighted=True)
    if setting[-1] == "types":
        graph, setting = graph.with_types(), setting[:-1]
    store = write_store(comm, comm_tmp_path, graph)
    words = (*SAMPLED, *setting, "run.save_predictions=false")
    together = train(comm, make_config(store, comm_tmp_path / "run", *words)).metrics
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(together), figures(alone), strict=True):
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-8), name


@pytest.mark.parametrize("setting", [BATCHES, WALKS], ids=["batches", "subgraphs"])
def test_a_run_resumes(comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = (*SAMPLED, *setting, "run.checkpoint_every=1")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    assert_same(whole, train(comm, config))
    assert whole.summary["sampling"]["steps_per_epoch"] > 1


def open_task(comm: MPI.Intracomm, folder: Path, *words: str) -> Iterator[Task]:
    store = write_store(comm, folder, make_graph())
    with ProcessGrid(comm) as grid:
        config = make_config(store, folder / "none", *SAMPLED, *words)
        yield load_task(Context.open(grid, config, TraceRecorder.off()))


def trained(task: Task) -> dict[frozenset[int], int]:
    """Return the number of training edges between each two nodes, by rows of all ranks."""
    mine = task.objective.links.shares["train"]
    found: dict[frozenset[int], int] = {}
    for pairs in task.objective.grid.layer.allgather(np.stack([mine.sources, mine.targets])):
        for ends in pairs.T.tolist():
            found[frozenset(ends)] = found.get(frozenset(ends), 0) + 1
    return found


def steps_of(task: Task) -> StepInput:
    return task.source._sampled.at(1, 0)


@pytest.mark.parametrize("setting", [BATCHES, WALKS], ids=["batches", "subgraphs"])
def test_no_predicted_edge_is_in_what_is_sampled(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    for task in open_task(comm, comm_tmp_path, *setting):
        grid = task.objective.grid
        gone = {
            frozenset(ends)
            for share in task.objective.links.shares.values()
            for pairs in grid.layer.allgather(np.stack([share.sources, share.targets]))
            for ends in pairs.T.tolist()
        }
        edges = steps_of(task).views.graph.edges
        rows = np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))
        left = {frozenset(ends) for ends in zip(rows.tolist(), edges.indices.tolist(), strict=True)}
        assert gone
        assert left
        assert not gone & left


def test_an_epoch_has_every_edge_once_in_its_batches(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    for task in open_task(comm, comm_tmp_path, *BATCHES):
        found: dict[frozenset[int], int] = {}
        for ready in steps_of(task).steps(1, 0):
            needed = ready().targets
            ends = np.stack([needed.rows[needed.sources], needed.rows[needed.targets]])
            for pairs in task.objective.grid.layer.allgather(ends):
                for each in pairs.T.tolist():
                    found[frozenset(each)] = found.get(frozenset(each), 0) + 1
            assert needed.wrong.shape == (len(needed.sources), 4)
        assert found == trained(task)


def test_subgraphs_have_the_edges_between_their_nodes(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    for task in open_task(comm, comm_tmp_path, *WALKS):
        known, steps, seen = trained(task), steps_of(task), 0
        assert isinstance(steps, SubgraphInput)
        for subgraphs, seeds in steps.draw(1, 0):
            needed = steps.prepare((subgraphs, seeds)).targets
            nodes = np.concatenate([np.zeros(0, np.int32), *(each.nodes for each in subgraphs)])
            where = np.repeat(np.arange(len(subgraphs)), [len(each.nodes) for each in subgraphs])
            expected = sum(
                known.get(frozenset((a, b)), 0)
                for each in subgraphs
                for number, a in enumerate(each.nodes.tolist())
                for b in each.nodes[:number].tolist()
            )
            assert len(needed.sources) == expected
            for source, target, wrong in zip(
                needed.sources, needed.targets, needed.wrong, strict=True
            ):
                assert frozenset((nodes[source], nodes[target])) in known
                assert where[source] == where[target]
                assert (where[wrong] == where[source]).all()
            seen += expected
        assert task.objective.grid.layer.allreduce(seen) > 0


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize("setting", [BATCHES, WALKS], ids=["batches", "subgraphs"])
def test_communities_are_found(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    made = planted(300, 4, 8, seed=2)
    graph = replace(
        make_graph(num_nodes=300),
        adjacency=made.to_scipy().astype(np.float64),
        features=made.features,
        directed=False,
    )
    store = write_store(comm, comm_tmp_path, graph)
    words = (
        *SAMPLED,
        *setting,
        "sampling.budget=100",
        "train.epochs=12",
        "model.hidden=16",
        "sampling.steps=6",
    )
    more = ("model.dropout=0", "links.loss=cross_entropy", "train.evaluate_every=12")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words, *more))
    assert run.metrics[-1]["test_auc"] > 0.6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.label_augmentation=0.5",), "links.+label_augmentation|label_augmentation.+links"),
        (("links.negatives=degree",), "links.negatives = 'degree' does not work with sampling"),
        (("sampling.sampler=neighbour", "sampling.fan_outs=[2]"), "fan_outs has 1 numbers"),
    ],
)
def test_what_does_not_go_together_is_told(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, make_config(store, comm_tmp_path / "run", *SAMPLED, *words))


def test_edges_are_not_drawn_where_all_are_trained_on(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = make_graph()
    no_loops = graph.adjacency - sp.diags(graph.adjacency.diagonal())
    no_loops.eliminate_zeros()
    store = write_store(comm, comm_tmp_path, replace(graph, adjacency=no_loops.tocsr()))
    shares = "links.train=0.999999", "links.valid=0", "links.test=0"
    words = (*SAMPLED, *shares, "sampling.sampler=edge", "model.name=sage")
    with pytest.raises(CollectiveInputError, match="aggregates over no edge; set another sampler"):
        train(comm, make_config(store, comm_tmp_path / "run", *words))
    train(comm, make_config(store, comm_tmp_path / "run", *words, "links.disjoint=false"))
