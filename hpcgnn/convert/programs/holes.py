"""Choose the holes in a file and the candidate variables of each."""

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcgnn.convert.programs.options import ProgramOptions, draw
from hpcgnn.convert.programs.sources import SourceFile
from hpcgnn.convert.programs.variables import FUNCTIONS, Use, Uses, Variable


@dataclass(frozen=True)
class Hole:
    """A use to hide, its outermost function and top-level statement, and candidates.

    Candidates are in random order; `num_uses` counts other uses of each in the file, `distances`
    the tokens to the nearest of them. `flip` is a random bit.
    """

    use: Use
    function: ast.AST
    unit: ast.AST
    candidates: tuple[Variable, ...]
    num_uses: tuple[int, ...]
    distances: tuple[int, ...]
    flip: bool

    @property
    def label(self) -> int:
        """The index of the correct candidate."""
        return self.candidates.index(self.use.variable)


def find_holes(
    source: SourceFile, uses: Uses, name: str, options: ProgramOptions
) -> Iterator[Hole]:
    """Yield the holes of the file `name`, with functions and uses in random order."""
    functions = list(_outermost_functions(source.tree, source.tree))
    functions.sort(key=lambda pair: draw(options.seed, name, source.spans[pair[0]][0]))
    with_holes = 0
    for function, unit in functions:
        reads = [use for use in uses.inside(function) if use.is_read]
        reads.sort(key=lambda use: draw(options.seed, name, "hole", use.token))
        holes = (candidates_at(uses, use, function, unit, name, options) for use in reads)
        chosen = list(itertools.islice(filter(None, holes), options.holes_per_function or None))
        yield from chosen
        with_holes += bool(chosen)
        if with_holes and with_holes == options.functions_per_file:
            break


def candidates_at(
    uses: Uses, use: Use, function: ast.AST, unit: ast.AST, name: str, options: ProgramOptions
) -> Hole | None:
    """Return the hole at `use`; None with under two candidates or without the correct one."""
    near: list[tuple[int, Variable, int]] = []
    for variable in uses.scope_of[use.node].visible.values():
        uses_elsewhere = [entry for entry in uses.of_variable.get(variable, ()) if entry is not use]
        if _is_declared(variable, uses_elsewhere, use):
            distance = min(abs(entry.token - use.token) for entry in uses_elsewhere)
            near.append((distance, variable, len(uses_elsewhere)))
    near.sort(key=lambda entry: (entry[0], entry[1].name))
    near = near[: options.max_candidates]
    near.sort(key=lambda entry: draw(options.seed, name, use.token, entry[1].name))
    candidates = tuple(variable for _, variable, _ in near)
    if len(near) < 2 or use.variable not in candidates:
        return None
    counts, distances = tuple(entry[2] for entry in near), tuple(entry[0] for entry in near)
    flip = bool(draw(options.seed, name, use.token, "flip") & 1)
    return Hole(use, function, unit, candidates, counts, distances, flip)


def _is_declared(variable: Variable, uses_elsewhere: Sequence[Use], hole: Use) -> bool:
    """Tell whether a variable is bound before the hole, judged by the order of the text."""
    if isinstance(variable.scope.node, FUNCTIONS):
        return any(not use.is_read and use.token < hole.token for use in uses_elsewhere)
    return bool(uses_elsewhere)


def _outermost_functions(node: ast.AST, unit: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the functions that are in no other, each with its top-level statement of the module."""
    for child in ast.iter_child_nodes(node):
        around = child if isinstance(node, ast.Module) else unit
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, around
        elif not isinstance(child, ast.expr):
            yield from _outermost_functions(child, around)
