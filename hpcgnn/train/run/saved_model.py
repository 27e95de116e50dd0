"""Load a trained model from its run directory, and the graph to apply it to."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config import multi_task
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.config.options import choice
from hpcgnn.console import is_error, report
from hpcgnn.errors import InputError, named
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import Facts, GraphFacts, node_types_of, num_edge_features
from hpcgnn.graph.inputs import Scales
from hpcgnn.graph.labels import label_graphs
from hpcgnn.graph.load import FEATURES, load_graph
from hpcgnn.graph.local_graph import LocalGraph, with_readout
from hpcgnn.graph.read_edges import relation_names
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import (
    ModelShape,
    MultiTaskModel,
    NodeModel,
    TrainableModule,
    TypedModel,
    find_model,
    make_headed_model,
    make_model,
)
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, names_by_type
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.evaluation import SPLITS
from hpcgnn.train.links.edges import deal_links
from hpcgnn.train.multi_label import LabelRule
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    check_model_tensors,
    check_state,
    check_tensors,
    checkpoint_paths,
    read_checkpoint,
    read_kept_model,
    read_state,
)
from hpcgnn.train.run.row_parameters import take_rows

_WIDE = 1 << 16
"""Largest model.hidden accepted without a weight that wide: some models have no hidden layer."""

_Facts = TypeVar("_Facts", bound=Facts)
_Model = TypeVar("_Model", bound=TrainableModule)


def _of_features(name: str) -> bool:
    """Tell whether a scale is one of node features, of a type with any name, and not of fields."""
    return name.rpartition(".")[2] in ("mean", "deviation")


@dataclasses.dataclass(frozen=True, eq=False)
class SavedModel:
    """The kept model of a seed, from its newest checkpoint.

    `run` is the run directory, or the file of its kept model; the store of `config` is the one to
    apply the model to. `embedded` is the width of the embeddings that tasks share, from which node
    labels are predicted; 0 if they are not shared. `hides_links` tells whether the graph is read
    without the links that another task predicts.
    """

    run: Path
    config: Config
    checkpoint: Checkpoint
    embedded: int = 0
    hides_links: bool = False

    @property
    def trained(self) -> GraphFacts:
        """The facts about the graph that the model was trained on."""
        return self.facts(GraphFacts)

    def facts(self, kind: type[_Facts]) -> _Facts:
        """Return the facts about the training data; raises `InputError` if not of this kind."""
        try:
            return kind.from_json(self.checkpoint.state["graph"])
        except InputError as error:
            raise InputError(f"{self.run}: its checkpoint {error}; train again") from error

    @property
    def rule(self) -> LabelRule:
        """The rule by which a multi-label model predicts labels."""
        return LabelRule.of_metrics(self.checkpoint.state["kept"]["metrics"])

    def scales(self) -> Scales:
        """Return the scales of features that were computed from the training graph.

        Raises `InputError` if they do not fit the features that the model was trained on.
        """
        graph = self.config.graph
        scales_nodes, scales_edges = (
            how == "standard" for how in (graph.normalize_features, graph.normalize_edge_features)
        )
        scales = {
            name: tensor
            for name, tensor in self.checkpoint.features.items()
            if (scales_edges if Scales.is_of_edges(name) else scales_nodes and _of_features(name))
        }
        lengths = {n: t for n, t in self.checkpoint.features.items() if n == Scales.LENGTH}
        facts, widths = self.trained, dict[str, int | None]()
        of_fields = self.config.train.task == "fields"
        if scales_nodes and not of_fields:
            widths |= dict(zip(facts.type_names, facts.type_features, strict=True)) or {
                "": facts.num_features
            }
        # The number of edge features is checked when the store is read, and so is that of node
        # features beside the columns of fields, which `facts` counts too.
        names = {name.rpartition(".")[0] for name in scales}
        widths |= dict.fromkeys(name for name in names if of_fields or Scales.is_of_edges(name))
        expected = {
            f"{name}.{field}".lstrip("."): (torch.float64, (width,))
            for name, width in widths.items()
            if width != 0
            for field in ("mean", "deviation")
        }
        # Old checkpoints lack the length: then it is measured on the graph.
        expected |= dict.fromkeys(lengths, (torch.float64, (1,)))
        scales |= lengths
        check_tensors(self.checkpoint, "features", scales, expected)
        return Scales.from_tensors(scales)

    @collective
    def model(self, grid: ProcessGrid, make: Callable[[int], _Model]) -> _Model:
        """Return the kept model, equal on all ranks except for rows of nodes.

        `make` makes a new model from a seed, as the run did.

        Raises `CollectiveInputError` if the weights belong to another model, or lack vectors of
        some nodes.
        """
        with agree(grid.world):
            model = make(self.checkpoint.state["seed"])
            check_model_tensors(self.checkpoint, model)
            weights = take_rows(model, self.checkpoint.best, self.checkpoint.best)
        model.load_state_dict(weights)
        return model.eval()

    def make_model(self, graph: LocalGraph, seed: int) -> NodeModel:
        """Return a new node model for a graph, like the run's; not collective."""
        if not self.embedded:
            return graph.make_model(self.config, seed)
        facts = graph.facts.with_embeddings(self.embedded)
        encoder = dataclasses.replace(graph, facts=facts).make_model(self.config, seed)
        return make_headed_model(encoder, self.embedded, graph.facts.num_classes, seed)

    def of_task(self, task: str = "", *, own_store: bool = True) -> "SavedModel":
        """Return the part of a model of several tasks for one of them, the first if it is empty.

        A model of one task is returned as is. On a store other than the run's, no link is hidden.

        Raises `InputError` if the model was not trained on that task.
        """
        tasks, checkpoint = self.config.train.tasks, self.checkpoint
        task, state = task or tasks[0], checkpoint.state
        choice("--task", task, tasks)
        if len(tasks) == 1:
            return self
        metrics = {
            f"{split}_{key.removeprefix(f'{split}_{task}_')}": value
            for key, value in state["kept"]["metrics"].items()
            for split in SPLITS
            if key.startswith(f"{split}_{task}_")
        }
        kept = {**state["kept"], "metrics": metrics}
        checkpoint = dataclasses.replace(
            checkpoint,
            state={**state, "graph": state["parts"][task], "kept": kept},
            model=MultiTaskModel.weights_of(task, checkpoint.model),
            best=MultiTaskModel.weights_of(task, checkpoint.best),
        )
        return dataclasses.replace(
            self,
            config=multi_task.of_task(self.config, task),
            checkpoint=checkpoint,
            embedded=0 if task in multi_task.OF_PAIRS else multi_task.width_of(self.config),
            hides_links=own_store and "links" in tasks,
        )

    def check_store(self) -> None:
        """Raise `InputError` if the run's store is missing, or has changed since."""
        path, trained = self.config.graph.store, self.checkpoint.state["graph"]["fingerprint"]
        if not Path(path).exists():
            raise InputError(f"{self.run}: was trained on {path}, which is not here; give --store")
        with GraphStore.open(path) as store:
            # The fingerprint of targets follows; the targets need not exist here.
            if store.fingerprint != trained.partition("-")[0]:
                raise InputError(
                    f"{self.run}: was trained on another store than {path} is now; give --store "
                    f"{path} to apply the model to it all the same"
                )

    def check(self, shape: ModelShape, with_head: Callable[[NodeModel], NodeModel]) -> None:
        """Check that the weights fit a model of this shape, see `check_tensors`.

        `with_head` returns the run's model for an encoder of nodes.
        """
        facts, name, seed = self.trained, self.config.model.name, self.checkpoint.state["seed"]
        dtype = getattr(torch, self.config.train.dtype)
        model = make_model(name, shape, directed=facts.directed, seed=seed, dtype=dtype)
        if self.config.model.embeddings:
            assert isinstance(model, TypedModel)
            nodes = {number: np.arange(facts.type_nodes[number]) for number in facts.bare_types}
            model.inputs.add_vectors(nodes, seed)
        check_model_tensors(
            self.checkpoint, with_head(with_readout(self.config, facts, model, seed))
        )

    def on(self, device: str) -> "SavedModel":
        """Return the model for a device, cpu or cuda, whatever the run used."""
        train = dataclasses.replace(self.config.train, device=device)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, train=train))

    def origin(self) -> dict[str, str | int]:
        """Return the provenance that files of predictions record."""
        state = self.checkpoint.state
        return {
            "run": str(self.run),
            "store": self.config.graph.store,
            "seed": state["seed"],
            "epoch": state["kept"]["epoch"],
            "trained_on": state["graph"]["fingerprint"],
        }


def open_saved_model(
    run: Path,
    seed: int | None = None,
    store: str | None = None,
    *,
    trust_code: bool = True,
) -> SavedModel:
    """Read the kept model of a seed, or of the best seed by validation if None is given.

    `run` is a run directory, where the run may be under way, or the file of its kept model; `store`
    is a graph other than the run's to apply the model to. `trust_code` imports the user's module
    that defines the model; commands that may take somebody else's files leave that to their user.

    Raises `InputError` if there is no such checkpoint, no model has been kept yet, it cannot be
    read, or it needs a module that is not trusted.
    """
    if run.is_file():
        config, checkpoint = read_kept_model(run, trust_code=trust_code)
    else:
        config, checkpoint = _newest(run, seed, None if trust_code else ())
    if seed is not None and seed != checkpoint.state["seed"]:
        raise InputError(f"{run} has seed {checkpoint.state['seed']}; leave --seed out")
    _check_weights(run, config, checkpoint)
    if store is not None or not Path(config.graph.targets).is_file():
        # Targets only serve to score predictions, and belong to the run's own graph.
        graph = dataclasses.replace(config.graph, store=store or config.graph.store, targets="")
        config = dataclasses.replace(config, graph=graph)
    return SavedModel(run, config, checkpoint)


def _check_weights(run: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Raise `InputError` if weights are not finite, or narrower than the model's claimed width."""
    weights = checkpoint.best
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{run}: its weights {name} are not all finite numbers; train again, with a "
                "smaller train.learning_rate"
            )
    widest = max((size for value in weights.values() for size in value.shape), default=0)
    # Check before a model of that width is allocated.
    if config.model.hidden > max(widest, _WIDE):
        raise InputError(
            f"{run}: says model.hidden = {config.model.hidden}, and no weights are wider than "
            f"{widest}; use the run directory that it comes from"
        )


def _newest(
    run: Path, seed: int | None, trusted: Collection[str] | None
) -> tuple[Config, Checkpoint]:
    if not (run / "config.toml").is_file():
        runs = sorted(run.glob("split-*/config.toml"))
        if runs:
            raise InputError(f"{run} has a run for each split; give one, such as {runs[0].parent}")
        raise InputError(
            f"{run} is not a run directory; give the run.dir of hpcgnn train, or its "
            "model.safetensors"
        )
    config = load_config(run / "config.toml", trusted=trusted)
    newest = {seed: path for seed, _, path in checkpoint_paths(run / "checkpoints")}
    if seed is None and newest:
        metrics = {number: _kept_metrics(path) for number, path in newest.items()}
        metric = config.train.metric or _usual_metric(config, metrics.values())
        values = {number: row.get(f"valid_{metric}") for number, row in metrics.items()}
        seed = best_seed(values, metric)
    if seed is None or seed not in newest:
        available = f"it has seeds {sorted(newest)}" if newest else "train first"
        missing = "no checkpoint" if seed is None else f"no checkpoint of seed {seed}"
        raise InputError(f"{run / 'checkpoints'} has {missing}; {available}")
    checkpoint = read_checkpoint(newest[seed])
    check_state(newest[seed], checkpoint.state)
    if checkpoint.state["kept"]["epoch"] is None:
        raise InputError(
            f"{newest[seed]} has no evaluated model yet: let the run go on, or use another --seed"
        )
    return config, checkpoint


def best_seed(valid: Mapping[int, float | None], metric: str) -> int:
    """Return the seed with the best validation value of a metric, the lowest on ties.

    None is the worst value.
    """
    sign = -1 if is_error(metric) else 1
    scores = {seed: -math.inf if value is None else sign * value for seed, value in valid.items()}
    return max(sorted(scores), key=scores.__getitem__)


def _kept_metrics(checkpoint: Path) -> dict[str, float]:
    state = read_state(checkpoint)
    check_state(checkpoint, state)
    return state["kept"]["metrics"]


def _usual_metric(config: Config, metrics: Collection[Mapping[str, float]]) -> str:
    """Return the metric of the run's first task, which is in the metrics of any kept model."""
    first = "" if len(config.train.tasks) == 1 else f"{config.train.tasks[0]}_"
    names = [f"{first}{metric}" for metric in ("mrr", "r2", "micro_f1", "accuracy")]
    known = set().union(*metrics)
    return next((name for name in names if f"valid_{name}" in known), "")


@collective
def load_saved_graph(grid: ProcessGrid, saved: SavedModel) -> LocalGraph:
    """Read the graph to apply a saved model to; it needs no labels and no split.

    Raises `CollectiveInputError` if the store cannot be read, or does not fit the model or the
    number of ranks.
    """
    config = saved.config
    with agree(grid.world):
        trained = saved.trained
        scales = saved.scales()
        if grid.rank == 0:
            with GraphStore.open(config.graph.store) as store:
                _check_fits(store, config, trained)
    context = Context.open(grid, config, TraceRecorder.off())
    context = dataclasses.replace(context, takes_sparse=True, scales=scales)
    reading = dataclasses.replace(FEATURES, label=label_graphs) if trained.num_graphs else FEATURES
    if saved.hides_links:
        with StoredRows.opened(context, reading.fields) as opened:
            context = dataclasses.replace(context, hidden=deal_links(opened)[1])
    graph = load_graph(context, reading)
    if config.train.label_augmentation > 0:
        with agree(grid.world):
            stored, expected = graph.facts.labelled_types, trained.labelled_types
            require_equal(config.graph.store, "labelled node types", stored, expected)
    facts = dataclasses.replace(
        graph.facts,
        num_classes=trained.num_classes,
        multi_label=trained.multi_label,
        class_names=trained.class_names,
        targets=trained.targets,
        target_means=trained.target_means,
        target_scales=trained.target_scales,
    )
    # For regression, labels of the store are not the predicted numbers.
    labels = None if trained.targets and not config.graph.targets else graph.labels
    return dataclasses.replace(graph, facts=facts, labels=labels)


def _check_fits(store: GraphStore, config: Config, trained: GraphFacts) -> None:
    directed = not (store.undirected or config.graph.undirected)
    aggregations = find_model(config.model.name).aggregations
    for quantity, stored, expected in (
        (
            "features a node",
            store.num_features + config.graph.num_structural,
            trained.num_features,
        ),
        (
            "node types with features",
            tuple(
                (node_type.name, node_type.num_features)
                for node_type in node_types_of(config, store)
            ),
            tuple(zip(trained.type_names, trained.type_features, strict=True)),
        ),
        # A graph without labels fits any number of classes, and so do models without node classes.
        (
            "classes",
            (
                not trained.targets
                and config.train.task not in multi_task.OF_PAIRS
                and store.num_classes
            )
            or trained.num_classes,
            trained.num_classes,
        ),
        ("features an edge", num_edge_features(config, store), trained.num_edge_features),
        ("directed edges", directed, trained.directed),
        (
            "relations",
            relation_names(config, store, aggregations, directed=directed),
            trained.relations,
        ),
    ):
        require_equal(store.path, quantity, stored, expected)
    of_types = zip(
        trained.type_names,
        names_by_type(store.feature_names, trained.type_features),
        names_by_type(trained.feature_names, trained.type_features),
        strict=True,
    )
    for quantity, stored, expected in (
        *((f"feature of {name},", mine, theirs) for name, mine, theirs in of_types),
        *([] if trained.type_names else [("feature", store.feature_names, trained.feature_names)]),
        ("feature of edges", store.edge_feature_names, trained.edge_feature_names),
    ):
        check_names(store.path, quantity, stored, expected)
    if not trained.targets and config.train.task not in multi_task.OF_PAIRS and store.num_classes:
        _require_same_order(store.path, "class", store.class_names, trained.class_names)


def check_names(
    store: str | Path, quantity: str, stored: Sequence[str], expected: Sequence[str]
) -> None:
    """Raise `InputError` if columns have the names of the trained ones in another order.

    Other names, which may be new ones of the same columns, are reported.
    """
    if sorted(stored) == sorted(expected):
        _require_same_order(store, quantity, stored, expected)
    elif stored and expected:
        pairs = [pair for pair in zip(stored, expected, strict=True) if pair[0] != pair[1]]
        here, there = map(named, zip(*pairs, strict=True))
        report(
            f"{store}: each {quantity.rstrip(',')} is taken by its place, since names differ: "
            f"{here} here, {there} in training"
        )


def _require_same_order(
    store: str | Path, quantity: str, stored: Sequence[str], expected: Sequence[str]
) -> None:
    """Raise `InputError` for the first name that differs, unless one of them has no names."""
    if not stored or not expected:
        return
    for number, (name, trained) in enumerate(zip(stored, expected, strict=True)):
        require_equal(store, f"{quantity} {number}", repr(name), repr(trained))


def require_equal(store: str | Path, quantity: str, stored: object, expected: object) -> None:
    """Raise `InputError` if a property of a graph is not the one that a model was trained with."""
    if stored != expected:
        raise InputError(
            f"{store} does not fit the model: {quantity} {stored}, but it was trained with "
            f"{expected}; convert the graph like the one it was trained on"
        )
