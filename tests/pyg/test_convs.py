"""Unchanged layers of torch_geometric over ranks: results and gradients of one process."""

from collections.abc import Mapping
from functools import partial

from mpi4py import MPI

import pytest
import torch
import torch_geometric.nn as geometric

from hpcgnn import InputError
from hpcgnn.comm import ProcessGrid
from hpcgnn.pyg import distribute
from hpcgnn.pyg.unsupported_layers import REFUSED
from tests.support.pyg_convs import (
    ATTR,
    CONVS,
    NORMS,
    WHEN_CALLED,
    WIDTH,
    Case,
    call,
    differences,
    doubles,
    make_problem,
)


@pytest.mark.parametrize("table", [CONVS, NORMS], ids=["convs", "norms"])
def test_layers_equal_one_process(comm: MPI.Intracomm, table: Mapping[str, Case]) -> None:
    with ProcessGrid(comm) as grid, doubles():
        problem = make_problem(grid)
        found = {
            name: differences(problem, partial(make, geometric), words)
            for name, (make, words) in table.items()
        }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_convolution_runs_or_is_refused_with_a_reason() -> None:
    there = {*geometric.conv.__all__} - {"MessagePassing"}
    runs = {name.partition(" ")[0] for name in CONVS}
    refused = {name for name in REFUSED if name in there} | WHEN_CALLED.keys()
    assert runs | refused == there
    assert not runs & refused
    assert len(runs) >= 40


def test_layers_are_refused_by_name() -> None:
    conv = geometric.GINConv(torch.nn.Linear(2, 2))
    for module, message in (
        (geometric.GPSConv(4, conv), "GPSConv is not distributed: its attention reads all nodes"),
        (geometric.SAGEConv(4, 4, aggr="lstm"), r"LSTMAggregation \(aggr_module\) is not"),
        (torch.nn.Sequential(geometric.TopKPooling(4)), r"TopKPooling \(0\) is not"),
    ):
        with pytest.raises(InputError, match=message):
            distribute(module)
    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        for name in WHEN_CALLED:
            module = distribute(getattr(geometric, name)(WIDTH, ATTR))
            with pytest.raises(InputError, match=r"torch\.mul on the sources of edges"):
                call(module, "x edges", problem.own)
