"""Find the variables of functions in a file, where they are visible, and their uses."""

# ruff: noqa: N815 - methods are named after the nodes that they are called for.

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcgnn.convert.programs.sources import SourceFile

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension, and the names that it binds."""

    node: ast.AST
    parent: "Scope | None"
    bound: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)

    @property
    def has_variables(self) -> bool:
        """Whether its names are variables; modules and classes bind globals and attributes."""
        return isinstance(self.node, (*FUNCTIONS, *COMPREHENSIONS))

    @cached_property
    def visible(self) -> "dict[str, Variable]":
        """The variables that names in this scope refer to; valid once all scopes are known."""
        variables: dict[str, Variable] = {}
        hidden: set[str] = set()
        scope: Scope | None = self
        while scope is not None:
            # Names of a class body are not visible in the functions inside it.
            if scope is self or not isinstance(scope.node, ast.ClassDef):
                for name in scope.bound - scope.elsewhere - hidden:
                    hidden.add(name)
                    if scope.has_variables:
                        variables[name] = Variable(scope, name)
            scope = scope.parent
        return variables


@dataclass(frozen=True)
class Variable:
    """A name in the scope that binds it."""

    scope: Scope
    name: str


class _Scopes(ast.NodeVisitor):
    """Finds the scope of each name, parameter and function of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.scope_of: dict[ast.AST, Scope] = {}
        self._scope = Scope(tree, None)
        self._visit_all(tree.body)

    def visit_Name(self, node: ast.Name) -> None:
        self.scope_of[node] = self._scope
        if not isinstance(node.ctx, ast.Load):
            self._scope.bound.add(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        # A walrus target is bound in the scope around comprehensions.
        inner = self._scope
        while isinstance(self._scope.node, COMPREHENSIONS) and self._scope.parent is not None:
            self._scope = self._scope.parent
        self.visit(node.target)
        self._scope = inner

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._scope.elsewhere.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_alias(self, node: ast.alias) -> None:
        self._scope.bound.add((node.asname or node.name).split(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._scope.bound.add(node.name)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_ExceptHandler

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bound.add(node.name)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self._enter(node, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.bound.add(node.name)
        # Decorators, defaults and annotations are evaluated outside the function.
        self._visit_all([*node.decorator_list, *filter(None, [node.returns])])
        self._visit_signature(node.args)
        self.scope_of[node] = self._scope
        self._enter(node, node.body, parameters(node.args))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_signature(node.args)
        self._enter(node, [node.body], parameters(node.args))

    def visit_ListComp(self, node: Any) -> None:
        # The first iterable is evaluated outside the comprehension.
        first, *inner_loops = node.generators
        self.visit(first.iter)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._enter(node, [first.target, *first.ifs, *inner_loops, *results])

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _visit_signature(self, arguments: ast.arguments) -> None:
        self._visit_all([*arguments.defaults, *filter(None, arguments.kw_defaults)])
        self._visit_all([arg.annotation for arg in parameters(arguments) if arg.annotation])

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _enter(
        self, node: ast.AST, body: Sequence[ast.AST], arguments: Sequence[ast.arg] = ()
    ) -> None:
        outer, self._scope = self._scope, Scope(node, self._scope)
        for parameter in arguments:
            self._scope.bound.add(parameter.arg)
            self.scope_of[parameter] = self._scope
        self._visit_all(body)
        self._scope = outer


def as_list(part: Any) -> Sequence[Any]:
    """Return a field of a syntax node (a node, None or a list) as a list."""
    return part if isinstance(part, list) else [part]


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """Return all parameters, in the order of the text."""
    star = [arguments.vararg] if arguments.vararg else []
    double = [arguments.kwarg] if arguments.kwarg else []
    return [*arguments.posonlyargs, *arguments.args, *star, *arguments.kwonlyargs, *double]


@dataclass(frozen=True)
class Use:
    """An occurrence where a variable is read, written or declared."""

    node: ast.Name | ast.arg
    token: int
    variable: Variable

    @property
    def is_read(self) -> bool:
        """Whether the variable is read here."""
        return isinstance(self.node, ast.Name) and isinstance(self.node.ctx, ast.Load)


class Uses:
    """All uses of variables of functions in a file.

    `of_node` maps names of the syntax tree to uses; `of_variable` maps variables to their uses in
    the order of the text; `scope_of` maps names, parameters and functions to their scopes.
    """

    def __init__(self, source: SourceFile) -> None:
        self.scope_of = _Scopes(source.tree).scope_of
        self.of_node: dict[ast.AST, Use] = {}
        self.of_variable: dict[Variable, list[Use]] = {}
        for node, scope in self.scope_of.items():
            if not isinstance(node, ast.Name | ast.arg):
                continue
            # None for globals, attributes, builtins.
            variable = scope.visible.get(node.id if isinstance(node, ast.Name) else node.arg)
            token = source.name_token(node)
            if token is not None and variable is not None:
                use = Use(node, token, variable)
                self.of_node[node] = use
                self.of_variable.setdefault(variable, []).append(use)
        for uses in self.of_variable.values():
            uses.sort(key=lambda use: use.token)

    def inside(self, root: ast.AST) -> Iterator[Use]:
        """Yield the uses in a part of the tree."""
        for node in ast.walk(root):
            if node in self.of_node:
                yield self.of_node[node]
