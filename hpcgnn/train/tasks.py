"""The tasks by the names that configurations use."""

from collections.abc import Mapping
from types import MappingProxyType

from hpcgnn.train.full.task import NodeTask
from hpcgnn.train.graphs.task import GraphsTask
from hpcgnn.train.links.task import LinkTask
from hpcgnn.train.programs.task import ProgramsTask
from hpcgnn.train.sampled.task import SampledTask
from hpcgnn.train.task import Task

TASKS: Mapping[str, type[Task]] = MappingProxyType(
    {
        "full": NodeTask,
        "sampled": SampledTask,
        "links": LinkTask,
        "graphs": GraphsTask,
        "programs": ProgramsTask,
    }
)
"""``train.task`` -> its class."""
