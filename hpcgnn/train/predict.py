"""The command ``predict``, which runs on every rank.

Any number of ranks, up to the parts of the store, writes the same rows in the order of the original
graph, or of the store for programs.
"""

import argparse
import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, ProcessGrid, agree
from hpcgnn.config.options import require
from hpcgnn.console import metric_text, print_json, report, warn
from hpcgnn.errors import InputError, named
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.graph.device import require_device
from hpcgnn.spmd import collective
from hpcgnn.storage import (
    PREDICTION_FORMATS,
    ROLLOUT_FORMATS,
    CsvPredictions,
    GraphStore,
    H5Predictions,
    NamesOf,
    NpyPredictions,
    ParquetPredictions,
    PredictionFile,
    RowIds,
    TableColumns,
    check_output,
    read_whole,
)
from hpcgnn.support import Feature, Trait, lacks, needs
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.fields.predictions import predict_fields
from hpcgnn.train.full.predictions import (
    NodeRows,
    infer,
    order_as_requested,
    order_by_id,
    score_rows,
    write_rows,
)
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.predictions import best_targets, links_of_other
from hpcgnn.train.links.requested_pairs import read_pairs, relation_of
from hpcgnn.train.process import prepare_process
from hpcgnn.train.programs.predictions import predict_programs
from hpcgnn.train.run.report import rollout_line
from hpcgnn.train.run.saved_model import (
    SavedModel,
    load_saved_graph,
    open_saved_model,
)
from hpcgnn.train.tasks import check_saved
from hpcgnn.typing import Array, GlobalIndices

_NEKRS = "nekrs"
"""The format of nekRS folders, which have no file ending."""

_LONGEST_ID = 20
"""The number of characters of the smallest int64."""


@collective
def main(options: argparse.Namespace, comm: Communicator) -> int:
    """Run the command; return its exit status."""
    with ProcessGrid(comm, options.replication) as grid:
        summary = predict(grid, options)
    if comm.rank == 0:
        if options.json:
            print_json(summary)
        else:
            report("wrote {output}: {what} of {rows} {of}, seed {seed}".format(**summary))
            if count := summary.get("formulas", 0):
                warn(
                    f"{options.output}: {count} names or classes begin like spreadsheet formulas "
                    "(= + - @): import them as text, or write .parquet"
                )
            for name, score in summary.get("scores", {}).items():
                value = metric_text(score["metric"], score["value"])
                report(f"{name} {summary['of']}: {score['metric']} {value} of {score['nodes']}")
            if rolled := summary.get("rollout"):
                report(rollout_line(rolled))
            for name, split in summary.get("splits", {}).items():
                line = "{graphs} graphs, accuracy {accuracy:.1%}, chance {chance:.1%}"
                report(f"{name}: " + line.format(**split))
    return 0


@collective
def predict(grid: ProcessGrid, options: argparse.Namespace) -> dict[str, Any]:
    """Load the model and the graph, predict, and write the file; return a summary.

    Raises `CollectiveInputError` for any fault of the input; an earlier file at the output stays
    intact.
    """
    with agree(grid.world):
        saved = open_saved_model(
            options.run, options.seed, options.store, trust_code=options.trust_code
        )
        own_store = options.store is None
        saved = saved.of_task(options.task, own_store=own_store).on(options.device)
        if own_store and saved.config.train.task != "programs":
            saved.check_store()
        rolls = options.rollout is not None
        if options.like is not None:
            require(rolls, "--like", options.like, "give --rollout too")
        format_name = format_of(options, ROLLOUT_FORMATS if rolls else PREDICTION_FORMATS)
        if options.top is not None:
            require(options.top >= 1, "--top", options.top, "give a number from 1 on")
        require(options.block >= 0, "--block", options.block, "give a size, or 0 for all edges")
        check_saved(saved.config, *option_features(options))
        embeds = saved.config.train.task == "links" and not _of_pairs(options)
        options.what = options.what or ("embeddings" if embeds else "probabilities")
        require_device(saved.config)
        watchdog.set_limit(saved.config.run.stall_s)
        if grid.rank == 0 and format_name != _NEKRS:
            values = [options.output.with_suffix(".h5")] if format_name == "xdmf" else []
            for output in (options.output, *values):
                check_output(output, Path(saved.config.graph.store), *filter(None, [options.like]))
        asks = grid.rank == 0 and options.nodes is not None
        nodes = requested_nodes(options.nodes, saved) if asks else None
    requested = grid.world.bcast(nodes, root=0)
    prepare_process(grid, saved.config.run.threads)
    with computing_as(grid, saved.config), grid.run_position.unpacked():
        return _predict(grid, saved, options, format_name, requested)


def _predict(
    grid: ProcessGrid,
    saved: SavedModel,
    options: argparse.Namespace,
    format_name: str,
    requested: GlobalIndices | None,
) -> dict[str, Any]:
    if saved.config.train.task == "programs":
        return predict_programs(grid, saved, options)
    if options.rollout is not None:
        return predict_fields(grid, saved, options)
    predictor: LinkObjective | EdgeObjective | None = None
    if saved.config.train.task == "edges":
        predictor = EdgeObjective.for_predictions(grid, saved)
    if saved.config.train.task == "links":
        # Sampled links are for training only.
        config = replace(saved.config, links=replace(saved.config.links, sampled=False))
        context = Context.open(grid, config, TraceRecorder.off())
        predictor = links_of_other(grid, saved) if options.store else LinkObjective.load(context)[0]
    if predictor is not None and options.what != "embeddings":
        return _predict_pairs(grid, saved, predictor, options, format_name, requested)
    graph = predictor.graph if predictor else load_saved_graph(grid, saved)
    make = predictor.make_model if predictor else partial(saved.make_model, graph)
    rows = infer(graph, saved.model(grid, make), options.what, saved.rule)
    scores = score_rows(graph, rows)
    unit = "graph" if graph.facts.num_graphs else "node"
    if requested is None:
        rows = order_by_id(grid, rows)
    else:
        rows = order_as_requested(grid, rows, requested, saved.config.graph.store, unit)
    what = "values" if graph.facts.targets and options.what != "embeddings" else options.what
    form, ids = (format_name, what), RowIds((f"{unit}_id",))
    done = write_predictions(grid, saved, options, form, rows, ids)
    return {**done, "what": what, "of": f"{unit}s", "scores": scores}


def _predict_pairs(
    grid: ProcessGrid,
    saved: SavedModel,
    predictor: LinkObjective | EdgeObjective,
    options: argparse.Namespace,
    format_name: str,
    requested: GlobalIndices | None,
) -> dict[str, Any]:
    relations, given, relation = predictor.relations, None, 0
    with agree(grid.world):
        if options.top is not None:
            relation = relations.index(relation_of(relations, options.relation))
        elif options.pairs is not None and grid.rank == 0:
            with GraphStore.open(saved.config.graph.store) as store:
                width = predictor.pair_features
                given = read_pairs(options.pairs, store, relations, options.relation, width)
    pairs = grid.world.bcast(given, root=0)
    model: Any = saved.model(grid, predictor.make_model)
    if pairs is not None:
        rows = predictor.of_pairs(model, pairs, saved.rule)
    elif isinstance(predictor, LinkObjective):
        with_known = options.with_known
        rows = best_targets(
            predictor, model, requested, relation, options.top, with_known=with_known
        )
    else:
        rows = predictor.of_all(model, saved.rule)
    ids, what = RowIds.of_pairs(relations), predictor.saying
    summary = write_predictions(grid, saved, options, (format_name, what), rows, ids)
    unit = "pairs" if _of_pairs(options) else "edges"
    return {**summary, "what": "scores" if what == "score" else what, "of": unit}


def _of_pairs(options: argparse.Namespace) -> bool:
    return options.pairs is not None or options.top is not None


def option_features(options: argparse.Namespace) -> Iterator[Feature]:
    """Yield the requirements that the options have on the run's task and on each other."""
    rolls = options.rollout is not None
    format_name = format_of(options, ROLLOUT_FORMATS if rolls else PREDICTION_FORMATS)
    for option, is_set, traits in (
        ("--pairs", options.pairs is not None, _PAIRS),
        ("--top", options.top is not None, _TOP),
        ("--relation", options.relation, needs(Trait.PAIR_ROWS)),
        ("--with-known", options.with_known, needs(Trait.FOUND_PAIRS)),
        ("--rollout", rolls, needs(Trait.FIELDS)),
        ("--from", options.from_step is not None, needs(Trait.FIELDS)),
        ("--block", options.block != 0, needs(Trait.PROGRAMS)),
        ("--nodes", options.nodes is not None, needs(Trait.CHOSEN_ROWS)),
        (
            f"--format {format_name}",
            format_name not in (*ROLLOUT_FORMATS, _NEKRS),
            needs(Trait.FORMATS),
        ),
        (f"--format {format_name}", format_name in ("xdmf", _NEKRS), needs(Trait.NODE_FIELDS)),
        ("--what embeddings", options.what == "embeddings", needs(Trait.NODE_ROWS)),
        ("--what probabilities", options.what == "probabilities", needs(Trait.PROBABILITIES)),
        ("--replication", options.replication > 1, needs(Trait.REPLICAS)),
    ):
        if is_set:
            yield Feature(option, traits, remedy=f"leave {option} out")
    if not (_of_pairs(options) or rolls):
        remedy = "give --pairs or --top, or --rollout of fields"
        yield Feature("predicting nodes", _OF_NODES, remedy=remedy)


_NO_NODES = {Trait.NODE_ROWS: "it has a row for each pair"}
_PAIRS = needs(
    Trait.PAIRS,
    Trait.PAIR_ROWS,
    lacks={
        **_NO_NODES,
        Trait.FOUND_PAIRS: "they are the pairs to score; to search for pairs, give --top alone",
        Trait.CHOSEN_ROWS: "it has both ends of each pair",
    },
)
_TOP = needs(Trait.PAIRS, Trait.PAIR_ROWS, Trait.FOUND_PAIRS, lacks=_NO_NODES)
_OF_NODES = lacks(
    {
        Trait.PAIR_ROWS: "each node has a row",
        Trait.FOUND_PAIRS: "no pairs are searched for",
        Trait.STEPS: "each node has one row",
    }
)


def format_of(options: argparse.Namespace, formats: Sequence[str] = PREDICTION_FORMATS) -> str:
    """Return the format to write; raises `InputError` if no ending or option names one."""
    if options.like is not None and options.output.suffix != ".xdmf":
        remedy = "is a mesh, whose cells only an .xdmf shows; write -o NAME.xdmf"
        require(not options.like.is_file(), "--like", options.like, remedy)
        return _NEKRS
    format_name: str = options.format or options.output.suffix.removeprefix(".")
    if format_name not in formats:
        endings = ", ".join(f".{ending}" for ending in formats)
        raise InputError(
            f"-o {options.output}: its ending names no format; give {endings}, or --format"
        )
    return format_name


@contextlib.contextmanager
def _about_nodes(grid: ProcessGrid, saved: SavedModel) -> Iterator[dict[str, NamesOf]]:
    """Yield, on rank 0, lookups of node names and types by original ids."""
    about: dict[str, NamesOf] = {}
    with contextlib.ExitStack() as stack:
        with agree(grid.world):
            if grid.rank == 0 and not saved.trained.num_graphs:
                store = stack.enter_context(GraphStore.open(saved.config.graph.store))
                about |= {"name": store.names} if store.has_names else {}
                about |= {"type": store.types_of_ids} if about and store.node_types else {}
        yield about


@collective
def write_predictions(
    grid: ProcessGrid,
    saved: SavedModel,
    options: argparse.Namespace,
    form: tuple[str, str],
    rows: NodeRows,
    ids: RowIds,
) -> dict[str, Any]:
    """Write rows in order; return the paths, the shape and the model's origin.

    `form` is the format, and the content: probabilities, values, embeddings or score.
    Raises `CollectiveInputError` if the file cannot be written.
    """
    shape = (int(grid.layer.allreduce(len(rows.ids))), *rows.values.shape[1:])
    with _about_nodes(grid, saved) as about:
        file = _file(options.output, saved, form, shape, ids, about)
        write_rows(grid, rows.columns, file.write)
    return {
        "output": str(options.output),
        "ids": str(file.ids_path) if isinstance(file, NpyPredictions) and file.has_ids else None,
        "rows": shape[0],
        "columns": math.prod(shape[1:]),
        "ranks": grid.size,
        "formulas": getattr(file, "num_formulas", 0),
        **saved.origin(),
    }


def _file(
    path: Path,
    saved: SavedModel,
    form: tuple[str, str],
    shape: tuple[int, ...],
    ids: RowIds,
    about: Mapping[str, NamesOf],
) -> PredictionFile:
    (format_name, what), facts = form, saved.trained
    if format_name == "npy":
        return NpyPredictions(path, shape, "<f8" if what == "values" else "<f4", ids)
    names = facts.targets or facts.class_names
    if format_name == "h5":
        classes = names if what in ("probabilities", "values") else ()
        names_of = None if ids.relations else about.get("name")
        return H5Predictions(path, what, classes, saved.origin(), ids=ids, names_of=names_of)
    titles = {
        "score": ("score",),
        "values": facts.targets,
        "probabilities": [f"p_{name}" for name in names or range(shape[-1])],
        "embeddings": [f"e{number}" for number in range(shape[-1])],
    }
    table = CsvPredictions if format_name == "csv" else ParquetPredictions
    predicts = what == "probabilities"
    return table(path, TableColumns(titles[what], predicts, facts.class_names, about, ids))


def requested_nodes(text: str, saved: SavedModel) -> GlobalIndices:
    """Return the original ids that ``--nodes`` gives by number or by name.

    Raises `InputError` if the file cannot be read, or no node has such a name.
    """
    if saved.trained.num_graphs:
        return read_ids(text)
    path = saved.config.graph.store
    with GraphStore.open(path) as store:
        if not store.has_names or text.endswith(".npy"):
            return read_ids(text)
        names = read_names(text)
        rows = store.find_names(names)
    missing = [name for name, node in zip(names, rows.tolist(), strict=True) if node < 0]
    if missing:
        raise InputError(f"--nodes: {path} has no node {named(missing)}; give names of its nodes")
    return rows


def read_names(text: str) -> list[str]:
    """Return the names that ``--nodes`` gives: in a file, one per line, or as A,B,...

    Raises `InputError` if the file cannot be read, or has no names.
    """
    remedy = "--nodes: give a file of names, or A,B,..."
    try:
        is_file = Path(text).exists()
    except OSError:
        # The text is longer than a file name may be.
        is_file = False
    try:
        names = text.split(",")
        if is_file:
            names = read_whole(Path(text), remedy).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{text}: {error}; {remedy}") from None
    names = [name for name in names if name]
    if not names:
        raise InputError(f"--nodes {text}: holds no names; give one a line, or A,B,...")
    return names


def read_ids(text: str) -> GlobalIndices:
    """Return the int64 ids that ``--nodes`` gives.

    Raises `InputError` if the file cannot be read, or holds anything but integers.
    """
    path, remedy = Path(text), "give a file or ids such as 1,5,9"
    inline = re.fullmatch(r"-?\d+(,-?\d+)*", text)
    content = b"" if inline else read_whole(path, f"--nodes: {remedy}")
    try:
        if inline:
            values = np.array([_id(number) for number in text.split(",")])
        elif text.endswith(".npy"):
            values = np.load(io.BytesIO(content), allow_pickle=False)
        else:
            lines = content.decode("utf-8-sig").splitlines()
            numbers = [line.split("#")[0].strip() for line in lines]
            values = np.array([_id(number) for number in numbers if number])
    except (ValueError, EOFError) as error:
        raise InputError(f"--nodes {text}: {error}; give one integer a line, or .npy") from error
    return _as_ids(text, values)


def _id(text: str) -> int:
    # Python refuses very long numbers with a message about its own settings.
    if len(text) > _LONGEST_ID:
        raise ValueError(f"a number of {len(text)} digits is no id")
    return int(text)


def _as_ids(text: str, values: Array) -> GlobalIndices:
    fits = values.ndim == 1 and len(values) > 0 and values.dtype.kind in "iu"
    if not fits or values.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"--nodes {text}: has shape {values.shape} and type {values.dtype}; give a list of "
            "at least one integer below 2^63"
        )
    return values.astype(np.int64)
