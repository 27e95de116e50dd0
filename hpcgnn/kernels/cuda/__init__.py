"""The kernels on the GPU: the same functions as `hpcgnn.kernels`, on CuPy arrays.

NVRTC compiles the .cu files of this package at first use. Importing the package does not import
CuPy; calling a function does, and raises `GpuUnavailableError` if it is missing. Kernels run on
CuPy's current stream, and no function waits for them. `DeviceGroups` cut the rows of a pattern into
neighbour groups: make them once and pass them to every product. docs/gpu.md says what has been
verified, and how.
"""

from hpcgnn.kernels.cuda.attention import (
    attention_backward,
    attention_backward_rows,
    attention_delta,
    attention_finish,
    attention_forward,
    attention_merge,
    attention_scores,
)
from hpcgnn.kernels.cuda.device import GpuUnavailableError, require_gpu
from hpcgnn.kernels.cuda.epilogue import dropout_rows, finish_rows, finish_rows_gradient
from hpcgnn.kernels.cuda.groups import (
    ATTENTION_GROUP_SIZE,
    DeviceGroups,
    NeighborGroups,
    neighbor_groups,
)
from hpcgnn.kernels.cuda.products import spmm
from hpcgnn.kernels.cuda.rows import gather_rows, scatter_add_rows
