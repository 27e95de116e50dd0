"""Folders as nekRS-ML writes them: a periodic row of elements."""

from pathlib import Path
from typing import Any

import numpy as np

ELEMENTS, TIMES = 6, [0.0, 0.25]
LENGTH = 3.0
"""Each element has three points in a row; its ends are shared, and the last is again the first."""


def write(folder: Path, size: int, *, steps: bool = False, dtype: Any = np.float64) -> Path:
    """Write points of elements 0, 1, ...: middle points have the id 0, ends positive ones."""
    folder.mkdir()
    for rank in range(size):
        elements = range(ELEMENTS * rank // size, ELEMENTS * (rank + 1) // size)
        ids = [[each + 1, 0, (each + 1) % ELEMENTS + 1] for each in elements]
        x = [[each, each + 0.5, each + 1] for each in elements]
        edges = [[3 * n + a, 3 * n + b] for n in range(len(elements)) for a, b in ((0, 1), (1, 2))]
        # Copies on the same rank are joined, too.
        edges += [[3 * n + 2, 3 * n + 3] for n in range(len(elements) - 1)]
        end = f"rank_{rank}_size_{size}.bin"
        positions = np.zeros((3 * len(elements), 3), dtype)
        positions[:, 0] = np.ravel(x) * LENGTH / ELEMENTS
        positions.tofile(folder / f"pos_node_{end}")
        np.ravel(ids).astype(np.int64).tofile(folder / f"global_ids_{end}")
        both = np.array(edges + [pair[::-1] for pair in edges], np.int32).reshape(-1, 2)
        both.tofile(folder / f"edge_index_{end}")
        for number, time in enumerate(TIMES):
            phase = 2 * np.pi * np.ravel(x) / ELEMENTS
            values = {"u": np.stack([np.cos(phase), phase * 0, np.cos(2 * phase) + time], axis=1)}
            values["p"] = np.round(values["u"][:, 2:], 6)
            values["u"] = np.round(values["u"], 6)
            inside = folder / f"data_rank_{rank}_size_{size}"
            inside.mkdir(exist_ok=True)
            for name, field in values.items():
                file = inside / f"{name}_step_{10 * number}.bin"
                if not steps:
                    file = folder / f"fld_{name}_time_{time}_{end}"
                field.astype(dtype).tofile(file)
    return folder
