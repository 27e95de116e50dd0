"""The tables of the tutorials: equal for equal seeds, and true to their descriptions."""

import csv
import io

import numpy as np

from hpcgnn.gallery import tables
from hpcgnn.gallery.tables import JOBS, NUM_PEOPLE


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_a_seed_gives_the_same_files() -> None:
    files = tables(3)
    assert files == tables(3)
    assert files["links.tsv"] != tables(4)["links.tsv"]
    assert {"people.csv", "shop/graph.toml", "places/test.txt", "film/film_split_0.6_0.2_9.npz"} < {
        *files
    }


def test_a_person_whom_nobody_knows() -> None:
    # With this seed, no other person links to the last one.
    assert tables(156)["spending.csv"].count(b"\n") == NUM_PEOPLE + 1


def test_most_links_join_people_of_one_job_and_spending_follows_ages() -> None:
    files = tables(0)
    people = {row["id"]: row for row in rows_of(files["people.csv"])}
    assert len(people) == NUM_PEOPLE
    assert {row["label"] for row in people.values()} == {*JOBS, ""}
    links = [line.split("\t") for line in files["links.tsv"].decode().splitlines()]
    known = [(people[a]["label"], people[b]["label"]) for a, b in links]
    alike = [a == b for a, b in known if a and b]
    assert 0.8 < sum(alike) / len(alike) < 0.9
    age = [int(people[row["id"]]["age"]) for row in rows_of(files["spending.csv"])]
    spending = [int(row["spending"]) for row in rows_of(files["spending.csv"])]
    assert np.corrcoef(age, spending)[0, 1] > 0.8


def test_roles_are_disjoint_and_of_people_with_a_job() -> None:
    files = tables(0)
    labels = {row["id"]: row["label"] for row in rows_of(files["people.csv"])}
    roles = [files[f"{role}.ids"].decode().splitlines() for role in ("train", "valid", "test")]
    named = [name for role in roles for name in role]
    assert len(named) == len(set(named)) == sum(map(bool, labels.values()))
    assert all(labels[name] for name in named)
    triples = [set(files[f"places/{role}.txt"].splitlines()) for role in ("train", "test")]
    assert triples[0] & triples[1] == set()
