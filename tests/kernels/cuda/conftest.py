import sys
from collections.abc import Iterator

import pytest

from tests.kernels.cuda.stand_in import StandIn, compiler


@pytest.fixture(params=["forward", "backward"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Put the stand-in where CuPy would be; its threads run in either order."""
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    folder = request.config.cache.mkdir("cuda-emulator")
    made = StandIn(folder, reverse=request.param == "backward")
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made
