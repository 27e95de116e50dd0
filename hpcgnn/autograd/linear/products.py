"""Sums of arrays and products, computed at once or only when some of their rows are read."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from hpcgnn.autograd.epilogue import WIDENED, Epilogue, apply_epilogue
from hpcgnn.autograd.numerics.mixed import widened
from hpcgnn.autograd.numerics.plain import arithmetic


class ProductSum:
    """A sum of arrays and products in the memory of its first term, with a bias and an epilogue."""

    def __init__(self, bias: Tensor | None = None, epilogue: Epilogue | None = None) -> None:
        self.total: Tensor | None = None
        self._wide = epilogue is WIDENED
        self._bias, self._epilogue = bias, None if self._wide else epilogue

    def add(self, fresh: Tensor) -> None:
        """Add an array that nobody else holds."""
        if self.total is None:
            self.total = widened(fresh) if self._wide else fresh
        else:
            self.total.add_(fresh)

    def add_product(self, rows: Tensor, matrix: Tensor) -> None:
        """Add ``rows matrix``."""
        if self.total is not None:
            arithmetic().add_product(self.total, rows, matrix)
            return
        early = None
        if self._epilogue is None:
            # In a product the bias costs nothing; an epilogue also adds it without another pass.
            early, self._bias = self._bias, None
        # The dtype of matrices is that of rows, but those of gradients may be wider.
        dtype = torch.float32 if self._wide and rows.dtype == torch.bfloat16 else matrix.dtype
        self.total = arithmetic().affine(rows, matrix, early, dtype=dtype)

    def with_epilogue(self) -> Tensor:
        """Return the whole sum, after its bias and its epilogue."""
        assert self.total is not None
        apply_epilogue(self.total, self._bias, self._epilogue)
        return self.total


class LateSum(ProductSum):
    """A sum of products that are computed when the total is read, or when an array is added."""

    @override
    def add(self, fresh: Tensor) -> None:
        if isinstance(self.total, RowProducts):
            self.total = self.total[:]
        super().add(fresh)

    @override
    def add_product(self, rows: Tensor, matrix: Tensor) -> None:
        if self.total is None:
            self.total = RowProducts.of(rows, matrix)
        if isinstance(self.total, RowProducts):
            self.total.factors.append((rows, matrix))
        else:
            super().add_product(rows, matrix)


class RowProducts(Tensor):
    """``Σ_i R_i M_i`` as a tensor (rows, width), for narrow R_i; rows are computed when read.

    A slice computes only its own rows. Every other function of torch computes all rows.
    """

    # Results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    factors: list[tuple[Tensor, Tensor]]
    """R_i (rows, any) and M_i (any, width)."""

    @classmethod
    def of(cls, rows: Tensor, matrix: Tensor) -> "RowProducts":
        """Return a sum without terms, of the shape and the dtype of ``rows matrix``."""
        shape = len(rows), matrix.shape[1]
        empty = Tensor._make_wrapper_subclass(cls, shape, dtype=matrix.dtype, device=rows.device)
        empty.factors = []
        return empty

    @override
    def __getitem__(self, rows: slice) -> Tensor:  # type: ignore[override]
        result = ProductSum()
        for left, matrix in self.factors:
            result.add_product(left[rows], matrix)
        assert result.total is not None
        return result.total

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return a torch function of all rows."""
        args, kwargs = tree_map_only(cls, lambda products: products[:], (args, kwargs or {}))
        return func(*args, **kwargs)
