"""The formats that are read, and how an input tells which it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hpcgnn.convert import (
    edge_list,
    graphsaint,
    matrix_market,
    metis,
    npz,
    ogb,
    planetoid,
    typed_edge_list,
)
from hpcgnn.convert.files import read_blocks
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.convert.text_reader import first_fields
from hpcgnn.errors import InputError

__all__ = ["FORMATS", "Format", "detect", "read_source"]


@dataclass(frozen=True, slots=True)
class Format:
    """A reader, a line about it, and which of the options that few formats know it takes."""

    read: Callable[[Path, ConvertOptions], GraphSource]
    about: str
    options: frozenset[str] = frozenset()


_EDGE_LIST_OPTIONS = frozenset({"relabel", "num_nodes", "columns"})

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "npz": Format(npz.read, "arrays of edges and nodes in one .npz", frozenset({"split"})),
        "ogb": Format(ogb.read, "OGB node-property folder", frozenset({"split"})),
        "graphsaint": Format(graphsaint.read, "GraphSAINT folder"),
        "planetoid": Format(planetoid.read, "Planetoid files ind.NAME.*"),
        "matrix-market": Format(matrix_market.read, "Matrix Market .mtx"),
        "metis": Format(metis.read, "METIS .graph"),
        "edge-list": Format(edge_list.read, "lines 'src dst [weight]'", _EDGE_LIST_OPTIONS),
        "typed-edge-list": Format(
            typed_edge_list.read, "lines 'src dst relation [weight]'", _EDGE_LIST_OPTIONS
        ),
    }
)

_BY_ENDING = {
    ".npz": "npz",
    ".mtx": "matrix-market",
    ".graph": "metis",
    ".metis": "metis",
}
_TEXT_ENDINGS = (".txt", ".tsv", ".csv", ".el", ".edges", ".edgelist")
_REFUSED = {
    ".h5": "a store needs no conversion",
    ".hdf5": "a store needs no conversion",
    ".pt": "pickles of torch could execute code: use hpcgnn.convert.from_torch_geometric in Python",
    ".pkl": "pickles could execute code: save the arrays as .npz",
    ".bin": "binary graphs of DGL are not read: use hpcgnn.convert.from_dgl in Python",
}


def detect(path: Path) -> tuple[str, str]:
    """Return the format of `path` and the reason for it; raises `InputError` if none fits."""
    if path.is_dir():
        return _detect_folder(path)
    if path.name.startswith("ind."):
        return "planetoid", "the name begins with ind."
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending in _REFUSED:
        raise InputError(f"{path}: is not converted; {_REFUSED[ending]}")
    if ending in _BY_ENDING:
        return _BY_ENDING[ending], f"the name ends with {ending}"
    if ending in _TEXT_ENDINGS:
        return _detect_text(path)
    raise InputError(f"{path}: its name tells no format; choose one with --format: {_names()}")


def _detect_folder(path: Path) -> tuple[str, str]:
    if (path / "adj_full.npz").exists():
        return "graphsaint", "the folder holds adj_full.npz"
    if (path / "raw").is_dir():
        return "ogb", "the folder holds raw/"
    if any(path.glob("ind.*.graph")):
        return "planetoid", "the folder holds ind.NAME.graph"
    raise InputError(
        f"{path}: holds none of adj_full.npz, raw/ and ind.NAME.graph; "
        "give the folder or file of one graph"
    )


def _detect_text(path: Path) -> tuple[str, str]:
    first = next(read_blocks(path, 1 << 16), None)
    if first is not None and first.data[:14].decode("latin1").lower() == matrix_market.BANNER:
        return "matrix-market", "the first line is its banner"
    fields, line = first_fields(path)
    try:
        for field in fields:
            float(field)
    except ValueError:
        if len(fields) > 2 and fields[0].isdigit():
            return "typed-edge-list", f"line {line} has a word in it"
    return "edge-list", f"line {line} has {len(fields)} fields"


def read_source(path: Path, name: str, options: ConvertOptions) -> GraphSource:
    """Read `path` as the format `name`; raises `InputError` for options that do not apply."""
    chosen = FORMATS.get(name)
    if chosen is None:
        raise InputError(f"--format {name}: is none of {_names()}")
    given = {
        "relabel": options.relabel,
        "num_nodes": options.num_nodes is not None,
        "columns": options.columns is not None,
        "split": options.split is not None,
    }
    for option, is_given in given.items():
        if is_given and option not in chosen.options:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag}: does not apply to the format {name}; leave it out")
    return chosen.read(path, options)


def _names() -> str:
    return ", ".join(FORMATS)
