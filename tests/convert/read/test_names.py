"""Tables of names compared with sets and sorted lists, in memory and on disk."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from hpcgnn.convert.read import names
from hpcgnn.convert.read.names import NameSurvey, NameTable, hash_texts
from hpcgnn.errors import InputError

NAMES = st.binary(min_size=1, max_size=40)
COLUMNS = st.lists(st.lists(NAMES, max_size=30), min_size=1, max_size=6)


def table_of(columns: list[list[bytes]], memory: int) -> NameTable:
    survey = NameSurvey(memory)
    for column in columns:
        survey.add(pa.array(column, pa.binary()))
    return survey.finish()


def listed(table: NameTable) -> list[bytes]:
    return [
        data[low:high].tobytes()
        for offsets, data in table.blocks()
        for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    columns=COLUMNS,
    asked=st.lists(NAMES, max_size=9),
    memory=st.sampled_from([64, 800, 3000, 1 << 30]),
)
def test_names_are_sorted_and_found(
    columns: list[list[bytes]], asked: list[bytes], memory: int
) -> None:
    table = table_of(columns, memory)
    expected = sorted({name for column in columns for name in column})
    assert listed(table) == expected
    assert len(table) == len(expected)
    place = {name: i for i, name in enumerate(expected)}
    for texts in [*columns, asked, []]:
        found = table.positions(pa.array(texts, pa.binary()))
        assert found.tolist() == [place.get(text, -1) for text in texts]


def test_names_that_end_in_a_zero_byte_are_others() -> None:
    texts = [b"\xec", b"\xef\x00", b"a", b"a\x00", b"b\x00", b"12345678", b"12345678\x00"]
    assert listed(table_of([texts], 64)) == sorted(texts)
    assert table_of([texts[:1]], 64).positions(pa.array(texts, pa.binary())).tolist()[1] == -1


def test_a_hash_does_not_depend_on_other_texts() -> None:
    texts = [b"a" * length for length in (0, 1, 7, 8, 9, 63, 64, 65, 500)]
    together = hash_texts(pa.array([b"x", *texts], pa.binary())[1:])
    alone = [hash_texts(pa.array([text], pa.binary())) for text in texts]
    for which in (0, 1):
        assert together[which].tolist() == [int(each[which][0]) for each in alone]
        assert len(set(together[which].tolist())) == len(texts)


@pytest.mark.parametrize("memory", [64, 1 << 30])
def test_two_names_with_one_hash_are_refused(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    real = names.hash_texts

    def weak(texts: Any) -> Any:
        first, second = real(texts)
        return first % np.uint64(3), second

    monkeypatch.setattr(names, "hash_texts", weak)
    column = [f"name {i}".encode() for i in range(9)]
    with pytest.raises(InputError, match="two names of nodes have the same hash"):
        table_of([column], memory).positions(pa.array(column, pa.binary()))
