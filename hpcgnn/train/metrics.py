"""What an evaluation gives: metrics by split, and which of them chooses models."""

from dataclasses import dataclass

from hpcgnn.storage import Split

SPLITS = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}
"""The splits by the prefix of their metrics."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on all splits.

    Parameters
    ----------
    values
        ``PREFIX_METRIC`` -> value, with prefixes train, valid, test and metrics loss, accuracy,
        or those of `evaluate_multi_label` or `target_metrics`; a split without nodes is absent.
    metric
        The metric that models are chosen by: accuracy, micro_f1 or r2.
    constant
        The one prediction that all tested nodes or graphs get, though they differ; empty where they
        are not, or where that is not looked for.
    """

    values: dict[str, float]
    metric: str
    constant: str = ""

    def rank_value(self, select: str) -> float | None:
        """Return what ranks models on the validation nodes, larger is better; None without any."""
        if select == "best_loss":
            loss = self.values.get("valid_loss")
            return None if loss is None else -loss
        return self.chosen("valid")

    def chosen(self, prefix: str) -> float | None:
        """Return the choosing metric on a split, or None when it has no nodes."""
        return self.values.get(f"{prefix}_{self.metric}")
