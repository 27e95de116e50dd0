"""Products of 8-bit integers in tests: machines that have them, and small graphs that use them."""

import pytest

from hpcgnn.autograd import check_integers
from hpcgnn.autograd.numerics import integers
from hpcgnn.errors import InputError


def has_integers() -> bool:
    """Return whether this processor multiplies integers of 8 bits exactly."""
    try:
        check_integers()
    except InputError:
        return False
    return True


needs_integers = pytest.mark.skipif(
    not has_integers(), reason="this processor has no exact products of 8-bit integers"
)


def round_small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round products of a few rows and columns too."""
    monkeypatch.setattr(integers, "_CHUNK_ROWS", 4)
    monkeypatch.setattr(integers, "_LEAST_WIDTH", dict.fromkeys(integers._LEAST_WIDTH, 2))
