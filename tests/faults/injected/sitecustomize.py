"""Put on PYTHONPATH, makes a rank of a command fail where ``HPCGNN_TEST_FAULT`` says.

Its value is ``RANK FAULT PLACE [EPOCH]``. The place is ``import:MODULE``, ``end`` (of Python,
before that of MPI), or the name of a span, whose first begin (in that epoch) fails. The time is
written to the file that ``HPCGNN_TEST_FAULT_TIME`` names.
"""

import atexit
import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def tell_time() -> None:
    Path(os.environ["HPCGNN_TEST_FAULT_TIME"]).write_text(repr(time.time()))


def hang() -> None:
    """Never return, and keep the GIL, as HDF5 does on a file system that hangs."""
    ctypes.PyDLL(None).sleep(1 << 20)


def wait_for_signal() -> None:
    """Return when this rank has been asked to stop."""
    came = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        remember = signal.getsignal(number)
        signal.signal(number, lambda *given, to=remember: came.append(to(*given)))
    tell_time()
    while not came:
        time.sleep(0.01)


def signal_itself() -> None:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), number)


def raise_error() -> None:
    raise RuntimeError("a fault that a test has put here")


def raise_import_error() -> None:
    raise ImportError("a package that a test has broken")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(1 << 20),
    "hang": hang,
    "signals": signal_itself,
    "wait": wait_for_signal,
    "raise": raise_error,
    "poison": raise_import_error,
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "leave": lambda: os._exit(0),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
}


class AfterImport:
    """Finds modules as usual, and calls a function before or after one is executed."""

    def __init__(self, name, action, before=False):
        self.name, self.action, self.before, self.busy = name, action, before, False

    def find_spec(self, name, *_):
        if name != self.name or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec(name)
        loader, execute = spec.loader, spec.loader.exec_module

        def run(module):
            if self.before:
                self.action(module)
            execute(module)
            if not self.before:
                self.action(module)

        loader.exec_module = run
        return spec


def install(fault: str, place: str, epoch: int) -> None:
    """Set up the fault."""

    def act() -> None:
        # A process that sees the time may send the signal.
        if fault != "wait":
            tell_time()
        FAULTS[fault]()

    if place.startswith("import:"):
        name = place.removeprefix("import:")
        sys.meta_path.insert(0, AfterImport(name, lambda _: act(), before=True))
        return
    if place == "end":
        atexit.register(act)
        return
    fired = []

    def patch(module):
        enter = module.RecordedSpan.__enter__

        def fail_first(span):
            entered = enter(span)
            if span.name == place and (span._position["epoch"] or 0) >= epoch and not fired:
                fired.append(True)
                try:
                    act()
                except BaseException:
                    span.__exit__(*sys.exc_info())
                    raise
            return entered

        module.RecordedSpan.__enter__ = fail_first

    sys.meta_path.insert(0, AfterImport("hpcgnn.trace.span", patch))


words = os.environ.get("HPCGNN_TEST_FAULT", "").split()
mine = next((os.environ[name] for name in RANKS if name in os.environ), None)
if words and words[0] == mine:
    with contextlib.suppress(KeyError):
        install(words[1], words[2], int(words[3]) if len(words) > 3 else 0)
