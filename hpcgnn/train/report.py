"""What a run tells its user on rank 0 at its end."""

from pathlib import Path
from typing import Any

from hpcgnn.console import print_table, report

__all__ = ["print_results"]


def print_results(summary: dict[str, Any], path: Path) -> None:
    """Print the table of seeds, and where the rest is.

    Not collective.
    """
    metric = summary["metric"].replace("_", " ")
    rows = [
        (
            f"seed {each['seed']}",
            each["epochs"],
            each["best_epoch"],
            _percent(each["valid"]),
            _percent(each["test"]),
            f"{each['final_train_loss']:.4f}",
        )
        for each in summary["seeds"]
    ]
    for name in ("mean", "std"):
        values = summary[name]
        rows.append((name, "", "", _percent(values["valid"]), _percent(values["test"]), ""))
    columns = ("", "epochs", "kept epoch", f"valid {metric}", f"test {metric}", "train loss")
    print_table(f"{summary['model']} on {summary['name']}", columns, rows)
    if summary["smoothed"] is not None:
        mean, std = summary["smoothed"]["mean"], summary["smoothed"]["std"]
        report(
            f"corrected and smoothed: valid {metric} {_percent(mean['valid'])}, test "
            f"{_percent(mean['test'])} (std {_percent(std['test'])})"
        )
    epoch, peak = (
        summary["epoch_s"]["median"],
        max(rank["peak_rss_bytes"] for rank in summary["ranks_detail"]),
    )
    if epoch is not None:
        report(f"median epoch {epoch:.3f} s, largest rank {peak / 2**20:.0f} MiB")
    report(f"results in {path}: config.toml metrics.jsonl summary.json checkpoints/ and more")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
