import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert.programs import ProgramOptions, convert_programs
from hpcgnn.convert.programs import conversion as parts_module
from hpcgnn.errors import InputError
from hpcgnn.storage import InstanceSplit, InstanceStore

COMMAND = find_command("convert")

SOURCE = """
def area_{n}(width, height, scale):
    total = width * height
    if scale:
        total = total * scale
    return total + width
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty modules in eight packages; one is unreadable, one a copy of another."""
    root = tmp_path / "src"
    for package in range(8):
        (root / f"p{package}").mkdir(parents=True)
        for module in range(5):
            text = SOURCE.format(n=f"{package}_{module}")
            (root / f"p{package}" / f"m{module}.py").write_text(text)
    (root / "p0" / "broken.py").write_text("def f(:\n")
    (root / "p1" / "latin.py").write_bytes(b"x = '\xff'\n")
    (root / "p2" / "copy.py").write_text(SOURCE.format(n="3_0"))
    (root / ".hidden").mkdir()
    (root / ".hidden" / "m.py").write_text(SOURCE.format(n="h"))
    return root


def test_splits_keep_files_packages_and_snippets_apart(folder: Path, tmp_path: Path) -> None:
    options = ProgramOptions(unseen_share=0.3, valid_share=0.2, test_share=0.2)
    report = convert_programs([folder], tmp_path / "out.h5", options)
    assert set(report.failures) == {"src/p0/broken.py", "src/p1/latin.py"}
    assert report.repeated == 1
    with InstanceStore.open(tmp_path / "out.h5") as store:
        assert len(store) == 40 == sum(report.splits.values())
        files, sides, packages = store.files, {}, {}
        for row in store.graphs:
            file = files[row["file"]]
            sides.setdefault(file, set()).add(int(row["split"]))
            unseen = row["split"] == InstanceSplit.UNSEEN
            packages.setdefault(file.split("/")[1], set()).add(bool(unseen))
        assert all(len(each) == 1 for each in (*sides.values(), *packages.values()))
        assert {True, False} == set.union(*packages.values())
        assert len(set.union(*sides.values())) == 4
    assert not (tmp_path / "out.h5.parts").exists()


def test_processes_and_a_stop_change_nothing(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    convert_programs([folder], tmp_path / "one.h5")
    convert_programs([folder], tmp_path / "two.h5", processes=2)
    make, made = parts_module._make_part, []

    def stop(*given: object) -> int:
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(given)
        return make(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(parts_module, "_make_part", stop)
    with pytest.raises(KeyboardInterrupt):
        convert_programs([folder], tmp_path / "three.h5")
    assert not (tmp_path / "three.h5").exists()
    left = list((tmp_path / "three.h5.parts").iterdir())
    assert len(left) == 1
    made.clear()

    def resume(files: Sequence[object], *rest: object) -> int:
        made.append(files)
        return make(files, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(parts_module, "_make_part", resume)
    capsys.readouterr()
    convert_programs([folder], tmp_path / "three.h5")
    assert len(made) == 2
    *_, told = (line for line in capsys.readouterr().err.splitlines() if "programs:" in line)
    assert told == "converting programs: 100 % (43 files)"
    stores = [InstanceStore.open(tmp_path / f"{name}.h5") for name in ("one", "two", "three")]
    assert len({store.fingerprint for store in stores}) == 1
    for store in stores:
        store.verify()
        store.__exit__()


def test_command_reports_and_refuses(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.h5")
    COMMAND.call(["programs", str(folder), "-o", out, "--json", "--processes", "1"])
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["num_instances"] == 40
    assert summary["unreadable_files"] == 2
    assert "src/p0/broken.py: SyntaxError" in printed.err
    for words in (["--num-buckets", "65537"], ["--valid-share", "0.9", "--test-share", "0.2"]):
        with pytest.raises(InputError):
            COMMAND.call(["programs", str(folder), "-o", out, *words])
    with pytest.raises(InputError, match="no folder"):
        COMMAND.call(["programs", str(tmp_path / "missing"), "-o", out])
    (tmp_path / "empty" / "src").mkdir(parents=True)
    with pytest.raises(InputError, match="another folder is also called 'src'"):
        COMMAND.call(["programs", str(folder), str(tmp_path / "empty" / "src"), "-o", out])
    with pytest.raises(InputError, match="no Python"):
        COMMAND.call(["programs", str(tmp_path / "empty"), "-o", out])


def test_large_graphs_are_dropped_and_counted(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    out.write_bytes(b"an earlier store")
    with pytest.raises(InputError, match="no hole"):
        convert_programs([folder], out, ProgramOptions(max_nodes=20))
    assert out.read_bytes() == b"an earlier store"


def released(folder: Path, split: str, elements: object) -> Path:
    path = folder / "project" / split / "chunk.0.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump(elements, stream)
    return path


def element(right: int) -> dict[str, object]:
    symbols = [
        {"SymbolDummyNode": 4 + n, "SymbolName": name, "IsCorrect": n == right}
        for n, name in enumerate(("left", "rightSide"))
    ]
    return {
        "filename": "a.cs",
        "ContextGraph": {
            "Edges": {
                "Child": [[0, 1], [0, 2]],
                "NextToken": [[1, 2]],
                "LastUse": [[4, 1], [5, 2]],
            },
            "NodeLabels": {"0": "Block", "1": "left", "2": "rightSide", "3": "far"},
        },
        "SlotDummyNode": 2,
        "SymbolCandidates": symbols,
    }


def test_published_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "release"
    lonely = element(0)
    lonely["SymbolCandidates"] = lonely["SymbolCandidates"][:1]  # type: ignore[index]
    released(folder, "graphs-train", [element(0), element(1), lonely])
    released(folder, "graphs-testonly", [element(1)])
    broken = released(folder, "graphs-valid", [{"ContextGraph": {}}])
    COMMAND.call(["programs", str(folder), "--release", "-o", str(tmp_path / "r.h5"), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert (summary["num_train"], summary["num_unseen"], summary["unreadable_files"]) == (2, 1, 1)
    assert broken.name == "chunk.0.gz"
    with InstanceStore.open(tmp_path / "r.h5") as store:
        batch = store.read(0, 3)
        assert "UsesSubtoken" in store.header.edge_names
        # The node that no candidate receives messages from is gone; types keep their numbers.
        assert batch.graphs["num_nodes"].tolist() == [5, 5, 5]
        assert np.bincount(batch.edge_types).tolist() == [6, 3, 6]


@pytest.mark.parametrize("content", ["[3]", '[{"SymbolCandidates": 1e999}]', "[" * 100_000])
def test_a_release_without_a_readable_graph_is_refused(tmp_path: Path, content: str) -> None:
    path, out = released(tmp_path / "r", "graphs-train", []), tmp_path / "r.h5"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.write(content)
    out.write_bytes(b"an earlier store")
    words = ["programs", str(tmp_path / "r"), "--release", "-o", str(out)]
    with pytest.raises(InputError, match=r"no graph was found in 1 files \(.*Error"):
        COMMAND.call(words)
    assert out.read_bytes() == b"an earlier store"
    for more in (["--granularity", "file"], ["--processes", "2"], ["--valid-share", "0.2"]):
        with pytest.raises(InputError, match=f"{more[0]}: has no effect on --release"):
            COMMAND.call([*words, *more])
