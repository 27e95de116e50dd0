"""The completions of the shells, as bash itself returns them."""

import subprocess
from pathlib import Path

import pytest

from hpcgnn.commands.completion import helps_of, listed_names, script
from hpcgnn.errors import InputError

ROOT = (
    "usage: hpcgnn COMMAND [arguments]\n\n  train      train a model\n  clean      remove files\n"
)
HELPS = {
    "train": "usage: hpcgnn train [-h]\n  --keys [WORD]  keys --a-b",
    "clean": "--json, no-option",
}


def completed(folder: Path, text: str, *words: str) -> list[str]:
    """The words that bash offers for the last word of a line."""
    (folder / "hpcgnn.bash").write_text(text)
    ask = (
        'source hpcgnn.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hpcgnn 2>/dev/null; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", ask, "bash", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("c",), ["clean"]),
        (("train", "--"), ["--a-b", "--keys"]),
        (("train", "run.thr"), ["run.threads="]),
        (("clean", "run.thr"), []),
        (("train", "graph.store", "=", "some"), ["some.h5"]),
        (("train", "graph.store", "="), ["hpcgnn.bash", "some.h5"]),
        (("train", "so"), ["some.h5"]),
        (("nonsense", "--"), []),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], expected: list[str]) -> None:
    (tmp_path / "some.h5").touch()
    assert sorted(completed(tmp_path, script("bash", HELPS), "hpcgnn", *words)) == expected


def test_words_are_those_of_the_helps(tmp_path: Path) -> None:
    assert listed_names(ROOT) == ["train", "clean"]
    helps = helps_of(["", "analyse"])
    commands = listed_names(helps[""])
    assert {"train", "completion", "analyse"} <= set(commands)
    text = script("zsh", {"analyse": helps["analyse"]})
    assert text.startswith("autoload -U bashcompinit")
    offered = completed(tmp_path, text.partition("\n")[2], "hpcgnn", "analyse", "")
    assert {"report", "trace", "--help"} <= set(offered)


def test_help_that_fails_is_named() -> None:
    with pytest.raises(InputError, match=r"hpcgnn nonsense --help fails: .*no command 'nonsense'"):
        helps_of(["nonsense"])
