"""Logits and parameter gradients of every model equal a dense float64 reference."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.operators import Adjacency, Products, make_operators
from hpcgnn.nn import (
    MODELS,
    GraphView,
    Model,
    ModelShape,
    make_model,
)
from hpcgnn.operator import on_graph
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.gradients import sum_gradients
from tests.support.dense_models import Dense, logits
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 47, 9, 4
KEY = DropoutKey(5, 6)


@dataclass(frozen=True)
class Setting:
    """A model, a graph and its distribution."""

    name: str
    directed: bool = True
    num_layers: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = "aware"
    replication: int = 1
    schedule: str = "resident"
    prefetch: int = 0
    active: bool = False

    def shape(self) -> ModelShape:
        return ModelShape(
            num_features=NUM_FEATURES,
            num_classes=NUM_CLASSES,
            num_layers=self.num_layers,
            dropout=0.3,
            input_dropout=0.2,
            **{"hidden": 6, "heads": 2 if "heads" in MODELS[self.name].options else 1}
            | self.options,
        )

    def model(self) -> Model:
        return make_model(
            self.name, self.shape(), directed=self.directed, seed=9, dtype=torch.float64
        )


def check(comm: MPI.Intracomm, setting: Setting) -> None:
    """Compare training logits, evaluated logits and all gradients with the dense reference."""
    if comm.size % setting.replication:
        pytest.skip("replication does not divide the ranks")
    matrix = ugly_matrix(NUM_NODES, 53, symmetric=not setting.directed)
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_FEATURES)))
    weights = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_CLASSES)))
    targets = rng.random(NUM_NODES) < (0.2 if setting.active else 1.0)
    ours, theirs = setting.model(), setting.model()
    dense = Dense(torch.from_numpy(matrix.toarray()), setting.directed)
    expected = logits(
        setting.name, theirs, dense.with_sets(theirs, torch.from_numpy(targets)), x, KEY
    )
    (expected * weights)[torch.from_numpy(targets)].sum().backward()
    with ProcessGrid(comm, setting.replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 14), grid.block)
        mine = slice(row_map.start, row_map.stop)
        products = make_products(grid, row_map, matrix, setting)
        ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
        view = GraphView(products.operators, ids, grid.sum_over_blocks)
        trained, inputs = view, torch.arange(row_map.num_local)
        if setting.active:
            depth = type(ours).num_aggregations(setting.shape())
            active = products.active_views(targets[mine], depth)
            trained, inputs = replace(view, active=active.layers), active.inputs
        out = ours(trained, x[mine][inputs].clone(), KEY)
        chosen = torch.from_numpy(np.flatnonzero(targets[mine]))
        (out * weights[mine][chosen]).sum().backward()
        sum_gradients(grid, ours.parameters())
        torch.testing.assert_close(out, expected[mine][chosen], rtol=1e-11, atol=1e-12)
        assert ours.embed(view, x[mine]).shape[0] == row_map.num_local
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-11, atol=1e-11)


def make_products(
    grid: ProcessGrid, row_map: RowMap, matrix: sp.csr_matrix, setting: Setting
) -> Products:
    wanted = on_graph(MODELS[setting.name].aggregations, directed=setting.directed)
    if any(kind.self_loops for kind in wanted):
        matrix = matrix + sp.diags_array((matrix.diagonal() == 0).astype(float))
    part = block_row(sp.csr_matrix(matrix), row_map)
    config = ExchangeConfig(
        method=setting.exchange,
        replication=setting.replication,
        schedule=setting.schedule,
        prefetch=setting.prefetch,
    )
    ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    make = make_operators(grid, config, TraceRecorder.off())
    return Adjacency(make, part, wanted, np.float64, ids).products()


NAMES = ("gcn", "sage", "gat", "gatv2", "transformer", "mixhop", "gin", "appnp", "gcnii", "sign")

BODIES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "residual": {"residual": True},
    "batch norm": {"norm": "batch", "residual": True},
    "graph norm, joined": {"norm": "graph", "jumping": "concat"},
    "layer norm, maximum": {"norm": "layer", "jumping": "max", "activation": "elu"},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_depths_and_directions(
    comm: MPI.Intracomm, name: str, directed: bool, num_layers: int
) -> None:
    # One map for each power, and one of all of them.
    check(comm, Setting(name, directed, num_layers + (name == "sign")))


@pytest.mark.parametrize("name", [name for name in NAMES if "jumping" in MODELS[name].options])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("active", [False, True])
def test_bodies(comm: MPI.Intracomm, name: str, body: str, active: bool) -> None:
    check(comm, Setting(name, num_layers=3, options=BODIES[body], active=active))


@pytest.mark.parametrize("name", ["gcnii", "sign"])
@pytest.mark.parametrize("norm", ["batch", "graph", "layer"])
def test_norms(comm: MPI.Intracomm, name: str, norm: str) -> None:
    options = {"norm": norm, "activation": "elu"}
    check(comm, Setting(name, num_layers=3, options=options, active=True))


SPREADS = [
    {"exchange": exchange, "replication": replication, "active": active}
    for exchange, replication, active in (
        ("aware", 1, True),
        ("aware", 2, False),
        ("joint", 1, True),
        ("joint", 2, True),
        ("push", 1, True),
        ("push", 2, False),
        ("oblivious", 1, True),
        ("oblivious", 2, False),
        ("hierarchical", 1, False),
        ("hierarchical", 2, True),
    )
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_spreads(comm: MPI.Intracomm, name: str, spread: dict[str, Any]) -> None:
    check(comm, Setting(name, **spread))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize(("exchange", "active"), [("aware", False), ("joint", True)])
def test_schedules(
    comm: MPI.Intracomm, name: str, prefetch: int, exchange: str, active: bool
) -> None:
    how = {"schedule": "sequential", "prefetch": prefetch, "exchange": exchange}
    check(comm, Setting(name, active=active, **how))


@pytest.mark.parametrize(("name", "hops"), [("mixhop", 3), ("appnp", 4), ("sign", 2)])
def test_hops(comm: MPI.Intracomm, name: str, hops: int) -> None:
    check(comm, Setting(name, options={"hops": hops}, active=True))


def test_equal_seeds_make_equal_models_and_leave_the_generator() -> None:
    shape = ModelShape(num_features=3, num_classes=2, hidden=4, num_layers=2)
    before = torch.random.get_rng_state()
    one, two = (
        make_model("sage", shape, directed=True, seed=7, dtype=torch.float32) for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_unknown_model() -> None:
    shape = ModelShape(num_features=3, num_classes=2, hidden=4, num_layers=2)
    with pytest.raises(InputError, match="gcn, sage, "):
        make_model("gat2", shape, directed=False, seed=1, dtype=torch.float32)
