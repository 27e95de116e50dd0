"""Say what a store, a checkpoint or a run directory holds.

`inspect_path` returns it as plain data, ``python -m hpcgnn.inspect`` prints that as tables or JSON.
Nothing here runs MPI, and nothing is changed.
"""

from hpcgnn.inspect.kinds import inspect_path
from hpcgnn.inspect.volume import exchange_volume

__all__ = ["exchange_volume", "inspect_path"]
