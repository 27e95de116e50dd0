"""Linear maps of rows and of aggregates, ``Σ_i X_i V_iᵀ + Σ_d A_d X W_dᵀ + b``, as one function.

Beside its products, such a layer costs passes over memory. As one function, rather than a sum of
several, it adds up products in place, forward and backward, and saves tensors that several terms
read only once. Each aggregation is computed in the cheaper order of its two products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.aggregate import aggregate, applied
from hpcgnn.autograd.epilogue import WIDENED, Epilogue
from hpcgnn.autograd.linear.products import LateSum, ProductSum
from hpcgnn.autograd.losses.mapped_rows import is_mapped_late
from hpcgnn.autograd.numerics.mixed import like_rows, narrowed
from hpcgnn.autograd.numerics.plain import (
    arithmetic,
    before_epilogue,
    gradient_chunks,
    has_epilogue_apart,
    with_epilogue,
)
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.operator import (
    PROJECT_FIRST,
    AggregationOperator,
    ComputationOrder,
    Meanwhile,
    choose_order,
)


class _Later:
    """Work put off until it can hide an exchange of rows, or until it is due; runs in order."""

    def __init__(self) -> None:
        self._work: list[Meanwhile] = []

    def add(self, work: Meanwhile) -> None:
        """Put work off."""
        self._work.append(work)

    def __call__(self) -> None:
        work, self._work = self._work, []
        for task in work:
            task()


@dataclass(frozen=True, eq=False)
class _Aggregated:
    """One term ``A X Wᵀ``: how it adds to the result and to the gradient of X."""

    operator: AggregationOperator
    order: ComputationOrder

    def forward(self, x: Tensor, weight: Tensor, result: ProductSum, later: _Later) -> Tensor:
        """Add the term, now or later; return what the gradient of W needs: A X, or X itself."""
        trace, order = self.operator.trace, self.order
        if order.aggregate_first:
            aggregated = applied(self.operator.apply, x, later)

            def project() -> None:
                with trace.span("dense.project", order=order.forward):
                    result.add_product(aggregated, weight.t())

            later.add(project)
            return aggregated
        with trace.span("dense.project", order=order.forward):
            projected = arithmetic().product(x, weight.t())
        aggregated = applied(self.operator.apply, projected, later)
        # Own rows are mapped now, if there was no exchange to hide.
        del projected
        # Terms add up in their order, wherever they were computed.
        later()
        result.add(aggregated)
        return x

    def backward(
        self, gradient: Tensor, weight: Tensor, for_input: ProductSum | None, later: _Later
    ) -> Tensor:
        """Add to the gradient of X; return the factor that with the kept one gives W's gradient."""
        trace, order, back = self.operator.trace, self.order, self.operator.apply_transpose
        if order.aggregate_first and for_input is None:
            return gradient
        if order.aggregate_first and order.project_first and for_input is not None:
            with trace.span("dense.project", order=order.backward):
                projected = arithmetic().affine(gradient, weight, dtype=weight.dtype)
            returned = applied(back, projected, later)
            del projected
            later()
            for_input.add(returned)
            return gradient
        returned = applied(back, gradient, later)
        later()
        if for_input is not None:
            with trace.span("dense.project", order=order.backward):
                for_input.add_product(returned, weight)
        return gradient if order.aggregate_first else returned


class _GraphLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: tuple[_Aggregated, ...],
        bias: Tensor | None,
        epilogue: Epilogue | None,
        x: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        num_own = (len(tensors) - len(terms)) // 2
        own = tensors[:num_own]
        weights = tuple(like_rows(weight, x) for weight in tensors[num_own:])
        result, later = ProductSum(bias, epilogue), _Later()
        trace = terms[0].operator.trace

        def map_own() -> None:
            for rows, weight in zip(own, weights[len(terms) :], strict=True):
                with trace.span("dense.own"):
                    result.add_product(rows, weight.t())

        # The first terms to add, since they need no rows of other ranks.
        later.add(map_own)
        inputs = [
            term.forward(x, w, result, later) for term, w in zip(terms, weights, strict=False)
        ]
        later()
        inputs += own
        finished, epilogue = result.with_epilogue(), None if epilogue is WIDENED else epilogue
        ctx.terms, ctx.own_is_input, ctx.epilogue = terms, [rows is x for rows in own], epilogue
        needs_rows = ctx.needs_input_grad[3 : 4 + num_own]
        orders = [term.order for term in terms]
        ctx.is_first = not any(needs_rows) and all(o.aggregate_first for o in orders)
        # What reads its gradient in chunks does not need all of it in memory. Resident schedules
        # use the products to hide the exchange.
        ctx.reads_in_chunks = ctx.is_first and x.is_cpu
        size = terms[0].operator.size
        ctx.leaves_products = (
            getattr(x.grad_fn, "reads_in_chunks", False)
            and (size.is_sequential or not size.num_moved)
            and not any(order.project_first for order in orders)
        )
        ctx.save_for_backward(*weights, *inputs, *([] if epilogue is None else [finished]))
        return finished

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        result = None if ctx.epilogue is None else saved.pop()
        num_weights, num_own = len(saved) // 2, len(ctx.own_is_input)
        weights, inputs = saved[:num_weights], saved[num_weights:]
        _, needs_bias, _, needs_input, *needs_own = ctx.needs_input_grad[: 4 + num_own]
        orders = [term.order for term in ctx.terms]
        multiplied = all(
            order.aggregate_first and (order.project_first or not needs_input) for order in orders
        )
        upper = narrowed(
            gradients[0].contiguous(), weights[0].dtype, weights if multiplied else None
        )
        if ctx.is_first:
            with ctx.terms[0].operator.trace.span("dense.weight_gradient"):
                rows = upper, result
                for_bias, *of_weights = _of_first_layer(rows, ctx.epilogue, inputs, bias=needs_bias)
            return None, for_bias, None, None, *[None] * num_own, *of_weights
        gradient, for_bias = before_epilogue((upper, result), ctx.epilogue, bias=needs_bias)
        for_input = (LateSum() if ctx.leaves_products else ProductSum()) if needs_input else None
        factors: list[Tensor | None] = [
            gradient if term.order.aggregate_first else None for term in ctx.terms
        ]
        factors += [gradient] * (num_weights - len(factors))
        for_weights: dict[int, Tensor] = {}

        def weigh() -> None:
            ready = {
                index: factor
                for index, factor in enumerate(factors)
                if factor is not None and index not in for_weights
            }
            if not ready:
                return
            with ctx.terms[0].operator.trace.span("dense.weight_gradient"):
                for factor in {id(factor): factor for factor in ready.values()}.values():
                    same = [index for index in ready if ready[index] is factor]
                    totals = arithmetic().contract_all(factor, [inputs[index] for index in same])
                    for_weights.update(zip(same, totals, strict=True))

        for_own = [for_input if is_input else ProductSum() for is_input in ctx.own_is_input]

        def map_own() -> None:
            for needed, total, weight in zip(
                needs_own, for_own, weights[len(ctx.terms) :], strict=True
            ):
                if needed and total is not None:
                    with ctx.terms[0].operator.trace.span("dense.own"):
                        total.add_product(gradient, weight)

        # What needs no rows of other ranks is computed while they travel.
        later = _Later()
        later.add(map_own)
        later.add(weigh)
        for index, term in enumerate(ctx.terms):
            factors[index] = term.backward(gradient, weights[index], for_input, later)
        later()
        if len(for_weights) < num_weights:
            weigh()
        return (
            None,
            for_bias,
            None,
            None if for_input is None else for_input.total,
            *(None if total is None or total is for_input else total.total for total in for_own),
            *(for_weights[index] for index in range(num_weights)),
        )


def _of_first_layer(
    rows: tuple[Tensor, Tensor | None],
    epilogue: Epilogue | None,
    inputs: Sequence[Tensor],
    *,
    bias: bool,
) -> list[Tensor | None]:
    """Return the gradients of the bias and the weights where nothing else has one.

    `rows` are the gradient and the result of the layer.
    """
    gradient, result = rows
    totals: list[Tensor | None] = []
    for chunk in gradient_chunks(gradient):
        part = gradient[chunk], None if result is None else result[chunk]
        before, sums = before_epilogue(part, epilogue, bias=bias)
        terms = [sums, *arithmetic().contract_all(before, [kept[chunk] for kept in inputs])]
        if not totals:
            totals = terms
            continue
        for total, term in zip(totals, terms, strict=True):
            if total is not None and term is not None:
                total += term
    return totals


def graph_linear(
    operators: Sequence[AggregationOperator],
    x: Tensor,
    weights: Sequence[Tensor],
    *,
    own: Sequence[tuple[Tensor, Tensor]] = (),
    bias: Tensor | None = None,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Return ``Σ_d A_d X W_dᵀ + Σ_i X_i V_iᵀ + b``, differentiable in all but A_d.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    The order of the products is `choose_order`'s, forward and backward; sparse features are mapped
    first. The trace names it in the ``order`` of its ``dense.project`` spans. The result is (result
    rows, out_width), of the dtype of `x`, in memory of its own.

    Parameters
    ----------
    operators
        The matrices A_d, at least one.
    x
        (input rows, in_width) float32 or float64, or bfloat16 beside float32 weights; where the
        matrices are.
    weights
        For each operator (out_width, in_width), as in `torch.nn.Linear`.
    own
        X_i (result rows, any width), which may be `x`, and V_i.
    bias
        (out_width,); None leaves it out.
    epilogue
        Rectifier and dropout to apply to the sum; None: neither. With `WIDENED` the result is
        float32 for bfloat16 rows; inside `late_maps` it may be a `MappedRows`.
    """
    needs_input, is_dense = x.requires_grad, not isinstance(x, SparseFeatures)
    terms = []
    for operator, weight in zip(operators, weights, strict=True):
        out_width, in_width = weight.shape
        order = PROJECT_FIRST
        if is_dense:
            size = operator.size
            order = choose_order(size, in_width, out_width, needs_input_gradient=needs_input)
        terms.append(_Aggregated(operator, order))
    rows, maps = [x_i for x_i, _ in own], [weight for _, weight in own]
    if epilogue is WIDENED and not own and len(terms) == 1 and is_mapped_late(x):
        (term,), (weight,) = terms, weights
        if term.order.aggregate_first and (term.order.project_first or not needs_input):
            return arithmetic().linear(aggregate(term.operator, x), weight, bias, epilogue)
    tensors = x, *rows, *weights, *maps
    if has_epilogue_apart(epilogue, x, *rows):
        sums = _GraphLinear.apply(tuple(terms), None, None, *tensors)  # type: ignore[no-untyped-call]
        return with_epilogue(sums, bias, epilogue)
    return _GraphLinear.apply(tuple(terms), bias, epilogue, *tensors)  # type: ignore[no-untyped-call]
