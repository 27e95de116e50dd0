"""The page about runs is complete and self-contained, and valid HTML."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from hpcgnn.analysis import report
from hpcgnn.analysis.learning_curves import Look
from hpcgnn.analysis.load import open_runs
from hpcgnn.analysis.subject import read_subject
from hpcgnn.errors import InputError

CAPTIONS = (
    "Loss",
    "Accuracy",
    "Accuracy over seconds, validation",
    "Time of each epoch",
    "Epoch by phase and rank",
    "Communication by rank",
    "Bytes from rank to rank",
    "Bytes by rank",
    "Peak memory of the processes",
    "Rows in memory",
)
SHARED = (
    *("Loss of training", "Accuracy, validation", "Accuracy over seconds, validation"),
    "Epoch by phase",
)
PROBE = """<script>
const faults = [];
addEventListener("error", event => faults.push(String(event.message)));
addEventListener("unhandledrejection", event => faults.push(String(event.reason)));
for (const level of ["error", "warn"]) console[level] = (...words) => faults.push(words.join(" "));
addEventListener("load", () => setTimeout(() => {
  const first = document.querySelector("table.sorts"), names = () => [...first.tBodies[0].rows].map(
    row => row.cells[0].textContent);
  const before = names();
  first.tHead.rows[0].cells[0].firstChild.click();
  const found = {faults, before, after: names(),
    requests: performance.getEntriesByType("resource").map(each => each.name),
    figures: [...document.querySelectorAll("figure")].map(each => {
      const svg = each.querySelector("svg"), box = svg.getBoundingClientRect();
      return [each.querySelector("figcaption").textContent, box.width, box.height,
        svg.querySelectorAll("path, use, image").length]; }),
    overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth};
  const place = document.createElement("pre");
  place.id = "found"; place.textContent = JSON.stringify(found); document.body.append(place);
}, 100));
</script>"""


@pytest.fixture
def make_run(make_writer):
    def make(name, ranks=4, rate=0.01, plan=False):
        writer = make_writer(name)
        writer.session(ranks=ranks, epochs=range(5))
        writer.metrics(timed=True)
        detail = {
            "peak_rss_bytes": 2**28,
            "ghost_bytes_max": 4000,
            "local_nodes": 60,
            "local_edges": 90,
            "rows_sent": 7,
            "bytes_sent": 800,
            "seconds_by_phase": {"dense": 1.5},
            "setup_s": {"read": 0.5, "other": 0.25},
        }
        entry = {"seed": 11, "epochs": 5, "best_epoch": 3, "valid": 0.71, "test": 0.625}
        writer.summary(
            name="planted <&> graph",
            metric="accuracy",
            ranks=ranks,
            replication=1,
            exchange="joint",
            schedule="resident",
            graph={"num_nodes": 60 * ranks},
            seeds=[entry | {"final_train_loss": 0.5}],
            ranks_detail=[{"rank": rank, **detail} for rank in range(ranks)],
        )
        text = f'[model]\nname = "sage"\n[train]\nlearning_rate = {rate}\n[run]\ndir = "{name}"\n'
        (writer.path / "config.toml").write_text(text)
        session = {
            "started": "2026-11-22T08:00:00.000+00:00",
            "wall_s": 12.5,
            "epochs": 5,
            "setup_s": detail["setup_s"],
            "command": ["python", "-m", "hpcgnn.train", "x=<b>"],
            "commit": "0123456789abcdef-dirty",
            "versions": {"torch": "2.13"},
            "hosts": [{"name": "node1", "ranks": ranks, "cores": 2, "processor": "a cpu"}],
            "launcher": "srun",
            "threads": 1,
        }
        (writer.path / "sessions.json").write_text(json.dumps([session]))
        if plan:
            keys = {"ranks": ranks, "replication": 1, "exchange": "joint", "schedule": "resident"}
            planned = {"peak_bytes": 2**28, "ghost_bytes": 4000, "rehearsed_rank": 1}
            planned |= {"bytes_epoch": 1e6, "epoch_s": 0.1}
            (writer.path / "plan.json").write_text(json.dumps([keys | planned]))
        return writer.path

    return make


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out what is inside of figures, most of a page's time."""
    monkeypatch.setattr("hpcgnn.analysis.page.inline_svg", lambda *_: "<svg></svg>")


class Reader(HTMLParser):
    """Collects links, identifiers, tables and the balance of tags."""

    def __init__(self):
        super().__init__()
        self.links, self.ids, self.tables, self.open = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [
            values[key] for key in ("src", "href", "xlink:href", "data") if key in values
        ]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append(0)
        if tag in ("td", "th"):
            self.tables[-1][-1] += 1
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link"):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def write(capsys, *arguments):
    report.main([*map(str, arguments), "--json"])
    facts = json.loads(capsys.readouterr().out)
    return facts, Path(facts["path"]).read_text()


def test_the_page_of_a_run_has_every_figure_and_needs_nothing_else(capsys, make_run):
    path = make_run("run", plan=True)
    facts, text = write(capsys, path)
    assert facts["path"] == str(path / "report.html")
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert re.findall(r"<figcaption>([^<]*)", text) == list(CAPTIONS)
    assert facts["figures"] == text.count("<svg ") == len(CAPTIONS)
    # Links lead into the page; XML namespaces are addresses that no browser requests.
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert not re.search(r"url\((?!#)|@import|<iframe|<object", text)
    assert len(set(reader.ids)) == len(reader.ids)
    for link in reader.links:
        assert not link.startswith("#") or link[1:] in reader.ids
    assert all(len(set(table)) == 1 for table in reader.tables)
    assert "planted &lt;&amp;&gt; graph" in text
    assert "x=&lt;b&gt;" in text
    assert "0123456789ab with changes" in text
    assert "No plan.json" not in text
    # Texts shown on hovering, and text that stays text.
    assert "<title>rank 3, interior:" in text
    assert ">sending rank</text>" in text


@pytest.mark.usefixtures("undrawn")
def test_hidden_is_what_had_arrived(capsys, make_run):
    _, text = write(capsys, make_run("run"))
    # Half arrived; the rest took 2 to 5 ms from the other rank's send, behind 4 ms of computing.
    assert re.search(r"in 4 exchanges of an epoch, 50 % had arrived .* hid 87 % of what", text)
    assert "No plan.json" in text


def test_many_runs_are_told_apart(capsys, make_run, tmp_path):
    paths = [make_run(f"run{number}", 2, rate=0.01 * (number + 1)) for number in range(3)]
    facts, text = write(capsys, *paths, "-o", tmp_path / "all.html")
    assert facts["path"] == str(tmp_path / "all.html")
    differ = text[text.index("How the runs differ") :]
    assert re.search(
        r"train.learning_rate.*?run1</td><td data-name=.*? data-key=\"0.02\">0.02<", differ
    )
    # The others are compared with the best by validation, here the first of three equal runs.
    assert re.search(r"Best by validation: run0 with [0-9.]+ %, 0.00 points ahead of run1.", text)
    assert "Fastest epochs: run0 with 14 ms." in text
    heads = re.findall(r'<button type="button">([^<]*)', text)[:6]
    assert heads == ["run", "valid", "valid \u0394", "test", "epoch s", "epoch ratio"]
    assert "run.dir" not in text[text.index("What all configurations share") :]
    for caption in ("Peak memory, largest over ranks", *SHARED, *CAPTIONS[4:]):
        assert caption in text
    assert text.count("<details") == 4


@pytest.mark.usefixtures("undrawn")
def test_the_smallest_error_is_the_best(make_run, tmp_path):
    paths = [make_run(f"run{number}") for number in range(2)]
    for path, value in zip(paths, (0.5, 0.125), strict=True):
        file = path / "summary.json"
        summary = json.loads(file.read_text())
        summary |= {"metric": "rmse_load"}
        summary["seeds"][0]["valid"] = value
        file.write_text(json.dumps(summary))
    report.main([*map(str, paths), "-o", str(tmp_path / "r.html")])
    text = (tmp_path / "r.html").read_text()
    assert "Best by validation: run1 with 0.125, 0.375 ahead of run0." in text


def test_bounds_of_the_sequential_schedule_are_drawn_for_it_alone(capsys, make_run):
    path = make_run("run")
    assert "2/N" not in write(capsys, path)[1]
    summary = (path / "summary.json").read_text()
    (path / "summary.json").write_text(summary.replace("resident", "sequential"))
    _, text = write(capsys, path)
    assert "Rows in memory, against 2/N and 3/N" in text


@pytest.mark.usefixtures("undrawn")
def test_answers_stand_on_top_and_on_the_terminal(capsys, make_run):
    path = make_run("run")
    facts, text = write(capsys, path)
    told = facts["answers"]["run"]
    assert list(told) == ["learning", "time", "ranks", "next", "command", "causes"]
    top = unescape(text[: text.index("Results</h2>")])
    for key in ("learning", "time", "ranks", "next", "command"):
        assert told[key] in top
    report.main([str(path)])
    told_here = capsys.readouterr().err
    assert told["learning"] in told_here
    assert told["command"] in told_here


def test_of_many_ranks_quantiles_and_the_highest_have_bars(capsys, make_writer):
    writer = make_writer("run")
    writer.session(ranks=64, epochs=range(2))
    writer.metrics(seeds=(11,), epochs=range(2), timed=True)
    (writer.path / "config.toml").write_text('[model]\nname = "sage"\n')
    _, text = write(capsys, writer.path)
    assert "quantiles of 64 ranks, then the 8 highest by number" in text
    phases = text[text.index("Epoch by phase and rank") : text.index("Communication by rank")]
    assert len(re.findall(r"<title>rank \d+, wait:", phases)) == 12
    # One legend, at the bottom.
    assert phases.count(">wait</text>") == 1


def test_equal_runs_have_lines_of_their_own():
    looks = [Look.of_run(place, 12) for place in range(12)]
    assert len({str(look) for look in looks}) == 12
    # A later bar is drawn over an earlier one, whose edges remain visible.
    assert all(later.width < look.width for look, later in pairwise(looks))


def test_a_run_without_trace_summary_or_epochs_has_what_is_left(capsys, make_run):
    path = make_run("run")
    shutil.rmtree(path / "trace")
    facts, text = write(capsys, path)
    assert facts["figures"] == 5
    assert "No trace: seconds below are for the whole run" in text
    (path / "summary.json").unlink()
    _, text = write(capsys, path)
    assert "not ended" in text
    (path / "metrics.jsonl").write_text("")
    facts, _ = write(capsys, path)
    assert facts["figures"] == 0


def test_the_page_stays_below_five_megabytes(capsys, make_run, monkeypatch):
    monkeypatch.setattr(report, "_MOST_BYTES", 100_000)
    _, text = write(capsys, make_run("one"), make_run("two"))
    assert "Left out to keep the page below 5 MB: one, two." in text or "5 MB: two." in text


def test_faults_name_the_file(make_run, tmp_path):
    path = make_run("run")
    with pytest.raises(InputError, match="is not a directory; make it"):
        report.main([str(path), "-o", str(tmp_path / "absent" / "x.html")])
    (path / "plan.json").write_text("[{}]")
    with pytest.raises(InputError, match=r"plan.json\[0\]: ranks is missing"):
        report.main([str(path)])
    (path / "plan.json").unlink()
    (path / "config.toml").unlink()
    with pytest.raises(InputError, match=r"config.toml: "):
        read_subject(open_runs([path])[0])


@pytest.mark.timeout(300)
def test_a_browser_finds_no_fault_at_any_width(capsys, make_run, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium in this environment (Debian: apt-get install chromium)")
    _, text = write(capsys, make_run("b", plan=True), make_run("a"), "-o", tmp_path / "page.html")
    page = tmp_path / "probed.html"
    page.write_text(text.replace("<head>", f"<head>{PROBE}", 1))
    widths = (390, 1280, 1920)
    # Frames are needed, since browsers refuse windows as narrow as a phone.
    frames = "".join(
        f'<iframe src="{page.name}" width="{w}" height="3000"></iframe>' for w in widths
    )
    outer = tmp_path / "frames.html"
    outer.write_text(
        f"<body>{frames}<script>addEventListener('load', () => setTimeout(() => {{"
        "document.body.dataset.found = JSON.stringify([...document.querySelectorAll('iframe')].map("
        "each => JSON.parse(each.contentDocument.querySelector('#found').textContent)));"
        "}, 1000))</script>"
    )
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    more = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [browser, *words, *more, outer.as_uri()], capture_output=True, text=True, check=True
    )
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, done.stderr[-2000:]
    for width, found in zip(widths, json.loads(unescape(match[1])), strict=True):
        assert found["faults"] == []
        assert found["requests"] == []
        assert found["width"] == width
        assert found["overflow"] <= 0
        assert (found["before"], found["after"]) == (["b", "a"], ["a", "b"])
        assert {caption for caption, *_ in found["figures"]} >= {*CAPTIONS[3:], *SHARED}
        for caption, wide, high, marks in found["figures"]:
            assert wide > 250, caption
            assert high > 100, caption
            assert marks > 3, caption
