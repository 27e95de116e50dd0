"""What a rank has freed belongs to its neighbours on the host at once."""

import ctypes

# From glibc's malloc.h: arrays from so many bytes on get a mapping of their own.
_MMAP_THRESHOLD, _LARGE = -3, 1 << 18


def return_freed_arrays() -> None:
    """Have glibc return every large array to the system when it is freed.

    By itself it keeps those below 32 MiB in its heap, with holes: half as much again as is in use.
    Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
