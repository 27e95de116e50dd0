import json
import sys
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.errors import InputError
from hpcgnn.trace import TraceRecorder, trace_file
from hpcgnn.trace.schema import PHASES
from tests.support.full_disk import largest_file

NAMES = st.sampled_from(["dense", "exchange.forward", "exchange.reverse", "wait", "interior"])
TREES = st.recursive(
    st.tuples(NAMES, st.integers(0, 1000), st.just([])),
    lambda inner: st.tuples(NAMES, st.integers(0, 1000), st.lists(inner, max_size=4)),
    max_leaves=12,
)


class Clock:
    """Stands for `perf_counter_ns`; time passes only when a test says so."""

    def __init__(self):
        self.now = 7

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("hpcgnn.trace.recorder.perf_counter_ns", clock)
    monkeypatch.setattr("hpcgnn.trace.span.perf_counter_ns", clock)
    return clock


def play(trace, clock, tree):
    """Walk a tree of (name, own nanoseconds, children); return its total duration."""
    name, own_ns, children = tree
    begin = clock.now
    with trace.span(name, rows=1, bytes=8):
        clock.now += own_ns
        for child in children:
            play(trace, clock, child)
    return clock.now - begin


def own_times(tree, sums):
    name, own_ns, children = tree
    sums[name] = sums.get(name, 0) + own_ns
    for child in children:
        own_times(child, sums)
    return sums


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@given(trees=st.lists(TREES, max_size=5))
def test_self_times_add_up_to_the_covered_time(trees):
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpcgnn.trace.span.perf_counter_ns", clock)
        trace = TraceRecorder.open(None, 0, {})
        covered_ns = sum(play(trace, clock, tree) for tree in trees)
    expected = {}
    for tree in trees:
        own_times(tree, expected)
    totals = trace.totals()
    assert {name: round(total["seconds"] * 1e9) for name, total in totals.items()} == expected
    assert round(sum(trace.seconds_by_phase().values()) * 1e9) == covered_ns
    assert all(total["rows"] * 8 == total["bytes"] for total in totals.values())
    moved = trace.traffic().values()
    assert trace.sent() == tuple(sum(each[kind] for each in moved) for kind in ("rows", "bytes"))
    assert all(total["rows"] == total["count"] for total in totals.values())


def test_file_holds_a_header_and_one_line_a_span(tmp_path, clock):
    path = trace_file(tmp_path, 3)
    assert path == tmp_path / "trace" / "rank00003.jsonl"
    with TraceRecorder.open(path, 3, {"ranks": 4, "exchange": "aware"}) as trace:
        with trace.span("read"):
            clock.now += 5
        trace.set_epoch(2, 1, seed=11)
        peers = np.array([[0, 2, 16], [1, 1, 8]])
        with trace.span("exchange.forward", rows=np.int64(3), peers=peers, layer=1) as span:
            clock.now += 10
            with trace.span("interior"):
                clock.now += 30
            span.add(rows=1, bytes=24)
        trace.flush()
    header, read, interior, exchange = read_lines(path)
    assert (header["schema"], header["rank"], header["ranks"]) == (1, 3, 4)
    assert {"host", "pid", "start_unix_ns", "exchange"} <= header.keys()
    assert (read["epoch"], read["seed"], read["dur_ns"]) == (None, None, 5)
    assert interior["name"] == "interior"
    assert exchange == {
        "t_ns": 5,
        "dur_ns": 40,
        "self_ns": 10,
        "seed": 11,
        "epoch": 2,
        "step": 1,
        "name": "exchange.forward",
        "rows": 4,
        "bytes": 24,
        "layer": 1,
        "peers": [[0, 2, 16], [1, 1, 8]],
    }


def test_a_span_belongs_to_the_epoch_in_which_it_began(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceRecorder.open(path, 0, {"ranks": 1}) as trace:
        trace.set_epoch(0)
        with trace.span("checkpoint"):
            trace.set_epoch(1)
    assert read_lines(path)[1]["epoch"] == 0


def test_nothing_is_written_between_flushes(tmp_path):
    path = tmp_path / "t.jsonl"
    trace = TraceRecorder.open(path, 0, {"ranks": 1})
    for _ in range(100):
        with trace.span("dense"):
            pass
    assert len(read_lines(path)) == 1
    trace.flush()
    assert len(read_lines(path)) == 101
    trace.close()
    trace.close()
    assert trace.totals()["dense"]["count"] == 100


def test_a_span_left_by_an_exception_is_recorded():
    trace = TraceRecorder.open(None, 0, {})
    with pytest.raises(ZeroDivisionError), trace.span("dense"):
        raise ZeroDivisionError
    with trace.span("wait"):
        pass
    assert {name: total["count"] for name, total in trace.totals().items()} == {
        "dense": 1,
        "wait": 1,
    }


def test_append_starts_a_new_header_after_a_torn_line(tmp_path):
    path = tmp_path / "t.jsonl"
    TraceRecorder.open(path, 0, {"ranks": 2}).close()
    with path.open("a") as file:
        file.write('{"t_ns":1,"dur')
    TraceRecorder.open(path, 0, {"ranks": 3}, append=True).close()
    first, torn, second = path.read_text().splitlines()
    assert (json.loads(first)["ranks"], torn, json.loads(second)["ranks"]) == (
        2,
        '{"t_ns":1,"dur',
        3,
    )
    TraceRecorder.open(path, 0, {"ranks": 4}).close()
    assert [record["ranks"] for record in read_lines(path)] == [4]


def test_spans_before_the_file_is_named_follow_its_header(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceRecorder.unattached() as trace:
        with trace.span("read"):
            pass
        trace.flush()
        trace.attach(path, 2, {"ranks": 3})
        with trace.span("dense"):
            pass
    header, *spans = read_lines(path)
    assert (header["rank"], header["ranks"]) == (2, 3)
    assert [span["name"] for span in spans] == ["read", "dense"]


def test_a_trace_that_never_gets_a_file_keeps_its_totals():
    with TraceRecorder.unattached() as trace, trace.span("read"):
        pass
    assert trace.totals()["read"]["count"] == 1


def test_append_to_a_missing_or_empty_file(tmp_path):
    path = tmp_path / "t.jsonl"
    TraceRecorder.open(path, 0, {"ranks": 1}, append=True).close()
    TraceRecorder.open(path, 0, {"ranks": 1}, append=True).close()
    assert len(read_lines(path)) == 2


@pytest.mark.parametrize("name", ["", "sleep", "exchanges", ".forward", "Exchange.forward"])
def test_unknown_phases_are_refused(name):
    with pytest.raises(ValueError, match="unknown phase"):
        TraceRecorder.open(None, 0, {}).span(name)


@pytest.mark.parametrize("name", ["exchange.", "wait..a", "wait.a b", "wait.a.", "wait.a\n"])
def test_malformed_details_are_refused(name):
    with pytest.raises(ValueError, match="a detail consists of"):
        TraceRecorder.open(None, 0, {}).span(name)


def test_all_phases_and_details_are_accepted():
    trace = TraceRecorder.open(None, 0, {})
    for phase in PHASES:
        for name in (phase, f"{phase}.forward", f"{phase}.pre-depends.layer_1"):
            with trace.span(name):
                pass
    assert set(trace.seconds_by_phase()) == PHASES


def test_notes_add_up_on_the_innermost_span(tmp_path):
    path = trace_file(tmp_path, 0)
    with TraceRecorder.open(path, 0, {}) as trace:
        trace.note(arrived=9)
        with trace.span("evaluate"), trace.span("wait", place=3):
            trace.note(arrived=2, place=1)
            trace.note(arrived=5)
    inner, outer = read_lines(path)[1:]
    assert (inner["arrived"], inner["place"]) == (7, 4)
    assert "arrived" not in outer
    with TraceRecorder.off() as off, off.span("wait"):
        off.note(arrived=1)


def test_attributes_cannot_hide_fields():
    with pytest.raises(ValueError, match="hide"):
        TraceRecorder.open(None, 0, {}).span("dense", epoch=3)


def test_off_shares_one_object_and_allocates_nothing():
    trace = TraceRecorder.off()
    first = trace.span("exchange.forward", rows=3, bytes=12)
    assert trace.span("dense") is first
    assert not trace.enabled

    def spans(count):
        for _ in range(count):
            with trace.span("dense"):
                pass

    spans(100)
    before = sys.getallocatedblocks()
    spans(20_000)
    assert sys.getallocatedblocks() - before < 50
    first.add(rows=1)
    trace.flush()
    trace.close()
    assert trace.totals() == {}
    assert trace.seconds_by_phase() == {}


@pytest.mark.parametrize("blocked", ["file above", "directory"])
def test_an_unwritable_path_is_an_input_error(tmp_path, blocked):
    path = tmp_path / "trace" / "rank00000.jsonl"
    if blocked == "file above":
        path.parent.write_text("")
    else:
        path.mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot write the trace .*rank00000.jsonl: .*directory"):
        TraceRecorder.open(path, 0, {"ranks": 1})


def test_a_full_disk_is_reported_once(tmp_path):
    fault = pytest.raises(InputError, match=r"t\.jsonl: File too large; free space there")
    with largest_file(0), fault:
        TraceRecorder.open(tmp_path / "t.jsonl", 0, {"ranks": 1})


@pytest.mark.parametrize("append", [True, False])
def test_a_link_is_not_followed(tmp_path, append):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "t.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match=r"t\.jsonl: it is a link; "):
        TraceRecorder.open(tmp_path / "t.jsonl", 0, {"ranks": 1}, append=append)
    assert (tmp_path / "mine").read_text() == "mine"


def test_recording_goes_on_in_memory_after_a_failed_flush(tmp_path, monkeypatch):
    trace = TraceRecorder.open(tmp_path / "t.jsonl", 0, {"ranks": 1})

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    trace._sink._file.close()
    monkeypatch.setattr(trace._sink, "_file", Full())
    with trace.span("dense"):
        pass
    with pytest.raises(InputError, match="No space left on device"):
        trace.flush()
    with trace, trace.span("dense"):
        pass
    assert trace.totals()["dense"]["count"] == 2


def test_values_that_json_does_not_know_are_refused(tmp_path):
    with ExitStack() as stack:
        trace = TraceRecorder.open(tmp_path / "t.jsonl", 0, {"ranks": 1})
        stack.callback(trace._sink.close)
        with trace.span("dense", what=object()):
            pass
        with pytest.raises(TypeError, match="a trace cannot hold <object"):
            trace.flush()


class FakeDevice:
    """A device that takes a given time for each mark."""

    def __init__(self):
        self.now = 0

    def mark(self):
        return self.now

    def ns_between(self, start, end):
        return end - start


def test_a_device_has_times_of_its_own(tmp_path):
    path, device = tmp_path / "t.jsonl", FakeDevice()
    with TraceRecorder.open(path, 0, {"ranks": 1}) as trace:
        trace.use_clock(device)
        with trace.span("dense.forward"):
            device.now += 5
            with trace.span("interior.forward"):
                device.now += 30
        assert "device_seconds" not in trace.totals()["interior.forward"]
        trace.flush()
        assert trace.totals()["dense.forward"]["device_seconds"] == pytest.approx(5e-9)
    inner, outer = read_lines(path)[1:]
    assert (inner["device_ns"], inner["device_self_ns"]) == (30, 30)
    assert (outer["device_ns"], outer["device_self_ns"]) == (35, 5)


def test_spans_of_another_thread_nest_among_themselves():
    trace = TraceRecorder.open(None, rank=0, header={"ranks": 1})
    inside, outside = threading.Event(), threading.Event()

    def other():
        with trace.span("exchange.forward", rows=3):
            inside.set()
            assert outside.wait(100)
            with trace.span("wait"):
                pass

    thread = threading.Thread(target=other)
    with trace.span("dense"):
        with trace.span("interior"):
            thread.start()
            assert inside.wait(100)
        outside.set()
        thread.join()
    totals = trace.totals()
    assert {name: each["count"] for name, each in totals.items()} == dict.fromkeys(
        ("dense", "exchange.forward", "interior", "wait"), 1
    )
    assert totals["exchange.forward"]["rows"] == 3


def test_spans_that_nobody_asks_for_are_added_up_now_and_then(monkeypatch):
    monkeypatch.setattr("hpcgnn.trace.recorder._MOST_ENDED", 3)
    trace = TraceRecorder.open(None, 0, {})
    for number in range(20):
        with trace.span("exchange.forward", rows=number):
            assert len(trace._ended) <= 4
    assert trace.sent() == (190, 0)
    assert trace.total_of("exchange.forward")["count"] == 20
