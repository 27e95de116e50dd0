"""What the JSON files of a run hold, and one check that a file holds it.

A form is a type (`float` is any finite number), a list of one form, a table of forms, a tuple of
one form, which may also be null, or None for anything. A key of a table that ends in "?" may be
missing; "*" stands for all keys that are not named.
"""

from typing import Any

from hpcgnn.errors import InputError

LARGEST = 2**63
"""Integers are smaller: what counts something fits 64 bits."""

SESSION = {
    "started?": str,
    "command?": [str],
    "commit?": (str,),
    "versions?": {"*": str},
    "hosts?": [{"name": str, "ranks": int, "cores": int, "host_cores?": int, "processor": str}],
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
    "seeds?": [{"seed?": int, "best_epoch?": (int,)}],
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
    "peak_bytes?": int,
    "ghost_bytes?": int,
    "rehearsed_rank?": int,
    "bytes_epoch?": float,
    "bytes_evaluation?": float,
    "epoch_s?": float,
}


def check_form(value: Any, form: Any, where: str) -> None:
    """Raise `InputError`, which names the place, where `value` is not of a form; see the module."""
    if isinstance(form, tuple):
        if value is not None:
            check_form(value, form[0], where)
    elif isinstance(form, list):
        _require(isinstance(value, list), where, "list")
        for number, entry in enumerate(value):
            check_form(entry, form[0], f"{where}[{number}]")
    elif isinstance(form, dict):
        _require(isinstance(value, dict), where, "table")
        _check_table(value, form, where)
    elif form is float:
        # Neither true nor nan, and nothing that float() could not hold.
        right = isinstance(value, int | float) and not isinstance(value, bool)
        _require(right and -1e300 < value < 1e300, where, "finite number")
    elif form is int:
        _require(type(value) is int and -LARGEST <= value < LARGEST, where, "integer of 64 bits")
    elif form is str:
        _require(isinstance(value, str), where, "text")


def _check_table(value: dict[str, Any], form: dict[str, Any], where: str) -> None:
    named = {key.removesuffix("?"): key for key in form if key != "*"}
    for name, key in named.items():
        if name in value:
            check_form(value[name], form[key], f"{where}: {name}")
        elif key == name:
            raise InputError(f"{where}: {name} is missing; restore the file or remove it")
    for name in value.keys() - named.keys() if "*" in form else ():
        check_form(value[name], form["*"], f"{where}: {name}")


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise InputError(f"{where} is no {what}; restore the file or remove it")
