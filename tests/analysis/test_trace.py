"""The timeline of all ranks: valid for viewers, on one clock, messages arrive after their sends."""

import json
from collections import Counter, defaultdict
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.analysis import trace
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.errors import InputError
from tests.support import training

S, MS, US = 10**9, 10**6, 10**3


class Clocks:
    """Writes traces of ranks whose clocks differ and drift apart, from one true timeline."""

    def __init__(self, path, ranks=4, *, apart_ns=400 * MS, drift=2e-6, pings=True):
        self.path, self.ranks, self.pings = path, ranks, pings
        self.apart_ns, self.drift = apart_ns, drift
        (path / "trace").mkdir(parents=True)
        (path / "metrics.jsonl").touch()

    def own(self, rank, true_ns):
        """Return the reading of a rank's clock, since its session's start, at a true time."""
        return round((true_ns * (1 + rank * self.drift)) + rank * (-1) ** rank * self.apart_ns)

    def session(self, start_ns, steps=5, first_epoch=0, append=False):
        for rank in range(self.ranks):
            lines = [
                {"schema": 1, "rank": rank, "ranks": self.ranks, "start_unix_ns": start_ns,
                 "host": f"node{rank}"}
            ]  # fmt: skip
            lines += self.ping(rank, 1 * S)
            for epoch in range(first_epoch, first_epoch + steps):
                lines += self.epoch(rank, epoch, (2 + epoch - first_epoch) * S)
            lines += self.ping(rank, (3 + steps) * S)
            mode = "a" if append else "w"
            with (self.path / "trace" / f"rank{rank:05d}.jsonl").open(mode) as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def span(self, rank, name, start, stop, epoch=None, own_ns=None, **more):
        t_ns, end = self.own(rank, start), self.own(rank, stop)
        own = end - t_ns if own_ns is None else own_ns
        times = {"t_ns": t_ns, "dur_ns": end - t_ns, "self_ns": own}
        place = {"seed": None if epoch is None else 1, "epoch": epoch, "step": 0}
        return {**times, **place, "name": name, "rows": 0, "bytes": 0, **more}

    def ping(self, rank, true_ns):
        if not self.pings:
            return []
        offset = self.own(0, true_ns) - self.own(rank, true_ns)
        more = {"offset_ns": offset, "bound_ns": 10 * US if rank else 0}
        return [self.span(rank, "wait.clock", true_ns, true_ns, **more)]

    def epoch(self, rank, epoch, begin):
        """Ranks send for 10 µs, one after the other; messages take 50 µs."""
        start = begin + rank * 10 * US
        peers = [[peer, 3, 48] for peer in range(self.ranks) if peer != rank]
        sent = {"peers": peers, "rows": 9, "bytes": 144, "ghost_bytes": 100 * rank}
        taken = begin + self.ranks * 10 * US + 60 * US
        return [
            self.span(rank, "exchange.forward", start, start + 5 * US, epoch, **sent),
            self.span(rank, "wait.forward", start + 20 * US, taken, epoch),
            self.span(rank, "dense.forward", start - MS, taken + MS, epoch, own_ns=2 * MS),
            self.span(rank, "optimiser", taken + MS, taken + 2 * MS, epoch, resident_bytes=7),
        ]


def export(capsys, path, *arguments):
    trace.main([*map(str, (path, *arguments)), "--json"])
    facts = json.loads(capsys.readouterr().out)
    return facts, json.loads(Path(facts["path"]).read_text())


def check_format(document):
    """Check that an event is valid for viewers, and that the slices of a track are nested."""
    tracks, flows = defaultdict(list), defaultdict(list)
    for event in document["traceEvents"]:
        assert event["ph"] in "XMCsf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or isinstance(event["ts"], int | float)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda times: (times[0], -times[1]))
        around = []
        for start, stop in slices:
            while around and around[-1] <= start:
                around.pop()
            assert not around or stop <= around[-1] + 1e-3
            around.append(stop)
    for sent, taken in flows.values():
        assert (sent["ph"], taken["ph"], taken["bp"]) == ("s", "f", "e")
        assert sent["pid"] != taken["pid"]
        assert sent["name"] == taken["name"]
        assert sent["cat"] == taken["cat"]
        # Each end belongs to a slice of its process.
        for end in (sent, taken):
            assert any(start <= end["ts"] <= stop for start, stop in tracks[end["pid"]])
    return flows


def test_messages_are_taken_in_after_they_were_sent_whatever_the_clocks_say(capsys, tmp_path):
    clocks = Clocks(tmp_path / "run")
    clocks.session(10**18)
    facts, document = export(capsys, clocks.path)
    flows = check_format(document)
    # 4 ranks, 3 receivers each, 5 epochs.
    assert facts["messages"] == len(flows) == 60
    assert facts["received_before_sent"] == facts["unmatched_messages"] == 0
    assert facts["clock_bound_us"] == 10
    assert facts["largest_offset_ms"] == pytest.approx(1200, rel=0.01)
    for sent, taken in flows.values():
        # The truth is at least 60 µs after the send of the last rank; drift is followed, too.
        assert taken["ts"] - sent["ts"] == pytest.approx(100 - 10 * sent["pid"], abs=0.01)
    assert facts["moved_us"] == 0


def test_when_the_first_message_was_sent_is_told_by_the_clock_of_its_receiver(tmp_path):
    clocks = Clocks(tmp_path / "run")
    clocks.session(10**18)
    found = trace.first_sent(trace.read_sessions(Trace(open_run(clocks.path))))
    for rank in range(4):
        # Rank 0 sends first; it waits for rank 1.
        first = 10 * US if rank == 0 else 0
        for epoch in range(5):
            begin = (2 + epoch) * S
            told = found[rank].pop((0, clocks.own(rank, begin + rank * 10 * US)))
            assert told == pytest.approx(clocks.own(rank, begin + first + 5 * US), abs=20)
        assert not found[rank]


def test_messages_correct_clocks_that_pings_know_badly(capsys, tmp_path):
    clocks = Clocks(tmp_path / "run", drift=0)
    clocks.session(10**18)
    for file in (clocks.path / "trace").glob("*"):
        lines = [line for line in file.read_text().splitlines() if "wait.clock" not in line]
        file.write_text("\n".join(lines) + "\n")
    before = trace.messages_of(trace.read_sessions(Trace(open_run(clocks.path))))[0]
    assert sum(message.taken_ns < message.sent_ns for message in before) > 10
    facts, document = export(capsys, clocks.path)
    check_format(document)
    assert facts["received_before_sent"] == 0
    assert facts["clock_bound_us"] is None
    # The clocks of ranks 2 and 3 differ by 2 seconds.
    assert facts["moved_us"] == pytest.approx(2e6, rel=0.01)


def test_counters_and_names(capsys, tmp_path):
    clocks = Clocks(tmp_path / "run", ranks=2)
    clocks.session(10**18, steps=1)
    _, document = export(capsys, clocks.path, "-o", tmp_path / "out.json")
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0 on node0", "rank 1 on node1"]
    counters = [(e["pid"], e["name"], e["args"]) for e in document["traceEvents"] if e["ph"] == "C"]
    ghosts, resident = "bytes of other ranks' rows", "resident bytes"
    expected = [(rank, ghosts, {"bytes": 100 * rank}) for rank in range(2)]
    expected += [(rank, resident, {"bytes": 7}) for rank in range(2)]
    assert sorted(map(str, counters)) == sorted(map(str, expected))
    assert (tmp_path / "out.json").is_file()


def test_a_resumed_run_shows_both_starts_and_what_was_done_again(capsys, tmp_path):
    clocks = Clocks(tmp_path / "run", ranks=3)
    clocks.session(10**18, steps=4)
    clocks.session(10**18 + 60 * S, steps=3, first_epoch=2, append=True)
    facts, document = export(capsys, clocks.path)
    check_format(document)
    assert (facts["sessions"], facts["messages"]) == (2, 3 * 2 * 7)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    times = sorted(e["ts"] for e in slices if e["pid"] == 2 and e["name"] == "optimiser")
    epochs = Counter(e["args"]["epoch"] for e in slices if e["name"] == "optimiser")
    assert epochs == {0: 3, 1: 3, 2: 6, 3: 6, 4: 3}
    # The second start is a minute after the first.
    assert times[4] - times[0] == pytest.approx(60e6, abs=1)
    assert len(Trace(open_run(clocks.path)).spans(0)) < len([e for e in slices if e["pid"] == 0])


def test_a_message_without_counterpart_is_counted_not_drawn(capsys, tmp_path):
    clocks = Clocks(tmp_path / "run", ranks=2)
    clocks.session(10**18, steps=2)
    file = clocks.path / "trace" / "rank00001.jsonl"
    lines = [line for line in file.read_text().splitlines() if '"epoch": 1' not in line]
    file.write_text("\n".join(lines) + "\n")
    facts, document = export(capsys, clocks.path)
    check_format(document)
    assert (facts["messages"], facts["unmatched_messages"]) == (2, 1)


def test_a_directory_that_is_not_there(tmp_path):
    clocks = Clocks(tmp_path / "run", ranks=1)
    clocks.session(10**18)
    with pytest.raises(InputError, match="is not a directory; make it"):
        trace.main([str(clocks.path), "-o", str(tmp_path / "absent" / "x.json")])


@pytest.mark.parametrize("schedule", ["resident", "sequential"])
def test_of_a_resident_run_every_message_is_drawn(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    schedule: str,
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    settings = ("train.epochs=3", "exchange.method=joint", f"exchange.schedule={schedule}")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    comm.Barrier()
    if comm.rank == 0:
        facts, document = export(capsys, run.path)
        check_format(document)
        opened = Trace(open_run(run.path))
        spans = [span for rank in range(comm.size) for span in opened.spans(rank)]
        sent = sum(rows > 0 for span in spans for _, rows, _ in span.peers or ())
        # Stages do not tell how much they received.
        drawn, left_out = (sent, 0) if schedule == "resident" else (0, sent)
        assert (facts["messages"], facts["unmatched_messages"]) == (drawn, left_out)
        assert facts["received_before_sent"] == 0
        assert (sent > 0) == (comm.size > 1)
        # The memory of every rank, once in each epoch.
        assert sum(span.resident_bytes is not None for span in spans) == 3 * comm.size
