"""Render the counterparts of graph layers in other libraries from templates/LIBRARY_layers.toml."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from torch import Tensor
from torch.nn.functional import pad

from hpcgnn.export.blueprint import Blueprint, Tensors

TEMPLATES = Environment(
    # The output is source code, which contains names from stores only as repr.
    autoescape=False,
    loader=PackageLoader("hpcgnn.export"),
    keep_trailing_newline=True,
    lstrip_blocks=True,
    trim_blocks=True,
)
TEMPLATES.filters["repr"] = repr
_TEMPLATE, _CONDITION = cache(TEMPLATES.from_string), cache(TEMPLATES.compile_expression)


@dataclass(frozen=True, eq=False)
class LayerSource:
    """A graph layer of a model: its number, widths and tensors, and whether it is hidden.

    `heads` is its number of attention heads, if it has any.
    """

    number: int
    in_width: int
    out_width: int
    hidden: bool
    tensors: Tensors
    heads: int

    @property
    def head_width(self) -> int:
        """Columns of an attention head."""
        return self.out_width // self.heads if self.hidden else self.out_width

    @property
    def inner_width(self) -> int:
        """Columns between the two maps of a perceptron."""
        return len(self.tensors["first.weight"])

    @property
    def power_widths(self) -> list[int]:
        """Columns of each power of the matrix."""
        # The file of tensors has them in no fixed order.
        names = sorted(name for name in self.tensors if name.startswith("powers."))
        return [len(self.tensors[name]) for name in names]

    def tensor(self, named: str) -> Tensor:
        """Return a tensor by its name in hpcgnn; a word after the name transforms it."""
        name, _, change = named.partition(" ")
        value = self.tensors[name]
        match change:
            case "T":
                return value.t()
            case "[None]":
                return value[None]
            case "zeros":
                return value.new_zeros(len(value))
            case "keys" | "values":
                shape = self.heads, 2, self.head_width, *value.shape[1:]
                return value.view(shape)[:, int(change == "values")].flatten(0, 1)
            case "padded":
                return pad(value, (0, sum(self.power_widths) - len(value)))
        return value


@dataclass(frozen=True, eq=False)
class Layers:
    """The counterparts of the graph layers of a model, as rendered texts.

    They are layers of `library`, or plain torch if those cannot compute the model; `instead` is
    then the reason.
    """

    model: Blueprint
    library: str
    instead: str
    call: str
    last_call: str
    forms: list[str]
    prepared: list[str]
    imports: str
    classes: list[str]
    modules: Mapping[str, str]
    lists: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, model: Blueprint, library: str) -> "Layers":
        """Return the layers for a library."""

        def holds(condition: str) -> Any:
            return _CONDITION(condition)(m=model)

        def text_of(key: str) -> str:
            return render(layers.get(key, ""), m=model)

        layers = read_layers(f"{library}_layers").get(
            model.name, {"unfit": {"true": "it has no such layer"}}
        )
        unfit = layers.get("unfit", {}).items()
        instead = next((reason for condition, reason in unfit if holds(condition)), "")
        if instead:
            library, layers = "torch", read_layers("torch_layers")[model.name]
        lists, modules = layers.get("lists", {}), layers.get("modules", {})
        return cls(
            model,
            library,
            instead,
            text_of("call"),
            text_of("last_call"),
            text_of("forms").split(),
            [line for text in layers.get("prepared", ()) if (line := render(text, m=model))],
            text_of("imports"),
            [line for text in layers.get("classes", ()) if (line := render(text, m=model))],
            {name: text for name, source in modules.items() if (text := render(source, m=model))},
            {name: layer for name, layer in lists.items() if holds(layer.get("only", "true"))},
        )

    def layer(self, name: str, at: LayerSource) -> tuple[str, dict[str, Tensor]]:
        """Return the expression that makes a layer of a list, and its tensors by exported names."""
        layer = self.lists[name]
        source, names = render(layer["make"], m=self.model, at=at), layer.get("tensors")
        if names is None:
            return source, dict(at.tensors)
        pairs = {render(exported, m=self.model): name for exported, name in names.items()}
        return source, dict(self._tensors(pairs, at))

    @staticmethod
    def _tensors(pairs: Mapping[str, str], at: LayerSource) -> Iterator[tuple[str, Tensor]]:
        for exported, name in pairs.items():
            if "*" in name:
                for number in map(str, range(len(at.power_widths))):
                    yield exported.replace("*", number), at.tensor(name.replace("*", number))
            elif name.partition(" ")[0] in at.tensors:
                yield exported, at.tensor(name)


@cache
def read_layers(name: str) -> dict[str, Any]:
    """Return the texts in a template file, by model or task."""
    file = files("hpcgnn.export") / "templates" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def render(text: str, **values: Any) -> str:
    """Render a template with values."""
    return _TEMPLATE(text).render(values, log1p=math.log1p)
