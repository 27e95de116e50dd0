"""Batches of files, converted by several processes, each result kept on disk until all are done.

A conversion that was stopped goes on with the batches that are left.
"""

import hashlib
import io
import json
import multiprocessing
import sys
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.programs.instances import FileInstances, file_instances
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.source_file import READ_ERRORS
from hpcgnn.convert.programs.sources import ProgramFile
from hpcgnn.errors import InputError
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import Array

__all__ = ["Part", "convert_parts", "load_part"]

_FILES_A_PART = 16
_FORMAT = 4
_RECURSION_LIMIT = 4000
"""Enough for every expression that people write; generated ones deeper than this are left out."""


@dataclass(frozen=True, eq=False)
class Part:
    """What a batch of files gave: graphs, with `file` counting inside the batch.

    `failures` are (file, reason) pairs; `dropped` counts graphs with too many nodes.
    """

    batch: InstanceBatch
    snippets: Array
    failures: tuple[tuple[int, str], ...]
    dropped: int


def convert_parts(
    files: Sequence[ProgramFile], options: ProgramOptions, folder: Path, processes: int
) -> list[tuple[list[ProgramFile], Path]]:
    """Convert all files; return the batches of files and where the part of each lies.

    Parts that lie in `folder` already are not made again. The result does not depend on
    `processes`.
    """
    batches = [
        list(files[low : low + _FILES_A_PART]) for low in range(0, len(files), _FILES_A_PART)
    ]
    paths = [folder / f"{_key(batch, options)}.npz" for batch in batches]
    missing = [(b, p) for b, p in zip(batches, paths, strict=True) if not p.exists()]
    done = sum(map(len, batches)) - sum(len(batch) for batch, _ in missing)
    with Progress("converting programs", len(files), "files") as progress:
        progress.advance(done)
        for count in _run(missing, options, processes):
            progress.advance(count)
    return list(zip(batches, paths, strict=True))


def _run(
    missing: Sequence[tuple[list[ProgramFile], Path]], options: ProgramOptions, processes: int
) -> Iterator[int]:
    """Make the parts; yield the number of files of each."""
    if processes == 1 or len(missing) < 2:
        for batch, path in missing:
            yield _make_part(batch, path, options)
        return
    # The parent may hold threads of a numerical library, which a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(_make_part, batch, path, options) for batch, path in missing]
        for future in as_completed(futures):
            yield future.result()


def _key(batch: Sequence[ProgramFile], options: ProgramOptions) -> str:
    """Name a part by all that it depends on."""
    described = []
    for file in batch:
        status = file.path.stat()
        described.append((file.name, status.st_size, status.st_mtime_ns))
    text = json.dumps([_FORMAT, sys.version, asdict(options), described])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _make_part(files: Sequence[ProgramFile], path: Path, options: ProgramOptions) -> int:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
    found: list[FileInstances] = []
    failures = []
    for number, file in enumerate(files):
        try:
            made = file_instances(file.path, file.name, options)
        except READ_ERRORS as error:
            failures.append((number, f"{type(error).__name__}: {' '.join(str(error).split())}"))
            continue
        made.batch.graphs["file"] = number
        found.append(made)
    batch = InstanceBatch.join([InstanceBatch.empty(), *(each.batch for each in found)])
    snippets = [each.snippets for each in found]
    _save(
        path,
        Part(
            batch,
            np.concatenate([np.empty((0, 2), np.uint64), *snippets]),
            tuple(failures),
            sum(each.dropped for each in found),
        ),
    )
    return len(files)


def _save(path: Path, part: Part) -> None:
    arrays = {each.name: getattr(part.batch, each.name) for each in fields(part.batch)}
    note = json.dumps({"failures": part.failures, "dropped": part.dropped})
    content = io.BytesIO()
    np.savez(content, snippets=part.snippets, note=np.array(note), **arrays)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(content.getbuffer())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason}); make room or move -o") from None


def load_part(path: Path) -> Part:
    """Read a part; raises `InputError` where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            batch = InstanceBatch(*(saved[each.name] for each in fields(InstanceBatch)))
            note = json.loads(str(saved["note"]))
            failures = tuple((number, reason) for number, reason in note["failures"])
            return Part(batch, saved["snippets"], failures, note["dropped"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is damaged ({error}); remove it and start again") from None
