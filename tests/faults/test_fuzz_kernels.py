"""Random arguments of native code give TypeError, ValueError or a result; no crash or hang."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    EdgeDraw,
    Gradients,
    SharedMeans,
    SoftmaxGradient,
    SoftmaxState,
    SparseMatrix,
)
from tests.faults.test_fuzz import SIZES, generators

Given: TypeAlias = dict[str, Any]

ODD = (-(2**63), -1, 0, 1, 7, 2**31, 2**63 - 1, 2**64, 1.5, float("nan"), "x", None, b"")
DTYPES = ("int8", "int32", "int64", "uint16", "float16", "float32", "float64", "bool", "complex64")


def csr(rng: np.random.Generator, rows: int, columns: int) -> tuple[Any, Any]:
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 4, rows))])
    return indptr, rng.integers(0, columns, indptr[-1], dtype=np.int32)


def operands(rng: np.random.Generator) -> Given:
    """Return matching arrays: m rows, k columns, H heads of D columns, by the names below."""
    m, k, heads, width = (int(n) for n in rng.integers(1, 9, 4))
    indptr, indices = csr(rng, m, k)
    back = kernels.transpose_csr(indptr, indices, None, k)
    word = heads * width

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "indptr": indptr,
        "indices": indices,
        "values": floats(len(indices)),
        "columns": k,
        "back_indptr": back[0],
        "back_indices": back[1],
        "new": np.arange(k, dtype=np.int32),
        "mask": rng.random(len(indices)) < 0.5,
        "full": floats(m * m),
        "full_indptr": np.arange(0, m * m + 1, m),
        "full_indices": np.tile(np.arange(m, dtype=np.int32), m),
        "starts": np.array([0, k]),
        "limit": 9,
        "x": floats(k, word),
        "out": floats(m, word),
        "rows": rng.permutation(m).astype(np.int32),
        "picked": rng.integers(0, k, m, np.int32),
        "source": floats(k, heads),
        "target": floats(m, heads),
        "weights": floats(heads, width),
        "wide": floats(m, word),
        "top": floats(m, heads),
        "total": floats(m, heads),
        "other": floats(m, word),
        "other_top": floats(m, heads),
        "other_total": floats(m, heads),
        "dx": floats(k, word),
        "dsource": floats(k, heads),
        "slices": floats(1, k, heads),
        "dtarget": floats(m, heads),
        "dwide": floats(m, word),
        "dweights": floats(heads, width),
        "bias": floats(word),
        "mean": floats(m, heads, word),
        "grad": floats(m, heads, word),
        "ids": rng.integers(0, 99, m),
        "column_ids": rng.integers(0, 99, k),
        "word": 5,
        "p": 0.25,
        "slope": 0.2,
        "threads": 1,
        "isa": "auto",
    }


def draw(g: Given) -> Draw:
    return Draw(EdgeDraw(g["word"], g["p"], 7, 0.1), g["ids"], g["column_ids"])


def additive(g: Given) -> AdditiveScore:
    terms = {"target": g["target"], "source": g["source"], "slope": g["slope"]}
    return AdditiveScore(values=g["x"], **terms)


def dynamic(g: Given) -> DynamicScore:
    return DynamicScore(values=g["x"], target=g["wide"], vector=g["weights"], slope=g["slope"])


def matrix(g: Given) -> tuple[Any, ...]:
    return g["indptr"], g["indices"], g["values"]


def how(g: Given) -> Given:
    return {"threads": g["threads"], "isa": g["isa"]}


def block(g: Given, back: str = "") -> Block:
    return Block(g[f"{back}indptr"], g[f"{back}indices"], None if back else g["rows"])


def saved(g: Given) -> SoftmaxGradient:
    return SoftmaxGradient(g["top"], g["other"], g["total"])


def state(g: Given) -> SoftmaxState:
    return SoftmaxState(g["top"], g["total"], g["out"])


def gradients(g: Given) -> Gradients:
    return Gradients(g["dx"], g["dtarget"], None, g["dsource"])


CALLS: dict[str, Callable[[Given], object]] = {
    "spmm": lambda g: kernels.spmm(SparseMatrix(*matrix(g), g["rows"]), g["x"], g["out"], **how(g)),
    "spmm_transpose": lambda g: kernels.spmm_transpose(
        SparseMatrix(*matrix(g), g["rows"]), g["out"], g["x"], **how(g)
    ),
    "gather": lambda g: kernels.gather_rows(g["x"], g["picked"], g["out"], **how(g)),
    "scatter": lambda g: kernels.scatter_add_rows(g["out"], g["picked"], g["x"], **how(g)),
    "dropout": lambda g: kernels.dropout_rows(
        g["out"], g["ids"], g["word"], g["p"], g["wide"], threads=g["threads"]
    ),
    "validate": lambda g: kernels.validate_csr(
        g["indptr"], g["indices"], g["columns"], sorted_columns=False
    ),
    "transpose": lambda g: kernels.transpose_csr(*matrix(g), g["columns"], threads=g["threads"]),
    "select": lambda g: kernels.select_csr(*matrix(g), g["new"], entries=g["mask"]),
    "symmetric": lambda g: kernels.transpose_values_symmetric(
        g["full_indptr"], g["full_indices"], g["full"]
    ),
    "cover": lambda g: kernels.vertex_cover(
        g["indptr"], g["indices"], g["starts"], limit=g["limit"], threads=g["threads"]
    ),
    "scores": lambda g: kernels.attention_scores(g["x"], g["weights"], g["source"]),
    "additive": lambda g: kernels.attention_forward(
        block(g), additive(g), state(g), draw(g), **how(g)
    ),
    "dynamic": lambda g: kernels.attention_forward(
        block(g), dynamic(g), state(g), draw(g), **how(g)
    ),
    "additive back": lambda g: kernels.attention_backward(
        block(g, "back_"), additive(g), saved(g), gradients(g), draw(g), **how(g)
    ),
    "dynamic back": lambda g: kernels.attention_backward(
        block(g, "back_"), dynamic(g), saved(g), gradients(g), draw(g), **how(g)
    ),
    "dynamic rows": lambda g: kernels.attention_backward_rows(
        block(g),
        dynamic(g),
        saved(g),
        Gradients(None, g["dwide"], g["dweights"]),
        draw(g),
        **how(g),
    ),
    "shared": lambda g: kernels.attention_shared_forward(
        Block(g["indptr"], g["indices"]),
        additive(g),
        SharedMeans(g["mean"], g["top"]),
        draw(g),
        **how(g),
    ),
    "shared back": lambda g: kernels.attention_shared_backward(
        Block(g["indptr"], g["indices"]),
        additive(g),
        SharedMeans(g["mean"], g["top"], g["grad"]),
        Gradients(g["dx"], g["dtarget"], None, g["slices"]),
        draw(g),
        **how(g),
    ),
    "merge": lambda g: kernels.attention_merge(
        g["rows"], SoftmaxState(g["other_top"], g["other_total"], g["other"]), state(g)
    ),
    "finish": lambda g: kernels.attention_finish(state(g), into=g["wide"], bias=g["bias"]),
    "delta": lambda g: kernels.attention_delta(
        g["other"], g["out"], g["top"], bias=g["bias"], copy=g["wide"]
    ),
}
# The caller checks the values of column indices once (`validate_csr`).
TRUSTED = {
    **dict.fromkeys(("spmm", "dynamic", "dynamic rows", "additive"), ("indices", "x", "source")),
    **dict.fromkeys(("spmm_transpose",), ("indices", "x")),
    **dict.fromkeys(("dynamic back", "additive back"), ("back_indices", "wide", "top")),
    **dict.fromkeys(("select", "symmetric"), ("indices",)),
}


def spoil(rng: np.random.Generator, value: Any, *, trusted: bool) -> Any:
    """Return a replacement for an argument, with other values unless `trusted`."""
    if not isinstance(value, np.ndarray) or rng.random() < 0.08:
        return ODD[rng.integers(len(ODD))]
    kind = int(rng.integers(2 if trusted else 0, 10))
    if kind == 0:
        return value[: rng.integers(len(value) + 1)].copy()
    if kind == 1:
        value = value.copy()
        if value.dtype.kind in "iu" and value.size:
            numbers = (-1, 0, 1, len(value), 2**31 - 1, -(2**31), np.iinfo(value.dtype).max)
            value[rng.integers(value.size)] = numbers[rng.integers(len(numbers))]
        elif value.dtype.kind == "f" and value.size:
            value.reshape(-1)[rng.integers(value.size)] = (np.nan, np.inf, -np.inf, 1e38)[
                rng.integers(4)
            ]
        return value
    if kind == 2:
        return np.concatenate([value, value])
    if kind == 3:
        with np.errstate(all="ignore"):
            return value.astype(DTYPES[rng.integers(len(DTYPES))])
    if kind == 4:
        return value[None]
    if kind == 5:
        return value.reshape(-1) if value.ndim > 1 else value.reshape(-1, 1)
    if kind == 6:
        return np.repeat(value, 2, axis=-1)[..., ::2]
    if kind == 7:
        frozen = value.copy()
        frozen.flags.writeable = False
        return frozen
    if kind == 8:
        return value.tolist()
    return value.astype(value.dtype.newbyteorder())


@pytest.mark.parametrize("count", SIZES)
def test_kernels(count: int) -> None:
    ran = 0
    for rng in generators(10 * count):
        name = list(CALLS)[rng.integers(len(CALLS))]
        given = operands(rng)
        CALLS[name]({each: np.copy(v) if hasattr(v, "copy") else v for each, v in given.items()})
        used = sorted(given)
        for _ in range(rng.integers(1, 4)):
            each = used[rng.integers(len(used))]
            given[each] = spoil(rng, given[each], trusted=each in TRUSTED.get(name, ()))
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            CALLS[name](given)
            ran += 1
    assert ran
