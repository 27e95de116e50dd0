"""Models of graphs with node types: every type has an input layer of its own.

The input layer of type t maps its features to the one width that the first graph layer reads:
``H_i = W_t x_i + b_t``. Without features only ``b_t`` is left, a learned vector that all nodes of
the type share, and each node may have a vector of its own beside it. What follows is any model of
one kind of node.
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

from hpcgnn.autograd import AskedRows, DropoutKey, linear_by_type
from hpcgnn.comm import Communicator, RowMap, RowRequest
from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.kernels.mixing import murmur_mix, uniform
from hpcgnn.nn.model import GraphView, Model, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import FloatArray, GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class VectorOwners:
    """Which rank of a layer holds the vector of a node, for rows that may be of any rank's nodes.

    `starts` (ranks + 1, types) int64 has the number of each rank's first node among all of a type.
    """

    layer: Communicator
    starts: Offsets
    trace: TraceRecorder

    @collective
    def fetch(self, vectors: Tensor, number: int, numbers: GlobalIndices) -> Tensor:
        """Return (m, width) the vectors of nodes of a type, by their numbers (m,) among all of it.

        `vectors` are this rank's. Gradients add up at the owners; the backward pass is collective.
        """
        row_map = RowMap(np.ascontiguousarray(self.starts[:, number]), self.layer.rank)
        wanted = distinct(numbers, row_map.num_rows)
        places = numbered(wanted, np.arange(len(wanted), dtype=np.int32), numbers)
        request = RowRequest.make(self.layer, row_map, wanted)
        return AskedRows.of(vectors, request, self.trace).at(places)[0]


@dataclass(frozen=True, eq=False)
class TypedRows:
    """Node rows with a table of features for each node type; no table is padded.

    Parameters
    ----------
    parts
        For each type, at least one: (n_t, F_t) the features of its nodes; F_t is 0 without any.
    types
        (N,) integer type of each node.
    places
        (N,) int64 row of each node in the part of its type.
    numbers
        (N,) int64 number of each node among its rank's nodes of its type, or with `owners` among
        those of all ranks; None where no type has vectors for its nodes.
    owners
        Where the vectors are, if this rank may not have them.
    """

    parts: tuple[Tensor, ...]
    types: Tensor
    places: Tensor
    numbers: Tensor | None = None
    owners: VectorOwners | None = None

    @classmethod
    def in_order(cls, parts: Sequence[Tensor], types: Tensor) -> "TypedRows":
        """Return rows from parts that hold the nodes of a type in the order of all nodes.

        Raises `ValueError` when a part has another number of rows than its type has nodes.
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
        """Return chosen rows, (m,) int64 in any order."""
        return self.chosen(rows, lambda part, places: part[places])

    def chosen(self, rows: Tensor, take: Callable[[Tensor, Tensor], Tensor]) -> "TypedRows":
        """Return chosen rows, (m,) int64; `take` returns rows (k,) of a part."""
        parts = [take(part, places) for part, places, _ in self.by_type(rows)]
        numbers = None if self.numbers is None else self.numbers[rows]
        chosen = TypedRows.in_order(parts, self.types[rows])
        return replace(chosen, numbers=numbers, owners=self.owners)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(array.nbytes for array in (*self.parts, self.types, self.places))

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """For each type (n_t,) int64 the rows of its nodes, in the order of its part."""
        tables = []
        for number, part in enumerate(self.parts):
            rows = _rows_of(self.types, number)
            ordered = torch.empty(len(part), dtype=torch.int64, device=rows.device)
            ordered[self.places[rows]] = rows
            tables.append(ordered)
        return tuple(tables)

    def by_type(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each type its part, the places of its `rows` (m,) there, and which they are."""
        types, positions = self.types[rows], self.places[rows]
        for number, part in enumerate(self.parts):
            rows_of_type = _rows_of(types, number)
            yield part, positions[rows_of_type], rows_of_type

    def to(self, device: torch.device) -> "TypedRows":
        """Return the rows in the memory of a device, themselves where they are there already."""
        parts = tuple(part.to(device) for part in self.parts)
        numbers = None if self.numbers is None else self.numbers.to(device)
        types, places = self.types.to(device), self.places.to(device)
        return TypedRows(parts, types, places, numbers, self.owners)

    def clone(self) -> "TypedRows":
        """Return rows with features of their own."""
        return replace(self, parts=tuple(part.clone() for part in self.parts))


NodeFeatures: TypeAlias = Tensor | TypedRows
"""(N, F), or rows that depend on node types."""


def _rows_of(types: Tensor, number: int) -> Tensor:
    return torch.nonzero(types == number)[:, 0]


_PLACE = -1 << 32
"""The place of this draw in the key: no layer has it."""


def draw_vectors(node_ids: GlobalIndices, width: int, seed: int) -> FloatArray:
    """Return (n, width) float64 uniform numbers of variance 1 / width.

    They are a function of the seed, the node's original id (n,) int64 and the column.
    """
    columns = np.arange(width, dtype=np.uint64)
    words = _hash(node_ids.astype(np.uint64) + np.uint64(DropoutKey(seed, 0, _PLACE).word()))
    draw = uniform(_hash(words[:, None] + columns))
    return (2 * draw - 1) * np.sqrt(3 / width)


def _hash(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return murmur_mix(words ^ (words >> np.uint64(33)))


class InputLayers(nn.Module):
    """A linear map for each node type, of its F_t features; 0 without any."""

    def __init__(self, in_widths: Sequence[int], out_width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(out_width, width) for width in in_widths)
        self.biases = nn.ParameterList(torch.zeros(out_width) for _ in in_widths)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.shape[1] > 0:
                nn.init.xavier_uniform_(weight)
            else:
                # About as long as a row of the others for features of length 1.
                nn.init.normal_(bias, std=out_width**-0.5)
        self.vectors = nn.ParameterDict()

    def add_vectors(self, node_ids: Mapping[int, GlobalIndices], seed: int) -> None:
        """Give each node of some types a vector of its own.

        The rows that this module reads must then have their `numbers`. `node_ids` has, by the
        number of the type, (n_t,) int64 original ids of this rank's nodes. Vectors are equal at any
        number of ranks.
        """
        like = self.biases[0]
        for number, ids in node_ids.items():
            vectors = torch.from_numpy(draw_vectors(ids, len(like), seed))
            self.vectors[str(number)] = nn.Parameter(vectors.to(like))
            self.register_buffer(f"ids_{number}", torch.tensor(ids, device=like.device))

    @collective
    def forward(self, x: TypedRows) -> Tensor:
        """Return (N, out_width)."""
        out = linear_by_type(x.rows, x.parts, list(self.weights), list(self.biases))
        for number, vectors in self.vectors.items():
            assert x.numbers is not None
            rows = x.rows[int(number)]
            numbers = x.numbers[rows]
            if x.owners is None:
                chosen = vectors.index_select(0, numbers)
            else:
                chosen = x.owners.fetch(vectors, int(number), numbers.cpu().numpy())
            out.index_add_(0, rows, chosen.to(out.dtype))
        return out


class TypedModel(NodeModel):
    """Input layers of node types before a model that knows one kind of node.

    The body reads the result of the input layers in place of features, and so has its gradient.
    """

    def __init__(self, type_widths: Sequence[int], body: Model) -> None:
        super().__init__()
        self.inputs = InputLayers(type_widths, body.shape.first_width)
        self.body = body

    @collective
    def forward(self, graph: GraphView, x: TypedRows, key: DropoutKey | None) -> Tensor:
        """Return logits as `Model.forward`; dropout of features acts on rows of `inputs`."""
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
    def input_parameters(self) -> list[nn.Parameter]:
        # The parameters of the input layers and of the first graph layer.
        # There is no non-linearity between them, so they are one linear map of the features.
        return [*self.inputs.parameters(), *self.body.input_parameters()]

    @override
    def own_rows(self) -> Mapping[str, str]:
        ids = {number: f"inputs.ids_{number}" for number in self.inputs.vectors}
        vectors = {f"inputs.vectors.{number}": name for number, name in ids.items()}
        return {**vectors, **{name: name for name in ids.values()}}
