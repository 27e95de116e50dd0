"""Early stopping: the weights of the best evaluation are kept, and patience counts those since."""

from typing import Any

from torch import Tensor, nn

from hpcgnn.config.training import TrainConfig
from hpcgnn.errors import InputError
from hpcgnn.train.evaluation import Evaluation


class EarlyStopping:
    """What a seed keeps of its evaluations.

    `kept` has ``epoch``, ``value``, ``metrics`` and ``constant`` of the evaluation that is kept, as
    checkpoints hold them; the epoch is None before the first. `weights` are of the model then, by
    name; `without_gain` counts evaluations since the best one.
    """

    def __init__(self, config: TrainConfig, model: nn.Module) -> None:
        self._select, self._metric, self._patience = config.select, config.metric, config.patience
        self.kept: dict[str, Any] = {"epoch": None, "value": None, "metrics": {}}
        self.weights, self.without_gain = copy_weights(model), 0

    @property
    def ran_out(self) -> bool:
        """Whether patience ran out; without any it never does."""
        return 0 < self._patience <= self.without_gain

    def add(self, evaluation: Evaluation, epoch: int, model: nn.Module) -> None:
        """Keep the model after an epoch where it is the best so far, or the last one is wanted."""
        value, best = evaluation.rank_value(self._select, self._metric), self.kept["value"]
        # Without validation nodes there is nothing to choose by: the last model is kept.
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
    """Return the fault of a run that is patient without anything to choose its model by."""
    if num_valid > 0 or config.patience == 0:
        return None
    wanted = f"train.patience = {config.patience}"
    return InputError(f"{wanted}, but {lacks}; set train.patience=0 or {remedy}")


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model has learned, by name, in memory of its own."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
