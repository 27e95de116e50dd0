"""A trained model from its run directory, and the graph that it is applied to."""

import dataclasses
from pathlib import Path
from typing import Any

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.nn import NodeModel
from hpcgnn.storage import GraphStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.adjacency import relation_names
from hpcgnn.train.checkpoint import Checkpoint, checkpoint_paths, read_checkpoint, read_state
from hpcgnn.train.config import Config
from hpcgnn.train.config_file import load_config
from hpcgnn.train.load import load_graph
from hpcgnn.train.local_graph import GraphFacts, LocalGraph
from hpcgnn.train.node_inputs import scales_from
from hpcgnn.train.own_rows import take_rows

__all__ = ["SavedModel", "best_seed", "load_saved_graph", "open_saved_model"]


@dataclasses.dataclass(frozen=True, eq=False)
class SavedModel:
    """The model that a seed kept.

    Parameters
    ----------
    run
        The run directory.
    config
        Of the run; its store is the one to apply the model to.
    checkpoint
        The newest of the seed.
    """

    run: Path
    config: Config
    checkpoint: Checkpoint

    @property
    def trained(self) -> GraphFacts:
        """Sizes of the graph that the model was trained on."""
        facts = self.checkpoint.state["graph"]
        lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
        return GraphFacts(**{**facts, **lists})

    def model(self, graph: LocalGraph) -> NodeModel:
        """Return the model, equal on all ranks but for rows of nodes.

        Collective.

        Raises
        ------
        CollectiveInputError
            When the model has vectors of other nodes.
        """
        model = graph.make_model(self.config, self.checkpoint.state["seed"])
        with agree(graph.grid.world):
            weights = take_rows(model, self.checkpoint.best, self.checkpoint.best)
        model.load_state_dict(weights)
        return model

    def on(self, device: str) -> "SavedModel":
        """Return the model for another device than the run's, cpu or cuda.

        Not collective.
        """
        train = dataclasses.replace(self.config.train, device=device)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, train=train))

    def origin(self) -> dict[str, str | int]:
        """Return what a file of predictions says about where they come from.

        Not collective.
        """
        state = self.checkpoint.state
        return {
            "run": str(self.run),
            "store": self.config.graph.store,
            "seed": state["seed"],
            "epoch": state["kept"]["epoch"],
            "trained_on": state["graph"]["fingerprint"],
        }


def open_saved_model(run: Path, seed: int | None = None, store: str | None = None) -> SavedModel:
    """Read the kept model of a seed, the best one by validation when None is given.

    Not collective.

    Parameters
    ----------
    run
        A run directory; the run may be under way.
    seed
        One of its seeds.
    store
        Another graph than the run's own to apply the model to.

    Raises
    ------
    InputError
        When there is no such checkpoint, no model was kept yet, or it does not read.
    """
    if not (run / "config.toml").is_file():
        raise InputError(f"{run} is not a run directory; give the run.dir of hpcgnn.train")
    config = load_config(run / "config.toml")
    if store is not None:
        graph = dataclasses.replace(config.graph, store=store)
        config = dataclasses.replace(config, graph=graph)
    newest = {seed: path for seed, _, path in checkpoint_paths(run / "checkpoints")}
    if seed is None and newest:
        seed = best_seed({each: _valid(path) for each, path in newest.items()})
    if seed is None or seed not in newest:
        there = f"seeds {sorted(newest)}" if newest else "none; train first"
        wanted = "no checkpoint" if seed is None else f"no checkpoint of seed {seed}"
        raise InputError(f"{run / 'checkpoints'} has {wanted}; it has {there}")
    checkpoint = read_checkpoint(newest[seed])
    if checkpoint.state["kept"]["epoch"] is None:
        raise InputError(
            f"{newest[seed]} has no evaluated model yet: let the run go on, or use another --seed"
        )
    return SavedModel(run, config, checkpoint)


def best_seed(valid: dict[int, float | None]) -> int:
    """Return the seed with the best validation value, the lowest of equals; None is the worst.

    Not collective.
    """
    scores = {seed: -1.0 if value is None else value for seed, value in valid.items()}
    return max(sorted(scores), key=scores.__getitem__)


def _valid(checkpoint: Path) -> float | None:
    state: dict[str, Any] = read_state(checkpoint)
    metric = "micro_f1" if state["graph"].get("multi_label") else "accuracy"
    value: float | None = state["kept"]["metrics"].get(f"valid_{metric}")
    return value


def load_saved_graph(grid: ProcessGrid, saved: SavedModel, trace: TraceRecorder) -> LocalGraph:
    """Read the graph that a saved model is applied to; it needs no labels and no split.

    Collective.

    Raises
    ------
    CollectiveInputError
        On a store that does not read, or does not fit the model or the number of ranks.
    """
    config = saved.config
    with agree(grid.world):
        if config.train.task == "programs":
            raise InputError(f"{saved.run} is of program graphs; its predictions.h5 has them all")
    trained = saved.trained
    with agree(grid.world):
        if grid.rank == 0:
            with GraphStore.open(config.graph.store) as store:
                _check_fits(store, config, trained)
    graph = load_graph(grid, config, trace, scales=scales_from(saved.checkpoint.features))
    if config.train.label_augmentation > 0:
        with agree(grid.world):
            here, there = graph.facts.labelled_types, trained.labelled_types
            _require_equal(config.graph.store, "labelled node types", here, there)
    facts = dataclasses.replace(
        graph.facts,
        num_classes=trained.num_classes,
        multi_label=trained.multi_label,
        class_names=trained.class_names,
    )
    return dataclasses.replace(graph, facts=facts)


def _check_fits(store: GraphStore, config: Config, trained: GraphFacts) -> None:
    directed = not (store.undirected or config.graph.undirected)
    for what, here, there in (
        ("features a node", store.num_features, trained.num_features),
        (
            "node types with features",
            tuple((each.name, each.num_features) for each in store.node_types),
            tuple(zip(trained.type_names, trained.type_features, strict=True)),
        ),
        # A graph without labels has no classes of its own.
        ("classes", store.num_classes or trained.num_classes, trained.num_classes),
        ("directed edges", directed, trained.directed),
        ("relations", relation_names(config, store, directed=directed), trained.relations),
    ):
        _require_equal(store.path, what, here, there)


def _require_equal(store: str | Path, what: str, here: object, there: object) -> None:
    if here != there:
        raise InputError(
            f"{store} does not fit the model: {what} {here}, but it was trained with {there}; "
            "convert the graph like the one it was trained on"
        )
