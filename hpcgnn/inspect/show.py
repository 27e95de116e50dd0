"""Tables for people; JSON output has all that they leave out."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpcgnn.console import print_table
from hpcgnn.storage import DEFAULT_SPLIT

LONGEST_TEXT = 120
MANY_CLASSES = 20


def show(content: Mapping[str, Any]) -> None:
    """Print what `inspect_path` or `exchange_volume` returned."""
    {
        "store": show_store,
        "programs": show_programs,
        "run": show_run,
        "checkpoint": show_checkpoint,
        "exchange": show_plain,
    }[content["kind"]](content)


def show_plain(content: Mapping[str, Any]) -> None:
    """Print names and values."""
    print_table(content["kind"], ("", "value"), list(content.items())[1:])


def show_store(content: Mapping[str, Any]) -> None:
    """Print a store."""
    print_table("store", ("", "value"), store_rows(content))
    kinds = [(kind["name"], kind["nodes"], features_text(kind)) for kind in content["node_types"]]
    if kinds:
        print_table("node types", ("node type", "nodes", "features"), kinds)
    columns = ("relation", "edges", "weights", "min", "median", "mean", "max", "empty rows")
    rows = []
    for relation in content["relations"]:
        degree = relation["row_degree"]
        numbers = (degree["min"], f"{degree['median']:g}", f"{degree['mean']:.2f}", degree["max"])
        weights = "yes" if relation["weighted"] else "no"
        if relation["edge_features"]:
            weights += f", {relation['edge_features']} features"
        if relation["edge_split"]:
            weights += ", split"
        name = relation["name"] or "(untyped)"
        rows.append((name, relation["num_edges"], weights, *numbers, degree["empty"]))
    print_table("relations and degrees", columns, rows)
    classes = content["classes"]
    if 0 < len(classes) <= MANY_CLASSES:
        print_table("classes", ("class", "nodes"), [(c["name"], c["nodes"]) for c in classes])


def show_programs(content: Mapping[str, Any]) -> None:
    """Print a store of program graphs."""
    tables = ("kind", "splits", "distributions", "below")
    rows = [(key, text(value)) for key, value in content.items() if key not in tables]
    print_table("program graphs", ("", "value"), rows)
    guesses = [
        [f"{value:.3f}" if isinstance(value, float) else text(value) for value in split.values()]
        for split in content["splits"]
    ]
    columns = ["split", *(name.replace("_", " ") for name in list(content["splits"][0])[1:])]
    print_table("splits, and how often guesses are right", columns, guesses)
    shown = content["distributions"]
    columns = next(iter(shown.values()))
    spread = [(name, *(f"{value:.6g}" for value in row.values())) for name, row in shown.items()]
    print_table("distributions", ("", *columns), spread)
    shares = [(band, f"{100 * (share or 0):.1f} %") for band, share in content["below"].items()]
    print_table("graphs by bandwidth", ("below", "share"), shares)


def store_rows(content: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the lines of a store's table."""
    for key in ("path", "name", "fingerprint", "num_nodes", "num_edges", "undirected"):
        yield key, content[key]
    yield "isolated nodes", content["isolated_nodes"]
    if graphs := content["graphs"]:
        sizes = graphs["nodes"]
        yield "graphs", f"{graphs['count']} of {sizes['min']} to {sizes['max']} nodes"
    split, parts = content["split"], content["parts"]
    yield (
        "features",
        "by node type" if content["node_types"] else features_text(content["features"]),
    )
    yield "classes", classes_text(content)
    first = next(iter(content["splits"]), "")
    title = "split" if first in ("", DEFAULT_SPLIT) else f"split {first}"
    yield title, ", ".join(f"{k} {v}" for k, v in split.items()) if split else "none"
    for name, sizes in list(content["splits"].items())[1:]:
        yield f"split {name}", ", ".join(f"{k} {v}" for k, v in sizes.items())
    yield "names of nodes", "yes" if content["named_nodes"] else "no"
    yield "parts", parts["count"]
    for name in ("rows", "edges"):
        yield f"{name} of a part", f"{parts[name]['min']} to {parts[name]['max']}"
    yield "edge imbalance of the parts", f"{parts['edges']['imbalance']:.4f}"
    for key, value in content["partition"].items():
        yield f"partition {key}", text(value)
    yield "provenance", text(content["provenance"])
    yield "bytes on disk", content["bytes_on_disk"]
    yield "checksums", "compared, all match" if content["verified"] else "not compared (--verify)"


def features_text(features: Mapping[str, Any] | None) -> str:
    """Return columns and type of features, or that there are none."""
    if features is None or features["dtype"] is None:
        return "none"
    return f"{features['columns']} x {features['dtype']}"


def classes_text(content: Mapping[str, Any]) -> str:
    """Return the classes in a few words."""
    if not content["classes"]:
        return "none"
    kind = "multi-label" if content["multi_label"] else "single-label"
    nodes = [row["nodes"] for row in content["classes"]]
    sizes = f"of {min(nodes)} to {max(nodes)} nodes"
    return f"{len(nodes)} {kind}, {sizes}, {content['unlabelled_nodes']} nodes unlabelled"


def show_run(content: Mapping[str, Any]) -> None:
    """Print a run directory."""
    rows: list[tuple[str, object]] = []
    for section, values in (content["config"] or {}).items():
        rows += [(f"{section}.{key}", text(value)) for key, value in settings(values)]
    print_table("config.toml", ("setting", "value"), rows)
    for title, key in (("summary.json", "summary"), ("last epoch", "last_epoch")):
        if isinstance(content[key], dict):
            show_object(title, content[key])
    members = ("path", "epochs", "checkpoints", "traces", "predictions")
    print_table("run", ("", "value"), [(key, text(content[key])) for key in members])


def show_object(title: str, value: Mapping[str, Any]) -> None:
    """Print a JSON object, and each list of objects in it as a table of its own."""
    lists = {key: item for key, item in value.items() if is_table(item)}
    rest = [(key, text(item)) for key, item in value.items() if key not in lists]
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


def show_checkpoint(content: Mapping[str, Any]) -> None:
    """Print a checkpoint."""
    rows = [("path", content["path"])]
    rows += [(key, text(value)) for key, value in content["state"].items()]
    rows.append(("checksums", "all match" if content["verified"] else "not compared (--verify)"))
    print_table("checkpoint", ("", "value"), rows)
    for file in content["files"]:
        size = ("(all)", "", f"{file['numbers']} numbers, {file['bytes']} bytes")
        tensors = [(tensor["name"], tensor["dtype"], tensor["shape"]) for tensor in file["tensors"]]
        print_table(file["name"], ("tensor", "type", "shape"), [*tensors, size])


def text(value: Any) -> str:
    """Return a value on one short line."""
    line = value if isinstance(value, str) else json.dumps(value)
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 4] + " ..."
