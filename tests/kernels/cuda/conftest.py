import sys
from collections.abc import Iterator

import pytest

from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from tests.support.stand_in import Card, StandIn, compiler


def card_is_there() -> bool:
    try:
        require_gpu()
    except GpuUnavailableError:
        return False
    return True


# A card has run the kernels: the other order of threads is for thorough runs.
DEVICES = [
    "forward",
    pytest.param("backward", marks=pytest.mark.slow),
    *(["card"] if card_is_there() else []),
]


@pytest.fixture(params=DEVICES)
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn | Card]:
    """Put the stand-in where CuPy would be, its threads in either order; or leave a real one."""
    if request.param == "card":
        return Card()
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = StandIn(reverse=request.param == "backward")
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made
