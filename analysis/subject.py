"""All records of a run that pages and answers use, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcgnn.analysis.comm_matrix import summarise as summarise_traffic
from hpcgnn.analysis.curves import RunCurves
from hpcgnn.analysis.epoch_breakdown import summarise as summarise_epochs
from hpcgnn.analysis.load import Run
from hpcgnn.analysis.memory import RunMemory, measure_memory
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.settings import Settings, read_settings
from hpcgnn.trace import describe_epochs


@dataclass(frozen=True)
class Subject:
    """A run with its records; None for those it does not have."""

    run: Run
    settings: Settings
    curves: RunCurves | None
    epochs: dict[str, Any] | None
    traffic: dict[str, Any] | None
    memory: RunMemory | None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        return self.run.metrics() if self.run.has_metrics else []

    @cached_property
    def epoch(self) -> dict[str, Any]:
        """The description of its epochs, see `hpcgnn.trace.epochs`."""
        return describe_epochs(self.rows)

    @cached_property
    def session(self) -> dict[str, Any]:
        """The last start of the run, as `sessions.json` describes it."""
        sessions = self.run.sessions()
        return sessions[-1] if sessions else {}

    @property
    def shown_path(self) -> str:
        """The run's directory, relative to the working directory if it is inside."""
        cwd, path = Path.cwd(), self.run.path
        return str(path.relative_to(cwd) if cwd in path.parents else path)

    @property
    def details(self) -> list[dict[str, Any]]:
        """The summary's entry for each rank; empty before the run has ended."""
        entries: list[dict[str, Any]] = self.run.summary.get("ranks_detail", [])
        return entries

    @cached_property
    def ranks(self) -> int:
        """The number of ranks; 1 if it is not recorded."""
        traced = self.epochs["ranks"] if self.epochs else None
        return int(self.run.summary.get("ranks") or self.session.get("ranks") or traced or 1)

    @property
    def counted_s(self) -> float:
        """Seconds covered by the system's usage counters of ranks; 0 without them."""
        return max(self.usage("wall_s").values(), default=0.0)

    def usage(self, name: str) -> Mapping[int, float]:
        """Return a usage counter of each rank that has one, over `counted_s`."""
        values = {entry["rank"]: entry.get("usage", {}).get(name) for entry in self.details}
        return {rank: value for rank, value in values.items() if value is not None}


def read_subject(run: Run) -> Subject:
    """Read all records of a run.

    Raises `InputError` if one of its files is damaged, or its configuration is missing.
    """
    curves = RunCurves(run) if run.has_metrics else None
    trace = Trace(run) if run.has_traces else None
    epochs = traffic = None
    if trace is not None:
        epochs, traffic = summarise_epochs(trace), summarise_traffic(trace)
    memory = measure_memory(run, trace)
    return Subject(run, read_settings(run.path), curves, epochs, traffic, memory)
