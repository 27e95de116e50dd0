"""Maps of repeated aggregates, as models of several hops have them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hpcgnn.autograd import SparseFeatures, aggregate, arithmetic, mapped_powers
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective


@collective
def powers_of(view: LayerView, kind: Aggregation, x: Tensor, maps: Sequence[Any]) -> list[Tensor]:
    """Return ``Aʲ X W_jᵀ + b_j`` at the output nodes, for j from 1, a map for each.

    Maps are `hpcgnn.nn.Linear`. Powers are repeated products: ``Aʲ X = A (Aʲ⁻¹ X)``, each computed
    once. Sparse rows are mapped before them.
    """
    operators = [step.operators[kind] for step in view.steps]
    if isinstance(x, SparseFeatures):
        found = mapped_powers(operators, x, [each.weight for each in maps])
        # The rows of the next power contain those of the layer's outputs.
        found = [view.after(index + 1, rows) for index, rows in enumerate(found)]
        return [_shifted(rows, each.bias) for rows, each in zip(found, maps, strict=True)]
    found = []
    for index, (operator, each) in enumerate(zip(operators, maps, strict=True)):
        x = aggregate(operator, x)
        found.append(each(view.after(index + 1, x)))
    return found


def _shifted(rows: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return rows
    return (rows + arithmetic().for_rows(bias, len(rows))).to(rows.dtype)
