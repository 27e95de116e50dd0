"""Read times from tables with full precision.

A time is a complex number, since NumPy sorts these by real, then by imaginary part: for a number,
the nearest float64 and the remainder; for a date, the seconds since 1970 and the nanoseconds.
"""

import warnings
from decimal import Decimal, InvalidOperation

import numpy as np

from hpcgnn.convert.read.tables import Table, is_missing
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, FloatArray

_NANOSECONDS = 10**9
_LAST_OF_DATE = 7
"""Index of the last dash in an ISO date; a later dash begins a time zone."""
_STEP_TOLERANCE = 0.01
"""Largest error of a step between times in float64, relative to the step."""


def read_times(table: Table, column: int, *, numeric: bool) -> Array:
    """Return the times (rows,) complex128 of a column of texts; raises `InputError`."""
    # Few times are distinct, since the rows of all nodes share them.
    encoded = table.texts(column).dictionary_encode()
    codes = encoded.indices.to_numpy()

    def locate(number: int) -> str:
        return table.locate(int(np.argmax(codes == number)))

    distinct = Table({column: encoded.dictionary}, len(encoded.dictionary), locate)
    times = (_numbers if numeric else _dates)(distinct, column)
    if (number := first_true(~np.isfinite(times))) is not None:
        raise InputError(f"{locate(number)}: its time is missing or too large; remove the row")
    return times[codes]


def seconds_after_first(dates: Array) -> FloatArray:
    """Return increasing dates (T,) as seconds after the first, from differences of integers."""
    after = dates - dates[0]
    seconds: FloatArray = (after.real * _NANOSECONDS + after.imag) / _NANOSECONDS
    return seconds


def plain_numbers(times: Array) -> tuple[FloatArray, str]:
    """Return increasing numbers (T,) as float64, and the origin from which they are counted.

    The origin is the first number if float64 could not resolve the steps otherwise, else "".
    """
    after = times - times[0]
    exact: FloatArray = after.real + after.imag
    steps = np.diff(exact)
    if (np.abs(np.diff(times.real) - steps) <= _STEP_TOLERANCE * steps).all():
        return times.real, ""
    first = Decimal(times[0].real) + Decimal(times[0].imag)
    return exact, f"{first:.9f}".rstrip("0").rstrip(".")


def _numbers(table: Table, column: int) -> Array:
    times = []
    for row, text in enumerate(table.words(column)):
        try:
            exact = Decimal("nan" if is_missing(text) else text)
            nearest = float(exact)
        except (InvalidOperation, ValueError):
            raise InputError(
                f"{table.locate(row)}: the time {text[:40]!r} is no number; correct the line or "
                "remove it"
            ) from None
        rest = exact - Decimal(nearest) if np.isfinite(nearest) else 0
        times.append(complex(nearest, float(rest)))
    return np.array(times, np.complex128)


def _dates(table: Table, column: int) -> Array:
    texts = np.array(table.words(column), dtype=np.str_)
    # NumPy would read a plain number as a year.
    if (row := first_true((np.char.find(texts, "-") != 4) & (texts != ""))) is not None:
        raise InputError(
            f"{table.locate(row)}: the time {str(texts[row])!r} is no date; give ISO dates, or "
            "numbers"
        )
    zoned = np.char.endswith(texts, "Z") | (np.char.find(texts, "+") > 0)
    zoned |= np.char.rfind(texts, "-") > _LAST_OF_DATE
    if zoned.any() and (row := first_true(~zoned & (texts != ""))) is not None:
        raise InputError(
            f"{table.locate(row)}: the time {str(texts[row])!r} has no zone, and others have one; "
            "give all a zone or none"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            # NumPy warns about time zones, which it does apply.
            seconds, fine = (texts.astype(f"datetime64[{unit}]") for unit in ("s", "ns"))
    except ValueError as error:
        raise InputError(f"{table.locate(0)} or below: {error}; give ISO dates") from None
    whole = seconds.astype(np.int64)
    # Nanoseconds since 1970 wrap around outside 1678 to 2262, but so does the product subtracted.
    rest = fine.astype(np.int64) - whole * _NANOSECONDS
    times = whole + 1j * rest
    times[np.isnat(seconds)] = np.nan
    return times
