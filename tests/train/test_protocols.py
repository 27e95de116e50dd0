"""A class of a protocol defines all of its methods: a stub of the protocol would return None."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from hpcgnn.train.objectives.objective import About, Objective
from hpcgnn.train.sources.source import BatchExamples, Examples, Source, SubgraphExamples
from hpcgnn.train.tasks import TASKS

PROTOCOLS = (Objective, Source, About, Examples, BatchExamples, SubgraphExamples)


def classes(protocol: Any) -> Iterator[type]:
    """Yield the classes derived from a protocol in hpcgnn, except for protocols themselves."""
    for kind in protocol.__subclasses__():
        if not kind.__dict__.get("_is_protocol", False) and kind.__module__.startswith("hpcgnn."):
            yield kind
        yield from classes(kind)


def is_stub(value: object) -> bool:
    """Return whether the body of a function, method or property is a docstring and dots."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        return False
    try:
        source = inspect.getsource(function)
    except OSError:
        # A dataclass has generated it.
        return False
    (made,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(made, ast.FunctionDef)
    # A docstring and dots are constants.
    values = [line.value for line in made.body if isinstance(line, ast.Expr)]
    return len(values) == len(made.body) and all(isinstance(v, ast.Constant) for v in values)


def stubs(kind: type) -> list[str]:
    """Return the members of a class that are stubs."""
    return [name for name in dir(kind) if is_stub(inspect.getattr_static(kind, name))]


ALL = sorted({kind for protocol in PROTOCOLS for kind in classes(protocol)}, key=str)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_it_defines_every_method(kind: type) -> None:
    assert stubs(kind) == []


def test_all_of_the_registry_are_looked_at() -> None:
    for pair in TASKS.values():
        assert {pair.objective, pair.source, pair.alternative or pair.source} <= set(ALL)


def test_a_missing_method_is_seen() -> None:
    class Lacking(Source):
        lacks, needs_rows = {}, False

        def details(self) -> dict[str, Any]:
            return {}

    assert "steps" in stubs(Lacking)
    assert "details" not in stubs(Lacking)
