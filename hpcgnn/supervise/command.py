"""``hpcgnn supervise``: start a run, check how it ended, ping the hosts, and start it again."""

import argparse
import contextlib
import fcntl
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcgnn.config.command_line import given
from hpcgnn.console import number, report, warn
from hpcgnn.errors import EXIT_REQUEUE, MACHINE_FAULT, USAGE_ERROR, InputError
from hpcgnn.supervise.attempt import Attempt, HostPings, adopt_orphans, end_orphans
from hpcgnn.supervise.hosts import Allocation, find_allocation
from hpcgnn.supervise.template import LaunchShape, Template

_CHECKPOINT = re.compile(r"seed\d+-epoch\d+")
_LOCK_S = 60.0
_PASSED_ON = {
    # Open MPI kills the ranks at SIGTERM, but passes SIGUSR1 on.
    signal.SIGTERM: signal.SIGUSR1,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGINT: signal.SIGINT,
}


class Supervisor:
    """Starts a run repeatedly until it has ended or cannot continue."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        allocation = find_allocation(options.hosts, options.ranks_per_host)
        self._template = Template.of(options.command, len(allocation.hosts))
        self._allocation = allocation
        *_, self._run = (None, *given(self._template.program, "run", "dir"))
        *_, resume = ("auto", *given(self._template.program, "run", "resume"))
        if resume == "never":
            raise InputError("run.resume=never: each start would begin again; leave it out")
        self._attempt: Attempt | None = None
        self._pings: HostPings | None = None
        self._stop_signal: signal.Signals | None = None

    def run(self) -> int:
        """Return the exit status of the last start."""
        fruitless, starts = 0, 0
        known = self._checkpoints()
        while True:
            start, starts = self._next_start(), starts + 1
            ranks_text = f"{number(start.ranks, 'rank')} on {start.values['hosts']}"
            report(f"supervise: start {starts}: {ranks_text}")
            began = time.monotonic()
            status = self._start(self._template.command(start))
            if status == 0 and not self._has_ended():
                status = MACHINE_FAULT
            new_checkpoints = self._checkpoints() - known
            known |= new_checkpoints
            if status in (0, USAGE_ERROR) or self._is_to_stop() or status == EXIT_REQUEUE:
                return status
            fruitless = 0 if new_checkpoints else fruitless + 1
            outcome = f"status {status} after {time.monotonic() - began:.0f} s"
            report(f"supervise: {outcome}, {number(len(new_checkpoints), 'new checkpoint')}")
            if fruitless > self._options.restarts:
                warn(f"supervise: {number(fruitless, 'start')} without a new checkpoint: gives up")
                return status
            self._leave_lost_hosts_out()
            self._wait_for_lock()
            if self._is_to_stop():
                return EXIT_REQUEUE

    def stop(self, signal_number: int, _frame: object) -> None:
        """Handle a signal: pass it on to the ranks, and do not start again."""
        self._stop_signal = _PASSED_ON[signal.Signals(signal_number)]
        if self._attempt is not None:
            self._attempt.pass_on(self._stop_signal)

    def _start(self, command: Sequence[str]) -> int:
        self._attempt = Attempt(command, self._options.patience)
        if self._stop_signal:
            # The signal came while the launcher was being started.
            self._attempt.pass_on(self._stop_signal)
        try:
            return self._attempt.wait(self._misses_a_host)
        finally:
            self._attempt = None
            if self._pings is not None:
                # `end_orphans` would also end the pings.
                self._pings.wait()
            end_orphans()

    def _next_start(self) -> LaunchShape:
        hosts, per_host = self._allocation.hosts, self._allocation.ranks_per_host
        ranks = min(self._options.ranks or len(hosts) * per_host, len(hosts) * per_host)
        if ranks < self._options.least:
            raise InputError(
                f"{number(len(hosts), 'host')} left, for {number(ranks, 'rank')}: --least requires "
                f"{self._options.least}; submit the job again with other hosts"
            )
        return LaunchShape(hosts[: -(-ranks // per_host)], ranks, per_host)

    def _ping_hosts(self) -> HostPings:
        hosts = self._allocation.hosts
        return HostPings({host: self._template.ping(host) for host in hosts}, self._options.ping)

    def _misses_a_host(self) -> bool:
        self._pings = self._pings or self._ping_hosts()
        return self._pings.misses_a_host()

    def _leave_lost_hosts_out(self) -> None:
        hosts = self._allocation.hosts
        # If all hosts answered while the launcher was ending, ask again: that was a while ago.
        pings, self._pings = self._pings, None
        if pings is None or not pings.misses_a_host():
            pings = self._ping_hosts()
        faults = pings.wait()
        for host, fault in faults.items():
            if fault:
                warn(f"supervise: {host} is left out: {fault}")
        remaining = tuple(host for host in hosts if not faults[host])
        if not remaining:
            raise InputError(f"no host answers {' '.join(self._template.ping(hosts[0]))}")
        self._allocation = Allocation(remaining, self._allocation.ranks_per_host)

    def _has_ended(self) -> bool:
        """Return whether the run has results: Open MPI's mpiexec returns 0 if it loses a host."""
        return not self._run or Path(self._run, "summary.json").is_file()

    def _checkpoints(self) -> set[Path]:
        # With train.splits, each of them has a folder.
        folders = ("checkpoints/*", "split-*/checkpoints/*")
        found = {path for folder in folders for path in Path(self._run or "").glob(folder)}
        return {path for path in found if _CHECKPOINT.fullmatch(path.name)}

    def _wait_for_lock(self) -> None:
        """Wait, at most `_LOCK_S`, until no rank of the previous start locks the run directory."""
        deadline = time.monotonic() + _LOCK_S
        with contextlib.suppress(OSError), Path(self._run or "", ".lock").open("rb") as lock:
            while time.monotonic() < deadline and not self._is_to_stop():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.2)

    def _is_to_stop(self) -> bool:
        return self._stop_signal is not None


@contextlib.contextmanager
def _signals_to(supervisor: Supervisor) -> Iterator[None]:
    before = {number: signal.signal(number, supervisor.stop) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    supervisor = Supervisor(options)
    adopt_orphans()
    with _signals_to(supervisor):
        return supervisor.run()
