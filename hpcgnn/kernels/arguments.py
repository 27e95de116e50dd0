"""How kernels run, and what those of a GPU and the samplers ask of an array; others ask in C++."""

import functools
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

WireFormat: TypeAlias = Literal["bfloat16", "float16"]
"""What 16-bit floats are; arrays hold their bits as uint16."""


class Run(TypedDict, total=False):
    """How a kernel of the CPU runs: OpenMP threads, 0 = default, and one of `available_isas`."""

    threads: int
    isa: str


def execution(threads: int = 0, isa: str = "auto") -> tuple[int, str]:
    """Return how a kernel runs, with what `Run` leaves out; other words are a `TypeError`."""
    return threads, isa


DENSE = ("float32", "float64", "uint16")


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, which NumPy puts together each time it is asked."""
    return dtype.name


def require_array(
    name: str, array: Any, ndim: int, dtypes: tuple[str, ...], kind: Any = np.ndarray
) -> None:
    """Raise unless `array` is a C-contiguous array of one of `dtypes`, of NumPy or of CuPy.

    Raises `TypeError` for what is no array, another dtype or byte order, or not C-contiguous, and
    `ValueError` for another number of dimensions.
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
