"""Damaged .npy and .npz files, and reading them in pieces."""

import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from hpcgnn.convert.read import npy
from hpcgnn.convert.read.npy import (
    Npz,
    open_npy,
)
from hpcgnn.errors import InputError
from tests.support.graph_files import convert_to


@pytest.mark.parametrize("keep", [0, 40, 0.5, 0.999])
@pytest.mark.parametrize("saver", [np.savez, np.savez_compressed])
def test_truncated_files_are_named(tmp_path: Path, keep: float, saver: Any) -> None:
    path = tmp_path / "graph.npz"
    saver(path, src=np.arange(9000), dst=np.arange(9000))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    with pytest.raises(InputError, match=r"graph\.npz: the compressed file is truncated or damag"):
        convert_to(tmp_path / "out.h5", path, "npz")


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    for saver in (np.savez, np.savez_compressed):
        path = tmp_path / "graph.npz"
        saver(path, edge_index=np.tile(np.arange(9000), (2, 1)))
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
        with pytest.raises(InputError, match=r"graph\.npz"):
            convert_to(tmp_path / "out.h5", path, "npz")


def test_a_zip_without_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no arrays")
    with pytest.raises(InputError, match=r"holds no \.npy arrays"):
        Npz(path)


def test_a_short_npy_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100))
    whole = path.read_bytes()
    for data, message in (
        (whole[:-3], "is truncated"),
        (whole + b"more", "longer than its header"),
        (whole[:20], "is not a valid .npy array"),
        (b"", "is not a valid .npy array"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            open_npy(path).load()


def test_columns_larger_than_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(np.ones((50, 3))))
    with pytest.raises(InputError, match="stored column by column and larger than --memory"):
        list(open_npy(path).rows(7, 500))
    assert [len(block) for block in open_npy(path).rows(20, 5000)] == [20, 20, 10]


def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_PIECE_VALUES", 7)
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000).reshape(2, 500))
    array = Npz(path).need("x")
    np.testing.assert_array_equal(array.load(), np.arange(1000).reshape(2, 500))
    np.testing.assert_array_equal(
        np.concatenate(list(array.flat(500, 1000, 33))), np.arange(500, 1000)
    )


def test_steps_asked_in_order_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(side_effect=npy._open)
    path = tmp_path / "x.npz"
    series = np.arange(24).reshape(4, 3, 2)
    np.savez(path, x=series)
    read = Npz(path).need("x").steps()
    monkeypatch.setattr(npy, "_open", opened)
    for passes, steps in enumerate(([0, 0, 1, 3, 3], [2, 2, 3], [2], [0]), 1):
        for step in steps:
            np.testing.assert_array_equal(read(step, 1, 3), series[step, 1:3])
        assert opened.call_count == passes


def test_the_second_version_of_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(6).reshape(3, 2), version=(2, 0))
    assert open_npy(path).load().tolist() == [[0, 1], [2, 3], [4, 5]]


def header(text: bytes) -> bytes:
    """Return an .npy file of version 1 that has this header and no data."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HEADERS = {
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,": "is not a valid .npy array",
    b"(" * 9000: "is not a valid .npy array",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (" + str(2**60).encode() + b",), }": (
        "is truncated"
    ),
}


@pytest.mark.parametrize("text", HEADERS)
def test_hostile_headers_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(header(text))
    with pytest.raises(InputError, match=rf"a\.npy {HEADERS[text]}"):
        open_npy(path).load()
    archive = tmp_path / "a.npz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("src.npy", header(text))
    with pytest.raises(InputError, match=rf"a\.npz: src {HEADERS[text]}"):
        Npz(archive).need("src").load()
