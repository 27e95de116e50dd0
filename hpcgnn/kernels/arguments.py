"""Execution options of kernels, and array checks of GPU kernels and samplers (others use C++)."""

import functools
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

WireFormat: TypeAlias = Literal["bfloat16", "float16"]
"""The format of 16-bit floats; arrays hold their bits as uint16."""


class Run(TypedDict, total=False):
    """Options of a CPU kernel: OpenMP threads (0 = default), and one of `available_isas`."""

    threads: int
    isa: str


def execution(threads: int = 0, isa: str = "auto") -> tuple[int, str]:
    """Return the options of a kernel with defaults for missing ones; unknown names raise."""
    return threads, isa


DENSE = ("float32", "float64", "uint16")


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, cached because NumPy builds the string at every access."""
    return dtype.name


def require_array(
    name: str, array: Any, ndim: int, dtypes: tuple[str, ...], kind: Any = np.ndarray
) -> None:
    """Raise unless `array` is a C-contiguous NumPy or CuPy array (`kind`) of one of `dtypes`.

    Raises `TypeError` for a wrong type, dtype or byte order or an array that is not C-contiguous,
    and `ValueError` for a wrong number of dimensions.
    """
    library = "NumPy" if kind is np.ndarray else "CuPy"
    if not isinstance(array, kind):
        raise TypeError(f"{name} must be a {library} array, not {type(array).__name__}")
    if dtype_name(array.dtype) not in dtypes or not array.dtype.isnative:
        raise TypeError(f"{name} must be {' or '.join(dtypes)}, not {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not {array.ndim}")
    if not array.flags.c_contiguous:
        raise TypeError(
            f"{name} must be C-contiguous; pass {library.lower()}.ascontiguousarray({name})"
        )
