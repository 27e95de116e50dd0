"""Graphs in memory, divided among ranks: scripts for one process, with the patch of the page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCN, SAGEConv

import hpcgnn
from hpcgnn import InputError, library
from hpcgnn.comm import CollectiveInputError
from tests.support.pyg_convs import doubles

ROOT = Path(__file__).parents[2]


def patched(name: str) -> Callable[..., list[float]]:
    """Return the main function of an example with the patch of the page."""
    source = (ROOT / "examples" / "pyg" / f"{name}.py").read_text()
    block = re.search(
        r"```text\n(\+import.*?)```", (ROOT / "docs" / "pyg.md").read_text(), re.DOTALL
    )
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) <= 10
    source = source.replace("import torch\n", f"{lines[0][1:]}\nimport torch\n", 1)
    for before, after in zip(lines[1::2], lines[2::2], strict=True):
        assert (before[0], after[0], source.count(before[1:])) == ("-", "+", 1)
        source = source.replace(before[1:], after[1:])
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    main: Callable[..., list[float]] = space["main"]
    return main


@pytest.mark.parametrize("name", ["gat", "gine", "rgcn"])
def test_patched_scripts_learn_what_one_process_learns(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    source = (ROOT / "examples" / "pyg" / f"{name}.py").read_text()
    plain: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), plain)
    runs: dict[float, list[Any]] = {0.0: [], 0.5: []}
    with doubles():
        # Only the first rank has the other runs to compare with.
        for each in (comm, MPI.COMM_SELF)[: 2 - (comm.rank > 0)]:
            monkeypatch.setattr(library, "all_of_launcher", lambda each=each: each)
            for dropout, found in runs.items():
                found.append((patched(name)(4, dropout), capsys.readouterr().out))
        if comm.rank == 0:
            runs[0.0].append((plain["main"](4, 0.0), capsys.readouterr().out))
    comm.Barrier()
    for found in runs.values():
        losses, printed = zip(*found, strict=True)
        for other in losses[1:]:
            np.testing.assert_allclose(losses[0], other, rtol=1e-9)
        assert len({each.splitlines()[-1] for each in printed}) == 1
    assert runs[0.0][0] != runs[0.5][0]


def make_data(num_nodes: int = 11, num_edges: int = 40) -> Data:
    rng = torch.Generator().manual_seed(3)
    ends = torch.randint(num_nodes, (2, num_edges), generator=rng)
    return Data(
        x=torch.randn(num_nodes, 3, generator=rng),
        edge_index=ends,
        edge_weight=torch.arange(num_edges) / 7,
        y=torch.arange(num_nodes),
        few=torch.arange(num_nodes) == 4,
        scale=torch.tensor(2.0),
        name="graph",
    )


@pytest.mark.parametrize("sizes", [(11, 40), (11, 0), (2, 5), (40, 40)])
def test_shares_make_up_the_graph(comm: MPI.Intracomm, sizes: tuple[int, int]) -> None:
    whole = make_data(*sizes)
    data = hpcgnn.divide(whole, comm)
    assert type(data) is Data
    assert whole.edge_index.shape == (2, sizes[1])
    for key in ("x", "y", "few", "n_id"):
        assert len(data[key]) == data.num_nodes
    np.testing.assert_array_equal(data.x, whole.x[data.n_id])
    np.testing.assert_array_equal(data.edge_weight, whole.edge_weight[data.e_id])
    share = data.edge_index.share
    ends = np.stack([share.ids[share.numbers[0]], share.node_ids[share.numbers[1]]])
    np.testing.assert_array_equal(ends, whole.edge_index[:, data.e_id])
    for key, count in (("n_id", sizes[0]), ("e_id", sizes[1])):
        every = np.concatenate(comm.allgather(data[key].numpy()))
        np.testing.assert_array_equal(np.sort(every), np.arange(count))
    assert (data.scale, data.name) == (2.0, "graph")


def test_mean_of_a_loss_that_one_rank_has_rows_of(comm: MPI.Intracomm) -> None:
    whole = make_data()
    with doubles():
        whole.x, whole.edge_weight = whole.x.double(), whole.edge_weight.double()
        results = []
        for data in (whole, hpcgnn.divide(whole, comm)):
            torch.manual_seed(1)
            model = GCN(3, 4, 2, 11)
            model = model if data is whole else hpcgnn.distribute(model)
            rows = data.few if data is whole else data.few.nonzero()[:, 0]
            out = model(data.x, data.edge_index, data.edge_weight)
            loss = functional.cross_entropy(out[rows], data.y[rows])
            if data is whole:
                loss.backward()
            else:
                loss = hpcgnn.backward(loss, rows, model)
            results.append((float(loss.detach()), [each.grad for each in model.parameters()]))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-12)
    for theirs, ours in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-14)
    # NaN is no value of ranks that have rows.
    assert hpcgnn.mean(torch.full_like(loss.detach(), torch.nan), rows, model).isnan()
    with pytest.raises(InputError, match="rows: no rank has any"):
        hpcgnn.mean(loss, data.few[:0], model)
    with pytest.raises(InputError, match="none of the modules has run over ranks"):
        hpcgnn.mean(loss, data.few, GCN(3, 4, 2))


class Centred(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.layer = inner, SAGEConv(3, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = x if self.inner is None else self.inner(x, edges)
        rows: Tensor = self.layer(x, edges)
        return rows - rows.mean(0)


@pytest.mark.parametrize("kernels", [False, True])
def test_modules_are_distributed_twice_and_in_each_other(
    comm: MPI.Intracomm, kernels: bool
) -> None:
    with doubles():
        whole = make_data()
        whole.x = whole.x.double()
        data = hpcgnn.divide(whole, comm)
        torch.manual_seed(1)
        inner = Centred()
        outer = Centred(inner)
        expected = outer(whole.x, whole.edge_index)[data.n_id]
        for module in (inner, outer, outer):
            hpcgnn.distribute(module, kernels=kernels)
        found = outer(data.x, data.edge_index)
    torch.testing.assert_close(found, expected)


def test_what_cannot_be_divided_is_said(comm: MPI.Intracomm) -> None:
    for change, message in (
        ({"edge_index": None}, r"has no edge_index \(2, E\)"),
        ({"edge_index": torch.tensor([[0], [11]])}, "numbers outside of its 11 nodes"),
        ({"tree_index": torch.zeros(2, 4)}, "tree_index has numbers of nodes"),
        ({"words": ["a"] * 11}, "words is a list; make it a tensor"),
    ):
        data = make_data()
        for key, value in change.items():
            data[key] = value
        with pytest.raises(InputError, match=message):
            hpcgnn.divide(data, comm)
    if comm.size > 1:
        data = make_data()
        data.edge_index = data.edge_index[:, comm.rank :]
        del data.edge_weight
        with pytest.raises(CollectiveInputError, match="differ between ranks"):
            hpcgnn.divide(data, comm)
