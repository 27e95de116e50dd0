"""The names of a file that are uses of variables, each with its token."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from hpcgnn.convert.programs.scopes import Scopes, Variable
from hpcgnn.convert.programs.source_file import SourceFile

__all__ = ["Use", "Uses"]


@dataclass(frozen=True)
class Use:
    """One place where a variable is read, written or declared."""

    node: ast.Name | ast.arg
    token: int
    variable: Variable

    @property
    def is_read(self) -> bool:
        """Whether the variable is read here."""
        return isinstance(self.node, ast.Name) and isinstance(self.node.ctx, ast.Load)


class Uses:
    """All uses of variables of functions in a file.

    Attributes
    ----------
    of_node
        The use that a name of the syntax tree is.
    of_variable
        The uses of a variable in the order of the text.
    scopes
        The scopes of the file.
    """

    def __init__(self, source: SourceFile) -> None:
        self.scopes = Scopes(source.tree)
        self.of_node: dict[ast.AST, Use] = {}
        self.of_variable: dict[Variable, list[Use]] = {}
        for node in self.scopes.scope_of:
            if not isinstance(node, ast.Name | ast.arg):
                continue
            token, variable = source.name_token(node), self.scopes.variable(node)
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
