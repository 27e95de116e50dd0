"""The conversion of folders of Python into one store of program graphs."""

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hpcgnn.convert.programs.edge_types import EDGE_NAMES
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.parts import Part, convert_parts, load_part
from hpcgnn.convert.programs.sources import ProgramFile, find_files
from hpcgnn.errors import InputError
from hpcgnn.storage import (
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
    InstanceWriter,
    check_output,
)
from hpcgnn.typing import Array

__all__ = ["ProgramReport", "convert_programs"]


@dataclass(frozen=True)
class ProgramReport:
    """What was read and written.

    `failures` maps the names of files that could not be read to the reason; `repeated` counts
    instances that were left out because their snippet is also in another file, `too_large` those
    with more than `max_nodes` nodes.
    """

    path: Path
    num_files: int
    splits: Mapping[str, int]
    failures: Mapping[str, str]
    repeated: int
    too_large: int


def convert_programs(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: ProgramOptions | None = None,
    *,
    processes: int = 1,
) -> ProgramReport:
    """Convert the Python files below `folders` into the store `out`.

    An interrupted call leaves its finished parts in ``OUT.parts``; the same call goes on there.
    The result is the same for any number of processes. Raises `InputError` for faulty input;
    files that cannot be read are reported, not fatal.
    """
    chosen, target = options or ProgramOptions(), Path(out)
    check_output(target)
    files = find_files([Path(folder) for folder in folders], chosen)
    folder = target.with_name(f"{target.name}.parts")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); move -o") from None
    batches = convert_parts(files, chosen, folder, processes)
    report = _write(target, batches, [Path(each).name for each in folders], chosen)
    shutil.rmtree(folder)
    return report


def _write(
    target: Path,
    batches: Sequence[tuple[list[ProgramFile], Path]],
    inputs: Sequence[str],
    options: ProgramOptions,
) -> ProgramReport:
    files = [file for batch, _ in batches for file in batch]
    header = InstanceHeader(
        name=inputs[0] or "programs",
        edge_names=EDGE_NAMES,
        num_buckets=options.num_buckets,
        steps=options.steps,
        provenance={"command": "convert programs", "inputs": inputs, "options": asdict(options)},
    )
    counts: Counter[str] = Counter()
    kept = [_kept(batches)]
    failures = {}
    splits = dict.fromkeys((each.name.lower() for each in InstanceSplit), 0)
    with InstanceWriter(target, header, [file.name for file in files]) as writer:
        for split in InstanceSplit:
            first = 0
            for position, (batch, path) in enumerate(batches):
                part = load_part(path)
                mine = _of_split(part, batch, split, kept[0][position])
                mine.graphs["file"] += first
                writer.append(mine)
                splits[split.name.lower()] += len(mine)
                first += len(batch)
                if split is InstanceSplit.TRAIN:
                    failures.update({batch[number].name: why for number, why in part.failures})
                    counts["too_large"] += part.dropped
                    counts["repeated"] += int((~kept[0][position]).sum())
    if sum(splits.values()) == 0:
        raise InputError(f"{target}: no hole was found in {len(files)} files; give larger programs")
    return ProgramReport(
        target, len(files), splits, failures, counts["repeated"], counts["too_large"]
    )


def _kept(batches: Sequence[tuple[list[ProgramFile], Path]]) -> list[Array]:
    """Return for each part which graphs stay: of a snippet in several files, only the first's.

    Files come in drawn order, so a snippet's side of the split is drawn too.
    """
    owner: dict[int, int] = {}
    kept = []
    first = 0
    for batch, path in batches:
        part = load_part(path)
        stays = np.ones(len(part.batch), np.bool_)
        numbers = (part.batch.graphs["file"] + first).tolist()
        for row, (number, hashes) in enumerate(zip(numbers, part.snippets.tolist(), strict=True)):
            owners = [owner.setdefault(each, number) for each in hashes]
            stays[row] = all(each == number for each in owners)
        kept.append(stays)
        first += len(batch)
    return kept


def _of_split(
    part: Part, files: Sequence[ProgramFile], split: InstanceSplit, stays: Array
) -> InstanceBatch:
    sides = np.array([file.split for file in files], np.uint8)[part.batch.graphs["file"]]
    batch = part.batch.select(np.flatnonzero(stays & (sides == split)))
    batch.graphs["split"] = split
    return batch
