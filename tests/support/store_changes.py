"""Changes to the file of a store that its reader must notice."""

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np


def replace(name: str, array: Any, **options: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        data = np.asarray(array)
        options.setdefault("chunks", data.shape)
        options.setdefault("fletcher32", options["chunks"] is not None)
        file.create_dataset(name, data=data, **options)

    return change


def assign(name: str, index: Any, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[name][index] = value

    return change


def remove(name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]

    return change
