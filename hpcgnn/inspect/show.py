"""Tables for people; JSON output has all that they leave out."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpcgnn.console import print_table
from hpcgnn.storage import DEFAULT_SPLIT

LONGEST_TEXT = 120
MANY_CLASSES = 20


def show(found: Mapping[str, Any]) -> None:
    """Print what `inspect_path` or `exchange_volume` returned."""
    {
        "store": show_store,
        "programs": show_programs,
        "run": show_run,
        "checkpoint": show_checkpoint,
        "exchange": show_plain,
    }[found["kind"]](found)


def show_plain(found: Mapping[str, Any]) -> None:
    """Print names and values."""
    print_table(found["kind"], ("", "value"), list(found.items())[1:])


def show_store(found: Mapping[str, Any]) -> None:
    """Print a store."""
    print_table("store", ("", "value"), store_rows(found))
    kinds = [(kind["name"], kind["nodes"], features_text(kind)) for kind in found["node_types"]]
    if kinds:
        print_table("node types", ("node type", "nodes", "features"), kinds)
    columns = ("relation", "edges", "weights", "min", "median", "mean", "max", "empty rows")
    rows = []
    for each in found["relations"]:
        degree = each["row_degree"]
        numbers = (degree["min"], f"{degree['median']:g}", f"{degree['mean']:.2f}", degree["max"])
        weights = "yes" if each["weighted"] else "no"
        if each["edge_features"]:
            weights += f", {each['edge_features']} features"
        if each["edge_split"]:
            weights += ", split"
        name = each["name"] or "(untyped)"
        rows.append((name, each["num_edges"], weights, *numbers, degree["empty"]))
    print_table("relations and degrees", columns, rows)
    classes = found["classes"]
    if 0 < len(classes) <= MANY_CLASSES:
        print_table("classes", ("class", "nodes"), [(c["name"], c["nodes"]) for c in classes])


def show_programs(found: Mapping[str, Any]) -> None:
    """Print a store of program graphs."""
    tables = ("kind", "splits", "distributions", "below")
    rows = [(key, text(value)) for key, value in found.items() if key not in tables]
    print_table("program graphs", ("", "value"), rows)
    guesses = [
        [f"{value:.3f}" if isinstance(value, float) else text(value) for value in each.values()]
        for each in found["splits"]
    ]
    columns = ["split", *(name.replace("_", " ") for name in list(found["splits"][0])[1:])]
    print_table("splits, and how often guesses are right", columns, guesses)
    shown = found["distributions"]
    columns = next(iter(shown.values()))
    spread = [(name, *(f"{each:.6g}" for each in row.values())) for name, row in shown.items()]
    print_table("distributions", ("", *columns), spread)
    shares = [(band, f"{100 * (share or 0):.1f} %") for band, share in found["below"].items()]
    print_table("graphs by bandwidth", ("below", "share"), shares)


def store_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the lines of a store's table."""
    for key in ("path", "name", "fingerprint", "num_nodes", "num_edges", "undirected"):
        yield key, found[key]
    yield "isolated nodes", found["isolated_nodes"]
    if graphs := found["graphs"]:
        sizes = graphs["nodes"]
        yield "graphs", f"{graphs['count']} of {sizes['min']} to {sizes['max']} nodes"
    split, parts = found["split"], found["parts"]
    yield "features", "by node type" if found["node_types"] else features_text(found["features"])
    yield "classes", classes_text(found)
    first = next(iter(found["splits"]), "")
    title = "split" if first in ("", DEFAULT_SPLIT) else f"split {first}"
    yield title, ", ".join(f"{k} {v}" for k, v in split.items()) if split else "none"
    for name, sizes in list(found["splits"].items())[1:]:
        yield f"split {name}", ", ".join(f"{k} {v}" for k, v in sizes.items())
    yield "names of nodes", "yes" if found["named_nodes"] else "no"
    yield "parts", parts["count"]
    for name in ("rows", "edges"):
        yield f"{name} of a part", f"{parts[name]['min']} to {parts[name]['max']}"
    yield "edge imbalance of the parts", f"{parts['edges']['imbalance']:.4f}"
    for key, value in found["partition"].items():
        yield f"partition {key}", text(value)
    yield "provenance", text(found["provenance"])
    yield "bytes on disk", found["bytes_on_disk"]
    yield "checksums", "compared, all match" if found["verified"] else "not compared (--verify)"


def features_text(features: Mapping[str, Any] | None) -> str:
    """Return columns and type of features, or that there are none."""
    if features is None or features["dtype"] is None:
        return "none"
    return f"{features['columns']} x {features['dtype']}"


def classes_text(found: Mapping[str, Any]) -> str:
    """Return the classes in a few words."""
    if not found["classes"]:
        return "none"
    kind = "multi-label" if found["multi_label"] else "single-label"
    nodes = [each["nodes"] for each in found["classes"]]
    sizes = f"of {min(nodes)} to {max(nodes)} nodes"
    return f"{len(nodes)} {kind}, {sizes}, {found['unlabelled_nodes']} nodes unlabelled"


def show_run(found: Mapping[str, Any]) -> None:
    """Print a run directory."""
    rows: list[tuple[str, object]] = []
    for section, values in (found["config"] or {}).items():
        rows += [(f"{section}.{key}", text(value)) for key, value in settings(values)]
    print_table("config.toml", ("setting", "value"), rows)
    for title, key in (("summary.json", "summary"), ("last epoch", "last_epoch")):
        if isinstance(found[key], dict):
            show_object(title, found[key])
    members = ("path", "epochs", "checkpoints", "traces", "predictions")
    print_table("run", ("", "value"), [(key, text(found[key])) for key in members])


def show_object(title: str, value: Mapping[str, Any]) -> None:
    """Print a JSON object, and each list of objects in it as a table of its own."""
    lists = {key: each for key, each in value.items() if is_table(each)}
    rest = [(key, text(each)) for key, each in value.items() if key not in lists]
    print_table(title, ("", "value"), rest)
    for key, rows in lists.items():
        columns = [name for name, cell in rows[0].items() if not isinstance(cell, dict | list)]
        cells = [[text(row.get(name)) for name in columns] for row in rows]
        print_table(key, columns, cells)


def is_table(value: Any) -> bool:
    """Tell whether a JSON value is a list of objects."""
    return bool(value) and isinstance(value, list) and all(isinstance(v, dict) for v in value)


def settings(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a section, or the value itself where there are no sections."""
    if isinstance(values, dict):
        yield from values.items()
    else:
        yield "", values


def show_checkpoint(found: Mapping[str, Any]) -> None:
    """Print a checkpoint."""
    rows = [("path", found["path"])]
    rows += [(key, text(value)) for key, value in found["state"].items()]
    rows.append(("checksums", "all match" if found["verified"] else "not compared (--verify)"))
    print_table("checkpoint", ("", "value"), rows)
    for file in found["files"]:
        size = ("(all)", "", f"{file['numbers']} numbers, {file['bytes']} bytes")
        tensors = [(each["name"], each["dtype"], each["shape"]) for each in file["tensors"]]
        print_table(file["name"], ("tensor", "type", "shape"), [*tensors, size])


def text(value: Any) -> str:
    """Return a value on one short line."""
    line = value if isinstance(value, str) else json.dumps(value)
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 4] + " ..."
