"""Whole training runs on a GPU, with and without execution paths, and their accuracy."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spmm_graphs import SEED, Matrix
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphArrays, Split, store_from_arrays

__all__ = ["training_cases"]

NUM_FEATURES, NUM_CLASSES = 128, 16
SETTINGS = {
    "all_active": ("exchange.active_sets=false",),
    "paths_before": (),
    "paths_first_epoch": ("exchange.prepare=first_epoch",),
}


def training_cases(
    matrix: Matrix, share: float, epochs: int, folder: Path, models: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield seconds of an epoch of full-graph training for each setting, each in its own process.

    Parameters
    ----------
    matrix
        A graph; features and labels are random, labels follow the features.
    share
        Share of training nodes.
    epochs
        Epochs of each run; only the last is evaluated.
    folder
        Folder of the store and the runs.
    models
        Names in `hpcgnn.nn.MODELS`.
    """
    store = write_store(matrix, share, folder)
    for model in models:
        seconds, accuracies, losses = {}, {}, {}
        for name, settings in SETTINGS.items():
            run = folder / f"{model}-{name}"
            found = train(store, run, model, epochs, settings)
            seconds[name] = found["epoch_s"]["median"]
            accuracies[name] = found["mean"]["test"]
            losses[name] = found["seeds"][0]["final_train_loss"]
        yield {
            "kind": "training",
            "graph": matrix.name,
            "model": model,
            "share": share,
            "epochs": epochs,
            "epoch_s": seconds,
            "test_accuracy": accuracies,
            "train_loss": losses,
            "speedup": seconds["all_active"] / seconds["paths_before"],
        }


def train(
    store: Path, run: Path, model: str, epochs: int, settings: tuple[str, ...]
) -> dict[str, Any]:
    """Train by the command line on the GPU; return the summary."""
    words = (
        f"graph.store={store}",
        f"run.dir={run}",
        "run.resume=never",
        "run.save_predictions=false",
        "train.device=cuda",
        f"train.epochs={epochs}",
        f"train.evaluate_every={epochs}",
        f"model.name={model}",
        "model.hidden=128",
    )
    command = [sys.executable, "-m", "hpcgnn.train", *words, *settings, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"training ended with status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def write_store(matrix: Matrix, share: float, folder: Path) -> Path:
    """Write the graph with random features, labels and splits; return the file."""
    rng, count = np.random.default_rng(SEED), matrix.num_nodes
    labels = rng.integers(0, NUM_CLASSES, count).astype(np.int32)
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    features = centres[labels] + rng.normal(size=(count, NUM_FEATURES))
    shares = [share, (1 - share) / 2, (1 - share) / 2]
    split = rng.choice([Split.TRAIN, Split.VALID, Split.TEST], count, p=shares)
    rows = np.repeat(np.arange(count), np.diff(matrix.indptr))
    path = folder / "graph.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name=matrix.name,
            num_nodes=count,
            edges={"": (matrix.indices.astype(np.int64), rows)},
            features=features.astype(np.float32),
            labels=labels,
            split=split.astype(np.uint8),
            num_classes=NUM_CLASSES,
            undirected=True,
        ),
    )
    return path
