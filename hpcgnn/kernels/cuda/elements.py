"""What the elements of device arrays are; 16-bit floats travel as uint16, as on the CPU."""

from hpcgnn.kernels.arguments import Half
from hpcgnn.kernels.cuda.device import DeviceArray

__all__ = ["storage_of"]


def storage_of(array: DeviceArray, half: Half | None) -> str:
    """Return the name of the elements' type: what `half` says where `array` is uint16.

    Raises
    ------
    TypeError
        An array is uint16 and `half` does not say what its bits mean.
    """
    name = str(array.dtype)
    if name != "uint16":
        return name
    if half not in ("bfloat16", "float16"):
        raise TypeError(f"uint16 operands need half='bfloat16' or half='float16', not {half!r}")
    return half
