"""hpcgnn: graph neural networks on graphs too large for one machine, trained with MPI.

The folders follow the flow of data: ``convert`` and ``gallery`` write a store, ``partition``
permutes it, and ``train`` reads block rows of it (``storage``, ``comm``, ``sparse``), multiplies
them with dense activations (``spmm``, ``kernels``), differentiates the products (``autograd``), and
trains the models of ``nn``. Importing this package does no work: the names of the library
(docs/library.md) are loaded when they are first used, and MPI starts with `open_graph`.
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

_HOMES: Mapping[str, str] = {
    "Aggregation": "hpcgnn.operator",
    "DropoutKey": "hpcgnn.autograd",
    "EdgeResult": "hpcgnn.autograd",
    "Graph": "hpcgnn.library",
    "InputError": "hpcgnn.errors",
    "NeighborLoader": "hpcgnn.pyg.loader",
    "distribute": "hpcgnn.library",
    "Stepper": "hpcgnn.train.fields.stepper",
    "backward": "hpcgnn.library",
    "divide": "hpcgnn.library",
    "evaluate": "hpcgnn.library",
    "mean": "hpcgnn.library",
    "nn": "hpcgnn.nn",
    "open_graph": "hpcgnn.library",
    "predict": "hpcgnn.library",
    "reduce_messages": "hpcgnn.autograd",
    "sum_gradients": "hpcgnn.library",
}


# ``python -m hpcgnn.NAME`` finds a command that is no package in the folder of the commands.
__path__.append(f"{__path__[0]}/commands")


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that loads names from their modules when first used.

    A name whose module is the package's own, as ``nn``, is the module.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return load


__getattr__ = lazily(__name__, _HOMES)
