"""Marks of the functions that several ranks must call: `collective` and `neighborwise_collective`.

A function without a mark concerns its rank alone. A marked one concerns the ranks of the
communicator or grid that it is handed or that its object holds; where these are none, those of its
caller. The marks do nothing when a program runs. The tests replace `collective` before anything
else is imported, and fail when ranks that a call concerns made it in different orders
(tests/support/call_order.py).
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that all ranks call, in one order among all functions of this mark."""
    return function


def neighborwise_collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that a rank and those it exchanges rows with call in one order.

    What a rank without rows to exchange calls says nothing.
    """
    return function
