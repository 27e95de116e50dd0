"""Scaling of runs: which runs belong together, their efficiency, and the errors of their plans."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn.analysis import scaling
from hpcgnn.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make_run(make_writer):
    def make(ranks, seconds, *, method="joint", nodes=1000, plan=None, evaluated=False, cores=8):
        writer = make_writer(f"{method}-{nodes}-p{ranks}")
        lines = [
            {"seed": 1, "epoch": epoch, "train_loss": 1.0, "bytes_sent": 100 * ranks}
            for epoch in range(3)
        ]
        lines[-1] |= {"bytes_sent": 160 * ranks, "evaluate_bytes": 60 * ranks}
        if evaluated:
            lines = lines[-1:]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (writer.path / "metrics.jsonl").write_text(text)
        names = {"ranks": ranks, "replication": 1, "exchange": method, "schedule": "resident"}
        writer.summary(
            name=f"rmat-{nodes}",
            graph={"num_nodes": nodes},
            epoch_s={"median": seconds},
            ranks_detail=[{"rank": rank, "peak_rss_bytes": 1000 + rank} for rank in range(ranks)],
            **names,
        )
        config = f'[graph]\nstore = "p{ranks}.h5"\n[exchange]\nmethod = "{method}"\n'
        (writer.path / "config.toml").write_text(config)
        hosts = [{"name": "one", "ranks": ranks, "cores": cores, "processor": ""}]
        (writer.path / "sessions.json").write_text(json.dumps([{"threads": 1, "hosts": hosts}]))
        if plan is not None:
            entry = {
                **names,
                "epoch_s": plan + 0.25,
                "bytes_epoch": 100 * ranks,
                "peak_bytes": 1100,
                "ghost_bytes": 100,
                "rehearsed_rank": 0,
            }
            (writer.path / "plan.json").write_text(json.dumps([entry]))
        return writer.path

    return make


def found(capsys, paths, tmp_path):
    scaling.main([*map(str, paths), "--json", "--out", str(tmp_path / "figures")])
    return json.loads(capsys.readouterr().out)


def test_strong_series_by_method(capsys, make_run, tmp_path):
    paths = [make_run(p, s, plan=s - 0.25) for p, s in ((1, 8.0), (2, 4.0), (4, 4.0))]
    paths += [make_run(p, 8.0, method="aware") for p in (1, 2)]
    result = found(capsys, paths, tmp_path)
    names = [(each["method"], each["kind"]) for each in result["series"]]
    assert names == [("method=aware", "strong"), ("method=joint", "strong")]
    aware, joint = ([p["efficiency"] for p in each["points"]] for each in result["series"])
    assert (aware, joint) == ([1.0, 0.5], [1.0, 1.0, 0.5])
    assert result["series"][0]["points"][0]["planned"] is None
    # Plans predicted seconds and bytes exactly; memory was 1000 to 1003 bytes and planned as 1100.
    assert result["errors"]["epoch_s"] == result["errors"]["bytes"] == 0
    assert result["errors"]["memory_bytes"] == pytest.approx(99 / 1001)
    assert all(Path(path).stat().st_size > 1000 for path in result["figures"])


def test_a_key_that_an_older_version_did_not_know_parts_no_series(capsys, make_run, tmp_path):
    paths = [make_run(p, 8.0 / p) for p in (1, 2)]
    with (paths[1] / "config.toml").open("a") as file:
        file.write("[graph2]\nnew = 1\n")
    (series,) = found(capsys, paths, tmp_path)["series"]
    assert [point["ranks"] for point in series["points"]] == [1, 2]


def test_weak_series_and_evaluated_epochs(capsys, make_run, tmp_path):
    paths = [make_run(p, 2.0 + p, nodes=500 * p, plan=1.75, evaluated=True) for p in (4, 1, 2)]
    (series,) = found(capsys, paths, tmp_path)["series"]
    assert series["kind"] == "weak"
    assert [point["ranks"] for point in series["points"]] == [1, 2, 4]
    assert [p["efficiency"] for p in series["points"]] == pytest.approx([1, 3 / 4, 3 / 6])
    for point in series["points"]:
        assert point["measured"]["bytes"] == point["planned"]["bytes"] == 100 * point["ranks"]


@pytest.mark.parametrize("key", ["epoch_s", "graph", "ranks_detail"])
@pytest.mark.parametrize("value", [None, {}, []])
def test_a_part_of_a_summary_is_told(make_run, key, value):
    path = make_run(2, 1.0)
    file = path / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in {**summary, key: value}.items() if v is not None}))
    with pytest.raises(InputError, match=r"has not ended, or its task has no nodes|is not a"):
        scaling.main([str(path)])


@pytest.mark.parametrize("key", ["epoch_s", "bytes_epoch", "peak_bytes"])
def test_a_part_of_a_plan_is_told(make_run, key):
    paths = [make_run(ranks, 1.0, plan=1.0) for ranks in (1, 2)]
    file = paths[1] / "plan.json"
    (entry,) = json.loads(file.read_text())
    del entry[key]
    file.write_text(json.dumps([entry]))
    with pytest.raises(InputError, match=rf"plan.json\[0\]: {key} is missing"):
        scaling.main(list(map(str, paths)))


def test_the_table_names_every_point(capsys, make_run, tmp_path):
    paths = [make_run(p, 8.0 / p, plan=8.0 / p) for p in (1, 2)]
    scaling.main([*map(str, paths), "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "strong scaling of joint on rmat-1000" in shown
    assert "median error of the plans: seconds 4.7 %, bytes 0.0 %, memory" in shown


def test_runs_that_form_no_series(make_run):
    alone = make_run(2, 1.0)
    with pytest.raises(InputError, match="no two of these runs"):
        scaling.main([str(alone)])
    (alone / "summary.json").unlink()
    with pytest.raises(InputError, match="has not ended"):
        scaling.main([str(alone)])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["strong", "out", "absent.h5", "1,2", "jobs/configs/quickstart.toml"], "no such store"),
        (["strong", "out", "absent.h5", "1,x", "jobs/configs/quickstart.toml"], "give a list"),
        (["weak", "out", "14", "1,3", "jobs/configs/quickstart.toml"], "powers of two"),
        (["weak", "out", "x", "1,2", "jobs/configs/quickstart.toml"], "log2 of the nodes"),
        (["weak", "out", "14", "1,2", "absent.toml"], "no such file"),
        (["sideways"], "bash jobs/scaling.sh strong"),
    ],
)
def test_the_script_refuses_before_it_starts(words, fault):
    done = subprocess.run(
        ["bash", "jobs/scaling.sh", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert fault in done.stderr
    assert not (ROOT / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_weak_sweep_ends_with_its_table(tmp_path):
    config = tmp_path / "model.toml"
    config.write_text(
        '[model]\nname = "gcn"\nhidden = 8\n[train]\nepochs = 4\nevaluate_every = 4\n'
    )
    environment = {**os.environ, "SCALING": "here", "HPCGNN_VENV": sys.prefix}
    # The second sweep must not use the stores of the first.
    for scale, sizes in ((8, ["256", "512"]), (7, ["128", "256"])):
        words = ["bash", "jobs/scaling.sh", "weak", tmp_path / "sweep", scale, "1,2", config]
        done = subprocess.run(
            list(map(str, words)),
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "weak scaling of joint" in done.stdout
        assert "bytes 0.0 %" in done.stdout
        assert re.findall(r"^│ [12] +│ +(\d+) ", done.stdout, re.MULTILINE) == sizes
