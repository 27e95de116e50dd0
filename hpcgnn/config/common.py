"""The keys that matter most, which help shows before torch is there to say what all others are."""

from collections.abc import Mapping

COMMON: Mapping[str, tuple[str, str]] = {
    "graph.store": ("web.4.h5", "a graph in as many parts as ranks, or more"),
    "run.dir": ("runs/web", "where results go; the same again goes on"),
    "train.task": ("links", "full, sampled, links, edges, graphs, fields"),
    "model.name": ("gat", "the model"),
    "model.hidden": ("256", "its width"),
    "model.num_layers": ("3", "its depth"),
    "model.dropout": ("0.2", "more where it over-fits"),
    "train.epochs": ("200", "passes over the training nodes"),
    "train.learning_rate": ("0.003", "less where the loss jumps"),
    "graph.relations": ("cites", "edges to use, of those in the store"),
    "exchange.method": ("joint", "which rows travel; or auto"),
    "run.threads": ("2", "of each rank"),
}
"""Key -> an example of a value, and what it is."""

EXAMPLES = "\n".join(f"  {f'{key}={value}':<33}{about}" for key, (value, about) in COMMON.items())
"""A line for each of them."""
