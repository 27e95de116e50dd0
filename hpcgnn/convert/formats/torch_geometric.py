"""A data set of torch-geometric by name, `pyg:CLASS` or `pyg:CLASS/NAME`, where it is installed.

CLASS is one of `torch_geometric.datasets`; what it has not in its folder, `--root`, it downloads
itself. Several graphs become one store of many.
"""

from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from hpcgnn.convert.formats.python import torch_geometric_graphs, torch_geometric_source
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError

PREFIX = "pyg:"


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the data set that `path` names; raises `InputError`."""
    origin = str(path)
    kind, _, name = origin.removeprefix(PREFIX).partition("/")
    dataset = _dataset(origin, kind, name, options)
    if len(dataset) != 1:
        return torch_geometric_graphs([dataset[i] for i in range(len(dataset))], options, origin)
    return torch_geometric_source(dataset[0], options, origin)


def _dataset(origin: str, kind: str, name: str, options: ConvertOptions) -> Any:
    try:
        known = vars(import_module("torch_geometric.datasets"))
    except ImportError as error:
        raise InputError(
            f"{origin}: needs torch-geometric ({error}); pip install torch_geometric"
        ) from None
    if not isinstance(known.get(kind), type):
        near = get_close_matches(kind, [each for each in known if isinstance(known[each], type)])
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"{origin}: torch_geometric.datasets has no {kind!r}{hint}")
    takes, given = signature(known[kind]).parameters, {}
    if "root" in takes:
        given["root"] = options.take("root")
        if given["root"] is None and takes["root"].default is takes["root"].empty:
            raise InputError(f"{origin}: give the folder that it is or shall be in, --root DIR")
    if name:
        given["name"] = name
        if "name" not in takes:
            raise InputError(f"{origin}: {kind} takes no name; give {PREFIX}{kind}")
    elif "name" in takes and takes["name"].default is takes["name"].empty:
        raise InputError(f"{origin}: {kind} has several data sets; give {PREFIX}{kind}/NAME")
    try:
        return known[kind](**given)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise InputError(f"{origin}: torch-geometric cannot load it ({reason[:300]})") from error
