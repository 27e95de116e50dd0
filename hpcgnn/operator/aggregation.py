"""The kinds of aggregation, that is of scaled adjacency matrices, with all their properties.

A new aggregation is a new member here. Other code reads properties and never compares names.
"""

from collections.abc import Iterable
from enum import Enum

from hpcgnn.support import Reasons, Trait
from hpcgnn.typing import FloatArray

_ATTENTION: Reasons = {
    Trait.TWO_BIT_ROWS: "attention pushed in 2 bits loses half of its accuracy",
    Trait.ADDED_PUSHES: "attention pushes states, which do not add up",
    Trait.EDGE_WEIGHTS: "attention does not use them",
}
_STATES: Reasons = {
    Trait.PUSHES: "its messages do not add up, or its edges have states, which stay with targets"
}
_MESSAGES: Reasons = {
    Trait.EDGE_WEIGHTS: "it reads features of edges instead of weights",
    Trait.ADDED_REVERSES: "reverses that training adds have no features; those of hpcgnn "
    "convert --undirected have",
}
_NO_LOOPS = "a node is none of its neighbours"


class Aggregation(Enum):
    """The scaled adjacency matrices that a model can use.

    Attributes
    ----------
    powers
        Entries are divided by these powers of their row sum and column sum; None for a pattern
        without values.
    is_reversed
        Whether it aggregates along out-edges, by the transpose of a matrix; not used on undirected
        graphs, where the transpose is the same.
    by_relation
        Whether it distinguishes relations, with a block of rows for each that has rows only for
        nodes with neighbours.
    maps_relations
        Whether each relation maps the values of attention.
    passes_messages
        Whether its operator computes messages of edges, see `hpcgnn.messages`; entries are then
        numbered.
    adds_messages
        Whether the owners of the edges' sources may compute sums of messages.
    """

    powers: tuple[float, float] | None
    self_loops: bool
    is_reversed: bool
    by_relation: bool
    maps_relations: bool
    passes_messages: bool
    adds_messages: bool

    SYMMETRIC = "symmetric", (0.5, 0.5), "self_loops"
    """D^-1/2 (A + I) D^-1/2."""
    MEAN_IN = "mean_in", (1.0, 0.0)
    """The mean over the nodes that a node aggregates from."""
    MEAN_OUT = "mean_out", (0.0, 1.0), "is_reversed"
    """The mean over the nodes that aggregate from a node."""
    SUM_IN = "sum_in", (0.0, 0.0)
    """The sum over the nodes that a node aggregates from: A itself."""
    SUM_OUT = "sum_out", (0.0, 0.0), "is_reversed"
    """The sum over the nodes that aggregate from a node."""
    MEAN_BY_RELATION = "mean_by_relation", (1.0, 0.0), "by_relation"
    """For every relation the mean over a node's neighbours."""
    ATTENTION = "attention", None, "self_loops"
    """A + I without weights, an `AttentionOperator`."""
    ATTENTION_IN = "attention_in", None
    """A without weights, an `AttentionOperator`."""
    ATTENTION_BY_RELATION = "attention_by_relation", None, "by_relation"
    """For every relation its A without weights, an `AttentionOperator`."""
    ATTENTION_MAPPED = "attention_mapped", None, "maps_relations"
    """The same, with values that every relation maps on the receiving rank."""
    MESSAGES = "messages", None, "passes_messages"
    """A with edges and their features as entries, a `MessageOperator`."""
    ADDED_MESSAGES = "added_messages", None, "adds_messages"
    """The same for sums or means of messages, of edges without states."""

    def __new__(
        cls, name: str, powers: tuple[float, float] | None, trait: str = ""
    ) -> "Aggregation":
        """Return a member whose value is its name."""
        member = object.__new__(cls)
        member._value_, member.powers = name, powers
        member.self_loops, member.is_reversed = trait == "self_loops", trait == "is_reversed"
        member.maps_relations = trait == "maps_relations"
        member.by_relation = trait == "by_relation" or member.maps_relations
        member.adds_messages = trait == "adds_messages"
        member.passes_messages = trait == "passes_messages" or member.adds_messages
        return member

    @property
    def direction(self) -> str:
        """The direction of its edges, "in" or "out"; one direction shares an exchange."""
        return "out" if self.is_reversed else "in"

    @property
    def attends(self) -> bool:
        """Whether its operator is an `AttentionOperator`."""
        return self.powers is None and not self.passes_messages

    @property
    def needs(self) -> frozenset[Trait]:
        """Traits that it needs from other features of a run."""
        loops = {Trait.SELF_LOOPS} if self.self_loops else set()
        relations = {Trait.RELATIONS} if self.by_relation else set()
        return frozenset(loops | relations)

    @property
    def lacks(self) -> Reasons:
        """Traits that it lacks for other features of a run."""
        loops = {} if self.self_loops else {Trait.SELF_LOOPS: _NO_LOOPS}
        relations = {} if self.by_relation else {Trait.RELATIONS: "it unites relations"}
        attention = _ATTENTION if self.attends else {}
        messages = _MESSAGES if self.passes_messages else {}
        states = _STATES if self.passes_messages and not self.adds_messages else {}
        return {**loops, **relations, **attention, **messages, **states}

    @property
    def is_scaled(self) -> bool:
        """Whether entries differ from the weights of their edges."""
        return self.powers is not None and any(self.powers)

    def divisors(self, by_row: FloatArray, by_column: FloatArray) -> FloatArray:
        """Return the divisors of entries from the sums (nnz,) of their rows and columns."""
        assert self.powers is not None
        for_row, for_column = self.powers
        if for_row == for_column:
            return (by_row * by_column) ** for_row
        return by_row**for_row * by_column**for_column


def on_graph(aggregations: Iterable[Aggregation], *, directed: bool) -> tuple[Aggregation, ...]:
    """Return the aggregations among `aggregations` that a directed or undirected graph needs."""
    return tuple(kind for kind in aggregations if directed or not kind.is_reversed)
