from dataclasses import replace

import pytest

from hpcgnn.operator import (
    ComputationOrder,
    OperatorSize,
    RelationOrder,
    choose_order,
    choose_relation_order,
    is_worth_caching,
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
    # With hardly any edges, dense products dominate: project the side with fewer rows.
    sparse = OperatorSize(10, 100_000, 20, 0)
    assert choose_order(sparse, 64, 32, needs_input_gradient=True).aggregate_first


@pytest.mark.parametrize(
    ("widths", "occupied", "order"),
    [
        # Wide rows are mapped before edges read them.
        ((4, 100, 16), 4000, RelationOrder.PROJECT_FIRST),
        # The wide result is written once, not once for each relation.
        ((4, 16, 100), 3500, RelationOrder.SIDE_BY_SIDE),
        # Most nodes have neighbours in few of many relations.
        ((50, 16, 100), 3500, RelationOrder.BY_RELATION),
        ((50, 16, 16), 3500, RelationOrder.BY_RELATION),
    ],
)
def test_order_of_relations(
    widths: tuple[int, int, int], occupied: int, order: RelationOrder
) -> None:
    size = OperatorSize(occupied, 1000, 20_000, 0, chooses_columns=True)
    assert choose_relation_order(size, widths, needs_input_gradient=True) == order


def test_rows_of_all_relations_do_not_travel_for_nothing() -> None:
    widths, moved = (20, 64, 16), 5000
    sizes = [OperatorSize(4000, 1000, 200_000, each, chooses_columns=True) for each in (0, moved)]
    orders = [choose_relation_order(each, widths, needs_input_gradient=False) for each in sizes]
    assert orders[0] == RelationOrder.PROJECT_FIRST
    assert orders[1] != RelationOrder.PROJECT_FIRST


def test_who_cannot_choose_columns_aggregates_first() -> None:
    size = OperatorSize(4000, 1000, 20_000, 0)
    order = choose_relation_order(size, (4, 100, 16), needs_input_gradient=False)
    assert order != RelationOrder.PROJECT_FIRST


@pytest.mark.parametrize(
    ("in_width", "out_width", "degree", "kept"),
    [
        # 32 values for each entry instead of 500 kept numbers.
        (500, 16, 10, False),
        (500, 16, 100, True),
        (100, 16, 10, True),
        (500, 256, 10, True),
    ],
)
def test_products_are_kept_that_save_much(
    in_width: int, out_width: int, degree: int, kept: bool
) -> None:
    size = OperatorSize(1000, 1000, 1000 * degree, 0)
    assert is_worth_caching(size, (in_width, out_width)) == kept
    moved = OperatorSize(1000, 1000, 1000 * degree, 10_000)
    assert is_worth_caching(moved, (in_width, out_width))


@pytest.mark.parametrize(
    ("out_width", "degree", "trains", "kept"),
    [
        # The means have 2,000 rows: mapped by relation, 3 reads of each value are saved ...
        (64, 3, False, False),
        # ... which is enough where the backward pass needs them anyway.
        (64, 3, True, True),
        (64, 40, False, True),
        # Mapped first, only rows of the result's width are read, and are in memory.
        (4, 3, True, False),
        (4, 40, True, False),
    ],
)
def test_means_of_relations_are_kept_that_save_much_or_wait_anyway(
    out_width: int, degree: int, trains: bool, kept: bool
) -> None:
    size = OperatorSize(2000, 1000, 1000 * degree, 0, chooses_columns=True)
    assert is_worth_caching(size, (100, out_width), 4, trains=trains) == kept
    # Rows that travel cost more than memory.
    assert is_worth_caching(replace(size, num_moved=10_000), (100, out_width), 4, trains=trains)
    # Other processors cannot choose columns, so that nothing waits for sure.
    other = replace(size, chooses_columns=False)
    assert is_worth_caching(other, (100, 64), 4, trains=trains) == (degree == 40)
