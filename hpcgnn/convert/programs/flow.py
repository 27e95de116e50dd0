"""Find where each variable may last have been read and written, in order of evaluation."""

# ruff: noqa: N802, N815 - methods are named after the nodes that they are called for.

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcgnn.convert.programs.variables import Variable, as_list, parameters

_SECOND_PASS_DEPTH = 3
"""Loops nested deeper are walked only once, because each level of two passes doubles the work."""

Nodes = frozenset[int]
State = dict[Variable, tuple[Nodes, Nodes]]
"""For each variable, the graph nodes that may last have read it and written it."""

_EMPTY: tuple[Nodes, Nodes] = (frozenset(), frozenset())

_ORDER: Mapping[type[ast.AST], tuple[str, ...]] = {
    ast.Assign: ("value", "targets"),
    ast.AnnAssign: ("annotation", "value", "target"),
    ast.NamedExpr: ("value", "target"),
    ast.comprehension: ("iter", "target", "ifs"),
    ast.ListComp: ("generators", "elt"),
    ast.SetComp: ("generators", "elt"),
    ast.GeneratorExp: ("generators", "elt"),
    ast.DictComp: ("generators", "key", "value"),
}
"""The evaluation order of a node's fields, if it differs from the order of the fields."""


def _join(*states: State) -> State:
    joined = dict(states[0])
    for state in states[1:]:
        for variable, (reads, writes) in state.items():
            old_reads, old_writes = joined.get(variable, _EMPTY)
            joined[variable] = old_reads | reads, old_writes | writes
    return joined


@dataclass
class _Loop:
    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)


class DataFlow:
    """Walks over one snippet and collects its data-flow edges.

    `occurrence` returns the graph node and variable of a name, or None if it is no variable.
    `candidates` maps each variable that may fill the `hole` to its graph node; each is treated as
    read there. `last_reads` and `last_writes` are edges from a use to the possible uses before it.
    """

    def __init__(
        self,
        occurrence: Callable[[ast.Name | ast.arg], tuple[int, Variable] | None],
        hole: ast.AST,
        candidates: Mapping[Variable, int],
    ) -> None:
        self._occurrence, self._hole, self._candidates = occurrence, hole, candidates
        self.last_reads: set[tuple[int, int]] = set()
        self.last_writes: set[tuple[int, int]] = set()
        self._state: State = {}
        self._loops: list[_Loop] = []

    def walk(self, root: ast.AST) -> None:
        """Walk a module, class, function, statement or expression."""
        if handler := getattr(self, f"_walk_{type(root).__name__}", None):
            handler(root)
        elif order := _ORDER.get(type(root)):
            for name in order:
                self._walk_all(as_list(getattr(root, name)))
        else:
            self._walk_all(ast.iter_child_nodes(root))

    def _walk_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.walk(node)

    def _walk_Name(self, node: ast.Name) -> None:
        if node is self._hole:
            for variable, graph_node in self._candidates.items():
                reads, writes = self._link(graph_node, variable)
                # The next use may follow the hole or, if another variable fills it, earlier reads.
                self._state[variable] = reads | {graph_node}, writes
        elif isinstance(node.ctx, ast.Load):
            self._read(node)
        else:
            self._write(node)

    def _walk_arg(self, node: ast.arg) -> None:
        self._write(node)

    def _link(self, graph_node: int, variable: Variable) -> tuple[Nodes, Nodes]:
        reads, writes = self._state.get(variable, _EMPTY)
        self.last_reads.update((graph_node, last) for last in reads)
        self.last_writes.update((graph_node, last) for last in writes)
        return reads, writes

    def _read(self, node: ast.Name) -> None:
        if occurrence := self._occurrence(node):
            graph_node, variable = occurrence
            _, writes = self._link(graph_node, variable)
            self._state[variable] = frozenset({graph_node}), writes

    def _write(self, node: ast.Name | ast.arg) -> None:
        if occurrence := self._occurrence(node):
            graph_node, variable = occurrence
            reads, _ = self._link(graph_node, variable)
            self._state[variable] = reads, frozenset({graph_node})

    def _walk_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target)
        self._walk_all([node.value, node.target])

    def _walk_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._walk_all([*node.decorator_list, node.returns])
        self._walk_function(node.args, node.body)

    _walk_AsyncFunctionDef = _walk_FunctionDef

    def _walk_Lambda(self, node: ast.Lambda) -> None:
        self._walk_function(node.args, [node.body])

    def _walk_function(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> None:
        self._walk_all([*arguments.defaults, *arguments.kw_defaults])
        outer, loops = dict(self._state), self._loops
        self._loops = []
        self._walk_all([*parameters(arguments), *body])
        self._state, self._loops = outer, loops

    def _walk_branches(self, branches: Iterable[ast.AST | Sequence[ast.AST]]) -> None:
        start = self._state
        ends = []
        for branch in branches:
            self._state = dict(start)
            self._walk_all(as_list(branch))
            ends.append(self._state)
        self._state = _join(*ends)

    def _walk_If(self, node: ast.If | ast.IfExp) -> None:
        self.walk(node.test)
        self._walk_branches([node.body, node.orelse])

    _walk_IfExp = _walk_If

    def _walk_Match(self, node: ast.Match) -> None:
        self.walk(node.subject)
        self._walk_branches([[], *node.cases])

    def _walk_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.walk(node.iter)
        self._walk_loop([], [node.target, *node.body], node.orelse)

    _walk_AsyncFor = _walk_For

    def _walk_While(self, node: ast.While) -> None:
        self._walk_loop([node.test], node.body, node.orelse)

    def _walk_loop(
        self, head: Sequence[ast.AST], body: Sequence[ast.AST], orelse: Sequence[ast.AST]
    ) -> None:
        loop = _Loop()
        self._loops.append(loop)
        for _ in range(2 if len(self._loops) <= _SECOND_PASS_DEPTH else 1):
            self._walk_all(head)
            before = dict(self._state)
            self._walk_all(body)
            self._state = _join(before, self._state, *loop.continues)
        self._loops.pop()
        self._walk_all(orelse)
        self._state = _join(self._state, *loop.breaks)

    def _walk_Try(self, node: ast.Try) -> None:
        start = dict(self._state)
        self._walk_all(node.body)
        after = dict(self._state)
        self._walk_all(node.orelse)
        ends = [self._state]
        for handler in node.handlers:
            # An exception may occur before the first statement or at the end of the last.
            self._state = _join(start, after)
            self.walk(handler)
            ends.append(self._state)
        self._state = _join(*ends)
        self._walk_all(node.finalbody)

    _walk_TryStar = _walk_Try

    def _walk_Return(self, node: ast.Return | ast.Raise) -> None:
        self._walk_all(ast.iter_child_nodes(node))
        self._state = {}

    _walk_Raise = _walk_Return

    def _walk_Break(self, node: ast.Break | ast.Continue) -> None:
        if self._loops:
            loop = self._loops[-1]
            (loop.breaks if isinstance(node, ast.Break) else loop.continues).append(self._state)
        self._state = {}

    _walk_Continue = _walk_Break
