"""The learned size of neighbour groups: a classifier of the pattern that a product works on.

Global SAGPool (Lee, Lee and Kang, ICML 2019): three graph convolutions side by side, a
self-attention score by a fourth, the best half of the vertices, their mean and maximum, and a
perceptron. It sees degrees and the width of the dense operand (execution-path paper, section 5).
Rows and columns of the pattern are different vertices, so blocks may be rectangular.

Shape suffixes: V vertices, that is rows and then columns, H hidden width, K sizes.
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
"""Weights that benchmarks.train_group_size has trained on measurements of an NVIDIA H100."""
_RULES = {"measured": MEASURED_RULE, "paper": PAPER_RULE}


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern as the classifier sees it.

    `adjacency` is (V, V) sparse, symmetric, with the weights ``1 / sqrt(d_u d_v)``; `features` (V,
    2) are logarithms of degrees, of rows and of columns in columns of their own.
    """

    adjacency: Tensor
    features: Tensor

    @classmethod
    def of(cls, indptr: Offsets, indices: LocalIndices, num_columns: int) -> "Pattern":
        """Return it for CSR offsets and columns."""
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
    """Logits of the sizes of a ladder."""

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

    def forward(self, pattern: Pattern, width: int) -> Tensor:
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
        """Write weights and ladder as safetensors, with `facts` about their origin beside them."""
        about = json.dumps({"ladder": self.ladder, "hidden": self.hidden, **facts})
        save_file(dict(self.state_dict()), path, {"group_size": about})


@dataclass(frozen=True, eq=False)
class LearnedSize:
    """The size that a trained classifier thinks best; a `GroupRule`."""

    net: GroupSizeNet

    @torch.no_grad()
    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the most likely size; 1 for a pattern without entries."""
        if len(indices) == 0:
            return 1
        logits_K = self.net(Pattern.of(indptr, indices, num_columns), width)
        return self.net.ladder[int(logits_K.argmax())]

    @staticmethod
    def load(path: Path) -> "LearnedSize":
        """Read what `GroupSizeNet.save` wrote.

        Raises `InputError` when the file does not read, or holds something else.
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

    Raises `InputError` when there is no such rule, or its file does not read.
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
