"""Graphs of torch-geometric that ``torch.save`` wrote: a `Data`, a `HeteroData`, or their dicts.

Such a file is a pickle, which is a program. torch reads it with ``weights_only``: it makes tensors
and plain containers, and for the classes of a graph stand-ins that only keep what they are handed.
Anything else ends the reading. torch-geometric is not needed.
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
    # What some have in their state beside the data.
    "torch_geometric.data.feature_store.TensorAttr",
    "torch_geometric.data.graph_store.EdgeAttr",
    *(f"{_STORAGE}.{name}" for name in ("BaseStorage", "NodeStorage", "EdgeStorage")),
    f"{_STORAGE}.GlobalStorage",
)
_KINDS = "a Data, a HeteroData, one of these as a dict, or a list of Data"


class _StandIn:
    """What a file has of a class."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class _Hetero(SimpleNamespace):
    """What `torch_geometric_source` reads of a `HeteroData`."""

    def __getitem__(self, kind: Any) -> Any:
        return self.parts[kind]


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a ``.pt`` file; raises `InputError`."""
    value = _load(path)
    if isinstance(value, list):
        return torch_geometric_graphs([_graph(path, each) for each in value], options, str(path))
    return torch_geometric_source(_graph(path, value), options, str(path))


def _load(path: Path) -> Any:
    require_file(path)
    torch = import_module("torch")
    # Where a program has admitted other classes, of the same names, these would be made.
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with zipfile.ZipFile(path) as members:
            if any(each.compress_type for each in members.infolist()):
                raise InputError(f"{path}: is compressed, as torch.save writes no file")
        admitted = [(type(name, (_StandIn,), {}), name) for name in _ADMITTED]
        with torch.serialization.safe_globals(admitted):
            value = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise read_error(path, error) from error
    except InputError:
        raise
    except Exception as error:
        # Damaged pickles fail in countless ways, and none of them is a defect of this program.
        reason = one_line(error).rpartition("WeightsUnpickler error: ")[2][:200]
        raise InputError(
            f"{path}: does not read as {_KINDS} ({reason}); nothing in it was executed: save it "
            "again with torch.save, or use hpcgnn.convert.from_torch_geometric in Python"
        ) from error
    finally:
        torch.serialization.add_safe_globals(others)
    return value


def _graph(path: Path, value: Any) -> Any:
    """Return what stands for a graph in `hpcgnn.convert.formats.python`."""
    if isinstance(value, tuple) and len(value) in (2, 3) and value[1] is None:
        # A data set of one graph keeps no places where graphs begin.
        value = value[0]
    if isinstance(value, _StandIn):
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
            raise InputError(f"{path}: a tensor is {tensor.layout}; save edge_index and dense ones")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise InputError(f"{path}: a tensor repeats its rows; save a clone() of it")
    parts = {key: part for key, part in fields.items() if isinstance(part, Mapping)}
    parts.pop("_global_store", None)
    if not parts:
        return _namespace(path, fields)
    stores = {key: _namespace(path, part) for key, part in parts.items()}
    kinds = [key for key in stores if isinstance(key, tuple)]
    return _Hetero(parts=stores, edge_types=kinds, node_types=[k for k in stores if k not in kinds])


def _fields(storage: Any) -> Any:
    return vars(storage).get("_mapping") if isinstance(storage, _StandIn) else None


def _namespace(path: Path, fields: Mapping[str, Any]) -> SimpleNamespace:
    counts = [len(fields[key]) for key in ("x", "pos", "train_mask") if key in fields]
    if not all(isinstance(key, str) for key in fields):
        raise InputError(f"{path}: a graph has keys that are no words")
    namespace = SimpleNamespace(**fields)
    if counts and "num_nodes" not in fields:
        namespace.num_nodes = counts[0]
    return namespace


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif hasattr(value, "layout"):
        yield value
