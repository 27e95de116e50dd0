from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from hpcgnn import kernels

CSR = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def random_csr(lengths: np.ndarray[Any, Any], num_columns: int, seed: int) -> CSR:
    """Return sorted rows of the given lengths, and float64 values."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = [np.sort(rng.choice(num_columns, n, replace=False)) for n in lengths]
    indices = np.concatenate([np.empty(0), *rows]).astype(np.int32)
    return indptr, indices, rng.standard_normal(indices.size)


def ugly_graphs() -> dict[str, tuple[CSR, int]]:
    rng = np.random.default_rng(271)
    hubs = rng.integers(0, 9, 300)
    hubs[[0, 150, 299]] = [9000, 20000, 8193]
    power = np.minimum(rng.zipf(1.6, 700), 500)
    return {
        "no rows": (random_csr(np.zeros(0, int), 5, 3), 5),
        "no columns": (random_csr(np.zeros(4, int), 0, 3), 0),
        "all empty": (random_csr(np.zeros(17, int), 3, 5), 3),
        "one": (random_csr(np.ones(1, int), 1, 7), 1),
        "holes": (random_csr(rng.integers(0, 2, 101) * rng.integers(0, 40, 101), 53, 11), 53),
        "power law": (random_csr(power, 611, 13), 611),
        "hubs": (random_csr(hubs, 20011, 17), 20011),
    }


@pytest.fixture(scope="session", params=list(ugly_graphs()))
def graph(request: pytest.FixtureRequest) -> tuple[CSR, int]:
    return ugly_graphs()[request.param]


@pytest.fixture(params=kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def oracle() -> Callable[..., np.ndarray[Any, Any]]:
    def product(csr: CSR, num_columns: int, x: np.ndarray[Any, Any], *, weighted: bool = True):
        indptr, indices, values = csr
        data = values if weighted else np.ones_like(values)
        shape = (indptr.size - 1, num_columns)
        return scipy.sparse.csr_matrix((data, indices, indptr), shape=shape) @ x.astype(np.float64)

    return product
