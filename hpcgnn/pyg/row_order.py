"""Torch functions whose result has a row for each node or edge that depends on other rows.

The shape of their result does not tell that they join rows, so they are listed here. A test finds
such functions among all those of torch.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hpcgnn.pyg.edges import words
from hpcgnn.pyg.row_axis import RowCount, are_numbers, axis_of

_MATRIX = (-2, -1)

_FFT = ("fft ifft rfft irfft hfft ihfft", "fft2 ifft2 rfft2 irfft2 hfft2 ihfft2")

_ALONG: Mapping[str, tuple[int, Any]] = {
    **dict.fromkeys(
        words("cummin logcumsumexp special_softmax special_log_softmax cumsum_ cumprod_"), (1, -1)
    ),
    **dict.fromkeys(words("unbind __iter__ __reversed__ flipud msort vsplit"), (1, 0)),
    **dict.fromkeys(words("split chunk tensor_split split_with_sizes unsafe_split"), (2, 0)),
    **dict.fromkeys(words("unsafe_chunk unsafe_split_with_sizes"), (2, 0)),
    **dict.fromkeys(words("fft_fftshift fft_ifftshift flip"), (1, None)),
    **dict.fromkeys((f"fft_{name}" for name in _FFT[0].split()), (2, -1)),
    **dict.fromkeys((f"fft_{name}" for name in _FFT[1].split()), (2, _MATRIX)),
    **dict.fromkeys((f"fft_{name}n" for name in _FFT[0].split()), (2, None)),
    **dict.fromkeys(words("gradient masked_scatter masked_scatter_ searchsorted"), (9, None)),
    "as_strided": (9, None),
    **dict.fromkeys(words("fill_diagonal_"), (9, _MATRIX)),
    "fliplr": (9, 1),
    "hsplit": (9, 1),
    "roll": (2, None),
    "rot90": (2, (0, 1)),
}
"""Function -> place of the argument of the axes that it works along, and these axes without it."""

_OF_MATRICES = words(
    "tril triu tril_ triu_ qr svd lu geqrf pinverse inverse cholesky matrix_exp matrix_power "
    "svd_lowrank pca_lowrank lobpcg triangular_solve cholesky_solve ormqr"
)

_OF_VECTORS = words("linalg_norm linalg_vector_norm linalg_vecdot linalg_cross linalg_multi_dot")

_WINDOWS = re.compile(r"(?:conv|pool)[a-z_]*([123])d")

_RECURRENT = words("lstm gru rnn_tanh rnn_relu")

DRAWS = words(
    "normal normal_ uniform_ exponential_ random_ cauchy_ log_normal_ geometric_ poisson binomial "
    "dropout dropout_ kaiming_uniform_"
)
"""Functions that draw numbers. Without rows they are initial values of parameters."""


BY_INDEX = words(
    "index_select gather index_add index_copy index_fill index_reduce scatter scatter_add "
    "scatter_reduce"
)


def by_position(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function picks rows by position, which are other nodes on each rank."""
    axis = axis_of(args[0]) if args else None
    if axis is None:
        return False
    x: Tensor = args[0]
    if name in ("__getitem__", "__setitem__"):
        key = _key_at(axis, x, args[1] if isinstance(args[1], tuple) else (args[1],))
        if isinstance(key, slice):
            # A number of rows divides rows that were appended to each other, a tensor rows that are
            # sorted by type. Layers compare types with the next ones to see whether they are.
            counts = any(isinstance(bound, (RowCount, Tensor)) for bound in (key.start, key.stop))
            whole = key.indices(x.shape[axis]) == (0, x.shape[axis], 1)
            return x.is_floating_point() and not (counts or whole)
        return key is not None and not are_numbers(key) and not _is_mask(key)
    if name.removesuffix("_") not in BY_INDEX:
        return False
    dim, index = (kwargs.get(key, args[i] if len(args) > i else None) for i, key in _DIM_INDEX)
    return dim % x.dim() == axis and not are_numbers(index)


_DIM_INDEX = ((1, "dim"), (2, "index"))


def _key_at(axis: int, x: Tensor, keys: tuple[Any, ...]) -> Any:
    """Return the key that picks along an axis, None if there is none."""
    widths = [0 if key is None else key.dim() if _is_mask(key) else 1 for key in keys]
    for key, width in zip(keys, widths, strict=True):
        width = x.dim() - sum(widths) + 1 if key is Ellipsis else width
        if axis < width:
            return None if key is Ellipsis else key
        axis -= width
    return None


def _is_mask(key: Any) -> bool:
    return isinstance(key, Tensor) and key.dtype == torch.bool


def mixes(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function joins rows in a result that has as many of them."""
    if name in ("cat", "concat", "concatenate"):
        return _appends(*args, **kwargs)
    if name == "bucketize":
        return axis_of(args[1]) is not None
    axis = axis_of(args[0]) if args else None
    if axis is None:
        return False
    x: Tensor = args[0]
    dim = kwargs.get("dim", kwargs.get("axis"))
    if name in ("renorm", "renorm_"):
        return axis != (args[2] if dim is None else dim) % x.dim()
    if name in _RECURRENT:
        # A packed sequence has a tensor where the others have weights.
        batch_first, is_packed = args[-1], isinstance(args[2], (Tensor, tuple))
        return is_packed or axis != (0 if batch_first else 1)
    return axis in {along % x.dim() for along in _along(name, x, args, kwargs)}


def _along(name: str, x: Tensor, args: Any, kwargs: Mapping[str, Any]) -> Iterable[int]:
    """Return the axes that a function works along."""
    windows = _WINDOWS.search(name)
    if windows is not None:
        sizes = args[1].shape[2:] if name.startswith("conv") else [0]
        return range(-int(windows[1]), 0) if any(size != 1 for size in sizes) else ()
    if name in ("interpolate", "upsample"):
        return range(2, x.dim())
    if name in _OF_MATRICES or (name.startswith("linalg_") and name not in _OF_VECTORS):
        return _MATRIX if x.dim() > 1 else ()
    if name not in _ALONG:
        return ()
    place, axes = _ALONG[name]
    given: Any = args[place] if len(args) > place else axes
    if name == "flip" and len(args) > 2:
        given = args[1:]
    for key in ("dim", "dims", "axis"):
        given = kwargs.get(key, given)
    if given is None:
        return range(x.dim())
    return (given,) if isinstance(given, int) else given


def _appends(tensors: Any, dim: int = 0, **_: Any) -> bool:
    """Return whether rows that every rank has are appended to rows of ranks."""
    marked = [axis_of(each) == dim % max(each.dim(), 1) for each in tensors]
    return any(marked) and any(
        not own and each.numel() for own, each in zip(marked, tensors, strict=True)
    )
