"""The conversion of one input into one store."""

import os
from pathlib import Path
from typing import Any

from hpcgnn.convert.formats import read_source
from hpcgnn.convert.pipeline import Report, write_store
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError
from hpcgnn.storage import check_output

__all__ = ["convert", "store_source"]


def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format_name: str,
    options: ConvertOptions | None = None,
) -> Report:
    """Convert `path`, in the format `format_name`, into the store `out`.

    An earlier file at `out` stays whole until the new one is complete. Raises `InputError` for
    faulty input, in one line that names the file, the place in it and the remedy.
    """
    source_path, out_path = Path(path), Path(out)
    chosen = options or ConvertOptions()
    check_output(out_path)
    source = read_source(source_path, format_name, chosen)
    for file in source.inputs:
        if out_path.exists() and file.exists() and out_path.samefile(file):
            raise InputError(f"{out}: is an input of the conversion; choose another output")
    return store_source(source, out_path, format_name, chosen)


def store_source(
    source: GraphSource, out: Path, format_name: str, options: ConvertOptions
) -> Report:
    """Write a graph that has been read, with a note of where it came from."""
    provenance: dict[str, Any] = {
        "command": "convert",
        "format": format_name,
        "inputs": [file.name for file in source.inputs],
        "options": _given(options),
    }
    return write_store(source, out, options, provenance)


def _given(options: ConvertOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    usual = ConvertOptions()
    return {
        name: getattr(options, name)
        for name in ConvertOptions.__slots__
        if getattr(options, name) != getattr(usual, name)
    }
