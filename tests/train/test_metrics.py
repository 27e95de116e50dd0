"""Metrics over ranks equal those computed from all nodes in one process."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import ExactArithmetic, computing_with
from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap
from hpcgnn.storage import Split
from hpcgnn.train import label_metrics, multi_label
from hpcgnn.train.curves import LogitBins, areas, curves_by_split
from hpcgnn.train.evaluation import SPLITS
from hpcgnn.train.label_metrics import evaluate_single_label
from hpcgnn.train.multi_label import LabelRule, evaluate_multi_label
from tests.support.matrices import uneven_starts
from tests.support.training import (
    NUM_CLASSES,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

NUM_NODES = 53


def f1(truth: np.ndarray, guess: np.ndarray) -> tuple[float, float]:
    """Return micro and macro F1 by counting one class after the other."""
    scores, hits, errors = [], 0, 0
    for kind in range(truth.shape[1]):
        both = int((truth[:, kind] & guess[:, kind]).sum())
        wrong = int((truth[:, kind] ^ guess[:, kind]).sum())
        scores.append(2 * both / (2 * both + wrong) if both + wrong else 0.0)
        hits, errors = hits + both, errors + wrong
    return 2 * hits / (2 * hits + errors) if hits + errors else 0.0, float(np.mean(scores))


def curves(truth: np.ndarray, logits: np.ndarray) -> tuple[float, float]:
    """Return average precision and the area under the curve, pair by pair."""
    precisions = [truth[logits >= each].mean() for each in logits[truth]]
    wins = logits[truth][:, None] - logits[~truth][None, :]
    return float(np.mean(precisions)), float(((wins > 0) + (wins == 0) / 2).mean())


def exact(logits: np.ndarray) -> np.ndarray:
    """Round logits below 4 such that any two of them have bins of their own."""
    return np.round(16 * logits) / 16


def all_curves(logits: np.ndarray, truth: np.ndarray) -> tuple[LogitBins, np.ndarray]:
    """Return the curve of one split on one rank."""
    pieces = [(0, torch.from_numpy(logits), torch.from_numpy(truth))]
    with ProcessGrid(MPI.COMM_SELF) as grid:
        bins, by_split = curves_by_split(grid, 1, lambda: pieces)
    return bins, by_split[0]


@pytest.mark.parametrize("middle", [0.0, 1e-9, -4.6, 1e5, 1e30])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_bins_keep_the_order_of_logits(middle: float, spread: float) -> None:
    rng = np.random.default_rng(1)
    logits = (middle + spread * max(abs(middle), 1) * rng.standard_cauchy(size=3000)).astype(
        np.float32
    )
    logits[:6] = 0, -0.0, 3e38, -3e38, 1e-40, -1e-40
    logits = np.sort(logits)
    bins, total = all_curves(logits, np.zeros(3000))
    single = bins.numbers(torch.from_numpy(logits)).numpy()
    assert (np.diff(single) >= 0).all()
    assert (total[0] == np.bincount(single, minlength=len(bins))).all()
    assert (bins.lowest[single] <= logits).all()
    assert (np.append(bins.lowest[1:], np.inf)[single] > logits).all()
    # Most are told apart, errors of rounding are not.
    assert 1000 < len(np.unique(single)) <= len(np.unique(logits))
    beside = bins.numbers(torch.from_numpy(logits * np.float32(1 + 2.0**-21))).numpy()
    assert (np.abs(beside - single)[6:-6] < 2).all()


@pytest.mark.parametrize("size", [1.0, 60.0, 1e5])
def test_large_logits_have_curves_too(size: float) -> None:
    # Features that are not scaled make logits like these.
    rng = np.random.default_rng(4)
    truth = rng.random(4000) < 0.2
    logits = size * (rng.normal(size=4000) + truth - 0.5)
    found = areas(all_curves(logits, truth)[1])
    auc = np.greater.outer(logits[truth], logits[~truth]).mean()
    order = np.argsort(-logits)
    precision = (truth[order].cumsum() / np.arange(1, 4001))[truth[order]].mean()
    assert found == pytest.approx({"average_precision": precision, "auc": auc}, abs=1e-4)


@pytest.mark.parametrize("middle", [0.0, -4.6, 700.0])
def test_two_classes_of_almost_equal_logits_have_curves(comm: MPI.Intracomm, middle: float) -> None:
    # As after few steps, where one class is rare.
    rng = np.random.default_rng(3)
    labels = (rng.random(6000) < 0.1).astype(np.int64)
    difference = middle + 1e-3 * max(abs(middle), 1) * (rng.normal(size=6000) + labels)
    logits = torch.from_numpy(np.stack([0 * difference, difference], axis=1).astype(np.float32))
    split = torch.full((6000,), int(Split.TEST), dtype=torch.uint8)
    mine = slice(6000 * comm.rank // comm.size, 6000 * (comm.rank + 1) // comm.size)
    with ProcessGrid(comm) as grid:
        found = evaluate_single_label(
            grid, logits[mine], torch.from_numpy(labels)[mine], split[mine]
        )
    precision, auc = curves(labels > 0, logits[:, 1].numpy())
    assert found.values["test_auc"] == pytest.approx(auc, abs=1e-3)
    assert found.values["test_average_precision"] == pytest.approx(precision, abs=5e-3)


def test_many_labels_of_almost_equal_logits_have_curves(comm: MPI.Intracomm) -> None:
    # As after few steps, where all labels are rare.
    rng = np.random.default_rng(3)
    truth = rng.random((2000, 4)) < 0.05
    logits = (-4.6 + 2e-3 * (rng.normal(size=truth.shape) + truth)).astype(np.float32)
    split = np.full(2000, int(Split.TEST), np.uint8)
    mine = slice(2000 * comm.rank // comm.size, 2000 * (comm.rank + 1) // comm.size)
    with ProcessGrid(comm) as grid:
        arrays = (logits[mine], truth[mine].astype(np.float32), split[mine])
        found = evaluate_multi_label(grid, *map(torch.from_numpy, arrays))
    precision, auc = curves(truth, logits)
    assert auc > 0.7
    assert found.values["test_auc"] == pytest.approx(auc, abs=1e-3)
    assert found.values["test_average_precision"] == pytest.approx(precision, abs=5e-3)


def test_rare_labels_decide_on_average_precision() -> None:
    rng = np.random.default_rng(4)
    truth = rng.random(300_000) < 5e-4
    logits = (rng.normal(size=truth.shape) + 4 * truth).astype(np.float32)
    precision, auc = curves(truth, logits)
    found = areas(all_curves(logits, truth.astype(np.int64))[1])
    assert found["average_precision"] == pytest.approx(precision, abs=5e-4)
    assert found["auc"] == pytest.approx(auc, abs=1e-5)


def test_a_threshold_is_below_logits_of_zero() -> None:
    logits, truth = np.zeros(5), np.array([1, 0, 0, 0, 0])
    bins, curve = all_curves(logits, truth)
    rule = LabelRule(bins.best_threshold(curve))
    assert rule.predicted(torch.from_numpy(logits)).all()


def test_infinite_logits_have_bins() -> None:
    logits = np.array([np.inf, np.inf, -np.inf, 1.0, np.nan])
    bins, curve = all_curves(logits, np.array([1, 0, 1, 0, 0]))
    assert (bins.lowest[1:] >= bins.lowest[:-1]).all()
    assert 0 < bins.best_threshold(curve) < 1
    numbers = bins.numbers(torch.from_numpy(logits))
    assert numbers[2] < numbers[3] < numbers[0] == numbers[1] < numbers[4]


def test_thresholds_have_probabilities_below_one() -> None:
    logits = np.array([90.0, 80.0, 50.0, -1000.0])
    bins, curve = all_curves(logits, np.array([1, 1, 0, 0]))
    threshold = bins.best_threshold(curve)
    assert 0.5 < threshold < 1
    predicted = LabelRule(threshold).predicted(torch.from_numpy(logits))
    assert predicted.tolist() == [True, True, True, False]


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_multi_label(comm: MPI.Intracomm, absent: bool, tuned: bool) -> None:
    rng = np.random.default_rng(8)
    logits = exact(rng.normal(size=(NUM_NODES, NUM_CLASSES)) - 1)
    truth = rng.random((NUM_NODES, NUM_CLASSES)) < 0.3
    # A class that no node has and none is assigned.
    truth[:, 1], logits[:, 1] = False, -1.0
    split = rng.integers(0, 3 if absent else 4, NUM_NODES).astype(np.uint8)
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 3), comm.rank)
    mine = slice(row_map.start, row_map.stop)
    with ProcessGrid(comm) as grid:
        found = evaluate_multi_label(
            grid,
            torch.from_numpy(logits[mine].copy()),
            torch.from_numpy(truth[mine].astype(np.float64)),
            torch.from_numpy(split[mine].copy()),
            tuned="valid" if tuned else "half",
        )
    assert found.metric == "micro_f1"
    limit = 0.5
    if tuned:
        limit = found.values["valid_threshold"]
        rows = split == SPLITS["valid"]
        best = max(f1(truth[rows], logits[rows] >= each)[0] for each in np.unique(logits[rows]))
        assert found.values["valid_micro_f1"] == pytest.approx(best, abs=1e-15)
        half = f1(truth[rows], logits[rows] > 0)[0]
        assert found.values["valid_half_f1"] == pytest.approx(half, abs=1e-15)
        assert best > half + 0.05
    assert ("test_micro_f1" in found.values) != absent
    for prefix, kind in SPLITS.items():
        rows = split == kind
        if not rows.any():
            assert f"{prefix}_micro_f1" not in found.values
            continue
        micro, macro = f1(truth[rows], 1 / (1 + np.exp(-logits[rows])) > limit)
        chance = 1 / (1 + np.exp(-logits[rows]))
        loss = -np.log(np.where(truth[rows], chance, 1 - chance)).mean()
        assert found.values[f"{prefix}_micro_f1"] == pytest.approx(micro, abs=1e-15)
        assert found.values[f"{prefix}_macro_f1"] == pytest.approx(macro, abs=1e-15)
        assert found.values[f"{prefix}_loss"] == pytest.approx(loss, rel=1e-12)
        precision, auc = curves(truth[rows], logits[rows])
        assert found.values[f"{prefix}_average_precision"] == pytest.approx(precision, rel=1e-12)
        assert found.values[f"{prefix}_auc"] == pytest.approx(auc, rel=1e-12)


def test_exact_losses_of_unequal_numbers_of_pieces(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_label, "_PIECE_ROWS", 4)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(NUM_NODES, NUM_CLASSES, generator=generator)
    truth = (torch.rand(NUM_NODES, NUM_CLASSES, generator=generator) < 0.3).float()
    split = torch.arange(NUM_NODES, dtype=torch.uint8) % 4
    starts = uneven_starts(NUM_NODES, comm.size, 3)
    mine = slice(int(starts[comm.rank]), int(starts[comm.rank + 1]))
    found = []
    for ranks, rows in ((comm, mine), (MPI.COMM_SELF, slice(None))):
        with ProcessGrid(ranks) as grid, computing_with(ExactArithmetic(grid)):
            arrays = logits[rows], truth[rows], split[rows]
            found.append(evaluate_multi_label(grid, *arrays, tuned="top").values)
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [0.25, 1, 2, 36, 800])
def test_a_threshold_parts_logits_of_any_size(comm: MPI.Intracomm, size: float) -> None:
    truth = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(3, 1)
    split = torch.full((6,), int(Split.VALID), dtype=torch.uint8)
    with ProcessGrid(comm) as grid:
        found = evaluate_multi_label(grid, size * (2 * truth - 1), truth, split, tuned="valid")
    assert found.values["valid_micro_f1"] == 1


def test_the_number_of_labels_is_chosen(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(8)
    # Coarse scores, so that those of a node's labels are often equal.
    logits = np.round(rng.normal(size=(NUM_NODES, NUM_CLASSES)), 1)
    truth = rng.random((NUM_NODES, NUM_CLASSES)) < 1 / (1 + np.exp(-2 * logits))
    split = rng.integers(0, 4, NUM_NODES).astype(np.uint8)
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 3), comm.rank)
    mine = slice(row_map.start, row_map.stop)
    with ProcessGrid(comm) as grid:
        arrays = (logits[mine].copy(), truth[mine].astype(np.float64), split[mine].copy())
        found = evaluate_multi_label(grid, *map(torch.from_numpy, arrays), tuned="top")

    def guessed(number: int) -> np.ndarray:
        first = np.argsort(-logits, axis=1, kind="stable")[:, :number]
        guess = np.zeros_like(truth)
        np.put_along_axis(guess, first, True, axis=1)
        return guess

    rows, numbers = split == SPLITS["valid"], range(1, NUM_CLASSES + 1)
    scores = {each: f1(truth[rows], guessed(each)[rows])[0] for each in numbers}
    top = int(found.values["valid_top"])
    assert scores[top] == max(scores.values())
    assert 1 < top < NUM_CLASSES
    assert "valid_threshold" not in found.values
    for prefix, kind in SPLITS.items():
        rows = split == kind
        micro, macro = f1(truth[rows], guessed(top)[rows])
        assert found.values[f"{prefix}_micro_f1"] == pytest.approx(micro, abs=1e-15)
        assert found.values[f"{prefix}_macro_f1"] == pytest.approx(macro, abs=1e-15)
        half = f1(truth[rows], logits[rows] > 0)[0]
        assert found.values[f"{prefix}_half_f1"] == pytest.approx(half, abs=1e-15)


@pytest.mark.parametrize(("rows_at_a_time", "num_classes"), [(1 << 14, 4), (5, 4), (5, 2), (5, 40)])
def test_single_label(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int, num_classes: int
) -> None:
    rng = np.random.default_rng(9)
    # Ties are exact, and others are in other bins.
    logits = (np.round(8 * rng.normal(size=(NUM_NODES, num_classes))) / 8).astype(np.float32)
    logits[:, 0] *= num_classes > 2
    labels = rng.integers(-1, num_classes, NUM_NODES)
    split = rng.integers(0, 4, NUM_NODES).astype(np.uint8)
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 3), comm.rank)
    mine = slice(row_map.start, row_map.stop)
    monkeypatch.setattr(label_metrics, "_ROWS", rows_at_a_time)
    with ProcessGrid(comm) as grid:
        found = evaluate_single_label(
            grid,
            torch.from_numpy(logits[mine].copy()),
            torch.from_numpy(labels[mine].copy()),
            torch.from_numpy(split[mine].copy()),
        )
    for prefix, kind in SPLITS.items():
        rows = (split == kind) & (labels >= 0)
        exact = logits[rows].astype(np.float64)
        log_sum = np.log(np.exp(exact).sum(axis=1))
        loss = (log_sum - exact[np.arange(rows.sum()), labels[rows]]).mean()
        guess, truth = exact.argmax(axis=1), labels[rows]
        assert found.values[f"{prefix}_loss"] == pytest.approx(loss, rel=1e-12)
        assert found.values[f"{prefix}_accuracy"] == (guess == truth).mean()
        occurring = np.eye(num_classes)[np.union1d(truth, guess)] > 0
        _, macro = f1(occurring[:, truth].T, occurring[:, guess].T)
        assert found.values[f"{prefix}_macro_f1"] == pytest.approx(macro, abs=1e-15)
        assert (f"{prefix}_auc" in found.values) == (num_classes == 2)
        if num_classes == 2:
            precision, auc = curves(truth > 0, exact[:, 1])
            assert found.values[f"{prefix}_average_precision"] == pytest.approx(precision)
            assert found.values[f"{prefix}_auc"] == pytest.approx(auc)


@pytest.mark.parametrize("kind", [0, 1])
def test_one_class_has_no_curve(comm: MPI.Intracomm, kind: int) -> None:
    split = torch.tensor([int(Split.VALID)] * 3 + [int(Split.TEST)] * 3, dtype=torch.uint8)
    labels = torch.tensor([kind] * 3 + [0, 1, 1])
    logits = torch.arange(12.0).view(6, 2) % 5
    with ProcessGrid(comm) as grid:
        several = torch.nn.functional.one_hot(labels, 2)[:, 1:].float()
        for found in (
            evaluate_single_label(grid, logits, labels, split),
            evaluate_multi_label(grid, logits[:, 1:], several, split),
        ):
            assert {"test_auc", "test_average_precision", "valid_loss"} <= set(found.values)
            assert not {"valid_auc", "valid_average_precision"} & set(found.values)


@pytest.mark.parametrize("rule", ["valid", "top"])
def test_a_multi_label_run_scores_its_predictions(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = make_graph(multi_label=True)
    store = write_store(comm, comm_tmp_path, graph)
    settings = ("train.epochs=12", "train.select=last", "train.learning_rate=0.05")
    settings = (*settings, f"train.threshold={rule}")
    run = train(comm, make_config(store, comm_tmp_path / "run", *settings))
    found = run.predictions()
    assert found["prediction"].dtype == np.uint8
    last = run.metrics[-1]
    if rule == "valid":
        limit = last["valid_threshold"]
        assert limit != 0.5
        clear = np.abs(found["probabilities"] - limit) > 1e-6
        guess = found["probabilities"] > limit
        np.testing.assert_array_equal(found["prediction"][clear], guess[clear])
    else:
        assert (found["prediction"].sum(axis=1) == last["valid_top"]).all()
        lowest = np.where(found["prediction"], found["probabilities"], 1).min(axis=1)
        highest = np.where(found["prediction"], 0, found["probabilities"]).max(axis=1)
        assert (lowest >= highest).all()
    said = predict_with(comm, run, monkeypatch, capsys)(comm_tmp_path / "out.h5")
    for prefix, kind in SPLITS.items():
        rows = graph.split == kind
        micro, macro = f1(graph.labels[rows] > 0, found["prediction"][rows] > 0)
        if comm.rank == 0:
            assert said["scores"][prefix]["value"] == pytest.approx(micro, abs=1e-15)
        assert last[f"{prefix}_micro_f1"] == pytest.approx(micro, abs=1e-15)
        assert last[f"{prefix}_macro_f1"] == pytest.approx(macro, abs=1e-15)
    assert run.summary["metric"] == "micro_f1"
    assert run.summary["seeds"][0]["test"] == last["test_micro_f1"]
    assert last["train_loss"] < run.metrics[0]["train_loss"]


@pytest.mark.parametrize(
    ("several", "message"),
    [
        (False, "'top' does not work with a graph of one label"),
        (True, "no labelled validation"),
    ],
)
def test_top_labels_need_labels_to_choose_by(
    comm: MPI.Intracomm, comm_tmp_path: Path, several: bool, message: str
) -> None:
    graph = make_graph(multi_label=several)
    if several:
        split = np.where(graph.split == Split.VALID, Split.TRAIN, graph.split).astype(np.uint8)
        graph = replace(graph, split=split)
    config = make_config(
        write_store(comm, comm_tmp_path, graph), comm_tmp_path / "run", "train.threshold=top"
    )
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, config)
