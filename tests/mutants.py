"""Random changes of one token each: does a test notice them?

    python -m tests.mutants --number 200 --seed 7 [--contexts .coverage] [hpcgnn/nn ...]

A comparison, a sign or a small integer of `hpcgnn/`, outside of GPU code, is changed in a copy of
the tree. The tests of the corresponding folder run on one rank, and if none fails, on 4. With a
coverage file whose contexts are tests (docs/contributing.md), some tests that pass the changed line
come first. A test that fails or runs out of time has caught the change; it must pass without it.
Prints a line for each change, and at the end the survivors: a test is missing, or the two programs
are equivalent.
"""

import argparse
import ast
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TextIO

import pytest
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+"}
NOT_HERE = ("hpcgnn/kernels/cuda/", "hpcgnn/spmm/gpu/")
NO_TESTS = 5
LATEST = 10
"""Wall seconds for each CPU second: a hanging test uses no CPU time."""


@dataclass(frozen=True)
class Mutant:
    """A token of a file, with its line from 1 and column from 0, and its replacement."""

    file: str
    line: int
    column: int
    token: str
    change: str

    def __str__(self) -> str:
        text = (ROOT / self.file).read_text().splitlines()[self.line - 1].strip()
        return f"{self.file}:{self.line}:{self.column}  {self.token} -> {self.change}  | {text}"

    def apply(self, tree: Path) -> None:
        """Change the file below `tree`."""
        lines = (ROOT / self.file).read_text().splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        end = self.column + len(self.token)
        changed = line[: self.column] + self.change.encode() + line[end:]
        lines[self.line - 1] = changed.decode()
        (tree / self.file).write_text("".join(lines))


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield the possible changes of a file."""
    path = ROOT / file
    with path.open("rb") as source:
        # Columns of `ast` count bytes.
        operators = [
            (token.start[0], len(token.line[: token.start[1]].encode()), token.string)
            for token in tokenize.tokenize(source.readline)
            if token.type == tokenize.OP and token.string in SWAPS
        ]
    for node in behaviour(ast.parse(path.read_text())):
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Compare):
            pairs = list(zip([node.left, *node.comparators], node.comparators, strict=False))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            pairs = [(node.left, node.right)]
        for left, right in pairs:
            start, stop = (left.end_lineno, left.end_col_offset), (right.lineno, right.col_offset)
            for line, column, token in operators:
                if start <= (line, column) < stop:
                    yield Mutant(file, line, column, token, SWAPS[token])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield Mutant(file, node.lineno, node.col_offset, "-", "+")
        if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 2:
            token = str(node.value)
            yield Mutant(file, node.lineno, node.col_offset, token, str(node.value + 1))


def behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """Yield computations below a node: no types, no decorators, no texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield child
                yield from behaviour(child)


def mirrored(file: str) -> list[str]:
    """Return the corresponding tests: of the file, else of the nearest folder above."""
    inside = Path(file).relative_to("hpcgnn").with_suffix("")
    tests = ROOT / "tests"
    own = [tests / inside.parent / f"test_{inside.name}.py"]
    own += [tests / f"test_{inside.parts[0].removesuffix('_command')}.py"]
    folders = [tests / each for each in inside.parents if each != Path()]
    there = [each for each in (*own[:1], *folders, *own[1:]) if each.exists()]
    return [str(each.relative_to(ROOT)) for each in there[:2]]


class Contexts:
    """The tests that pass each line, from a coverage file whose contexts are tests."""

    def __init__(self, path: Path | None, most: int) -> None:
        self._most = most
        self._data: CoverageData | None = None
        if path is not None:
            self._data = CoverageData(str(path))
            self._data.read()

    def of(self, mutant: Mutant, draw: random.Random) -> list[str]:
        """Return some tests of a line by pytest's names, the corresponding ones first."""
        if self._data is None:
            return []
        found = self._data.contexts_by_lineno(str(ROOT / mutant.file)).get(mutant.line, [])
        modules = [each.rpartition(".") for each in sorted(found) if each]
        names = [f"{module.replace('.', '/')}.py::{test}" for module, _, test in modules]
        near = tuple(mirrored(mutant.file))
        draw.shuffle(names)
        names.sort(key=lambda name: not name.startswith(near))
        return [name for name in names if (ROOT / name.split("::")[0]).exists()][: self._most]


class Tree:
    """A copy of the tree, native modules included, in which tests run."""

    def __init__(self, folder: Path, limit_s: int) -> None:
        self.folder, self._limit_s = folder, limit_s
        self._passing: dict[str, bool] = {}
        self._unfit: set[str] = set()
        words = ["git", "ls-files", "-co", "--exclude-standard"]
        tracked = subprocess.check_output(words, cwd=ROOT, text=True).splitlines()
        native = [str(each.relative_to(ROOT)) for each in ROOT.glob("hpcgnn/**/*.so")]
        for name in (*tracked, *native):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def catches(self, mutant: Mutant, tests: Sequence[str], ranks: int) -> str | None:
        """Return the failing test, or None; a test that fails without a change is ignored."""
        while True:
            mutant.apply(self.folder)
            try:
                status, output = self._run(tests, ranks)
            finally:
                shutil.copy2(ROOT / mutant.file, self.folder / mutant.file)
            if status in (0, NO_TESTS):
                return None
            failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[| |$)", output, re.MULTILINE)
            if failed is None:
                return "time" if status in (-1, -signal.SIGXCPU) else "a crash"
            name = failed[1]
            if name not in self._passing:
                self._passing[name] = self._run([name], ranks)[0] in (0, NO_TESTS)
            if self._passing[name]:
                return name
            # It cannot run on this machine; the others continue without it.
            self._unfit.add(name)

    def _run(self, tests: Sequence[str], ranks: int) -> tuple[int, str]:
        words = ["-x", "-q", "--color=no", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        words += [f"--deselect={name}" for name in self._unfit]
        output = self.folder.with_suffix(".txt")
        with output.open("w") as file:
            started = self._fork(words, file) if ranks == 1 else self._launch(words, ranks, file)
            deadline = time.monotonic() + LATEST * self._limit_s
            while (ended := os.waitpid(started, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    os.killpg(started, signal.SIGKILL)
                    os.waitpid(started, 0)
                    return -1, ""
                time.sleep(0.05)
        return os.waitstatus_to_exitcode(ended[1]), output.read_text(errors="replace")

    def _fork(self, words: list[str], file: TextIO) -> int:
        """Run pytest in a child of this process, which has done the slow imports."""
        child = os.fork()
        if child:
            return child
        os.setsid()
        self._keep_to_limit()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.chdir(self.folder)
        os.environ |= {"PYTHONPATH": str(self.folder), "HPCGNN_VENV": sys.prefix}
        sys.path[:] = [str(self.folder), *(each for each in sys.path if Path(each) != ROOT)]
        for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
            del sys.modules[name]
        status = 3
        try:
            status = int(pytest.main(words))
        finally:
            # This child must not clean up anything of the parent.
            os._exit(status)

    def _launch(self, words: list[str], ranks: int, file: TextIO) -> int:
        script = '. jobs/env.sh && mpi_exec "$@"'
        return subprocess.Popen(
            ["bash", "-c", script, "bash", str(ranks), sys.executable, "-m", "pytest", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "HPCGNN_VENV": sys.prefix},
            start_new_session=True,
            preexec_fn=self._keep_to_limit,
        ).pid

    def _keep_to_limit(self) -> None:
        # CPU seconds: a machine with other work is slow, which is not the fault of a change.
        resource.setrlimit(resource.RLIMIT_CPU, (self._limit_s, self._limit_s))


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["hpcgnn"], help="default: hpcgnn")
    parser.add_argument("--number", type=int, default=200, help="changes to try (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (default: 1)")
    parser.add_argument("--ranks", type=int, default=4, help="behind one (default: 4; 1: one only)")
    parser.add_argument("--limit", type=int, default=120, metavar="S", help="CPU seconds of a run")
    parser.add_argument("--first", type=int, default=40, help="tests of the line before folders")
    parser.add_argument("--contexts", type=Path, metavar="FILE", help="coverage with tests")
    options = parser.parse_args()
    words = ["git", "ls-files", *(f"{path.rstrip('/')}*.py" for path in options.paths)]
    files = subprocess.check_output(words, cwd=ROOT, text=True).splitlines()
    every = [each for file in files if not file.startswith(NOT_HERE) for each in mutants_of(file)]
    for name in ("torch", "h5py", "scipy.sparse", "pyarrow"):
        import_module(name)
    draw, contexts = random.Random(options.seed), Contexts(options.contexts, options.first)
    chosen = draw.sample(every, min(options.number, len(every)))
    left = [(mutant, contexts.of(mutant, draw), mirrored(mutant.file)) for mutant in chosen]
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), options.limit)
        # The cheapest tests come first, and leave few changes for the others.
        for ranks, (kind, what) in itertools.product(
            sorted({1, options.ranks}), ((1, "tests of the line"), (2, "the folder"))
        ):
            left, tried = [], left
            for number, each in enumerate(tried, 1):
                mutant, tests = each[0], each[kind]
                by = tree.catches(mutant, tests, ranks) if tests else None
                left += [] if by else [each]
                place = f"{number - len(left)} of {number} by {what} on {ranks}"
                print(f"{place}: {mutant}  => {by or 'SURVIVED'}", flush=True)
    survivors = [mutant for mutant, _, _ in left]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught, of {len(every)} possible")
    for mutant in survivors:
        print(f"survived: {mutant}")


if __name__ == "__main__":
    main()
