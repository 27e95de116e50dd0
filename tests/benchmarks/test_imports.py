"""Benchmarks, the papers' scripts and the examples can be imported: all names they use exist."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    each.relative_to(ROOT).with_suffix("")
    for folder in ("benchmarks", "benchmarks/papers", "benchmarks/debian", "examples")
    for each in sorted((ROOT / folder).glob("*.py"))
    if not each.stem.startswith("__")
]
OPTIONAL = ("torch_geometric", "dgl", "cupy", "mtkahypar")


# torch_geometric, if installed, may call deprecated functions of torch.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    try:
        importlib.import_module(".".join(script.parts))
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"no {error.name} here")
