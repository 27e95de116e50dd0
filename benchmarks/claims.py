"""Published numbers of docs/measured.md and the papers' page, and commands to reproduce them."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, TypeAlias

__all__ = ["PAPERS", "ROOT", "UNCLAIMED", "Case", "Claim", "claims"]

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "benchmarks" / "results" / "papers.md"
UNCLAIMED = {
    "epochs of five models": "bench_table needs its peers, and hours",
    "epochs beside the SAR package": "bench_hosts.sh sar needs root and the SAR package",
    "the same on one machine": "bench_sar needs the SAR package",
    "an epoch over four hosts": "bench_hosts.sh exchanges needs root",
    "what `hpcgnn plan` says": "docs/planning.md has its runs",
    "beside MKL with AVX-512": "bench_spmm --peers mkl needs MKL of the package index",
    "R-MAT 25 in the same way": "bench_pipeline --scales 25 needs 21 GB and an hour",
}
"""Rows of docs/measured.md that no command here reproduces."""

NUMBER = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?")

Case: TypeAlias = dict[str, Any]
"""A JSON object that a benchmark prints."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published number.

    Parameters
    ----------
    row
        First words of its row in docs/measured.md, or the mark of its section of the papers' page.
    command
        Shell command, run in the root of a checkout, that prints JSON; it may write to
        ``{folder}``. Several commands have a line each, and each runs until it has succeeded once.
    value
        Function that returns the number from the printed JSON objects.
    tolerance
        Largest distance from 1 of the ratio to the published number.
    minutes
        Approximate duration on 2 cores.
    needs
        Python modules that the comparison needs.
    """

    row: str
    published: float
    command: str
    value: Callable[[Sequence[Case]], float]
    tolerance: float
    minutes: float
    needs: tuple[str, ...] = ()


def _times(peer: str) -> Callable[[Sequence[Case]], float]:
    """Return a function for the mean of a peer's seconds over ours."""

    def value(cases: Sequence[Case]) -> float:
        chosen = [c for c in cases if peer in c["peers"]]
        return geometric_mean([c["peers"][peer] / c["ours_s"] for c in chosen])

    return value


def _of_limit(cases: Sequence[Case]) -> float:
    return geometric_mean([c["gather_limit_s"] / c["ours_s"] for c in cases])


def _least(part: str, peer: str) -> Callable[[Sequence[Case]], float]:
    return lambda cases: min(c["peers"][peer] / c["ours_s"] for c in cases if c["part"] == part)


def _faster(model: str) -> Callable[[Sequence[Case]], float]:
    """Return a function for the faster peer's seconds over ours."""
    return lambda cases: median(
        min(c["peers"].values()) / c["ours_s"] for c in cases if c["model"] == model and c["peers"]
    )


def _most(key: str) -> Callable[[Sequence[Case]], float]:
    return lambda cases: max(c[key] for c in cases)


def _peak(cases: Sequence[Case]) -> float:
    return float(max(step["peak"] for step in cases[0]["steps"].values()))


def _to_metis(method: str, key: Callable[[Case], float]) -> Callable[[Sequence[Case]], float]:
    """Return a function for the mean over cases of a method over the median of METIS's seeds."""

    def value(cases: Sequence[Case]) -> float:
        found: dict[tuple[str, int], dict[str, list[float]]] = {}
        for each in cases:
            if "failure" not in each:
                of_case = found.setdefault((each["graph"], each["parts"]), {})
                of_case.setdefault(each["method"], []).append(key(each))
        both = [each for each in found.values() if method in each and "metis" in each]
        return geometric_mean([median(each[method]) / median(each["metis"]) for each in both])

    return value


def _growths(cases: Sequence[Case]) -> float:
    resident, sequential = (case["growth_rss_bytes"] for case in cases)
    return float(sequential / resident)


def _cpu_seconds(cases: Sequence[Case]) -> float:
    return float(sum(case["cpu_s"] for case in cases))


_SPMM = "python -m benchmarks.bench_spmm --peers torch,dgl --repeat 5 --seconds 0.15 --json"
_GAT = (
    "python -m benchmarks.bench_epoch --threads 1 --models gat:2,gat:4,gat:8 --repeat 5 "
    "--peers dgl --no-memory --json"
)
_EPOCHS = (
    "python -m benchmarks.bench_epoch --models gcn,sage,gat:4 --graph debian --threads 1 "
    "--fresh-products --no-memory --json --precision "
)
_LOADING = (
    "[ -f {folder}/r20.h5 ] || python -m hpcgnn generate rmat --scale 20 -o {folder}/r20.h5 >&2; "
    "python -m benchmarks.bench_loading {folder}/r20.h5 --json"
)
_CONVERT = "python -m benchmarks.bench_convert --edges 50 --nodes 0.4 --memory 1024 --json"
_PARTITION = "\n".join(
    "python -m benchmarks.bench_partition --json --no-joint --limit 300 --at-once 2 "
    f"--methods metis,volume:max_send,volume:max_both --graphs {graphs}"
    for graphs in ("delaunay,grid3d", "debian,hyperbolic", "dcsbm,lfr", "rmat-16,rmat-17")
)
_MEMORY = "\n".join(
    f"mpi_run 16 python -m benchmarks.bench_memory --graph rmat:15:32 --model gat --schedule {how} "
    "--epochs 1 --json"
    for how in ("resident", "sequential")
)
_PIPELINE = (
    "python -m benchmarks.bench_pipeline --scales 23 --edge-factor 12 --features 32 "
    "--dir {folder} --json --train exchange.schedule=sequential exchange.keep_products=never "
    "exchange.active_sets=false train.precision=bfloat16 run.save_predictions=false"
)
_SPMM_ROW = "sparse times dense"
_BOTH_ROW = "the same with the default objective"

_MEASURED = (
    *(
        Claim(
            row=row, published=number, command=_SPMM, value=value, tolerance=0.25, minutes=3,
            needs=needs,
        )
        for row, number, value, needs in (
            (_SPMM_ROW, 4.5, _times("dgl"), ("dgl",)),
            (_SPMM_ROW, 2.8, _times("torch"), ()),
            (_SPMM_ROW, 0.80, _of_limit, ()),
        )
    ),
    *(
        Claim(
            row="GAT layer", published=number, command=_GAT, value=_least(part, "dgl"),
            tolerance=0.25, minutes=3, needs=("dgl",),
        )
        for number, part in ((7.0, "forward"), (4.3, "forward+backward"))
    ),
    *(
        Claim(
            row=row, published=number, command=_EPOCHS + precision, value=_faster(model),
            tolerance=0.25, minutes=2, needs=("dgl", "torch_geometric"),
        )
        for row, precision, numbers in (
            ("whole epochs", "float32", (2.24, 1.95, 4.4)),
            ("the same in bfloat16", "bfloat16", (1.22, 1.65, 7.9)),
        )
        for number, model in zip(numbers, ("sage", "gcn", "gat:4"), strict=True)
    ),
    Claim(
        row="memory of loading", published=11.0, command=_LOADING, value=_peak,
        tolerance=0.05, minutes=0.5,
    ),
    Claim(
        row="memory of loading", published=10.1, command=f"{_LOADING} --undirected",
        value=_peak, tolerance=0.05, minutes=0.5,
    ),
    Claim(
        row="converting 50 M", published=724, command=_CONVERT, value=_most("peak_mib"),
        tolerance=0.10, minutes=3,
    ),
    Claim(
        row="converting 50 M", published=126, command=_CONVERT, value=_most("cpu_s"),
        tolerance=0.30, minutes=3,
    ),
    *(
        Claim(
            row=row, published=number, command=_PARTITION, value=_to_metis(method, key),
            tolerance=tolerance, minutes=8,
        )
        for row, number, method, key, tolerance in (
            ("rows that the busiest", 0.715, "volume:max_send", lambda c: c["max_send_rows"], 0.02),
            (_BOTH_ROW, 0.730, "volume:max_both", lambda c: c["max_send_rows"], 0.02),
            (_BOTH_ROW, 4.98, "volume:max_send", lambda c: c["seconds"], 0.30),
            (_BOTH_ROW, 5.27, "volume:max_both", lambda c: c["seconds"], 0.30),
        )
    ),
    Claim(
        row="memory that training GAT", published=0.30, command=_MEMORY, value=_growths,
        tolerance=0.20, minutes=2,
    ),
    Claim(
        row="R-MAT 23", published=1217, command=_PIPELINE, value=_cpu_seconds, tolerance=0.30,
        minutes=25,
    ),
)  # fmt: skip


_MINUTES = {
    "execution_paths": 0.5,
    "graph_sampling": 1,
    "sparsity_aware": 1,
    "sparsity_aware-table-2": 0.5,
    "sar": 1.5,
    "sar-figure-2": 2,
    "sar-table-1": 2,
    "sar-figure-8": 12,
    "dense_hardware-figure-1": 5,
    "dense_hardware-figure-3": 14,
}
"""Minutes of exhibits, or of all other exhibits of a paper."""
_TOGETHER = {
    "sparsity_aware": "figure-3 figure-4 figure-6",
    "sar": "figure-3 figure-4 figure-5 figure-6",
    "dense_hardware": "figure-1 figure-2 table-1 table-2 table-3 table-4 table-6",
}
"""Exhibits of a paper that share plans or counts, and are built by one command."""


def _sections(page: Path) -> dict[str, str]:
    """Return the text after each mark of a papers' page."""
    _, *pieces = re.split(r"<!-- ([\w-]+) -->", page.read_text("utf-8"))
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def _numbers(section: str) -> list[float]:
    """Return the numbers of a section's table, except those printed in the paper."""
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    cells = [cell for row in rows[1:] for place, cell in enumerate(row) if place != 1]
    return [float(each.replace(",", "")) for cell in cells for each in NUMBER.findall(cell)]


def _like(mark: str, published: Sequence[float]) -> Callable[[Sequence[Case]], float]:
    """Return a function for the median ratio of an exhibit's numbers to those of the page."""

    def value(cases: Sequence[Case]) -> float:
        here = _numbers(_sections(Path(cases[0]["page"]))[mark])
        if len(here) != len(published):
            return nan
        return median(a / b if b else float(a == b) for a, b in zip(here, published, strict=True))

    return value


def claims() -> Iterator[Claim]:
    """Yield all claims; those of the papers are the sections of their page."""
    yield from _MEASURED
    for mark, section in _sections(PAPERS).items():
        if numbers := _numbers(section):
            paper, _, exhibit = mark.partition("-")
            together = _TOGETHER.get(paper, "")
            exhibits = together if exhibit in together.split() else exhibit
            yield Claim(
                row=mark,
                published=1.0,
                command=(
                    f"mkdir -p {{folder}}/papers && cp -n {PAPERS} {{folder}}/papers/ && "
                    f"python -m benchmarks.papers.{paper} {exhibits} --docs {{folder}}/papers "
                    "--work {folder}/work >&2 && "
                    'echo \'{{"page": "{folder}/papers/papers.md"}}\''
                ),
                value=_like(mark, numbers),
                # Counts must be equal; seconds depend on the machine and its load.
                tolerance=0.25,
                minutes=_MINUTES.get(mark, _MINUTES.get(paper, 3)),
            )
