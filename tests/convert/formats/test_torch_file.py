"""Files of torch.save: graphs of torch-geometric become stores; other pickles are refused."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from hpcgnn.convert import convert, from_torch_geometric
from hpcgnn.errors import InputError
from tests.support.graph_files import contents


def data(size: int = 4) -> Data:
    return Data(
        x=torch.arange(2.0 * size).view(size, 2),
        edge_index=torch.tensor([[0, 3, 1], [1, 0, 1]]),
        edge_attr=torch.arange(6.0).view(3, 2),
        y=torch.arange(size) % 2,
        train_mask=torch.arange(size) < 2,
    )


def hetero() -> HeteroData:
    made = HeteroData()
    made["author"].x, made["paper"].x = torch.ones(2, 3), torch.ones(3, 1)
    made["paper"].y = torch.tensor([0, 1, 1])
    made["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    made["paper", "cites", "paper"].edge_index = torch.tensor([[0], [2]])
    return made


FORMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "data": (data, lambda each: each),
    "dict": (data, lambda each: each.to_dict()),
    "data set": (data, lambda each: (each.to_dict(), None, type(each))),
    "list": (lambda: [data(), data(5)], lambda each: each),
    "hetero": (hetero, lambda each: each),
    "hetero dict": (hetero, lambda each: each.to_dict()),
}


@pytest.mark.parametrize("name", FORMS)
def test_files_become_the_stores_of_the_objects(tmp_path: Path, name: str) -> None:
    make, saved = FORMS[name]
    torch.save(saved(make()), tmp_path / "mine.pt")
    convert(tmp_path / "mine.pt", tmp_path / "mine.h5", format_name="torch-file")
    from_torch_geometric(make(), tmp_path / "same.h5")
    ours, theirs = (contents(tmp_path / each) for each in ("mine.h5", "same.h5"))
    assert ours.adjacency.keys() == theirs.adjacency.keys()
    for relation, matrix in theirs.adjacency.items():
        np.testing.assert_array_equal(ours.adjacency[relation], matrix)
    np.testing.assert_array_equal(ours.nodes.labels, theirs.nodes.labels)
    np.testing.assert_array_equal(ours.nodes.split, theirs.nodes.split)


class Calls:
    def __reduce__(self) -> Any:
        return Path.write_text, (Path("executed"), "")


def compressed(path: Path) -> None:
    torch.save(data(), path)
    with zipfile.ZipFile(path) as before:
        members = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as after:
        for name, text in members.items():
            after.writestr(name, text)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: torch.save(Calls(), path),
            r"cannot be read as a Data.*nothing in",
        ),
        (lambda path: torch.save(torch.nn.Linear(2, 2), path), "Unsupported global: GLOBAL torch"),
        (lambda path: path.write_bytes(b"PK\x03\x04 torn"), "cannot be read as a Data"),
        (lambda path: torch.save(torch.ones(3), path), "holds a Tensor; a Data, a HeteroData"),
        (
            lambda path: torch.save(
                {**data().to_dict(), "x": torch.ones(1).expand(10**12, 1)}, path
            ),
            "a tensor is larger than its storage",
        ),
        (
            lambda path: torch.save({"edge_index": torch.eye(3).to_sparse()}, path),
            "a tensor is torch.sparse_coo",
        ),
        (lambda path: torch.save({"edge_index": torch.ones(2, 3)}, path), "has no num_nodes"),
        (lambda path: torch.save({3: torch.ones(2, 3)}, path), "keys that are not strings"),
        (lambda path: torch.save((data().to_dict(), {"x": 3}, Data), path), "holds a tuple"),
        (compressed, "is compressed"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.pt")
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "mine.pt", tmp_path / "mine.h5", format_name="torch-file")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "mine.h5").exists()
