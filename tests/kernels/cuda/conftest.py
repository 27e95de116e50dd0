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


# The kernels also run on GPUs, so the other order of threads is only for thorough runs.
DEVICES = [
    "forward",
    pytest.param("backward", marks=pytest.mark.slow),
    *(["card"] if card_is_there() else []),
]


@pytest.fixture(params=DEVICES)
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn | Card]:
    """Put the stand-in in place of CuPy, with threads in either order; or use the real one."""
    if request.param == "card":
        return Card()
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = StandIn(reverse=request.param == "backward")
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made
