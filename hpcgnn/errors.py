"""The exceptions that a user can cause, and the exit statuses of commands.

An input error is reported in one line. Any other uncaught exception is a defect of the project and
keeps its traceback.
"""

import contextlib
import difflib
import errno
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

USAGE_ERROR = 2
"""Exit status for an error in the user's input."""

EXIT_REQUEUE = 75
"""Exit status of a run that stopped with a checkpoint and should be started again."""

MACHINE_FAULT = 76
"""Exit status of a run that failed because of a machine: start the same command again."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that was ended by SIGTERM, after cleaning up its files."""


EXIT_INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that the user has interrupted (Ctrl-C)."""

_SOON_S = 0.01
_CALLED_BACK: set[CodeType] = set()
_Function = TypeVar("_Function", bound=Callable[..., Any])


class InputError(ValueError):
    """The user's input or environment is at fault.

    The message is one line that names the thing (file, field, value) and the remedy.
    """


class StorageFormatError(InputError):
    """A file has the wrong format, version, shape or checksum."""


class CollectiveInputError(InputError):
    """An error in the user's input that all ranks raise together; only rank 0 reports it."""

    status = USAGE_ERROR


class MachineError(CollectiveInputError):
    """A fault of a machine, not of the input, that all ranks raise together."""

    status = MACHINE_FAULT


class LackOfMemoryError(CollectiveInputError):
    """A rank has run out of memory, which all ranks raise together."""

    status = 1


class CollectiveExit(SystemExit):
    """An exit of all ranks together, for example after printing help."""


_NEAR = 0.6
"""Similarity, from 0 to 1, above which a name is suggested for another."""

ELSEWHERE: Mapping[str, Sequence[str]] = {
    name: aliases.split()
    for name, aliases in {
        "train.learning_rate": "lr learningrate base_lr",
        "train.epochs": "n_epochs num_epochs max_epochs",
        "train.weight_decay": "wd l2_norm",
        "train.patience": "early_stopping",
        "train.clip_norm": "max_grad_norm grad_clip gradient_clip_val",
        "train.seeds": "seed random_seed",
        "train.optimizer": "optim",
        "train.device": "accelerator gpu",
        "model.name": "arch conv model",
        "model.hidden": "hidden_channels hidden_dim hidden_size num_hidden n_hidden h_feats",
        "model.num_layers": "n_layers layers",
        "model.dropout": "feat_drop dropout_rate",
        "model.attention_dropout": "attn_drop",
        "model.heads": "num_heads n_heads",
        "model.jumping": "jk",
        "model.teleport": "alpha",
        "graphs.batch": "batch_size",
        "sampling.budget": "batch_size",
        "sampling.fan_outs": "fanout fanouts num_neighbors num_neighbours",
        "sampling.threads": "num_workers",
        "graph.store": "dataset data",
        "run.dir": "output output_dir save_dir log_dir",
        "run.threads": "num_threads nthreads",
        "exchange.wire": "compression",
        "sage": "graphsage sageconv",
        "gcn": "gcnconv graphconv",
        "gat": "gatconv",
        "rgcn": "rgcnconv r-gcn relgraphconv",
        "frontier": "graphsaint saint",
        "walk": "random_walk rw",
        "bfloat16": "bf16",
        "float16": "fp16",
        "float32": "fp32",
        "cuda": "gpu",
        "links": "link_prediction lp",
        "edges": "edge_classification edge_regression",
        "graphs": "graph_classification",
        "full": "node node_classification full_batch",
        "sampled": "minibatch mini_batch",
    }.items()
}
"""Names of keys and values in hpcgnn, with their names in other libraries, in lower case."""

_MOST_NAMES = 32
_LONGEST_MESSAGE = 2000
_NAMED = 3


def instead_of(name: str, names: Collection[str], listed_by: str = "") -> str:
    """Return a remedy for an unknown name: the nearest of `names`, or else a list of them.

    `listed_by` is the command that lists the `names` if they are too many for a line.
    """
    if nearest := meant_by(name, names):
        return f"did you mean {' or '.join(map(repr, nearest))}?"
    if not any(names):
        return "there are none"
    listed = ", ".join(sorted(names)[:_MOST_NAMES])
    if len(names) <= _MOST_NAMES:
        return f"choose one of {listed}"
    rest = f"{len(names) - _MOST_NAMES:,} more"
    return f"choose one of {listed} or {rest}" + (f" ({listed_by} lists them)" if listed_by else "")


def meant_by(name: str, names: Collection[str]) -> list[str]:
    """Return those of `names` that an unknown name may stand for; empty if none is similar.

    It considers names in other libraries, see `ELSEWHERE`, and the last part of keys such as
    ``train.epochs``, even with a wrong section.
    """
    section, _, last = name.lower().rpartition(".")
    lasts = {known: known.lower().rpartition(".")[2] for known in names}
    aliased = [known for known in names if last.replace("-", "_") in ELSEWHERE.get(known, ())]
    near = difflib.get_close_matches(last, set(lasts.values()), n=1, cutoff=_NEAR)
    similar = aliased or [known for known in names if lasts[known] in near]
    return [known for known in similar if section and known.startswith(f"{section}.")] or similar


def named(missing: Sequence[object]) -> str:
    """Return a list for a message that names the first three: ``5, 6, 7 and 1 more``.

    Strings are quoted.
    """
    listed = ", ".join(map(repr, missing[:_NAMED]))
    more = len(missing) - _NAMED
    return f"{listed} and {more:,} more" if more > 0 else listed


def one_line(error: BaseException) -> str:
    """Return the message of `error` without line breaks, shortened in the middle if it is long."""
    text = printable(" ".join(str(error).split()))
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def lack_of_memory(error: BaseException) -> str | None:
    """Return a message for a failed allocation, None for any other error."""
    text = str(error)
    # For main memory torch raises a plain RuntimeError.
    refused = "can't allocate memory" in text or "out of memory" in text
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and refused):
        return None
    match = re.search(r"allocate (\d+) bytes", text)
    size = f"{int(match[1]):,} bytes more" if match else "more"
    lack = f"there is no memory for {size}; take a smaller model or graph, or more ranks and hosts"
    return f"on {platform.node()}: {lack}"


def printable(text: str) -> str:
    """Escape control characters: names in files may contain control sequences of terminals."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


@contextlib.contextmanager
def paths_told() -> Iterator[None]:
    """Turn errors for paths without permission, or that are too long, into `InputError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENAMETOOLONG) or not error.filename:
            raise
        raise InputError(
            f"{error.filename}: {error.strerror}; check the path and its permissions"
        ) from error


def called_back(function: _Function) -> _Function:
    """Mark a function that C code calls back and that must not raise; see `exit_on_signals`."""
    _CALLED_BACK.add(function.__code__)
    return function


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Leave the block at SIGTERM and SIGINT, so that half-written files are removed.

    They raise `SystemExit` and `KeyboardInterrupt`: not in a function marked as `called_back`, but
    soon after it, and again soon after if a finalizer or the callback of a weak reference, where
    Python drops exceptions, was interrupted.
    """
    hook, timers = sys.unraisablehook, dict[int, threading.Timer]()

    def repeat(number: int) -> None:
        if number not in timers or not timers[number].is_alive():
            timers[number] = threading.Timer(_SOON_S, os.kill, (os.getpid(), number))
            timers[number].daemon = True
            timers[number].start()

    def leave(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code in _CALLED_BACK:
                repeat(number)
                return
            frame = frame.f_back
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        # Launchers repeat the signal; a second one must not interrupt the clean-up.
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(EXIT_TERMINATED)

    def dropped(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt):
            repeat(signal.SIGINT)
        elif isinstance(error, SystemExit) and error.code == EXIT_TERMINATED:
            signal.signal(signal.SIGTERM, leave)
            repeat(signal.SIGTERM)
        else:
            hook(unraisable)

    # Started in the background of a shell, a command is to ignore SIGINT.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers = [signal.SIGTERM, *[signal.SIGINT] * is_heard]
    before = {number: signal.signal(number, leave) for number in numbers}
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        for timer in timers.values():
            timer.cancel()
        sys.unraisablehook = hook
        for number, handler in before.items():
            # Training that has ended keeps its own handler.
            if signal.getsignal(number) in (leave, signal.SIG_IGN):
                signal.signal(number, handler)
