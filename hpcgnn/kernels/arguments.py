"""Checks of dtype, dimensions and layout, which the bindings would report less clearly."""

from typing import Any, Literal, TypeAlias

import numpy as np

WireFormat: TypeAlias = Literal["bfloat16", "float16"]
"""What 16-bit floats are; arrays hold their bits as uint16."""

DENSE = ("float32", "float64", "uint16")


def require_array(
    name: str, array: object, ndim: int, dtypes: tuple[str, ...], *, writable: bool = False
) -> None:
    """Raise unless `array` is a C-contiguous NumPy array of one of `dtypes`.

    Raises
    ------
    TypeError
        Not an array, another dtype or byte order, not C-contiguous, or read-only where it is
        written.
    ValueError
        Another number of dimensions.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        raise TypeError(f"{name} must be {' or '.join(dtypes)}, not {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not {array.ndim}")
    if not array.flags.c_contiguous:
        raise TypeError(f"{name} must be C-contiguous; pass numpy.ascontiguousarray({name})")
    if writable and not array.flags.writeable:
        raise TypeError(f"{name} is written to but is read-only")


def half_name(half: WireFormat | None, *arrays: np.ndarray[Any, Any]) -> str:
    """Return the name of the 16-bit type, "" when there is none among `arrays`.

    Raises
    ------
    TypeError
        An array is uint16 and `half` does not say what its bits mean.
    """
    if all(array.dtype != np.uint16 for array in arrays):
        return ""
    if half not in ("bfloat16", "float16"):
        raise TypeError(f"uint16 operands need half='bfloat16' or half='float16', not {half!r}")
    return half
