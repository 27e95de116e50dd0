"""A Python file as a syntax tree and tokens that know each other's places."""

import ast
import bisect
import io
import token
import tokenize
import warnings
from pathlib import Path
from typing import Any

__all__ = ["READ_ERRORS", "SourceFile", "read_source_file"]

READ_ERRORS = (OSError, SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)
"""What Python raises for a file that it cannot read, decode, parse or nest deeply enough."""

_LAYOUT = frozenset(
    {
        token.ENCODING, token.COMMENT, token.NL, token.NEWLINE, token.INDENT, token.DEDENT,
        token.ENDMARKER, token.TYPE_COMMENT,
    }
)  # fmt: skip

Span = tuple[int, int]


class SourceFile:
    """A parsed file.

    Parameters
    ----------
    text
        The source; `SyntaxError`, `ValueError` or `tokenize.TokenError` where it is no Python.

    Attributes
    ----------
    tree
        Its module.
    tokens
        Kind (of `token`) and text of each token that is not layout.
    spans
        For each node of the tree that has a place, its first token and the one after its last.
    """

    def __init__(self, text: str) -> None:
        with warnings.catch_warnings():
            # Odd escapes in somebody else's file are not our news.
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        self._lines = text.split("\n")
        self.tokens: list[tuple[int, str]] = []
        self._starts: list[tuple[int, int]] = []
        for each in tokenize.generate_tokens(io.StringIO(text).readline):
            if each.type not in _LAYOUT:
                self.tokens.append((each.type, each.string))
                self._starts.append(each.start)
        self._index = {start: index for index, start in enumerate(self._starts)}
        self.spans: dict[ast.AST, Span] = {}
        self._measure(self.tree)

    def name_token(self, node: ast.Name | ast.arg) -> int | None:
        """Return the token of a name; None inside f-strings, whose parts have no sure place."""
        index = self._index.get(self._place(node.lineno, node.col_offset))
        text = node.id if isinstance(node, ast.Name) else node.arg
        return index if index is not None and self.tokens[index][1] == text else None

    def _place(self, line: int, offset: int) -> tuple[int, int]:
        """Return the place of a byte offset of the tree, in characters as tokens count."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return line, offset if text.isascii() else len(text.encode()[:offset].decode("utf-8"))

    def _measure(self, node: Any) -> Span | None:
        # Parts of f-strings have no sure places; their tokens are those of the whole string.
        inner = () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node)
        spans = [span for child in inner if (span := self._measure(child))]
        if hasattr(node, "lineno"):
            start = self._place(node.lineno, node.col_offset)
            stop = self._place(node.end_lineno, node.end_col_offset)
            first = bisect.bisect_left(self._starts, start)
            spans.append((first, bisect.bisect_left(self._starts, stop)))
        if isinstance(node, ast.Module):
            spans.append((0, len(self.tokens)))
        if not spans:
            return None
        span = min(low for low, _ in spans), max(high for _, high in spans)
        self.spans[node] = span
        return span


def read_source_file(path: Path) -> SourceFile:
    """Read and parse `path`; raises one of `READ_ERRORS`."""
    with tokenize.open(path) as stream:
        return SourceFile(stream.read())
