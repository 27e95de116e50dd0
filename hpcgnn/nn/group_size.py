"""A learned choice of the size of neighbour groups, from the pattern of a product.

The classifier is global SAGPool (Lee, Lee and Kang, ICML 2019): the concatenated outputs of three
graph convolutions, self-attention scores by a fourth, the best half of the vertices, their mean and
maximum, and a perceptron. Its inputs are degrees and the width of the dense operand (execution-path
paper, section 5). Rows and columns are different vertices, so patterns may be rectangular.

Shape suffixes: V vertices, that is rows followed by columns, H hidden width, K sizes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.groups import (
    MEASURED_RULE,
    PAPER_RULE,
    FixedSize,
    GroupRule,
    GroupSizeRule,
)
from hpcgnn.typing import LocalIndices, Offsets

_POOLED_SHARE = 0.5
_CONVOLUTIONS = 3
LEARNED = Path(__file__).with_name("group_size_h100.safetensors")
"""Weights trained by benchmarks.train_group_size on measurements of an NVIDIA H100."""
_RULES = {"measured": MEASURED_RULE, "paper": PAPER_RULE}


@dataclass(frozen=True, eq=False)
class ClassifiedPattern:
    """A pattern in the form that the classifier takes.

    `adjacency` is (V, V) sparse and symmetric with weights ``1 / sqrt(d_u d_v)``; `features` (V, 2)
    are logarithms of degrees, in the first column for rows and in the second for columns.
    """

    adjacency: Tensor
    features: Tensor

    @classmethod
    def of(cls, indptr: Offsets, indices: LocalIndices, num_columns: int) -> "ClassifiedPattern":
        """Return the pattern of CSR offsets and columns."""
        num_rows = len(indptr) - 1
        lengths = np.diff(indptr)
        rows = np.repeat(np.arange(num_rows), lengths)
        columns = indices.astype(np.int64) + num_rows
        degrees = np.concatenate([lengths, np.bincount(indices, minlength=num_columns)])
        ends = torch.from_numpy(np.stack([np.append(rows, columns), np.append(columns, rows)]))
        scales = torch.from_numpy(1 / np.sqrt(np.maximum(degrees, 1.0))).float()
        count = num_rows + num_columns
        adjacency = torch.sparse_coo_tensor(
            ends, scales[ends[0]] * scales[ends[1]], (count, count), check_invariants=False
        )
        features = torch.zeros(count, 2)
        logs = torch.from_numpy(np.log1p(degrees)).float()
        features[:num_rows, 0], features[num_rows:, 1] = logs[:num_rows], logs[num_rows:]
        return cls(adjacency, features)


class GroupSizeNet(nn.Module):
    """A classifier with a logit for each group size in `ladder`."""

    def __init__(self, ladder: Sequence[int], hidden: int = 16) -> None:
        super().__init__()
        self.ladder, self.hidden = tuple(ladder), hidden
        widths = [2, *[hidden] * (_CONVOLUTIONS - 1)]
        self.convolutions = nn.ModuleList(nn.Linear(width, hidden) for width in widths)
        joined = hidden * _CONVOLUTIONS
        self.score = nn.Linear(joined, 1)
        self.out = nn.Sequential(
            nn.Linear(2 * joined + 1, hidden), nn.ReLU(), nn.Linear(hidden, len(self.ladder))
        )

    def forward(self, pattern: ClassifiedPattern, width: int) -> Tensor:
        """Return the logits (K,)."""
        x, layers = pattern.features, []
        for linear in self.convolutions:
            mapped = linear(x)
            x = torch.relu(mapped + torch.sparse.mm(pattern.adjacency, mapped))
            layers.append(x)
        joined = torch.cat(layers, dim=1)
        shares = self.score(joined)
        score_V = (shares + torch.sparse.mm(pattern.adjacency, shares)).squeeze(1)
        selected = score_V.topk(max(1, int(_POOLED_SHARE * len(score_V)))).indices
        pooled = joined[selected] * torch.tanh(score_V[selected])[:, None]
        log_width = pooled.new_full((1,), float(np.log1p(width)))
        return self.out(torch.cat([pooled.mean(0), pooled.amax(0), log_width]))

    def save(self, path: Path, facts: dict[str, object]) -> None:
        """Write weights and ladder as safetensors, with `facts` about their origin."""
        about = json.dumps({"ladder": self.ladder, "hidden": self.hidden, **facts})
        save_file(dict(self.state_dict()), path, {"group_size": about})


@dataclass(frozen=True, eq=False)
class LearnedSize:
    """A `GroupRule` that takes the most likely size of a trained classifier."""

    net: GroupSizeNet

    @torch.no_grad()
    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the most likely size; 1 for a pattern without entries."""
        if len(indices) == 0:
            return 1
        logits_K = self.net(ClassifiedPattern.of(indptr, indices, num_columns), width)
        return self.net.ladder[int(logits_K.argmax())]

    @staticmethod
    def load(path: Path) -> "LearnedSize":
        """Read what `GroupSizeNet.save` wrote.

        Raises `InputError` if the file cannot be read or holds something else.
        """
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})["group_size"])
                net = GroupSizeNet(about["ladder"], about["hidden"])
                net.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise InputError(f"{path}: not the weights of a group-size model ({error})") from error
        return LearnedSize(net.eval())


def load_group_rule(name: str) -> GroupRule:
    """Return the rule that ``train.group_size`` names.

    Raises `InputError` if there is no such rule or its file cannot be read.
    """
    if name in _RULES:
        return _RULES[name]
    if name == "learned":
        return LearnedSize.load(LEARNED)
    if name.isdecimal() and int(name) > 0:
        return FixedSize(int(name))
    if name.endswith(".safetensors"):
        return LearnedSize.load(Path(name))
    if name.endswith(".json"):
        return GroupSizeRule.load(Path(name))
    raise InputError(
        f"train.group_size = {name!r}: give a number, measured, learned, paper, or a file of "
        "python -m benchmarks.calibrate_group_size (.json) or benchmarks.train_group_size "
        "(.safetensors)"
    )
