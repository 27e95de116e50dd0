"""Long rollouts do not depend on the number of ranks: equal bits if reproducible, else to 1e-10."""

from itertools import product
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.storage import Rollout
from tests.support.series import field_config, planted, write_series
from tests.support.training import predict_with, train

STEPS = 100
EXACT = ("train.dtype=float32", "train.reproducible=true")
MODELS = {
    "gcn": ("fields.predict=next", "model.num_layers=2", "fields.history=2"),
    "sage": ("model.name=sage", "fields.predict=difference", "fields.unroll=2", "fields.batch=2"),
    "gat": ("model.name=gat", "model.heads=2", "fields.fixed=feature:1", "fields.noise=0.01"),
}
QUICK = (("gcn", "bits"), ("gat", "numbers"))


def frames(path: Path) -> np.ndarray:
    """Return the steps (K, n, F) of a rollout of u, which changes and stays finite."""
    with Rollout(path) as rollout:
        found = np.stack([rollout.read("u", step) for step in range(len(rollout.times))])
    assert len(found) == STEPS
    assert np.isfinite(found).all()
    assert (found[0] != found[1]).any()
    return found


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(MODELS, ("bits", "numbers"))
    ],
)
def test_weights_and_100_steps_are_those_of_one_process(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    name: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 9 parts, one of them empty, so that 8 ranks have unequal shares.
    store = write_series(comm, comm_tmp_path, planted(), parts=9)
    words = (*MODELS[name], "train.epochs=3", "fields.horizons=[1]")
    words += EXACT if kind == "bits" else ("exchange.method=joint",)
    where = ("--rollout", STEPS, "--from", 3)
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    predict_with(comm, run, monkeypatch, capsys)(comm_tmp_path / "all.h5", *where)
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        predict_with(MPI.COMM_SELF, alone, monkeypatch, capsys)(comm_tmp_path / "one.h5", *where)
        one, every = frames(comm_tmp_path / "one.h5"), frames(comm_tmp_path / "all.h5")
        if kind == "bits":
            tensors = run.tensors()
            for key, tensor in alone.tensors().items():
                np.testing.assert_array_equal(tensors[key], tensor, err_msg=key)
            np.testing.assert_array_equal(every, one)
        else:
            assert one.dtype == np.float64
            np.testing.assert_allclose(every, one, rtol=0, atol=1e-10 * np.abs(one).max())
    comm.Barrier()
