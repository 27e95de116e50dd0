"""Folders of a DGL CSVDataset: a meta.yaml names tables, whose columns have DGL's names."""

from importlib import import_module
from pathlib import Path
from typing import Any

from hpcgnn.convert.formats.table_folder import Description, read_description
from hpcgnn.convert.read.files import read_nested
from hpcgnn.convert.read.tables import TableFile
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError

_KEYS = {"dataset_name", "version", "separator", "node_data", "edge_data", "graph_data"}
_SEPARATORS = (",", ";", "\t", " ")
_NODE_TYPE, _EDGE_TYPE = "_V", ("_V", "_E", "_V")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the data set of a meta.yaml, or in the folder of one; raises `InputError`."""
    file = path if path.is_file() else path / "meta.yaml"
    meta = _load(file)
    _check_keys(file, meta, _KEYS)
    if "graph_data" in meta:
        raise InputError(f"{file}: describes several graphs (graph_data); give the tables of one")
    if meta.get("separator", ",") not in _SEPARATORS:
        raise InputError(f"{file}: separator is {meta['separator']!r}; use a comma or a tab")
    nodes: dict[str, Any] = {}
    for entry in _entries(file, meta, "node_data"):
        _check_keys(file, entry, {"file_name", "ntype", "node_id_field"})
        name = str(entry.get("ntype", _NODE_TYPE))
        _add(file, nodes, name, _node_table(file, entry))
    edges: dict[str, Any] = {}
    for entry in _entries(file, meta, "edge_data"):
        _check_keys(file, entry, {"file_name", "etype", "src_id_field", "dst_id_field"})
        kind = entry.get("etype", _EDGE_TYPE)
        if not isinstance(kind, list | tuple) or len(kind) != 3:
            raise InputError(f"{file}: etype is {kind!r}; give [SOURCE, RELATION, TARGET]")
        _add(file, edges, ",".join(map(str, kind)), _edge_table(file, entry))
    return read_description(path, Description(file, {"nodes": nodes, "edges": edges}), options)


def _load(file: Path) -> dict[str, Any]:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise InputError(
            f"{file}: reading it needs PyYAML; pip install pyyaml, or describe the tables in a "
            "graph.toml"
        ) from None

    def parse(text: str) -> Any:
        try:
            # A few hundred bytes of them may stand for a text of terabytes.
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
                raise ValueError("it has aliases, written *NAME; write what they stand for")
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error

    meta = read_nested(file, parse, "YAML text")
    if not isinstance(meta, dict):
        raise InputError(f"{file}: must hold node_data and edge_data; correct it")
    return meta


def _entries(file: Path, meta: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = meta.get(key, [])
    if not isinstance(entries, list) or not all(
        isinstance(each, dict) and isinstance(each.get("file_name"), str) for each in entries
    ):
        raise InputError(f"{file}: {key} must be a list whose entries have a file_name; correct it")
    return entries


def _check_keys(file: Path, given: dict[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise InputError(f"{file}: {key!r} is none of {', '.join(sorted(known))}")


def _add(file: Path, tables: dict[str, Any], name: str, table: dict[str, Any]) -> None:
    if tables.setdefault(name, table) is not table:
        raise InputError(f"{file}: {name!r} has two tables; keep one")


def _node_table(file: Path, entry: dict[str, Any]) -> dict[str, Any]:
    names = _names(file, entry)
    table = {"files": [entry["file_name"]], "id": entry.get("node_id_field", "node_id")}
    if "graph_id" in names:
        table["ignore"] = "graph_id"
    return table | _features(names)


def _edge_table(file: Path, entry: dict[str, Any]) -> dict[str, Any]:
    names = _names(file, entry)
    table = {"files": [entry["file_name"]], **_features(names)}
    for end in ("src", "dst"):
        table[end] = entry.get(f"{end}_id_field", f"{end}_id")
    return table | ({"weight": "weight"} if "weight" in names else {})


def _features(names: tuple[str, ...]) -> dict[str, Any]:
    return {"features": ["feat"]} if "feat" in names else {}


def _names(file: Path, entry: dict[str, Any]) -> tuple[str, ...]:
    return TableFile.open(file.parent / entry["file_name"], frozenset(), header=True).names
