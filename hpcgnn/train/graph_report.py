"""What a run on a graph says of it: a line at the start, keys of the summary at the end."""

from typing import Any

from hpcgnn.train.config import Config
from hpcgnn.train.local_graph import GraphFacts, LocalGraph

__all__ = ["describe_graph_run", "summarise_graph"]


def describe_graph_run(graph: LocalGraph, config: Config, threads: int) -> str:
    """Return the line that says what is about to run.

    Not collective.
    """
    facts, grid = graph.facts, graph.grid
    edges = "directed edges" if facts.directed else "edges"
    return (
        f"{config.model.name} on {facts.name}: {facts.num_nodes} nodes, {facts.num_edges} {edges}, "
        f"{_features(facts)}, {facts.num_classes} classes; {grid.size} ranks with "
        f"{threads} threads, {facts.num_parts} parts, {config.exchange.method} exchange, "
        f"{config.exchange.schedule} schedule, "
        f"replication {grid.replication}, {config.train.dtype}"
    )


def _features(facts: GraphFacts) -> str:
    if not facts.type_names:
        return f"{facts.num_features} features"
    widths = zip(facts.type_names, facts.type_features, strict=True)
    return "features of " + ", ".join(f"{name} {width}" for name, width in widths)


def summarise_graph(
    graph: LocalGraph, config: Config, ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the keys of the summary that tell of the graph and its exchange.

    Not collective.

    Parameters
    ----------
    graph, config
        Of the run.
    ranks
        `LocalGraph.details` of all ranks, among other keys.
    """
    facts, exchange = graph.facts, config.exchange
    sent, received, pairs = (
        [rank[f"exchange_{key}_rows"] for rank in ranks] for key in ("send", "recv", "max_pair")
    )
    return {
        "parts": facts.num_parts,
        "exchange": exchange.method,
        "replication": exchange.replication,
        "schedule": exchange.schedule,
        "prefetch": exchange.prefetch,
        "graph": {
            "name": facts.name,
            "num_nodes": facts.num_nodes,
            "num_edges": facts.num_edges,
            "directed": facts.directed,
            "num_features": facts.num_features,
            "node_types": _node_types(facts),
            "num_classes": facts.num_classes,
            "fingerprint": facts.fingerprint,
        },
        "exchange_rows": {
            "total": sum(sent),
            "max_send": max(sent, default=0),
            "max_recv": max(received, default=0),
            "max_pair": max(pairs, default=0),
        },
        "ghost_bytes_max": max((rank["ghost_bytes_max"] for rank in ranks), default=0),
    }


def _node_types(facts: GraphFacts) -> list[dict[str, Any]]:
    columns = facts.type_names, facts.type_nodes, facts.type_features
    keys = ("name", "num_nodes", "num_features")
    return [dict(zip(keys, each, strict=True)) for each in zip(*columns, strict=True)]
