"""The exceptions that a user can cause, and how every command ends.

A fault of the user's is one line. Anything else that escapes is a defect of the project and keeps
its traceback.
"""

import contextlib
import difflib
import errno
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence

USAGE_ERROR = 2
"""Exit status for a fault of the user's input."""

EXIT_REQUEUE = 75
"""Exit status of a run that stopped with a checkpoint and wants to be started again."""

MACHINE_FAULT = 76
"""Exit status of a run that a machine failed, not its input: start the same command again."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended: its files are cleaned up first."""


class InputError(ValueError):
    """The user's input or environment is at fault.

    The message is one line that names the thing (file, field, value) and the remedy.
    """


class StorageFormatError(InputError):
    """A file is not what its name promises: wrong format, version, shape or checksum."""


class CollectiveInputError(InputError):
    """A fault of the user's input that all ranks raise together; rank 0 alone reports it."""

    status = USAGE_ERROR


class MachineError(CollectiveInputError):
    """A fault of a machine, not of the input, which all ranks notice together."""

    status = MACHINE_FAULT


class CollectiveExit(SystemExit):
    """An exit of all ranks together, as after printing help."""


_NEAR = 0.6
"""Likeness of two names, of 1, from which one may have been meant for the other."""

ELSEWHERE: Mapping[str, Sequence[str]] = {
    ours: theirs.split()
    for ours, theirs in {
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
"""Names of keys and values here -> what other libraries call them, in small letters."""

_MOST_NAMES = 32

_LONGEST_MESSAGE = 2000

_NAMED = 3


def instead_of(name: str, names: Collection[str], listed_by: str = "") -> str:
    """Return a remedy for an unknown name: what is meant by it, or else the names there are.

    `listed_by` is the command that lists the `names` when they are too many for a line.
    """
    if meant := meant_by(name, names):
        return f"did you mean {' or '.join(map(repr, meant))}?"
    if not names:
        return "there are none"
    told = ", ".join(sorted(names)[:_MOST_NAMES])
    if len(names) <= _MOST_NAMES:
        return f"choose one of {told}"
    rest = f"{len(names) - _MOST_NAMES:,} more"
    return f"choose one of {told} or {rest}" + (f" ({listed_by} lists them)" if listed_by else "")


def meant_by(name: str, names: Collection[str]) -> list[str]:
    """Return those of `names` that a name may be meant for; empty: none is like it.

    Names of other libraries count, see `ELSEWHERE`, and the last words of keys such as
    ``train.epochs``, also of a wrong section.
    """
    low = name.lower()
    section, _, last = low.rpartition(".")
    lasts = {ours: ours.lower().rpartition(".")[2] for ours in names}
    known = [ours for ours in names if last.replace("-", "_") in ELSEWHERE.get(ours, ())]
    near = difflib.get_close_matches(last, set(lasts.values()), n=1, cutoff=_NEAR)
    meant = known or [ours for ours in names if lasts[ours] in near]
    return [ours for ours in meant if section and ours.startswith(f"{section}.")] or meant


def named(missing: Sequence[object]) -> str:
    """Return what is missing as a list for a message, the first three by name: 5, 6, 7 and 1 more.

    Names that are strings are quoted.
    """
    told = ", ".join(map(repr, missing[:_NAMED]))
    more = len(missing) - _NAMED
    return f"{told} and {more:,} more" if more > 0 else told


def one_line(error: BaseException) -> str:
    """Return the message of `error` without line breaks, its middle left out where it is long."""
    text = printable(" ".join(str(error).split()))
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def printable(text: str) -> str:
    """Return text with control characters escaped: names in a file may hold a terminal's orders."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
    )


@contextlib.contextmanager
def paths_told() -> Iterator[None]:
    """Raise `InputError` in the block for a path that may not be looked at, or is too long."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENAMETOOLONG) or not error.filename:
            raise
        raise InputError(
            f"{error.filename}: {error.strerror}; check the path and its permissions"
        ) from error


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Leave the block by `SystemExit` at SIGTERM, so that half-written files are removed."""

    def leave(number: int, _frame: object) -> None:
        # Launchers repeat it; a second one must not interrupt the cleaning.
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
