"""Edge types of program graphs, and all edges but those of data flow, which `flow` finds."""

import ast
import enum
from collections import Counter
from collections.abc import Mapping, Sequence

from hpcgnn.convert.programs.variables import FUNCTIONS, Use, Uses, Variable, as_list, parameters

_RECEIVERS = ("self", "cls")


class EdgeType(enum.IntEnum):
    """Forward edge types; the model adds the reverse of each, so that it sees twice as many.

    Tokens of variables point back to earlier uses; assigned variables to those in the value.
    """

    CHILD = 0
    NEXT_TOKEN = 1
    LAST_READ = 2
    LAST_WRITE = 3
    LAST_LEXICAL_USE = 4
    COMPUTED_FROM = 5
    RETURNS_TO = 6
    FORMAL_ARG_NAME = 7
    GUARDED_BY = 8
    GUARDED_BY_NEGATION = 9


EDGE_NAMES = tuple(
    kind.name.replace("_", " ").title().replace(" ", "") for kind in sorted(EdgeType)
)
"""Child, NextToken, LastRead, ... in the order of `EdgeType`."""


class Relations:
    """Finds the edges in one snippet: (source, target) graph nodes by type.

    The `hole`, the hidden use, counts as no variable; each candidate gets the edges that it would
    have there. `syntax`, `tokens` and `candidates` map syntax nodes, tokens and candidate variables
    to graph nodes.
    """

    def __init__(
        self,
        uses: Uses,
        syntax: Mapping[ast.AST, int],
        tokens: Mapping[int, int],
        hole: Use,
        candidates: Mapping[Variable, int],
    ) -> None:
        self._uses, self._syntax, self._tokens = uses, syntax, tokens
        self._hole, self._candidates = hole, candidates
        self.edges: dict[EdgeType, set[tuple[int, int]]] = {kind: set() for kind in EdgeType}

    def find(self, root: ast.AST) -> None:
        """Find the edges of the types that this class handles in the snippet `root`."""
        self._functions = _functions_by_name(root)
        self._lexical_uses(root)
        self._visit(root, None)

    def _uses_in(self, part: ast.AST) -> list[tuple[int, Variable]]:
        """Return the graph node and variable of each use in a part; the hole yields candidates."""
        uses = []
        for node in ast.walk(part):
            if node is self._hole.node:
                uses += [(number, variable) for variable, number in self._candidates.items()]
            elif use := self._uses.of_node.get(node):
                uses.append((self._tokens[use.token], use.variable))
        return uses

    def _lexical_uses(self, root: ast.AST) -> None:
        tokens_of: dict[Variable, list[int]] = {}
        for use in self._uses.inside(root):
            if use is not self._hole:
                tokens_of.setdefault(use.variable, []).append(use.token)
        edges = self.edges[EdgeType.LAST_LEXICAL_USE]
        for variable, tokens in tokens_of.items():
            tokens.sort()
            nodes = [self._tokens[token] for token in tokens]
            edges.update(zip(nodes[1:], nodes, strict=False))
            if variable in self._candidates:
                candidate = self._candidates[variable]
                before = [token for token in tokens if token < self._hole.token]
                after = [token for token in tokens if token > self._hole.token]
                edges.update((candidate, self._tokens[token]) for token in before[-1:])
                edges.update((self._tokens[token], candidate) for token in after[:1])

    def _visit(self, node: ast.AST, function: ast.AST | None) -> None:
        if isinstance(node, ast.Assign):
            self._computed_from(node.targets, node.value)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            self._computed_from([node.target], node.value)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._computed_from([node.target], node.iter)
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            self._guards(node)
        elif isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and function is not None:
            self.edges[EdgeType.RETURNS_TO].add((self._syntax[node], self._syntax[function]))
        elif isinstance(node, ast.Call):
            self._formal_arguments(node)
        inner = node if isinstance(node, FUNCTIONS) else function
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner)

    def _computed_from(self, targets: Sequence[ast.expr], value: ast.expr | None) -> None:
        if value is None:
            return
        sources = self._uses_in(value)
        for target in targets:
            for node in ast.walk(target):
                use = self._uses.of_node.get(node)
                if use is not None and not use.is_read:
                    written = self._tokens[use.token]
                    self.edges[EdgeType.COMPUTED_FROM].update(
                        (written, node_read) for node_read, _ in sources
                    )

    def _guards(self, node: ast.If | ast.While | ast.IfExp) -> None:
        guarding = {use.variable for use in self._uses.inside(node.test) if use is not self._hole}
        guard = self._syntax[node.test]
        for kind, parts in (
            (EdgeType.GUARDED_BY, node.body),
            (EdgeType.GUARDED_BY_NEGATION, node.orelse),
        ):
            for part in as_list(parts):
                uses = self._uses_in(part)
                self.edges[kind].update((n, guard) for n, variable in uses if variable in guarding)

    def _formal_arguments(self, call: ast.Call) -> None:
        name, is_method = self._callee(call.func)
        function = self._functions.get(name) if name else None
        if function is None:
            return
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args][1 if is_method else 0 :]
        by_name = {arg.arg: arg for arg in parameters(arguments)}
        pairs = [*zip(call.args, positional, strict=False)]
        pairs += [(arg.value, by_name[arg.arg]) for arg in call.keywords if arg.arg in by_name]
        for value, formal in pairs:
            use = self._uses.of_node.get(formal)
            if use is not None and not isinstance(value, ast.Starred):
                edge = self._syntax[value], self._tokens[use.token]
                self.edges[EdgeType.FORMAL_ARG_NAME].add(edge)

    def _callee(self, callee: ast.expr) -> tuple[str | None, bool]:
        """Return the name of the called function or None, and whether it is a method of self."""
        hole = self._hole.node
        if isinstance(callee, ast.Name) and callee is not hole:
            return callee.id, False
        if isinstance(callee, ast.Attribute) and callee.value is not hole:
            receiver = callee.value
            if isinstance(receiver, ast.Name) and receiver.id in _RECEIVERS:
                return callee.attr, True
        return None, False


def _functions_by_name(root: ast.AST) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a snippet whose names are unique in it."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for node in ast.walk(root) if isinstance(node, kinds)]
    counts = Counter(node.name for node in functions)
    return {node.name: node for node in functions if counts[node.name] == 1}
