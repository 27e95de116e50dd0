"""Parse words in tables that stand for split roles or masks."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import report
from hpcgnn.convert.read.tables import Table, classes_of
from hpcgnn.errors import InputError
from hpcgnn.storage import Split, first_true

NO_CLASS = frozenset({"", "-1", "-1.0", "nan", "NaN"})
"""Words in a column of classes that mean no class."""

SIGNS = "have no label, and all others are of class 1; if -1 is a class, write 0 for it"
"""Report for labels that are only -1 and 1."""

_FEW_CLASSES = 8
"""With at most as many classes, gaps in their numbers cost nothing."""

READ_AS_CLASS = "is read as a class; leave missing labels empty"
"""Report for words such as NA among the classes."""

_SPLIT_WORDS = {
    "train": Split.TRAIN,
    "training": Split.TRAIN,
    "valid": Split.VALID,
    "val": Split.VALID,
    "validation": Split.VALID,
    "test": Split.TEST,
    "none": Split.NONE,
    "": Split.NONE,
    **{str(int(part)): part for part in Split},
}
_MASK_WORDS = {"1": 1, "true": 1, "1.0": 1, "0": 0, "false": 0, "0.0": 0, "": 0}


def report_gaps(where: str, num_classes: int, occurring: int) -> None:
    """Report numbers of classes most of which do not occur: a model has an output for each."""
    if num_classes > max(_FEW_CLASSES, 2 * occurring):
        report(
            f"{where}: labels go up to {num_classes - 1:,}, but only {occurring:,} of the "
            f"{num_classes:,} classes occur, and a model has an output for each; number the "
            "classes from 0 without gaps, or write them as words"
        )


def roles_of(block: Table, column: int) -> NDArray[np.uint8]:
    """Return the split roles that the words of a column name; raises `InputError`."""
    return _coded(_SPLIT_WORDS, "train, valid, test or none", block, column)


def mask_of(block: Table, column: int) -> NDArray[np.uint8]:
    """Return the mask from the words of a column; raises `InputError`."""
    return _coded(_MASK_WORDS, "0 or 1", block, column)


def _coded(words: Mapping[str, int], expected: str, block: Table, column: int) -> NDArray[np.uint8]:
    names, codes = classes_of([block.texts(column)], block.locate(0))
    values = np.array([words.get(name.strip().lower(), -1) for name in names], np.int64)[codes]
    if (row := first_true(values < 0)) is not None:
        raise InputError(
            f"{block.locate(row)}, column {column + 1} holds {names[codes[row]]!r} where "
            f"{expected} is expected; correct it"
        )
    return values.astype(np.uint8)
