"""Times of tables, as exact as they are written.

A time is a complex number, since these sort by their real part, then by the other: a number as the
nearest float64 and what that lacks of it, a date as seconds since 1970 and nanoseconds.
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
"""Where the last dash of an ISO date stands; one behind it begins a zone."""
_KNOWN_STEP = 0.01
"""How far, of a step, float64 may be from it."""


def read_times(table: Table, column: int, *, numeric: bool) -> Array:
    """Return the times (rows,) complex128 of a column of texts; raises `InputError`."""
    # Few of them differ: all nodes have rows of one time.
    encoded = table.texts(column).dictionary_encode()
    places = encoded.indices.to_numpy()

    def locate(number: int) -> str:
        return table.locate(int(np.argmax(places == number)))

    distinct = Table({column: encoded.dictionary}, len(encoded.dictionary), locate)
    found = (_numbers if numeric else _dates)(distinct, column)
    if (number := first_true(~np.isfinite(found))) is not None:
        raise InputError(f"{locate(number)}: its time is missing; remove the row")
    return found[places]


def seconds_after_first(dates: Array) -> FloatArray:
    """Return rising dates (T,) as seconds after the first, differences being taken of integers."""
    after = dates - dates[0]
    found: FloatArray = (after.real * _NANOSECONDS + after.imag) / _NANOSECONDS
    return found


def plain_numbers(times: Array) -> tuple[FloatArray, str]:
    """Return rising numbers (T,) as float64, and after what they are.

    That is the first where float64 would not tell the steps between them, else nothing.
    """
    after = times - times[0]
    exact: FloatArray = after.real + after.imag
    steps = np.diff(exact)
    if (np.abs(np.diff(times.real) - steps) <= _KNOWN_STEP * steps).all():
        return times.real, ""
    first = Decimal(times[0].real) + Decimal(times[0].imag)
    return exact, f"{first:.9f}".rstrip("0").rstrip(".")


def _numbers(table: Table, column: int) -> Array:
    found = []
    for row, text in enumerate(table.words(column)):
        try:
            exact = Decimal("nan" if is_missing(text) else text)
        except InvalidOperation:
            raise InputError(
                f"{table.locate(row)}: the time {text[:40]!r} is no number; correct the line or "
                "remove it"
            ) from None
        nearest = float(exact)
        rest = exact - Decimal(nearest) if np.isfinite(nearest) else 0
        found.append(complex(nearest, float(rest)))
    return np.array(found, np.complex128)


def _dates(table: Table, column: int) -> Array:
    texts = np.array(table.words(column), dtype=np.str_)
    # NumPy would take the numbers that a duration is stored as for years.
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
            # Of a time zone, which is counted in.
            seconds, fine = (texts.astype(f"datetime64[{unit}]") for unit in ("s", "ns"))
    except ValueError as error:
        raise InputError(f"{table.locate(0)} or below: {error}; give ISO dates") from None
    whole = seconds.astype(np.int64)
    # Nanoseconds since 1970 wrap around outside 1678 to 2262, and so does what is taken off them.
    rest = fine.astype(np.int64) - whole * _NANOSECONDS
    times = whole + 1j * rest
    times[np.isnat(seconds)] = np.nan
    return times
