"""Compare our recipes with a checkout of Spack's packages, without Spack.

    python packaging/spack/check.py SPACK_PACKAGES

Each dependency must be a package there, or beside ours, and have a version in our range.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SPEC = re.compile(r"(?P<name>[a-z][\w-]*)(?:@(?P<low>[\d.]*):?(?P<high>[\d.]*))?")
COMPILERS = ("c", "cxx")


def calls(tree: ast.AST, name: str) -> Iterator[str]:
    """Yield the first argument of each call of `name`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called), args=[ast.Constant(value=value), *_]):
                if called == name:
                    yield str(value)


def key(version: str) -> tuple[int, ...]:
    """Return a version's numbers, for order."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def fault(spec: str, packages: Path) -> str:
    """Return what keeps Spack from finding a version for a dependency, "" where nothing does."""
    found = SPEC.match(spec)
    assert found is not None
    folder = found["name"].replace("-", "_")
    files = (HERE / f"{folder}.py", packages / folder / "package.py")
    file = next((each for each in files if each.is_file()), None)
    if found["name"] in COMPILERS:
        return ""
    if file is None:
        return "no such package"
    versions = list(calls(ast.parse(file.read_text("utf-8")), "version"))
    low, high = key(found["low"] or "0"), key(found["high"] or "")
    fits = [v for v in versions if key(v) >= low and (not high or key(v)[: len(high)] <= high)]
    return "" if fits else f"none of its versions fits, the newest is {max(versions, key=key)}"


def main() -> None:
    """Print a line for each dependency; fail where one has a fault."""
    packages = Path(sys.argv[1], "repos", "spack_repo", "builtin", "packages")
    recipes = [HERE / "package.py", *HERE.glob("py_*.py")]
    trees = [ast.parse(recipe.read_text("utf-8")) for recipe in recipes]
    specs = [spec for tree in trees for spec in calls(tree, "depends_on")]
    faults = {spec: fault(spec, packages) for spec in specs}
    for spec, text in faults.items():
        print(f"{spec}: {text or 'found'}")
    sys.exit(int(any(faults.values())))


if __name__ == "__main__":
    main()
