"""Columns coded as gaps: decoding returns them unchanged, and products have the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.sampled_from([(0, 1), (1, 2), (5, 6), (0, 9), (0, 700), (30, 31), (300, 301)]),
    num_columns=st.sampled_from([1, 2, 1000, 1 << 24, (1 << 31) - 1]),
    is_sorted=st.booleans(),
)
def test_decoding_gives_columns_back(seed, lengths, num_columns, is_sorted):
    rng = np.random.default_rng(seed)
    counts = rng.integers(*lengths, rng.integers(0, 150))
    rows = np.repeat(np.arange(len(counts)), counts)
    # Columns repeat if there are few of them.
    columns = rng.integers(0, num_columns, len(rows)).astype(np.int32)
    if is_sorted:
        columns = columns[np.lexsort((columns, rows))]
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    coded = kernels.code_columns(indptr, columns)
    assert len(coded) == len(columns)
    for isa in kernels.available_isas():
        assert np.array_equal(kernels.decode_columns(coded, indptr, isa=isa), columns)


def test_equal_bits(graph, isa):
    csr = graph.indptr, graph.indices
    coded = kernels.code_columns(*csr)
    factors = {"row_factors": np.arange(1.0, graph.num_rows + 1)}
    for options in ({}, {"values": graph.values}, {"mean": True}, factors):
        for width in (5, 16, 300):
            x, results = graph.dense(width), []
            for columns in ({"indices": graph.indices}, {"indices": None, "coded": coded}):
                out = np.full((graph.num_rows, width), np.nan)
                matrix = SparseMatrix(indptr=graph.indptr, **columns, **options)
                kernels.spmm(matrix, x, out, isa=isa, threads=3)
                results.append(out)
            assert np.array_equal(*results)


def test_a_grid_takes_a_byte_an_entry():
    # A row equals the one before it, shifted by one.
    columns = np.arange(20000, dtype=np.int32)[:, None] + [0, 1, 2, 141, 282]
    indptr = np.arange(0, columns.size + 1, 5)
    coded = kernels.code_columns(indptr, np.ascontiguousarray(columns.reshape(-1), np.int32))
    assert coded.nbytes < columns.size


def test_offsets_of_other_rows_are_refused():
    coded = kernels.code_columns(np.array([0, 2]), np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="indptr must end"):
        kernels.decode_columns(coded, np.array([0, 3]))
    out = np.empty((1, 1))
    both = SparseMatrix(np.array([0, 2]), np.array([1, 2], np.int32), coded=coded)
    with pytest.raises(ValueError, match="columns are indices, or they are coded"):
        kernels.spmm(both, np.ones((3, 1)), out)
    with pytest.raises(ValueError, match="decrease"):
        kernels.code_columns(np.array([0, 2, 1, 2]), np.array([1, 2], np.int32))
    with pytest.raises(TypeError, match="coded"):
        kernels._kernels.spmm(
            np.array([0, 2]),
            None,
            5,
            *[None] * 3,
            np.ones((3, 1)),
            out,
            None,
            False,
            False,
            1,
            "",
            "",
        )
