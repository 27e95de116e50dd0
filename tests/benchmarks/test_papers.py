"""The scripts of the papers build all exhibits, and the page has all of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.papers.page import write_section
from hpcgnn.errors import InputError
from tests.conftest import ROOT

SCRIPTS = ("sparsity_aware", "sar", "execution_paths", "graph_sampling", "dense_hardware")
PAGE = ROOT / "benchmarks" / "results" / "papers.md"
SECTION = re.compile(
    r"^<!-- ([a-z_]+)-((?:figure|table)-\d+) -->\n(.*?)(?=^<!-- |\Z)", re.MULTILINE | re.DOTALL
)
COMMAND = r"`python -m benchmarks\.papers\.{} {}`, 20\d\d-\d\d-\d\d, commit [0-9a-f]{{7,}}"


def exhibits(script: str) -> list[str]:
    """Return the labels of a script's functions that `main` builds."""
    text = (ROOT / "benchmarks" / "papers" / f"{script}.py").read_text("utf-8")
    names = re.findall(r"^def ((?:figure|table)_\d+)\(", text, re.MULTILINE)
    return [name.replace("_", "-") for name in names]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_has_every_exhibit(script: str) -> None:
    found = {
        label: body for name, label, body in SECTION.findall(PAGE.read_text()) if name == script
    }
    assert sorted(found) == sorted(exhibits(script))
    for label, body in found.items():
        assert body.startswith(f"### {label.replace('-', ' ').capitalize()}: "), label
        assert re.search(COMMAND.format(script, label), body), label
        head = re.search(r"^\| .*\|$", body, re.MULTILINE)
        assert head is not None
        assert "paper" in head[0].split("|")[2], label
        for picture in re.findall(r"\]\((papers/[^)]+)\)", body):
            assert (PAGE.parent / picture).is_file(), picture


def test_a_section_is_replaced_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- b -->\nold\n\n<!-- c -->\nkept\n")
    write_section(page, "b", "new\n")
    assert page.read_text() == "# A\n\n<!-- b -->\nnew\n\n<!-- c -->\nkept\n"
    write_section(page, "c", "last\n")
    assert page.read_text().endswith("<!-- c -->\nlast\n")
    with pytest.raises(InputError, match="<!-- d -->"):
        write_section(page, "d", "none")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", SCRIPTS)
def test_small_sizes_build_everything(tmp_path: Path, script: str) -> None:
    words = [
        sys.executable,
        "-m",
        f"benchmarks.papers.{script}",
        "--quick",
        "--work",
        str(tmp_path),
    ]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for label in exhibits(script):
        assert f"{label.replace('-', ' ').capitalize()}: " in ended.stdout
