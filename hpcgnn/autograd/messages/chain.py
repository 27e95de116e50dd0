"""Chains of linear maps and activations (perceptrons) on blocks of rows.

With float32 or float64 and an activation that the kernels have, a block is one native call.
Otherwise it is computed product by product with torch, which has the processor's 16-bit
instructions and all functions, and with passes of our kernels over the rows.

A chain may start at the ends of edges: rows of an edge's target and source are added to the result
of the first map. Gradients are written by hand, so that the arrays of a block stay in cache.

For a chain of n maps of width w, one of which reads the edge's state, an edge costs n products of
w² forward and 2 n backward, plus n if nothing is kept. A perceptron on ``[x_i, x_j, e_ij]`` costs
n + 2 and 2 n + 4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import add_multiplied, like_rows, multiply, weight_gradient
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.autograd.recompute import relu
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.kernels import (
    ChainKernel,
    ChainParameters,
    ChainSums,
    EdgeEnds,
    MapArrays,
    NormSums,
    RowNorm,
)

BLOCK_BYTES = 512 << 10
"""The size in bytes of one array of a block."""
KEPT_BYTES = 1 << 20
"""Results of maps are kept up to this size in bytes: recomputing costs more than their memory."""


class Activation(NamedTuple):
    """An elementwise activation function.

    `whole` is the differentiable function. `kernel` is its name in the kernels, or ``none``; then
    `derive` returns the gradient of its argument from (gradient of the result, argument).
    """

    whole: Callable[[Tensor], Tensor]
    kernel: str = "none"
    derive: Callable[[Tensor, Tensor], Tensor] | None = None


ACTIVATIONS: Mapping[str, Activation] = {
    "relu": Activation(relu, "relu"),
    "elu": Activation(lambda x: arithmetic().elu(x), "elu"),
    "gelu": Activation(lambda x: arithmetic().gelu(x), derive=torch.ops.aten.gelu_backward),
}
"""The activations by name."""


def layer_norm(rows: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the layer norm of rows (any, width), in the arithmetic of the run."""
    return arithmetic().layer_norm(rows, norm.weight, norm.bias, norm.eps)


_ALL_COLUMNS = (slice(None),)


class ChainMap(NamedTuple):
    """A linear map of concatenated inputs.

    `weight` is (out, in), `bias` (out,) or None; `columns` has the slice of the weight's columns
    for each input.
    """

    weight: Tensor
    bias: Tensor | None
    columns: Sequence[slice] = _ALL_COLUMNS


@dataclass(frozen=True, eq=False)
class Chain:
    """``x_0 + norm(W_n act(... act(a_i + b_j + Σ_k W_1k x_k + c_1) ...) + c_n)``.

    a_i and b_j are rows of an edge's target and source, if the chain has ends. There is at least
    one map: the first reads the inputs, each other one the result of that before. `norm` is None
    without a layer norm. With `residual`, the first input is added.
    """

    maps: Sequence[ChainMap]
    activation: str
    norm: nn.LayerNorm | None = None
    residual: bool = False

    def whole(self, inputs: Sequence[Tensor], ends: Sequence[Tensor] = ()) -> Tensor:
        """Return the result (rows, width), computed by torch's own functions.

        `inputs` are (rows, any width) each, `ends` (rows, width of the first map).
        """
        rows, read, shares = (*ends, *inputs)[0], inputs, list(ends)
        for number, (weight, bias, columns) in enumerate(self.maps):
            if number:
                read, shares = [ACTIVATIONS[self.activation].whole(rows)], []
            for part, columns_of_part in zip(read, columns, strict=True):
                shares.append(arithmetic().linear(part, weight[:, columns_of_part], bias))
                bias = None
            rows = sum(shares[1:], shares[0])
            if bias is not None:
                rows = rows + bias
        if self.norm is not None:
            rows = layer_norm(rows, self.norm)
        return inputs[0] + rows if self.residual else rows

    @property
    def ends_in_product(self) -> bool:
        """Whether its result is that of the last product."""
        return self.norm is None and self.maps[-1].bias is None and not self.residual

    def parameters(self) -> list[Tensor]:
        """Return the parameters, each once."""
        norm = [] if self.norm is None else [self.norm.weight, self.norm.bias]
        tensors = [tensor for weight, bias, _ in self.maps for tensor in (weight, bias)]
        return [tensor for tensor in [*tensors, *norm] if tensor is not None]

    def fits(self, rows: Tensor | None) -> bool:
        """Return whether the kernels can run it on such rows, with the arithmetic of the run."""
        kinds = torch.float32, torch.float64, torch.bfloat16
        on_host = rows is not None and memory_of(rows).kernels is kernels and rows.dtype in kinds
        sparse = isinstance(rows, SparseFeatures)
        return on_host and not sparse and not arithmetic().sums_are_whole

    def is_small(self, num_rows: int, element_size: int) -> bool:
        """Return whether the results of its maps for `num_rows` take at most `KEPT_BYTES`."""
        columns = sum(layer.weight.shape[0] for layer in self.maps)
        return num_rows * columns * element_size <= KEPT_BYTES

    def block_rows(self, element_size: int) -> int:
        """Return the number of rows of a block."""
        widest = max(layer.weight.shape[0] for layer in self.maps)
        return max(1, BLOCK_BYTES // (widest * element_size))


class Ends(NamedTuple):
    """Rows at the targets and sources of a block's edges, or their gradients; see `EdgeEnds`.

    `target_ids` and `source_ids` are (B,) int32.
    """

    targets: Tensor | None = None
    target_ids: Tensor | None = None
    sources: Tensor | None = None
    source_ids: Tensor | None = None

    def arrays(self) -> EdgeEnds:
        """Return the ends as arrays for the kernels."""
        return EdgeEnds(*(None if tensor is None else _array(tensor) for tensor in self))


NO_ENDS = Ends()


class Room(NamedTuple):
    """Memory for the results of the maps for some rows.

    `results` are (rows, width) each, after activation except for the last; `arguments` are those of
    activations that the kernels lack, else empty.
    """

    results: Sequence[Tensor]
    arguments: Sequence[Tensor]

    def rows(self, span: slice) -> "Room":
        """Return the room of some rows."""
        if span.start in (None, 0) and span.stop == self.results[0].shape[0]:
            return self
        return Room(*([tensor[span] for tensor in part] for part in self))


class ChainRun:
    """Runs a chain on blocks of rows with the dtype and memory of the tensor `like`.

    `totals` are gradients of parameters, keyed by the parameters' `id`, that are added to.
    """

    def __init__(
        self, chain: Chain, like: Tensor, totals: Mapping[int, Tensor] | None = None
    ) -> None:
        self.chain, self._like, self._totals = chain, like, totals or {}
        self._weights = [_parts(like_rows(layer.weight, like), layer) for layer in chain.maps]
        self.widths = [layer.weight.shape[0] for layer in chain.maps]
        self._activation = ACTIVATIONS[chain.activation]
        self._biases = [None if bias is None else _column(bias, like) for _, bias, _ in chain.maps]
        self._norm = RowNorm(self._biases[-1])
        if chain.norm is not None:
            scale, shift = (
                _column(tensor, like) for tensor in (chain.norm.weight, chain.norm.bias)
            )
            self._norm = RowNorm(self._biases[-1], scale, shift, chain.norm.eps)
        self._spare: list[Tensor] = []
        self._kernel = self._make_kernel()

    def _make_kernel(self) -> ChainKernel | None:
        """Return the kernel that runs a block in one call, None if it lacks dtype or activation."""
        totals, dtype, maps = self._totals, self._like.dtype, self.chain.maps
        same_dtype = all(total.dtype == dtype for total in totals.values())
        if dtype == torch.bfloat16 or self._activation.derive or not same_dtype:
            return None
        parameters = [
            MapArrays([_array(part) for part in parts], bias, width)
            for parts, bias, width in zip(self._weights, self._biases, self.widths, strict=True)
        ]
        sums = None
        if totals:
            of_maps = [
                MapArrays(self._matrix_sums(layer), self._sum(layer.bias), width)
                for layer, width in zip(maps, self.widths, strict=True)
            ]
            sums = ChainSums(of_maps, self._norm_sums())
        return ChainKernel(
            ChainParameters(parameters, self._norm),
            sums,
            activation=self._activation.kernel,
            residual=self.chain.residual,
            is_wide=dtype == torch.float64,
        )

    def _matrix_sums(self, layer: ChainMap) -> list[Any]:
        total = self._totals.get(id(layer.weight))
        if total is None:
            return [None] * len(layer.columns)
        return [_array(part) for part in _parts(total, layer)]

    def room(self, num_rows: int) -> Room:
        """Return memory for the results of the maps for `num_rows` rows."""
        empty = memory_of(self._like).empty
        inner = self.widths[:-1] if self._activation.derive else []
        return Room(
            [empty(self._like, (num_rows, width)) for width in self.widths],
            [empty(self._like, (num_rows, width)) for width in inner],
        )

    def forward(self, inputs: Sequence[Tensor], ends: Ends, room: Room) -> None:
        """Compute the results of all maps."""
        self._run(inputs, ends, room, len(self.widths))

    def recompute(self, inputs: Sequence[Tensor], ends: Ends, room: Room) -> None:
        """Compute what `backward` reads: the last map's result only if there is a norm."""
        self._run(inputs, ends, room, len(self.widths) - (self.chain.norm is None))

    def _run(self, inputs: Sequence[Tensor], ends: Ends, room: Room, count: int) -> None:
        """Compute the results of the first `count` maps."""
        read, last = inputs, len(self.widths) - 1
        if self._kernel is not None:
            results = [_array(result) for result in room.results[:count]]
            edge_ends = None if ends is NO_ENDS else ends.arrays()
            self._kernel.forward(
                len(room.results[0]), [_array(rows) for rows in inputs], edge_ends, results
            )
            return
        for number, (matrices, result) in enumerate(
            zip(self._weights[:count], room.results, strict=False)
        ):
            _multiply(read, [matrix.t() for matrix in matrices], result)
            if number == last and ends is NO_ENDS:
                return
            rows = _array(result)
            edge_ends = ends.arrays() if number == 0 else EdgeEnds()
            # The bias of the last map is added with the norm.
            bias = None if number == last else self._biases[number]
            activation = "none" if number == last else self._activation.kernel
            kernels.combine_rows(rows, rows, ends=edge_ends, bias=bias, activation=activation)
            if number < last and self._activation.derive:
                room.arguments[number].copy_(result)
                result.copy_(self._activation.whole(result))
            read = [result]

    def result(self, inputs: Sequence[Tensor], room: Room, out: Tensor) -> None:
        """Write the chain's result to `out`, unless the last map's result is already there."""
        if room.results[-1].data_ptr() == out.data_ptr():
            return
        residual = _array(inputs[0]) if self.chain.residual else None
        kernels.norm_rows(
            _array(room.results[-1]),
            _array(out),
            norm=self._norm,
            residual=residual,
        )

    def backward(
        self,
        inputs: Sequence[Tensor],
        of_inputs: Sequence[Tensor | None],
        of_ends: Ends,
        room: Room,
        gradient: Tensor,
    ) -> None:
        """Write the gradients of the inputs, and add those of the ends and the parameters.

        `of_ends` are gradients in the precision of sums, None if not needed. `room` was filled by
        `forward` or `again`; `gradient` (B, width) is that of the result.
        """
        maps, last = self.chain.maps, len(self.widths) - 1
        if self._kernel is not None:
            read_results = room.results[: last + (self.chain.norm is not None)]
            self._kernel.backward(
                [_array(rows) for rows in inputs],
                [None if out is None else _array(out) for out in of_inputs],
                None if of_ends is NO_ENDS else of_ends.arrays(),
                [_array(result) for result in read_results],
                _array(gradient),
            )
            return
        upper = gradient
        if not self.chain.ends_in_product:
            upper = self._scratch(last, len(gradient))
            kernels.norm_rows_gradient(
                _array(room.results[-1]),
                _array(gradient),
                _array(upper),
                norm=self._norm,
                sums=self._norm_sums(),
            )
        if last == 0 and of_ends is not NO_ENDS:
            kernels.combine_rows_gradient(_array(upper), _array(upper), of_ends=of_ends.arrays())
        for number in range(last, -1, -1):
            read = [room.results[number - 1]] if number else inputs
            self._add_weights(maps[number], upper, read)
            if number:
                (weight,) = self._weights[number]
                product = multiply(upper, weight, self._scratch(number - 1, len(gradient)))
                at_inputs = of_ends if number == 1 else NO_ENDS
                self._derive(product, room, number - 1, at_inputs)
                upper = product
        for index, (weight, out) in enumerate(zip(self._weights[0], of_inputs, strict=True)):
            if out is None:
                continue
            if index == 0 and self.chain.residual:
                add_multiplied(out.copy_(gradient), upper, weight)
            else:
                multiply(upper, weight, out)

    def _derive(self, gradient: Tensor, room: Room, number: int, of_ends: Ends) -> None:
        result = room.results[number]
        if self._activation.derive:
            gradient.copy_(self._activation.derive(gradient, room.arguments[number]))
        rows = _array(gradient)
        kernels.combine_rows_gradient(
            rows,
            rows,
            activated=(self._activation.kernel, _array(result)),
            of_ends=of_ends.arrays(),
            of_bias=self._sum(self.chain.maps[number].bias),
        )

    def _add_weights(self, layer: ChainMap, upper: Tensor, read: Sequence[Tensor]) -> None:
        total = self._totals.get(id(layer.weight))
        if total is None:
            return
        for rows, part in zip(read, _parts(total, layer), strict=True):
            if rows.dtype == total.dtype:
                part.addmm_(upper.t(), rows)
            else:
                part += weight_gradient(upper, rows)

    def _norm_sums(self) -> NormSums:
        norm = self.chain.norm
        of_norm = (None, None) if norm is None else (norm.weight, norm.bias)
        return NormSums(*(self._sum(tensor) for tensor in (self.chain.maps[-1].bias, *of_norm)))

    def _sum(self, parameter: Tensor | None) -> Any:
        total = None if parameter is None else self._totals.get(id(parameter))
        return None if total is None else _array(total)

    def _scratch(self, number: int, num_rows: int) -> Tensor:
        if not self._spare or len(self._spare[0]) < num_rows:
            shapes = ((num_rows, width) for width in self.widths)
            self._spare = [memory_of(self._like).empty(self._like, shape) for shape in shapes]
        return self._spare[number][:num_rows]


class _RunRows(torch.autograd.Function):
    """A chain without ends on rows."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, keeps: bool, count: int, *tensors: Tensor) -> Tensor:
        inputs, run = tensors[:count], ChainRun(chain, tensors[0])
        num_rows = len(inputs[0])
        out = memory_of(inputs[0]).empty(inputs[0], (num_rows, run.widths[-1]))
        keeps = keeps or chain.is_small(num_rows, tensors[0].element_size())
        # Without a backward pass, memory for one block is enough.
        keeps = keeps and any(ctx.needs_input_grad)
        room_of_all = run.room(num_rows) if keeps else None
        for span, room in _blocks(run, num_rows, inputs[0].element_size(), room_of_all):
            parts = [tensor[span] for tensor in inputs]
            if chain.ends_in_product:
                room = Room([*room.results[:-1], out[span]], room.arguments)
            run.forward(parts, NO_ENDS, room)
            run.result(parts, room, out[span])
        ctx.chain, ctx.kept = chain, room_of_all
        ctx.save_for_backward(*tensors[:count])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        chain, inputs, upper = ctx.chain, ctx.saved_tensors, gradients[0].contiguous()
        count, parameters = len(inputs), chain.parameters()
        needs_gradient = ctx.needs_input_grad[3:]
        totals = {
            id(tensor): torch.zeros_like(tensor)
            for tensor, needed in zip(parameters, needs_gradient[count:], strict=True)
            if needed
        }
        run = ChainRun(chain, inputs[0], totals)
        empty = memory_of(upper).empty
        outs = [
            empty(tensor, tensor.shape) if needed else None
            for tensor, needed in zip(inputs, needs_gradient, strict=False)
        ]
        for span, room in _blocks(run, len(upper), upper.element_size(), ctx.kept):
            parts = [tensor[span] for tensor in inputs]
            if ctx.kept is None:
                run.recompute(parts, NO_ENDS, room)
            of_parts = [None if out is None else out[span] for out in outs]
            run.backward(parts, of_parts, NO_ENDS, room, upper[span])
        ctx.kept = None
        return None, None, None, *outs, *(totals.get(id(parameter)) for parameter in parameters)


def _blocks(
    run: ChainRun, num_rows: int, element_size: int, room_of_all: Room | None
) -> Iterator[tuple[slice, Room]]:
    step = run.chain.block_rows(element_size)
    shared = run.room(min(step, num_rows)) if room_of_all is None else room_of_all
    for start in range(0, num_rows, step):
        span = slice(start, min(start + step, num_rows))
        yield span, shared.rows(span if room_of_all else slice(span.stop - span.start))


def run_chain(chain: Chain, inputs: Sequence[Tensor], *, keeps: bool = False) -> Tensor:
    """Return the result of a chain without ends for rows, differentiable.

    The inputs, (rows, any width) each, are saved for the backward pass, which recomputes the maps.
    With `keeps`, the results of the maps are saved too, which takes memory and saves time.
    """
    if not chain.fits(inputs[0]):
        return chain.whole(inputs)
    tensors = [tensor.contiguous() for tensor in inputs]
    result: Tensor = _RunRows.apply(  # type: ignore[no-untyped-call]
        chain, keeps, len(tensors), *tensors, *chain.parameters()
    )
    return result


def _parts(weight: Tensor, layer: ChainMap) -> Sequence[Tensor]:
    """Return the columns of a weight for each input of its map."""
    if layer.columns == _ALL_COLUMNS:
        return [weight]
    return [weight[:, columns] for columns in layer.columns]


def _multiply(read: Sequence[Tensor], matrices: Sequence[Tensor], out: Tensor) -> None:
    """Write the sum of the products ``rows matrix`` to `out`."""
    if not read:
        out.zero_()
    for number, (rows, matrix) in enumerate(zip(read, matrices, strict=True)):
        if number:
            add_multiplied(out, rows, matrix)
        else:
            multiply(rows, matrix, out)


def _array(tensor: Tensor) -> Any:
    return memory_of(tensor).array(tensor)


def _column(parameter: Tensor, like: Tensor) -> Any:
    """Return a parameter (width,) in the precision of sums."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return _array(parameter.to(dtype))
