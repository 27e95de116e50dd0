"""Convert folders of Python files, with several processes, to one store of program graphs."""

import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.programs.instances import Part, file_instances
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.relations import EDGE_NAMES
from hpcgnn.convert.programs.sources import READ_ERRORS, ProgramFile, find_files
from hpcgnn.errors import InputError
from hpcgnn.storage import (
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
    InstanceWriter,
    check_output,
    write_whole,
)
from hpcgnn.typing import Array

_FILES_A_PART = 16
_FORMAT = 4
_RECURSION_LIMIT = 4000
"""Enough for all handwritten expressions; files with deeper, generated ones are left out."""


@dataclass(frozen=True)
class _Batch:
    """Files converted together, the number of the first, and the path of their saved instances."""

    files: Sequence[ProgramFile]
    first: int
    path: Path

    @classmethod
    def of(
        cls, files: Sequence[ProgramFile], first: int, options: ProgramOptions, folder: Path
    ) -> "_Batch":
        """Return the batch from file `first` on; its path hashes all that it depends on."""
        batch = files[first : first + _FILES_A_PART]
        described = []
        for file in batch:
            status = file.path.stat()
            described.append((file.name, status.st_size, status.st_mtime_ns))
        text = json.dumps([_FORMAT, sys.version, asdict(options), described])
        key = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
        return cls(batch, first, folder / f"{key}.npz")

    def load(self) -> Part:
        try:
            with np.load(self.path, allow_pickle=False) as saved:
                batch = InstanceBatch(*(saved[column.name] for column in fields(InstanceBatch)))
                note = json.loads(str(saved["note"]))
                failures = tuple((number, reason) for number, reason in note["failures"])
                return Part(batch, saved["snippets"], note["dropped"], failures)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{self.path}: is damaged ({error}); remove it and start again"
            ) from None


def _make_parts(batches: Sequence[_Batch], options: ProgramOptions, processes: int) -> None:
    """Convert the batches without a saved part; `processes` does not change the result."""
    missing = [batch for batch in batches if not batch.path.exists()]
    total, num_missing = (sum(len(batch.files) for batch in group) for group in (batches, missing))
    with Progress("converting programs", total, "files") as progress:
        progress.advance(total - num_missing)
        if processes == 1 or len(missing) < 2:
            for batch in missing:
                progress.advance(_make_part(batch, options))
            return
        # A fork would lose the threads of numerical libraries in the parent.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            futures = [pool.submit(_make_part, batch, options) for batch in missing]
            for future in as_completed(futures):
                progress.advance(future.result())


def _make_part(batch: _Batch, options: ProgramOptions) -> int:
    """Convert the files of a batch and save their instances; return the number of files."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
    parts: list[Part] = []
    failures = []
    for number, file in enumerate(batch.files):
        try:
            part = file_instances(file.path, file.name, options)
        except READ_ERRORS as error:
            failures.append((number, f"{type(error).__name__}: {' '.join(str(error).split())}"))
            continue
        part.batch.graphs["file"] = number
        parts.append(part)
    instances = InstanceBatch.join([InstanceBatch.empty(), *(part.batch for part in parts)])
    snippets = np.concatenate([np.empty((0, 2), np.uint64), *(part.snippets for part in parts)])
    note = {"failures": failures, "dropped": sum(part.dropped for part in parts)}
    arrays = {part.name: getattr(instances, part.name) for part in fields(instances)}
    content = io.BytesIO()
    np.savez(content, snippets=snippets, note=np.array(json.dumps(note)), **arrays)
    write_whole(batch.path, content.getvalue())
    return len(batch.files)


@dataclass(frozen=True)
class ProgramReport:
    """What was read and written; `failures` maps unreadable files to reasons.

    `repeated` counts instances left out because their snippet is also in another file, `too_large`
    those with more than `max_nodes` nodes.
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
    """Convert the Python files below `folders` into the store `out`; raises `InputError`.

    An interrupted call leaves its finished parts in ``OUT.parts``; repeating the call resumes it.
    The result does not depend on the number of processes. Unreadable files are reported.
    """
    chosen, target = options or ProgramOptions(), Path(out)
    check_output(target)
    files = find_files([Path(folder) for folder in folders], chosen)
    folder = target.with_name(f"{target.name}.parts")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); change -o") from None
    starts = range(0, len(files), _FILES_A_PART)
    batches = [_Batch.of(files, first, chosen, folder) for first in starts]
    _make_parts(batches, chosen, processes)
    report = _write(
        target, batches, [Path(source_folder).name for source_folder in folders], chosen
    )
    shutil.rmtree(folder)
    return report


def _write(
    target: Path,
    batches: Sequence[_Batch],
    inputs: Sequence[str],
    options: ProgramOptions,
) -> ProgramReport:
    files = [file for batch in batches for file in batch.files]
    header = InstanceHeader(
        name=inputs[0] or "programs",
        edge_names=EDGE_NAMES,
        num_buckets=options.num_buckets,
        steps=options.steps,
        provenance={"command": "convert programs", "inputs": inputs, "options": asdict(options)},
    )
    masks = _first_copies(batches)
    failures: dict[str, str] = {}
    too_large = repeated = 0
    splits = dict.fromkeys((role.name.lower() for role in InstanceSplit), 0)
    with InstanceWriter(target, header, [file.name for file in files]) as writer:
        for split in InstanceSplit:
            for batch, kept in zip(batches, masks, strict=True):
                part = batch.load()
                split_of_file = np.array([file.split for file in batch.files], np.uint8)
                split_of = split_of_file[part.batch.graphs["file"]]
                instances = part.batch.select(np.flatnonzero(kept & (split_of == split)))
                instances.graphs["split"] = split
                instances.graphs["file"] += batch.first
                writer.append(instances)
                splits[split.name.lower()] += len(instances)
                if split is InstanceSplit.TRAIN:
                    failures.update({batch.files[i].name: reason for i, reason in part.failures})
                    too_large += part.dropped
                    repeated += int((~kept).sum())
        if sum(splits.values()) == 0:
            raise InputError(
                f"{target}: no hole was found in {len(files)} files; give larger programs"
            )
    return ProgramReport(target, len(files), splits, failures, repeated, too_large)


def _first_copies(batches: Sequence[_Batch]) -> list[Array]:
    """Return a mask of graphs to keep for each part: of repeated snippets, only the first file's.

    Files are in random order, so the split of a repeated snippet is random too.
    """
    owner: dict[int, int] = {}
    masks = []
    for batch in batches:
        part = batch.load()
        kept = np.ones(len(part.batch), np.bool_)
        numbers = (part.batch.graphs["file"] + batch.first).tolist()
        for row, (number, hashes) in enumerate(zip(numbers, part.snippets.tolist(), strict=True)):
            owners = [owner.setdefault(snippet, number) for snippet in hashes]
            kept[row] = all(file == number for file in owners)
        masks.append(kept)
    return masks
