"""The kinds of training, by the name that ``train.task`` gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpcgnn.comm import ProcessGrid
from hpcgnn.storage import GraphStore, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.load import load_graph
from hpcgnn.train.node_task import NodeTask
from hpcgnn.train.programs_task import ProgramsTask
from hpcgnn.train.sampled_task import SampledTask
from hpcgnn.train.task import Task

__all__ = ["TASKS", "TaskKind"]


@dataclass(frozen=True)
class TaskKind:
    """How a kind of training starts.

    Parameters
    ----------
    load
        Reads this rank's share and prepares to train on it; collective.
    fingerprint
        Returns the fingerprint of the configuration's store without reading it whole; not
        collective.
    """

    load: Callable[[ProcessGrid, Config, TraceRecorder], Task]
    fingerprint: Callable[[Config], str]


def _load_full(grid: ProcessGrid, config: Config, trace: TraceRecorder) -> Task:
    return NodeTask(load_graph(grid, config, trace, needs=("features", "labels", "split")), config)


def _graph_fingerprint(config: Config) -> str:
    with GraphStore.open(config.graph.store) as store:
        return store.fingerprint


def _program_fingerprint(config: Config) -> str:
    with InstanceStore.open(config.graph.store) as store:
        return store.fingerprint


TASKS: Mapping[str, TaskKind] = MappingProxyType(
    {
        "full": TaskKind(_load_full, _graph_fingerprint),
        "sampled": TaskKind(SampledTask, _graph_fingerprint),
        "programs": TaskKind(ProgramsTask, _program_fingerprint),
    }
)
"""``train.task`` -> how it starts."""
