"""The methods of the epoch benchmark: our layers and models, and those of the peers.

For a problem a method builds a function without arguments that runs forward and returns the tensor
to differentiate. All read the same features; each library has its own parameters.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peer_models import PEERS, Network, with_loops
from benchmarks.spmm_graphs import Matrix, load_matrix
from benchmarks.spmm_peers import import_dgl

__all__ = ["METHODS", "Method", "Problem", "installed_methods", "make_problem"]

CPU = torch.device("cpu")
HEAD_WIDTH, FEATURES, CLASSES, SEED = 100, 100, 40, 20261121
WIDTHS = {"sage": (FEATURES, 256, 256, CLASSES), "gcn": (FEATURES, 16, CLASSES)}


@dataclass(frozen=True)
class Problem:
    """A GAT layer of `heads` heads of width 100, or a whole model if `heads` is 0.

    The matrix is symmetric, with self loops. `labels` belong to whole models. With `keep` our
    method precomputes the first layer's product with the features, which are constant. In bfloat16
    our method reads 16-bit features and peers use torch's autocast, except those whose names end
    in 16, which also have bfloat16 weights. The tensors of all methods are on `place`, a GPU if
    `gpu`; the matrix is on the host.
    """

    model: str
    heads: int
    matrix: Matrix
    threads: int
    features: Tensor
    labels: Tensor
    keep: bool
    precision: str = "float32"
    place: torch.device = CPU
    gpu: bool = False

    @property
    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Torch's mixed precision, used by peers."""
        return torch.autocast(self.place.type, torch.bfloat16, enabled=self.precision == "bfloat16")


@dataclass(frozen=True)
class Method:
    """Functions to time: `forward` returns a tensor for `differentiate`."""

    forward: Callable[[], Tensor]
    parameters: list[nn.Parameter]
    features: Tensor

    def differentiate(self, result: Tensor) -> None:
        """Run backward, from ones for a layer or from the loss for a model."""
        for tensor in (self.features, *self.parameters):
            tensor.grad = None
        result.backward(torch.ones_like(result))


def make_problem(
    model: str,
    graph: str,
    threads: int,
    *,
    keep: bool = True,
    precision: str = "float32",
    place: torch.device = CPU,
    gpu: bool = False,
) -> Problem:
    """Return the problem of ``gat:HEADS``, ``sage`` or ``gcn``."""
    name, _, heads = model.partition(":")
    loaded = load_matrix(graph)
    matrix, random = with_loops(loaded), torch.Generator().manual_seed(SEED)
    features = torch.randn(matrix.num_nodes, FEATURES, generator=random).to(place)
    labels = torch.randint(CLASSES, (matrix.num_nodes,), generator=random).to(place)
    # The input of a layer inside a model has a gradient, the features of a model have none.
    features.requires_grad_(bool(heads))
    fixed = name, int(heads or 0), matrix, threads
    return Problem(*fixed, features, labels, keep, precision, place, gpu)


def installed_methods(
    names: list[str], precision: str = "float32", *, gpu: bool = False
) -> list[str]:
    """Return the methods of those libraries in `names` that are installed and support the case."""
    modules = {"ours": "mpi4py", "dgl": "dgl", "pyg": "torch_geometric"}
    found = [name for name in names if find_spec(modules[name]) is not None]
    if gpu:
        # The package index has no GPU wheels of DGL.
        found = [name for name in found if name != "dgl"]
        found += [f"{name}_compiled" for name in found]
    if precision == "bfloat16":
        # Torch's CSR product rejects operands cast by autocast.
        found = [each for each in found if each != "pyg"] + [f"{each}16" for each in found]
    return found


def ours(problem: Problem) -> Method:
    """Our layers on one rank, with the engine of training."""
    from mpi4py import MPI  # noqa: PLC0415  (starts MPI)

    from hpcgnn.comm import ProcessGrid, RowMap  # noqa: PLC0415
    from hpcgnn.config.config import (  # noqa: PLC0415
        Config,
        GraphConfig,
        ModelConfig,
        RunConfig,
    )
    from hpcgnn.config.exchange import ExchangeConfig  # noqa: PLC0415
    from hpcgnn.graph.device import CPU as HOST  # noqa: PLC0415
    from hpcgnn.graph.device import Device  # noqa: PLC0415
    from hpcgnn.graph.operators import Adjacency, make_operators  # noqa: PLC0415
    from hpcgnn.nn import MODELS, ModelShape, for_loss, make_model  # noqa: PLC0415
    from hpcgnn.nn.losses import MeanLoss  # noqa: PLC0415
    from hpcgnn.nn.models.gat import GATLayer  # noqa: PLC0415
    from hpcgnn.operator import on_graph  # noqa: PLC0415
    from hpcgnn.sparse import DistCSR  # noqa: PLC0415
    from hpcgnn.spmm.gpu.mpi import StagedTransport  # noqa: PLC0415
    from hpcgnn.trace import TraceRecorder  # noqa: PLC0415
    from hpcgnn.train.cached_products import CachedProducts  # noqa: PLC0415

    m, ids = problem.matrix, np.arange(problem.matrix.num_nodes)
    row_map = RowMap(np.array([0, m.num_nodes]), 0)
    block = DistCSR.from_rows(row_map, m.indptr, m.indices.astype(np.int64))
    wanted = on_graph(MODELS[problem.model].aggregations, directed=False)
    grid, trace = ProcessGrid(MPI.COMM_SELF), TraceRecorder.off()
    device = Device("cuda", problem.place, StagedTransport()) if problem.gpu else HOST
    make = make_operators(grid, ExchangeConfig(), trace, device)
    products = Adjacency(make, block, wanted, "float32", ids).products()
    features = problem.features
    if problem.precision == "bfloat16":
        features = features.detach().bfloat16().requires_grad_(features.requires_grad)
    if problem.heads:
        width = problem.heads * HEAD_WIDTH
        layer = GATLayer(FEATURES, width, heads=problem.heads, average=False)
        layer.to(problem.place)
        view = products.view.layer(0)
        return Method(lambda: layer(view, features), list(layer.parameters()), features)
    widths = WIDTHS[problem.model]
    shape = ModelShape(
        num_features=FEATURES,
        num_classes=CLASSES,
        hidden=widths[1],
        num_layers=len(widths) - 1,
    )
    model = make_model(problem.model, shape, directed=False, seed=SEED, dtype=torch.float32)
    model.to(problem.place)
    config = Config(
        graph=GraphConfig(store="none"),
        run=RunConfig(dir="none"),
        model=ModelConfig(name=problem.model),
        exchange=ExchangeConfig(keep_products="always" if problem.keep else "never"),
    )
    view = CachedProducts(config, shape).for_training(products.view, features)
    loss = MeanLoss(m.num_nodes).single_label
    return _whole(problem, lambda: for_loss(model, view, features, None), model, loss)


def dgl(problem: Problem) -> Method:
    """DGL's GATConv, SAGEConv (mean) and GraphConv, with int32 ids."""
    if not problem.heads:
        return _peer(problem, "dgl")
    library = import_dgl()
    library.utils.set_num_threads(problem.threads)
    ends = tuple(_network(problem).edges(problem.matrix))
    graph = library.graph(ends, num_nodes=problem.matrix.num_nodes).int()
    layer = library.nn.GATConv(FEATURES, HEAD_WIDTH, problem.heads)
    return _cast(problem, lambda x: layer(graph, x), layer)


def pyg(problem: Problem) -> Method:
    """torch-geometric's GATConv on edges; SAGEConv and GCNConv on a torch CSR matrix."""
    if not problem.heads:
        return _peer(problem, "pyg_csr")
    layer, ends = _pyg_attention(problem)
    return _cast(problem, lambda x: layer(x, ends), layer)


def pyg_compiled(problem: Problem) -> Method:
    """torch-geometric's layers on edges, each through torch.compile."""
    if not problem.heads:
        return _peer(problem, "pyg_compiled")
    layer, ends = _pyg_attention(problem)
    compiled = torch.compile(layer)
    return _cast(problem, lambda x: compiled(x, ends), layer)


def _pyg_attention(problem: Problem) -> tuple[nn.Module, Tensor]:
    from torch_geometric import nn as conv  # noqa: PLC0415  (only where it is installed)

    layer = conv.GATConv(FEATURES, HEAD_WIDTH, problem.heads, add_self_loops=False)
    return layer, _network(problem).edges(problem.matrix)


def _network(problem: Problem) -> Network:
    return Network(
        model=problem.model,
        widths=WIDTHS.get(problem.model, ()),
        matrix=problem.matrix,
        threads=problem.threads,
        place=problem.place,
        dtype=problem.features.dtype,
    )


def _peer(problem: Problem, name: str) -> Method:
    """Return a whole model built from a library's layers."""
    layers = PEERS[name](_network(problem))

    def logits() -> Tensor:
        with problem.autocast:
            rows: Tensor = layers(problem.features)
            return rows.float()

    return _whole(problem, logits, layers)


def _cast(problem: Problem, forward: Callable[[Tensor], Tensor], layer: nn.Module) -> Method:
    """Return a peer's layer."""
    layer.to(problem.place)
    if problem.features.dtype == torch.bfloat16:
        layer.bfloat16()

    def run() -> Tensor:
        with problem.autocast:
            return forward(problem.features)

    return Method(run, list(layer.parameters()), problem.features)


def _whole16(method: Callable[[Problem], Method], problem: Problem) -> Method:
    """Return a peer with weights, features and matrix in bfloat16."""
    features = problem.features.detach().bfloat16()
    features.requires_grad_(problem.features.requires_grad)
    return method(replace(problem, features=features, precision="float32"))


def _whole(
    problem: Problem,
    logits: Callable[[], Tensor],
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> Method:
    """Return the loss of a model, the mean cross entropy."""
    parameters = list(model.parameters())
    return Method(lambda: loss(logits(), problem.labels), parameters, problem.features)


METHODS: dict[str, Callable[[Problem], Method]] = {
    "ours": ours,
    "dgl": dgl,
    "dgl16": partial(_whole16, dgl),
    "pyg": pyg,
    "pyg16": partial(_whole16, pyg),
    "pyg_compiled": pyg_compiled,
    "pyg_compiled16": partial(_whole16, pyg_compiled),
}


def edge_tensor_bytes(problem: Problem) -> Any:
    """Return the bytes of a tensor with a row of the layer's width for each edge."""
    return problem.matrix.indices.size * problem.heads * HEAD_WIDTH * 4
