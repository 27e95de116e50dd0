"""Early stopping: keep the weights of the best evaluation, and count evaluations since."""

from typing import Any

from torch import Tensor, nn

from hpcgnn.config.training import TrainConfig
from hpcgnn.errors import InputError
from hpcgnn.train.evaluation import Evaluation


class EarlyStopping:
    """The model that a seed keeps, and its patience.

    `kept` has ``epoch``, ``value``, ``metrics`` and ``constant`` of the kept evaluation, as
    checkpoints hold them; the epoch is None before the first. `weights` are those of the kept
    model, by name; `without_gain` counts evaluations since the best one.
    """

    def __init__(self, config: TrainConfig, model: nn.Module) -> None:
        self._select, self._metric, self._patience = config.select, config.metric, config.patience
        self.kept: dict[str, Any] = {"epoch": None, "value": None, "metrics": {}}
        self.weights, self.without_gain = copy_weights(model), 0

    @property
    def ran_out(self) -> bool:
        """Whether patience ran out; a patience of 0 never does."""
        return 0 < self._patience <= self.without_gain

    def add(self, evaluation: Evaluation, epoch: int, model: nn.Module) -> None:
        """Keep the model of an epoch if it is the best so far, or if the last one is selected."""
        value, best = evaluation.rank_value(self._select, self._metric), self.kept["value"]
        # Without a validation value, keep the last model.
        keeps_last = self._select == "last" or value is None
        better = value is not None and (best is None or value > best)
        self.without_gain = 0 if better else self.without_gain + 1
        if better or keeps_last:
            top = value if better else best
            self.kept = {"epoch": epoch, "value": top, "metrics": dict(evaluation.values)}
            self.kept["constant"] = evaluation.constant
            self.weights = copy_weights(model)


def patience_fault(
    config: TrainConfig, num_valid: int, lacks: str, remedy: str
) -> InputError | None:
    """Return the fault of a run with patience but without validation data, None if it is fine."""
    if num_valid > 0 or config.patience == 0:
        return None
    setting = f"train.patience = {config.patience}"
    return InputError(f"{setting}, but {lacks}; set train.patience=0 or {remedy}")


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers, by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
