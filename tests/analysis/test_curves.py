import json

import numpy as np
import pytest

from hpcgnn.analysis import learning_curves
from hpcgnn.analysis.curves import RunCurves
from hpcgnn.analysis.load import open_run
from hpcgnn.errors import InputError


def curves_of(writer):
    return RunCurves(open_run(writer.path))


def write(writer, records):
    lines = [json.dumps(record) for record in records]
    (writer.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_mean_and_sample_deviation_over_seeds(writer):
    writer.metrics(seeds=(11, 12, 13))
    curve = curves_of(writer).curve("test_accuracy")
    assert curve.epochs.tolist() == [0, 1, 2, 3, 4]
    assert curve.mean == pytest.approx(0.52 + 0.05 * np.arange(5))
    assert curve.std == pytest.approx(np.full(5, 0.01))
    assert curve.num_seeds.tolist() == [3] * 5


def test_seeds_may_end_at_different_epochs(writer):
    writer.metrics(seeds=(11,), epochs=range(4))
    writer.metrics(seeds=(12,), epochs=range(2), append=True)
    curve = curves_of(writer).curve("train_loss")
    assert curve.num_seeds.tolist() == [2, 2, 1, 1]
    assert curve.std[2:].tolist() == [0, 0]


def test_missing_and_non_finite_values_are_gaps(writer):
    values = [0.5, None, float("nan"), float("inf")]
    write(
        writer,
        [{"seed": 1, "epoch": e, "train_loss": v, "x": None} for e, v in enumerate(values)]
        + [{"seed": 1, "epoch": 9, "train_loss": 0.25}],
    )
    curves = curves_of(writer)
    assert curves.curve("train_loss").epochs.tolist() == [0, 9]
    assert not curves.has("x")
    assert curves.metrics == []
    assert curves.summary()["test"] == {"mean": None, "std": None}


def test_errors_are_of_the_kept_epoch(writer):
    rows = [(0.1, 3.0, 3.5), (0.8, 1.0, 1.5), (0.7, 2.0, 2.5)]
    write(
        writer,
        [
            {"seed": seed, "epoch": e, "valid_r2": r2, "valid_rmse_u": a, "test_rmse_u": b}
            for seed in (1, 2)
            for e, (r2, a, b) in enumerate(rows)
        ],
    )
    assert curves_of(writer).errors() == {"rmse_u": (1.0, 1.5)}
    kept = {"valid_rmse_u": 5.0, "valid_accuracy": 1.0, "test_mae": 0.0}
    writer.summary(metric="r2", seeds=[{"seed": 2, "metrics": kept}])
    assert curves_of(writer).errors() == {"rmse_u": (3.0, 1.5), "mae": (None, 0.0)}


def test_an_unfinished_seed_is_judged_by_its_best_epoch_so_far(writer):
    levels = [(0.4, 0.3), (0.6, 0.5), (0.6, 0.9), (0.5, 0.8)]
    write(
        writer,
        [
            {
                "seed": 2,
                "epoch": e,
                "train_loss": 1 / (e + 1),
                "valid_accuracy": v,
                "test_accuracy": t,
            }
            for e, (v, t) in enumerate(levels)
        ],
    )
    (seed,) = curves_of(writer).final()
    # The first of equal epochs is marked: its checkpoint was kept.
    assert seed == {
        "seed": 2,
        "epochs": 4,
        "best_epoch": 1,
        "valid": 0.6,
        "test": 0.5,
        "final_train_loss": 0.25,
    }


def test_a_finished_seed_is_what_the_summary_says(writer):
    writer.metrics(seeds=(11, 12), metric="micro_f1")
    entry = {"seed": 11, "epochs": 5, "best_epoch": 3, "valid": 0.7, "test": 0.6}
    writer.summary(metric="micro_f1", seeds=[entry | {"final_train_loss": 0.1}])
    summary = curves_of(writer).summary()
    assert [seed["test"] for seed in summary["seeds"]] == pytest.approx([0.6, 0.72])
    assert summary["test"]["mean"] == pytest.approx(0.66)
    assert summary["test"]["std"] == pytest.approx(np.std([0.6, 0.72], ddof=1))
    assert summary["metric"] == "micro_f1"


def test_micro_and_macro_f1_share_a_run(writer, capsys):
    write(
        writer,
        [
            {"seed": 1, "epoch": e, "valid_micro_f1": 0.5, "valid_macro_f1": 0.25, "train_loss": 1}
            for e in range(2)
        ],
    )
    assert curves_of(writer).metrics == ["micro_f1", "macro_f1"]
    learning_curves.main([str(writer.path)])
    out = capsys.readouterr().out
    assert "│ 50.00 % │" in out
    assert "micro F1" in out


def test_runs_are_compared_in_one_table(make_writer, capsys):
    first, second = make_writer("first"), make_writer("second")
    first.metrics(seeds=(11, 12, 13))
    second.metrics(seeds=(14,), epochs=range(1))
    learning_curves.main([str(first.path), str(second.path)])
    out = capsys.readouterr().out
    assert "72.00 ± 1.00 %" in out
    assert (first.path / "analysis" / "learning_curves.png").exists()
    assert not (second.path / "analysis").exists()


def test_no_epoch_yet(writer):
    writer.session(epochs=())
    (writer.path / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no epoch yet"):
        learning_curves.main([str(writer.path)])


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("metric", ["rmse_load", "auc"])
def test_a_run_is_told_by_the_metric_that_it_chose(writer, capsys, metric, ended):
    lines = [
        {"seed": 1, "epoch": epoch, f"valid_{metric}": value, "valid_accuracy": value}
        for epoch, value in enumerate((0.5, 0.25, 0.75))
    ]
    write(writer, lines)
    best = 0.25 if metric == "rmse_load" else 0.75
    seeds = [{"seed": 1, "best_epoch": 1, "valid": best, "test": None}]
    writer.summary(metric=metric, seeds=seeds if ended else [])
    summary = curves_of(writer).summary()
    assert (summary["metric"], summary["valid"]["mean"]) == (metric, best)
    learning_curves.show([curves_of(writer)])
    shown = capsys.readouterr().out
    assert metric in shown
    assert ("%" in shown) == (metric == "auc")
