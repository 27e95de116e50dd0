"""Save the progress of a conversion, so that an interrupted one can resume.

The folder `OUT.h5.parts` holds the sorted runs of each rank and the state of each rank. States have
generations: a manifest names the last one that all ranks have written completely. Whatever was
appended to the runs after it is ignored.
"""

import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hpcgnn import __version__
from hpcgnn.comm import RankGroup
from hpcgnn.errors import InputError
from hpcgnn.storage import SpillFile, hold, write_whole

_MANIFEST = "manifest.json"
_DAMAGE = (OSError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError)


class SavedConversion:
    """The folder of one conversion, locked until the end of the ``with`` block."""

    def __init__(self, folder: Path, ranks: RankGroup, key: Mapping[str, Any]) -> None:
        """Open or make the folder; collective. `InputError` if it belongs to another `key`."""
        self._folder, self._ranks = folder, ranks
        self._key = json.loads(json.dumps({**key, "ranks": ranks.size, "version": __version__}))
        self._lock: int | None = None
        try:
            self._generation: int = ranks.from_first(self._open)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> int:
        """Lock the folder and return the generation to resume from, 0 if there is none."""
        manifest = self._folder / _MANIFEST
        try:
            if self._folder.is_symlink():
                raise OSError("it is a link")
            self._folder.mkdir(exist_ok=True)
            self._lock = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            if not hold(self._lock):
                raise BlockingIOError
            if not manifest.exists():
                return 0
            document = json.loads(manifest.read_text())
            key, generation = dict(document["key"]), int(document["generation"])
        except BlockingIOError:
            raise InputError(
                f"{self._folder}: another conversion uses it; wait for it to end, or choose "
                "another output"
            ) from None
        except _DAMAGE as error:
            raise InputError(
                f"{self._folder}: cannot be used ({error}); remove it to begin anew"
            ) from error
        changed = [name for name, value in self._key.items() if key.get(name) != value]
        if changed:
            raise InputError(
                f"{self._folder}: is of a conversion with other {', '.join(changed)}; give the "
                "same, or remove the folder to begin anew"
            )
        return generation

    def state(self) -> Any:
        """Return the state that this rank saved last, or None; collective."""
        state = None
        with self._ranks.agree():
            if self._generation:
                file = self._state_file(self._generation)
                try:
                    document = json.loads(file.read_text())
                    state = document["state"]
                    if document["crc32"] != _crc(state):
                        raise ValueError("it does not match its checksum")
                except _DAMAGE as error:
                    raise InputError(
                        f"{file}: cannot be read ({error}); remove {self._folder} to begin anew"
                    ) from error
        return state

    def file(self, number: int) -> SpillFile:
        """Return the file of this rank's sorted runs of relation `number`."""
        return SpillFile(self._folder, f"{self._ranks.rank}-{number}.runs")

    def save(self, state: Mapping[str, Any]) -> None:
        """Save the state of this rank, whose runs are already on disk; collective."""
        new = self._generation + 1
        with self._ranks.agree():
            # The checksum is of what will be read back: JSON turns tuples into lists.
            plain = json.loads(json.dumps(state))
            document = {"crc32": _crc(plain), "state": plain}
            write_whole(self._state_file(new), json.dumps(document).encode())
        with self._ranks.agree():
            if self._ranks.rank == 0:
                manifest = {"key": self._key, "generation": new}
                write_whole(self._folder / _MANIFEST, json.dumps(manifest).encode())
        with self._ranks.agree():
            self._state_file(self._generation).unlink(missing_ok=True)
        self._generation = new

    def remove(self) -> None:
        """Remove the folder once the store is complete; collective."""
        with self._ranks.agree():
            if self._ranks.rank == 0:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _state_file(self, generation: int) -> Path:
        return self._folder / f"{self._ranks.rank}.{generation}.json"


def _crc(state: Any) -> int:
    return zlib.crc32(json.dumps(state, sort_keys=True).encode())


def key_of(inputs: Sequence[Path], options: Mapping[str, Any], format_name: str) -> dict[str, Any]:
    """Return what identifies a conversion: its files (size, time), options and format."""
    try:
        files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in inputs]
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error
    kept_options = {name: value for name, value in options.items() if name != "memory_bytes"}
    return {"inputs": files, "options": kept_options, "format": format_name}
