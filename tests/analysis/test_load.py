import json
import math

import pytest

from hpcgnn.analysis.load import PHASES, TRACE_SCHEMA, open_run, open_runs
from hpcgnn.errors import InputError
from hpcgnn.trace import schema as trace


def test_the_reader_knows_the_schema_of_the_writer():
    assert set(PHASES) == trace.PHASES
    assert len(PHASES) == len(trace.PHASES)
    assert TRACE_SCHEMA == trace.SCHEMA_VERSION


def test_spans_of_a_rank(writer):
    writer.session(ranks=2, epochs=range(1))
    first, second = open_run(writer.path).traces()
    assert (first.rank, second.rank) == (0, 1)
    read, exchange, *_, boundary = second.spans()
    assert (read.name, read.epoch, read.seed) == ("read", None, None)
    assert (exchange.phase, exchange.detail) == ("exchange", "forward")
    assert (exchange.rows, exchange.bytes, exchange.peers) == (2, 16, [[0, 2, 16]])
    assert (exchange.epoch, exchange.seed, exchange.session) == (0, 11, 0)
    assert boundary.stop_ns - boundary.start_ns == boundary.self_ns == 3_000_000


def test_half_a_line_at_the_end_is_left_out(writer):
    writer.session(ranks=1)
    before = list(open_run(writer.path).traces()[0].spans())
    with trace.trace_file(writer.path, 0).open("a") as file:
        file.write('{"t_ns":12,"dur_n')
    assert list(open_run(writer.path).traces()[0].spans()) == before


def test_half_a_line_before_a_resumed_session_is_left_out(writer):
    writer.session(ranks=1)
    with trace.trace_file(writer.path, 0).open("a") as file:
        file.write('{"t_ns":12,"dur_n')
    writer.session(ranks=1, epochs=range(3, 5), append=True)
    (rank,) = open_run(writer.path).traces()
    assert {span.epoch for span in rank.spans()} == {None, 0, 1, 2, 3, 4}


def test_a_killed_process_may_leave_only_half_a_header(writer):
    writer.session(ranks=2)
    trace.trace_file(writer.path, 0).write_text('{"host":"a')
    assert [rank.rank for rank in open_run(writer.path).traces()] == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{torn", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ("17", "is not a JSON object"),
        ('{"name":"dense","t_ns":1}', "'dur_ns' is not a 64-bit integer"),
        ('{"t_ns":1}', "'name' is not a string"),
        ('{"name":"sleep"}', "unknown phase in 'sleep'"),
        ('{"name":"exchange","peers":[[1,2]]}', "'peers' is not a list"),
        ('{"name":"exchange","peers":[[1,2,-3]]}', "'peers' is not a list"),
        ('{"schema":9,"rank":0}', "trace schema 9, this program reads 1"),
        ('{"schema":1,"rank":3}', "belongs to rank 3"),
        ('{"schema":1,"rank":0}', "'ranks' is not a 64-bit integer"),
    ],
)
def test_damage_in_the_middle_names_file_and_line(writer, line, message):
    writer.session(ranks=1)
    path = trace.trace_file(writer.path, 0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(InputError, match=rf"rank00000.jsonl:3: .*{message}"):
        list(open_run(writer.path).traces()[0].spans())


def test_a_trace_without_header_is_refused(writer):
    writer.session(ranks=1)
    path = trace.trace_file(writer.path, 0)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(InputError, match="begins with a header"):
        open_run(writer.path).traces()


def test_missing_and_foreign_directories(tmp_path, writer):
    with pytest.raises(InputError, match="absent: is not a directory"):
        open_run(tmp_path / "absent")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(InputError, match="is not a run directory"):
        open_run(tmp_path / "foreign")
    writer.summary(name="x")
    with pytest.raises(InputError, match="has no trace"):
        open_run(writer.path).traces()
    with pytest.raises(InputError, match=r"has no metrics.jsonl"):
        open_run(writer.path).metrics()
    (writer.path / "trace").mkdir()
    (writer.path / "trace" / "rankless.jsonl").write_text("")
    with pytest.raises(InputError, match="has no trace"):
        open_run(writer.path).traces()


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_summary_is_an_error(writer, text):
    (writer.path / "summary.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"summary.json.* is no"):
        open_run(writer.path)


def test_a_run_is_called_by_its_directory(writer):
    writer.metrics()
    # The name of the graph, which many runs share.
    writer.summary(name="debian-packages")
    assert open_run(writer.path).name == "run"


def test_runs_of_one_directory_name_are_told_apart(tmp_path):
    paths = [tmp_path / each / "run" for each in ("one", "two", "two")]
    for path in set(paths):
        path.mkdir(parents=True)
        (path / "metrics.jsonl").touch()
    assert [run.name for run in open_runs(paths)] == ["one/run", "two/run", "two/run"]
    assert [run.name for run in open_runs(paths[:1])] == ["run"]


def test_the_last_record_of_a_repeated_epoch_wins(writer):
    writer.metrics(seeds=(3,), epochs=range(8))
    writer.metrics(seeds=(4,), epochs=range(2))
    writer.metrics(seeds=(3,), epochs=range(8))
    writer.metrics(seeds=(3,), epochs=range(5, 7), append=True, shift=0.2)
    writer.metrics(seeds=(4,), epochs=range(3), append=True)
    with (writer.path / "metrics.jsonl").open("a") as file:
        file.write('{"seed": 4, "epo')
    records = open_run(writer.path).metrics()
    # The resumed run ended at epoch 6, so epoch 7 of the first session does not count.
    assert [(r["seed"], r["epoch"]) for r in records] == [
        *((3, epoch) for epoch in range(7)),
        *((4, epoch) for epoch in range(3)),
    ]
    assert records[5]["test_accuracy"] == pytest.approx(0.5 + 0.25 + 0.03 + 0.2)


def test_damaged_metrics_are_an_error(writer):
    good = json.dumps({"seed": 1, "epoch": 0})
    for bad, message in (("{", "not a JSON object"), ('{"seed": 1}', "epoch is missing")):
        (writer.path / "metrics.jsonl").write_text(f"{bad}\n{good}\n")
        with pytest.raises(InputError, match=rf"metrics.jsonl:1: .*{message}"):
            open_run(writer.path).metrics()


@pytest.mark.parametrize("value", ["", "x", True, [], {}, [0.5], 10**400])
def test_metrics_are_numbers(writer, value):
    for known in (0.5, math.nan, None, 3):
        line = json.dumps({"seed": 1, "epoch": 0, "valid_accuracy": known})
        (writer.path / "metrics.jsonl").write_text(line + "\n")
        assert len(open_run(writer.path).metrics()) == 1
    line = json.dumps({"seed": 1, "epoch": 0, "valid_accuracy": value})
    (writer.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:1: valid_accuracy is not a number"):
        open_run(writer.path).metrics()


@pytest.mark.parametrize("wrong", [{"local_edges": "x"}, {"usage": {"queued_s": 10**400}}])
def test_counts_of_ranks_are_numbers(writer, wrong):
    detail = {"rank": 0, "peak_rss_bytes": 1, **wrong}
    (writer.path / "summary.json").write_text(json.dumps({"ranks_detail": [detail]}))
    with pytest.raises(InputError, match=r"summary.json: ranks_detail\[0\]: .* is no"):
        _ = open_run(writer.path).summary


def test_an_empty_metrics_file_has_no_epochs(writer):
    (writer.path / "metrics.jsonl").write_text("")
    assert open_run(writer.path).metrics() == []
