"""The configuration's section on exchanging rows between ranks, and on what to keep of them."""

from dataclasses import dataclass

from hpcgnn.config.options import Count, Natural, check_values, choice, option, require
from hpcgnn.spmm import AUTO, EXCHANGES, SCHEDULES, WIRES, find_method, make_wire, wire_traits
from hpcgnn.spmm.gpu.transports import TRANSPORTS
from hpcgnn.support import Declares, Trait, lacks, needs


def _method(name: str) -> Declares:
    return needs(Trait.KNOWN_GRAPH) if name == AUTO else find_method(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """How rows travel between ranks."""

    method: str = option(
        "aware",
        f"{', '.join(EXCHANGES)}; auto: the cheapest of them, from counted rows and messages and "
        "measured links; or package.module:NAME, a hpcgnn.spmm.Method",
        values=(*EXCHANGES, AUTO),
        traits=_method,
    )
    wire: str = option(
        "native",
        "number format on the wire: native (that of rows in memory), bfloat16, float16, or int8, "
        "int4, int2 (one scale per row, unbiased random rounding); int8/native: different formats "
        "for activations and gradients",
        values=WIRES,
        traits=wire_traits,
    )
    transport: str = option(
        "auto",
        "how GPUs send rows: mpi (directly from device memory), staged (through host memory), "
        "nccl, or auto: mpi if the MPI library takes device memory, else staged",
        values=TRANSPORTS,
    )
    active_sets: bool | str = option(
        "backward",
        "train only on rows that the training nodes depend on, layer by layer: backward (only in "
        "layers without model.norm=batch or graph before the output: same results), true (in every "
        "layer; such norms then use these rows), false",
        values=("backward", True, False),
        traits={True: needs(Trait.ACTIVE_SETS, Trait.LAYER_VIEWS)},
    )
    prepare: str = option(
        "before",
        "when to find active sets: before training, or in the first_epoch",
        values=("before", "first_epoch"),
    )
    replication: Count = option(
        1,
        "copies of every block row (1.5D); divides the number of ranks",
        traits=needs(
            Trait.REPLICAS,
            lacks={
                Trait.PLANNED_FROM_DEGREES: "its rows can be counted in the graph only",
                Trait.PLANNED_FROM_MESH: "its rows can be counted in the graph only",
            },
        ),
    )
    groups: Count = option(
        1,
        "groups of ranks, each with the whole graph and other samples of a step; divides the "
        "number of ranks",
        traits=needs(
            Trait.FIELDS,
            Trait.GROUP_STATISTICS,
            lacks={
                Trait.EQUAL_BITS: "sums over groups round in their order",
                Trait.REPLICAS: "its groups have no copies of block rows",
            },
        ),
    )
    schedule: str = option(
        "resident",
        "resident (rows of all other ranks at once) or sequential (of one rank after another: "
        "least memory); same results",
        values=SCHEDULES,
    )
    prefetch: Natural = option(
        0,
        "blocks of rows in transit while one is multiplied; with schedule=sequential",
        only_with={"schedule": ("sequential",)},
    )
    keep_products: str = option(
        "auto",
        "keep the first layer's products with the features, if these are the same in every epoch: "
        "never, always, or auto: with schedule=resident; saves their exchange, costs about the "
        "memory of the features",
        values=("auto", "always", "never"),
        traits={"always": lacks({Trait.SPARSE_FEATURES: "kept products have few zeros"})},
    )
    keep_states: str = option(
        "auto",
        "keep rows and edge states of every layer of gatedgcn and meshgraphnet for the backward "
        "pass: always, never (only about √(2 L) of L layers; the others are computed and exchanged "
        "again, bit for bit), or auto: with schedule=resident",
        values=("auto", "always", "never"),
    )

    @property
    def states_again(self) -> bool:
        """Whether edge states are recomputed in the backward pass."""
        return self.keep_states == "never" or (self.keep_states == "auto" and self.saves_memory)

    @property
    def saves_memory(self) -> bool:
        """Whether saving memory is worth some time, in the exchange and elsewhere."""
        return self.schedule == "sequential"

    def __post_init__(self) -> None:
        if ":" in self.method:
            find_method(self.method)
        else:
            choice("exchange.method", self.method, (*EXCHANGES, AUTO))
        check_values("exchange", self, but=("method", "wire", "active_sets"))
        valid = self.active_sets in (True, False, "backward")
        remedy = 'choose true, false or "backward"'
        require(valid, "exchange.active_sets", self.active_sets, remedy)
        make_wire(self.wire)
