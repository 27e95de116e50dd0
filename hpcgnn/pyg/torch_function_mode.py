"""The torch function mode in which modules written for one process run over ranks.

It intercepts every torch function that a module calls. Most functions treat rows of own nodes or
edges independently. Functions with edges as arguments have a meaning over ranks
(`hpcgnn.pyg.edge_functions`) or are refused by name; so are those that join rows
(`hpcgnn.pyg.row_functions`).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, dropout, moments
from hpcgnn.errors import InputError
from hpcgnn.pyg import row_functions
from hpcgnn.pyg.edge_functions import ADDS, added, bound, call, held
from hpcgnn.pyg.edges import EdgeList, EdgeShare, RowShare, name_of, words
from hpcgnn.pyg.ghosts import refuse_checkpoints
from hpcgnn.pyg.row_axis import axis_of, kind_of, mark, with_local_sizes
from hpcgnn.spmd import collective

_DRAWS = words(
    "rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ "
    "multinomial alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d "
    "dropout3d rrelu gumbel_softmax"
)
"""Functions that draw numbers in the order of rows, which depends on the number of ranks."""


class BatchNormArguments(NamedTuple):
    """The arguments of torch's batch norm, in order."""

    x: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class OverRanks(TorchFunctionMode):
    """Runs torch functions over the ranks of a graph while it is entered.

    `key` is the key of dropout masks; None: nothing is dropped, even if modules are training. If it
    is `passive`, functions run as they are.
    """

    def __init__(self, share: RowShare, key: DropoutKey | None) -> None:
        super().__init__()
        self._share, self._key, self._num_draws = share, key, 0
        self._last: tuple[Tensor, EdgeShare, int, int, bool, Tensor] | None = None
        self.passive = False
        self.edges: EdgeList | None = None
        """The edges of which a layer is computing messages now; rows are then those of edges."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if self.passive:
            return func(*args, **kwargs)
        if torch._C._functorch.maybe_current_level() is not None:
            raise InputError(
                f"torch.{name} under torch.func or torch.vmap: they hide which axis has rows; call "
                "functions of whole tensors"
            )
        if name in _DRAWS:
            raise row_functions.draws(name)
        local = with_local_sizes(func)
        if name == "dropout" and func is functional.dropout:
            return self._dropout(**bound(name, args, kwargs))
        if name == "batch_norm" and func is functional.batch_norm:
            return self._batch_norm(local, BatchNormArguments(**bound(name, args, kwargs)))
        if name == "instance_norm" and func is functional.instance_norm:
            return self._instance_norm(local, args, kwargs)
        if held((*args, *kwargs.values())) is not None:
            return call(self.fetched, name, local, args, kwargs)
        if name in ADDS and (over := added(self._share, name, args, kwargs)) is not None:
            return over
        return row_functions.run(self._share, name, local, args, kwargs)

    @collective
    def fetched(self, share: EdgeShare, x: Tensor, dim: int) -> Tensor:
        """Return the rows of own nodes followed by those of other ranks."""
        refuse_checkpoints()
        state = (share, x._version, dim, torch.is_grad_enabled())
        if self._last is not None and self._last[0] is x and self._last[1:-1] == state:
            # A layer with edge scores reads the same rows again for messages.
            return self._last[-1]
        fetched_rows = share.with_ghosts(x, dim)
        self._last = (x, *state, fetched_rows)
        return fetched_rows

    def draw(self) -> DropoutKey | None:
        """Return the key of the next dropout; None if nothing is dropped."""
        self._num_draws += 1
        return None if self._key is None else self._key.at(self._num_draws)

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0 or self._key is None:
            return x
        if p >= 1.0:
            return x * 0.0
        refuse_checkpoints()
        kind, dim = kind_of(x), axis_of(x)
        if self.edges is not None:
            ids = self.edges.share.edge_ids(self.edges)
        else:
            ids = self._share.types.get(kind, self._share.node_ids[:0])
        if dim is None or x.shape[dim] != len(ids):
            raise InputError(
                f"torch.dropout: a tensor of shape {tuple(x.shape)} has no row for each node "
                "or edge of this rank, by which masks are drawn"
            )
        moved = x.movedim(dim, 0)
        flat = moved.reshape(len(moved), moved.shape[1:].numel())
        dropped = dropout(flat, ids, self.draw(), p).view(moved.shape).movedim(0, dim)
        return mark(x.copy_(dropped) if inplace else dropped, dim, kind=kind)

    @collective
    def _batch_norm(self, func: Any, arguments: BatchNormArguments) -> Tensor:
        x, running_mean, running_var, weight, bias, training, momentum, eps = arguments
        if not training:
            return row_functions.run(self._share, "batch_norm", func, arguments, {})
        if x.dim() != 2:
            raise InputError(f"torch.batch_norm: {tuple(x.shape)} is not (rows, columns)")
        refuse_checkpoints()
        mean, variance, count = moments(x, self._share.sums)
        if running_mean is not None and running_var is not None and momentum is not None:
            unbiased = variance.detach() * float(count / (count - 1).clamp(min=1))
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(unbiased, momentum)
        out = (x - mean) * (variance + eps).rsqrt()
        out = out if weight is None else out * weight
        return mark(out if bias is None else out + bias, 0, kind=kind_of(x))

    @collective
    def _instance_norm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        arguments = bound("instance_norm", args, kwargs)
        if "use_input_stats" in arguments:
            arguments["training"] = arguments.pop("use_input_stats")
        x = arguments.pop("x")
        if axis_of(x) is None or not arguments.get("training", True):
            result: Tensor = func(*args, **kwargs)
            return result if axis_of(x) is None else mark(result, axis_of(x) or 0, 1, kind_of(x))
        if x.dim() != 3 or len(x) != 1 or axis_of(x) != 2:
            raise InputError("torch.instance_norm: over ranks it takes one graph, (1, columns, N)")
        out = self._batch_norm(func, BatchNormArguments(x[0].t(), **arguments)).t()[None]
        return mark(out, 2, kind=kind_of(x))
