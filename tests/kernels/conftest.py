import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from hpcgnn import kernels


@dataclass(frozen=True)
class Graph:
    """Sorted rows with float64 values, and their products with fixed random operands."""

    indptr: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    num_columns: int
    cache: dict[Any, Any] = field(default_factory=dict)
    oracles: dict[Any, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.indptr.size - 1

    def to_scipy(self, dtype: str = "float64", weighted: bool = True) -> Any:
        values = self.values.astype(dtype) if weighted else np.ones_like(self.values)
        csr = (values.astype(np.float64), self.indices, self.indptr)
        return scipy.sparse.csr_matrix(csr, (self.num_rows, self.num_columns))

    def dense(self, width: int, dtype: str = "float64") -> np.ndarray[Any, Any]:
        """Return an operand, read-only and the same at each call."""
        if (width, dtype) not in self.cache:
            x = np.random.default_rng(23).standard_normal((self.num_columns, width)).astype(dtype)
            x.flags.writeable = False
            self.cache[width, dtype] = x
        return self.cache[width, dtype]

    def product(
        self, width: int, dtype: str = "float64", weighted: bool = True
    ) -> np.ndarray[Any, Any]:
        """Return the float64 product with `dense(width, dtype)`, values rounded to `dtype` too."""
        key = width, dtype, weighted
        if key not in self.cache:
            x = self.dense(width, dtype).astype(np.float64)
            self.cache[key] = self.to_scipy(dtype, weighted) @ x
        return self.cache[key].copy()

    def oracle(self, of: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returned first for `key`, which all types and instruction sets share.

        Values whose keys are `of` something else are forgotten, since they are large.
        """
        if self.oracles.get("of") != of:
            self.oracles.clear()
            self.oracles["of"] = of
        if key not in self.oracles:
            self.oracles[key] = make()
        return self.oracles[key]


def random_graph(lengths: Any, num_columns: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = [np.sort(rng.choice(num_columns, n, replace=False)) for n in lengths]
    indices = np.concatenate([np.empty(0), *rows]).astype(np.int32)
    return Graph(indptr, indices, rng.standard_normal(indices.size), num_columns)


EMULATED_ROWS = 200
"""Rows of a power law for the emulator: 5 of them have 500 edges, half have one or two."""


@functools.cache
def ugly_graph(name: str, rows: int = 700) -> Graph:
    """Return a graph; a power-law graph has `rows` rows."""
    rng = np.random.default_rng(271)
    if name == "no rows":
        return random_graph(np.zeros(0, int), 5, 3)
    if name == "no columns":
        return random_graph(np.zeros(4, int), 0, 3)
    if name == "all empty":
        return random_graph(np.zeros(17, int), 3, 5)
    if name == "one":
        return random_graph(np.ones(1, int), 1, 7)
    if name == "holes":
        return random_graph(rng.integers(0, 2, 101) * rng.integers(0, 40, 101), 53, 11)
    if name == "power law":
        return random_graph(np.minimum(rng.zipf(1.6, rows), 500), 611, 13)
    hubs = rng.integers(0, 9, 300)
    hubs[[0, 150, 299]] = [9000, 16500, 8193]
    return random_graph(hubs, 16501, 17)


NAMES = ["no rows", "no columns", "all empty", "one", "holes", "power law", "hubs"]


@pytest.fixture(params=NAMES)
def graph(request: pytest.FixtureRequest) -> Graph:
    return ugly_graph(request.param)


@pytest.fixture(params=kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
