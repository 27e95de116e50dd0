"""The parts of an exported module after the node encoder: read-outs, link scorers, decoders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpcgnn.config.config import Config
from hpcgnn.export.blueprint import Blueprint, FrameFacts, PairFacts, under
from hpcgnn.export.layers import read_layers, render
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.nn import NodeModel, make_edge_model, make_headed_model, make_link_model
from hpcgnn.storage import GraphStore
from hpcgnn.train.edges.labelled import num_features, relations_to_predict
from hpcgnn.train.edges.predicted import encoder_facts
from hpcgnn.train.fields.dynamics import scales_of
from hpcgnn.train.fields.frames import Columns
from hpcgnn.train.links.edges import scored_relations
from hpcgnn.train.run.saved_model import SavedModel


@dataclass(frozen=True, eq=False)
class Head:
    """The rendered texts of a task's head from templates/heads.toml, which describes them."""

    takes: Mapping[str, str]
    returns: str
    before: list[str]
    behind: list[str]
    call: str
    prepared: list[str]
    imports: str
    classes: list[str]
    modules: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, model: Blueprint, library: str) -> "Head | None":
        """Return the head of a model for a library; None if nodes are predicted."""
        task = "embedded" if "map.weight" in model.head else model.config.train.task
        texts = read_layers("heads").get(task)
        if texts is None:
            return None
        texts = {**texts, **texts.get(library, {})}

        def rendered(lines: list[str]) -> list[str]:
            return [line for text in lines if (line := render(text, m=model))]

        takes = {name: render(text, m=model) for name, text in texts.get("takes", {}).items()}
        return cls(
            {name: text for name, text in takes.items() if text},
            texts["returns"],
            rendered(texts.get("before", [])),
            rendered(texts.get("behind", [])),
            render(texts["call"], m=model),
            rendered(texts.get("prepared", [])),
            render(texts.get("imports", ""), m=model),
            rendered(texts.get("classes", [])),
            {
                name: {**module, "make": render(module["make"], m=model)}
                for name, module in texts.get("modules", {}).items()
            },
        )

    def tensors(self, name: str, head: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a module under the names in the exported module."""
        tensors = under(f"{name}.", head)
        for exported, prefix in self.modules[name].get("tensors", {}).items():
            tensors = {
                f"{exported}{key.removeprefix(prefix)}" if key.startswith(prefix) else key: value
                for key, value in tensors.items()
            }
        return tensors


def facts_of_encoder(saved: SavedModel) -> GraphFacts:
    """Return the facts with which the node encoder was made."""
    if saved.embedded:
        return saved.trained.with_embeddings(saved.embedded)
    of_edges = saved.config.train.task == "edges"
    return encoder_facts(saved.trained, saved.config) if of_edges else saved.trained


def facts_of_pairs(config: Config, store: GraphStore) -> PairFacts:
    """Return the facts about predictions for pairs of nodes; empty for other tasks."""
    match config.train.task:
        case "links":
            names = config.links.relations or config.graph.relations or store.relations
            directed = not (store.undirected or config.graph.undirected)
            return PairFacts(scored_relations(names, config.links, directed=directed))
        case "edges":
            names = relations_to_predict(store, config.edges.relations)
            width = num_features(store, names, read=config.edges.features)
            return PairFacts(names, width, store.undirected)
    return PairFacts()


def facts_of_frames(saved: SavedModel, store: GraphStore) -> FrameFacts | None:
    """Return the facts about fields that the model reads; None for other tasks."""
    if saved.config.train.task != "fields":
        return None
    return FrameFacts(Columns.of(saved.config, store), scales_of(saved.checkpoint.features))


def with_head(saved: SavedModel, pairs: PairFacts, encoder: NodeModel) -> NodeModel:
    """Return a run's model, with initial weights, from its encoder."""
    config, facts, seed = saved.config, saved.trained, saved.checkpoint.state["seed"]
    width = facts_of_encoder(saved).num_classes
    match config.train.task:
        case "links":
            count = len(pairs.relations)
            return make_link_model(
                encoder, config.links.scorer, width=width, num_relations=count, seed=seed
            )
        case "edges":
            hidden = config.edges.hidden or config.model.hidden
            sizes = width, pairs.num_features, hidden, facts.num_classes, len(pairs.relations)
            return make_edge_model(encoder, sizes, symmetric=pairs.symmetric, seed=seed)
    if saved.embedded:
        return make_headed_model(encoder, width, facts.num_classes, seed)
    return encoder
