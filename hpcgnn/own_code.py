"""Objects of a user's own modules, which configurations name as ``package.module:NAME``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError, instead_of


def load_own(key: str, name: str, accepts: Callable[[object], bool], what: str) -> Any:
    """Return the object that ``package.module:NAME`` names.

    The module is looked for in the working directory first, then among the installed ones.

    Parameters
    ----------
    key
        Of the configuration, for messages.
    name
        With a colon.
    accepts
        Tells whether an object is one.
    what
        What it accepts, for messages: "subclass of hpcgnn.nn.Model".

    Raises
    ------
    InputError
        When the module does not load, or has no such object; the nearest name is named.
    """
    module_name, _, wanted = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{key} = {name!r}: its module needs {error.name}") from error
        raise InputError(
            f"{key} = {name!r}: there is no module {error.name!r} in {here} nor installed"
        ) from error
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise InputError(f"{key} = {name!r}: its module raises {fault}") from error
    found = getattr(module, wanted, None)
    if not accepts(found):
        # Classes that the module has imported are not its own.
        there = [
            each
            for each, value in vars(module).items()
            if accepts(value) and not (isinstance(value, type) and value.__module__ != module_name)
        ]
        fault = "is not there" if found is None else f"is no {what}"
        remedy = instead_of(wanted, there) if there else "write one"
        raise InputError(f"{key} = {name!r}: {wanted} {fault}; {remedy}")
    return found
