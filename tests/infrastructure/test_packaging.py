"""Recipes require the same packages as pyproject.toml, and those that can run here work."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from hpcgnn import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
NAMES = {"conda": {"torch": "pytorch", "matplotlib": "matplotlib-base"}}
IN_MODULES = {
    "numpy": "SciPy-bundle",
    "scipy": "SciPy-bundle",
    "torch": "PyTorch",
    "pyarrow": "Arrow",
    "safetensors": "Safetensors",
    **dict.fromkeys(("rich", "jinja2", "threadpoolctl"), "Python-bundle-PyPI"),
    "typing-extensions": "Python",
}


def required() -> dict[str, str]:
    """The packages of pyproject.toml and their least versions."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*table["project"]["dependencies"], *table["build-system"]["requires"]]
    return dict(each.split(">=") for each in asked)


def test_spack() -> None:
    text = (PACKAGING / "spack" / "package.py").read_text()
    compile(text, "package.py", "exec")
    found = dict(re.findall(r'depends_on\("(?:py-)?([\w-]+)@([\d.]+):', text))
    assert found.pop("python") == "3.11"
    assert found == required()
    assert f'version("{__version__}")' in text


def test_conda() -> None:
    text = (PACKAGING / "conda" / "meta.yaml").read_text()
    found = dict(re.findall(r"    - ([\w-]+) >=([\d.]+)$", text, re.MULTILINE))
    names = NAMES["conda"]
    assert found == {names.get(name, name): least for name, least in required().items()}
    assert f'version: "{__version__}"' in text


def test_easybuild() -> None:
    [recipe] = (PACKAGING / "easybuild").glob("*.eb")
    values: dict[str, object] = {}
    exec(recipe.read_text(), values)
    assert recipe.name == f"{values['name']}-{values['version']}-foss-2025b.eb"
    assert values["version"] == __version__
    given = values["dependencies"] + values["builddependencies"] + values["exts_list"]  # type: ignore[operator]
    modules = {each[0].lower() for each in given}
    # There, setuptools comes with Python.
    wanted = {IN_MODULES.get(name, name).lower() for name in required()} - {"setuptools"}
    assert wanted <= modules


def test_reframe_checks_are_python() -> None:
    for path in (PACKAGING / "reframe").glob("*.py"):
        compile(path.read_text(), path.name, "exec")


def test_check_says_what_it_could_not_run(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "mktemp", "rm", "sed", "tail", "tclsh"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    words = ["bash", PACKAGING / "check.sh", "conda", "apptainer", "modulefiles", "reframe"]
    environment = {"PATH": str(tools), "LMOD_PKG": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "conda",
        "apptainer",
        "modulefiles",
        "modulefiles",
        "reframe",
    ]
    assert lines[0] == "conda: not run: conda build: no conda-build"
    if not (tools / "tclsh").exists():
        pytest.skip("no tclsh")
    assert lines[2] == "modulefiles: ran: read with stand-ins for the module tool"
