import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.debian.index import names_in, read_index
from hpcgnn.errors import InputError

TEXT = """\
Package: alpha
Depends: beta (>= 1),
 gamma:any | delta [amd64]
Description: first line
 a longer text
Section: net

Package: beta
Description: é
Section: contrib/doc
"""


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gz", "xz"])
def test_every_packing_gives_the_same_stanzas(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(pack(TEXT.encode()))
    alpha, beta = read_index(path)
    assert alpha == {
        "Package": "alpha",
        "Depends": "beta (>= 1), gamma:any | delta [amd64]",
        "Description": "first line",
        "Section": "net",
    }
    assert beta["Description"] == "é"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("a", [["a"]]),
        ("a (>= 1), b:any | c [i386] <!nocheck>,", [["a"], ["b", "c"]]),
        ("a(<< 2)|b", [["a", "b"]]),
        ("", []),
        (" , |", []),
    ],
)
def test_names_lose_versions_and_architectures(value: str, names: list[list[str]]) -> None:
    assert list(names_in(value)) == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no packages in it"),
        (b"\n\n\n", "no packages in it"),
        (b"just a text\n", "line 1 is not 'Field: value'"),
        (b" continued\n", "line 1 is not 'Field: value'"),
        (b"Package: a\nwrong\n", "line 2 is not"),
        (b"Section: net\nVersion: 1\n\nPackage: a\n", "ends at line 3 has no Package"),
        (b"Package: a\xff\n", "line 1 is not UTF-8"),
        (gzip.compress(TEXT.encode())[:-9], "damaged or cut off"),
        (gzip.compress(TEXT.encode())[:-9] + b"123456789", "damaged or cut off"),
        (lzma.compress(TEXT.encode())[:-9], "damaged or cut off"),
        (b"\x04\x22\x4d\x18....", "lz4 is not read; unpack it first"),
    ],
)
def test_a_malformed_index_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_index(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_index_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_index(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_index(tmp_path)
