"""What a store of program graphs holds, and whether a model or another store fits it."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from hpcgnn.config.programs import ProgramsConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import Facts
from hpcgnn.nn import GGNN, GGNNShape, make_ggnn
from hpcgnn.storage import InstanceSplit, InstanceStore

JUDGED = {
    "valid": InstanceSplit.VALID,
    "test": InstanceSplit.TEST,
    "unseen": InstanceSplit.UNSEEN,
}
"""Splits that are not trained on, by their names in metrics."""


@dataclass(frozen=True, kw_only=True)
class ProgramFacts(Facts):
    """A store of program graphs, of which `num_train` are trained on.

    Types of edges count with their reverses, self edges do not; `steps` are of message passing.
    """

    num_graphs: int
    num_train: int
    num_buckets: int
    num_types: int
    steps: int

    @property
    @override
    def metric(self) -> str:
        return "accuracy"


def program_facts(store: InstanceStore, num_train: int) -> ProgramFacts:
    """Return the sizes of a store of which `num_train` graphs are trained on."""
    header = store.header
    return ProgramFacts(
        name=header.name,
        fingerprint=store.fingerprint,
        num_graphs=len(store),
        num_train=num_train,
        num_buckets=header.num_buckets,
        num_types=2 * len(header.edge_names),
        steps=header.steps,
    )


def model_of(facts: ProgramFacts, config: ProgramsConfig, seed: int, dtype: torch.dtype) -> GGNN:
    """Return a new model for such graphs, equal on all ranks."""
    shape = GGNNShape(
        num_buckets=facts.num_buckets,
        num_types=facts.num_types + config.self_edges,
        hidden=config.hidden,
        steps=facts.steps,
        dropout=config.dropout,
    )
    return make_ggnn(shape, seed=seed, dtype=dtype)


def open_judged(store: InstanceStore, path: str) -> InstanceStore:
    """Return the store that is judged: `store` itself, or the one at `path` if it is not empty.

    Raises `InputError` when it does not read, or was not converted with the same options.
    """
    if not path:
        return store
    judged = InstanceStore.open(path)
    if judged.header.edge_names != store.header.edge_names:
        raise InputError(f"programs.judge_store {path}: has other types of edges than {store.path}")
    check_fits(judged, program_facts(store, 0))
    return judged


def check_fits(store: InstanceStore, trained: ProgramFacts) -> None:
    """Raise `InputError` where a model for `trained` cannot score the graphs of `store`."""
    stored = program_facts(store, 0)
    for field in ("num_types", "num_buckets", "steps"):
        value, theirs = getattr(stored, field), getattr(trained, field)
        if value != theirs:
            raise InputError(
                f"{store.path} does not fit: {field} {value}, but {theirs} in the store that was "
                "trained on; convert both with the same options"
            )
