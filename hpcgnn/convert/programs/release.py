"""Convert the published VarMisuse data set: gzipped JSON lists of graphs of C# programs."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.programs.conversion import ProgramReport
from hpcgnn.convert.programs.graph import CANDIDATE_LABEL, HOLE_LABEL, ProgramGraph, name_label
from hpcgnn.convert.programs.instances import pack_instance
from hpcgnn.convert.programs.options import ProgramOptions, draw
from hpcgnn.convert.programs.relations import EDGE_NAMES
from hpcgnn.errors import InputError
from hpcgnn.storage import InstanceBatch, InstanceHeader, InstanceSplit, InstanceWriter

RELEASE_EDGE_NAMES = (*EDGE_NAMES, "UsesSubtoken")
_ALIASES = {"LastUse": "LastRead"}
_NUMBERS = {name: number for number, name in enumerate(RELEASE_EDGE_NAMES)}

_SPLITS = {
    "graphs-train": InstanceSplit.TRAIN,
    "graphs-valid": InstanceSplit.VALID,
    "graphs-test": InstanceSplit.TEST,
    "graphs-testonly": InstanceSplit.UNSEEN,
}


def convert_release(
    folders: Sequence[Path], out: str | Path, options: ProgramOptions
) -> ProgramReport:
    """Convert the data set below `folders` into the store `out`, one file in memory at a time.

    The folders graphs-train, graphs-valid, graphs-test and graphs-testonly (projects not used for
    training) determine the split. Files that cannot be read are reported. Raises `InputError`.
    """
    files = [(path, _split_of(path)) for folder in folders for path in sorted(folder.rglob("*.gz"))]
    if not files:
        raise InputError(f"{folders[0]}: holds no .gz files; give folders of the release")
    # The index is grouped by split.
    files.sort(key=lambda pair: pair[1])
    names = [path.name for path, _ in files]
    header = InstanceHeader(
        name=folders[0].name or "release",
        edge_names=RELEASE_EDGE_NAMES,
        num_buckets=options.num_buckets,
        steps=options.steps,
        provenance={"command": "convert programs --release", "options": asdict(options)},
    )
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    with (
        InstanceWriter(out, header, names) as writer,
        Progress("converting the release", len(files), "files") as progress,
    ):
        for number, (path, split) in enumerate(files):
            try:
                batch = _read_file(path, options, counts)
            except Exception as error:
                # Damaged files raise exceptions of many types, none of which is a bug here.
                failures[str(path)] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            else:
                batch.graphs["file"], batch.graphs["split"] = number, split
                writer.append(batch)
                counts[split.name.lower()] += len(batch)
            progress.advance()
        splits = {role.name.lower(): counts[role.name.lower()] for role in InstanceSplit}
        if sum(splits.values()) == 0:
            reason = f" ({next(iter(failures.values()))})" if failures else ""
            raise InputError(
                f"{out}: no graph was found in {len(files)} files{reason}; give the whole release"
            )
    return ProgramReport(Path(out), len(files), splits, failures, 0, counts["too_large"])


def _split_of(path: Path) -> InstanceSplit:
    for part in reversed(path.parts):
        if part in _SPLITS:
            return _SPLITS[part]
    raise InputError(f"{path}: is in none of the folders {', '.join(_SPLITS)}; keep their names")


def _read_file(path: Path, options: ProgramOptions, counts: Counter[str]) -> InstanceBatch:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        elements = json.load(stream)
    batches = [InstanceBatch.empty()]
    for number, element in enumerate(elements):
        batches += _instance(element, f"{path.name}:{number}", options, counts)
    return InstanceBatch.join(batches)


def _instance(
    element: Mapping[str, Any], name: str, options: ProgramOptions, counts: Counter[str]
) -> Iterator[InstanceBatch]:
    # The order of the list may reveal the correct symbol, so draw another.
    symbols = sorted(
        element["SymbolCandidates"],
        key=lambda symbol: draw(
            options.seed, name, symbol["SymbolName"], symbol["SymbolDummyNode"]
        ),
    )
    correct = [number for number, symbol in enumerate(symbols) if symbol["IsCorrect"]]
    if len(symbols) < 2 or len(correct) != 1:
        return
    batch = pack_instance(
        _graph(element, symbols),
        flip=bool(draw(options.seed, name, "flip") & 1),
        label=correct[0],
        line=0,
        num_uses=[0] * len(symbols),
        distances=[0] * len(symbols),
        options=options,
    )
    if batch is None:
        counts["too_large"] += 1
    else:
        yield batch


def _graph(element: Mapping[str, Any], symbols: Sequence[Mapping[str, Any]]) -> ProgramGraph:
    context = element["ContextGraph"]
    rows = [
        (_NUMBERS[_ALIASES.get(kind, kind)], source, target)
        for kind, pairs in context["Edges"].items()
        for source, target in pairs
    ]
    edges = np.unique(np.array(rows, np.int32).reshape(-1, 3), axis=0)
    labels = {int(node): text for node, text in context["NodeLabels"].items()}
    candidates = np.array([symbol["SymbolDummyNode"] for symbol in symbols], np.int32)
    slot = int(element["SlotDummyNode"])
    nodes = [slot, *candidates.tolist(), *labels, *edges[:, 1:].ravel().tolist()]
    if min(nodes) < 0:
        raise ValueError(f"a node has the number {min(nodes)}")
    texts = [name_label(str(labels.get(node, ""))) for node in range(max(nodes) + 1)]
    texts[slot] = HOLE_LABEL
    for node, symbol in zip(candidates.tolist(), symbols, strict=True):
        texts[node] = (CANDIDATE_LABEL, *name_label(str(symbol["SymbolName"])))
    return ProgramGraph(texts, edges, candidates)
