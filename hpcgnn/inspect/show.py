"""Print the results of `inspect` as tables; the JSON output is complete."""

import importlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcgnn.console import (
    metric_text,
    print_table,
    print_values,
    report,
    report_next,
    start_of,
)
from hpcgnn.inspect.runs import ranks_of_last_start
from hpcgnn.storage import DEFAULT_SPLIT

MANY_CLASSES, MANY_NAMES = 20, 8


def show(content: Mapping[str, Any]) -> None:
    """Print the result of `inspect_path` or `exchange_volume`."""
    {
        "store": show_store,
        "programs": show_programs,
        "run": show_run,
        "checkpoint": show_checkpoint,
        "exchange": show_plain,
    }[content["kind"]](content)


def show_plain(content: Mapping[str, Any]) -> None:
    """Print names and values."""
    print_values(content["kind"], dict(list(content.items())[1:]))


def show_store(content: Mapping[str, Any]) -> None:
    """Print a store."""
    print_values("store", dict(store_rows(content)))
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
            names = named(relation["edge_feature_names"])
            weights += f", {relation['edge_features']} features{names}"
        if relation["edge_split"]:
            weights += ", split"
        if relation["edge_labels"]:
            weights += ", labels"
        name = relation["name"] or "(untyped)"
        rows.append((name, relation["num_edges"], weights, *numbers, degree["empty"]))
    print_table("relations and degrees", columns, rows)
    classes = content["classes"]
    if 0 < len(classes) <= MANY_CLASSES:
        print_table("classes", ("class", "nodes"), [(c["name"], c["nodes"]) for c in classes])


def show_programs(content: Mapping[str, Any]) -> None:
    """Print a store of program graphs."""
    tables = ("kind", "splits", "distributions", "below")
    print_values("program graphs", {k: v for k, v in content.items() if k not in tables})
    guesses = [
        [f"{value:.3f}" if isinstance(value, float) else value for value in split.values()]
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
        yield "graphs", f"{graphs['count']:,} of {sizes['min']:,} to {sizes['max']:,} nodes"
    split, parts = content["split"], content["parts"]
    yield (
        "features",
        "by node type" if content["node_types"] else features_text(content["features"]),
    )
    yield "classes", classes_text(content)
    first = next(iter(content["splits"]), "")
    title = "split" if first in ("", DEFAULT_SPLIT) else f"split {first}"
    yield title, split or "none"
    for name, sizes in list(content["splits"].items())[1:]:
        yield f"split {name}", sizes
    yield "names of nodes", content["named_nodes"]
    if mesh := content["mesh"]:
        yield "positions", mesh_text(mesh)
    if content["fields"]:
        yield "fields", fields_text(content["fields"])
    yield "parts", parts["count"]
    for name in ("rows", "edges"):
        yield f"{name} of a part", f"{parts[name]['min']:,} to {parts[name]['max']:,}"
    yield "edge imbalance of the parts", f"{parts['edges']['imbalance']:.4f}"
    partition = content["partition"]
    for key, value in {**partition, **partition.get("metrics", {})}.items():
        if key != "metrics":
            yield f"partition {key}", value
    made_by = content["provenance"].get("command", "")
    yield "made by", made_by if isinstance(made_by, str) else " ".join(made_by)
    yield "bytes on disk", content["bytes_on_disk"]
    yield "checksums", "compared, all match" if content["verified"] else "not compared (--verify)"


def features_text(features: Mapping[str, Any] | None) -> str:
    """Return columns, type and density of features, or "none"."""
    if features is None or features["dtype"] is None:
        return "none"
    text = f"{features['columns']} x {features['dtype']}"
    if "density" in features:
        form, density = "sparse" if features["sparse"] else "dense", features["density"]
        text += f", {form}, {density:.3%} not zero (in {features['density_of_rows']:,} rows)"
    return text + named(features.get("names", ()))


def named(names: Sequence[str]) -> str:
    """Return the names of columns after a colon; empty if they have none."""
    if len(names) > MANY_NAMES:
        names = [*names[:MANY_NAMES], f"{len(names) - MANY_NAMES} more"]
    return f": {', '.join(names)}" if names else ""


def mesh_text(mesh: Mapping[str, Any]) -> str:
    """Return the axes of positions, and whether nodes have weights."""
    axes = f"{mesh['dimensions']} axes" if mesh["dimensions"] else "none"
    periods = [f"{period:g}" for period in mesh["box"]]
    periodic = f", periods {' x '.join(periods)} (0: none)" if any(mesh["box"]) else ""
    return f"{axes}{periodic}; nodes {'with' if mesh['node_weights'] else 'without'} weights"


def fields_text(content: Mapping[str, Any]) -> str:
    """Return fields and times in a few words."""
    texts = []
    for field in content["fields"]:
        columns = f"{field['columns']} column{'s' * (field['columns'] > 1)}"
        facts = [columns, field["dtype"], field["unit"]]
        facts += ["of edges"] * (field["of"] == "edges")
        texts.append(f"{field['name']} ({', '.join(filter(None, facts))})")
    steps, runs = content["steps"], content["trajectories"]
    unit = f" {content['time_unit']}".rstrip()
    when = f"{content['first_time']:g} to {content['last_time']:g}{unit}"
    noun = "trajectories" if runs > 1 else "trajectory"
    steps_text = f"{steps:,} step{'s' * (steps > 1)} of {runs:,} {noun}"
    return f"{', '.join(texts)}; {steps_text}, {when}"


def classes_text(content: Mapping[str, Any]) -> str:
    """Return the classes in a few words."""
    if not content["classes"]:
        return "none"
    kind = "multi-label" if content["multi_label"] else "single-label"
    nodes = [row["nodes"] for row in content["classes"]]
    sizes = f"of {min(nodes):,} to {max(nodes):,} nodes"
    return f"{len(nodes)} {kind}, {sizes}, {content['unlabelled_nodes']:,} nodes unlabelled"


def show_run(content: Mapping[str, Any]) -> None:
    """Print a run directory: results, then settings."""
    summary, path = content["summary"] or {}, content["path"]
    metric = summary.get("metric", "accuracy")
    columns = ("", "epochs", "kept epoch", f"valid {metric}", f"test {metric}")
    rows = [
        (
            (f"split {seed['split']} " if "split" in seed else "") + f"seed {seed['seed']}",
            *(seed.get("epochs"), seed.get("best_epoch"), *_scores(metric, seed)),
        )
        for seed in summary.get("seeds", ())
    ]
    if rows:
        rows += [("mean", "", "", *_scores(metric, summary["mean"]))]
        print_table(f"{summary.get('model', 'model')} on {summary['name']}", columns, rows)
    elif content["last_epoch"]:
        print_values("last epoch", content["last_epoch"])
    facts = {key: summary.get(key) for key in ("ranks", "exchange", "schedule")}
    facts["seconds of an epoch"] = summary.get("epoch_s", {}).get("median")
    if (wait := summary.get("sample_wait_share")) is not None:
        facts["share of an epoch that waits for samples"] = f"{wait:.1%}"
    facts |= {f"{key} of an epoch": summary.get(f"epoch_{key}") for key in ("rows", "bytes")}
    peaks = [rank["peak_rss_bytes"] / 2**20 for rank in summary.get("ranks_detail", ())]
    facts["MiB of the largest rank"] = round(max(peaks)) if peaks else None
    facts |= {key: content[key] for key in ("epochs", "checkpoints", "traces", "predictions")}
    print_values(f"run {path}", {key: value for key, value in facts.items() if value is not None})
    # Imported here, since it takes longer than the rest.
    described = importlib.import_module("hpcgnn.config.file").describe_keys()
    defaults = {key: default for key, default, _ in described}
    settings = {f"{table}.{key}": value for table, key, value in _settings(content["config"] or {})}
    changed = [(k, v) for k, v in settings.items() if json.dumps(v) != defaults.get(k)]
    print_table("settings other than defaults", ("key", "value"), changed)
    if rows:
        runs = [Path(path, f"split-{split['name']}") for split in summary.get("splits", ())]
        report_next("analyse", "report", *(runs or [path]))
    elif content["config"] is not None:
        start = start_of(ranks_of_last_start(Path(path)))
        report(f"next: {start} {shlex.quote(str(Path(path, 'config.toml')))}")


def _scores(metric: str, values: Mapping[str, Any]) -> list[str]:
    return [metric_text(metric, values.get(name)) for name in ("valid", "test")]


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for section, values in config.items():
        if isinstance(values, dict):
            yield from ((section, key, value) for key, value in values.items())


def show_checkpoint(content: Mapping[str, Any]) -> None:
    """Print a checkpoint."""
    checked = "all match" if content["verified"] else "not compared (--verify)"
    print_values("checkpoint", {"path": content["path"], **content["state"], "checksums": checked})
    for file in content["files"]:
        size = ("(all)", "", f"{file['numbers']:,} numbers, {file['bytes']:,} bytes")
        shapes = [
            (tensor["name"], tensor["dtype"], " x ".join(map(str, tensor["shape"])))
            for tensor in file["tensors"]
        ]
        print_table(file["name"], ("tensor", "type", "shape"), [*shapes, size])
