import json

import pytest

from hpcgnn.analysis import search
from hpcgnn.errors import InputError


@pytest.fixture
def runs(make_writer):
    """Three finished runs, one in progress, and one that failed before its first epoch."""
    paths = []
    for number, (rate, valid) in enumerate([(0.1, 0.6), (1.0, 0.8), (0.1, 0.7), (3.0, None)]):
        writer = make_writer(f"draw-{number:05d}")
        text = f'[train]\nlearning_rate = {rate}\nepochs = 5\n[run]\ndir = "{writer.path}"\n'
        (writer.path / "config.toml").write_text(text)
        if valid is not None:
            judged = {"valid_accuracy": valid, "unseen_accuracy": valid - 0.1}
            seeds = [{"seed": 1, "metrics": {"valid_accuracy": 0.99}, "all_graphs": judged}]
            writer.metrics(seeds=(1,))
            if number < 2:
                writer.summary(metric="accuracy", seeds=seeds)
        paths.append(writer.path)
    return paths


def test_best_by_validation_comes_first(runs, capsys):
    search.main([*map(str, runs), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["run"][-1] for each in found["runs"]] == ["1", "2", "0", "3"]
    assert [each["finished"] for each in found["runs"]] == [True, False, True, False]
    best, running, _, failed = found["runs"]
    assert (best["valid"], best["unseen"]) == (0.8, pytest.approx(0.7))
    assert best["settings"] == {"train.learning_rate": 1.0}
    assert running["valid"] == pytest.approx(0.71)
    assert "valid" not in failed
    svg = runs[0].parent / "analysis" / "search.svg"
    assert found["figures"][0] == str(svg)
    assert "train.learning_rate" in svg.read_text()


@pytest.mark.parametrize("part", ["metric", "seeds", "metrics"])
def test_runs_with_a_part_of_their_summary(runs, capsys, tmp_path, part):
    file = runs[1] / "summary.json"
    summary = json.loads(file.read_text())
    if part == "metrics":
        summary["seeds"] = [{"seed": 1, "metrics": {"valid_accuracy": None}}, {"seed": 2}]
    else:
        del summary[part]
    file.write_text(json.dumps(summary))
    search.main([*map(str, runs), "--json", "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)["runs"]
    valid = {"metric": None, "seeds": pytest.approx(0.71), "metrics": None}[part]
    assert next(each for each in found if each["run"][-1] == "1").get("valid") == valid


def test_a_table_of_what_differs(runs, capsys, tmp_path):
    search.main([*map(str, runs), "--out", str(tmp_path / "figures")])
    out = capsys.readouterr().out
    assert "learning_rate" in out
    assert "epochs" not in out
    assert out.splitlines()[-1].startswith(f"figure: {tmp_path / 'figures' / 'search.svg'}")


def test_a_run_under_way_is_told_by_its_metric(make_writer, capsys, tmp_path):
    writer = make_writer("draw-0")
    (writer.path / "config.toml").write_text("[train]\nepochs = 5\n")
    writer.metrics(seeds=(1,), metric="r2")
    search.main([str(writer.path), "--out", str(tmp_path)])
    assert " 0.710 " in capsys.readouterr().out


def test_runs_may_differ_in_a_list(runs, capsys, tmp_path):
    for number, path in enumerate(runs):
        text = f"[sampling]\nfan_outs = [{number % 2}, 5]\n"
        (path / "config.toml").write_text(text)
    search.main([*map(str, runs), "--json", "--out", str(tmp_path)])
    best = json.loads(capsys.readouterr().out)["runs"][0]
    assert best["settings"] == {"sampling.fan_outs": [1, 5]}
    assert "[0, 5]" in (tmp_path / "search.svg").read_text()


def test_only_run_directories(tmp_path):
    with pytest.raises(InputError, match="name directories of runs"):
        search.main([str(tmp_path)])
