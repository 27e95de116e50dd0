"""Stores of many planted graphs, in parts."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np

from hpcgnn.gallery import planted_graphs
from hpcgnn.gallery.many_graphs import PlantedGraphs
from hpcgnn.partition import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphStore, store_from_arrays
from tests.support.training import PARTITIONERS

NUM_GRAPHS, NUM_CLASSES, NUM_FEATURES = 40, 3, 4


def make_graphs(num_graphs: int = NUM_GRAPHS, seed: int = 3) -> PlantedGraphs:
    return planted_graphs(num_graphs, NUM_CLASSES, NUM_FEATURES, seed)


def write_graphs(
    comm: MPI.Intracomm,
    directory: Path,
    made: PlantedGraphs,
    method: str = "random",
    *,
    parts: int = 4,
    edge_features: bool = False,
) -> Path:
    """Write the graphs in at least `parts` parts, and ``targets.npy`` beside the store."""
    path = directory / f"graphs-{method}.h5"
    if comm.rank == 0:
        plain = directory / "plain.h5"
        others = {}
        if edge_features:
            rows = np.random.default_rng(8).normal(size=(len(made.graphs.src), 2))
            others["edge_data"] = {"": EdgeData(rows.astype(np.float32))}
        store_from_arrays(plain, replace(made.graphs, **others))
        np.save(directory / "targets.npy", made.targets)
        with GraphStore.open(plain) as store:
            partition = PARTITIONERS[method](read_pattern(store), max(parts, comm.size))
            write_partitioned(store, path, partition, method=method, seed=5)
    comm.Barrier()
    return path
