"""Types of indices and arrays, named by role.

Local indices, of rows of one rank, are int32; global indices and offsets are int64.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LocalIndices: TypeAlias = NDArray[np.int32]
GlobalIndices: TypeAlias = NDArray[np.int64]
Offsets: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.floating[Any]]
Array: TypeAlias = NDArray[Any]
MakeRows: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Makes an array of a shape and a dtype, like `numpy.empty`."""
