"""Write the source of an exported module, with the tensors of its members."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from hpcgnn.export.blueprint import Blueprint, under
from hpcgnn.export.heads import Head
from hpcgnn.export.layers import TEMPLATES, Layers, LayerSource
from hpcgnn.nn import LayeredModel

Source: TypeAlias = str | list[str] | dict[str, str]
"""The expression that makes a member, or the expressions of a list or dictionary of modules."""


class ModuleMembers:
    """The members of a module by name, and its state dict."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.buffers: list[str] = []
        self.tensors: dict[str, Tensor] = {}

    def add(self, name: str, source: Source, tensors: Mapping[str, Tensor]) -> None:
        """Add a member with its tensors under its own names."""
        self.sources[name] = source
        # A parameter in a list has only its number as a name.
        self.tensors.update(
            {f"{name}.{key}".rstrip("."): tensor for key, tensor in tensors.items()}
        )

    def add_buffer(self, name: str, values: Tensor) -> None:
        """Add a buffer of float64 values."""
        self.sources[name] = f"torch.zeros({len(values)}, dtype=torch.float64)"
        self.buffers.append(name)
        self.tensors[name] = values

    def add_linear(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Add the linear map, or list of maps, called `name`, if there are tensors for it."""
        if maps := under(f"{name}.", tensors):
            source: Source = _linear(maps) if "weight" in maps else _linears(maps)
            self.add(name, source, maps)


def write_source(model: Blueprint, library: str) -> tuple[str, dict[str, Tensor]]:
    """Return the source of a module equivalent to the model, and its state dict."""
    layers, head = Layers.of(model, library), Head.of(model, library)
    members = ModuleMembers()
    _add_inputs(members, model)
    for name, source in layers.modules.items():
        members.add(name, source, under(f"{name}.", model.tensors))
    _add_norms(members, model)
    for name in ("input", "edge_input", "branches", "output", "edge_output"):
        if name not in layers.modules:
            members.add_linear(name, model.tensors)
    if layers.lists:
        _add_layers(members, model, layers)
    else:
        members.add_linear("layers", model.tensors)
    if issubclass(model.kind, LayeredModel) and model.shape.residual:
        _add_shortcuts(members, model)
    if head is not None:
        for name in ("head", "map"):
            members.add_linear(name, model.head)
        for name, module in head.modules.items():
            members.add(name, module["make"], head.tensors(name, model.head))
    if model.frames is not None:
        scales = {"frame": model.frames.scales.nodes.frames}
        if model.edge_width:
            scales["edge_frame"] = model.frames.scales.edges.frames
        for name, scale in scales.items():
            members.add_buffer(f"{name}_mean", torch.from_numpy(scale.mean))
            members.add_buffer(f"{name}_deviation", torch.from_numpy(scale.deviation))
    if model.facts.targets:
        for name in ("target_means", "target_scales"):
            values = torch.tensor(getattr(model.facts, name), dtype=torch.float64)
            members.add_buffer(name, values[: model.facts.num_classes])
            if model.shape.num_edge_outputs:
                members.add_buffer(f"edge_{name}", values[model.facts.num_classes :])
    text = TEMPLATES.get_template("model.py.jinja").render(
        model=model,
        library=library,
        layers=layers,
        head=head,
        members=members.sources,
        buffers=members.buffers,
    )
    return text, {name: value.detach().clone() for name, value in members.tensors.items()}


def _add_inputs(members: ModuleMembers, model: Blueprint) -> None:
    """Add scales of features, or input layers that map node types to one width."""
    shape = model.shape
    if model.inputs:
        vectors = {name: len(rows) for name, rows in under("vectors.", model.inputs).items()}
        source = f"InputLayers({list(shape.type_features)}, {shape.first_width}, {vectors})"
        tensors = {n: rows for n, rows in model.inputs.items() if not n.startswith("ids_")}
        members.add("inputs", source, tensors)
    for name, scale in (("feature", model.scale), ("edge", model.edge_scale)):
        if scale is not None:
            deviation = torch.from_numpy(scale.deviation)
            members.add_buffer(f"{name}_mean", torch.from_numpy(scale.mean))
            members.add_buffer(f"{name}_deviation", torch.where(deviation > 0, deviation, 1.0))


def _add_norms(members: ModuleMembers, model: Blueprint) -> None:
    kind = model.shape.norm
    sources: list[str] = []
    tensors: dict[str, Tensor] = {}
    renamed = {"running_variance": "running_var", "mean_share": "mean_scale"}
    while norm := under(f"norms.{len(sources)}.", model.tensors):
        if kind == "batch":
            norm["num_batches_tracked"] = torch.tensor(0)
        for key, value in norm.items():
            tensors[f"{len(sources)}.{renamed.get(key, key)}"] = value
        name = {"batch": "nn.BatchNorm1d", "layer": "nn.LayerNorm", "graph": "GraphNorm"}[kind]
        sources.append(f"{name}({len(norm['weight'])})")
    if sources:
        members.add("norms", sources, tensors)


def _add_layers(members: ModuleMembers, model: Blueprint, layers: Layers) -> None:
    shape = model.shape
    widths, hidden = [shape.hidden] * (shape.num_layers + 1), shape.num_layers
    if issubclass(model.kind, LayeredModel):
        widths, hidden = list(shape.widths()), shape.num_hidden_layers
    for name in layers.lists:
        sources: list[str] = []
        tensors: dict[str, Tensor] = {}
        for number, pair in enumerate(pairwise(widths)):
            layer_tensors = under(f"layers.{number}.", model.tensors)
            at = LayerSource(number, *pair, number < hidden, layer_tensors, shape.heads)
            source, exported = layers.layer(name, at)
            sources.append(source)
            tensors |= {f"{number}.{key}": value for key, value in exported.items()}
        members.add(name, sources, tensors)


def _add_shortcuts(members: ModuleMembers, model: Blueprint) -> None:
    shortcuts: dict[str, str] = {}
    for number, (before, after) in enumerate(pairwise(model.shape.widths())):
        if tensors := under(f"shortcuts.{number}.", model.tensors):
            shortcuts[str(number)] = _linear(tensors)
        elif before == after:
            shortcuts[str(number)] = "nn.Identity()"
    if shortcuts:
        members.add("shortcuts", shortcuts, under("shortcuts.", model.tensors))


def _linear(tensors: Mapping[str, Tensor]) -> str:
    out_width, in_width = tensors["weight"].shape
    return f"nn.Linear({in_width}, {out_width}{'' if 'bias' in tensors else ', bias=False'})"


def _linears(tensors: Mapping[str, Tensor]) -> list[str]:
    sources: list[str] = []
    while linear := under(f"{len(sources)}.", tensors):
        sources.append(_linear(linear))
    return sources
