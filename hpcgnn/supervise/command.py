"""The command: start, look at the end, ask the hosts, start again."""

import argparse
import contextlib
import fcntl
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcgnn.config.words import given
from hpcgnn.console import number, report, warn
from hpcgnn.errors import EXIT_REQUEUE, MACHINE_FAULT, USAGE_ERROR, InputError
from hpcgnn.supervise.attempt import Asking, Attempt, adopt_orphans, end_orphans
from hpcgnn.supervise.hosts import Allocation, find_allocation
from hpcgnn.supervise.template import Start, Template

_CHECKPOINT = re.compile(r"seed\d+-epoch\d+")
_LOCK_S = 60.0
_PASSED_ON = {
    # Open MPI kills the ranks where it gets SIGTERM, and hands SIGUSR1 on.
    signal.SIGTERM: signal.SIGUSR1,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGINT: signal.SIGINT,
}


class Supervisor:
    """Starts one run until it has ended, or can't go on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        allocation = find_allocation(options.hosts, options.ranks_per_host)
        self._template = Template.of(options.command, len(allocation.hosts))
        self._allocation = allocation
        *_, self._run = (None, *given(self._template.program, "run", "dir"))
        self._attempt: Attempt | None = None
        self._asking: Asking | None = None
        self._asked_to_stop: signal.Signals | None = None

    def run(self) -> int:
        """Return the exit status of the last start."""
        fruitless, starts = 0, 0
        known = self._checkpoints()
        while True:
            start, starts = self._next_start(), starts + 1
            told = f"start {starts}: {number(start.ranks, 'rank')} on {start.places['hosts']}"
            report(f"supervise: {told}")
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

    def stop(self, which: int, _frame: object) -> None:
        """Take a signal: no more starts, and the ranks get it."""
        self._asked_to_stop = _PASSED_ON[signal.Signals(which)]
        if self._attempt is not None:
            self._attempt.pass_on(self._asked_to_stop)

    def _start(self, command: Sequence[str]) -> int:
        self._attempt = Attempt(command, self._options.patience)
        if self._asked_to_stop:
            # It came while the launcher was being started.
            self._attempt.pass_on(self._asked_to_stop)
        try:
            return self._attempt.wait(self._misses_a_host)
        finally:
            self._attempt = None
            if self._asking is not None:
                # What asks the hosts would end, too.
                self._asking.wait()
            end_orphans()

    def _next_start(self) -> Start:
        hosts, per_host = self._allocation.hosts, self._allocation.ranks_per_host
        ranks = min(self._options.ranks or len(hosts) * per_host, len(hosts) * per_host)
        if ranks < self._options.least:
            raise InputError(
                f"{number(len(hosts), 'host')} left, for {number(ranks, 'rank')}: --least asks for "
                f"{self._options.least}; submit the job again with other hosts"
            )
        return Start(hosts[: -(-ranks // per_host)], ranks, per_host)

    def _ask_hosts(self) -> Asking:
        hosts = self._allocation.hosts
        return Asking({host: self._template.ping(host) for host in hosts}, self._options.ping)

    def _misses_a_host(self) -> bool:
        self._asking = self._asking or self._ask_hosts()
        return self._asking.misses_a_host()

    def _leave_lost_hosts_out(self) -> None:
        hosts = self._allocation.hosts
        # Hosts that answered while the launcher was ending are asked again: it took a while.
        known, self._asking = self._asking, None
        if known is None or not known.misses_a_host():
            known = self._ask_hosts()
        told = known.wait()
        for host, why in told.items():
            if why:
                warn(f"supervise: {host} is left out: {why}")
        left = tuple(host for host in hosts if not told[host])
        if not left:
            raise InputError(f"no host answers {' '.join(self._template.ping(hosts[0]))}")
        self._allocation = Allocation(left, self._allocation.ranks_per_host)

    def _has_ended(self) -> bool:
        """Return whether a run has results: Open MPI's mpiexec gives 0 where it loses a host."""
        return not self._run or Path(self._run, "summary.json").is_file()

    def _checkpoints(self) -> set[str]:
        """Return the names of the checkpoints that are there."""
        folder = Path(self._run or "", "checkpoints")
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return {name for name in names if _CHECKPOINT.fullmatch(name)}

    def _wait_for_lock(self) -> None:
        """Wait until no rank of the start before holds the run directory, within reason."""
        deadline = time.monotonic() + _LOCK_S
        with contextlib.suppress(OSError), Path(self._run or "", ".lock").open("rb") as lock:
            while time.monotonic() < deadline and not self._is_to_stop():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.2)

    def _is_to_stop(self) -> bool:
        return self._asked_to_stop is not None


@contextlib.contextmanager
def _signals_to(supervisor: Supervisor) -> Iterator[None]:
    before = {each: signal.signal(each, supervisor.stop) for each in _PASSED_ON}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    supervisor = Supervisor(options)
    adopt_orphans()
    with _signals_to(supervisor):
        return supervisor.run()
