"""Find Python files, assign them to splits, and parse them into trees and tokens."""

import ast
import bisect
import io
import token
import tokenize
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.convert.programs.options import ProgramOptions, draw
from hpcgnn.errors import InputError
from hpcgnn.storage import InstanceSplit

READ_ERRORS = (OSError, SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)
"""What Python raises for a file that it cannot read, decode or parse, or that nests too deeply."""

_LAYOUT = frozenset(
    {
        token.ENCODING, token.COMMENT, token.NL, token.NEWLINE, token.INDENT, token.DEDENT,
        token.ENDMARKER, token.TYPE_COMMENT,
    }
)  # fmt: skip
Span = tuple[int, int]
_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class ProgramFile:
    """A file to read; `name` is the name of the input folder with the path inside it."""

    path: Path
    name: str
    split: InstanceSplit


def find_files(folders: Sequence[Path], options: ProgramOptions) -> list[ProgramFile]:
    """Return the Python files below `folders`, in random order; raises `InputError`.

    A package is a folder or module at the top of one of `folders`. Packages are kept unseen, in
    random order, while their files fit into `unseen_share`; the files of the others are split one
    by one. Installed packages (site-packages) below a folder are skipped; pass them as folders.
    """
    paths: list[tuple[Path, str, str]] = []
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        if not folder.is_dir():
            raise InputError(f"{folder}: is no folder; give folders of Python sources")
        if names.count(name) > 1:
            raise InputError(f"{folder}: another folder is also called {name!r}; rename one")
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder)
            skipped = any(part in _SKIPPED or part.startswith(".") for part in inner.parts[:-1])
            if path.is_file() and not skipped:
                package = inner.parts[0].removesuffix(".py")
                paths.append((path, f"{name}/{inner.as_posix()}", f"{name}/{package}"))
    if not paths:
        raise InputError(f"{folders[0]}: holds no Python files; give folders of Python sources")
    unseen = _unseen_packages([package for _, _, package in paths], options)
    files = [
        ProgramFile(path, name, _split(name, package in unseen, options))
        for path, name, package in paths
    ]
    return sorted(files, key=lambda file: draw(options.seed, "order", file.name))


def _unseen_packages(packages: Sequence[str], options: ProgramOptions) -> set[str]:
    sizes = Counter(packages)
    room = options.unseen_share * len(packages)
    unseen = set()
    for package in sorted(sizes, key=lambda name: draw(options.seed, "package", name)):
        if sizes[package] <= room:
            unseen.add(package)
            room -= sizes[package]
    return unseen


def _split(name: str, unseen: bool, options: ProgramOptions) -> InstanceSplit:
    if unseen:
        return InstanceSplit.UNSEEN
    share = draw(options.seed, "split", name) / 2**64
    if share < options.valid_share:
        return InstanceSplit.VALID
    if share < options.valid_share + options.test_share:
        return InstanceSplit.TEST
    return InstanceSplit.TRAIN


class SourceFile:
    """A parsed file; raises `SyntaxError`, `ValueError` or `tokenize.TokenError` for invalid code.

    `tree` is its module; `tokens` are the kind (of `token`) and text of each token except layout;
    `spans` maps each node of the tree with a position to its first token and the one after its
    last.
    """

    def __init__(self, text: str) -> None:
        with warnings.catch_warnings():
            # Warnings about the code in the file, such as invalid escapes, do not concern the user.
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        self._lines = text.split("\n")
        self.tokens: list[tuple[int, str]] = []
        self._starts: list[tuple[int, int]] = []
        for token_info in tokenize.generate_tokens(io.StringIO(text).readline):
            if token_info.type not in _LAYOUT:
                self.tokens.append((token_info.type, token_info.string))
                self._starts.append(token_info.start)
        self._index = {start: index for index, start in enumerate(self._starts)}
        self.spans: dict[ast.AST, Span] = {}
        self._measure(self.tree)

    def name_token(self, node: ast.Name | ast.arg) -> int | None:
        """Return the token of a name; None in f-strings, whose parts have unreliable positions."""
        index = self._index.get(self._position(node.lineno, node.col_offset))
        text = node.id if isinstance(node, ast.Name) else node.arg
        return index if index is not None and self.tokens[index][1] == text else None

    def _position(self, line: int, offset: int) -> tuple[int, int]:
        """Convert a byte offset of the tree to the characters that tokens count."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return line, offset if text.isascii() else len(text.encode()[:offset].decode("utf-8"))

    def _measure(self, node: Any) -> Span | None:
        # Parts of f-strings have unreliable positions; use the tokens of the whole string.
        inner = () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node)
        spans = [span for child in inner if (span := self._measure(child))]
        if hasattr(node, "lineno"):
            start = self._position(node.lineno, node.col_offset)
            stop = self._position(node.end_lineno, node.end_col_offset)
            first = bisect.bisect_left(self._starts, start)
            spans.append((first, bisect.bisect_left(self._starts, stop)))
        if isinstance(node, ast.Module):
            spans.append((0, len(self.tokens)))
        if not spans:
            return None
        span = min(low for low, _ in spans), max(high for _, high in spans)
        self.spans[node] = span
        return span
