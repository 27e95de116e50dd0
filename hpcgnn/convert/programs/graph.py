"""One program graph: a snippet with a hole, and a node for each variable that may stand there."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.convert.programs.edge_types import EdgeType
from hpcgnn.convert.programs.flow import DataFlow
from hpcgnn.convert.programs.labels import (
    CANDIDATE_LABEL,
    HOLE_LABEL,
    name_label,
    node_label,
    token_label,
)
from hpcgnn.convert.programs.relations import Relations
from hpcgnn.convert.programs.scopes import Variable
from hpcgnn.convert.programs.source_file import SourceFile
from hpcgnn.convert.programs.uses import Use, Uses
from hpcgnn.typing import Array, LocalIndices

__all__ = ["ProgramGraph", "build_graph"]

_FOLDED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Nodes that have no place in the text; their parent's label tells of them."""


@dataclass(frozen=True)
class ProgramGraph:
    """Nodes are numbered: syntax tree in preorder, tokens in order, candidates as given.

    Parameters
    ----------
    labels
        The sub-tokens of each node.
    edges
        (e, 3) int32: type, source, target; sorted.
    candidates
        (c,) int32 nodes.
    """

    labels: list[tuple[str, ...]]
    edges: Array
    candidates: LocalIndices


def build_graph(
    source: SourceFile, uses: Uses, root: ast.AST, hole: Use, candidates: Sequence[Variable]
) -> ProgramGraph:
    """Return the graph of the snippet `root` with `hole` hidden.

    Nothing in it depends on the variable that stands in the hole but through `candidates`, which
    must be the same whichever of them stands there.
    """
    nodes = list(_preorder(root))
    syntax = {node: number for number, node in enumerate(nodes)}
    low, high = source.spans[root]
    tokens = {token: len(nodes) + token - low for token in range(low, high)}
    first = len(nodes) + len(tokens)
    places = {variable: first + number for number, variable in enumerate(candidates)}
    relations = Relations(uses, syntax, tokens, hole, places)
    relations.find(root)
    edges = relations.edges
    edges[EdgeType.CHILD] = _children(source, nodes, syntax, (low, high))
    edges[EdgeType.CHILD] |= {(syntax[hole.node], place) for place in places.values()}
    edges[EdgeType.NEXT_TOKEN] = {(tokens[t], tokens[t + 1]) for t in range(low, high - 1)}

    def occurrence(node: ast.Name | ast.arg) -> tuple[int, Variable] | None:
        use = uses.of_node.get(node)
        return None if use is None else (tokens[use.token], use.variable)

    flow = DataFlow(occurrence, hole.node, places)
    flow.walk(root)
    edges[EdgeType.LAST_READ] = flow.last_reads
    edges[EdgeType.LAST_WRITE] = flow.last_writes
    labels = [node_label(node) for node in nodes]
    labels += [token_label(*source.tokens[token]) for token in range(low, high)]
    labels[tokens[hole.token]] = HOLE_LABEL
    labels += [(CANDIDATE_LABEL, *name_label(variable.name)) for variable in candidates]
    numbers = np.arange(first, first + len(candidates), dtype=np.int32)
    return ProgramGraph(labels, _sorted_edges(edges), numbers)


def _preorder(root: ast.AST) -> Iterable[ast.AST]:
    yield root
    for child in ast.iter_child_nodes(root):
        if not isinstance(child, _FOLDED):
            yield from _preorder(child)


def _children(
    source: SourceFile,
    nodes: Sequence[ast.AST],
    syntax: dict[ast.AST, int],
    span: tuple[int, int],
) -> set[tuple[int, int]]:
    """Return the edges from nodes to their children, and to the tokens that no child covers."""
    low, high = span
    owner = np.zeros(high - low, np.int64)
    edges: set[tuple[int, int]] = set()
    for node in nodes:
        number = syntax[node]
        if node in source.spans:
            start, stop = source.spans[node]
            owner[start - low : stop - low] = number
        edges.update((number, syntax[c]) for c in ast.iter_child_nodes(node) if c in syntax)
    edges.update((int(parent), len(nodes) + token) for token, parent in enumerate(owner))
    return edges


def _sorted_edges(edges: dict[EdgeType, set[tuple[int, int]]]) -> Array:
    rows = [(int(kind), *edge) for kind, found in edges.items() for edge in found]
    array = np.array(rows, np.int32).reshape(-1, 3)
    return array[np.lexsort((array[:, 2], array[:, 1], array[:, 0]))]
