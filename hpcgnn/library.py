"""hpcgnn as a library: the graph of a rank, for models and training loops of one's own.

`open_graph` reads a rank's share; a loop calls a model with `Graph.view` and `Graph.features`, or
takes the losses of `Graph.steps`, and adds the gradients of all ranks up with `sum_gradients`. The
names here are those of the package: ``hpcgnn.open_graph``. See docs/library.md.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from hpcgnn import pyg
from hpcgnn.autograd import DropoutKey, SparseFeatures
from hpcgnn.comm import (
    CollectiveInputError,
    Communicator,
    ProcessGrid,
    agree,
    sum_over_ranks,
)
from hpcgnn.config.config import Config
from hpcgnn.config.file import config_from_tables
from hpcgnn.config.options import choice
from hpcgnn.errors import InputError
from hpcgnn.graph.choice import with_chosen_exchange
from hpcgnn.graph.context import Context
from hpcgnn.graph.device import require_device
from hpcgnn.graph.edge_views import EdgeViews
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, NodeFeatures, TrainableModule
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.pyg import Edges, EdgeShare
from hpcgnn.pyg.divided import divide as divided
from hpcgnn.pyg.loader import BatchSize
from hpcgnn.pyg.stored import read_types
from hpcgnn.spmd import all_of_launcher, collective
from hpcgnn.spmm import AUTO
from hpcgnn.storage import GraphStore
from hpcgnn.support import Feature, Trait, lacks, needs
from hpcgnn.trace import TraceRecorder
from hpcgnn.train import gradients
from hpcgnn.train.full.predictions import NodeRows, infer, order_by_id
from hpcgnn.train.objectives.nodes import NodeObjective
from hpcgnn.train.objectives.objective import GraphObjective
from hpcgnn.train.process import prepare_process
from hpcgnn.train.tasks import LIBRARY, Step, Task, check_run, check_saved, find_pair, load_task
from hpcgnn.typing import GlobalIndices

NodeFunction: TypeAlias = Callable[[GraphView, NodeFeatures, DropoutKey | None], Tensor]
"""Gives the logits (N, C) of the local nodes, as models do; no key: no dropout."""


@dataclass(frozen=True, eq=False)
class ModuleData:
    """The share of a rank by the names that torch_geometric has for a whole graph.

    Parameters
    ----------
    x
        (N, F) features of the local nodes.
    edge_index
        (2, E) the edges that end at them, for a module that `hpcgnn.distribute` has taken.
    edge_attr
        (E, D) features of these edges; None where the store has none.
    """

    x: Tensor
    edge_index: Edges
    edge_attr: Tensor | None


@dataclass(frozen=True, eq=False)
class Graph:
    """The share of one rank; a context manager, closed on all ranks.

    Parameters
    ----------
    local
        Rows, operators and node data.
    config
        The configuration that it was opened with.
    task
        The steps, loss and metrics of ``train.task``; None where the store has no labels or split.
    """

    local: LocalGraph
    config: Config
    task: Task[GraphObjective] | None

    @property
    def grid(self) -> ProcessGrid:
        """The ranks, ``grid.rank`` of ``grid.size``, and the communicator ``grid.world``."""
        return self.local.grid

    @property
    def view(self) -> GraphView:
        """What a model aggregates with, on all local nodes."""
        return self.local.view

    @property
    def operators(self) -> Mapping[Aggregation, AggregationOperator]:
        """The matrices of the aggregations that the graph was opened for."""
        return self.local.view.operators

    @property
    def features(self) -> NodeFeatures:
        """(N, F) in ``train.dtype``, of the local nodes; `TypedRows` with node types.

        With ``graph.sparse_features = "always"`` they are `SparseFeatures`, for maps of hpcgnn.nn.
        """
        return self.local.features

    @cached_property
    def data(self) -> ModuleData:
        """What modules of one process are called with, see `hpcgnn.distribute`.

        The graph is opened with ``aggregations=["messages"]``.
        """
        view, x = self.view, self.features
        if Aggregation.MESSAGES not in view.operators or not isinstance(x, Tensor):
            raise InputError(
                'Graph.data: open the graph with aggregations=["messages"]; it has one type of '
                "nodes"
            )
        if isinstance(x, SparseFeatures):
            raise InputError("Graph.data: modules read whole rows; leave graph.sparse_features out")
        share = EdgeShare.of(view.edges.operator, view.node_ids)
        features = share.features.to(x.dtype)
        return ModuleData(x, share.index, features if features.shape[1] else None)

    @property
    def node_ids(self) -> GlobalIndices:
        """(N,) int64 original ids of the local nodes."""
        return self.local.products.node_ids

    @property
    def labels(self) -> Tensor:
        """(N,) int64 with -1 for none, or (N, C) zeros and ones.

        With ``graph.targets`` (N, T) numbers, scaled to mean 0 and deviation 1 of the training
        nodes, NaN where missing.
        """
        return self.labelled.examples.labels

    @property
    def split(self) -> Tensor:
        """(N,) uint8, see `hpcgnn.storage.Split`."""
        return self.labelled.examples.split

    @property
    def train_rows(self) -> Tensor:
        """(T,) int64 the local nodes to train on, labelled ones of the training split."""
        return self.labelled.examples.train_rows

    @property
    def num_train(self) -> int:
        """Nodes to train on, of all ranks; what a rank's sum of losses is divided by."""
        return self.labelled.examples.num_train

    @collective
    def make_model(self, seed: int) -> nn.Module:
        """Return the model of ``[model]``, equal on all ranks.

        Raises `CollectiveInputError` when the constructor of a model of the user's own fails on a
        rank.
        """
        model: nn.Module | None = None
        with agree(self.grid.world):
            task, local = self.task, self.local
            model = task.objective.make_model(seed) if task else local.make_model(self.config, seed)
        assert model is not None
        return model

    def loss(self, logits_NC: Tensor) -> Tensor:
        """Return this rank's share of the mean loss of the nodes to train on.

        `logits_NC` are of all local nodes.
        """
        rows = self.train_rows
        return self.labelled.loss_of_rows(logits_NC[rows], self.labels[rows], self.num_train)

    def steps(self, seed: int, epoch: int) -> Iterable[Step]:
        """Yield the steps of an epoch as the command makes them; collective.

        A step is a function of a model, and returns this rank's share of its loss: of the whole
        graph, of sampled subgraphs with ``train={"task": "sampled"}``, or of edges that are
        predicted with ``train={"task": "links"}``.
        """
        return self.tasked.steps(seed, epoch)

    @collective
    def total(self, share: Tensor | float) -> float:
        """Return the sum of a number over the ranks, as of their shares of a loss."""
        number = share.detach() if isinstance(share, Tensor) else share
        return sum_over_ranks(self.grid.learners, [float(number)])[0]

    @collective
    def close(self) -> None:
        """Free the communicators; nothing of the graph can be used after it."""
        self.grid.close()

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.grid.__exit__(kind)

    @property
    def tasked(self) -> Task[GraphObjective]:
        """The task; raises `InputError` for a graph without labels and split."""
        if self.task is None:
            raise InputError(
                f"{self.config.graph.store} has no labels, or no split; convert with --nodes FILE, "
                "or run hpcgnn split"
            )
        return self.task

    @property
    def labelled(self) -> NodeObjective:
        """The objective of a graph with labels and split; raises `InputError` for another."""
        objective = self.tasked.objective
        if not isinstance(objective, NodeObjective):
            raise InputError(f"train.task = {self.config.train.task!r} knows no labels of nodes")
        return objective


@collective
def open_graph(
    comm: "Communicator | None",
    store: str,
    *,
    aggregations: Sequence[Aggregation | str] = (),
    **sections: Mapping[str, Any],
) -> Graph:
    """Read this rank's share of a partitioned graph and prepare its operators.

    Parameters
    ----------
    comm
        The ranks; at most as many as the store has parts. None: all that the launcher started, and
        without a launcher this process alone.
    store
        Path of the store.
    aggregations
        Those to make operators of, as members or their names, for a module of one's own; empty:
        those of the model of ``[model]``.
    sections
        Tables of the configuration: ``model={"name": "gat", "hidden": 64}``,
        ``exchange={"method": "joint"}``, ``train={"device": "cuda"}``. Of ``[run]`` only
        ``threads`` matters.

    Raises
    ------
    CollectiveInputError
        On an unknown key, naming the nearest, or a store that does not fit.

    Examples
    --------
    >>> with hpcgnn.open_graph(None, "mine.h5", model={"name": "gcn"}) as graph:
    ...     graph.features.shape, graph.num_train
    (torch.Size([600, 16]), 360)
    """
    world = comm if comm is not None else all_of_launcher()
    with agree(world):
        kinds = tuple(_aggregation(name) for name in aggregations)
        config = _config(store, sections, whole=len(kinds) > 0)
        check_run(config, LIBRARY, wanted=kinds)
        require_device(config)
    grid = ProcessGrid(world, config.exchange.replication, groups=config.exchange.groups)
    try:
        prepare_process(grid, config.run.threads)
        if config.exchange.method == AUTO:
            _, config = with_chosen_exchange(grid, config, kinds)
        context = Context.open(grid, config, TraceRecorder.off())
        # A loop of one's own gets all of the rows, where it asks for nothing else.
        sparse = config.graph.sparse_features == "always"
        return _load(replace(context, aggregations=kinds, takes_sparse=sparse))
    except CollectiveInputError:
        grid.close()
        raise


def _config(store: str, sections: Mapping[str, Mapping[str, Any]], *, whole: bool) -> Config:
    """Return the configuration; `whole` where nothing is known of the model's layers."""
    tables = {name: dict(table) for name, table in sections.items()}
    tables.setdefault("graph", {})["store"] = str(store)
    # Nothing is written.
    tables.setdefault("run", {})["dir"] = "."
    # A loop of one's own may never ask for what the first step would prepare.
    exchange = tables.setdefault("exchange", {})
    exchange.setdefault("prepare", "first_epoch")
    if whole:
        exchange |= {"active_sets": False, "keep_products": "never"}
    return config_from_tables(tables)


def _aggregation(name: Aggregation | str) -> Aggregation:
    by_name = {aggregation.value: aggregation for aggregation in Aggregation}
    if isinstance(name, str):
        choice("aggregations", name, by_name)
    return name if isinstance(name, Aggregation) else by_name[name]


def _load(context: Context) -> Graph:
    """Read the share; collective."""
    grid, config = context.grid, context.config
    with agree(grid.world), GraphStore.open(config.graph.store, grid.world) as store:
        has_labels = store.has_labels or bool(config.graph.targets)
        is_labelled = has_labels and store.has_split
    of_nodes = issubclass(find_pair(config.train.task).objective, NodeObjective)
    if of_nodes and not is_labelled:
        return Graph(load_graph(context), config, None)
    # Program graphs have no `OWN_LOOPS`: all others are of nodes.
    task = load_task(context)
    return Graph(task.objective.graph, config, task)


@collective
def sum_gradients(graph: Graph, model: nn.Module) -> None:
    """Replace the gradients of `model` by their sums over the ranks, after ``loss.backward()``.

    Learned vectors of nodes, which every rank has of its own nodes, keep theirs.

    Examples
    --------
    >>> with hpcgnn.open_graph(None, "mine.h5") as graph:
    ...     model = graph.make_model(seed=1)
    ...     graph.loss(model(graph.view, graph.features, None)).backward()
    ...     hpcgnn.sum_gradients(graph, model)
    """
    own_rows = model.own_rows() if isinstance(model, TrainableModule) else {}
    named = model.named_parameters()
    gradients.sum_gradients(
        graph.grid, (parameter for name, parameter in named if name not in own_rows)
    )


_Module = TypeVar("_Module", bound=nn.Module)
_MODULE = Feature(
    "hpcgnn.distribute",
    lacks(
        {
            Trait.REPLICAS: "a module has one copy of its rows",
            Trait.KNOWN_GRAPH: "a module gets its graph when it is called",
        }
    ),
    remedy="leave kernels=True out",
)


def distribute(
    module: _Module,
    seed: int = 0,
    *,
    kernels: bool = False,
    exchange: Mapping[str, Any] = MappingProxyType({}),
) -> _Module:
    """Let a module that is written for one process run over ranks, and return it.

    It is called with this rank's nodes and its edges, those of `hpcgnn.Graph.data`, and gives rows
    of these nodes. Its layers read sources of edges wherever these are; norms, means and other sums
    over nodes are over all ranks. Its forward and backward pass are collective. What has no meaning
    over ranks is refused by name when it is met, see docs/pyg.md.

    Parameters
    ----------
    module
        Equal on all ranks: made of the same seed.
    seed
        Of dropout masks, which are drawn by node and by edge, equal at any number of ranks.
    kernels
        Whether layers that equal a built-in one run on its operators, with their own parameters;
        docs/pyg.md names them. The others run as they are.
    exchange
        The table ``[exchange]`` of these operators, as ``{"method": "joint"}``.

    Raises
    ------
    InputError
        When a layer of torch_geometric is not among those that run over ranks, or with `kernels`
        has an option that has no equal, or no layer has one.

    Examples
    --------
    >>> class Sums(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.map = torch.nn.Linear(16, 4)
    ...
    ...     def forward(self, x, edge_index):
    ...         source, target = edge_index
    ...         return self.map(torch.zeros_like(x).index_add(0, target, x[source]))
    >>> with hpcgnn.open_graph(None, "mine.h5", aggregations=["messages"]) as graph:
    ...     model = hpcgnn.distribute(Sums())
    ...     graph.loss(model(graph.data.x, graph.data.edge_index)).backward()
    ...     hpcgnn.sum_gradients(graph, model)
    ...     model.map.weight.grad.shape
    torch.Size([4, 16])
    """
    if not kernels:
        if exchange:
            raise InputError("exchange: rows travel by it with kernels=True only; give both")
        return pyg.distribute(module, seed)
    config = _config(".", {"exchange": {"method": "joint", **exchange}}, whole=True)
    layers = pyg.own_layers(module)
    if not layers:
        raise InputError(
            f"kernels=True: none of the layers of {type(module).__name__} equals a built-in one; "
            "leave it out"
        )
    for _, own in layers:
        # Aggregations have a matrix of their own.
        check_run(config, LIBRARY, _MODULE, wanted=(own.kind,))
    return pyg.distribute(module, seed, EdgeViews(config.exchange))


@collective
def divide(data: Any, comm: "Communicator | None" = None) -> Any:
    """Return this rank's share of a graph that all ranks have in memory, or of a typed store.

    Its nodes are partitioned so that few rows travel. Tensors that ``data.is_node_attr`` and
    ``data.is_edge_attr`` name have the rows of this rank's nodes, and of the edges that end at
    them; ``n_id`` and ``e_id`` tell which these are. Its edges are for modules that
    `hpcgnn.distribute` has taken. All else is as it was.

    Parameters
    ----------
    data
        A ``torch_geometric.data.Data`` or ``HeteroData``; it stays as it is. Or the path of a store
        with node types, of which a rank reads its parts: a ``HeteroData`` whose types have features
        of their own widths, ``y`` and masks; a relation is one type of edges for each pair of types
        that it joins. ``n_id`` are then original ids.
    comm
        As for `open_graph`.

    Raises
    ------
    CollectiveInputError
        When it has no ``edge_index``, or ranks have other edges or numbers of nodes, or the store
        has no node types, or weights. All else is taken from the rank that gets it, and is not
        compared.

    Examples
    --------
    >>> from torch_geometric.data import Data
    >>> whole = Data(x=torch.ones(9, 2), edge_index=torch.arange(18).view(2, 9) % 9)
    >>> hpcgnn.divide(whole).x.shape
    torch.Size([9, 2])
    """
    grid = ProcessGrid(comm if comm is not None else all_of_launcher())
    prepare_process(grid, 0)
    if isinstance(data, (str, Path)):
        return read_types(grid, str(data))
    return divided(data, grid)


@collective
def mean(value: Tensor, rows: Tensor | BatchSize, *modules: nn.Module) -> Tensor:
    """Return the mean over some rows of all ranks.

    Raises `InputError` when no rank has rows.

    Parameters
    ----------
    value
        () the mean over those of this rank; whatever it is where there are none.
    rows
        A mask of them, bool, or their numbers; or ``batch.batch_size`` of a `NeighborLoader`.
    modules
        One of them was taken by `hpcgnn.distribute` and has run; a loader's batch needs none.
    """
    grid = _grid_of(rows, modules)
    weight = _weight(rows, grid)
    # Without rows a mean is not a number, which times 0 would still be none.
    part = float(value.detach()) * weight if weight else 0.0
    return value.new_tensor(sum_over_ranks(grid.layer, [part])[0])


@collective
def backward(loss: Tensor, rows: Tensor | BatchSize, *modules: nn.Module) -> Tensor:
    """Make gradients of the mean of a loss over some rows of all ranks, and return it.

    Gradients of the parameters of all `modules` become those of one process. They are to be zero
    or None before. The arguments are those of `mean`.

    Examples
    --------
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GCNConv
    >>> ends = torch.arange(18).view(2, 9) % 9
    >>> data = hpcgnn.divide(Data(x=torch.eye(9), edge_index=ends, y=torch.arange(9)))
    >>> model = hpcgnn.distribute(GCNConv(9, 9))
    >>> loss = torch.nn.functional.cross_entropy(model(data.x, data.edge_index), data.y)
    >>> hpcgnn.backward(loss, data.y, model).shape
    torch.Size([])
    """
    grid = _grid_of(rows, modules)
    weight = _weight(rows, grid)
    # A batch of which this rank has nothing knows nothing of gradients: no number times 0 is none.
    if weight or not isinstance(rows, BatchSize):
        loss.backward(loss.new_tensor(weight))  # type: ignore[no-untyped-call]
    parameters = {id(each): each for module in modules for each in module.parameters()}
    gradients.sum_gradients(grid, parameters.values())
    return mean(loss, rows, *modules)


def _grid_of(rows: Tensor | BatchSize, modules: tuple[nn.Module, ...]) -> ProcessGrid:
    if isinstance(rows, BatchSize):
        return rows.grid
    return pyg.share_of(modules).operator.grid


@collective
def _weight(rows: Tensor | BatchSize, grid: ProcessGrid) -> float:
    """Return this rank's part of the rows."""
    if isinstance(rows, BatchSize):
        count = int(rows)
    else:
        count = int(rows.sum()) if rows.dtype == torch.bool else len(rows)
    total = sum_over_ranks(grid.layer, [float(count)])[0]
    if not total:
        raise InputError("rows: no rank has any; give a mask of rows, or their numbers")
    return count / total


@collective
def evaluate(graph: Graph, model: NodeFunction) -> dict[str, float]:
    """Return the metrics of a model over all ranks, ``SPLIT_METRIC`` -> value.

    Parameters
    ----------
    model
        A model, or any function of its arguments; a torch module is put into evaluation mode.

    Examples
    --------
    >>> with hpcgnn.open_graph(None, "mine.h5") as graph:
    ...     list(hpcgnn.evaluate(graph, graph.make_model(seed=1)))[:2]
    ['train_loss', 'train_accuracy']
    """
    task = graph.tasked
    with _evaluating(model):
        return task.objective.evaluate(model).values


@collective
def predict(graph: Graph, model: NodeFunction, what: str = "probabilities") -> NodeRows:
    """Return what a model says of all nodes, sorted over the ranks by original id.

    Parameters
    ----------
    what
        probabilities, or embeddings of a `NodeModel`: the input of its last layer.

    Examples
    --------
    >>> with hpcgnn.open_graph(None, "mine.h5") as graph:
    ...     hpcgnn.predict(graph, graph.make_model(seed=1)).values.shape
    (600, 4)
    """
    choice("what", what, ("probabilities", "embeddings"))
    if what == "probabilities":
        asked = needs(Trait.PROBABILITIES)
        check_saved(graph.config, Feature("what = 'probabilities'", asked, remedy="ask for others"))
    with _evaluating(model):
        return order_by_id(graph.grid, infer(graph.local, model, what))


@contextlib.contextmanager
def _evaluating(model: NodeFunction) -> Iterator[None]:
    """Put a torch module into evaluation mode, and back."""
    trained = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    try:
        yield
    finally:
        if isinstance(model, nn.Module):
            model.train(trained)
