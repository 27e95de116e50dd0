"""The configuration's section on how rows travel, and which products travel once."""

from dataclasses import dataclass

from hpcgnn.config.options import choice, option, require
from hpcgnn.spmm import AUTO, EXCHANGES, SCHEDULES, find_method, make_wire, quantises
from hpcgnn.spmm.gpu.transports import TRANSPORTS


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """How rows travel between ranks."""

    method: str = option(
        "aware",
        f"{', '.join(EXCHANGES)}; auto: the cheapest of them, from counted rows and messages and "
        "measured links; or package.module:NAME, a hpcgnn.spmm.Method",
    )
    wire: str = option(
        "native",
        "number format on the wire: native (as rows are in memory), bfloat16, float16, or int8, "
        "int4: a scale a row, rounded at random without bias; int8/native: of activations and "
        "gradients",
    )
    transport: str = option(
        "auto",
        "how rows of GPUs travel: mpi (straight from device memory), staged (through host memory), "
        "nccl, or auto: mpi where the MPI library takes device memory, else staged",
    )
    active_sets: bool | str = option(
        "backward",
        "train on the rows that the training nodes reach, layer by layer: backward (where no "
        "model.norm=batch or graph before the output counts the others: same results), true (in "
        "every layer, and such norms are of these rows), false",
    )
    prepare: str = option(
        "before", "when active sets are found: before training, or in the first_epoch"
    )
    replication: int = option(1, "copies of every block row (1.5D); divides the number of ranks")
    schedule: str = option(
        "resident",
        "resident (all rows of other ranks at once) or sequential (one rank's after another's: "
        "least memory); same results",
    )
    prefetch: int = option(
        0, "blocks of rows under way while one is multiplied; with schedule=sequential"
    )
    keep_products: str = option(
        "auto",
        "keep the first layer's products with the features, where no epoch changes these: never, "
        "always, or auto: with schedule=resident; saves their exchange, costs about the memory of "
        "the features",
    )

    def __post_init__(self) -> None:
        if ":" not in self.method:
            choice("exchange.method", self.method, (*EXCHANGES, AUTO))
        broadcasts = self.method != AUTO and find_method(self.method).received is None
        known = self.active_sets in (True, False, "backward")
        remedy = 'choose true, false or "backward"'
        require(known, "exchange.active_sets", self.active_sets, remedy)
        make_wire(self.wire)
        remedy = "broadcasts are not packed in few bits; choose exchange.method=aware or joint"
        require(not (broadcasts and quantises(self.wire)), "exchange.wire", self.wire, remedy)
        choice("exchange.transport", self.transport, TRANSPORTS)
        choice("exchange.prepare", self.prepare, ("before", "first_epoch"))
        choice("exchange.schedule", self.schedule, SCHEDULES)
        choice("exchange.keep_products", self.keep_products, ("auto", "always", "never"))
        require(self.replication >= 1, "exchange.replication", self.replication, "at least 1")
        require(self.prefetch >= 0, "exchange.prefetch", self.prefetch, "must not be negative")
        prefetch_works = self.prefetch == 0 or self.schedule == "sequential"
        remedy = "needs exchange.schedule=sequential"
        require(prefetch_works, "exchange.prefetch", self.prefetch, remedy)
