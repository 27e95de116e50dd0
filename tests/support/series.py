"""Small graphs with fields in time: planted dynamics, in parts, and configurations for them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import scipy.sparse as sp

from hpcgnn.config.config import Config
from hpcgnn.storage import EdgeData, FieldInfo, SortedRows, StoreHeader, StoreWriter
from tests.support.matrices import ugly_matrix
from tests.support.training import make_config

NUM_NODES, STEPS = 29, 16
MIXING = np.array([[0.9, 0.3], [-0.3, 0.7]])


@dataclass(frozen=True)
class Fields:
    """A graph in memory with fields by name, (T, N, F); nodes in their original order.

    Those of edges are (T, N, N, F), of a target and a source. Edges have features of both ends, and
    one that is 1 where an end is below 3, else 0. There is a `gap` more before the sixth step,
    and `length` before others.
    """

    adjacency: sp.csr_matrix
    values: dict[str, np.ndarray]
    starts: tuple[int, ...] = (0, STEPS)
    weights: np.ndarray | None = None
    features: np.ndarray | None = None
    feature_names: tuple[str, ...] = ()
    positions: np.ndarray | None = None
    edge_features: bool = False
    dtypes: dict[str, str] = field(default_factory=dict)
    types: np.ndarray | None = None
    type_names: tuple[str, ...] = ("free", "wall")
    units: dict[str, str] = field(default_factory=dict)
    of_edges: dict[str, np.ndarray] = field(default_factory=dict)
    gap: float = 0.0
    length: float = 0.5


def with_flows(fields: Fields, *, holes: float = 0.1) -> Fields:
    """Return the fields with q of edges, different in both directions; p is the sum over in-edges.

    w of edges is a function of u of their ends and the first feature of the edge.
    """
    rng, (steps, count, _) = np.random.default_rng(9), fields.values["u"].shape
    flows = 2 * rng.normal(size=(steps, count, count, 2))
    p = np.einsum("tijf,ij->ti", flows, fields.adjacency.toarray() != 0)[:, :, None]
    flows[rng.random(flows.shape) < holes] = np.nan
    values, ids, u = {**fields.values, "p": p}, np.arange(count), fields.values["u"][..., :1]
    # The feature that `write_series` makes.
    factor = np.cos(np.minimum(ids[:, None], ids)).astype(np.float32)[None, :, :, None]
    flux = factor * (u[:, None] - u[:, :, None])
    return replace(fields, values=values, of_edges={"q": flows, "w": flux})


def symmetric(adjacency: sp.csr_matrix) -> sp.csr_matrix:
    """Return D^-1/2 (A + I) D^-1/2."""
    looped = ((adjacency + sp.eye_array(adjacency.shape[0])) != 0).astype(float)
    scale = sp.diags_array(1 / np.sqrt(np.asarray(looped.sum(1)).ravel()))
    return (scale @ looped @ scale).tocsr()


def planted(seed: int = 3, *, noise: float = 0.0, trajectories: int = 1) -> Fields:
    """Return ``u(t+1) = Â u(t) M + 0.1``, and p, which a GCN layer computes from u at its time."""
    rng = np.random.default_rng(seed)
    adjacency = (ugly_matrix(NUM_NODES, seed, symmetric=True) != 0).tocsr()
    matrix = symmetric(adjacency)
    u = np.empty((STEPS * trajectories, NUM_NODES, 2))
    for step in range(len(u)):
        if step % STEPS == 0:
            u[step] = rng.normal(size=u.shape[1:])
        else:
            u[step] = matrix @ u[step - 1] @ MIXING + 0.1
        u[step] += noise * rng.normal(size=u.shape[1:])
    p = 1000 + 50 * (matrix @ (u @ [[2.0], [-1.0]]).transpose(1, 0, 2)[:, :, 0])[:, :, None]
    return Fields(
        adjacency,
        {"u": 5 * u, "p": p.transpose(1, 0, 2)},
        tuple(range(0, len(u) + 1, STEPS)),
        weights=rng.uniform(0.5, 2, NUM_NODES),
        # Scaling subtracts a constant from u, whose product one layer then needs.
        features=np.stack([np.ones(NUM_NODES), np.arange(NUM_NODES) < 3], axis=1).astype(
            np.float32
        ),
        positions=rng.random((NUM_NODES, 2)),
    )


def random_fields(seed: int = 5) -> Fields:
    """Return fields that nothing predicts."""
    fields = planted(seed)
    rng = np.random.default_rng(seed)
    return replace(fields, values={k: rng.normal(size=v.shape) for k, v in fields.values.items()})


def with_holes(fields: Fields, share: float = 0.2) -> Fields:
    """Return the fields with missing values."""
    rng = np.random.default_rng(8)
    values = {}
    for name, array in fields.values.items():
        values[name] = np.where(rng.random(array.shape) < share, np.nan, array)
    return replace(fields, values=values)


def write_series(
    comm: MPI.Intracomm, directory: Path, fields: Fields, *, parts: int = 0, name: str = "series"
) -> Path:
    """Write the fields in parts of unequal sizes, one empty, with nodes in another order.

    By default there are four parts, or one for each rank.
    """
    parts = parts or max(4, comm.size)
    path = directory / f"{name}.h5"
    if comm.rank == 0:
        count = fields.adjacency.shape[0]
        order = np.random.default_rng(1).permutation(count)
        cuts = np.array([0, *sorted(np.arange(1, parts) ** 2 * count // parts**2), count])
        matrix = fields.adjacency[order][:, order].tocsr()
        matrix.sort_indices()
        types = fields.type_names if fields.types is not None else ()
        header = StoreHeader(
            name="planted",
            num_nodes=count,
            undirected=True,
            node_types=types,
            edge_feature_names=("low", "high", "first") if fields.edge_features else (),
            feature_names=fields.feature_names,
        )
        with StoreWriter(path, header) as writer:
            data = EdgeData()
            if fields.edge_features:
                rows, columns = matrix.nonzero()
                pairs = (
                    np.minimum(order[rows], order[columns]),
                    np.maximum(order[rows], order[columns]),
                )
                features = np.cos(np.column_stack(pairs)), pairs[0][:, None] < 3
                data = EdgeData(np.concatenate(features, axis=1).astype(np.float32))
            writer.append_rows(SortedRows(matrix.indptr, matrix.indices, None, data))
            writer.append_original_id(order)
            if fields.features is not None:
                writer.append_features(fields.features[order])
            if fields.types is not None:
                writer.append_types(fields.types[order])
            if fields.positions is not None:
                writer.append_positions(fields.positions[order], [0.0] * fields.positions.shape[1])
            if fields.weights is not None:
                writer.append_weights(fields.weights[order])
            times = np.concatenate([fields.length * np.arange(n) for n in np.diff(fields.starts)])
            times[5 : fields.starts[1]] += fields.gap
            writer.begin_fields(times, fields.starts, fields.units.get("times", "s"))
            for key, array in fields.values.items():
                dtype, unit = fields.dtypes.get(key, "f8"), fields.units.get(key, "")
                info = FieldInfo(key, array.shape[2], np.dtype(dtype), unit)
                for step, rows in enumerate(array):
                    writer.append_field(key, step, rows[order], info)
            ends = [order[each] for each in matrix.nonzero()]
            for key, array in fields.of_edges.items():
                info = FieldInfo(key, array.shape[3], np.dtype("f8"), "", of_edges=True)
                for step, values in enumerate(array):
                    writer.append_field(key, step, values[*ends], info)
            writer.set_partition(cuts, "block", 0, {})
    comm.Barrier()
    return path


def field_config(store: Path, run: Path, *words: str) -> Config:
    """Return the configuration of one GCN layer in float64 that learns the next u."""
    defaults = (
        "train.task=fields",
        "fields.targets=u",
        "fields.predict=next",
        "train.dtype=float64",
    )
    model = (
        "model.name=gcn",
        "model.num_layers=1",
        "train.learning_rate=0.05",
        "fields.evaluated=4",
    )
    parts = ("fields.valid=0.25", "fields.test=0.25", "train.epochs=2")
    return make_config(store, run, *defaults, *model, *parts, *words)
