"""The configuration: frozen dataclasses that check their own values.

A TOML file has a table for each section; ``section.key=value`` arguments override it, and ``hpcgnn
train --keys`` lists every key with its default and meaning.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated

from hpcgnn.config.edges import EdgesConfig
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.fields import FieldsConfig
from hpcgnn.config.links import LinksConfig
from hpcgnn.config.model import ModelConfig
from hpcgnn.config.options import (
    Amount,
    Chance,
    Count,
    Natural,
    Positive,
    Range,
    Share,
    check_values,
    choice,
    option,
    require,
)
from hpcgnn.config.programs import ProgramsConfig
from hpcgnn.config.sampling import SamplingConfig
from hpcgnn.config.training import TrainConfig
from hpcgnn.nn import READOUTS
from hpcgnn.spmm import quantises
from hpcgnn.support import Trait, lacks, needs
from hpcgnn.watchdog import DEFAULT_LIMIT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphsConfig:
    """How nodes are read out into graphs, and how many graphs a step trains on."""

    readout: str = option(
        "mean", f"read-out of a graph's nodes: {', '.join(READOUTS)}", values=tuple(READOUTS)
    )
    width: Natural = option(0, "columns of a node that are read out; 0: model.hidden")
    batch: Natural = option(
        64,
        "graphs per step, distributed over the ranks; 0: all of them at once, with the exchange of "
        "the whole store",
    )

    def __post_init__(self) -> None:
        check_values("graphs", self)


_STRUCTURE = {
    Trait.SOME_EDGES: "it uses all edges",
    Trait.BARE_NODES: "it gives all nodes features",
}
_OF_ONE_GRAPH = needs(Trait.ONE_GRAPH, Trait.ONE_NODE_TYPE, lacks=_STRUCTURE)
STRUCTURES = {
    "none": needs(),
    "degree": needs(Trait.ONE_NODE_TYPE, lacks=_STRUCTURE),
    "projection": _OF_ONE_GRAPH,
    "spectral": _OF_ONE_GRAPH,
}
"""Kinds of structural features, with the traits that they need and lack."""
_DRAWN = {"structure": ("projection", "spectral")}

_SCALINGS = ("DAD", "DA", "AD")
_TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
_Limit = Annotated[float, Range(lambda v: v == 0 or 1 <= v < inf, "must be 0, or at least 1")]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphConfig:
    """Which graph to use, and which of its edges and features."""

    store: str = option("", "path of the store (.h5)")
    split: str = option(
        "",
        "name of the split to train on; empty: the store's first",
        traits=needs(Trait.NODE_SPLITS),
    )
    targets: str = option(
        "",
        "file of numbers to predict for nodes instead of classes: .npy or .csv",
        traits=needs(
            Trait.NUMBERS,
            lacks={
                Trait.CLASSES: "its numbers are not classes",
                Trait.SEVERAL_LABELS: "its numbers are not labels",
                Trait.PLANNED_FROM_DEGREES: "a plan from degrees reads no such file",
            },
        ),
    )
    relations: tuple[str, ...] = option((), "relations to aggregate over; empty: all")
    undirected: bool = option(False, "add the reverse of every edge")
    reverse: bool = option(
        True, "in models that distinguish relations, add the reverse of each as another relation"
    )
    weights: str = option(
        "use",
        "weights of edges: use, or ignore (all count 1), which attention requires",
        values=("use", "ignore"),
    )
    structure: str = option(
        "none",
        "structural features, appended to those of the store: none; degree: two columns; "
        "projection: random walks of 1 to 3 steps, projected; spectral: leading eigenvectors",
        values=tuple(STRUCTURES),
        traits=STRUCTURES,
    )
    structure_columns: Count = option(
        64, "columns of structure=projection and spectral", read_with=_DRAWN
    )
    structure_seed: Natural = option(
        1, "seed of structure=projection and spectral", read_with=_DRAWN
    )
    positions: str = option(
        "none",
        "none, or relative: append to the features of edges the vector from target to source and "
        "its length, over the mean length of edges; the nearest image in periodic boxes",
        values=("none", "relative"),
        traits={
            "relative": needs(
                Trait.EDGE_FEATURES,
                Trait.POSITIONS,
                lacks={Trait.EXPORTED: "modules take stored edge features; use hpcgnn predict"},
            )
        },
    )
    normalize_features: str = option(
        "none",
        "none; row, l2: rows of norm 1; standard: columns to mean 0, deviation 1",
        values=("none", "row", "l2", "standard"),
        traits={"standard": lacks({Trait.SPARSE_FEATURES: "its shifted columns have few zeros"})},
    )
    normalize_edge_features: str = option(
        "none",
        "the same for the features of edges, relation by relation",
        values=("none", "row", "l2", "standard"),
        traits=dict.fromkeys(("row", "l2", "standard"), needs(Trait.SCALED_EDGES)),
    )
    features_dir: str = option(
        "",
        "folder on a disk of each host for features that exceed memory, in unnamed files; empty: "
        "in memory. Still in memory are copies by model.input_dropout and exchange.keep_products, "
        "sums of neighbours that are not projected first, own rows of exchange.active_sets "
        "(GraphSAGE), and sampled graphs on several ranks",
        traits=lacks(
            {
                Trait.SPARSE_FEATURES: "its files have zeros too",
                Trait.GPU: "GPUs have features in their own memory",
                Trait.PLANNED: "pages of its files would count as memory",
                Trait.PLANNED_FROM_DEGREES: "pages of its files would count as memory",
            }
        ),
    )
    sparse_features: str = option(
        "auto",
        "keep features sparse in memory and in the first product: always, never, or auto: if they "
        "are sparse in the store and all other options allow it",
        values=("auto", "always", "never"),
        traits={
            "always": needs(
                Trait.SPARSE_FEATURES,
                lacks={
                    Trait.GPU: "sparse features are multiplied on CPUs only",
                    Trait.PLANNED_FROM_DEGREES: "degrees do not tell which features are zero",
                },
            )
        },
    )

    @property
    def num_structural(self) -> int:
        """Columns that `structure` makes."""
        return {"none": 0, "degree": 2}.get(self.structure, self.structure_columns)

    def __post_init__(self) -> None:
        require(bool(self.store), "graph.store", self.store, "give the path of a store")
        check_values("graph", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectAndSmoothConfig:
    """Label propagation on the predictions of the selected model."""

    enabled: bool = option(
        False,
        "correct and smooth the predictions of the kept model",
        traits=needs(
            Trait.CLASSES,
            Trait.LABELLED_NODES,
            lacks={Trait.PLANNED: "its products are not counted"},
        ),
    )
    scale: str = option(
        "autoscale", "scale of the spread errors: autoscale or fixed", values=("autoscale", "fixed")
    )
    fixed_scale: Positive = option(
        1.0, "factor of the spread errors, for scale=fixed", read_with={"scale": ("fixed",)}
    )
    correct_matrix: str = option(
        "DAD", "DAD, DA or AD: D^-1/2 A D^-1/2, D^-1 A or A D^-1", values=_SCALINGS
    )
    correct_alpha: Share = option(0.9, "share of the neighbours in a step, in [0, 1]")
    correct_steps: Natural = option(50, "steps that spread errors; 0: only training nodes change")
    smooth_matrix: str = option("DAD", "as correct_matrix", values=_SCALINGS)
    smooth_alpha: Share = option(0.8, "share of the neighbours in a step, in [0, 1]")
    smooth_steps: Natural = option(50, "steps that spread predictions")

    def __post_init__(self) -> None:
        check_values("correct_and_smooth", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Where results are written, and how a run stops and continues."""

    dir: str = option("", "run directory")
    resume: str = option(
        "auto",
        "continue from the newest checkpoint in run.dir: auto (if any), never, must",
        values=("auto", "never", "must"),
    )
    checkpoint_every: Natural = option(
        0, "epochs between checkpoints; 0: as often as checkpoint_share allows"
    )
    checkpoint_share: Chance = option(
        0.02,
        "with checkpoint_every=0: largest share of the time for checkpoints; 0: only at the end "
        "and on signals",
        read_with={"checkpoint_every": (0,)},
    )
    partner_every: Natural = option(
        0, "epochs between checkpoints in the memory of rank 0's host and of another; 0: none"
    )
    partner_dir: str = option("/dev/shm", "folder of that memory on each host")
    keep_checkpoints: Count = option(2, "newest checkpoints to keep for each seed")
    save_predictions: bool = option(True, "write predictions.h5 with the best seed's kept model")
    track: tuple[str, ...] = option(
        (),
        "also write the metrics for: csv (metrics.csv), tensorboard, mlflow, wandb; all except the "
        "first need their package",
    )
    threads: Natural = option(0, "threads of a rank; 0: the host's cores divided among its ranks")
    watts_per_core: Amount = option(
        0.0, "power of a core, for joules if hosts have no readable counters; 0: none"
    )
    stall_s: _Limit = option(
        DEFAULT_LIMIT_S,
        "seconds without the begin or end of a span on a rank after which the job ends with status "
        "76, naming rank, host and span; 0: never",
    )

    def __post_init__(self) -> None:
        require(bool(self.dir), "run.dir", self.dir, "give a directory")
        check_values("run", self)
        for name in self.track:
            choice("run.track", name, _TRACKERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceConfig:
    """What to record."""

    enabled: bool = option(True, "write trace/rankNNNNN.jsonl, a line for each phase of a step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All sections; the field names are the tables of the TOML file."""

    graph: GraphConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    correct_and_smooth: CorrectAndSmoothConfig = field(default_factory=CorrectAndSmoothConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    links: LinksConfig = field(default_factory=LinksConfig)
    edges: EdgesConfig = field(default_factory=EdgesConfig)
    graphs: GraphsConfig = field(default_factory=GraphsConfig)
    fields: FieldsConfig = field(default_factory=FieldsConfig)
    programs: ProgramsConfig = field(default_factory=ProgramsConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    run: RunConfig
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        groups, batch = self.exchange.groups, self.fields.batch
        remedy = f"a step has {batch} samples; raise fields.batch"
        enough = groups <= batch or self.train.task != "fields"
        require(enough, "exchange.groups", groups, remedy)

    @property
    def reads_edges(self) -> bool:
        """Whether layers read features of edges, from the store or from fields."""
        return self.model.edge_features or bool(self.fields.read_of_edges)

    @property
    def travel(self) -> ExchangeConfig:
        """The exchange section, with the number format on the wire resolved."""
        if self.train.precision == "float32" or quantises(self.exchange.wire):
            return self.exchange
        return replace(self.exchange, wire=self.train.precision)

    @property
    def keeps_products(self) -> bool:
        """Whether to keep products that are the same in every epoch, at the cost of memory."""
        keep, schedule = self.exchange.keep_products, self.exchange.schedule
        if keep == "auto":
            # A sequential schedule is chosen because memory is short. What is kept decides the
            # order of two products, so reproducible runs keep the same with both schedules.
            return schedule == "resident" or self.train.reproducible
        return keep == "always"

    @property
    def model_name(self) -> str:
        """The name of the model, for display."""
        return "ggnn" if self.train.task == "programs" else self.model.name
