"""Which features of a run work together: each declares the traits that it needs and lacks.

A `Trait` is a property that one feature may require of all others: equal bits, rows in 16 bits,
edges distinguished by relation. A feature that lacks a trait which another one needs does not work
with it, and states the reason. Each feature declares both where it is defined, so that only
`conflicts` compares features. docs/matrix.md is generated from the same declarations. `load_own`
loads objects from a user's own modules.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpcgnn.errors import InputError, instead_of


class Trait(Enum):
    """A property that a feature may need of all others; the values describe features with it."""

    EQUAL_BITS = "computes equal bits at any distribution of the rows"
    GPU = "computes on GPUs"
    SIXTEEN_BITS = "keeps rows in 16 bits"
    INTEGER_PRODUCTS = "multiplies rows of nodes in 8 bits"
    ROUNDED_ROWS = "sends rows in fewer bits than it computes with"
    PACKED_ROWS = "sends rows in 8, 4 or 2 bits"
    TWO_BIT_ROWS = "sends rows in 2 bits"
    ADDED_PUSHES = "pushes partial results that other ranks may add up on the way"
    PUSHES = "computes partial results for other ranks"
    REPLICAS = "runs on copies of the block rows"
    LAYER_VIEWS = "computes each layer on its own set of rows"
    ACTIVE_SETS = "computes only the rows that the training nodes depend on"
    BLOCK_ROWS = "trains on block rows of one graph, as [graph] and [model] say"

    RELATIONS = "distinguishes relations"
    EDGE_FEATURES = "reads features of edges"
    SCALED_EDGES = "reads features of edges, also of those that it predicts"
    EDGE_STATES = "has the same edges in every layer"
    MOVING_EDGES = "reads features of edges that change in time"
    EDGE_OUTPUTS = "predicts fields of edges from states of edges"
    STORED_EDGE_FEATURES = "has features of its edges"
    POSITIONS = "has positions of its nodes"
    ADDED_REVERSES = "adds the reverses of edges while it reads them"
    REVERSE_EDGES = "also follows edges against their direction"
    EDGE_WEIGHTS = "uses weights of edges"

    SOME_EDGES = "trains on a part of the edges and is evaluated on all"
    TRAINED_STATISTICS = "takes statistics only of the rows that it trains on"
    CHOSEN_STATISTICS = "takes statistics of chosen rows"
    GROUP_STATISTICS = "takes statistics of the samples of one group of ranks"
    ONE_GRAPH = "learns or computes something for each node of one graph"
    NODE_VECTORS = "learns a vector for each node"
    CLASSES = "predicts classes"
    NUMBERS = "predicts numbers"
    SEVERAL_LABELS = "predicts several labels of a node"
    LABELLED_NODES = "knows labels of single nodes"
    LABEL_INPUTS = "takes labels as inputs"
    NODE_SPLITS = "reads a split of the nodes"
    PARTS = "samples from a part of the graph on each rank"
    OTHER_ENDS = "has negatives that are not drawn uniformly"
    NODE_TYPES = "has node types"
    ONE_NODE_TYPE = "has one type of nodes"
    BARE_NODES = "has nodes without features"
    SPARSE_FEATURES = "reads sparse features"
    SELF_LOOPS = "counts a node among its own neighbours"

    PLANNED = "is counted by hpcgnn plan"
    PLANNED_FROM_DEGREES = "is planned from degrees alone"
    PLANNED_FROM_MESH = "is planned from the shape of a mesh alone"
    EXPORTED = "has counterparts in other libraries"
    KNOWN_GRAPH = "knows the graph before rows travel"
    OWN_LOOPS = "runs in your own loop"
    PAIRS = "scores pairs of nodes"
    PAIR_ROWS = "writes a row for each pair of nodes"
    FOUND_PAIRS = "finds the pairs that it writes"
    PROGRAMS = "scores candidates of program graphs"
    FIELDS = "predicts fields over time"
    STEPS = "predicts step after step"
    PROBABILITIES = "gives probabilities, or values"
    NODE_ROWS = "writes a row for each node or graph"
    CHOSEN_ROWS = "writes only requested rows"
    FORMATS = "writes any format"
    NODE_FIELDS = "writes fields of nodes alone"


Reasons = Mapping[Trait, str]
"""The traits that a feature lacks, each with a reason, a clause that calls the feature "it"."""

NOTHING: Reasons = {}
NOT_WRITTEN: Reasons = {Trait.EXPORTED: "its layers are not written in other libraries so far"}
"""The trait that models with layers only in hpcgnn lack."""


class Declares(Protocol):
    """Anything that declares needed and lacked traits: a model class, an exchange, `Traits`."""

    @property
    def needs(self) -> frozenset[Trait]:
        """The traits that all other features must have."""

    @property
    def lacks(self) -> Reasons:
        """The traits that it does not have, with reasons."""


@dataclass(frozen=True)
class Traits:
    """The traits that a value of an option needs and lacks."""

    needs: frozenset[Trait] = frozenset()
    lacks: Reasons = field(default_factory=lambda: NOTHING)


def needs(*traits: Trait, lacks: Reasons = NOTHING) -> Traits:
    """Declare that a feature needs `traits`, and what it `lacks`."""
    return Traits(frozenset(traits), lacks)


def lacks(reasons: Reasons) -> Traits:
    """Declare that a feature only lacks some traits."""
    return Traits(lacks=reasons)


def union(*parts: Declares) -> Traits:
    """Combine the traits of several parts of one feature; earlier reasons take precedence."""
    needed = frozenset[Trait]().union(*(part.needs for part in parts))
    reasons: dict[Trait, str] = {}
    for part in parts:
        reasons = {**part.lacks, **reasons}
    return Traits(needed, reasons)


@dataclass(frozen=True, eq=False)
class Feature:
    """A feature of a run, such as an option's value or a command.

    `name` is written as the user writes it: ``exchange.method = 'joint'``, ``hpcgnn plan``.
    Changing one of its configuration `keys` may resolve a conflict; `remedy` is another way to do
    without the feature.
    """

    name: str
    traits: Declares
    keys: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class Conflict:
    """Two features that do not work together.

    `asking` needs the `trait`, and `lacking` lacks it.
    """

    asking: Feature
    lacking: Feature
    trait: Trait

    @property
    def pair(self) -> tuple[str, str]:
        """The names of both features."""
        return self.asking.name, self.lacking.name

    @property
    def reason(self) -> str:
        """The reason why `lacking` lacks the trait."""
        return self.lacking.traits.lacks[self.trait]


def conflicts(features: Iterable[Feature]) -> Iterator[Conflict]:
    """Yield each pair of features that do not work together, once."""
    declared = tuple(features)
    for asking in declared:
        for lacking in declared:
            missing = asking.traits.needs & lacking.traits.lacks.keys()
            if missing and asking is not lacking:
                yield Conflict(asking, lacking, min(missing, key=lambda trait: trait.name))


Case = TypeVar("Case")


def check(
    case: Case,
    features_of: Callable[[Case], Sequence[Feature]],
    changes: Callable[[Case, str], Iterable[tuple[str, Case]]],
) -> None:
    """Raise an `InputError` if two features do not work together.

    `case` has the features, for example a configuration. `changes` yields, for a case and a key,
    other values with the changed case; "" stands for leaving the key out. Remedies are the changes
    that resolve the conflict and bring no other.
    """
    refused = list(conflicts(features_of(case)))
    if not refused:
        return
    first, before = refused[0], {conflict.pair for conflict in refused}
    remedies = []
    for key in dict.fromkeys((*first.lacking.keys, *first.asking.keys)):
        values = []
        for value, changed in changes(case, key):
            left = {conflict.pair for conflict in conflicts(features_of(changed))}
            if first.pair not in left and left <= before:
                values.append(value)
        if values:
            remedies.append(f"set {key} = {_any_of(values)}" if all(values) else f"leave {key} out")
    remedies += [feature.remedy for feature in (first.lacking, first.asking) if feature.remedy]
    asking, lacking = first.asking.name, first.lacking.name
    message = f"{asking} does not work with {lacking}: {first.reason}"
    # Shorter remedies are usually the simpler ones.
    either = ", or ".join(sorted(dict.fromkeys(remedies), key=len))
    raise InputError(f"{message}; {either}" if either else message)


_NAMED = 5


def _any_of(values: Sequence[str]) -> str:
    if len(values) <= _NAMED:
        return " or ".join(values)
    return " or ".join(values[:_NAMED]) + " (docs/matrix.md has all)"


def load_own(key: str, name: str, accepts: Callable[[object], bool], what: str) -> Any:
    """Return the object that ``package.module:NAME`` names.

    The module is searched in the working directory first, then among installed modules.

    Raises `InputError` if the module cannot be loaded, or has no such object, naming the nearest.

    `key` is the configuration key for messages. `accepts` checks the object; `what` describes
    accepted objects: "subclass of hpcgnn.nn.Model". `name` has a colon.
    """
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{key} = {name!r}: its module needs {error.name}") from error
        raise InputError(
            f"{key} = {name!r}: there is no module {error.name!r} in {folder} nor installed"
        ) from error
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise InputError(f"{key} = {name!r}: its module raises {fault}") from error
    member = getattr(module, attribute, None)
    if not accepts(member):
        # Leave out classes that the module has imported.
        accepted = [
            attribute_name
            for attribute_name, value in vars(module).items()
            if accepts(value) and not (isinstance(value, type) and value.__module__ != module_name)
        ]
        fault = "does not exist" if member is None else f"is not a {what}"
        remedy = instead_of(attribute, accepted) if accepted else "write one"
        raise InputError(f"{key} = {name!r}: {attribute} {fault}; {remedy}")
    return member
