"""Build a program graph: a snippet with a hole, and a node for each candidate variable."""

import ast
import functools
import re
import token
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.convert.programs.flow import DataFlow
from hpcgnn.convert.programs.relations import EdgeType, Relations
from hpcgnn.convert.programs.sources import SourceFile
from hpcgnn.convert.programs.variables import Use, Uses, Variable
from hpcgnn.typing import Array, LocalIndices

_FOLDED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Syntax nodes without a position in the text; the parent's label includes them."""

MAX_SUBTOKENS = 6
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\sA-Za-z0-9_]")

HOLE_LABEL = ("kind:hole",)
CANDIDATE_LABEL = "kind:candidate"


def node_label(node: ast.AST) -> tuple[str, ...]:
    """Return the label of a syntax node: its class and its operators."""
    operators = getattr(node, "ops", None) or [getattr(node, "op", None)]
    names = [type(operator).__name__ for operator in operators[:2] if isinstance(operator, ast.AST)]
    return (f"ast:{type(node).__name__}", *(f"ast:{name}" for name in names))


def token_label(kind: int, text: str) -> tuple[str, ...]:
    """Return the label of a token; those of literals have their kind and first characters."""
    if kind == token.NUMBER:
        return ("kind:number", text[:8])
    if kind == token.STRING:
        return ("kind:string", *subtokens(text[:60])[: MAX_SUBTOKENS - 1])
    return name_label(text)


@functools.lru_cache(maxsize=1 << 14)
def name_label(text: str) -> tuple[str, ...]:
    """Return the sub-tokens of an identifier, keyword or operator."""
    return subtokens(text)[:MAX_SUBTOKENS] or (text,)


def subtokens(text: str) -> tuple[str, ...]:
    """Split a text at underscores, changes of case and digits; return lower-case parts."""
    return tuple(word.lower() for word in _WORD.findall(text))


@functools.lru_cache(maxsize=1 << 16)
def buckets_of(label: tuple[str, ...], num_buckets: int) -> tuple[int, ...]:
    """Return the bucket of each sub-token."""
    return tuple(zlib.crc32(word.encode("utf-8", "replace")) % num_buckets for word in label)


@dataclass(frozen=True)
class ProgramGraph:
    """A graph with nodes in this order: syntax tree in preorder, tokens, candidates.

    `labels` are the sub-tokens of each node; `edges` (e, 3) int32 are type, source, target, sorted;
    `candidates` (c,) int32 are nodes.
    """

    labels: list[tuple[str, ...]]
    edges: Array
    candidates: LocalIndices


def build_graph(
    source: SourceFile, uses: Uses, root: ast.AST, hole: Use, candidates: Sequence[Variable]
) -> ProgramGraph:
    """Return the graph of the snippet `root` with `hole` hidden.

    The graph must not reveal the variable in the hole: it depends on it only through `candidates`,
    which must be the same for each candidate in the hole.
    """
    nodes = list(_preorder(root))
    syntax = {node: number for number, node in enumerate(nodes)}
    low, high = source.spans[root]
    tokens = {token: len(nodes) + token - low for token in range(low, high)}
    first = len(nodes) + len(tokens)
    candidate_nodes = {variable: first + number for number, variable in enumerate(candidates)}
    relations = Relations(uses, syntax, tokens, hole, candidate_nodes)
    relations.find(root)
    edges = relations.edges
    edges[EdgeType.CHILD] = _children(source, nodes, syntax, (low, high))
    edges[EdgeType.CHILD] |= {(syntax[hole.node], node) for node in candidate_nodes.values()}
    edges[EdgeType.NEXT_TOKEN] = {(tokens[t], tokens[t + 1]) for t in range(low, high - 1)}

    def occurrence(node: ast.Name | ast.arg) -> tuple[int, Variable] | None:
        use = uses.of_node.get(node)
        return None if use is None else (tokens[use.token], use.variable)

    flow = DataFlow(occurrence, hole.node, candidate_nodes)
    flow.walk(root)
    edges[EdgeType.LAST_READ] = flow.last_reads
    edges[EdgeType.LAST_WRITE] = flow.last_writes
    labels = [node_label(node) for node in nodes]
    labels += [token_label(*source.tokens[token]) for token in range(low, high)]
    labels[tokens[hole.token]] = HOLE_LABEL
    labels += [(CANDIDATE_LABEL, *name_label(variable.name)) for variable in candidates]
    numbers = np.arange(first, first + len(candidates), dtype=np.int32)
    rows = [(int(kind), *edge) for kind, pairs in edges.items() for edge in pairs]
    array = np.array(rows, np.int32).reshape(-1, 3)
    order = np.lexsort((array[:, 2], array[:, 1], array[:, 0]))
    return ProgramGraph(labels, array[order], numbers)


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
    """Return the edges from nodes to their children and to the tokens that no child covers."""
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
