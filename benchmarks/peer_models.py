"""Whole models built from the layers of other libraries, with the weights of our models.

A peer is a function from a `Network` to a module that maps features to logits: ``pyg`` is
torch-geometric as installed, on a list of edges; ``pyg_csr`` the same on matrices built once,
``pyg_compiled`` through torch.compile; ``dgl`` is DGL on int32 graphs; ``mkl`` is plain torch with
MKL's sparse-dense product, stored transposes (as in iSpLib) and the cheaper order of every pair of
products; ``inspector`` is the same with the products of `benchmarks.mkl_peer`, which uses AVX-512
on any processor and prepares each matrix for each width (float32).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.mkl_peer import load_mkl
from benchmarks.spmm_graphs import Matrix
from benchmarks.spmm_peers import import_dgl, torch_csr_matrix

__all__ = ["PACKAGES", "PEERS", "Network", "with_loops"]

CPU = torch.device("cpu")
PACKAGES = {"pyg": "torch_geometric", "dgl": "dgl", "mkl": "torch", "inspector": "mkl"}
"""The first word of a peer's name to the package that it needs."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model on a graph.

    Parameters
    ----------
    model
        gcn, sage, gat, gin or rgcn.
    widths
        Widths of the features, of each hidden layer, and of the logits.
    heads
        Attention heads: concatenated in hidden layers, averaged in the last.
    matrix
        A symmetric pattern: row i has the nodes that node i aggregates. GCN and GAT add loops.
    relations
        (entries,) the relation of each entry, for rgcn, and the number of relations.
    weights
        ``state_dict`` of our model; empty: each library draws its own.
    threads
        Number of threads for DGL.
    place, dtype
        Device and dtype of the graph's tensors.
    """

    model: str
    widths: tuple[int, ...]
    matrix: Matrix
    heads: int = 1
    relations: tuple[Any, int] | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    threads: int = 1
    place: torch.device = CPU
    dtype: torch.dtype = torch.float32

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The input and output width of each layer."""
        return list(pairwise(self.widths))

    def edges(self, matrix: Matrix, *, by_target: bool = True) -> Tensor:
        """Return (2, entries) int64 sources and targets, sorted by one of them."""
        rows = np.repeat(np.arange(matrix.num_nodes), np.diff(matrix.indptr))
        ends = [matrix.indices.astype(np.int64), rows]
        # The pattern is symmetric: the transpose of an entry is an entry as well.
        return torch.from_numpy(np.stack(ends if by_target else ends[::-1])).to(self.place)

    def by_relation(self) -> list[Matrix]:
        """Return the matrix of each relation."""
        assert self.relations is not None
        kinds, count = self.relations
        m = self.matrix
        rows = np.repeat(np.arange(m.num_nodes), np.diff(m.indptr))
        found = []
        for kind in range(count):
            chosen = kinds == kind
            counts = np.bincount(rows[chosen], minlength=m.num_nodes)
            indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            parts = m.indices[chosen], m.values[chosen]
            found.append(Matrix(f"{m.name}:{kind}", m.num_nodes, indptr, *parts))
        return found

    def head_width(self, place: int) -> int:
        """Return the columns of a head in a layer."""
        out = self.widths[place + 1]
        return out if self.is_last(place) else out // self.heads

    def is_last(self, place: int) -> bool:
        """Return whether a layer is the last one, whose output is the logits."""
        return place == len(self.widths) - 2


Peer: TypeAlias = Callable[[Network], nn.Module]


class Stack(nn.Module):
    """Layers with ReLUs between them; `apply` calls a layer with its index and its input."""

    def __init__(self, layers: list[nn.Module], call: Callable[[int, Any, Any], Tensor]) -> None:
        super().__init__()
        self.layers, self.call = nn.ModuleList(layers), call

    def forward(self, x: Any) -> Tensor:
        """Return the logits (N, C) of features (N, F)."""
        for place, layer in enumerate(self.layers):
            if place:
                x = functional.relu(x)
            x = self.call(place, layer, x)
        return x


def with_loops(matrix: Matrix) -> Matrix:
    """Return the pattern with all self loops, and ones as values."""
    shape = (matrix.num_nodes, matrix.num_nodes)
    ones = np.ones(matrix.indices.size, np.float32)
    pattern = sparse.csr_matrix((ones, matrix.indices, matrix.indptr), shape=shape)
    pattern = (pattern + sparse.eye_array(shape[0], format="csr", dtype=np.float32)).tocsr()
    pattern.sort_indices()
    indptr, indices = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32)
    return Matrix(matrix.name, shape[0], indptr, indices, np.ones(pattern.nnz, np.float32))


def with_values(matrix: Matrix, left: float, right: float) -> Matrix:
    """Return the pattern with values of row and column degrees to the powers `left`, `right`."""
    degrees = np.maximum(np.diff(matrix.indptr), 1).astype(np.float64)
    rows = np.repeat(degrees**left, np.diff(matrix.indptr))
    values = (rows * degrees[matrix.indices] ** right).astype(np.float32)
    return Matrix(matrix.name, matrix.num_nodes, matrix.indptr, matrix.indices, values)


def normalised(matrix: Matrix) -> Matrix:
    """Return the matrix of a GCN, which is symmetric: D^-1/2 (A + I) D^-1/2."""
    return with_values(with_loops(matrix), -0.5, -0.5)


def csr(network: Network, matrix: Matrix) -> Tensor:
    return torch_csr_matrix(matrix, matrix.values).to(network.place, network.dtype)


# Names of a layer's tensors to those of our layer; "T" transposes, "[None]" adds a dimension.
_PYG = {
    "gcn": {"lin.weight": "linear.weight", "bias": "bias"},
    "sage": {
        "lin_l.weight": "neighbours.0",
        "lin_l.bias": "own.bias",
        "lin_r.weight": "own.weight",
    },
    "gat": {
        "lin.weight": "linear.weight",
        "att_src": "source [None]",
        "att_dst": "target [None]",
        "bias": "bias",
    },
    "gin": {
        "nn.0.weight": "first.weight",
        "nn.0.bias": "first.bias",
        "nn.2.weight": "second.weight",
        "nn.2.bias": "second.bias",
        "eps": "epsilon [None]",
    },
    "rgcn": {"weight": "matrices", "root": "own.weight T", "bias": "own.bias"},
}
_DGL = {
    "gcn": {"weight": "linear.weight T", "bias": "bias"},
    "sage": {
        "fc_neigh.weight": "neighbours.0",
        "fc_self.weight": "own.weight",
        "fc_self.bias": "own.bias",
    },
    "gat": {
        "conv.fc.weight": "linear.weight",
        "conv.attn_l": "source [None]",
        "conv.attn_r": "target [None]",
        "bias": "bias",
    },
    "gin": {
        "apply_func.0.weight": "first.weight",
        "apply_func.0.bias": "first.bias",
        "apply_func.2.weight": "second.weight",
        "apply_func.2.bias": "second.bias",
        "eps": "epsilon [None]",
    },
}
_FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "": lambda tensor: tensor,
    "T": lambda tensor: tensor.T,
    "[None]": lambda tensor: tensor[None],
}


def loaded(network: Network, stack: Stack, names: Mapping[str, str]) -> Stack:
    """Return the stack on the network's device, with our weights if the network has them."""
    stack = stack.to(network.place, network.dtype)
    for place, layer in enumerate(stack.layers):
        if not network.weights:
            break
        state = layer.state_dict()
        for name, words in names.items():
            ours, _, form = words.partition(" ")
            known = _FORMS[form](network.weights[f"layers.{place}.{ours}"])
            if state[name].shape != known.shape:
                raise ValueError(f"{name}: {state[name].shape}, not {known.shape}")
            state[name] = known
        layer.load_state_dict(state)
    return stack


def perceptron(network: Network, in_width: int, out_width: int) -> nn.Sequential:
    inner = network.widths[1]
    return nn.Sequential(nn.Linear(in_width, inner), nn.ReLU(), nn.Linear(inner, out_width))


def pyg(network: Network) -> nn.Module:
    """torch-geometric as installed: a list of edges, default settings."""
    from torch_geometric import nn as conv  # noqa: PLC0415  (only where it is installed)

    edges, more = network.edges(network.matrix, by_target=False), ()
    if network.relations is not None:
        # Both directions of an edge have the same relation, and entries are sorted by row.
        more = (torch.from_numpy(network.relations[0].astype(np.int64)),)
    layers = [_pyg_layer(conv, network, place) for place in range(len(network.shapes))]
    stack = Stack(layers, lambda _, layer, x: layer(x, edges, *more))
    return loaded(network, stack, _PYG[network.model])


def _pyg_layer(conv: Any, network: Network, place: int, **how: Any) -> Any:
    in_width, out_width = network.shapes[place]
    if network.model == "gat":
        concat = not network.is_last(place)
        width = network.head_width(place)
        return conv.GATConv(in_width, width, network.heads, concat, **how)
    if network.model == "gin":
        return conv.GINConv(perceptron(network, in_width, out_width), train_eps=True)
    if network.model == "rgcn":
        assert network.relations is not None
        return conv.RGCNConv(in_width, out_width, network.relations[1])
    make = {"gcn": conv.GCNConv, "sage": conv.SAGEConv}[network.model]
    return make(in_width, out_width, **how)


def pyg_csr(network: Network) -> nn.Module:
    """torch-geometric on torch CSR matrices built once; attention on edges with loops."""
    from torch_geometric import nn as conv  # noqa: PLC0415  (only where it is installed)

    model, places = network.model, range(len(network.shapes))
    if model == "rgcn":
        return _pyg_by_relation(conv, network)
    given: Tensor
    how: dict[str, Any] = {}
    if model == "gat":
        given, how = network.edges(with_loops(network.matrix)), {"add_self_loops": False}
    elif model == "gcn":
        given, how = csr(network, normalised(network.matrix)), {"normalize": False}
    else:
        given = csr(network, with_values(network.matrix, 0, 0))
    layers = [_pyg_layer(conv, network, place, **how) for place in places]
    stack = Stack(layers, lambda _, layer, x: layer(x, given))
    return loaded(network, stack, _PYG[model])


class _ByRelation(nn.Module):
    """``X W + b`` and a layer without own rows for each relation."""

    def __init__(self, in_width: int, out_width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.own, self.layers = nn.Linear(in_width, out_width), nn.ModuleList(layers)

    def take(self, network: Network, place: int, named: str, *, turned: bool) -> None:
        """Copy the weights of our layer; those of relations are called `named`."""
        if network.weights:
            ours = {
                name: network.weights[f"layers.{place}.{name}"]
                for name in ("own.weight", "own.bias", "matrices")
            }
            with torch.no_grad():
                self.own.weight.copy_(ours["own.weight"])
                self.own.bias.copy_(ours["own.bias"])
                for layer, known in zip(self.layers, ours["matrices"], strict=True):
                    layer.get_parameter(named).copy_(known.T if turned else known)


def _pyg_by_relation(conv: Any, network: Network) -> nn.Module:
    matrices = [csr(network, with_values(each, 0, 0)) for each in network.by_relation()]
    layers: list[nn.Module] = []
    for place, shape in enumerate(network.shapes):
        each = [conv.SAGEConv(*shape, root_weight=False, bias=False) for _ in matrices]
        layer = _ByRelation(*shape, each)
        layer.take(network, place, "lin_l.weight", turned=True)
        layers.append(layer)

    def call(_: int, layer: Any, x: Tensor) -> Tensor:
        out = layer.own(x)
        for of_one, matrix in zip(layer.layers, matrices, strict=True):
            out = out + of_one(x, matrix)
        return out

    return Stack(layers, call).to(network.place, network.dtype)


def pyg_compiled(network: Network) -> nn.Module:
    """torch-geometric on a list of edges through torch.compile; loops and weights built once."""
    from torch_geometric import nn as conv  # noqa: PLC0415  (only where it is installed)

    model, matrix, more, how = network.model, network.matrix, (), {}
    if model in ("gcn", "gat"):
        matrix = with_loops(matrix)
    if model == "gcn":
        values = torch.from_numpy(with_values(matrix, -0.5, -0.5).values)
        more, how = (values.to(network.place, network.dtype),), {"normalize": False}
    elif model == "gat":
        how = {"add_self_loops": False}
    elif network.relations is not None:
        more = (torch.from_numpy(network.relations[0].astype(np.int64)),)
    edges = network.edges(matrix)
    layers = [_pyg_layer(conv, network, place, **how) for place in range(len(network.shapes))]
    stack = loaded(network, Stack(layers, lambda _, layer, x: layer(x, edges, *more)), _PYG[model])
    stack.compile()
    return stack


class _Biased(nn.Module):
    """DGL's attention with one bias per row, added to the concatenation or mean of the heads."""

    def __init__(self, conv: nn.Module, width: int, *, average: bool) -> None:
        super().__init__()
        self.conv, self.average = conv, average
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        """Return the rows of a layer."""
        heads = self.conv(graph, x)
        return (heads.mean(1) if self.average else heads.flatten(1)) + self.bias


def dgl(network: Network) -> nn.Module:
    """DGL with int32 ids and all graph formats built once; one product per relation."""
    library = import_dgl()
    library.utils.set_num_threads(network.threads)
    model, conv = network.model, library.nn

    def graph_of(matrix: Matrix) -> Any:
        # Its attention needs edge ids, which it only creates from edge lists.
        given: Any = tuple(network.edges(matrix))
        if model != "gat":
            parts = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices).long()
            given = "csc", (*parts, [])
        graph = library.graph(given, num_nodes=matrix.num_nodes).int()
        graph.create_formats_()
        return graph

    layers: list[nn.Module] = []
    if model == "rgcn":
        graphs = [graph_of(matrix) for matrix in network.by_relation()]
        for place, shape in enumerate(network.shapes):
            each = [
                conv.GraphConv(*shape, norm="right", bias=False, allow_zero_in_degree=True)
                for _ in graphs
            ]
            layer = _ByRelation(*shape, each)
            layer.take(network, place, "weight", turned=False)
            layers.append(layer)

        def call(_: int, layer: Any, x: Tensor) -> Tensor:
            out = layer.own(x)
            for of_one, graph in zip(layer.layers, graphs, strict=True):
                out = out + of_one(graph, x)
            return out

        return Stack(layers, call).to(network.place, network.dtype)

    def make(place: int) -> nn.Module:
        in_width, out_width = network.shapes[place]
        if model == "gat":
            heads = conv.GATConv(in_width, network.head_width(place), network.heads, bias=False)
            return _Biased(heads, out_width, average=network.is_last(place))
        if model == "gin":
            inner = perceptron(network, in_width, out_width)
            return conv.GINConv(inner, "sum", learn_eps=True)
        if model == "sage":
            return conv.SAGEConv(in_width, out_width, "mean")
        return conv.GraphConv(in_width, out_width)

    graph = graph_of(with_loops(network.matrix) if model in ("gcn", "gat") else network.matrix)
    stack = Stack(
        [make(place) for place in range(len(network.shapes))], lambda _, f, x: f(graph, x)
    )
    return loaded(network, stack, _DGL[model])


class _Product(torch.autograd.Function):
    """``A X`` of a constant sparse A with a stored transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: "SparseMatrix") -> Tensor:
        ctx.matrix = matrix
        return matrix.product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed(grad), None


Product: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """The products of a constant sparse matrix, and of its transpose, with dense matrices."""

    product: Product
    transposed: Product

    def times(self, x: Tensor) -> Tensor:
        """Return the product with a dense matrix."""
        product: Tensor = _Product.apply(x, self)
        return product


Library: TypeAlias = Callable[[Any], SparseMatrix]
"""Prepares a SciPy matrix."""


def torch_products(matrix: Any, dtype: torch.dtype = torch.float32) -> SparseMatrix:
    """Prepare a SciPy matrix as torch CSR with int32 indices."""
    parts = [_torch_csr(each).to(dtype) for each in (matrix.tocsr(), matrix.T.tocsr())]
    return SparseMatrix(*(partial(torch.matmul, each) for each in parts))


def inspector_products(matrix: Any, threads: int) -> SparseMatrix:
    """Prepare a SciPy matrix for MKL's inspector-executor products."""
    parts = [each.astype(np.float32) for each in (matrix.tocsr(), matrix.T.tocsr())]
    return SparseMatrix(*(_InspectorProduct(each, threads) for each in parts))


class _InspectorProduct:
    """A SciPy CSR matrix, with a handle of MKL for each width of its operands."""

    def __init__(self, matrix: Any, threads: int) -> None:
        indptr, indices = (part.astype(np.int32) for part in (matrix.indptr, matrix.indices))
        self._matrix = sparse.csr_matrix((matrix.data, indices, indptr), matrix.shape)
        self._by_width = cache(partial(load_mkl().product, self._matrix, threads=threads))

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(self._matrix.shape[0], x.shape[1])
        self._by_width(x.shape[1])(x.detach().numpy(), out.numpy())
        return out


def _torch_csr(matrix: Any) -> Tensor:
    parts = (matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data)
    return torch.sparse_csr_tensor(*map(torch.from_numpy, parts), matrix.shape)


def _scipy(matrix: Matrix) -> Any:
    shape = (matrix.num_nodes, matrix.num_nodes)
    return sparse.csr_matrix((matrix.values, matrix.indices, matrix.indptr), shape=shape)


def _mapped(x: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
    """Return ``X Wᵀ``."""
    return x.times(weight.T) if isinstance(x, SparseMatrix) else functional.linear(x, weight)


def _aggregated(matrix: SparseMatrix, x: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
    """Return ``A X Wᵀ`` in the order that multiplies A with the narrower matrix."""
    if isinstance(x, SparseMatrix) or weight.shape[0] <= weight.shape[1]:
        return matrix.times(_mapped(x, weight))
    return functional.linear(matrix.times(x), weight)


def mkl(network: Network) -> nn.Module:
    """Plain torch, with its MKL for products with sparse matrices, which may include features."""
    return _with_products(network, partial(torch_products, dtype=network.dtype))


def inspector(network: Network) -> nn.Module:
    """As `mkl`, with the inspector-executor products of the package `mkl`."""
    return _with_products(network, partial(inspector_products, threads=network.threads))


def _with_products(network: Network, library: Library) -> nn.Module:
    model, graph = network.model, network.matrix
    if model == "gat":
        raise ValueError("MKL does not support attention")
    matrices = {
        "gcn": lambda: [normalised(graph)],
        "sage": lambda: [with_values(graph, -1, 0)],
        "gin": lambda: [with_values(graph, 0, 0)],
        "rgcn": lambda: [with_values(each, -1, 0) for each in network.by_relation()],
    }[model]()
    known = [library(_scipy(matrix)) for matrix in matrices]
    names = {
        "gcn": ("linear.weight", "bias"),
        "sage": ("neighbours.0", "own.weight", "own.bias"),
        "gin": ("first.weight", "first.bias", "epsilon", "second.weight", "second.bias"),
        "rgcn": ("matrices", "own.weight", "own.bias"),
    }[model]
    layers: list[nn.Module] = [
        nn.ParameterList(
            nn.Parameter(network.weights[f"layers.{place}.{name}"].detach().clone())
            for name in names
        )
        for place in range(len(network.shapes))
    ]

    def call(_: int, layer: Any, x: Any) -> Tensor:
        if model == "gcn":
            return _aggregated(known[0], x, layer[0]) + layer[1]
        if model == "sage":
            return _aggregated(known[0], x, layer[0]) + (_mapped(x, layer[1]) + layer[2])
        if model == "rgcn":
            out = _mapped(x, layer[1]) + layer[2]
            for matrix, weight in zip(known, layer[0], strict=True):
                out = out + _aggregated(matrix, x, weight.T)
            return out
        own = (1 + layer[2]) * layer[0]
        inner = _aggregated(known[0], x, layer[0]) + _mapped(x, own) + layer[1]
        return functional.linear(functional.relu(inner), layer[3], layer[4])

    return Stack(layers, call).to(network.place, network.dtype)


PEERS: Mapping[str, Peer] = {
    "pyg": pyg,
    "pyg_csr": pyg_csr,
    "pyg_compiled": pyg_compiled,
    "dgl": dgl,
    "mkl": mkl,
    "inspector": inspector,
}
