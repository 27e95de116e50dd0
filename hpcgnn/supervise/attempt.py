"""One start of a run by its launcher: pass on errors and signals, and end a launcher that hangs."""

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcgnn.errors import MACHINE_FAULT, InputError

_HAVE_CHILDREN = ("mpiexec", "mpirun", "prterun", "orterun", "mpiexec.hydra")
_LAST_WORDS = re.compile(
    rb"has made no progress for|lost communication with a remote daemon|\[rank \d+\] fails on"
)
_PR_SET_CHILD_SUBREAPER = 36
_OVERLAP = 100
_POLL_S = 0.1
_LOOK_S = 1.0
_TO_END_S = 3.0
_NOTHING_TO_SAVE_S = 0.5
_PINGS_AT_ONCE = 32
_MOST_LETTERS = 200


class Attempt:
    """A launcher with the ranks that it has started.

    `command` are words, the launcher first. The launcher has `patience_s` seconds to end after its
    last process has ended, or after a rank has reported a fatal fault: Open MPI's mpiexec can hang
    there forever, and it waits for a host whose link is cut.
    """

    def __init__(self, command: Sequence[str], patience_s: float) -> None:
        self._patience_s = patience_s
        self._idle_since = self._fault_since = 0.0
        self._had_children = False
        self._process = _started(command, stderr=subprocess.PIPE)
        self._reader = threading.Thread(target=self._pass_errors_on, daemon=True)
        self._reader.start()

    def pass_on(self, number: int) -> None:
        """Send the launcher a signal, which it passes on to the ranks."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, misses_a_host: Callable[[], bool]) -> int:
        """Wait until no process of it is left on this host; return the exit status as in a shell.

        After the first sign of a fault `misses_a_host` is called repeatedly. Once it returns True
        the launcher is ended at once, since it would wait for that host.
        """
        looked = 0.0
        while (status := self._process.poll()) is None:
            time.sleep(_POLL_S)
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                self._look_for_children(looked)
            is_lost = bool(self._idle_since or self._fault_since) and misses_a_host()
            if is_lost or self._stays(time.monotonic()):
                end(self._process, _NOTHING_TO_SAVE_S if is_lost else _TO_END_S)
                status = MACHINE_FAULT
                break
        end(self._process)
        self._reader.join(_TO_END_S)
        return status if status >= 0 else 128 - status

    def _look_for_children(self, now: float) -> None:
        if descendants(self._process.pid):
            self._had_children, self._idle_since = True, 0.0
        elif self._had_children and _name(self._process.pid) in _HAVE_CHILDREN:
            self._idle_since = self._idle_since or now

    def _stays(self, now: float) -> bool:
        """Return whether the launcher hangs: it should have ended longer than `patience_s` ago."""
        return any(
            since and now - since > self._patience_s
            for since in (self._idle_since, self._fault_since)
        )

    def _pass_errors_on(self) -> None:
        assert self._process.stderr is not None
        tail = b""
        with self._process.stderr as errors:
            while chunk := os.read(errors.fileno(), 1 << 16):
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
                if not self._fault_since and _LAST_WORDS.search(tail + chunk):
                    self._fault_since = time.monotonic()
                tail = chunk[-_OVERLAP:]


class HostPings:
    """Starts a command on each host in parallel to find the hosts that do not answer.

    Each host has its own command, since a command on all hosts fails if one is lost. `pings` are
    the commands by host. A host answers if its command prints its last word within `limit_s`
    seconds, even if the launcher then hangs.
    """

    def __init__(self, pings: Mapping[str, Sequence[str]], limit_s: float) -> None:
        pool = ThreadPoolExecutor(_PINGS_AT_ONCE)
        self._answers = {host: pool.submit(_answer, ping, limit_s) for host, ping in pings.items()}
        pool.shutdown(wait=False)

    def misses_a_host(self) -> bool:
        """Return whether some host is known not to answer; others may not have answered yet."""
        return any(answer.done() and answer.result() for answer in self._answers.values())

    def wait(self) -> dict[str, str]:
        """Wait for all hosts; return the reason why each does not answer, "" if it does."""
        return {host: answer.result() for host, answer in self._answers.items()}


def _answer(command: Sequence[str], limit_s: float) -> str:
    deadline, output = time.monotonic() + limit_s, b""
    with _started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        fault = f"no answer in {limit_s:g} s"
        while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            output += chunk
            if command[-1].encode() in output.split():
                fault = ""
            elif not chunk:
                fault = f"status {process.wait()}"
            if not chunk or not fault:
                break
        end(process, _NOTHING_TO_SAVE_S)
    # Open MPI puts its messages between lines of dashes.
    lines = map(str.strip, output.decode(errors="replace").split("\n"))
    text = " ".join(line for line in lines if any(map(str.isalnum, line)))[:_MOST_LETTERS]
    return fault and f"{fault}: {text}".rstrip(": ")


def _started(command: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    try:
        # In its own process group, so that only this process decides which signals it gets.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, **streams
        )
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}; load the module of the MPI") from error


def adopt_orphans() -> None:
    """Adopt processes that outlive their launcher, so that `end_orphans` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End all processes that this one has started or adopted: daemons and ranks of a dead launcher.

    Otherwise they would go on computing during the next start.
    """
    deadline = time.monotonic() + _TO_END_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            # Searched again each time, since one of them may have started another meanwhile.
            for number in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)


def end(process: subprocess.Popen[bytes], grace_s: float = _TO_END_S) -> None:
    """End a process, its group and all their descendants on this host.

    The process has `grace_s` seconds to end by itself.
    """
    family = descendants(process.pid)
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _signal_group(process.pid, signal.SIGKILL)
    for number, began in family.items():
        # The number may have been reused for another process since.
        if _facts(number)[2] == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    process.wait()


def _signal_group(number: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal_number)


def descendants(root: int) -> dict[int, str]:
    """Return all direct and indirect child processes with the time at which each started."""
    start_times: dict[int, str] = {}
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    processes = {number: _facts(number) for number in numbers}
    generation = {root}
    while generation:
        generation = {
            number
            for number, (parent, state, _) in processes.items()
            if parent in generation and state != "Z" and number not in start_times
        }
        start_times |= {number: processes[number][2] for number in generation}
    return start_times


def _facts(number: int) -> tuple[int, str, str]:
    """Return a process's parent, state and start time; (0, "", "") if it does not exist."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, "", ""
    return int(fields[1]), fields[0], fields[19]


def _name(number: int) -> str:
    try:
        return Path(f"/proc/{number}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
