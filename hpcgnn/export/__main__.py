"""``python -m hpcgnn.export``: a trained model as a module of torch, torch_geometric or DGL."""

import argparse
import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from hpcgnn.comm import Communicator, ProcessGrid
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.export.blueprint import Blueprint, under
from hpcgnn.export.body import LIBRARIES, write_source
from hpcgnn.export.check import compare, load_module
from hpcgnn.graph.facts import shape_for
from hpcgnn.launch import RankArgumentParser, run_mpi_command
from hpcgnn.nn import find_model
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, write_whole
from hpcgnn.train.features import DGL, EXPORT, check_saved
from hpcgnn.train.run.saved_model import TRUST_CODE, SavedModel, open_saved_model

DESCRIPTION = """Write a trained model as a module of another library: FOLDER/model.py, source to
keep and change, and FOLDER/model.safetensors, its state dict under the names of that library's
layers.
  python -m hpcgnn.export RUN_DIR --to pyg -o FOLDER
The module gives logits; scaling of features, self loops, reverses and normalisation are in it.
Start it as one process. It compares the module with the model on the run's graph, in float64."""

EPILOG = """libraries:
  torch  classes of the module itself, products of sparse matrices
  pyg    layers of torch_geometric
  dgl    layers of DGL
A module of a library that is not installed here is written, but not compared.
exit status: 0 written; 2 a fault of the input, one line tells which."""

_PACKAGES = {"pyg": "torch_geometric", "dgl": "dgl"}


@collective
def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status."""
    options = _parser().parse_args()
    if comm.size > 1:
        raise InputError(
            f"{comm.size} ranks: exporting is one process; start it without a launcher"
        )
    saved = open_saved_model(
        options.run, options.seed, options.store, trust_code=options.trust_code
    )
    text, tensors = write_source(_blueprint(saved, options.to), options.to)
    output: Path = options.output or options.run / f"export-{options.to}"
    found: dict[str, Any] = {
        "output": str(output),
        "to": options.to,
        "model": saved.config.model_name,
        **saved.origin(),
    }
    content = {
        "model.py": text.encode(),
        "model.safetensors": save_tensors(
            {name: value.contiguous() for name, value in tensors.items()}
        ),
    }
    reason = "as --no-check says" if options.no_check else _missing(options.to)
    if reason is None:
        with ProcessGrid(comm) as grid, tempfile.TemporaryDirectory() as folder:
            for name, each in content.items():
                Path(folder, name).write_bytes(each)
            checked = compare(grid, saved, load_module(Path(folder)), options.to)
        if not checked.agrees:
            raise RuntimeError(
                f"{options.to}: logits differ by {checked.difference:.3g}, the largest is "
                f"{checked.largest:.3g}: this is a defect of hpcgnn export, nothing was written"
            )
        found |= {"nodes": checked.nodes, "difference": checked.difference}
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {output}: {error.strerror}; name a folder to make") from None
    for name, each in content.items():
        write_whole(output / name, each)
    if options.json:
        print_json(found)
        return 0
    report(f"wrote {output}: {found['model']} for {options.to}, seed {found['seed']}")
    if reason is None:
        report(
            f"compared on {checked.nodes} nodes in float64: logits differ by "
            f"{checked.difference:.1e} at most, the largest is {checked.largest:.3g}"
        )
    else:
        report(f"not compared with the model, {reason}")
    if saved.config.correct_and_smooth.enabled:
        report("its logits are those before Correct and Smooth")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = RankArgumentParser("export", DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add(
        "run", type=Path, metavar="RUN_DIR", help="run directory of hpcgnn.train, or its model file"
    )
    add("--to", choices=tuple(LIBRARIES), required=True, help="library")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="made where there is none; its files are replaced (default: RUN_DIR/export-LIBRARY)",
    )
    add("--seed", type=int, help="seed whose model is used (default: the best by validation)")
    add("--store", metavar="G.h5", help="the run's graph, where it lies elsewhere now")
    add(
        "--no-check",
        action="store_true",
        help="do not compare: for graphs that one process cannot hold",
    )
    add("--trust-code", action="store_true", help=TRUST_CODE)
    add("--json", action="store_true", help="print what was written as JSON")
    return parser


def _missing(library: str) -> str | None:
    """Return why a module of a library cannot be run here; None where it can."""
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


def _blueprint(saved: SavedModel, library: str) -> Blueprint:
    """Return what is exported; raises `InputError` where it has no counterpart elsewhere."""
    config = saved.config
    check_saved(config, EXPORT, *([DGL] if library == "dgl" else []))
    name, graph = config.model.name, config.graph
    facts, best = saved.trained, saved.checkpoint.best
    kind = find_model(name)
    labels = facts.num_classes if config.train.label_augmentation > 0 else 0
    if facts.type_names and (labels or graph.normalize_features == "standard"):
        raise InputError(
            f"{saved.run}: columns of labels, and features scaled to deviation 1, are not exported "
            "for node types; use hpcgnn predict"
        )
    with GraphStore.open(graph.store) as store:
        names = graph.relations or store.relations
        weighted = graph.weights == "use" and any(store.weighted(each) for each in names)
    shape, scales = shape_for(config, facts), saved.scales() or {}
    saved.check(shape)
    by_relation = any(each.by_relation for each in kind.aggregations)
    return Blueprint(
        name=name,
        kind=kind,
        shape=shape,
        facts=facts,
        tensors=under("body.", best) if facts.type_names else best,
        inputs=under("inputs.", best),
        weighted=weighted,
        reverses=by_relation and facts.directed and graph.reverse,
        normalize=graph.normalize_features,
        scale=scales.get(""),
        num_label_columns=labels,
        origin=f"{name}, trained by hpcgnn with seed {saved.checkpoint.state['seed']}.",
    )


if __name__ == "__main__":
    run_mpi_command("export", main)
