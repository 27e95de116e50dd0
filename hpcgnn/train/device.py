"""Whether training can run on the device that the configuration asks for."""

from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu

__all__ = ["require_device"]


def require_device(name: str) -> None:
    """Raise unless a rank can train on the device `name`, cpu or cuda.

    Not collective.

    Raises
    ------
    InputError
        For cuda: CuPy or a GPU is missing, and otherwise that training stays on the CPU so far.
        Nothing falls back to the CPU by itself.
    """
    if name == "cpu":
        return
    try:
        require_gpu()
    except GpuUnavailableError as error:
        raise InputError(f"train.device = {name!r}: {error}") from error
    raise InputError(
        f"train.device = {name!r}: training runs on the CPU only, as exchanges and sparse blocks "
        "stay in host memory; the kernels for GPUs are hpcgnn.kernels.cuda; use train.device=cpu"
    )
