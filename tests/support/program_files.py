"""Small Python sources, and their graphs in readable form."""

import ast
from collections.abc import Sequence

from hpcgnn.convert.programs.graph import ProgramGraph, build_graph
from hpcgnn.convert.programs.holes import Hole, candidates_at
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.relations import EDGE_NAMES
from hpcgnn.convert.programs.sources import SourceFile
from hpcgnn.convert.programs.variables import Use, Uses


def function_of(tree: ast.Module) -> ast.AST:
    """Return the first function of a module."""
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def nth_read(source: SourceFile, uses: Uses, number: int) -> Use:
    """Return the use whose token is the `number`-th read of a variable in the text."""
    reads = [use for use in uses.inside(source.tree) if use.is_read]
    return sorted(reads, key=lambda use: use.token)[number]


def hole_at(text: str, number: int) -> tuple[SourceFile, Uses, Hole]:
    """Parse `text` and hide its `number`-th read."""
    source = SourceFile(text)
    uses = Uses(source)
    function = function_of(source.tree)
    hole = candidates_at(
        uses, nth_read(source, uses, number), function, function, "file.py", ProgramOptions()
    )
    assert hole is not None
    return source, uses, hole


def graph_at(text: str, number: int) -> tuple[ProgramGraph, Hole, list[str]]:
    """Return the graph of the module with a hidden read, and a name for each node.

    Tokens are named ``text@n`` by their number, nodes of the tree by their class.
    """
    source, uses, hole = hole_at(text, number)
    graph = build_graph(source, uses, source.tree, hole.use, hole.candidates)
    tokens = [f"{text}@{n}" for n, (_, text) in enumerate(source.tokens)]
    tokens[hole.use.token] = "HOLE"
    num_syntax = len(graph.labels) - len(tokens) - len(hole.candidates)
    names = [label[0].removeprefix("ast:") for label in graph.labels[:num_syntax]]
    return graph, hole, [*names, *tokens, *(f"?{each.name}" for each in hole.candidates)]


def edges_named(graph: ProgramGraph, names: Sequence[str], kind: str) -> set[tuple[str, str]]:
    """Return the edges of a type between named nodes."""
    number = EDGE_NAMES.index(kind)
    return {(names[s], names[t]) for k, s, t in graph.edges.tolist() if k == number}
