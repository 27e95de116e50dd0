"""Dot products of some rows with several others each, whose copies would be the largest arrays."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.kernels.operands import SparseMatrix
from hpcgnn.typing import LocalIndices


class _PairProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, rows: Tensor, numbers: LocalIndices) -> Tensor:
        queries, rows = queries.contiguous(), rows.contiguous()
        ctx.numbers = numbers
        ctx.save_for_backward(queries, rows)
        products = queries.new_empty(numbers.shape)
        kernels.row_dots(queries.detach().numpy(), rows.detach().numpy(), numbers, products.numpy())
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (queries, rows), gradient = ctx.saved_tensors, gradients[0].contiguous()
        indptr = np.arange(len(ctx.numbers) + 1, dtype=np.int64) * ctx.numbers.shape[1]
        matrix = SparseMatrix(indptr, ctx.numbers.reshape(-1), gradient.numpy().reshape(-1))
        of_queries = of_rows = None
        if ctx.needs_input_grad[0]:
            of_queries = torch.empty_like(queries)
            kernels.spmm(matrix, rows.detach().numpy(), of_queries.numpy())
        if ctx.needs_input_grad[1]:
            of_rows = memory_of(rows).empty(rows, rows.shape)
            kernels.spmm_transpose(matrix, queries.detach().numpy(), of_rows.numpy())
        return of_queries, of_rows, None


def pair_products(queries: Tensor, rows: Tensor, numbers: LocalIndices) -> Tensor:
    """Return ``queries[e] · rows[numbers[e, k]]`` (E, K), differentiable in both.

    `queries` (E, H) and `rows` (R, H) are float32 or float64 in main memory, `numbers` (E, K)
    int32.
    """
    return _PairProducts.apply(queries, rows, numbers)  # type: ignore[no-untyped-call]
