"""hpcgnn as a library: the graph of a rank, for your own models and training loops.

`open_graph` reads a rank's share; a loop calls a model with `Graph.view` and `Graph.features`, or
uses the losses of `Graph.steps`, and sums gradients over ranks with `sum_gradients`. The names are
available from the package: ``hpcgnn.open_graph``. See docs/library.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from hpcgnn import pyg
from hpcgnn.autograd import DropoutKey, SparseFeatures
from hpcgnn.comm import CollectiveInputError, Communicator, ProcessGrid, agree, sum_over_ranks
from hpcgnn.config.config import Config
from hpcgnn.config.file import config_from_tables
from hpcgnn.config.options import choice
from hpcgnn.errors import InputError
from hpcgnn.graph.choose_exchange import with_chosen_exchange
from hpcgnn.graph.context import Context
from hpcgnn.graph.device import require_device
from hpcgnn.graph.edge_views import EdgeViews
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, NodeFeatures, TrainableModule
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.pyg import EdgeList, EdgeShare
from hpcgnn.pyg.divide_graph import divide as divided
from hpcgnn.pyg.hetero_data import read_types
from hpcgnn.pyg.loader import BatchSize
from hpcgnn.spmd import all_of_launcher, collective
from hpcgnn.spmm import AUTO
from hpcgnn.storage import GraphStore
from hpcgnn.support import Feature, Trait, lacks, needs
from hpcgnn.trace import TraceRecorder
from hpcgnn.train import gradients
from hpcgnn.train.evaluation import evaluating
from hpcgnn.train.full.predictions import NodeRows, infer, order_by_id
from hpcgnn.train.objectives.nodes import NodeObjective
from hpcgnn.train.objectives.objective import GraphObjective
from hpcgnn.train.process import prepare_process
from hpcgnn.train.tasks import LIBRARY, Step, Task, check_run, check_saved, find_pair, load_task
from hpcgnn.typing import GlobalIndices

NodeFunction: TypeAlias = Callable[[GraphView, NodeFeatures, DropoutKey | None], Tensor]
"""Returns the logits (N, C) of the local nodes, like a model; None as the key means no dropout."""


@dataclass(frozen=True, eq=False)
class ModuleData:
    """The share of a rank, with torch_geometric's names.

    Parameters
    ----------
    x
        (N, F) features of the local nodes.
    edge_index
        (2, E) edges to the local nodes, for a module returned by `hpcgnn.distribute`.
    edge_attr
        (E, D) features of these edges; None if the store has none.
    """

    x: Tensor
    edge_index: EdgeList
    edge_attr: Tensor | None


@dataclass(frozen=True, eq=False)
class Graph:
    """The share of one rank; a context manager, to be closed on all ranks.

    Parameters
    ----------
    local
        Rows, operators and node data.
    config
        The configuration with which it was opened.
    task
        The steps, loss and metrics of ``train.task``; None if the store has no labels or split.
    """

    local: LocalGraph
    config: Config
    task: Task[GraphObjective] | None

    @property
    def grid(self) -> ProcessGrid:
        """The ranks, with ``grid.rank``, ``grid.size`` and the communicator ``grid.world``."""
        return self.local.grid

    @property
    def view(self) -> GraphView:
        """The operators over all local nodes, in the form that models take."""
        return self.local.view

    @property
    def operators(self) -> Mapping[Aggregation, AggregationOperator]:
        """The operators of the aggregations for which the graph was opened."""
        return self.local.view.operators

    @property
    def features(self) -> NodeFeatures:
        """Features (N, F) of the local nodes in ``train.dtype``; `TypedRows` with node types.

        With ``graph.sparse_features = "always"`` they are `SparseFeatures`, for layers of
        hpcgnn.nn.
        """
        return self.local.features

    @cached_property
    def data(self) -> ModuleData:
        """The arguments for modules written for one process, see `hpcgnn.distribute`.

        The graph must be opened with ``aggregations=["messages"]``.
        """
        view, x = self.view, self.features
        if Aggregation.MESSAGES not in view.operators or not isinstance(x, Tensor):
            raise InputError(
                'Graph.data: open the graph with aggregations=["messages"]; it must have one type '
                "of nodes"
            )
        if isinstance(x, SparseFeatures):
            raise InputError("Graph.data: modules read dense rows; leave graph.sparse_features out")
        share = EdgeShare.of(view.edges.operator, view.node_ids)
        features = share.features.to(x.dtype)
        return ModuleData(x, share.index, features if features.shape[1] else None)

    @property
    def node_ids(self) -> GlobalIndices:
        """Original ids (N,) int64 of the local nodes."""
        return self.local.products.node_ids

    @property
    def labels(self) -> Tensor:
        """Labels (N,) int64 with -1 for none, or (N, C) zeros and ones.

        With ``graph.targets`` (N, T) numbers, scaled to mean 0 and deviation 1 over the training
        nodes, NaN for missing.
        """
        return self.labelled.examples.labels

    @property
    def split(self) -> Tensor:
        """The split (N,) uint8, see `hpcgnn.storage.Split`."""
        return self.labelled.examples.split

    @property
    def train_rows(self) -> Tensor:
        """The local nodes (T,) int64 to train on: labelled nodes of the training split."""
        return self.labelled.examples.train_rows

    @property
    def num_train(self) -> int:
        """The number of training nodes of all ranks, which divides a rank's sum of losses."""
        return self.labelled.examples.num_train

    @collective
    def make_model(self, seed: int) -> nn.Module:
        """Return the model of ``[model]``, equal on all ranks.

        Raises `CollectiveInputError` if the constructor of a user's own model fails on a rank.
        """
        model: nn.Module | None = None
        with agree(self.grid.world):
            task, local = self.task, self.local
            model = task.objective.make_model(seed) if task else local.make_model(self.config, seed)
        assert model is not None
        return model

    def loss(self, logits_NC: Tensor) -> Tensor:
        """Return this rank's share of the mean loss of the training nodes.

        `logits_NC` are those of all local nodes.
        """
        rows = self.train_rows
        return self.labelled.loss_of_rows(logits_NC[rows], self.labels[rows], self.num_train)

    def steps(self, seed: int, epoch: int) -> Iterable[Step]:
        """Yield the steps of an epoch, as in ``hpcgnn train``; collective.

        A step is a function of a model that returns this rank's share of the loss: on the whole
        graph, on sampled subgraphs with ``train={"task": "sampled"}``, or on edges to predict with
        ``train={"task": "links"}``.
        """
        return self.tasked.steps(seed, epoch)

    @collective
    def total(self, share: Tensor | float) -> float:
        """Return the sum of a number over the ranks, for example of their shares of a loss."""
        number = share.detach() if isinstance(share, Tensor) else share
        return sum_over_ranks(self.grid.learners, [float(number)])[0]

    @collective
    def close(self) -> None:
        """Free the communicators; the graph cannot be used afterwards."""
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
        """The objective of a task with node labels; raises `InputError` for other tasks."""
        objective = self.tasked.objective
        if not isinstance(objective, NodeObjective):
            raise InputError(f"train.task = {self.config.train.task!r} has no labels of nodes")
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
        The ranks, at most as many as the store has parts. None: all ranks of the launcher, or only
        this process without a launcher.
    store
        Path of the store.
    aggregations
        Aggregations to make operators for, as members or names, for your own module; empty: those
        of the model in ``[model]``.
    sections
        Tables of the configuration: ``model={"name": "gat", "hidden": 64}``,
        ``exchange={"method": "joint"}``, ``train={"device": "cuda"}``. In ``[run]`` only
        ``threads`` has an effect.

    Raises
    ------
    CollectiveInputError
        For an unknown key, naming the nearest, or a store that does not fit.

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
        check_run(config, LIBRARY, aggregations=kinds)
        require_device(config)
    grid = ProcessGrid(world, config.exchange.replication, groups=config.exchange.groups)
    try:
        prepare_process(grid, config.run.threads)
        if config.exchange.method == AUTO:
            _, config = with_chosen_exchange(grid, config, kinds)
        context = Context.open(grid, config, TraceRecorder.off())
        # A user's loop gets dense rows unless it asks for sparse ones.
        sparse = config.graph.sparse_features == "always"
        return _load(replace(context, aggregations=kinds, takes_sparse=sparse))
    except CollectiveInputError:
        grid.close()
        raise


def _config(store: str, sections: Mapping[str, Mapping[str, Any]], *, whole: bool) -> Config:
    """Return the configuration; `whole` if the layers of the model are unknown."""
    for name, table in sections.items():
        if not isinstance(table, Mapping):
            raise InputError(
                f'{name} = {table!r}: give a table of its keys, such as {{"key": value}}'
            )
    tables = {name: dict(table) for name, table in sections.items()}
    tables.setdefault("graph", {})["store"] = str(store)
    # Required, but nothing is written.
    tables.setdefault("run", {})["dir"] = "."
    # A user's loop may never need active sets, so prepare them only when they are used.
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
    grid, config = context.grid, context.config
    with agree(grid.world), GraphStore.open(config.graph.store, grid.world) as store:
        has_labels = store.has_labels or bool(config.graph.targets)
        is_labelled = has_labels and store.has_split
    of_nodes = issubclass(find_pair(config.train.task).objective, NodeObjective)
    if of_nodes and not is_labelled:
        return Graph(load_graph(context), config, None)
    # All tasks with `OWN_LOOPS`, that is all except program graphs, have a graph of nodes.
    task = load_task(context)
    return Graph(task.objective.graph, config, task)


@collective
def sum_gradients(graph: Graph, model: nn.Module) -> None:
    """Replace the gradients of `model` by their sums over the ranks, after ``loss.backward()``.

    Gradients of learned node vectors are not summed, since each rank has those of its own nodes.

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
    """Make a module that is written for one process run over ranks, and return it.

    Call it with this rank's nodes and edges, those of `hpcgnn.Graph.data`; it returns rows of these
    nodes. Its layers read sources of edges from any rank; norms, means and other sums over nodes
    are over all ranks. Its forward and backward passes are collective. Operations without a meaning
    over ranks are refused by name when they occur, see docs/pyg.md.

    Parameters
    ----------
    module
        The module, equal on all ranks: made from the same seed.
    seed
        Seed of dropout masks, which are drawn by node and by edge, equal on any number of ranks.
    kernels
        Whether layers that equal a built-in one run on its operators, with their own parameters;
        docs/pyg.md lists them. Other layers run as they are.
    exchange
        The table ``[exchange]`` of these operators, such as ``{"method": "joint"}``.

    Raises
    ------
    InputError
        If a layer of torch_geometric cannot run over ranks or, with `kernels`, has an option
        without a built-in equivalent, or no layer has an equivalent.

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
            raise InputError("exchange: has an effect only with kernels=True; give both")
        return pyg.distribute(module, seed)
    config = _config(".", {"exchange": {"method": "joint", **exchange}}, whole=True)
    layers = pyg.builtin_layers(module)
    if not layers:
        raise InputError(
            f"kernels=True: none of the layers of {type(module).__name__} equals a built-in one; "
            "leave it out"
        )
    for _, own in layers:
        # Checked one by one, since each aggregation has its own matrix.
        check_run(config, LIBRARY, _MODULE, aggregations=(own.kind,))
    return pyg.distribute(module, seed, EdgeViews(config.exchange))


@collective
def divide(data: Any, comm: "Communicator | None" = None) -> Any:
    """Return this rank's share of a graph that all ranks have in memory, or of a typed store.

    Nodes are partitioned so that few rows travel. Tensors for which ``data.is_node_attr`` or
    ``data.is_edge_attr`` holds are reduced to the rows of this rank's nodes, and of the edges to
    them; ``n_id`` and ``e_id`` are the numbers of these. The edges are for modules returned by
    `hpcgnn.distribute`. All other attributes are unchanged.

    Parameters
    ----------
    data
        A ``torch_geometric.data.Data`` or ``HeteroData``, which is not changed. Or the path of a
        store with node types, of which a rank reads its parts: the result is then a ``HeteroData``
        with features, ``y`` and masks for each type, and an edge type for each relation and pair of
        types that it joins. ``n_id`` are then original ids.
    comm
        As for `open_graph`.

    Raises
    ------
    CollectiveInputError
        If there is no ``edge_index``, edges or numbers of nodes differ between ranks, or the store
        has weights or no node types. Other attributes are not compared; each rank uses its own.

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

    Raises `InputError` if no rank has rows.

    Parameters
    ----------
    value
        () the mean over this rank's rows; any value if it has no rows.
    rows
        A bool mask of the rows, or their numbers; or ``batch.batch_size`` of a `NeighborLoader`.
    modules
        At least one module of `hpcgnn.distribute` that has run; not needed for a loader's batch.
    """
    grid = _grid_of(rows, modules)
    weight = _weight(rows, grid)
    # The mean of no rows is NaN, and so is NaN times 0.
    part = float(value.detach()) * weight if weight else 0.0
    return value.new_tensor(sum_over_ranks(grid.layer, [part])[0])


@collective
def backward(loss: Tensor, rows: Tensor | BatchSize, *modules: nn.Module) -> Tensor:
    """Compute gradients of the mean loss over some rows of all ranks, and return this mean.

    The gradients of all `modules` become those of one process. Before, they must be zero or None.
    The arguments are those of `mean`.

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
    # The loss of a batch without rows here is NaN, and would make gradients NaN.
    if weight or not isinstance(rows, BatchSize):
        loss.backward(loss.new_tensor(weight))  # type: ignore[no-untyped-call]
    parameters = {id(weight): weight for module in modules for weight in module.parameters()}
    gradients.sum_gradients(grid, parameters.values())
    return mean(loss, rows, *modules)


def _grid_of(rows: Tensor | BatchSize, modules: tuple[nn.Module, ...]) -> ProcessGrid:
    if isinstance(rows, BatchSize):
        return rows.grid
    return pyg.share_of(modules).operator.grid


@collective
def _weight(rows: Tensor | BatchSize, grid: ProcessGrid) -> float:
    """Return this rank's fraction of the rows."""
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
    """Return the metrics of a model over all ranks by name, ``SPLIT_METRIC``.

    Parameters
    ----------
    model
        A model, or a function with the same arguments; modules are put into evaluation mode.

    Examples
    --------
    >>> with hpcgnn.open_graph(None, "mine.h5") as graph:
    ...     list(hpcgnn.evaluate(graph, graph.make_model(seed=1)))[:2]
    ['train_loss', 'train_accuracy']
    """
    task = graph.tasked
    with evaluating(model):
        return task.objective.evaluate(model).values


@collective
def predict(graph: Graph, model: NodeFunction, what: str = "probabilities") -> NodeRows:
    """Return a model's predictions for all nodes, sorted over the ranks by original id.

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
        feature = Feature(
            "what = 'probabilities'", needs(Trait.PROBABILITIES), remedy="ask for others"
        )
        check_saved(graph.config, feature)
    with evaluating(model):
        return order_by_id(graph.grid, infer(graph.local, model, what))
