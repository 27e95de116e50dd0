"""``python -m hpcgnn.completion``: write a script for completing commands in a shell.

The script contains all words, so that completing does not start Python.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping

from hpcgnn.commands.launch import start
from hpcgnn.errors import InputError

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_TAKE_KEYS = ("train", "plan")
_LISTED = re.compile(r"^ {2,4}(?!hpcgnn )([a-z][\w-]*)(?: +[A-Za-z0-9]|$)", re.MULTILINE)
_LISTS = re.compile(r"^usage:.* (COMMAND|NAME RUN|KIND) ", re.MULTILINE)

_SCRIPT = """# Completion of hpcgnn's commands, written by `hpcgnn completion`.
_hpcgnn() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
    # The line ends a word at "=", too.
    [[ $word == = ]] && word=
    [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == = || ${{COMP_WORDS[COMP_CWORD]}} == = ]] && {{
        COMPREPLY=($(compgen -f -- "$word"))
        return
    }}
    case $((COMP_CWORD > 1)):${{COMP_WORDS[1]}} in
        0:*) words='{commands}' ;;
{cases}
        *) words= ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    ((COMP_CWORD == 1)) || COMPREPLY+=($(compgen -f -- "$word"))
    [[ ${{#COMPREPLY[@]}} != 1 || ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace
}}
complete -o filenames -F _hpcgnn hpcgnn
"""


def helps_of(commands: Iterable[str]) -> dict[str, str]:
    """Return the --help texts, 80 columns wide, of commands of one or more words."""
    environment = {**os.environ, "COLUMNS": "80"}
    # All at once, since each imports a lot to print a little.
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "hpcgnn", *name.split(), "--help"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in commands
    }
    texts = {}
    for name, process in processes.items():
        texts[name], fault = process.communicate()
        if process.returncode:
            raise InputError(f"hpcgnn {name} --help fails: {fault.strip()}")
    return texts


def listed_names(text: str) -> list[str]:
    """Return the names that a help lists: commands, kinds, analyses."""
    return _LISTED.findall(text)


def script(shell: str, helps: Mapping[str, str]) -> str:
    """Return the completion script for bash or zsh.

    `helps` are the --help texts of all commands.
    """
    # Imported here, since it would make the help of this command too slow.
    describe_keys = importlib.import_module("hpcgnn.config.file").describe_keys
    keys = [f"{key}=" for key, _, _ in describe_keys()]
    cases = []
    for name, text in helps.items():
        words = sorted(set(_OPTION.findall(text)))
        words += listed_names(text) if _LISTS.search(text) else []
        words += keys if name in _TAKE_KEYS else []
        cases.append(f"        1:{name}) words='{' '.join(words)}' ;;")
    text = _SCRIPT.format(commands=" ".join(helps), cases="\n".join(cases))
    return text if shell == "bash" else f"autoload -U bashcompinit && bashcompinit\n{text}"


def main(options: argparse.Namespace) -> None:
    """Write the script."""
    # The help of `hpcgnn` itself lists the commands.
    commands = listed_names(*helps_of([""]).values())
    sys.stdout.write(script(options.shell, helps_of(commands)))


if __name__ == "__main__":
    start("completion")
