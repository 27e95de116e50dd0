"""Run directories with one planted fault, recorded like those of a run on several ranks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.trace import trace_file

NS = 1_000_000_000
PEER_BYTES, ROW_BYTES = 1_000_000, 100


@dataclass(frozen=True)
class Plant:
    """The contents of a run; the defaults are those of a run without faults.

    Parameters
    ----------
    work
        Seconds of computing in a step, for each rank.
    edges
        Thousands of edges, for each rank.
    delay_s
        Seconds from the start of a message to its arrival.
    scores
        Validation accuracy for each epoch.
    usage
        The system's counters, for each rank.
    """

    work: Sequence[float] = (0.1, 0.1, 0.1, 0.1)
    edges: Sequence[int] = (50, 50, 50, 50)
    delay_s: float = 0.002
    steps: int = 1
    scores: Sequence[float] = (0.5, 0.7, 0.8, 0.81, 0.811, 0.812, 0.811, 0.812)
    cores: int = 4
    usage: Mapping[str, Sequence[float]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.work)

    def write(self, path: Path) -> Path:
        """Write the run and return its directory."""
        path.mkdir(parents=True)
        (path / "trace").mkdir()
        spans: list[list[dict[str, Any]]] = [[] for _ in self.work]
        rows, now = [], [0.0] * self.ranks
        for epoch, score in enumerate(self.scores):
            began = now[0]
            for step in range(self.steps):
                now = self._step(spans, now, {"seed": 1, "epoch": epoch, "step": step})
            losses = {"train_loss": 2.0 / (epoch + 1), "valid_accuracy": score}
            moved = {"rows_sent": 0, "bytes_sent": self.steps * self.ranks * self._sent}
            times = {"epoch_s": now[0] - began, "evaluate_s": 0.001 * (now[0] - began)}
            rows.append({"seed": 1, "epoch": epoch, **losses, **moved, **times})
        for rank, records in enumerate(spans):
            header = {"schema": 1, "rank": rank, "ranks": self.ranks, "start_unix_ns": NS}
            lines = "".join(json.dumps(record) + "\n" for record in (header, *records))
            trace_file(path, rank).write_text(lines)
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._describe(path, sum(row["epoch_s"] for row in rows))
        return path

    @property
    def _sent(self) -> int:
        return (self.ranks - 1) * PEER_BYTES

    def _step(
        self, spans: list[list[dict[str, Any]]], now: list[float], position: dict[str, Any]
    ) -> list[float]:
        """Send, compute, wait for the others' rows, compute, and sum the gradients."""

        def record(rank: int, name: str, seconds: float, **more: Any) -> None:
            times = {"t_ns": round(NS * now[rank]), "dur_ns": round(NS * seconds)}
            moved = {"self_ns": times["dur_ns"], "rows": 0, "bytes": 0}
            spans[rank].append({**position, "name": name, **times, **moved, **more})
            now[rank] += seconds

        now = list(now)
        peers = range(self.ranks)
        for rank in peers:
            sent = [[each, PEER_BYTES // ROW_BYTES, PEER_BYTES] for each in peers if each != rank]
            record(rank, "exchange.forward", 1e-4, peers=sent, rows=1, bytes=self._sent)
        there = [time + self.delay_s for time in now]
        for rank, work in enumerate(self.work):
            record(rank, "interior.forward", 0.3 * work)
        for rank, work in enumerate(self.work):
            last = max(time for each, time in enumerate(there) if each != rank)
            record(rank, "wait.forward", max(last - now[rank], 1e-6))
            record(rank, "dense.backward", 0.7 * work)
        last = max(now)
        for rank in peers:
            record(rank, "reduce.gradients", last - now[rank] + 2e-4)
            record(rank, "optimiser", 2e-4)
        return now

    def _describe(self, path: Path, seconds: float) -> None:
        usage = {"queued_s": [0.01 * seconds] * self.ranks, "major_faults": [0] * self.ranks}
        usage["wall_s"] = [seconds] * self.ranks
        usage |= self.usage
        details = [
            {
                "rank": rank,
                "host": "node1",
                "peak_rss_bytes": 2**28,
                "local_nodes": 200 * edges,
                "local_edges": 1000 * edges,
                "usage": {name: values[rank] for name, values in usage.items()},
            }
            for rank, edges in enumerate(self.edges)
        ]
        summary = {"name": "planted", "model": "sage", "metric": "accuracy", "ranks": self.ranks}
        best = max(range(len(self.scores)), key=lambda epoch: self.scores[epoch])
        seed = {"seed": 1, "epochs": len(self.scores), "best_epoch": best, "test": 0.8}
        seed |= {"valid": self.scores[best], "final_train_loss": 0.25}
        summary |= {"seeds": [seed], "ranks_detail": details, "session_epochs": len(self.scores)}
        summary |= {"exchange": "aware", "schedule": "resident", "replication": 1}
        (path / "summary.json").write_text(json.dumps(summary))
        host = {"name": "node1", "ranks": self.ranks, "cores": self.cores, "processor": "a cpu"}
        session = {"hosts": [host], "threads": 1, "ranks": self.ranks}
        (path / "sessions.json").write_text(json.dumps([session]))
        tables: dict[str, dict[str, Any]] = {
            "graph": {"store": "data/g.h5"},
            "model": {"name": "sage", "dropout": 0.2},
            "train": {"epochs": len(self.scores), "learning_rate": 0.01},
        }
        tables["run"] = {"dir": str(path)}
        for section, values in self.settings.items():
            tables[section] = tables.get(section, {}) | dict(values)
        text = ""
        for section, values in tables.items():
            text += f"[{section}]\n"
            text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (path / "config.toml").write_text(text)


RISING = tuple(0.3 + 0.05 * epoch for epoch in range(8))
FALLING = (0.5, 0.8, 0.82, 0.81, 0.79, 0.78, 0.76, 0.75)

PLANTED: dict[str, Plant] = {
    "slow rank": Plant(work=(0.1, 0.1, 0.18, 0.1)),
    "too few epochs": Plant(scores=RISING),
    "bad parts": Plant(work=(0.3, 0.1, 0.1, 0.1), edges=(150, 50, 50, 50)),
    "shared cores": Plant(cores=2, usage={"queued_s": (0.4, 0.4, 0.4, 0.4)}),
    "over-fitting": Plant(scores=FALLING),
    "small steps": Plant(
        work=(5e-4,) * 4,
        delay_s=6e-4,
        steps=60,
        settings={"train": {"task": "sampled"}, "sampling": {"budget": 8000}},
    ),
    "slow link": Plant(delay_s=0.15),
    "swap": Plant(usage={"major_faults": (40, 50_000, 30, 20)}),
}
