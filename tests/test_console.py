"""What a file holds cannot give orders to a terminal."""

import pytest

from hpcgnn.console import print_table, report
from hpcgnn.errors import InputError, one_line, printable


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x07b\u202e"
    report(evil)
    print_table(evil, ("name",), [(evil,)])
    shown = "".join(capsys.readouterr()) + one_line(InputError(f"{evil}\n{evil}"))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert shown.count(r"a\x1b[2J\x07b\u202e") == 5


def test_other_text_stays() -> None:
    assert printable("größe 3 \n日本") == "größe 3 \n日本"
