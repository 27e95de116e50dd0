"""The features of a run that a configuration declares, and how other values would change them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.nn import NORMS_OVER_NODES, find_model
from hpcgnn.operator import Aggregation
from hpcgnn.support import Declares, Feature, Trait, lacks, needs

_OF_GRAPHS = (
    "graph",
    "model",
    "correct_and_smooth",
    "sampling",
    "links",
    "edges",
    "graphs",
    "fields",
)
"""Sections that program graphs do not use."""

_IN_ORDER = lacks({Trait.PUSHES: "its sums of messages have one order, by their sources"})
_CHANGED = {Trait.PUSHES: "in every step its edges change on the ranks of their targets"}
_MOVING = lacks(_CHANGED)
_ATTENDED = lacks(
    {**_CHANGED, Trait.EQUAL_BITS: "gradients of its values are summed on the ranks of sources"}
)


def samples(config: Config) -> bool:
    """Return whether training steps use sampled subgraphs."""
    by_task = {"sampled": True, "links": config.links.sampled, "edges": config.edges.sampled}
    return by_task.get(config.train.task, False)


def trains_in_steps(config: Config) -> bool:
    """Return whether an epoch has steps of subgraphs, or of batches of graphs."""
    return samples(config) or (config.train.task == "graphs" and config.graphs.batch > 0)


def trains_on_restricted_rows(config: Config) -> bool:
    """Return whether training computes only the rows that its loss needs, in every layer."""
    task = config.train.task
    if trains_in_steps(config):
        return True
    # Rows of other graphs are never read.
    return task == "graphs" or config.exchange.active_sets is True


def _reads(config: Config, section: str) -> bool:
    task = config.train.task
    if section == "sampling":
        # It is not known here whether a user's module samples.
        return samples(config) or ":" in task
    # Tasks that predict no fields refuse to be given fields; they do not ignore them.
    if section in ("links", "edges", "graphs", "programs"):
        return section in config.train.tasks
    return task != "programs" or section not in (*_OF_GRAPHS, "exchange")


def _uses(config: Config, section: str) -> bool:
    """Return whether a section may have an effect that is no refusal; see `_reads`."""
    if ":" in config.train.task:
        return True
    if section == "sampling":
        return trains_in_steps(config)
    return "fields" in config.train.tasks if section == "fields" else _reads(config, section)


def unread(config: Config) -> str:
    """Return a line that names options which differ from their defaults and have no effect.

    A section is read by some tasks only, an option with some values of others, see `option`. What
    a user's own task reads is not known.
    """
    notes, task = [], config.train.task
    for section in dataclasses.fields(config):
        options = getattr(config, section.name)
        changed = {
            option.name: option
            for option in dataclasses.fields(options)
            if getattr(options, option.name) != _default(option)
        }
        if changed and not _uses(config, section.name):
            keys = ", ".join(f"{section.name}.{name}" for name in changed)
            notes.append(f"{keys} (train.task = {show(task)})")
            continue
        for name, option in changed.items():
            for other, values in option.metadata.get("read_with", {}).items():
                if (now := getattr(options, other)) not in values:
                    notes.append(f"{section.name}.{name} ({section.name}.{other} = {show(now)})")
    return f"without effect: {'; '.join(notes)}" if notes else ""


def features_of(config: Config, aggregations: Sequence[Aggregation] = ()) -> list[Feature]:
    """Return the features of a configuration, except those of its task.

    `aggregations` replace those of the model, for a model that is not known.
    """
    features = _declared(config, aggregations)
    return [feature for feature in features if feature.traits.needs or feature.traits.lacks]


def _declared(config: Config, aggregations: Sequence[Aggregation]) -> Iterator[Feature]:
    """Yield the features of key values, aggregations and statistics, some without traits."""
    for section in dataclasses.fields(config):
        options, reads = getattr(config, section.name), _reads(config, section.name)
        if not reads and config.train.task != "programs":
            continue
        for option in _declaring(options.__class__) if reads else dataclasses.fields(options):
            key, value = f"{section.name}.{option.name}", getattr(options, option.name)
            traits = _traits_of(option, value) if reads else None
            if not reads and value != _default(option) and key != "graph.store":
                # Refuse values without effect, which would look as if they had one.
                traits = needs(Trait.BLOCK_ROWS)
            if traits is not None and not (aggregations and key == "model.name"):
                yield Feature(f"{key} = {show(value)}", traits, (key,))
    name, norm = config.model.name, config.model.norm
    reads_model = _reads(config, "model")
    kinds = aggregations or (find_model(name).aggregations if reads_model else ())
    if kinds and not (config.reads_edges or any(a.passes_messages for a in kinds)):
        unread = {Trait.EDGE_FEATURES: "nothing reads features of edges"}
        if not ("edges" in config.train.tasks and config.edges.features):
            unread[Trait.SCALED_EDGES] = unread[Trait.EDGE_FEATURES]
        yield Feature("model.edge_features = false", lacks(unread), ("model.edge_features",))
    for aggregation in kinds:
        once = "open the graph once for each"
        yield Feature(f"aggregation {show(aggregation.value)}", aggregation, remedy=once)
        moving, key = config.fields.read_of_edges, "fields.edge_inputs"
        if moving and aggregation.attends:
            yield Feature(f"{key} = {show(moving)} under attention", _ATTENDED, (key,))
        if moving and aggregation.adds_messages:
            yield Feature(f"{key} = {show(moving)} of messages", _MOVING, (key,))
        if config.train.reproducible and aggregation.adds_messages:
            key = "train.reproducible"
            yield Feature(f"{key} = true of messages", _IN_ORDER, (key,))
    of_rows = {"model.norm": norm} if norm in NORMS_OVER_NODES else {}
    if reads_model and find_model(name).averages_rows:
        of_rows["model.name"] = name
    if not trains_on_restricted_rows(config):
        of_all = lacks({Trait.TRAINED_STATISTICS: "its statistics are of all rows"})
        for key, value in of_rows.items():
            keys = (key, "exchange.active_sets", "graphs.batch")
            yield Feature(f"{key} = {show(value)}", of_all, keys)


def _traits_of(option: dataclasses.Field[Any], value: object) -> Declares | None:
    """Return the traits that a value of an option needs and lacks; None if there are none."""
    declared: Any = option.metadata.get("traits")
    if isinstance(declared, Mapping):
        return declared.get(value)
    if callable(declared):
        return declared(value)
    return declared if value != option.default else None


def changes(config: Config, key: str) -> Iterator[tuple[str, Config]]:
    """Yield other values of a key with the changed configuration, see `hpcgnn.support.check`.

    Values that are invalid together with the other keys are left out.
    """
    section, _, name = key.partition(".")
    options = getattr(config, section)
    (option,) = (option for option in dataclasses.fields(options) if option.name == name)
    values = option.metadata.get("values")
    now, default = getattr(options, name), _default(option)
    for value in values or ((True, False) if isinstance(default, bool) else (default,)):
        if value == now:
            continue
        try:
            options_changed = dataclasses.replace(options, **{name: value})
            changed = dataclasses.replace(config, **{section: options_changed})
        except InputError:
            continue
        left_out = not values and value == default
        yield ("" if left_out else show(value)), changed


def show(value: Any) -> str:
    """Return a value in the form in which users write it."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(show, value))}]"
    return str(value)


@cache
def _declaring(section: type) -> list[dataclasses.Field[Any]]:
    """Return the options of a section some of whose values have traits."""
    options = dataclasses.fields(section)
    return [option for option in options if option.metadata.get("traits") is not None]


def _default(option: dataclasses.Field[Any]) -> Any:
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default
