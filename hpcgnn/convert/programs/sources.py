"""The files of source folders, their packages, and which side of which split each stands on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.convert.programs.holes import draw
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.errors import InputError
from hpcgnn.storage import InstanceSplit

__all__ = ["ProgramFile", "find_files"]

_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class ProgramFile:
    """A file to read: `name` is its path from the folder that was given, which comes first."""

    path: Path
    name: str
    package: str
    split: InstanceSplit


def find_files(folders: Sequence[Path], options: ProgramOptions) -> list[ProgramFile]:
    """Return the Python files below `folders`, in an order drawn by chance.

    A package is a folder or module at the top of one of `folders`. Packages are kept unseen, in
    drawn order, while their files fit into `unseen_share`; the files of the others are split by
    themselves. Folders of installed packages below a given folder are left to a call of their own.
    Raises `InputError` where there is nothing to read, or where two folders have one name.
    """
    found: list[tuple[Path, str, str]] = []
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        if not folder.is_dir():
            raise InputError(f"{folder}: is no folder; give folders of Python sources")
        if names.count(name) > 1:
            raise InputError(f"{folder}: another folder is called {name!r} too; rename one")
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder)
            if path.is_file() and not _is_skipped(inner):
                package = inner.parts[0].removesuffix(".py")
                found.append((path, f"{name}/{inner.as_posix()}", f"{name}/{package}"))
    if not found:
        raise InputError(f"{folders[0]}: holds no Python files; give folders of Python sources")
    unseen = _unseen_packages([package for _, _, package in found], options)
    files = [
        ProgramFile(path, name, package, _split(name, package in unseen, options))
        for path, name, package in found
    ]
    return sorted(files, key=lambda file: draw(options.seed, "order", file.name))


def _is_skipped(inner: Path) -> bool:
    return any(part in _SKIPPED or part.startswith(".") for part in inner.parts[:-1])


def _unseen_packages(packages: Sequence[str], options: ProgramOptions) -> set[str]:
    sizes = Counter(packages)
    room = options.unseen_share * len(packages)
    unseen = set()
    for package in sorted(sizes, key=lambda each: draw(options.seed, "package", each)):
        if sizes[package] <= room:
            unseen.add(package)
            room -= sizes[package]
    return unseen


def _split(name: str, unseen: bool, options: ProgramOptions) -> InstanceSplit:
    if unseen:
        return InstanceSplit.UNSEEN
    place = draw(options.seed, "split", name) / 2**64
    if place < options.valid_share:
        return InstanceSplit.VALID
    if place < options.valid_share + options.test_share:
        return InstanceSplit.TEST
    return InstanceSplit.TRAIN
