"""Models of graphs with node types, each of which has its own input layer.

The input layer of type t maps its features to the common width that the first graph layer reads:
``H_i = W_t x_i + b_t``. Without features only ``b_t`` is left, a learned vector that all nodes of
the type share; in addition each node may have its own vector. The rest is any model of one kind of
node.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, RequestedRows, linear_by_type
from hpcgnn.comm import Communicator, RowMap, RowRequest
from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.kernels.mixing import murmur_mix, uniform
from hpcgnn.nn.model import GraphView, Model, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import FloatArray, GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class VectorOwners:
    """The ranks of a layer that own nodes' vectors, for rows of any rank's nodes.

    `starts` (ranks + 1, types) int64 are the numbers of each rank's first nodes among all nodes of
    a type.
    """

    layer: Communicator
    starts: Offsets
    trace: TraceRecorder

    @collective
    def fetch(self, vectors: Tensor, number: int, numbers: GlobalIndices) -> Tensor:
        """Return (m, width) the vectors of nodes of type `number`, given their numbers in it (m,).

        `vectors` are this rank's. Gradients add up at the owners; the backward pass is collective.
        """
        row_map = RowMap(np.ascontiguousarray(self.starts[:, number]), self.layer.rank)
        requested = distinct(numbers, row_map.num_rows)
        positions = numbered(requested, np.arange(len(requested), dtype=np.int32), numbers)
        request = RowRequest.make(self.layer, row_map, requested)
        return RequestedRows.of(vectors, request, self.trace).at(positions)[0]


@dataclass(frozen=True, eq=False)
class TypedRows:
    """Node rows with a separate table of features for each node type, without padding.

    `parts` are, for each type, at least one, (n_t, F_t) the features of its nodes; F_t is 0 without
    any. `types` (N,) are integers, and `part_rows` (N,) int64 the row of each node in the part of
    its type. `numbers` (N,) int64 number the nodes of a type among those of their rank, or with
    `owners` among those of all ranks; None if no type has vectors for its nodes. `owners` have the
    vectors, if other ranks have some of them.
    """

    parts: tuple[Tensor, ...]
    types: Tensor
    part_rows: Tensor
    numbers: Tensor | None = None
    owners: VectorOwners | None = None

    @classmethod
    def in_order(cls, parts: Sequence[Tensor], types: Tensor) -> "TypedRows":
        """Return rows from parts that hold the nodes of each type in the order of all nodes.

        Raises `ValueError` if the numbers of a part's rows and its type's nodes differ.
        """
        positions = torch.empty(len(types), dtype=torch.int64, device=types.device)
        for number, part in enumerate(parts):
            rows = _rows_of(types, number)
            if len(rows) != len(part):
                raise ValueError(f"type {number} has {len(rows)} nodes and {len(part)} rows")
            positions[rows] = torch.arange(len(rows), device=types.device)
        return cls(tuple(parts), types, positions)

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: Tensor) -> "TypedRows":
        """Return the rows `rows`, (m,) int64 in any order."""
        return self.select(rows, lambda part, part_rows: part[part_rows])

    def select(self, rows: Tensor, take: Callable[[Tensor, Tensor], Tensor]) -> "TypedRows":
        """Return the rows `rows`, (m,) int64; `take` selects rows (k,) of a part."""
        parts = [take(part, part_rows) for part, part_rows, _ in self.by_type(rows)]
        numbers = None if self.numbers is None else self.numbers[rows]
        selected = TypedRows.in_order(parts, self.types[rows])
        return replace(selected, numbers=numbers, owners=self.owners)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(array.nbytes for array in (*self.parts, self.types, self.part_rows))

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """For each type, (n_t,) int64 the rows of its nodes in the order of its part."""
        tables = []
        for number, part in enumerate(self.parts):
            rows = _rows_of(self.types, number)
            ordered = torch.empty(len(part), dtype=torch.int64, device=rows.device)
            ordered[self.part_rows[rows]] = rows
            tables.append(ordered)
        return tuple(tables)

    def by_type(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each type its part, and the rows in it and the indices of its `rows`."""
        types, positions = self.types[rows], self.part_rows[rows]
        for number, part in enumerate(self.parts):
            rows_of_type = _rows_of(types, number)
            yield part, positions[rows_of_type], rows_of_type

    def to(self, device: torch.device) -> "TypedRows":
        """Return the rows in the memory of a device, without a copy if they are there already."""
        parts = tuple(part.to(device) for part in self.parts)
        numbers = None if self.numbers is None else self.numbers.to(device)
        types, part_rows = self.types.to(device), self.part_rows.to(device)
        return TypedRows(parts, types, part_rows, numbers, self.owners)

    def clone(self) -> "TypedRows":
        """Return rows with a copy of the features."""
        return replace(self, parts=tuple(part.clone() for part in self.parts))


NodeFeatures: TypeAlias = Tensor | TypedRows
"""Features (N, F), or rows with a table for each node type."""


def _rows_of(types: Tensor, number: int) -> Tensor:
    return torch.nonzero(types == number)[:, 0]


_LAYER = -1 << 32
"""The layer number of these draws, which no layer has."""


def draw_vectors(node_ids: GlobalIndices, width: int, seed: int) -> FloatArray:
    """Return (n, width) float64 uniform numbers with mean 0 and variance 1 / width.

    They depend only on the seed, the node's original id in `node_ids` (n,) int64, and the column.
    """
    columns = np.arange(width, dtype=np.uint64)
    words = _hash(node_ids.astype(np.uint64) + np.uint64(DropoutKey(seed, 0, _LAYER).word()))
    draw = uniform(_hash(words[:, None] + columns))
    return (2 * draw - 1) * np.sqrt(3 / width)


def _hash(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return murmur_mix(words ^ (words >> np.uint64(33)))


class InputLayers(nn.Module):
    """A linear map for each node type; `in_widths` are numbers of features, 0 without any."""

    def __init__(self, in_widths: Sequence[int], out_width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(out_width, width) for width in in_widths)
        self.biases = nn.ParameterList(torch.zeros(out_width) for _ in in_widths)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.shape[1] > 0:
                nn.init.xavier_uniform_(weight)
            else:
                # About the norm of other types' rows for features of norm 1.
                nn.init.normal_(bias, std=out_width**-0.5)
        self.vectors = nn.ParameterDict()

    def add_vectors(self, node_ids: Mapping[int, GlobalIndices], seed: int) -> None:
        """Give each node of some types its own vector.

        The rows that this module reads must then have `numbers`. `node_ids` maps the number of a
        type to (n_t,) int64 original ids of this rank's nodes. Initial vectors do not depend on the
        number of ranks.
        """
        like = self.biases[0]
        for number, ids in node_ids.items():
            vectors = torch.from_numpy(draw_vectors(ids, len(like), seed))
            self.vectors[str(number)] = nn.Parameter(vectors.to(like))
            self.register_buffer(f"ids_{number}", torch.tensor(ids, device=like.device))

    @collective
    def forward(self, x: TypedRows) -> Tensor:
        """Return the input rows (N, out_width) of the graph layers."""
        out = linear_by_type(x.rows, x.parts, list(self.weights), list(self.biases))
        for number, vectors in self.vectors.items():
            assert x.numbers is not None
            rows = x.rows[int(number)]
            numbers = x.numbers[rows]
            if x.owners is None:
                rows_of_nodes = vectors.index_select(0, numbers)
            else:
                rows_of_nodes = x.owners.fetch(vectors, int(number), numbers.cpu().numpy())
            out.index_add_(0, rows, rows_of_nodes.to(out.dtype))
        return out


class TypedModel(NodeModel):
    """Input layers of node types followed by a model of one kind of node.

    The body reads the outputs of the input layers as its features, which then have gradients.
    """

    def __init__(self, type_widths: Sequence[int], body: Model) -> None:
        super().__init__()
        self.inputs = InputLayers(type_widths, body.shape.first_width)
        self.body = body

    @collective
    def forward(self, graph: GraphView, x: TypedRows, key: DropoutKey | None) -> Tensor:
        """Return logits as `Model.forward` does; dropout of features is after the input layers."""
        return self.body(graph, self.inputs(x), key)

    @collective
    @override
    def with_edges(
        self, graph: GraphView, x: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.body.with_edges(graph, self.inputs(x), key)

    @collective
    @override
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        return self.body.embed(graph, self.inputs(x))

    @override
    def own_rows(self) -> Mapping[str, str]:
        ids = {number: f"inputs.ids_{number}" for number in self.inputs.vectors}
        vectors = {f"inputs.vectors.{number}": name for number, name in ids.items()}
        return {**vectors, **{name: name for name in ids.values()}}
