"""Small text tables for tutorials, as input of `hpcgnn convert`."""

import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcgnn.typing import GlobalIndices

NUM_PEOPLE = 1200
JOBS = ("artist", "baker", "coder", "doctor")

_FRIENDS = 5
_SAME_JOB = 0.8
_KNOWN_JOB = 0.9
_NUM_USERS, _NUM_ITEMS, _NUM_PURCHASES = 300, 60, 1800
_NUM_FILMS, _NUM_WORDS, _NUM_SPLITS = 300, 20, 10
_NUM_PLACES = 250

_SHOP = """[nodes.user]
files = ["users.csv"]
[nodes.item]
files = ["items.csv"]
[edges."user,buys,item"]
files = ["buys.csv"]
[edges."user,likes,item"]
files = ["likes.csv"]
[edges."user,knows,user"]
files = ["knows.csv"]
"""


def tables(seed: int) -> Mapping[str, bytes]:
    """Return the content of each file by its path; equal seeds give equal files.

    ``people.csv`` has people with `JOBS`, a tenth of them without a job, and ``links.tsv`` their
    acquaintances: four of five links join people with the same job, and ages differ by job.
    ``spending.csv`` is linear in a person's age and the mean age of person and acquaintances, plus
    noise. ``paid.csv`` has payments between them; ``*.ids`` are a split. ``shop`` has two node
    types and three relations, ``places`` a knowledge graph of triples in three files, ``film`` a
    Geom-GCN folder with ten splits.
    """
    draw = np.random.default_rng([seed, 7])
    files = {f"shop/{name}": text for name, text in _shop(draw).items()}
    files |= {f"places/{name}.txt": text for name, text in _triples(draw).items()}
    files |= _people(draw)
    return {name: text.encode() for name, text in files.items()} | _film(draw)


def _people(draw: np.random.Generator) -> dict[str, str]:
    job = draw.integers(0, len(JOBS), NUM_PEOPLE)
    age = np.rint(np.clip(25 + 10 * job + draw.normal(0, 9, NUM_PEOPLE), 18, 90)).astype(int)
    visits = draw.poisson(12, NUM_PEOPLE)
    source = np.repeat(np.arange(NUM_PEOPLE), _FRIENDS)
    target = _partners(draw, source, job)
    ends, others = np.append(source, target), np.append(target, source)
    mean_age = (age + np.bincount(ends, age[others], NUM_PEOPLE)) / (
        1 + np.bincount(ends, minlength=NUM_PEOPLE)
    )
    spending = 5 * age + 10 * mean_age + draw.normal(0, 20, NUM_PEOPLE)
    is_known = draw.random(NUM_PEOPLE) < _KNOWN_JOB
    name = [f"person {number}" for number in range(NUM_PEOPLE)]
    jobs = [JOBS[kind] if known else "" for kind, known in zip(job, is_known, strict=True)]
    pairs = [(name[a], name[b]) for a, b in zip(source, target, strict=True)]
    paid = draw.integers(1, 500, len(pairs)) / 10, draw.integers(1, 366, len(pairs))
    order = draw.permutation(np.flatnonzero(is_known))
    thirds = dict(zip(("train", "valid", "test"), np.array_split(order, 3), strict=True))
    return {
        "links.tsv": "".join(f"{a}\t{b}\n" for a, b in pairs),
        "people.csv": _csv("id,label,age,visits", zip(name, jobs, age, visits, strict=True)),
        "spending.csv": _csv("id,spending", zip(name, np.rint(spending).astype(int), strict=True)),
        "paid.csv": _csv(
            "from,to,amount,day",
            ((*pair, *payment) for pair, *payment in zip(pairs, *paid, strict=True)),
        ),
        **{f"{role}.ids": "".join(f"{name[i]}\n" for i in ids) for role, ids in thirds.items()},
    }


def _partners(
    draw: np.random.Generator, source: GlobalIndices, kind: GlobalIndices
) -> GlobalIndices:
    """Return a partner for each source, usually one of the same kind."""
    of_kind = [np.flatnonzero(kind == number) for number in range(kind.max() + 1)]
    same_kind = [draw.choice(of_kind[number]) for number in kind[source]]
    any_kind = draw.integers(0, len(kind), len(source))
    return np.where(draw.random(len(source)) < _SAME_JOB, same_kind, any_kind)


def _shop(draw: np.random.Generator) -> dict[str, str]:
    taste = draw.integers(0, 2, _NUM_USERS)
    users = [
        (f"u{number}", ("saver", "spender")[kind], draw.integers(18, 80))
        for number, kind in enumerate(taste)
    ]
    items = [
        (f"i{number}", f"{20 + 60 * (number % 2) + draw.random() * 20:.2f}")
        for number in range(_NUM_ITEMS)
    ]
    files = {
        "graph.toml": _SHOP,
        "users.csv": _csv("id,label,age", users),
        "items.csv": _csv("id,price", items),
    }
    for name in ("buys", "likes"):
        buyer = draw.integers(0, _NUM_USERS, _NUM_PURCHASES)
        liked = draw.random(_NUM_PURCHASES) < _SAME_JOB
        parity = np.where(liked, taste[buyer], 1 - taste[buyer])
        bought = 2 * draw.integers(0, _NUM_ITEMS // 2, _NUM_PURCHASES) + parity
        pairs = zip(buyer, bought, strict=True)
        files[f"{name}.csv"] = _csv("src,dst", ((f"u{a}", f"i{b}") for a, b in pairs))
    friends = draw.integers(0, _NUM_USERS, (_NUM_USERS, 2))
    files["knows.csv"] = _csv("src,dst", ((f"u{a}", f"u{b}") for a, b in friends))
    return files


def _triples(draw: np.random.Generator) -> dict[str, str]:
    """Return triples of villages in districts in regions, and of villages that share a border."""
    lines = [f"village {i}\tlies in\tdistrict {i % 25}\n" for i in range(_NUM_PLACES)]
    lines += [f"district {i}\tlies in\tregion {i % 5}\n" for i in range(25)]
    for village in range(_NUM_PLACES):
        # Villages of one district border each other.
        neighbours = (village + 25 * draw.integers(1, _NUM_PLACES // 25, 3)) % _NUM_PLACES
        lines += [f"village {village}\tborders\tvillage {i}\n" for i in sorted(set(neighbours))]
    order = draw.permutation(len(lines))
    parts = np.split(order, [len(lines) * 8 // 10, len(lines) * 9 // 10])
    return {
        role: "".join(lines[i] for i in part)
        for role, part in zip(("train", "valid", "test"), parts, strict=True)
    }


def _film(draw: np.random.Generator) -> dict[str, bytes]:
    genre = draw.integers(0, 3, _NUM_FILMS)
    source = np.repeat(np.arange(_NUM_FILMS), 4)
    target = _partners(draw, source, genre)
    words = draw.random((_NUM_FILMS, _NUM_WORDS)) < 0.1
    words[np.arange(_NUM_FILMS), genre] |= draw.random(_NUM_FILMS) < 0.5
    edges = "".join(f"{a}\t{b}\n" for a, b in zip(source, target, strict=True))
    rows = "".join(
        f"{film}\t{','.join(str(int(word)) for word in row)}\t{kind}\n"
        for film, (row, kind) in enumerate(zip(words, genre, strict=True))
    )
    files = {
        "film/out1_graph_edges.txt": f"node_id\tnode_id\n{edges}".encode(),
        "film/out1_node_feature_label.txt": f"node_id\tfeature\tlabel\n{rows}".encode(),
    }
    for number in range(_NUM_SPLITS):
        role = draw.choice(3, _NUM_FILMS, p=(0.6, 0.2, 0.2))
        masks = {f"{name}_mask": role == i for i, name in enumerate(("train", "val", "test"))}
        content = io.BytesIO()
        np.savez(content, **masks)
        files[f"film/film_split_0.6_0.2_{number}.npz"] = content.getvalue()
    return files


def _csv(header: str, rows: Iterable[Sequence[object]]) -> str:
    return "".join([f"{header}\n", *(f"{','.join(map(str, row))}\n" for row in rows)])
