"""The objects that the restricted unpickler admits; nothing that it refuses is executed."""

import collections
import contextlib
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse

from hpcgnn.convert.read.pickles import (
    load_array,
    load_lists,
    load_matrix,
)
from hpcgnn.errors import InputError
from tests.support.graph_files import python2_pickle

DTYPES = ("?", "i1", "<i4", ">i4", "<i8", "u2", "<f2", "<f4", ">f8")


class Call:
    """An object whose unpickling calls `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "ind.bad.graph"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5, "python 2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back(tmp_path: Path, protocol: int | str, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for value in (array, np.asfortranarray(array), array[:0]):
        data = python2_pickle(value) if protocol == "python 2" else pickle.dumps(value, protocol)
        if protocol == 5:
            # Protocol 5 passes arrays in a way that Planetoid files never use.
            with pytest.raises(InputError, match="_frombuffer"):
                load_array(written(tmp_path, data))
            continue
        found = load_array(written(tmp_path, data))
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("dump", [python2_pickle, lambda value: pickle.dumps(value, 2)])
def test_matrices_and_lists_come_back(tmp_path: Path, dump: Any) -> None:
    matrix = scipy.sparse.random_array((7, 5), density=0.3, rng=np.random.default_rng(61))
    path = written(tmp_path, dump(scipy.sparse.csr_matrix(matrix)))
    np.testing.assert_array_equal(load_matrix(path).toarray(), matrix.toarray())
    lists = collections.defaultdict(list, {0: [1, 2], 5: []})
    assert load_lists(written(tmp_path, dump(lists))) == {0: [1, 2], 5: []}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Call(os.system, "touch {mark}"), "system"),
        (Call(eval, "open('{mark}', 'w')"), "eval"),
        (Call(exec, "open('{mark}', 'w')"), "exec"),
        (Call(subprocess.call, ["touch", "{mark}"]), "call"),
        (Call(Path.touch, Path("{mark}")), "getattr|touch|Path"),
        (Call(getattr, "", "join"), "getattr"),
        (Call(open, "{mark}", "w"), "open"),
        (Call(np.save, "{mark}", [1]), "save"),
    ],
)
def test_nothing_is_executed(tmp_path: Path, value: Call, name: str) -> None:
    mark = tmp_path / "executed"
    arguments = [_filled(argument, mark) for argument in value.call[1]]
    for protocol in range(6):
        for wrapped in (
            Call(value.call[0], *arguments),
            {0: [Call(value.call[0], *arguments)]},
        ):
            path = written(tmp_path, pickle.dumps(wrapped, protocol))
            with pytest.raises(InputError, match=name) as caught:
                load_lists(path)
            assert str(path) in str(caught.value)
            assert "nothing was executed" in str(caught.value)
    assert not mark.exists()


def _filled(argument: Any, mark: Path) -> Any:
    if isinstance(argument, list):
        return [_filled(each, mark) for each in argument]
    if isinstance(argument, str | Path):
        return type(argument)(str(argument).format(mark=mark))
    return argument


@pytest.mark.parametrize(
    "program",
    [
        # BUILD on an admitted class instead of on an instance of it.
        b"cscipy.sparse.csr\ncsr_matrix\n}S'build'\nI1\nsb.",
        b"cscipy.sparse.csr\ncsr_matrix\n(N}S'build'\nI1\nstb.",
        b"c_codecs\nencode\n(N}S'__new__'\nI1\nstb.",
        b"cnumpy\ndtype\n(N}S'build'\nI1\nstb.",
        # Misuse of admitted names.
        b"c__builtin__\nlist\n(tR.",
        b"cnumpy\nndarray\n(tR.",
        b"c_codecs\nencode\n(S'zip'\nS'rot13'\ntR.",
        b"c_codecs\nencode\n(S'zip'\nS'zlib'\ntR.",
        # Dotted names, persistent ids, the extension registry.
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.tobytes\x93.".replace(b"\x0c", b"\x0f"),
        b"Pexecute\n.",
        b"\x82\x01.",
        # Not a pickle, an empty file, no end.
        b"hello",
        b"",
        b"}",
        b"(lp0\n",
    ],
)
def test_crafted_programs_are_refused_and_change_nothing(tmp_path: Path, program: bytes) -> None:
    path = written(tmp_path, program)
    for load in (load_lists, load_array, load_matrix):
        with pytest.raises(InputError, match=r"ind\.bad\.graph"):
            load(path)
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    np.testing.assert_array_equal(
        load_matrix(written(tmp_path, pickle.dumps(matrix, 2))).toarray(), matrix.toarray()
    )


@hypothesis.given(data=st.data())
def test_damaged_pickles_are_one_error(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(np.arange(5), 2))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = written(tmp_path, bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    with contextlib.suppress(InputError):
        assert load_array(path).dtype.kind in "biuf"


@pytest.mark.parametrize("value", [np.array([None]), np.array(["a"]), [1], {1: 2}, None])
def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"ind\.bad\.graph"):
        load_array(written(tmp_path, pickle.dumps(value, 2)))


@pytest.mark.parametrize("value", [{1: 2}, {"a": [1]}, {1: ["a"]}, {1: [1.5]}, [1], {1: [True]}])
def test_what_is_no_dict_of_lists_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"ind\.bad\.graph"):
        load_lists(written(tmp_path, pickle.dumps(value, 2)))
