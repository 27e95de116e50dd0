import pytest

from hpcgnn.operator import (
    ComputationOrder,
    OperatorSize,
    choose_order,
)

SQUARE = OperatorSize(1000, 1000, 20_000, 500)


@pytest.mark.parametrize(
    ("in_width", "out_width", "gradient", "aggregate_first"),
    [
        (500, 16, True, False),
        (16, 500, True, True),
        # No gradient of the features: (A X) W aggregates once, A (X W) twice.
        (128, 100, False, True),
        (128, 100, True, False),
    ],
)
def test_narrow_side_is_aggregated(
    in_width: int, out_width: int, gradient: bool, aggregate_first: bool
) -> None:
    order = choose_order(SQUARE, in_width, out_width, needs_input_gradient=gradient)
    assert order.aggregate_first == aggregate_first


def test_backward_order_is_its_own_choice() -> None:
    order = choose_order(SQUARE, 16, 500, needs_input_gradient=True)
    assert order == ComputationOrder(aggregate_first=True, project_first=True)
    assert (order.forward, order.backward) == ("(AX)W", "A'(GW')")


def test_density_decides_between_products() -> None:
    # With hardly an edge the dense products weigh most: project the fewer rows.
    sparse = OperatorSize(10, 100_000, 20, 0)
    assert choose_order(sparse, 64, 32, needs_input_gradient=True).aggregate_first
