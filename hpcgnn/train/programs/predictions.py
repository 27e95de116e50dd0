"""Predictions of models for the holes of program graphs: metrics and prediction files.

Messages pass along all edges, even those dropped in training, unless a block size is given.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree, allreduce_sum
from hpcgnn.graph.context import Context
from hpcgnn.nn import GGNN, candidate_loss
from hpcgnn.spmd import collective
from hpcgnn.storage import H5Predictions, InstanceSplit, InstanceStore, RowIds
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.evaluation import means_by_split
from hpcgnn.train.programs.facts import JUDGED, ProgramFacts, check_fits, model_of
from hpcgnn.train.programs.input import Prepared, ProgramInput
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.saved_model import SavedModel, open_saved_model
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """A model's predictions for graphs.

    `graphs` (g,) int64 are ascending numbers in the store; `shares` (g, width) float32 are the
    candidates' probabilities, 0 beyond a graph's candidates.
    """

    graphs: GlobalIndices
    shares: FloatArray

    @property
    def chosen(self) -> Array:
        """The most probable candidates (g,) int32."""
        return self.shares.argmax(axis=1).astype(np.int32)


@torch.no_grad()
@collective
def judge(grid: ProcessGrid, source: ProgramInput, model: GGNN, limit: int) -> dict[str, float]:
    """Return loss and accuracy on the first `limit` graphs of each evaluated split; all if 0."""
    sums = np.zeros((len(JUDGED), 3))
    for row, split in enumerate(JUDGED.values()):
        for prepared in source.evaluation(split, limit):
            logits_M = model(prepared.graph, prepared.propagator, None)
            loss, correct = candidate_loss(logits_M, prepared.graph, 1)
            sums[row] += [prepared.graph.num_graphs, float(loss), int(correct.sum())]
    allreduce_sum(grid.world, sums)
    return means_by_split(JUDGED, sums)


@collective
def score(
    grid: ProcessGrid, prepared: Iterable[Prepared], model: GGNN, width: int
) -> CandidateScores | None:
    """Return the scores of all ranks' graphs on rank 0, None elsewhere.

    Rank 0 gathers them all, since a graph has only a few numbers. `width` is the largest number of
    candidates of a graph.
    """
    pieces = grid.world.gather([_shares(model, item, width) for item in prepared], root=0)
    if pieces is None:
        return None
    rows = [row for piece in pieces for row in piece]
    graphs = np.concatenate([np.empty(0, np.int64), *(row.graphs for row in rows)])
    shares = np.concatenate([np.empty((0, width), np.float32), *(row.shares for row in rows)])
    order = np.argsort(graphs)
    return CandidateScores(graphs[order], shares[order])


@torch.no_grad()
def _shares(model: GGNN, prepared: Prepared, width: int) -> CandidateScores:
    graph = prepared.graph
    logits_M = model(graph, prepared.propagator, None)
    owners = torch.from_numpy(graph.candidate_graphs)
    offsets = torch.arange(len(owners)) - torch.from_numpy(graph.candidate_starts)[owners]
    table = torch.full((graph.num_graphs, width), -torch.inf, dtype=logits_M.dtype)
    table[owners, offsets] = logits_M.cpu()
    return CandidateScores(prepared.numbers, table.softmax(dim=1).to(torch.float32).numpy())


def chance(store: InstanceStore, split: InstanceSplit) -> float | None:
    """Return the accuracy of random guesses on a split, None if it has no graphs."""
    low, high = store.split_range(split)
    counts = store.graphs["num_candidates"][low:high]
    return float((1 / counts).mean()) if high > low else None


def by_split(store: InstanceStore, scores: CandidateScores) -> dict[str, dict[str, Any]]:
    """Return the number of graphs, accuracy, loss and chance of each split that has scores."""
    rows = store.graphs[scores.graphs]
    right = scores.shares[np.arange(len(rows)), rows["label"]]
    # A share below the smallest float32 is 0, whose logarithm is infinite.
    losses = -np.log(np.maximum(right, np.finfo(np.float32).tiny))
    metrics = {}
    for split in InstanceSplit:
        in_split = rows["split"] == split
        if in_split.any():
            metrics[split.name.lower()] = {
                "graphs": int(in_split.sum()),
                "accuracy": float((scores.chosen == rows["label"])[in_split].mean()),
                "loss": float(losses[in_split].mean()),
                "chance": chance(store, split),
            }
    return metrics


@collective
def predict_programs(
    grid: ProcessGrid, saved: SavedModel, options: argparse.Namespace
) -> dict[str, Any]:
    """Score all graphs of a store, including training graphs, and write the file.

    Return a summary on all ranks, with ``splits``: graphs, accuracy, loss and chance of each. Edges
    outside blocks of size ``--block`` are left out; with 0, messages pass along all edges.

    Raises `CollectiveInputError` if the store cannot be read or does not fit, or the file cannot be
    written.
    """
    config, block = saved.config, options.block
    with agree(grid.world):
        store = InstanceStore.open(
            options.store or config.programs.judge_store or config.graph.store
        )
    with store:
        with agree(grid.world):
            facts = saved.facts(ProgramFacts)
            check_fits(store, facts)
        context = Context.open(grid, saved.config, TraceRecorder.off())
        model = _kept(saved, facts, context)
        source = ProgramInput(store, store, context)
        prepared = (
            item for split in InstanceSplit for item in source.evaluation(split, 0, block=block)
        )
        scores = score(grid, prepared, model, _width(store))
        message = None
        with agree(grid.world):
            if scores is not None:
                _write(options.output, store, scores, saved)
                message = len(scores.graphs), by_split(store, scores)
        rows, splits = grid.world.bcast(message, root=0)
        return {
            "output": str(options.output),
            "what": "probabilities",
            "of": "program graphs",
            "rows": rows,
            "columns": _width(store),
            "splits": splits,
            "block": block,
            "ranks": grid.size,
            **_origin(saved, store),
        }


@collective
def _kept(saved: SavedModel, facts: ProgramFacts, context: Context) -> GGNN:
    dtype = getattr(torch, saved.config.train.dtype)

    def make(seed: int) -> GGNN:
        model = model_of(facts, saved.config.programs, seed, dtype)
        return model.to(context.device.torch_device)

    return saved.model(context.grid, make)


@collective
def save_program_predictions(
    grid: ProcessGrid,
    store: InstanceStore,
    source: ProgramInput,
    directory: RunDirectory,
    seed: int,
) -> None:
    """Write a run's predictions.h5 for the evaluated splits of `store`.

    Call it when all seeds of the run have ended.

    Raises `CollectiveInputError` if the checkpoint cannot be read or the file cannot be written.
    """
    with agree(grid.world):
        saved = open_saved_model(directory.path, seed)
        facts = saved.facts(ProgramFacts)
    model = _kept(saved, facts, source.context)
    prepared = (item for split in JUDGED.values() for item in source.evaluation(split, 0))
    scores = score(grid, prepared, model, _width(store))
    with agree(grid.world):
        if scores is not None:
            _write(directory.predictions, store, scores, saved)


def _width(store: InstanceStore) -> int:
    return int(store.graphs["num_candidates"].max(initial=1))


def _origin(saved: SavedModel, store: InstanceStore) -> dict[str, str | int]:
    return {**saved.origin(), "store": str(store.path)}


def _write(path: Path, store: InstanceStore, scores: CandidateScores, saved: SavedModel) -> None:
    rows = store.graphs[scores.graphs]
    origin = _origin(saved, store)
    ids = RowIds(("graph_id",))
    with H5Predictions(path, "probabilities", (), origin, ids=ids) as file:
        file.append(scores.graphs, scores.shares, scores.chosen)
        for name in ("label", "split", "file", "line"):
            file.append_column(name, rows[name].astype(np.int32))
        names = [name.encode() for name in store.files]
        file.append_column("files", np.array(names, f"S{max(map(len, names))}"))
