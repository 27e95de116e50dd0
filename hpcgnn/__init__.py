"""hpcgnn: graph neural networks on graphs too large for one machine, trained with MPI.

The folders follow the flow of data: ``convert`` and ``gallery`` write a store, ``partition``
permutes it, and ``train`` reads block rows of it (``storage``, ``comm``, ``sparse``), multiplies
them with dense activations (``spmm``, ``kernels``), differentiates the products (``autograd``), and
trains the models of ``nn``. Importing this package is cheap: the names of the library
(docs/library.md) are loaded on first use, and MPI starts with `open_graph`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcgnn import nn
    from hpcgnn.autograd import DropoutKey, EdgeResult, reduce_messages
    from hpcgnn.errors import InputError
    from hpcgnn.library import (
        Graph,
        backward,
        distribute,
        divide,
        evaluate,
        mean,
        open_graph,
        predict,
        sum_gradients,
    )
    from hpcgnn.operator import Aggregation
    from hpcgnn.pyg.loader import NeighborLoader
    from hpcgnn.train.fields.stepper import Stepper

__version__ = "0.1.0"

__all__ = [
    "Aggregation",
    "DropoutKey",
    "EdgeResult",
    "Graph",
    "InputError",
    "NeighborLoader",
    "Stepper",
    "backward",
    "distribute",
    "divide",
    "evaluate",
    "mean",
    "nn",
    "open_graph",
    "predict",
    "reduce_messages",
    "sum_gradients",
]

# So that ``python -m hpcgnn.NAME`` finds commands that are modules in the folder ``commands``.
__path__.append(f"{__path__[0]}/commands")


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that loads names from their modules on first use.

    `homes` maps modules to the names in them, separated by blanks; the name of a submodule such as
    ``nn`` stands for the module itself.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(home_of[name])
        return home if home_of[name] == f"{package}.{name}" else getattr(home, name)

    return load


__getattr__ = lazily(
    __name__,
    {
        "hpcgnn.autograd": "DropoutKey EdgeResult reduce_messages",
        "hpcgnn.errors": "InputError",
        "hpcgnn.library": "Graph backward distribute divide evaluate mean open_graph predict "
        "sum_gradients",
        "hpcgnn.nn": "nn",
        "hpcgnn.operator": "Aggregation",
        "hpcgnn.pyg.loader": "NeighborLoader",
        "hpcgnn.train.fields.stepper": "Stepper",
    },
)
