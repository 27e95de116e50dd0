"""Matrix Market files compared with SciPy's reader, and refused files."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hpcgnn.convert import detect
from hpcgnn.errors import InputError
from tests.support.graph_files import convert_to

BANNER = "%%MatrixMarket matrix coordinate"


def random_matrix(symmetric: bool) -> Any:
    matrix = scipy.sparse.random_array((23, 23), density=0.1, rng=np.random.default_rng(71)).tocsr()
    return matrix + matrix.T if symmetric else matrix


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("packed", [True, False])
def test_files_of_scipy(tmp_path: Path, field: str, symmetry: str, packed: bool) -> None:
    matrix = random_matrix(symmetry == "symmetric")
    if field != "real":
        matrix.data = np.ceil(matrix.data * 5).astype(np.int64)
    path = tmp_path / "graph.mtx"
    scipy.io.mmwrite(path, matrix, field=field, symmetry=symmetry, comment="made\nhere")
    expected = scipy.io.mmread(path).toarray().T.astype(np.float32)
    if packed:
        path = path.rename(tmp_path / "graph.mtx.gz")
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert detect(path)[0] == "matrix-market"
    found = convert_to(tmp_path / "out.h5", path, "matrix-market")
    np.testing.assert_array_equal(found.matrix, expected)
    assert found.store.undirected == (symmetry == "symmetric")
    assert found.store.weighted("") == (field != "pattern")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is no Matrix Market banner"),
        ("1 2\n", "line 1 is no Matrix Market banner"),
        ("%%MatrixMarket matrix array real general\n2 2\n", "line 1: 'array' matrices are not"),
        (f"{BANNER} complex general\n", "line 1: 'complex' matrices are not read"),
        (f"{BANNER} real skew-symmetric\n", "line 1: 'skew-symmetric' matrices are not read"),
        (f"{BANNER} pattern general\n%\n", "holds nothing but comments"),
        (f"{BANNER} pattern general\n2 2\n", "line 2 must hold rows, columns and entries"),
        (f"{BANNER} pattern general\n2 3 1\n1 1\n", "line 2: the matrix is 2 by 3"),
        (f"{BANNER} pattern general\n2 2 {'1' * 5000}\n1 1\n", "line 2 must hold rows, columns"),
        (f"{BANNER} pattern general\n0 0 0\n", "line 2: the matrix is 0 by 0"),
        (f"{BANNER} pattern general\n2 2 0\n", "the graph has no edges"),
        (f"{BANNER} pattern general\n2 2 2\n1 1\n", "holds 1 entries where line 2 promises 2"),
        (f"{BANNER} pattern general\n2 2 1\n1 1\n2 1\n", "holds 2 entries where line 2"),
        (f"{BANNER} pattern general\n2 2 1\n\n0 1\n", r"line 4: entry \(0, 1\) is outside 1\.\.2"),
        (f"{BANNER} pattern general\n2 2 1\n1 3\n", r"line 3: entry \(1, 3\) is outside 1\.\.2"),
        (f"{BANNER} pattern general\n2 2 1\n1 1 4\n", "line 3 has 3 fields where 2 are expected"),
        (f"{BANNER} real general\n2 2 1\n1 1\n", "line 3 has 2 fields where 3 are expected"),
        (f"{BANNER} real general\n2 2 1\n1 1 nan\n", "line 3: weight nan is not a finite"),
        (f"{BANNER} real general\n2 2 1\n1 1 a\n", "line 3, column 3 holds 'a' where a number"),
        (f"{BANNER} pattern general\n{10**30} {10**30} 1\n1 1\n", r"graph\.mtx: 1000+ nodes are"),
    ],
)
def test_faulty_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "graph.mtx"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        convert_to(tmp_path / "out.h5", path, "matrix-market")
    assert str(path) in str(caught.value)
