"""Source that makes of the edges of a graph what the layers of an exported model multiply with.

Edges of an exported module are (2, E) with sources above targets. As in training, each counts once,
equal ones with their largest weight.
"""

from textwrap import indent

from hpcgnn.export.blueprint import Blueprint


def edge_source(model: Blueprint, forms: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the lines of ``forward`` that prepare edges, and the functions that they call.

    The lines turn ``edge_index``, ``edge_weight`` and ``edge_type`` into ``edges`` (2, entries),
    ``weights`` (entries,) and ``kinds`` (entries,), as far as `forms` asks for them:

    symmetric
        ``weights`` of D^-1/2 (A + I) D^-1/2.
    mean, mean_back
        ``weights`` of the mean over sources; ``back`` of that over targets, for ``edges.flip(0)``.
    plain
        ``weights`` of the edges, ones where they have none.

    Without any form there are ``edges`` only.
    """
    parameters = [
        "edge_index",
        *["edge_type"] * model.by_relation,
        *["edge_weight"] * model.weighted,
    ]
    results = ["edges", *["kinds"] * model.by_relation, *["weights"] * model.weighted]
    lines = [f"{', '.join(results)} = trained_edges({', '.join(parameters)}, num_nodes)"]
    functions = [_trained_edges(model, parameters, results)]
    if forms and not model.weighted:
        lines.append("weights = x.new_ones(edges.shape[1])")
    if "symmetric" in forms:
        lines.append("weights = symmetric(edges, weights.double(), num_nodes).to(x.dtype)")
        functions.append(_SYMMETRIC)
    if "mean_back" in forms:
        lines.append("back = mean(edges[0], weights.double(), num_nodes).to(x.dtype)")
    if "mean" in forms:
        group, size = "edges[1]", "num_nodes"
        if model.by_relation:
            group, size = (
                "kinds * num_nodes + edges[1]",
                f"{len(model.facts.relations)} * num_nodes",
            )
        lines.append(f"weights = mean({group}, weights.double(), {size}).to(x.dtype)")
    if {"mean", "mean_back"} & set(forms):
        functions.append(_MEAN)
    if "plain" in forms and model.weighted:
        lines.append("weights = weights.to(x.dtype)")
    return lines, functions


def _trained_edges(model: Blueprint, parameters: list[str], results: list[str]) -> str:
    loops = any(kind.self_loops for kind in model.kind.aggregations)
    notes = ["each once" + (" with its largest weight" if model.weighted else "")]
    lines = ["source, target = edge_index"]
    if not model.directed:
        notes.append("in both directions")
        lines.append("source, target = torch.cat([source, target]), torch.cat([target, source])")
        lines += ["edge_type = edge_type.repeat(2)"] * model.by_relation
        lines += ["edge_weight = edge_weight.repeat(2)"] * model.weighted
    row = "(edge_type * num_nodes + target)" if model.by_relation else "target"
    lines.append(f"key = {row} * num_nodes + source")
    if model.weighted:
        lines += [
            "key, place = key.unique(return_inverse=True)",
            "weights = edge_weight.new_zeros(len(key))",
            'weights = weights.scatter_reduce(0, place, edge_weight, "amax")',
        ]
    else:
        lines.append("key = key.unique()")
    if loops:
        notes.append("with a self loop of weight one at each node that has none")
        lines += [
            "loops = torch.arange(num_nodes, device=key.device) * (num_nodes + 1)",
            "loops = loops[~torch.isin(loops, key)]",
            "key = torch.cat([key, loops])",
        ]
        if model.weighted:
            lines.append("weights = torch.cat([weights, weights.new_ones(len(loops))])")
    lines.append("row, source = key // num_nodes, key % num_nodes")
    if model.by_relation:
        lines.append("kinds, target = row // num_nodes, row % num_nodes")
        if model.reverses:
            notes.append("and the reverse of each relation behind all of them")
            lines += [
                "source, target = torch.cat([source, target]), torch.cat([target, source])",
                f"kinds = torch.cat([kinds, kinds + {model.num_relations}])",
            ]
            lines += ["weights = weights.repeat(2)"] * model.weighted
        lines.append("edges = torch.stack([source, target])")
    else:
        lines.append("edges = torch.stack([source, row])")
    body = "\n".join([*lines, f"return {', '.join(results)}"])
    about = ",\n    ".join(notes)
    return (
        f"def trained_edges({', '.join(parameters)}, num_nodes):\n"
        f'    """Return the edges as the model was trained with them:\n    {about}.\n    """\n'
        f"{indent(body, '    ')}\n"
    )


_SYMMETRIC = '''\
def symmetric(edges, weights, num_nodes):
    """Return the entries of D^-1/2 A D^-1/2, whose degrees are those of sources and of targets."""
    source, target = edges
    leaving = weights.new_zeros(num_nodes).index_add(0, source, weights)
    arriving = weights.new_zeros(num_nodes).index_add(0, target, weights)
    return weights / (leaving[source] * arriving[target]).sqrt()
'''

_MEAN = '''\
def mean(group, weights, num_groups):
    """Return weights divided by their sum in each group."""
    return weights / weights.new_zeros(num_groups).index_add(0, group, weights)[group]
'''
