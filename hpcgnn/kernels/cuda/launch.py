"""Compile the .cu files of this package with NVRTC at first use, and launch their kernels."""

import functools
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer

COMPILE_OPTIONS = ("--std=c++17",)
# Names and values of a kernel's argument struct; a nested struct is a nested dictionary.
Fields: TypeAlias = dict[str, Any]

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
_BLOCK_THREADS = 256
# With more items than this many blocks cover, threads loop over items with a grid stride.
_MOST_BLOCKS = 1 << 20
_WARP = 32
_VECTOR_BYTES = 16
_SHORT_NAMES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}


def source_text(name: str) -> str:
    """Return ``name.cu`` with its headers inlined.

    CuPy caches by source text: it would miss a change in a header that NVRTC included itself.
    """
    folder, seen = Path(__file__).parent, set[str]()

    def expand(text: str) -> str:
        def header(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return expand((folder / match[1]).read_text().replace("#pragma once", ""))

        return _INCLUDE.sub(header, text)

    return expand((folder / f"{name}.cu").read_text())


def short_name(dtype: str) -> str:
    """Return the abbreviation of an element type in kernel names."""
    return _SHORT_NAMES[dtype]


def vector_width(options: tuple[int, ...], columns: int, *arrays: DeviceArray | None) -> int:
    """Return the widest of `options` (descending, ending in 1) that suits widths and addresses."""
    for count in options:
        fits = all(
            pointer(array) % min(_VECTOR_BYTES, count * array.dtype.itemsize) == 0
            for array in arrays
            if array is not None
        )
        if columns % count == 0 and fits:
            return count
    return 1


def tile_lanes(columns: int, least: int = 1) -> int:
    """Return the threads that share an item of `columns` vectors: a power of two, at most 32."""
    lanes = min(max(columns, least, 1), _WARP)
    return 1 << (lanes - 1).bit_length()


def launch(source: str, kernel: str, fields: Fields, *, items: int, lanes: int) -> None:
    """Run `kernel` of the file ``source.cu`` on CuPy's current stream, unless there are no items.

    `fields` are the kernel's argument struct, in order; `lanes` threads share a work item.
    """
    if items == 0:
        return
    blocks = min(-(-items * lanes // _BLOCK_THREADS), _MOST_BLOCKS)
    function = _function(load_cupy(), source, kernel)
    function((blocks,), (_BLOCK_THREADS,), (_struct(kernel, fields),))


@functools.cache
def _module(cupy: Any, source: str) -> Any:
    return cupy.RawModule(code=source_text(source), options=COMPILE_OPTIONS)


@functools.cache
def _function(cupy: Any, source: str, kernel: str) -> Any:
    return _module(cupy, source).get_function(kernel)


# The fields of a kernel always have the same types.
_layouts: dict[str, tuple[struct.Struct, np.dtype[Any]]] = {}


def _struct(kernel: str, fields: Fields) -> np.ndarray[Any, Any]:
    """Pack fields in C layout: int as 8 bytes, np.int32 as 4 bytes, float as double."""
    if kernel not in _layouts:
        layout = struct.Struct(f"@{_format(fields)}0Q")
        _layouts[kernel] = layout, np.dtype((np.void, layout.size))
    layout, record = _layouts[kernel]
    return np.frombuffer(layout.pack(*_numbers(fields)), record)


def _format(fields: Fields) -> str:
    """Return the format string for `struct`; ``0Q`` aligns the ends of nested structs."""
    return "".join(
        f"0Q{_format(value)}0Q"
        if isinstance(value, dict)
        else "i"
        if isinstance(value, np.int32)
        else "d"
        if isinstance(value, float)
        else "Q"
        for value in fields.values()
    )


def _numbers(fields: Fields) -> Iterator[Any]:
    for value in fields.values():
        if isinstance(value, dict):
            yield from _numbers(value)
        else:
            yield value
