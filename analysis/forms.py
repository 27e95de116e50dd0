"""Schemas of the JSON files of a run, and the function that checks a value against one.

A schema (form) is a type (`float` is any finite number), a list of one form, a dictionary of forms,
a tuple of one form that may also be null, or None for anything. A key that ends in "?" is optional;
"*" stands for all other keys.
"""

from typing import Any

from hpcgnn.errors import InputError

LARGEST = 2**63
"""Integers must be smaller: counts fit 64 bits."""

SESSION = {
    "started?": str,
    "command?": [str],
    "commit?": (str,),
    "versions?": {"*": str},
    "hosts?": [
        {
            "name": str,
            "ranks": int,
            "threads?": int,
            "cores": int,
            "host_cores?": int,
            "processor": str,
        }
    ],
    "launcher?": str,
    "threads?": int,
    "ranks?": int,
    "epochs?": int,
    "before_s?": float,
    "wall_s?": float,
    "setup_s?": {"*": float},
}

SUMMARY = {
    "name?": str,
    "model?": str,
    "task?": str,
    "exchange?": (str,),
    "schedule?": (str,),
    "metric?": (str,),
    "ranks?": int,
    "replication?": int,
    "epochs?": int,
    "epoch_s?": ({"*": (float,)},),
    "graph?": {"num_nodes?": int, "num_graphs?": int},
    "sampling?": ({"graphs_per_step?": int},),
    "seeds?": [{"seed?": int, "best_epoch?": (int,), "metrics?": {}, "all_graphs?": {}}],
    "ranks_detail?": [
        {
            "rank": int,
            "peak_rss_bytes": int,
            "ghost_bytes_max?": int,
            "host?": str,
            "local_nodes?": int,
            "local_edges?": int,
            "usage?": {"*": (float,)},
            "setup_s?": {"*": float},
            "seconds_by_phase?": {"*": float},
            "rows_sent?": int,
            "bytes_sent?": int,
        }
    ],
}

EPOCH = {
    "seed?": (int,),
    "epoch": int,
    "epoch_s?": float,
    "evaluate_s?": float,
    "rows_sent?": int,
    "bytes_sent?": int,
    "evaluate_rows?": int,
    "evaluate_bytes?": int,
    "sample_wait_share?": float,
}

PLANNED = {
    "ranks": int,
    "replication": int,
    "exchange": str,
    "schedule": str,
    "peak_bytes": int,
    "ghost_bytes": int,
    "rehearsed_rank": int,
    "bytes_epoch": float,
    "epoch_s": float,
}


def check_form(value: Any, form: Any, where: str) -> None:
    """Raise `InputError` that names the place where `value` does not match a form."""
    if isinstance(form, tuple):
        if value is not None:
            check_form(value, form[0], where)
    elif isinstance(form, list):
        _require(isinstance(value, list), where, "a list")
        for number, entry in enumerate(value):
            check_form(entry, form[0], f"{where}[{number}]")
    elif isinstance(form, dict):
        _require(isinstance(value, dict), where, "a table")
        _check_table(value, form, where)
    elif form is float:
        # Neither true nor nan, nor an integer too large for a float.
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        _require(numeric and -1e300 < value < 1e300, where, "a finite number")
    elif form is int:
        _require(type(value) is int and -LARGEST <= value < LARGEST, where, "a 64-bit integer")
    elif form is str:
        _require(isinstance(value, str), where, "a string")


def _check_table(value: dict[str, Any], form: dict[str, Any], where: str) -> None:
    named = {key.removesuffix("?"): key for key in form if key != "*"}
    for name, key in named.items():
        if name in value:
            check_form(value[name], form[key], f"{where}: {name}")
        elif key == name:
            raise InputError(f"{where}: {name} is missing; restore the file or remove it")
    for name in value.keys() - named.keys() if "*" in form else ():
        check_form(value[name], form["*"], f"{where}: {name}")


def _require(holds: bool, where: str, expected: str) -> None:
    if not holds:
        raise InputError(f"{where} is not {expected}; restore the file or remove it")
