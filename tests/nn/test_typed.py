"""Models over node types: logits and all gradients equal a dense float64 reference."""

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
from hpcgnn.graph.operators import Products
from hpcgnn.nn import MODELS, InputLayers, ModelShape, TypedModel, TypedRows, make_model
from hpcgnn.spmm import EXCHANGES, METHODS
from hpcgnn.support import Trait
from hpcgnn.train.gradients import sum_gradients
from tests.nn.models import test_models, test_rgcn
from tests.support.dense_models import Dense, logits
from tests.support.matrices import ugly_matrix, uneven_starts
from tests.support.node_types import (
    WIDTHS,
    block_of,
    dense_inputs,
    type_numbers,
    type_parts,
    typed_rows,
)

NUM_NODES, NUM_CLASSES = test_rgcn.NUM_NODES, 3
KEY = DropoutKey(5, 6)
BY_RELATION = ("rgcn", "hgt", "rgat")
NAMES = (
    *BY_RELATION,
    "sage",
    "gat",
    "gcn",
    "transformer",
    "mixhop",
    "gin",
    "appnp",
    "gcnii",
    "sign",
)


@dataclass(frozen=True)
class Setting:
    """A model and the distribution of its graph."""

    name: str
    num_layers: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = "aware"
    replication: int = 1
    schedule: str = "resident"
    prefetch: int = 0
    active: bool = False

    def model(self) -> TypedModel:
        shape = ModelShape(
            num_features=0,
            num_classes=NUM_CLASSES,
            num_layers=self.num_layers,
            num_relations=6,
            dropout=0.3,
            input_dropout=0.2,
            type_features=WIDTHS,
            **{"hidden": 6, "heads": 2 if "heads" in MODELS[self.name].options else 1}
            | self.options,
        )
        made = make_model(self.name, shape, directed=True, seed=9, dtype=torch.float64)
        assert isinstance(made, TypedModel)
        return made

    def products(
        self,
        grid: ProcessGrid,
        row_map: RowMap,
        matrices: list[sp.csr_matrix],
        types: np.ndarray,
    ) -> Products:
        if self.name in BY_RELATION:
            wanted, mine = MODELS[self.name].aggregations, types[row_map.start : row_map.stop]
            return test_rgcn.make_products(
                grid, row_map, self.exchange, matrices, self.schedule, wanted, mine
            )[0]
        how = {"exchange": self.exchange, "replication": self.replication}
        more = {"schedule": self.schedule, "prefetch": self.prefetch}
        spread = test_models.Setting(self.name, **how, **more)
        return test_models.make_products(grid, row_map, matrices[0], spread)

    def dense(self, matrices: list[sp.csr_matrix], types: np.ndarray) -> Dense:
        if self.name not in BY_RELATION:
            return Dense(torch.from_numpy(matrices[0].toarray()), directed=True)
        forward = [torch.from_numpy(each.toarray()) for each in matrices]
        both = (*forward, *(each.T for each in forward))
        numbers = torch.from_numpy(types.astype(np.int64))
        return Dense(sum(both), directed=True, relations=both, types=numbers)


def check(comm: MPI.Intracomm, setting: Setting) -> None:
    """Compare training logits and all gradients with the dense reference."""
    if comm.size % setting.replication:
        pytest.skip("replication does not divide the ranks")
    rng = np.random.default_rng(4)
    matrices = [ugly_matrix(NUM_NODES, 53)]
    if setting.name in BY_RELATION:
        matrices = test_rgcn.relations(weighted=True)
    types = type_numbers(NUM_NODES, 8)
    parts = type_parts(types, 9)
    weights = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_CLASSES)))
    targets = rng.random(NUM_NODES) < (0.2 if setting.active else 1.0)
    ours, theirs = setting.model(), setting.model()
    chosen = torch.from_numpy(targets)
    dense = setting.dense(matrices, types).with_sets(theirs.body, chosen)
    inputs = dense_inputs(theirs.inputs, types, parts)
    expected = logits(setting.name, theirs.body, dense, inputs, KEY)
    (expected * weights)[chosen].sum().backward()
    with ProcessGrid(comm, setting.replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 14), grid.block)
        mine = slice(row_map.start, row_map.stop)
        products = setting.products(grid, row_map, matrices, types)
        view, x = products.view, block_of(types, parts, mine)
        trained, read = view, x
        if setting.active:
            depth = type(ours.body).num_aggregations(ours.body.shape)
            active = products.active_views(targets[mine], depth)
            trained, read = replace(view, active=active.layers), x[active.inputs]
        out = ours(trained, read, KEY)
        local = torch.from_numpy(np.flatnonzero(targets[mine]))
        (out * weights[mine][local]).sum().backward()
        sum_gradients(grid, ours.parameters())
        torch.testing.assert_close(out, expected[mine][local], rtol=1e-11, atol=1e-12)
        assert len(ours.embed(view, x)) == row_map.num_local
    for (name, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if not own.requires_grad:
            assert own.grad is other.grad is None
            continue
        gradient = torch.zeros_like(own) if other.grad is None else other.grad
        torch.testing.assert_close(
            own.grad, gradient, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_model_on_active_sets(comm: MPI.Intracomm, name: str) -> None:
    pushes = Trait.PUSHES not in MODELS[name].traits().lacks
    check(comm, Setting(name, active=True, exchange="joint" if pushes else "aware"))


@pytest.mark.parametrize("name", ["rgcn", "sage", "gat"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_exchanges(comm: MPI.Intracomm, name: str, exchange: str) -> None:
    if name == "gat" and Trait.ADDED_PUSHES in METHODS[exchange].needs:
        pytest.skip("attention pushes states")
    replication = 1 + (comm.size % 2 == 0)
    check(comm, Setting(name, exchange=exchange, replication=replication))


@pytest.mark.parametrize(
    ("name", "exchange", "prefetch"),
    [
        ("sage", "aware", 0),
        ("sage", "joint", 2),
        ("gat", "aware", 1),
        ("gat", "joint", 0),
        ("gcn", "push", 1),
    ],
)
@pytest.mark.parametrize("active", [False, True])
def test_sequential_schedules(
    comm: MPI.Intracomm, name: str, exchange: str, prefetch: int, active: bool
) -> None:
    how = {"schedule": "sequential", "prefetch": prefetch, "exchange": exchange}
    check(comm, Setting(name, num_layers=1, active=active, **how))


@pytest.mark.parametrize("input_width", [2, 40])
@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_either_order_of_products(comm: MPI.Intracomm, name: str, input_width: int) -> None:
    options = {"input_width": input_width, "norm": "batch", "jumping": "concat"}
    check(comm, Setting(name, options=options, active=True))


def test_chosen_rows_keep_their_features() -> None:
    types = type_numbers(20, 3)
    parts = type_parts(types, 4)
    rows = typed_rows(types, parts)
    order = torch.tensor([19, 3, 3, 0, 18, 7])
    layers = InputLayers(WIDTHS, 4).double()
    expected = dense_inputs(layers, types, parts)
    torch.testing.assert_close(layers(rows[order]), expected[order])
    torch.testing.assert_close(layers(rows[order][torch.tensor([4, 0])]), expected[order[[4, 0]]])
    assert [part.shape[1] for part in rows[order].parts] == list(WIDTHS)
    assert len(layers(rows[order[:0]])) == 0


def test_places_may_lie_in_any_order() -> None:
    types = type_numbers(20, 3)
    parts = type_parts(types, 4)
    rows = typed_rows(types, parts)
    turned = TypedRows(
        tuple(part.flip(0) for part in rows.parts),
        rows.types,
        torch.tensor([len(rows.parts[t]) - 1 for t in rows.types]) - rows.part_rows,
    )
    layers = InputLayers(WIDTHS, 4).double()
    torch.testing.assert_close(layers(turned), layers(rows))


def test_features_with_a_gradient_get_it() -> None:
    types = type_numbers(9, 3)
    parts = [torch.from_numpy(part) for part in type_parts(types, 4)]
    layers = InputLayers(WIDTHS, 4).double()

    def mapped(first: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        chosen = (first, parts[1], third, parts[3])
        return layers(TypedRows.in_order(chosen, torch.from_numpy(types)))

    wanted = [parts[0].requires_grad_(), parts[2].requires_grad_()]
    assert torch.autograd.gradcheck(mapped, wanted)


def test_a_type_without_features_starts_from_a_vector() -> None:
    layers = InputLayers(WIDTHS, 64)
    lengths = [float(bias.detach().norm()) for bias in layers.biases]
    assert lengths[0] == lengths[2] == 0
    assert 0.5 < lengths[1] < 2


def test_numbers_of_rows_must_fit() -> None:
    types = type_numbers(9, 3)
    parts = [torch.from_numpy(part) for part in type_parts(types, 4)]
    with pytest.raises(ValueError, match=r"type 0 has \d nodes and \d rows"):
        TypedRows.in_order([parts[0][1:], *parts[1:]], torch.from_numpy(types))
