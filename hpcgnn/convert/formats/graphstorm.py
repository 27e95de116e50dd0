"""GraphStorm's construction file: JSON that names tables of node types and of edge types.

Transformations of features, shares of splits and labels of edges are listed as ignored.
"""

from pathlib import Path
from typing import Any

from hpcgnn.convert.formats.table_folder import Description, read_description
from hpcgnn.convert.read.files import read_json
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError

_FORMATS = ("csv", "parquet")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph that the file `path` describes; raises `InputError`."""
    ignored: list[str] = []
    try:
        tables = _tables(path, read_json(path), ignored)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: is no construction file of GraphStorm ({error}); correct it"
        ) from error
    return read_description(path, Description(path, tables, tuple(ignored)), options)


def _tables(path: Path, description: Any, ignored: list[str]) -> dict[str, Any]:
    """Return the tables of nodes and edges; notes in `ignored` what is left out."""
    nodes, edges = {}, {}
    for entry in _entries(path, description, "nodes", "node_type"):
        name = str(entry["node_type"])
        table = _table(path, entry, f"nodes of {name!r}", ignored)
        if "node_id_col" in entry:
            table["id"] = entry["node_id_col"]
        labels = list(entry.get("labels", []))
        label = next((each for each in labels if each.get("task_type") == "classification"), None)
        if label is not None:
            labels.remove(label)
            table["label"] = label["label_col"]
            if "split_pct" in label:
                shares = ",".join(f"{100 * share:g}" for share in label["split_pct"])
                ignored.append(f"split_pct of {name!r} (give --random-split {shares})")
        ignored += [f"label {each.get('label_col')!r} of {name!r}" for each in labels]
        nodes[name] = table
    for entry in _entries(path, description, "edges", "relation"):
        name = ",".join(map(str, entry["relation"]))
        table = _table(path, entry, f"edges of {name!r}", ignored)
        for end, key in (("src", "source_id_col"), ("dst", "dest_id_col")):
            if key not in entry:
                raise InputError(f"{path}: the edges {name!r} have no {key}; add it")
            table[end] = entry[key]
        labels = entry.get("labels", [])
        ignored += [f"label {each.get('label_col')!r} of {name!r}" for each in labels]
        edges[name] = table
    return {"nodes": nodes, "edges": edges}


def _entries(path: Path, description: Any, key: str, name: str) -> list[dict[str, Any]]:
    entries = description.get(key) if isinstance(description, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(each, dict) and name in each and "files" in each for each in entries
    ):
        raise InputError(
            f"{path}: {key} must be a list whose entries have {name} and files, as GraphStorm's "
            "construction has it; correct it"
        )
    return entries


def _table(path: Path, entry: dict[str, Any], what: str, ignored: list[str]) -> dict[str, Any]:
    """Return files and features of an entry; notes in `ignored` what is left out."""
    form = entry.get("format", {}).get("name", "parquet")
    if form not in _FORMATS:
        raise InputError(f"{path}: {what} are in {form!r}; save them as {' or '.join(_FORMATS)}")
    columns: list[str] = []
    for feature in entry.get("features", []):
        given = feature.get("feature_col", [])
        these = [given] if isinstance(given, str) else list(given)
        columns += these
        transform = feature.get("transform", {}).get("name", "noop")
        if transform != "noop":
            ignored.append(f"transform {transform!r} of {', '.join(these)}, {what}")
    return {"files": entry["files"], "features": columns}
