"""Local compute kernels: products of sparse and dense matrices, attention, packing, dropout.

The kernels run in native code with the GIL released, on ``threads`` OpenMP threads (0 = the OpenMP
default), with the widest instruction set of the machine (``isa="auto"``; `available_isas` lists
the others). Results do not depend on the number of threads. Start with `spmm`, `gather_rows` and
`scatter_add_rows`. The caller allocates the outputs; every array must be C-contiguous and is never
copied. 16-bit floats are passed as uint16 views, and ``half`` names their format. The products
are fastest when the rows of the dense operands start on 64-byte boundaries.

All functions raise TypeError for a wrong dtype or an array that is not C-contiguous, and ValueError
for mismatched shapes, decreasing offsets and row numbers out of range.

This package imports nothing but NumPy and its own extension.
"""

from hpcgnn.kernels._kernels import CodedColumns, available_isas, is_intel
from hpcgnn.kernels.attention import (
    attention_backward,
    attention_backward_rows,
    attention_delta,
    attention_finish,
    attention_forward,
    attention_merge,
    attention_scores,
    attention_shared_backward,
    attention_shared_forward,
)
from hpcgnn.kernels.chain import ChainKernel, ChainParameters, ChainSums, MapArrays
from hpcgnn.kernels.cover import vertex_cover
from hpcgnn.kernels.dense import dense_contraction, dense_product
from hpcgnn.kernels.epilogue import dropout_rows, finish_rows, finish_rows_gradient
from hpcgnn.kernels.exact import (
    CONTRACT_BITS,
    LIMB_BITS,
    column_largest,
    exact_contract,
    exact_digits,
    exact_join,
    exact_total,
    ordered_product,
)
from hpcgnn.kernels.losses import (
    LogitMap,
    SigmoidTargets,
    SoftmaxTargets,
    sigmoid_loss,
    softmax_loss,
)
from hpcgnn.kernels.messages import (
    EdgeEnds,
    NormSums,
    RowNorm,
    combine_rows,
    combine_rows_gradient,
    norm_rows,
    norm_rows_gradient,
)
from hpcgnn.kernels.mixing import key_of
from hpcgnn.kernels.operands import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    EdgeDraw,
    Gradients,
    ProductScore,
    Rounding,
    Score,
    SharedMeans,
    SoftmaxGradient,
    SoftmaxState,
    SparseMatrix,
)
from hpcgnn.kernels.pattern import (
    code_columns,
    decode_columns,
    distinct_numbers,
    renumber,
    select_csr,
    transpose_csr,
    transpose_values_symmetric,
    validate_csr,
)
from hpcgnn.kernels.products import spmm, spmm_transpose
from hpcgnn.kernels.reuse import loading, return_freed_arrays, reused_memory
from hpcgnn.kernels.rows import (
    dequantise_rows,
    gather_rows,
    integers,
    quantise_rows,
    quantised_bytes,
    row_dots,
    scale_sums,
    scatter_add_rows,
    transpose_rows,
)
