"""``hpcgnn export``: write a trained model as a module of another library, and compare both."""

import argparse
import importlib
import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as save_tensors

from hpcgnn.comm import ProcessGrid
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.export.blueprint import Blueprint, under
from hpcgnn.export.check import compare, load_module, read_structure
from hpcgnn.export.heads import Head, facts_of_encoder, facts_of_frames, facts_of_pairs, with_head
from hpcgnn.export.layers import Layers
from hpcgnn.export.module import write_source
from hpcgnn.graph.facts import shape_for
from hpcgnn.nn import find_model
from hpcgnn.storage import GraphStore, write_whole
from hpcgnn.train.run.saved_model import SavedModel, open_saved_model
from hpcgnn.train.tasks import EXPORT, check_saved

_PACKAGES = {"pyg": "torch_geometric", "dgl": "dgl"}


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    saved = open_saved_model(
        options.run, options.seed, options.store, trust_code=options.trust_code
    ).of_task(options.task, own_store=False)
    blueprint = _blueprint(saved, own_store=options.store is None)
    text, tensors = write_source(blueprint, options.to)
    layers = Layers.of(blueprint, options.to)
    output: Path = options.output or options.run / f"export-{options.to}"
    summary: dict[str, Any] = {
        "output": str(output),
        "to": options.to,
        "model": saved.config.model_name,
        "layers": layers.library,
        **saved.origin(),
    }
    content = {
        "model.py": text.encode(),
        "model.safetensors": save_tensors(
            {name: value.contiguous() for name, value in tensors.items()}
        ),
    }
    if saved.config.graph.num_structural:
        with ProcessGrid.of_this_process() as grid:
            table = io.BytesIO()
            np.save(table, read_structure(grid, saved.config))
        content["structure.npy"] = table.getvalue()
    reason = "as --no-check says" if options.no_check else _missing(options.to)
    if reason is None:
        with ProcessGrid.of_this_process() as grid, tempfile.TemporaryDirectory() as folder:
            for name, data in content.items():
                Path(folder, name).write_bytes(data)
            checked = compare(grid, saved, load_module(Path(folder)), options.to)
        if not checked.agrees:
            raise RuntimeError(
                f"{options.to}: logits differ by {checked.difference:.3g}, the largest is "
                f"{checked.largest:.3g}: this is a defect of hpcgnn export; nothing was written"
            )
        summary |= {"nodes": checked.nodes, "difference": checked.difference}
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {output}: {error.strerror}; name a folder to create") from None
    for name, data in content.items():
        write_whole(output / name, data)
    if options.json:
        print_json(summary)
        return 0
    report(f"wrote {output}: {summary['model']} for {options.to}, seed {summary['seed']}")
    if layers.instead:
        report(f"its layers are written in plain torch: {layers.instead}")
    if reason is None:
        head = Head.of(blueprint, options.to)
        unit = "nodes" if head is None else head.returns
        report(
            f"compared on {checked.nodes} {unit} in float64: logits differ by at most "
            f"{checked.difference:.1e}, the largest is {checked.largest:.3g}"
        )
    else:
        report(f"not compared with the model, {reason}")
    if saved.config.correct_and_smooth.enabled:
        report("its logits are those before Correct and Smooth")
    return 0


def _missing(library: str) -> str | None:
    """Return why a module of a library cannot be run here; None if it can."""
    package = _PACKAGES.get(library)
    if package is None:
        return None
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed here"
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever a broken installation raises
        return f"{package} does not import: {error}"
    return None


def _blueprint(saved: SavedModel, *, own_store: bool) -> Blueprint:
    """Return the description of a model; raises `InputError` if it cannot be exported.

    With `own_store` the store is the one it was trained on.
    """
    config = saved.config
    check_saved(config, EXPORT)
    if own_store:
        saved.check_store()
    name, graph = config.model.name, config.graph
    facts, best = saved.trained, saved.checkpoint.best
    kind = find_model(name)
    label_columns = facts.num_classes if config.train.label_augmentation > 0 else 0
    fields = config.train.task == "fields"
    if facts.type_names and (label_columns or fields or graph.normalize_features == "standard"):
        raise InputError(
            f"{saved.run}: columns of labels, fields, and features scaled to deviation 1 are not "
            "exported for node types; use hpcgnn predict"
        )
    with GraphStore.open(graph.store) as store:
        names = graph.relations or store.relations
        weighted = graph.weights == "use" and any(store.weighted(name) for name in names)
        mirrored = store.undirected
        pairs, frames = facts_of_pairs(config, store), facts_of_frames(saved, store)
    shape = shape_for(config, facts_of_encoder(saved))
    scales, seed = saved.scales(), saved.checkpoint.state["seed"]
    reads_edges = shape.num_edge_features or pairs.num_features
    edge_scales = scales.of_relations() if reads_edges else []
    if len(edge_scales) > 1:
        raise InputError(
            f"{saved.run}: features of edges of {len(edge_scales)} relations, each scaled to "
            "deviation 1, are not exported; use hpcgnn predict"
        )
    saved.check(shape, lambda encoder: with_head(saved, pairs, encoder))
    head = {name: rows for name, rows in best.items() if not name.startswith("encoder.")}
    encoder = under("encoder.", best)
    if not encoder:
        encoder, head = best, {}
    by_relation = any(aggregation.by_relation for aggregation in kind.aggregations)
    return Blueprint(
        config=config,
        kind=kind,
        shape=shape,
        facts=facts,
        pairs=pairs,
        tensors=under("body.", encoder) if facts.type_names else encoder,
        inputs=under("inputs.", encoder),
        head=head,
        weighted=weighted,
        mirrored=mirrored,
        unites=len(names) > 1 and not by_relation,
        reverses=by_relation and facts.directed and graph.reverse,
        scale=scales.get(""),
        edge_scale=edge_scales[0] if edge_scales else None,
        num_behind=label_columns
        if frames is None
        else frames.columns.rows.nodes.num_read * config.fields.history,
        frames=frames,
        origin=f"{name}, trained by hpcgnn with seed {seed}.",
    )
