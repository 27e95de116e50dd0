"""A public class name has one meaning in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

import hpcgnn


def test_public_class_names_are_distinct() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(hpcgnn.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path))
    assert len(files) > 500
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
