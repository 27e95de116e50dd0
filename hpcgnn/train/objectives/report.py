"""Reports of objectives on one graph: the opening line, likely mistakes, summary entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from hpcgnn.autograd import SparseFeatures
from hpcgnn.autograd.numerics.blas import bfloat16_is_fast
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.console import number
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.inputs import far_columns
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import TypedRows
from hpcgnn.storage import names_by_type
from hpcgnn.train.cached_products import CachedProducts
from hpcgnn.train.objectives.objective import About

_NUM_INSPECTED = 4096


@dataclass(frozen=True, eq=False)
class GraphReport(About):
    """Reports on a graph and the exchange of its rows.

    `counted` are numbers of examples by split, by what they are; they are announced, and are
    entries of the summary.
    """

    graph: LocalGraph
    config: Config
    cached_products: CachedProducts | None = None
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @override
    def describe(self, threads: int) -> str:
        config, facts, grid = self.config, self.graph.facts, self.graph.grid
        edges = "directed edges" if facts.directed else "edges"
        counted = "".join(
            f"; {what}: " + ", ".join(f"{size} {split}" for split, size in counts.items())
            for what, counts in self.counted.items()
        )
        return (
            f"{config.model.name} on {facts.name}: {_sizes(facts)}, "
            f"{facts.num_edges:,} {edges}, {_features(facts)}{self._density()}, {facts.outputs}; "
            f"{number(grid.size, 'rank')} with {number(threads, 'thread')}, "
            f"{number(facts.num_parts, 'part')}, "
            f"{config.exchange.method} exchange, {config.exchange.schedule} schedule, "
            f"{_copies(grid)}, {config.train.dtype}{_rows_format(config)}"
            f"{counted}"
        )

    def _density(self) -> str:
        features = self.graph.features
        if not isinstance(features, SparseFeatures):
            return ""
        return (
            f" (sparse: on rank 0 {features.matrix.nnz / max(1, features.numel()):.2%} are not 0)"
        )

    @override
    def remarks(self) -> list[str]:
        # Warn of types that inductive training does not see, and of feature columns that outweigh
        # others, by this rank's first nodes.
        facts, notes = self.graph.facts, list[str]()
        unseen = [
            name
            for name, count in zip(facts.type_names, facts.type_nodes, strict=True)
            if count and name not in facts.labelled_types
        ]
        if self.config.train.inductive and unseen:
            notes.append(
                f"train.inductive: no labelled node of {', '.join(unseen)} is in the training "
                "split; training sees edges between training nodes only, but evaluations all"
            )
        if self.config.graph.normalize_features != "none":
            return notes
        features = self.graph.features
        tables = features.parts if isinstance(features, TypedRows) else (features,)
        known = [facts.feature_names]
        if facts.type_names:
            known = names_by_type(facts.feature_names, facts.type_features)
        for name, table, names in zip(facts.type_names or ("",), tables, known, strict=True):
            head = table[:_NUM_INSPECTED]
            rows = head.written_out() if isinstance(head, SparseFeatures) else head
            values = rows.float().cpu().numpy()
            if len(columns := far_columns(values)):
                size = float(np.abs(values[:, columns[0]]).mean())
                of_type = f" of {name}" if name else ""
                column = repr(names[columns[0]]) if columns[0] < len(names) else columns[0]
                notes.append(
                    f"features{of_type}: column {column} is about {size:.4g}, "
                    f"{len(columns)} of {values.shape[1]} columns outweigh others or what they "
                    "differ by; graph.normalize_features=standard brings all to one scale"
                )
        return notes

    @override
    def details(self) -> dict[str, Any]:
        buffers = self.graph.grid.buffers
        sizes = {"ghost_bytes_max": buffers.ghosts.peak, "buffer_bytes": buffers.num_bytes}
        kept = (
            {} if self.cached_products is None else {"kept_bytes": self.cached_products.num_bytes}
        )
        return {**sizes, **self.graph.details, **kept}

    @override
    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        facts, exchange = self.graph.facts, self.config.exchange
        sent, received, pairs = (
            [rank[f"exchange_{key}_rows"] for rank in ranks] for key in ("send", "recv", "max_pair")
        )
        return {
            "parts": facts.num_parts,
            "exchange": exchange.method,
            "replication": exchange.replication,
            "groups": exchange.groups,
            "schedule": exchange.schedule,
            "prefetch": exchange.prefetch,
            "graph": {
                "name": facts.name,
                "num_nodes": facts.num_nodes,
                "num_graphs": facts.num_graphs,
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
            **{what.replace(" ", "_"): counts for what, counts in self.counted.items()},
        }


def _copies(grid: ProcessGrid) -> str:
    return f"{grid.groups} groups" if grid.groups > 1 else f"replication {grid.replication}"


def _sizes(facts: GraphFacts) -> str:
    graphs = f" in {number(facts.num_graphs, 'graph')}" if facts.num_graphs else ""
    return f"{number(facts.num_nodes, 'node')}{graphs}"


def _rows_format(config: Config) -> str:
    integers = " and int8 products" * (config.train.products == "int8")
    if config.train.precision == "float32":
        return integers
    widened = config.train.device == "cpu" and not bfloat16_is_fast()
    of_rows = f" with {config.train.precision} rows" + ", multiplied in float32" * widened
    return of_rows + integers


def _features(facts: GraphFacts) -> str:
    if not facts.type_names:
        return f"{facts.num_features} features"
    widths = zip(facts.type_names, facts.type_features, strict=True)
    return "features of " + ", ".join(f"{name} {width}" for name, width in widths)


def _node_types(facts: GraphFacts) -> list[dict[str, Any]]:
    columns = facts.type_names, facts.type_nodes, facts.type_features
    keys = ("name", "num_nodes", "num_features")
    return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
