import json
import shutil
import subprocess
import sys

import pytest

from hpcgnn.analysis import comm_matrix, epoch_breakdown, learning_curves
from hpcgnn.analysis.figures import rank_ticks, scaled, spread
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.commands import analyse
from hpcgnn.commands.analyse import ANALYSES
from hpcgnn.commands.launch import run_command
from hpcgnn.errors import InputError

COMMANDS = [epoch_breakdown, comm_matrix, learning_curves]


def json_of(capsys, command, *arguments):
    command.main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def breakdown_of(path):
    return epoch_breakdown.summarise(Trace(open_run(path)))


def matrix_of(path, name=None):
    return comm_matrix.summarise(Trace(open_run(path)), name)


def assert_figures(paths):
    svg, png = paths
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def run(writer):
    writer.session()
    writer.metrics()
    return writer.path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_copy_elsewhere_gives_the_same_figure_where_told(run, tmp_path, capsys, command):
    command.main([str(run)])
    out = capsys.readouterr().out
    drawn = [run / "analysis" / f"{command.NAME}.{kind}" for kind in ("svg", "png")]
    assert out.splitlines()[-1] == f"figure: {drawn[0]}  {drawn[1]}"
    assert "run" in out
    assert_figures(drawn)
    svg = drawn[0].read_bytes()
    copy = tmp_path / "elsewhere" / "run"
    shutil.copytree(run, copy, ignore=lambda *_: ["analysis"])
    shutil.rmtree(run)
    result = json_of(capsys, command, copy, "--out", tmp_path / "figures" / "new")
    paths = [tmp_path / "figures" / "new" / each.name for each in drawn]
    assert result["figures"] == list(map(str, paths))
    assert paths[0].read_bytes() == svg
    assert not (copy / "analysis").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["absent", "foreign"])
def test_missing_and_foreign_directories_end_with_status_2(tmp_path, capsys, command, name):
    (tmp_path / "foreign").mkdir()
    with pytest.raises(SystemExit) as end:
        run_command("analysis.x", lambda: command.main([str(tmp_path / name)]))
    assert end.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert name in output.err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unwritable_directory_names_the_remedy(run, tmp_path, command):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write the figure .*--out"):
        command.main([str(run), "--out", str(tmp_path / "file" / "below")])


def test_runs_as_a_module(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "analysis.comm_matrix", str(tmp_path / "no")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("hpcgnn analyse comm_matrix: error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ANALYSES)
def test_analyse_runs_it(monkeypatch, capsys, tmp_path, name):
    # Other tests have imported it already, about which runpy warns.
    monkeypatch.delitem(sys.modules, f"hpcgnn.analysis.{name}", raising=False)
    monkeypatch.setattr(sys, "argv", ["analyse", name, str(tmp_path / "no")])
    with pytest.raises(SystemExit) as ended:
        analyse.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"hpcgnn analyse {name}: error: ")


def test_an_unknown_analysis_names_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["analyse"])
    analyse.main()
    listing = capsys.readouterr().out
    assert all(name in listing for name in ANALYSES)
    monkeypatch.setattr(sys, "argv", ["analyse", "comm_matrices"])
    with pytest.raises(InputError, match="'comm_matrix'"):
        analyse.main()


def test_breakdown_of_four_ranks(run):
    result = breakdown_of(run)
    assert (result["ranks"], result["epochs"], result["missing_ranks"]) == (4, 3, [])
    wait = result["phases"]["wait"]
    assert [wait[key] for key in ("min_s", "median_s", "max_s")] == pytest.approx(
        [2e-3, 3.5e-3, 5e-3]
    )
    assert wait["imbalance"] == pytest.approx(5 / 3.5 - 1)
    assert wait["share"] == pytest.approx(14 / 50)
    assert sum(phase["share"] for phase in result["phases"].values()) == pytest.approx(1)
    assert result["phases"]["other"]["max_s"] == pytest.approx(1e-3)
    # Half had arrived, the rest took 2 to 5 ms. There are 4 ms of computing, except on rank 0, to
    # which nothing is sent in the first 1, 2 and 3 of them.
    assert result["communication"]["hidden"]["median_s"] == pytest.approx(3.5e-3)
    assert result["communication"]["hidden"]["max_s"] == pytest.approx(4e-3)
    assert result["communication"]["coverable"]["min_s"] == pytest.approx(2e-3)
    assert result["communication"]["exposed"]["max_s"] == pytest.approx(6e-3)
    assert result["outside_epochs"]["read"]["max_s"] == pytest.approx(2e-3)
    assert result["spans"]["exchange.forward"] == {
        "count": 12,
        "seconds": pytest.approx(12e-3),
        "rows": 90,
        "bytes": 720,
    }


def test_breakdown_of_one_rank_and_of_missing_ranks(writer, capsys):
    writer.session(ranks=1)
    assert breakdown_of(writer.path)["phases"]["wait"]["imbalance"] == 0
    writer.session(ranks=3)
    (writer.path / "trace" / "rank00001.jsonl").unlink()
    epoch_breakdown.main([str(writer.path)])
    assert "no trace of ranks [1]" in capsys.readouterr().out


@pytest.mark.parametrize("command", [epoch_breakdown, comm_matrix])
def test_a_run_without_epochs(writer, command):
    writer.session(epochs=())
    command.main([str(writer.path)])
    assert_figures([writer.path / "analysis" / f"{command.NAME}.{kind}" for kind in ("svg", "png")])
    result = command.summarise(Trace(open_run(writer.path)))
    assert result["ranks"] == 4
    assert result.get("phases", {}) == {}


def test_a_trace_of_headers_only(writer):
    writer.session(ranks=2, epochs=())
    for path in (writer.path / "trace").iterdir():
        path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="holds no span yet"):
        epoch_breakdown.main([str(writer.path)])
    assert matrix_of(writer.path)["exchanges"] == 0


def test_matrix_of_four_ranks(run):
    result = matrix_of(run)
    expected = [[0 if i == j else i + 1 for j in range(4)] for i in range(4)]
    assert result["rows"]["matrix"] == expected
    assert result["bytes"]["matrix"] == [[8 * rows for rows in line] for line in expected]
    assert result["rows"]["sent"] == [3, 6, 9, 12]
    assert result["rows"]["received"] == [9, 8, 7, 6]
    assert result["rows"]["send"]["imbalance"] == pytest.approx(12 / 7.5 - 1)
    assert (result["rows"]["total"], result["rows"]["largest_pair"]) == (30, 4)
    assert (result["exchanges"], result["names"]) == (4, ["exchange.forward"])


def test_matrix_of_a_resumed_run_counts_every_epoch_once(writer):
    writer.session(epochs=range(3))
    once = matrix_of(writer.path)["rows"]
    writer.session(epochs=range(1, 3), append=True)
    assert matrix_of(writer.path)["rows"] == once


def test_matrix_of_one_rank_or_one_exchange(writer, run):
    one = matrix_of(run, "exchange.forward")
    assert one["rows"]["total"] == 30
    with pytest.raises(InputError, match=r"no exchange is called 'x'; found: exchange.forward"):
        comm_matrix.main([str(run), "--name", "x"])
    shutil.rmtree(run / "trace")
    writer.session(ranks=1)
    assert matrix_of(run)["rows"]["matrix"] == [[0]]


def test_matrix_tells_what_it_leaves_out(writer, capsys):
    writer.session(ranks=3)
    path = writer.path / "trace" / "rank00002.jsonl"
    path.write_text(path.read_text().replace('"peers"', '"to"'))
    (writer.path / "trace" / "rank00001.jsonl").unlink()
    comm_matrix.main([str(writer.path)])
    out = capsys.readouterr().out
    assert "note: no trace of ranks [1]" in out
    assert "note: 6 rows have no recorded receiver" in out


def test_matrix_refuses_files_of_different_runs(writer):
    writer.session(ranks=4)
    for path in list((writer.path / "trace").iterdir()):
        path.write_text(path.read_text().replace('"ranks":4', '"ranks":2'))
        if path.name > "rank00001.jsonl":
            path.unlink()
    with pytest.raises(InputError, match="sends to rank 3, but the run has 2 ranks"):
        comm_matrix.main([str(writer.path)])


def test_many_ranks_and_many_runs_are_drawn(make_writer, capsys):
    large, runs = make_writer("large"), [make_writer(name) for name in ("a", "b$c$", "_d")]
    large.session(ranks=45, epochs=range(1))
    for command in (epoch_breakdown, comm_matrix):
        assert json_of(capsys, command, large.path)["ranks"] == 45
    for writer, metric in zip(runs, ("accuracy", "micro_f1", "macro_f1"), strict=True):
        writer.metrics(metric=metric)
    result = json_of(capsys, learning_curves, *(writer.path for writer in runs))
    assert [entry["metric"] for entry in result["runs"]] == ["accuracy", "micro_f1", "macro_f1"]


def test_units_ticks_and_spread():
    assert scaled(0, "s") == (1.0, "s")
    assert scaled(2e-5, "s") == (1e6, "µs")
    assert scaled(3, "s") == (1.0, "s")
    assert scaled(999, "B") == (1.0, "B")
    assert scaled(2e9, "B") == (1e-9, "GB")
    assert rank_ticks([0]) == [0]
    assert rank_ticks(range(40)) == list(range(0, 40, 4))
    assert spread([0.0, 0.0]) == {"min": 0.0, "median": 0.0, "max": 0.0, "imbalance": 0.0}
