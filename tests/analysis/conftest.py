"""A tiny recorded run directory, as training writes it."""

import json

import pytest

from hpcgnn.trace import TraceRecorder, trace_file


class Clock:
    """Stands for `perf_counter_ns`; time passes only when a test says so."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class RunWriter:
    """Writes traces with chosen times, metrics and a summary into one directory."""

    def __init__(self, path, monkeypatch):
        self.path = path
        self._clock = Clock()
        self._unix_ns = 10**18
        self._patch = monkeypatch
        for module in ("recorder", "span"):
            monkeypatch.setattr(f"hpcgnn.trace.{module}.perf_counter_ns", self._clock)

    def session(self, ranks=4, epochs=range(3), seed=11, append=False, late_s=100):
        """Record one session of `ranks` ranks; ranks start some milliseconds apart."""
        self._unix_ns += late_s * 10**9
        for rank in range(ranks):
            self._patch.setattr(
                "hpcgnn.trace.recorder.time_ns", lambda r=rank: self._unix_ns + r * 10**6
            )
            path = trace_file(self.path, rank)
            with TraceRecorder.open(path, rank, {"ranks": ranks}, append=append) as trace:
                self._rank(trace, rank, ranks, epochs, seed)

    def _rank(self, trace, rank, ranks, epochs, seed):
        with trace.span("read"):
            self._clock.now += 2_000_000
        for epoch in epochs:
            trace.set_epoch(epoch, seed=seed)
            self.epoch(trace, rank, ranks)
            trace.flush()
        trace.set_epoch(None)

    def epoch(self, trace, rank, ranks):
        """One epoch, in milliseconds: exchange 1, interior 4, wait 2 + rank, boundary 3, idle 1.

        Half of the bytes had arrived when the wait began.
        """
        clock, ms = self._clock, 1_000_000
        peers = [[peer, rank + 1, 8 * (rank + 1)] for peer in range(ranks) if peer != rank]
        rows = sum(entry[1] for entry in peers)
        with trace.span("exchange.forward", rows=rows, bytes=8 * rows, peers=peers):
            clock.now += ms
        with trace.span("interior.forward"):
            clock.now += 4 * ms
        with trace.span("wait.forward"):
            clock.now += (2 + rank) * ms
            trace.note(awaited_bytes=200, arrived_bytes=100, waited_ns=(2 + rank) * ms)
        clock.now += ms
        with trace.span("boundary.forward"):
            clock.now += 3 * ms

    def metrics(
        self,
        seeds=(11, 12),
        epochs=range(5),
        metric="accuracy",
        append=False,
        shift=0.0,
        timed=False,
    ):
        """Write curves that rise with the epoch and differ by seed."""
        with (self.path / "metrics.jsonl").open("a" if append else "w") as file:
            for seed in seeds:
                for epoch in epochs:
                    level = 0.5 + 0.05 * epoch + 0.01 * (seed % 10) + shift
                    record = {"seed": seed, "epoch": epoch, "train_loss": 2.0 / (epoch + 1)}
                    record |= {f"{part}_{metric}": level for part in ("train", "valid", "test")}
                    if timed:
                        record |= {"epoch_s": 0.014, "evaluate_s": 0.001, "bytes_sent": 240}
                    file.write(json.dumps(record | {"learning_rate": 0.01}) + "\n")

    def summary(self, **entries):
        (self.path / "summary.json").write_text(json.dumps({"format_version": 1, **entries}))


@pytest.fixture
def writer(tmp_path, monkeypatch):
    path = tmp_path / "run"
    path.mkdir()
    return RunWriter(path, monkeypatch)


@pytest.fixture
def make_writer(tmp_path, monkeypatch):
    def make(name):
        (tmp_path / name).mkdir()
        return RunWriter(tmp_path / name, monkeypatch)

    return make
