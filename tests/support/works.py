"""The cells of docs/matrix.md: pairs of features, which work together or do not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from hpcgnn.commands.command import find_command
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS
from hpcgnn.spmm import EXCHANGES
from hpcgnn.support import Conflict, Feature, Trait, conflicts, needs
from hpcgnn.train.predict import option_features
from hpcgnn.train.tasks import EXPORT, LIBRARY, PLAN, features_of

Words = tuple[str, ...]
Axis = Mapping[str, Words]
"""Label -> settings; names of `DOORS` among them."""

SHAPE = Feature("--shape", needs(Trait.PLANNED_FROM_DEGREES))
MESH = Feature("--shape of a mesh", needs(Trait.FIELDS, Trait.PLANNED_FROM_MESH))
PREDICT: Mapping[str, Words] = {
    "predict": (),
    "predict as npy": ("--format", "npy"),
    "predict --nodes": ("--nodes", "0,1"),
    "predict --pairs": ("--pairs", "pairs.csv"),
    "predict --top": ("--top", "2", "--relation", "names"),
    "predict --what embeddings": ("--what", "embeddings"),
    "predict --rollout": ("--rollout", "1"),
}
"""Request to a finished run -> arguments of the command."""


def predict_words(name: str) -> list[str]:
    """Return the arguments of a prediction without run and output, whose file name they match."""
    return [*PREDICT[name], *([] if "--format" in PREDICT[name] else ["--format", "h5"])]


def _asked(name: str) -> tuple[Feature, ...]:
    options = find_command("predict").parse(["run", "-o", "out", *predict_words(name)])
    return tuple(option_features(options))


DOORS: Mapping[str, tuple[Feature, ...]] = {
    "plan": (PLAN,),
    "plan --shape": (PLAN, SHAPE),
    "plan --shape, mesh": (PLAN, MESH),
    "export": (EXPORT,),
    "export --to dgl": (EXPORT,),
    "open_graph": (LIBRARY,),
    **{name: _asked(name) for name in PREDICT},
}

GROUPS: Words = ("exchange.groups=2", "fields.batch=2")
OF_FIELDS: Words = ("train.task=fields", "fields.targets=u")

MODEL: Axis = {name: (f"model.name={name}",) for name in MODELS}
SOURCE: Axis = {
    "full": ("train.task=full",),
    "sampled": ("train.task=sampled",),
    "links": ("train.task=links",),
    "links.sampled": ("train.task=links", "links.sampled=true"),
    "edges": ("train.task=edges",),
    "edges.sampled": ("train.task=edges", "edges.sampled=true"),
    "full+links+edges": ("train.task=full+links+edges",),
    "graphs, batches": ("train.task=graphs", "graphs.batch=10"),
    "graphs, all at once": ("train.task=graphs", "graphs.batch=0"),
    "fields": OF_FIELDS,
    "fields of edges": (*OF_FIELDS, "fields.edge_inputs=q"),
    "targets on edges": (*OF_FIELDS, "fields.edge_targets=q"),
    "programs": ("train.task=programs",),
}
EXCHANGE: Axis = {name: (f"exchange.method={name}",) for name in (*EXCHANGES, "auto")} | {
    "sequential": ("exchange.schedule=sequential",),
    "replication": ("exchange.replication=2",),
    # Groups have their own samples, which only fields have.
    "groups": (*GROUPS, *OF_FIELDS),
}
NUMBERS: Axis = {
    "wire bfloat16": ("exchange.wire=bfloat16",),
    "wire float16": ("exchange.wire=float16",),
    "wire int8, int4": ("exchange.wire=int8",),
    "wire int2": ("exchange.wire=int2",),
    "precision bfloat16": ("train.precision=bfloat16",),
    "products int8": ("train.products=int8",),
    "dtype float64": ("train.dtype=float64",),
    "device cuda": ("train.device=cuda",),
}
MODE: Axis = {
    "reproducible": ("train.reproducible=true",),
    "inductive": ("train.inductive=true",),
    "active_sets = true": ("exchange.active_sets=true",),
    "norm batch": ("model.norm=batch",),
    "norm layer": ("model.norm=layer",),
    "norm graph": ("model.norm=graph",),
    "edge_features": ("model.edge_features=true",),
    "embeddings": ("model.embeddings=true",),
    "label_augmentation": ("train.label_augmentation=0.5",),
    "label_smoothing": ("train.label_smoothing=0.1",),
    "correct_and_smooth": ("correct_and_smooth.enabled=true",),
    "targets": ("graph.targets=targets.npy",),
    "structure degree": ("graph.structure=degree",),
    "structure spectral": ("graph.structure=spectral",),
    "normalize standard": ("graph.normalize_features=standard",),
    "sparse_features": ("graph.sparse_features=always",),
    "features_dir": ("graph.features_dir=.",),
}
DOOR: Axis = {name: (name,) for name in DOORS if name not in PREDICT} | {
    "plan --shape, mesh": ("plan --shape, mesh", *OF_FIELDS)
}

TABLES: Mapping[str, tuple[Axis, Axis]] = {
    "Models": (MODEL, {**{k: v for k, v in SOURCE.items() if k != "programs"}, **DOOR}),
    "Models and exchanges": (MODEL, EXCHANGE),
    "Models and numbers": (MODEL, NUMBERS),
    "Models and modes": (MODEL, MODE),
    "Exchanges": (EXCHANGE, {**NUMBERS, **DOOR}),
    "Exchanges and modes": (MODE, EXCHANGE),
    "Tasks": (SOURCE, {**EXCHANGE, "groups": GROUPS, **DOOR}),
    "Tasks and numbers": (SOURCE, NUMBERS),
    "Tasks and modes": (MODE, SOURCE),
    "Modes": (MODE, {**NUMBERS, **DOOR}),
    # With several tasks, --task chooses one.
    "Tasks and predictions": (
        {name: words for name, words in SOURCE.items() if "+" not in name},
        {name: (name,) for name in PREDICT},
    ),
}


@dataclass(frozen=True)
class Cell:
    """Two features and their entry in the table.

    Parameters
    ----------
    conflict
        Why they do not work together; None: they do.
    """

    row: str
    column: str
    words: Words
    conflict: Conflict | None

    @property
    def doors(self) -> tuple[Feature, ...]:
        """The purpose of the cell, besides training."""
        return doors_of(self.words)

    @property
    def settings(self) -> Words:
        """Its settings of the configuration."""
        return tuple(word for word in self.words if word not in DOORS)


def doors_of(words: Words) -> tuple[Feature, ...]:
    """Return the commands that are among the words of a cell."""
    return tuple(door for word in words for door in DOORS.get(word, ()))


def cell(row: str, column: str, first: Words, second: Words) -> Cell | None:
    """Return the cell of two features; None if one lacks the option, or a key has two values."""
    words = (*first, *second)
    keys = [word.partition("=")[0] for word in words if "=" in word]
    if len(set(keys)) < len(keys):
        return None
    settings = [word for word in words if word not in DOORS]
    try:
        config = load_config(None, ["graph.store=g.h5", "run.dir=run", *settings])
    except InputError:
        return None
    found = next(iter(conflicts(features_of(config, doors_of(words)))), None)
    return Cell(row, column, words, found)


def cells(rows: Axis, columns: Axis) -> Iterator[Cell]:
    """Yield the cells of a table."""
    for row, first in rows.items():
        for column, second in columns.items():
            made = cell(row, column, first, second)
            if made is not None:
                yield made


def mode_pairs() -> Iterator[Cell]:
    """Yield the cells of two modes."""
    for (row, first), (column, second) in combinations(MODE.items(), 2):
        made = cell(row, column, first, second)
        if made is not None:
            yield made


def every_cell() -> Iterator[Cell]:
    """Yield the cells of all tables."""
    for rows, columns in TABLES.values():
        yield from cells(rows, columns)
    yield from mode_pairs()
