"""The features of a stored graph, for what works with what; read from its header."""

from collections.abc import Sequence

from hpcgnn.config.config import Config
from hpcgnn.config.features import changes, features_of, show
from hpcgnn.graph.facts import node_types_of
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.storage import GraphStore
from hpcgnn.support import Feature, Trait, check, lacks, needs


def check_graph(config: Config, store: GraphStore, wanted: Sequence[Aggregation]) -> None:
    """Raise an `InputError` where a graph does not work with a configuration.

    Parameters
    ----------
    wanted
        Aggregations in place of the model's, see `features_of`.
    """

    def features(changed: Config) -> list[Feature]:
        kinds = wanted or find_model(changed.model.name).aggregations
        return [*features_of(changed, wanted), *store_features(changed, store, kinds)]

    check(config, features, changes)


def store_features(
    config: Config, store: GraphStore, wanted: Sequence[Aggregation]
) -> list[Feature]:
    """Return what a stored graph needs of other features, and lacks for them."""
    relations = config.graph.relations or store.relations
    directed = not (store.undirected or config.graph.undirected)
    found = []
    if config.graph.weights == "use" and any(store.weighted(each) for each in relations):
        name = f"a graph with edge weights ({store.path})"
        found.append(Feature(name, needs(Trait.EDGE_WEIGHTS), ("graph.weights",)))
    if config.graph.undirected and not store.undirected:
        reverses = needs(Trait.ADDED_REVERSES)
        found.append(Feature("graph.undirected = true", reverses, ("graph.undirected",)))
    if directed and any(kind.is_reversed for kind in on_graph(wanted, directed=directed)):
        name = f"model.name = {show(config.model.name)} on directed edges"
        reverse = needs(Trait.REVERSE_EDGES)
        found.append(Feature(name, reverse, ("graph.undirected", "model.name")))
    types, name = node_types_of(config, store), f"a graph without node types ({store.path})"
    missing: dict[Trait, str] = {Trait.NODE_TYPES: "it has no input layers"}
    if types:
        name = f"a graph with node types ({store.path})"
        missing = {Trait.ONE_NODE_TYPE: "nodes without features have vectors (model.embeddings)"}
    found.append(Feature(name, lacks(missing)))
    if all(each.num_features > 0 for each in types):
        name = f"a graph with features of all nodes ({store.path})"
        found.append(Feature(name, lacks({Trait.BARE_NODES: "no node is without features"})))
    without = [each for each in relations if store.edge_features(each)[0] == 0]
    if without:
        where = f"relation '{without[0]}' has none" if without[0] else "its edges have none"
        name = f"a graph without features of edges ({store.path})"
        missing = {Trait.STORED_EDGE_FEATURES: where}
        found.append(Feature(name, lacks(missing), remedy="convert with --edge-features"))
    if not store.multi_label:
        name = f"a graph of one label a node ({store.path})"
        found.append(Feature(name, lacks({Trait.SEVERAL_LABELS: "there is no other to predict"})))
    return found
