import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from benchmarks.gpu_peers import CusparseMatrix
from tests.kernels.conftest import ugly_graph


def spmm(a, b, c, alpha=1, beta=0, transb=False):
    """Take what cupyx.cusparse.spmm takes, and ask for the same layouts."""
    assert b.flags.f_contiguous
    assert c.flags.f_contiguous
    c[...] = alpha * (a @ (b.T if transb else b)) + beta * c


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_layouts_and_arguments(monkeypatch, accumulate, weighted):
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", scipy.sparse)
    monkeypatch.setitem(sys.modules, "cupyx.cusparse", SimpleNamespace(spmm=spmm))
    graph = ugly_graph("holes")
    shape = graph.num_rows, graph.num_columns
    values = graph.values if weighted else None
    matrix = CusparseMatrix(graph.indptr, graph.indices, values, shape, "float64")
    out = np.ones((graph.num_rows, 7), order="F")
    matrix.spmm(graph.dense(7), out, accumulate=accumulate)
    wanted = graph.product(7, weighted=weighted) + accumulate
    np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)
