"""Causes of slow epochs; one function finds each cause in a run's records, or returns None.

Texts state recorded figures, and word conclusions as such: time that the records do not explain is
called unexplained.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from hpcgnn.analysis.advice import Change, accepted, first_accepted
from hpcgnn.analysis.figures import scaled
from hpcgnn.analysis.subject import Subject

_FAULTS = 100.0
"""Major page faults a second: 100 of them take at least 1 % of the time, at 0.1 ms or more each."""
_QUEUED = 0.1
_SLOW = 0.05
_MOVING = 0.2
_LONG_MOVE_S = 1e-3
_SHORT_STEP_S = 0.02
_OVERHEAD = 0.4
_FEW_ROWS = 500
"""Rows of a step below which the overhead of calls exceeds their arithmetic."""
_EVALUATING = 0.3
_WAITING = ("wait", "reduce", "exchange")
# "other" includes the time that a rank idles at the end: rank 0's clock times the epoch.
_NOT_COMPUTING = (*_WAITING, "other")
_PRODUCTS = ("interior", "boundary")


@dataclass(frozen=True)
class Cause:
    """A reason why a run is slower than it could be.

    `name` has one to three words, `text` is a clause with figures. `share` is the part of an epoch
    that is lost, or of the run for evaluations. `change` None: no configuration helps.
    """

    name: str
    share: float
    text: str
    change: Change | None


def causes(subject: Subject) -> list[Cause]:
    """Return the causes found, largest share first; swapping comes before all others."""
    found = [cause for find in _ALL if (cause := find(subject)) is not None]
    return sorted(found, key=lambda cause: (cause.name not in _FIRST, -cause.share))


def phases_of(subject: Subject) -> dict[int, dict[str, float]]:
    """Return seconds of an epoch by rank and phase; empty without a trace."""
    if subject.epochs is None or not subject.epochs["counted"]:
        return {}
    return {each["rank"]: each["phases_s"] for each in subject.epochs["per_rank"]}


def busy(phases: Mapping[str, float]) -> float:
    """Return the seconds in which a rank computes."""
    return sum(seconds for phase, seconds in phases.items() if phase not in _NOT_COMPUTING)


def seconds_text(seconds: float) -> str:
    """Return seconds with three digits and their unit."""
    factor, unit = scaled(seconds, "s")
    return f"{factor * seconds:.3g} {unit}"


def share_text(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.0f} %"


def _swaps(subject: Subject) -> Cause | None:
    """Find major page faults, a sign that memory is too small."""
    faults = subject.usage("major_faults")
    rank = max(faults, key=lambda number: faults[number], default=None)
    if rank is None or not subject.counted_s or faults[rank] / subject.counted_s < _FAULTS:
        return None
    rate = faults[rank] / subject.counted_s
    text = (
        f"rank {rank} read {faults[rank]:,} pages from disk while it trained, {rate:,.0f} a "
        "second: memory is short (swap)"
    )
    fewer_rows = "Hold fewer rows of other ranks in memory"
    choices = [
        (fewer_rows, {"exchange.schedule": "sequential", "exchange.keep_products": "never"}),
        ("Keep no products of the first layer", {"exchange.keep_products": "never"}),
        ("Halve the width of the rows", {"train.precision": "bfloat16"}),
    ]
    return Cause("swap", min(rate * 1e-4, 1.0), text, first_accepted(subject, choices))


def _shares_cores(subject: Subject) -> Cause | None:
    """Find more threads than cores, or cores that other programs use."""
    of_rank_0, hosts = subject.session.get("threads", 1), subject.session.get("hosts", [])
    # Hosts of unequal cores give their ranks unequal threads.
    demands = [(host, host.get("threads", of_rank_0)) for host in hosts]
    full = [(host, each) for host, each in demands if host["ranks"] * each > host["cores"]]
    queued = subject.usage("queued_s")
    total = subject.counted_s
    share = median(queued.values()) / total if queued and total else None
    if share is not None and share < _QUEUED:
        return None
    if not full and (share is None or not hosts):
        return None
    queueing = f"; a rank waited for a core {share_text(share or 0)} of the time"
    measured = "" if share is None else queueing
    if not full:
        host = hosts[0]
        text = f"other programs use the {host['cores']} cores of {host['name']}{measured}"
        # No setting of a run helps; the user can only look for the other programs.
        inspect = Change("See which programs use the cores", first=("top", "-b", "-n", "1"))
        return Cause("busy cores", share or 0.0, text, inspect)
    host, threads = full[0]
    per_rank = f"{threads} threads each" if threads > 1 else "1 thread each"
    users = f"{host['ranks']} ranks with {per_rank}"
    text = f"{users} share {host['cores']} cores of {host['name']}{measured}"
    lost = 1 - host["cores"] / (host["ranks"] * threads) if share is None else share
    return Cause("shared cores", lost, text, _own_cores(subject, host, threads))


def _own_cores(subject: Subject, host: Mapping[str, Any], threads: int) -> Change | None:
    if host["cores"] >= host["ranks"]:
        fewer = host["cores"] // host["ranks"]
        return Change("Give each rank as many threads as it has cores", {"run.threads": fewer})
    ranks = sum(min(each["ranks"], each["cores"]) for each in subject.session["hosts"])
    copies = subject.settings.get("exchange.replication", 1)
    settings = {"run.threads": 1} if threads > 1 else {}
    return Change(
        "Give each rank a core of its own", settings, ranks=max(ranks // copies, 1) * copies
    )


def _slow_rank(subject: Subject) -> Cause | None:
    """Find one rank that computes longer than the others, which wait for it."""
    phases = phases_of(subject)
    if len(phases) < 2 or not subject.epochs:
        return None
    seconds = {number: busy(by_phase) for number, by_phase in phases.items()}
    rank = max(seconds, key=lambda number: seconds[number])
    usual = median(value for number, value in seconds.items() if number != rank)
    share = (seconds[rank] - usual) / subject.epochs["epoch_s"]
    if share < _SLOW:
        return None
    waits = [
        entry["late_s"].get(str(rank), 0.0)
        for entry in subject.epochs["per_rank"]
        if entry["rank"] != rank
    ]
    waited = f", for which the others wait {seconds_text(mean(waits))}" if any(waits) else ""
    longer = (
        f"rank {rank} computes {seconds_text(seconds[rank])} of an epoch, the median of the others "
        f"{seconds_text(usual)}{waited}"
    )
    name, why, change = _why_slow(subject, rank, seconds[rank] - usual)
    return Cause(name, share, f"{longer}: {why}", change)


def _why_slow(subject: Subject, rank: int, excess: float) -> tuple[str, str, Change | None]:
    """Return the name of the cause, its reason from the records, and a change that helps."""
    others = phases_of(subject)
    slow = others.pop(rank)
    ratios = {key: _ratio(subject, key, rank) for key in ("local_nodes", "local_edges")}
    explained = 0.0
    for phase in {name for by_phase in others.values() for name in by_phase} - set(_NOT_COMPUTING):
        usual = median(by_phase.get(phase, 0.0) for by_phase in others.values())
        ratio = ratios["local_edges" if phase in _PRODUCTS else "local_nodes"] or 1.0
        explained += min((ratio - 1) * usual, slow.get(phase, 0.0) - usual)
    work = ", ".join(
        f"{ratio:.2g} times the {key.partition('_')[2]}" for key, ratio in ratios.items() if ratio
    )
    if explained >= excess / 2:
        return "bad parts", f"it has {work}", _better_parts(subject)
    queued = subject.usage("queued_s")
    if rank in queued and subject.counted_s:
        share = queued[rank] / subject.counted_s
        shares = [value / subject.counted_s for number, value in queued.items() if number != rank]
        if share >= _QUEUED and share >= 2 * median(shares or [0.0]):
            why = f"it waited for a core {share_text(share)} of the time"
            inspect = Change("See which programs use its cores", first=("top", "-b", "-n", "1"))
            return "busy cores", why, inspect
    same = f"with {work} the same work takes it longer" if work else "nothing recorded explains it"
    host = next((entry.get("host", "") for entry in subject.details if entry["rank"] == rank), "")
    where = f" (on {host})" if host else ""
    check = Change("Check its host", first=("hpcgnn", "doctor"))
    return "slow rank", f"{same}; its processor may be slower, or busy otherwise{where}", check


def _ratio(subject: Subject, key: str, rank: int) -> float | None:
    """Return a rank's count over the median of the other ranks."""
    values = {each["rank"]: each[key] for each in subject.details if key in each}
    others = [value for each, value in values.items() if each != rank]
    usual = median(others) if others else 0
    return values[rank] / usual if rank in values and usual else None


def _better_parts(subject: Subject) -> Change | None:
    store = subject.settings.get("graph.store")
    if not store:
        return None
    parts = f"{subject.ranks}"
    target = str(Path(store).with_suffix(f".volume{parts}.h5"))
    relations = subject.settings.get("graph.relations") or []
    words = ["hpcgnn", "partition", store, "--parts", parts, "--method", "volume", "-o", target]
    words += ["--relations", ",".join(relations)] if relations else []
    return Change("Make parts of equal work", {"graph.store": target}, first=words)


def _slow_link(subject: Subject) -> Cause | None:
    """Find slow transfers of rows from ranks that were not late."""
    if not phases_of(subject) or not subject.epochs:
        return None
    ranks, epoch_s = subject.epochs["per_rank"], subject.epochs["epoch_s"]
    moving, moves = (mean(each[key] for each in ranks) for key in ("moving_s", "moves"))
    share = moving / epoch_s if epoch_s else 0.0
    if share < _MOVING or not moves or moving / moves < _LONG_MOVE_S:
        return None
    size = mean(each["moved_bytes"] for each in ranks)
    rate = f"{size / moving / 1e6:.3g} MB/s" if size else "no rows at all"
    text = (
        f"a rank waits {seconds_text(moving)} of an epoch for messages that were not sent late, "
        f"{seconds_text(moving / moves)} each time: {size / 1e6:.3g} MB at {rate} (slow link)"
    )
    return Cause("slow link", share, text, _fewer_bytes(subject))


def _fewer_bytes(subject: Subject) -> Change | None:
    method = str(subject.settings.get("exchange.method", ""))
    joint = [("Send fewer rows", {"exchange.method": "joint"})] if "joint" not in method else []
    if len(subject.session.get("hosts", ())) > 1:
        joint.append(("Send fewer rows between hosts", {"exchange.method": "hierarchical_joint"}))
    wire = [("Send rows in fewer bits", {"exchange.wire": each}) for each in ("bfloat16", "int8")]
    return first_accepted(subject, [*joint, *wire])


def _small_steps(subject: Subject) -> Cause | None:
    """Find steps so short that their fixed costs dominate."""
    phases = phases_of(subject)
    if not phases or not subject.epochs:
        return None
    epochs = subject.epochs["counted"] * len(phases)
    count = subject.epochs["spans"].get("optimiser", {}).get("count", 0) / epochs
    epoch_s = subject.epochs["epoch_s"]
    if not count or epoch_s / count > _SHORT_STEP_S:
        return None
    fixed = ("optimiser", "other", *_WAITING)
    share = mean(sum(each.get(phase, 0.0) for phase in fixed) for each in phases.values()) / epoch_s
    rows = _rows_of_step(subject)
    if share < _OVERHEAD and rows >= _FEW_ROWS:
        return None
    steps = f"an epoch has {count:,.0f} steps of" if count > 1 else "an epoch is one step of"
    if rows < _FEW_ROWS:
        share = max(share, 1 - rows / _FEW_ROWS)
        text = (
            f"{steps} {seconds_text(epoch_s / count)} on some {rows:,.0f} rows each: the work of a "
            "step is small compared with its fixed costs"
        )
    else:
        text = (
            f"{steps} {seconds_text(epoch_s / count)}, and {share_text(share)} of it are fixed "
            "costs of each step (messages, sums, the optimiser): the work of a step is small"
        )
    return Cause("small steps", share, text, _larger_steps(subject, count))


def _rows_of_step(subject: Subject) -> float:
    """Return a rank's rows in a step on graphs or subgraphs; infinity if that is not recorded."""
    graph, sampling = (subject.run.summary.get(name) or {} for name in ("graph", "sampling"))
    if (nodes := sampling.get("mean_nodes")) is not None:
        return float(nodes * subject.settings.get("sampling.subgraphs", 1) / subject.ranks)
    graphs, taken = graph.get("num_graphs"), sampling.get("graphs_per_step")
    if not graphs or not taken:
        return math.inf
    return float(taken * graph["num_nodes"] / graphs / subject.ranks)


def _larger_steps(subject: Subject, steps: float) -> Change | None:
    for key, tasks in (("sampling.budget", ("sampled", "links")), ("graphs.batch", ("graphs",))):
        value = subject.settings.get(key)
        if steps > 1 and value and subject.settings.get("train.task") in tasks:
            settings = {key: 4 * value}
            if accepted(subject, settings):
                return Change("Make steps larger", settings)
    copies = subject.settings.get("exchange.replication", 1)
    fewer = max(subject.ranks // (4 * copies), 1) * copies
    return Change("Use fewer ranks", ranks=fewer) if fewer < subject.ranks else None


def _evaluates_often(subject: Subject) -> Cause | None:
    """Find evaluations that take a large share of the run."""
    trained = sum(row.get("epoch_s", 0.0) for row in subject.rows)
    evaluations = [row["evaluate_s"] for row in subject.rows if row.get("evaluate_s")]
    share = sum(evaluations) / (trained + sum(evaluations)) if evaluations else 0.0
    if share < _EVALUATING or len(evaluations) < 2:
        return None
    usual = seconds_text(median(evaluations))
    text = f"{len(evaluations)} evaluations take {share_text(share)} of the run, {usual} each"
    every = 5 * subject.settings.get("train.evaluate_every", 1)
    change = Change("Evaluate less often", {"train.evaluate_every": every})
    return Cause("evaluations", share, text, change)


_ALL: tuple[Callable[[Subject], Cause | None], ...] = (
    *(_swaps, _shares_cores, _slow_rank, _slow_link, _small_steps),
    _evaluates_often,
)
_FIRST = ("swap",)
"""Causes that distort the shares of all others."""
