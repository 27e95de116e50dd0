"""What a site may run each night: an installed hpcgnn on 1 and 4 ranks.

    reframe -C packaging/reframe/settings.py -c packaging/reframe/hpcgnn_checks.py \
        --system=workstation -r [-n NAME]

On fewer than 4 cores `. jobs/env.sh && use_environment` before lets 4 ranks start.
References are lower bounds by system. Those of `workstation` are a tenth of what a laptop reaches:
they catch a rank without its cores, or a network that is not there.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_before, sanity_function

_STORE = "hpcgnn generate planted --nodes 4000 --features 16 --classes 8 --seed 1 -o mine.h5"
_PARTS = "hpcgnn partition mine.h5 --parts 4 --method metis -o parts.h5"
_TRAIN = (
    *("train", "graph.store=parts.h5", "model.hidden=32", "run.threads=1"),
    *("train.reproducible=true", "run.checkpoint_every=1"),
)


class _Installed(rfm.RunOnlyRegressionTest):
    """An installed hpcgnn on one host."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "hpcgnn"
    num_tasks = 4
    num_cpus_per_task = 1
    time_limit = "10m"

    def losses(self, run: str) -> list[float]:
        """Return the losses of a run of this test."""
        lines = Path(self.stagedir, run, "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["train_loss"] for line in lines]


@rfm.simple_test
class SelfTest(_Installed):
    """Smoke, with the rates of sparse products and of messages."""

    ranks = parameter([1, 4])
    executable_opts = ["selftest"]
    reference = {
        "workstation:ranks": {"spmm": (2.0, -0.9, None, "GB/s"), "halo": (500, -0.9, None, "MB/s")},
    }

    @run_before("run")
    def set_ranks(self) -> None:
        """Take the ranks of this case."""
        self.num_tasks = self.ranks
        if self.ranks == 1:
            del self.perf_variables["halo"]

    @sanity_function
    def passes(self) -> bool:
        """Nothing is broken."""
        found = rf"selftest on {self.ranks} ranks?: all passed"
        return sn.assert_found(found, self.stderr)

    @performance_function("GB/s")
    def spmm(self) -> float:
        """Return the rate of sparse products on the slowest rank."""
        return sn.extractsingle(r"sparse products: ([\d.]+) GB/s", self.stdout, 1, float)

    @performance_function("MB/s")
    def halo(self) -> float:
        """Return the rate of messages on the slowest link."""
        return sn.extractsingle(r"and ([\d,]+) MB/s at worst", self.stdout, 1, _number)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


@rfm.simple_test
class EqualBits(_Installed):
    """A reproducible run has the same losses on 1 rank and on 4."""

    prerun_cmds = [_STORE, _PARTS, " ".join(["hpcgnn", *_TRAIN, "train.epochs=5", "run.dir=one"])]
    executable_opts = [*_TRAIN, "train.epochs=5", "run.dir=four"]

    @sanity_function
    def equal(self) -> bool:
        """Compare the losses bit by bit."""
        return sn.all(
            [
                sn.assert_eq(len(self.losses("four")), 5),
                sn.assert_eq(self.losses("one"), self.losses("four")),
            ]
        )


@rfm.simple_test
class Resume(_Installed):
    """A run of 3 epochs that goes on to 6 ends as one of 6."""

    prerun_cmds = [_STORE, _PARTS]
    executable_opts = [*_TRAIN, "train.epochs=3", "run.dir=parts"]

    @run_before("run")
    def go_on(self) -> None:
        """Start it again, and a run that nothing interrupts."""
        start = " ".join(self.job.launcher.command(self.job))
        self.postrun_cmds = [
            " ".join([start, "hpcgnn", *_TRAIN, "train.epochs=6", f"run.dir={name}"])
            for name in ("parts", "whole")
        ]

    @sanity_function
    def equal(self) -> bool:
        """Compare the losses bit by bit."""
        return sn.all(
            [
                sn.assert_eq(len(self.losses("whole")), 6),
                sn.assert_eq(self.losses("parts"), self.losses("whole")),
            ]
        )


@rfm.simple_test
class Partition(_Installed):
    """Four ranks cut a graph together, and a run would send few rows."""

    prerun_cmds = [_STORE]
    executable_opts = ["partition", "mine.h5", "--parts", "4", "--method", "volume", "-o", "p.h5"]
    postrun_cmds = ["hpcgnn inspect p.h5 --exchange aware --json"]

    # A count, not a time: the same on every system, but for new versions of the partitioner.
    reference = {"*": {"rows": (3528, None, 0.1, "rows")}}

    @sanity_function
    def cut(self) -> bool:
        """The store has a part for each rank, none much larger than the others."""
        ranks = sn.extractsingle(r'"ranks": (\d+)', self.stdout, 1, int)
        imbalance = sn.extractsingle(r'"imbalance": ([\d.e-]+)', self.stdout, 1, float)
        return sn.all([sn.assert_eq(ranks, 4), sn.assert_lt(imbalance, 0.1)])

    @performance_function("rows")
    def rows(self) -> int:
        """Return the rows that an exchange sends."""
        return sn.extractsingle(r'"rows_total": (\d+)', self.stdout, 1, int)
