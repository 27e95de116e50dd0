"""Attributes, groups and datasets of a file that may hold anything, checked one by one."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.storage.datasets import damaged, format_errors

__all__ = ["attribute", "dataset", "group", "item_name"]

KINDS: dict[type, tuple[type, ...]] = {
    int: (int, np.integer),
    bool: (bool, np.bool_),
    str: (str,),
}


def item_name(parent: h5py.Group, name: str) -> str:
    """Return the absolute name of a member."""
    return f"{parent.name.rstrip('/')}/{name}"


def attribute(path: Path, holder: h5py.Group | h5py.Dataset, name: str, kind: type) -> Any:
    """Return an attribute as `kind` (int, bool or str), or raise `StorageFormatError`."""
    item = f"{holder.name}: attribute {name}"
    with format_errors(path, item):
        if name not in holder.attrs:
            raise damaged(path, item, "is missing")
        value = holder.attrs[name]
        if isinstance(value, bytes):
            value = value.decode()
    if not isinstance(value, KINDS[kind]):
        raise damaged(path, item, f"is a {type(value).__name__}, not a {kind.__name__}")
    return kind(value)


def member(path: Path, parent: h5py.Group, name: str) -> Any | None:
    """Return what a plain link leads to, or None; soft and external links are refused."""
    item = item_name(parent, name)
    with format_errors(path, item):
        link = parent.get(name, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise damaged(path, item, "is a link to elsewhere, which a store must not have")
        return parent[name]


def group(path: Path, parent: h5py.Group, name: str) -> h5py.Group | None:
    """Return a group, or None where nothing has that name."""
    found = member(path, parent, name)
    if found is not None and not isinstance(found, h5py.Group):
        raise damaged(path, item_name(parent, name), "is not a group")
    return found


def dataset(
    path: Path,
    parent: h5py.Group,
    name: str,
    dtypes: tuple[np.dtype[Any], ...],
    shape: tuple[int | None, ...],
) -> h5py.Dataset | None:
    """Return a dataset of one of `dtypes`, or None where nothing has that name.

    None in `shape` fits any length. Empty `dtypes` mean fixed-length text.
    """
    found = member(path, parent, name)
    if found is None:
        return None
    item = item_name(parent, name)
    if not isinstance(found, h5py.Dataset):
        raise damaged(path, item, "is not a dataset")
    with format_errors(path, item):
        if not is_plain(found):
            raise damaged(path, item, "is not stored in plain chunks with checksums")
        if found.dtype not in dtypes if dtypes else found.dtype.kind != "S":
            wanted = " or ".join(str(dtype) for dtype in dtypes) or "fixed-length text"
            raise damaged(path, item, f"has type {found.dtype}, not {wanted}")
        if not fits(shape, found.shape):
            wanted = " x ".join("any" if want is None else str(want) for want in shape)
            raise damaged(path, item, f"has shape {found.shape}, not {wanted}")
    return found


def fits(shape: tuple[int | None, ...], actual: tuple[int, ...] | None) -> bool:
    """Tell whether an actual shape matches a pattern of lengths."""
    if actual is None or len(shape) != len(actual):
        return False
    return all(want in (None, have) for want, have in zip(shape, actual, strict=True))


def is_plain(found: h5py.Dataset) -> bool:
    """Tell whether the data lie in this file, in chunks guarded by fletcher32 and nothing else.

    Virtual datasets and external storage read other files; another filter could load a plugin.
    """
    properties = found.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CHUNKED or properties.get_nfilters() != 1:
        return False
    code, *_ = properties.get_filter(0)
    return bool(code == h5py.h5z.FILTER_FLETCHER32)
