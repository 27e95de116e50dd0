"""Source of a whole exported module: its class, what comes before and behind its graph layers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import indent

import torch
from torch import Tensor

from hpcgnn.export import dgl_layers, pyg_layers, torch_layers
from hpcgnn.export.blueprint import Blueprint, Layers, LayerSource, under
from hpcgnn.export.edges import edge_source
from hpcgnn.nn import LayeredModel

LIBRARIES = {
    "torch": torch_layers.LAYERS,
    "pyg": pyg_layers.LAYERS,
    "dgl": dgl_layers.LAYERS,
}
"""What ``--to`` may name, with its layers by ``model.name``."""

_ACTIVATIONS = {"relu": "torch.relu", "elu": "functional.elu", "gelu": "functional.gelu"}

_GRAPH_NORM = '''\
class GraphNorm(nn.Module):
    """Normalisation over the nodes of a graph that removes a learned share of their mean."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias, self.mean_scale = (
            nn.Parameter(torch.zeros(width)) for _ in range(3)
        )

    def forward(self, x):
        x = x - x.mean(0) * self.mean_scale
        return x * (self.weight * (x.square().mean(0) + 1e-5).rsqrt()) + self.bias
'''

_INPUT_LAYERS = '''\
class InputLayers(nn.Module):
    """A linear map for each node type, and a vector for each node of some of them."""

    def __init__(self, in_widths, out_width, vectors):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(out_width, width) for width in in_widths)
        self.biases = nn.ParameterList(torch.zeros(out_width) for _ in in_widths)
        self.vectors = nn.ParameterDict(
            {name: torch.zeros(rows, out_width) for name, rows in vectors.items()}
        )

    def forward(self, tables, node_type):
        out = self.biases[0].new_zeros(len(node_type), len(self.biases[0]))
        for number, table in enumerate(tables):
            rows = table.to(out.dtype) @ self.weights[number].t() + self.biases[number]
            if str(number) in self.vectors:
                rows = rows + self.vectors[str(number)]
            out[node_type == number] = rows
        return out
'''

_LOAD = '''\
def load(path=Path(__file__).with_name("model.safetensors")):
    """Return the trained model, in evaluation mode."""
    model = {made}
    model.load_state_dict(load_file(path))
    return model.eval()
'''


@dataclass(eq=False)
class ModuleSource:
    """A module while it is put together.

    Attributes
    ----------
    members
        Lines of the constructor.
    forward
        Lines of the forward pass.
    tensors
        The state dict.
    imports
        Names by the module that has them.
    classes
        Source of classes and functions, each once.
    """

    members: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)

    def add(self, name: str, source: str, tensors: Mapping[str, Tensor]) -> None:
        """Add a member with its tensors under its own names."""
        self.members.append(f"self.{name} = {source}")
        self.tensors.update({f"{name}.{key}": value for key, value in tensors.items()})

    def add_list(self, name: str, sources: list[str], kind: str = "ModuleList") -> None:
        """Add a list of members."""
        items = "".join(f"        {source},\n" for source in sources)
        self.members.append(f"self.{name} = nn.{kind}(\n    [\n{items}    ]\n)")


def write_source(model: Blueprint, library: str) -> tuple[str, dict[str, Tensor]]:
    """Return the source of a module that computes as the model, and its state dict.

    Raises
    ------
    InputError
        When the library has no counterpart of its layers.
    """
    layers = LIBRARIES[library][model.name](model)
    source = ModuleSource(imports=dict(layers.imports), classes=list(layers.classes))
    _add_inputs(source, model)
    lines, functions = edge_source(model, layers.edges)
    source.classes += functions
    source.forward += ["num_nodes = len(x)"]
    if library == "dgl":
        source.forward += ["edge_index = torch.stack(graph.edges())"]
    source.forward += [*lines, *layers.prepared]
    for name, made in layers.modules.items():
        source.add(name, made, {})
    norms = _norms(source, model, library)
    if issubclass(model.kind, LayeredModel):
        _layered(source, model, layers, norms)
    else:
        {"appnp": _appnp, "gcnii": _gcnii, "sign": _sign}[model.name](source, model, layers, norms)
    if model.facts.targets:
        for name in ("target_means", "target_scales"):
            values = torch.tensor(getattr(model.facts, name), dtype=torch.float64)
            _add_buffer(source, name, values)
        source.forward.append("x = x * self.target_scales.to(x) + self.target_means.to(x)")
    source.forward.append("return x")
    text = _render(source, model, library)
    return text, {name: value.detach().clone() for name, value in source.tensors.items()}


def _add_buffer(source: ModuleSource, name: str, values: Tensor) -> None:
    empty = f"torch.zeros({len(values)}, dtype=torch.float64)"
    source.members.append(f'self.register_buffer("{name}", {empty})')
    source.tensors[name] = values


def _add_inputs(source: ModuleSource, model: Blueprint) -> None:
    """Scale features, and map those of node types to one width."""
    shape = model.shape
    if model.inputs:
        source.classes.append(_INPUT_LAYERS)
        vectors = {name: len(rows) for name, rows in under("vectors.", model.inputs).items()}
        made = f"InputLayers({list(shape.type_features)}, {shape.first_width}, {vectors})"
        tensors = {
            name: tensor for name, tensor in model.inputs.items() if not name.startswith("ids_")
        }
        source.add("inputs", made, tensors)
        if model.normalize != "none":
            scaled = _normalised(model.normalize, "table")
            source.forward.append(f"tables = [{scaled} for table in tables]")
        source.forward.append("x = self.inputs(tables, node_type)")
        return
    lines = _scaling(source, model)
    if lines and model.num_label_columns:
        # Labels behind the features stay as they are.
        first = model.facts.num_features
        lines = [
            f"x, labels = x[:, :{first}], x[:, {first}:]",
            *lines,
            "x = torch.cat([x, labels], 1)",
        ]
    source.forward += lines


def _scaling(source: ModuleSource, model: Blueprint) -> list[str]:
    if model.normalize in ("row", "l2"):
        return [f"x = {_normalised(model.normalize, 'x')}"]
    if model.scale is None:
        return []
    deviation = torch.from_numpy(model.scale.deviation)
    _add_buffer(source, "feature_mean", torch.from_numpy(model.scale.mean))
    _add_buffer(source, "feature_deviation", torch.where(deviation > 0, deviation, 1.0))
    return ["x = ((x - self.feature_mean) / self.feature_deviation).to(x.dtype)"]


def _normalised(kind: str, rows: str) -> str:
    return f"functional.normalize({rows}, p={1 if kind == 'row' else 2}, dim=1)"


def _norms(source: ModuleSource, model: Blueprint, library: str) -> bool:
    """Add the norms; return whether there are any."""
    norms = under("norms.", model.tensors)
    if not norms:
        return False
    kind, sources = model.shape.norm, []
    name = {"batch": "nn.BatchNorm1d", "layer": "nn.LayerNorm", "graph": "GraphNorm"}[kind]
    if kind == "graph" and library == "pyg":
        source.imports["torch_geometric.nn"] += ", GraphNorm"
    elif kind == "graph":
        source.classes.append(_GRAPH_NORM)
    renamed = {"running_variance": "running_var", "mean_share": "mean_scale"}
    for number in range(1 + max(int(name.partition(".")[0]) for name in norms)):
        norm = model.layer("norms", number)
        sources.append(f"{name}({len(norm['weight'])})")
        for key, value in norm.items():
            source.tensors[f"norms.{number}.{renamed.get(key, key)}"] = value
        if kind == "batch":
            source.tensors[f"norms.{number}.num_batches_tracked"] = torch.tensor(0)
    source.add_list("norms", sources)
    return True


def _add_layers(source: ModuleSource, model: Blueprint, layers: Layers, widths: list[int]) -> None:
    hidden = model.shape.num_hidden_layers if issubclass(model.kind, LayeredModel) else len(widths)
    numbers = [
        LayerSource(number, *pair, number < hidden, model.layer("layers", number))
        for number, pair in enumerate(pairwise(widths))
    ]
    for member, make in layers.members.items():
        sources = []
        for place in numbers:
            text, tensors = make(place)
            sources.append(text)
            for name, value in tensors.items():
                source.tensors[f"{member}.{place.number}.{name}".rstrip(".")] = value
        kind = "ParameterList" if sources[0].startswith("nn.Parameter(") else "ModuleList"
        source.add_list(member, sources, kind)


def _linear(tensors: Mapping[str, Tensor]) -> str:
    out_width, in_width = tensors["weight"].shape
    return f"nn.Linear({in_width}, {out_width}{'' if 'bias' in tensors else ', bias=False'})"


def _add_linears(source: ModuleSource, model: Blueprint, name: str) -> int:
    """Add a list of linear maps; return how many."""
    sources: list[str] = []
    while tensors := model.layer(name, len(sources)):
        source.tensors.update({f"{name}.{len(sources)}.{k}": v for k, v in tensors.items()})
        sources.append(_linear(tensors))
    source.add_list(name, sources)
    return len(sources)


def _activate(model: Blueprint) -> str:
    return f"x = {_ACTIVATIONS[model.shape.activation]}(x)"


def _layered(source: ModuleSource, model: Blueprint, layers: Layers, norms: bool) -> None:
    shape = model.shape
    hidden, joined = shape.num_hidden_layers, shape.jumping != "none"
    _add_layers(source, model, layers, shape.widths())
    shortcuts: dict[str, str] = {}
    if shape.residual:
        for number, (before, after) in enumerate(pairwise(shape.widths())):
            tensors = under(f"shortcuts.{number}.", model.tensors)
            if tensors:
                shortcuts[str(number)] = _linear(tensors)
                source.tensors[f"shortcuts.{number}.weight"] = tensors["weight"]
            elif before == after:
                shortcuts[str(number)] = "nn.Identity()"
    if shortcuts:
        items = "".join(f'        "{number}": {source},\n' for number, source in shortcuts.items())
        source.members.append(f"self.shortcuts = nn.ModuleDict(\n    {{\n{items}    }}\n)")
    loop = ["before = x"] * bool(shortcuts)
    if layers.last_call and not joined:
        loop.append(f"x = {layers.call} if place < {hidden} else {layers.last_call}")
    else:
        loop.append(f"x = {layers.call}")
    if shortcuts:
        loop += [
            "if str(place) in self.shortcuts:",
            "    x = x + self.shortcuts[str(place)](before)",
        ]
    ending = ["x = self.norms[place](x)"] * norms + [_activate(model)]
    if joined:
        loop += [*ending, "outputs.append(x)"]
    elif hidden:
        loop += [f"if place < {hidden}:", *(f"    {line}" for line in ending)]
    source.forward += ["outputs = []"] * joined
    source.forward += ["for place, layer in enumerate(self.layers):", *(f"    {e}" for e in loop)]
    if joined:
        join = (
            "torch.cat(outputs, 1)" if shape.jumping == "concat" else "torch.stack(outputs).amax(0)"
        )
        source.add("output", *_named_linear(model, "output"))
        source.forward.append(f"x = self.output({join})")


def _named_linear(model: Blueprint, name: str) -> tuple[str, dict[str, Tensor]]:
    tensors = under(f"{name}.", model.tensors)
    return _linear(tensors), tensors


def _appnp(source: ModuleSource, model: Blueprint, layers: Layers, norms: bool) -> None:
    del norms
    count = _add_linears(source, model, "layers")
    source.forward += ["for place, layer in enumerate(self.layers):", "    x = layer(x)"]
    if count > 1:
        source.forward += [f"    if place < {count - 1}:", f"        {_activate(model)}"]
    source.forward.append(f"x = {layers.call}")


def _gcnii(source: ModuleSource, model: Blueprint, layers: Layers, norms: bool) -> None:
    shape = model.shape
    source.add("input", *_named_linear(model, "input"))
    _add_layers(source, model, layers, [shape.hidden] * (shape.num_layers + 1))
    source.add("output", *_named_linear(model, "output"))
    activate = _activate(model)
    loop = [f"x = {layers.call}", *["x = self.norms[place](x)"] * norms, activate]
    source.forward += [
        activate.replace("(x)", "(self.input(x))"),
        "first = x",
        "for place, layer in enumerate(self.layers):",
        *(f"    {line}" for line in loop),
        "x = self.output(x)",
    ]


def _sign(source: ModuleSource, model: Blueprint, layers: Layers, norms: bool) -> None:
    _add_linears(source, model, "branches")
    _add_linears(source, model, "layers")
    norm = ["x = self.norms[place](x)"] * norms
    source.forward += [
        "powers = [x]",
        "for matrix in matrices:",
        "    power = x",
        f"    for _ in range({model.num_steps}):",
        f"        power = {layers.call}",
        "        powers.append(power)",
        "mapped = [branch(rows) for branch, rows in zip(self.branches, powers)]",
        "x = torch.cat(mapped, 1)",
        "for place, layer in enumerate(self.layers):",
        *(f"    {line}" for line in [*norm, _activate(model), "x = layer(x)"]),
    ]


def _render(source: ModuleSource, model: Blueprint, library: str) -> str:
    name = "Model"
    takes = ["graph"] * (library == "dgl") + (["tables", "node_type"] if model.inputs else ["x"])
    takes += ["edge_index"] * (library != "dgl")
    takes += ["edge_type"] * model.by_relation + ["edge_weight"] * model.weighted
    body = "\n".join(source.forward)
    functional = (
        "from torch.nn import functional\n"
        if "functional." in body + "".join(source.classes)
        else ""
    )
    imports = "".join(f"from {module} import {names}\n" for module, names in source.imports.items())
    if library == "dgl":
        imports = f"import dgl\n{imports}"
    members = "\n".join(indent(member, " " * 8) for member in source.members)
    forward = "\n".join(indent(line, " " * 8) for line in [_about(model, library), *source.forward])
    names = model.facts.targets or model.facts.class_names
    classes = f"\nTRAINED_ON = {model.facts.name!r}\n"
    classes += f"\nCLASSES = {list(names)!r}\n" if names else ""
    types = f"\nNODE_TYPES = {list(model.facts.type_names)!r}\n" if model.inputs else ""
    kinds = ""
    if model.by_relation:
        kinds = f"\nRELATIONS = {list(model.facts.relations[: model.num_relations])!r}\n"
    wide = any(value.dtype == torch.float64 for value in model.tensors.values())
    load = _LOAD.format(made=f"{name}().double()" if wide else f"{name}()")
    parts = [
        *source.classes,
        f"class {name}(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n{members}\n\n"
        f"    def forward(self, {', '.join(takes)}):\n{forward}\n",
        load,
    ]
    head = (
        f'"""{model.origin}\n\n'
        f"    from model import load\n    logits = load()({', '.join(takes)})\n"
        '"""\n\n'
        f"from pathlib import Path\n\nimport torch\n"
        f"{imports}from safetensors.torch import load_file\nfrom torch import nn\n{functional}"
        f"{classes}{types}{kinds}"
    )
    return head + "".join(f"\n\n{part}" for part in parts)


def _about(model: Blueprint, library: str) -> str:
    """Return the docstring of the forward pass."""
    facts = model.facts
    what = (
        f"numbers (nodes, {facts.num_classes})"
        if facts.targets
        else (f"logits (nodes, {facts.num_classes})")
    )
    lines = [f'"""Return {what}.', ""]
    if model.inputs:
        lines += [
            "tables: for each of NODE_TYPES (its nodes, its features), not yet scaled; no columns",
            "    where it has none.",
            "node_type: (nodes,) the place of each node's type in NODE_TYPES.",
        ]
    else:
        labels = (
            f", behind them {model.num_label_columns} columns with the labels of training nodes"
            if model.num_label_columns
            else ""
        )
        lines.append(f"x: (nodes, {model.shape.num_features}) features, not yet scaled{labels}.")
    if library == "dgl":
        lines.append(
            "graph: without types; its edges run from sources to the nodes that aggregate."
        )
    else:
        lines.append("edge_index: (2, edges) sources above the nodes that aggregate from them.")
    lines.append("    Self loops and reverses are added where the model was trained with them.")
    if model.by_relation:
        lines.append("edge_type: (edges,) the place of each edge's relation in RELATIONS.")
    if model.weighted:
        lines.append("edge_weight: (edges,) not negative.")
    return "\n".join([*lines, '"""'])
