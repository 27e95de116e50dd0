"""Layers of exported models in plain torch: classes of the module, with the names of `hpcgnn.nn`.

Products are those of sparse matrices.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcgnn.export.blueprint import Blueprint, Layers, LayerSource, MadeLayer

MATRIX = '''\
def sparse(edges, weights, num_nodes):
    """Return the matrix that sums the rows of sources into targets, with these entries."""
    size = (num_nodes, num_nodes)
    return torch.sparse_coo_tensor(edges.flip(0), weights, size, check_invariants=True).coalesce()
'''

_CONVOLUTION = """\
class Convolution(nn.Module):
    def __init__(self, in_width, out_width):
        super().__init__()
        self.linear = nn.Linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_width))

    def forward(self, matrix, x):
        return matrix @ self.linear(x) + self.bias
"""

_MEANS = '''\
class Means(nn.Module):
    """The node's own rows, and the mean of neighbours of each direction, each through a map."""

    def __init__(self, in_width, out_width, num_directions):
        super().__init__()
        self.own = nn.Linear(in_width, out_width)
        self.neighbours = nn.ParameterList(
            torch.zeros(out_width, in_width) for _ in range(num_directions)
        )

    def forward(self, matrices, x):
        out = self.own(x)
        for matrix, weight in zip(matrices, self.neighbours):
            out = out + matrix @ (x @ weight.t())
        return out
'''

_SUMS = '''\
class Sums(nn.Module):
    """A perceptron of sums of neighbours of each direction, and of the node's own rows."""

    def __init__(self, in_width, inner_width, out_width, directed):
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.first = nn.Linear(in_width, inner_width)
        self.reversed = nn.Linear(in_width, inner_width, bias=False) if directed else None
        self.second = nn.Linear(inner_width, out_width)

    def forward(self, matrices, x):
        inner = self.first((1 + self.epsilon) * x + matrices[0] @ x)
        if self.reversed is not None:
            inner = inner + self.reversed(matrices[1] @ x)
        return self.second(torch.relu(inner))
'''

_ATTENTION = '''\
class Attention(nn.Module):
    """Heads of attention over the edges that arrive at a node, side by side or averaged."""

    def __init__(self, in_width, width, heads, average):
        super().__init__()
        self.average = average
        self.linear = nn.Linear(in_width, heads * width, bias=False)
        self.source = nn.Parameter(torch.zeros(heads, width))
        self.bias = nn.Parameter(torch.zeros(width if average else heads * width))
        {target}

    def forward(self, edges, x):
        source, target = edges
        values = self.linear(x).view(len(x), *self.source.shape)
        {scores}
        highest = scores.new_full((len(x), scores.shape[1]), -torch.inf)
        rows = target[:, None].expand_as(scores)
        highest = highest.scatter_reduce(0, rows, scores, "amax")
        shares = (scores - highest[target]).exp()
        shares = shares / torch.zeros_like(highest).index_add(0, target, shares)[target]
        parts = shares[:, :, None] * values[source]
        out = torch.zeros_like(values).index_add(0, target, parts)
        return (out.mean(1) if self.average else out.flatten(1)) + self.bias
'''

_ADDITIVE = _ATTENTION.format(
    target="self.target = nn.Parameter(torch.zeros(heads, width))",
    scores="""\
from_source, from_target = (values * self.source).sum(2), (values * self.target).sum(2)
        scores = functional.leaky_relu(from_source[source] + from_target[target], 0.2)""",
)
_DYNAMIC = _ATTENTION.format(
    target="self.own = nn.Linear(in_width, heads * width, bias=False)",
    scores="""\
own = self.own(x).view_as(values)
        joined = functional.leaky_relu(values[source] + own[target], 0.2)
        scores = (joined * self.source).sum(2)""",
)

_RELATIONS = '''\
class Relations(nn.Module):
    """The node's own rows, and the mean of its neighbours by each relation, each through a map."""

    def __init__(self, in_width, out_width, num_relations, num_bases):
        super().__init__()
        self.own = nn.Linear(in_width, out_width)
        self.matrices = nn.Parameter(torch.zeros(num_bases or num_relations, in_width, out_width))
        self.coefficients = None
        if num_bases:
            self.coefficients = nn.Parameter(torch.zeros(num_relations, num_bases))

    def forward(self, edges, kinds, weights, x):
        maps = self.matrices
        if self.coefficients is not None:
            maps = torch.einsum("rb,bio->rio", self.coefficients, maps)
        out = self.own(x)
        for kind, weight in enumerate(maps):
            mine = kinds == kind
            out = out + sparse(edges[:, mine], weights[mine], len(x)) @ (x @ weight)
        return out
'''

_POWERS = '''\
class Powers(nn.Module):
    """Powers of the matrix times the rows, each through a map: side by side, or summed."""

    def __init__(self, in_width, out_widths, summed):
        super().__init__()
        self.summed = summed
        self.powers = nn.ModuleList(nn.Linear(in_width, width, bias=False) for width in out_widths)
        self.bias = nn.Parameter(torch.zeros(out_widths[0] if summed else sum(out_widths)))

    def forward(self, matrix, x):
        parts = []
        for linear in self.powers:
            parts.append(linear(x))
            x = matrix @ x
        return (sum(parts) if self.summed else torch.cat(parts, 1)) + self.bias
'''

_IDENTITY_MAP = '''\
class NearIdentity(nn.Module):
    """Z ((1 - b) I + b W) of the rows Z = (1 - t) A X + t X0."""

    def __init__(self, width, teleport, strength):
        super().__init__()
        self.teleport, self.strength = teleport, strength
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, matrix, x, first):
        mixed = (1 - self.teleport) * (matrix @ x) + self.teleport * first
        return (1 - self.strength) * mixed + self.strength * self.linear(mixed)
'''

_STEPS = '''\
class Steps(nn.Module):
    """Steps Z = (1 - t) A Z + t H from the rows H."""

    def __init__(self, num_steps, teleport):
        super().__init__()
        self.num_steps, self.teleport = num_steps, teleport

    def forward(self, matrix, first):
        x = first
        for _ in range(self.num_steps):
            x = (1 - self.teleport) * (matrix @ x) + self.teleport * first
        return x
'''

_MATRIX = "sparse(edges, weights, num_nodes)"
_BOTH = f"({_MATRIX}, sparse(edges.flip(0), {{}}, num_nodes))"


def _gcn(model: Blueprint) -> Layers:
    del model

    def layer(at: LayerSource) -> MadeLayer:
        return f"Convolution({at.in_width}, {at.out_width})", at.tensors

    return Layers(
        "layer(matrix, x)",
        ("symmetric",),
        {"layers": layer},
        prepared=(f"matrix = {_MATRIX}",),
        classes=(MATRIX, _CONVOLUTION),
    )


def _sage(model: Blueprint) -> Layers:
    directions = 1 + model.directed

    def layer(at: LayerSource) -> MadeLayer:
        return f"Means({at.in_width}, {at.out_width}, {directions})", at.tensors

    matrices = _BOTH.format("back") if model.directed else f"({_MATRIX},)"
    return Layers(
        "layer(matrices, x)",
        ("mean", "mean_back")[:directions],
        {"layers": layer},
        prepared=(f"matrices = {matrices}",),
        classes=(MATRIX, _MEANS),
    )


def _gin(model: Blueprint) -> Layers:
    def layer(at: LayerSource) -> MadeLayer:
        sizes = f"{at.in_width}, {len(at['first.weight'])}, {at.out_width}"
        return f"Sums({sizes}, {model.directed})", at.tensors

    matrices = _BOTH.format("weights") if model.directed else f"({_MATRIX},)"
    return Layers(
        "layer(matrices, x)",
        ("plain",),
        {"layers": layer},
        prepared=(f"matrices = {matrices}",),
        classes=(MATRIX, _SUMS),
    )


def _gat(model: Blueprint) -> Layers:
    heads = model.shape.heads

    def layer(at: LayerSource) -> MadeLayer:
        width = at.out_width // heads if at.hidden else at.out_width
        return f"Attention({at.in_width}, {width}, {heads}, {not at.hidden})", at.tensors

    source = _ADDITIVE if model.name == "gat" else _DYNAMIC
    return Layers("layer(edges, x)", (), {"layers": layer}, classes=(source,))


def _rgcn(model: Blueprint) -> Layers:
    shape = model.shape

    def layer(at: LayerSource) -> MadeLayer:
        sizes = f"{at.in_width}, {at.out_width}, {shape.num_relations}, {shape.num_bases}"
        return f"Relations({sizes})", at.tensors

    return Layers(
        "layer(edges, kinds, weights, x)",
        ("mean",),
        {"layers": layer},
        classes=(MATRIX, _RELATIONS),
    )


def _mixhop(model: Blueprint) -> Layers:
    powers = model.num_steps // model.shape.num_layers + 1

    def layer(at: LayerSource) -> MadeLayer:
        # A file of tensors has them in any order.
        widths = [len(at[f"powers.{power}.weight"]) for power in range(powers)]
        return f"Powers({at.in_width}, {widths}, {not at.hidden})", at.tensors

    return Layers(
        "layer(matrix, x)",
        ("symmetric",),
        {"layers": layer},
        prepared=(f"matrix = {_MATRIX}",),
        classes=(MATRIX, _POWERS),
    )


def _gcnii(model: Blueprint) -> Layers:
    def layer(at: LayerSource) -> MadeLayer:
        sizes = (
            f"{at.out_width}, {model.shape.teleport}, {math.log1p(model.theta / (at.number + 1))!r}"
        )
        return f"NearIdentity({sizes})", at.tensors

    return Layers(
        "layer(matrix, x, first)",
        ("symmetric",),
        {"layers": layer},
        prepared=(f"matrix = {_MATRIX}",),
        classes=(MATRIX, _IDENTITY_MAP),
    )


def _appnp(model: Blueprint) -> Layers:
    steps = f"Steps({model.num_steps}, {model.shape.teleport})"
    return Layers(
        "self.steps(matrix, x)",
        ("symmetric",),
        modules={"steps": steps},
        prepared=(f"matrix = {_MATRIX}",),
        classes=(MATRIX, _STEPS),
    )


def _sign(model: Blueprint) -> Layers:
    matrices = _BOTH.format("back") if model.directed else f"({_MATRIX},)"
    return Layers(
        "matrix @ power",
        ("mean", "mean_back")[: 1 + model.directed],
        prepared=(f"matrices = {matrices}",),
        classes=(MATRIX,),
    )


LAYERS: Mapping[str, Callable[[Blueprint], Layers]] = MappingProxyType(
    {
        "gcn": _gcn,
        "sage": _sage,
        "gat": _gat,
        "gatv2": _gat,
        "rgcn": _rgcn,
        "mixhop": _mixhop,
        "gin": _gin,
        "appnp": _appnp,
        "gcnii": _gcnii,
        "sign": _sign,
    }
)
"""By ``model.name``."""
