"""Table descriptions of other tools: GraphStorm's construction file and DGL's CSVDataset.

GraphStorm's feature transformations, split shares and edge labels are reported as ignored. The
columns of a CSVDataset have the names that DGL gives them.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from hpcgnn.convert.formats.table_folder import Description, check_keys
from hpcgnn.convert.read.files import MOST_DESCRIPTION_BYTES, read_json, read_nested
from hpcgnn.convert.read.tables import TableFile
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError

_FORMATS = ("csv", "parquet")
_KEYS = {"dataset_name", "version", "separator", "node_data", "edge_data", "graph_data"}
_SEPARATORS = (",", ";", "\t", " ")
_NODE_TYPE, _EDGE_TYPE = "_V", ("_V", "_E", "_V")


def read_graphstorm(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph that the file `path` describes; raises `InputError`."""
    ignored: list[str] = []
    try:
        tables = _tables(path, read_json(path, MOST_DESCRIPTION_BYTES), ignored)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: is no construction file of GraphStorm ({error}); correct it"
        ) from error
    return Description(path, tables, tuple(ignored)).read(path, options)


def _tables(path: Path, description: Any, ignored: list[str]) -> dict[str, Any]:
    """Return the tables of nodes and edges; append to `ignored` what is left out."""
    nodes, edges = {}, {}
    for entry in _entries(path, description, "nodes", "node_type", "files"):
        name = str(entry["node_type"])
        table = _table(path, entry, f"nodes of {name!r}", ignored)
        if "node_id_col" in entry:
            table["id"] = entry["node_id_col"]
        labels = list(entry.get("labels", []))
        label = next(
            (task for task in labels if task.get("task_type") == "classification"),
            None,
        )
        if label is not None:
            labels.remove(label)
            table["label"] = label["label_col"]
            if "split_pct" in label:
                shares = ",".join(f"{100 * share:g}" for share in label["split_pct"])
                ignored.append(f"split_pct of {name!r} (give --random-split {shares})")
        ignored += [f"label {task.get('label_col')!r} of {name!r}" for task in labels]
        nodes[name] = table
    for entry in _entries(path, description, "edges", "relation", "files"):
        name = ",".join(map(str, entry["relation"]))
        table = _table(path, entry, f"edges of {name!r}", ignored)
        for end, key in (("src", "source_id_col"), ("dst", "dest_id_col")):
            if key not in entry:
                raise InputError(f"{path}: the edges {name!r} have no {key}; add it")
            table[end] = entry[key]
        labels = entry.get("labels", [])
        ignored += [f"label {task.get('label_col')!r} of {name!r}" for task in labels]
        edges[name] = table
    return {"nodes": nodes, "edges": edges}


def _table(path: Path, entry: dict[str, Any], owner: str, ignored: list[str]) -> dict[str, Any]:
    """Return the files and features of an entry; append to `ignored` what is left out."""
    form = entry.get("format", {}).get("name", "parquet")
    if form not in _FORMATS:
        raise InputError(f"{path}: {owner} are in {form!r}; save them as {' or '.join(_FORMATS)}")
    columns: list[str] = []
    for feature in entry.get("features", []):
        names = feature.get("feature_col", [])
        names = [names] if isinstance(names, str) else list(names)
        columns += names
        transform = feature.get("transform", {}).get("name", "noop")
        if transform != "noop":
            ignored.append(f"transform {transform!r} of {', '.join(names)}, {owner}")
    return {"files": entry["files"], "features": columns}


def _entries(file: Path, description: Any, key: str, *needs: str) -> list[dict[str, Any]]:
    """Return the entries of the list `key`; raise `InputError` unless all have the keys `needs`."""
    entries = description.get(key) if isinstance(description, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and set(needs) <= set(entry) for entry in entries
    ):
        raise InputError(
            f"{file}: {key} must be a list whose entries have {' and '.join(needs)}; correct it"
        )
    return entries


def read_dgl_csv(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the data set of a meta.yaml or of a folder with one; raises `InputError`."""
    file = path if path.is_file() else path / "meta.yaml"
    meta = {"node_data": [], "edge_data": [], **_load(file)}
    check_keys(file, meta, _KEYS)
    if "graph_data" in meta:
        raise InputError(f"{file}: describes several graphs (graph_data); give the tables of one")
    if meta.get("separator", ",") not in _SEPARATORS:
        raise InputError(f"{file}: separator is {meta['separator']!r}; use a comma or a tab")
    nodes: dict[str, Any] = {}
    for entry in _entries(file, meta, "node_data", "file_name"):
        check_keys(file, entry, {"file_name", "ntype", "node_id_field"})
        name = str(entry.get("ntype", _NODE_TYPE))
        _add(file, nodes, name, _node_table(file, entry))
    edges: dict[str, Any] = {}
    for entry in _entries(file, meta, "edge_data", "file_name"):
        check_keys(file, entry, {"file_name", "etype", "src_id_field", "dst_id_field"})
        kind = entry.get("etype", _EDGE_TYPE)
        if not isinstance(kind, list | tuple) or len(kind) != 3:
            raise InputError(f"{file}: etype is {kind!r}; give [SOURCE, RELATION, TARGET]")
        _add(file, edges, ",".join(map(str, kind)), _edge_table(file, entry))
    return Description(file, {"nodes": nodes, "edges": edges}).read(path, options)


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
            # A few hundred bytes of nested aliases may expand to terabytes.
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
                raise ValueError("it has aliases, written *NAME; write what they stand for")
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error

    meta = read_nested(file, parse, "YAML text", MOST_DESCRIPTION_BYTES)
    if not isinstance(meta, dict):
        raise InputError(f"{file}: must hold node_data and edge_data; correct it")
    return meta


def _add(file: Path, tables: dict[str, Any], name: str, table: dict[str, Any]) -> None:
    if tables.setdefault(name, table) is not table:
        raise InputError(f"{file}: {name!r} has two tables; keep one")


def _node_table(file: Path, entry: dict[str, Any]) -> dict[str, Any]:
    names = _names(file, entry)
    table = {"files": [str(entry["file_name"])], "id": entry.get("node_id_field", "node_id")}
    if "graph_id" in names:
        table["ignore"] = "graph_id"
    return table | _features(names)


def _edge_table(file: Path, entry: dict[str, Any]) -> dict[str, Any]:
    names = _names(file, entry)
    table = {"files": [str(entry["file_name"])], **_features(names)}
    for end in ("src", "dst"):
        table[end] = entry.get(f"{end}_id_field", f"{end}_id")
    return table | ({"weight": "weight"} if "weight" in names else {})


def _features(names: tuple[str, ...]) -> dict[str, Any]:
    return {"features": ["feat"]} if "feat" in names else {}


def _names(file: Path, entry: dict[str, Any]) -> tuple[str, ...]:
    return TableFile.open(file.parent / str(entry["file_name"]), frozenset(), header=True).names
