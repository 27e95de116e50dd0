"""``python -m hpcgnn.generate``: write a made graph, or the bundled real one, as a store."""

import argparse
import time

from hpcgnn.console import print_json, print_table, run_command
from hpcgnn.generate.options import parser
from hpcgnn.storage import GraphStore, check_output

__all__ = ["main"]


def main() -> None:
    """Generate the graph that the command line names."""
    options = parser().parse_args()
    check_output(options.output)
    began = time.perf_counter()
    options.generate(options)
    show(options, time.perf_counter() - began)


def show(options: argparse.Namespace, seconds: float) -> None:
    """Print what the written store holds."""
    with GraphStore.open(options.output) as store:
        relations = {name: store.num_edges(name) for name in store.relations}
        types = {each.name: each.num_nodes for each in store.node_types}
        summary = {
            "path": str(options.output),
            "name": store.name,
            "num_nodes": store.num_nodes,
            "num_edges": store.num_edges(),
            "num_features": store.num_features,
            "num_classes": store.num_classes,
            "undirected": store.undirected,
            "fingerprint": store.fingerprint,
            "seconds": round(seconds, 3),
        }
    if options.json:
        print_json(summary | {"relations": relations, "node_types": types})
        return
    named = [(f"nodes: {name}", number) for name, number in types.items()]
    named += [(f"edges: {name}", number) for name, number in relations.items() if name]
    print_table(str(options.output), ("property", "value"), [*summary.items(), *named])


if __name__ == "__main__":
    run_command("generate", main)
