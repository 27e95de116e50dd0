"""Facts about a store of program graphs, and whether a model or another store fits it."""

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
"""The splits to evaluate, by their names in metrics."""


@dataclass(frozen=True, kw_only=True)
class ProgramFacts(Facts):
    """Facts about a store of program graphs, `num_train` of which are trained on.

    `num_types` counts edge types and their reverses, not self edges; `steps` are message passes.
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
    """Return the facts about a store, `num_train` graphs of which are trained on."""
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
    """Return a new model for graphs with these facts, equal on all ranks."""
    shape = GGNNShape(
        num_buckets=facts.num_buckets,
        num_types=facts.num_types + config.self_edges,
        hidden=config.hidden,
        steps=facts.steps,
        dropout=config.dropout,
    )
    return make_ggnn(shape, seed=seed, dtype=dtype)


def open_judged(store: InstanceStore, path: str) -> InstanceStore:
    """Return the store to evaluate: `store` itself, or the one at `path` if it is not empty.

    Raises `InputError` if it cannot be read, or was not converted with the same options.
    """
    if not path:
        return store
    judged = InstanceStore.open(path)
    if judged.header.edge_names != store.header.edge_names:
        raise InputError(f"programs.judge_store {path}: has other edge types than {store.path}")
    check_fits(judged, program_facts(store, 0))
    return judged


def check_fits(store: InstanceStore, trained: ProgramFacts) -> None:
    """Raise `InputError` if a model for `trained` cannot score the graphs of `store`."""
    stored = program_facts(store, 0)
    for field in ("num_types", "num_buckets", "steps"):
        value, expected = getattr(stored, field), getattr(trained, field)
        if value != expected:
            raise InputError(
                f"{store.path} does not fit: {field} {value}, but {expected} in the store that was "
                "trained on; convert both with the same options"
            )
