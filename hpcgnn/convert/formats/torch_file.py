"""Graphs of torch-geometric that ``torch.save`` wrote: a `Data`, a `HeteroData`, or their dicts.

Such a file is a pickle, which can run code. torch reads it with ``weights_only``: it creates only
tensors, plain containers and, in place of graph classes, stand-ins that hold the state they are
given. Anything else is an error. torch-geometric is not needed.
"""

import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcgnn.convert.formats.python import torch_geometric_graphs, torch_geometric_source
from hpcgnn.convert.read.files import read_error
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import require_file

_DATA, _STORAGE = "torch_geometric.data.data", "torch_geometric.data.storage"
_ADMITTED = (
    *(f"{_DATA}.{name}" for name in ("Data", "DataEdgeAttr", "DataTensorAttr")),
    "torch_geometric.data.hetero_data.HeteroData",
    # Some graphs keep these in their state.
    "torch_geometric.data.feature_store.TensorAttr",
    "torch_geometric.data.graph_store.EdgeAttr",
    *(f"{_STORAGE}.{name}" for name in ("BaseStorage", "NodeStorage", "EdgeStorage")),
    f"{_STORAGE}.GlobalStorage",
)
_KINDS = "a Data, a HeteroData, one of these as a dict, or a list of Data"


class _Instance:
    """Holds the state of an instance of a graph class in the file."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class _Hetero(SimpleNamespace):
    """The interface of a `HeteroData` that `torch_geometric_source` uses."""

    def __getitem__(self, kind: Any) -> Any:
        return self.parts[kind]


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a ``.pt`` file; raises `InputError`."""
    value = _load(path)
    if isinstance(value, list):
        return torch_geometric_graphs([_graph(path, graph) for graph in value], options, str(path))
    return torch_geometric_source(_graph(path, value), options, str(path))


def _load(path: Path) -> Any:
    require_file(path)
    torch = import_module("torch")
    # Classes that the program has registered under these names would be created instead.
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with zipfile.ZipFile(path) as members:
            if any(member.compress_type for member in members.infolist()):
                raise InputError(f"{path}: is compressed; save it again with torch.save")
        admitted = [(type(name, (_Instance,), {}), name) for name in _ADMITTED]
        with torch.serialization.safe_globals(admitted):
            value = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise read_error(path, error) from error
    except InputError:
        raise
    except Exception as error:
        # Damaged pickles raise exceptions of many types, none of which is a bug here.
        reason = one_line(error).rpartition("WeightsUnpickler error: ")[2][:200]
        raise InputError(
            f"{path}: cannot be read as {_KINDS} ({reason}); nothing in it was executed: save it "
            "again with torch.save, or use hpcgnn.convert.from_torch_geometric in Python"
        ) from error
    finally:
        torch.serialization.add_safe_globals(others)
    return value


def _graph(path: Path, value: Any) -> Any:
    """Return an object that `hpcgnn.convert.formats.python` reads as a graph; `InputError`."""
    if isinstance(value, tuple) and len(value) in (2, 3) and value[1] is None:
        # A processed data set with one graph, which has no slices.
        value = value[0]
    if isinstance(value, _Instance):
        state = vars(value)
        parts = {
            key: _fields(part)
            for name in ("_node_store_dict", "_edge_store_dict")
            for key, part in state.get(name, {}).items()
        }
        fields = parts or _fields(state.get("_store"))
    else:
        fields = value
    if not isinstance(fields, Mapping):
        raise InputError(f"{path}: holds a {type(value).__name__}; {_KINDS} is read")
    for tensor in _tensors(fields):
        if str(tensor.layout) != "torch.strided":
            raise InputError(f"{path}: a tensor is {tensor.layout}; save dense ones and edge_index")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise InputError(f"{path}: a tensor is larger than its storage; save a clone() of it")
    parts = {key: part for key, part in fields.items() if isinstance(part, Mapping)}
    parts.pop("_global_store", None)
    if not parts:
        return _namespace(path, fields)
    stores = {key: _namespace(path, part) for key, part in parts.items()}
    kinds = [key for key in stores if isinstance(key, tuple)]
    return _Hetero(parts=stores, edge_types=kinds, node_types=[k for k in stores if k not in kinds])


def _fields(storage: Any) -> Any:
    return vars(storage).get("_mapping") if isinstance(storage, _Instance) else None


def _namespace(path: Path, fields: Mapping[str, Any]) -> SimpleNamespace:
    counts = [len(fields[key]) for key in ("x", "pos", "train_mask") if key in fields]
    if not all(isinstance(key, str) for key in fields):
        raise InputError(f"{path}: a graph has keys that are not strings; rename them")
    namespace = SimpleNamespace(**fields)
    if counts and "num_nodes" not in fields:
        namespace.num_nodes = counts[0]
    return namespace


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif hasattr(value, "layout"):
        yield value
