"""Commands in the process of a test, which has imported them all."""

import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from hpcgnn.commands.command import find_command


def run_here(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command as a separate process would; return its status and output."""
    with (
        redirect_stdout(StringIO()) as output,
        redirect_stderr(StringIO()) as errors,
        pytest.raises(SystemExit) as ended,
    ):
        find_command(name).start([str(word) for word in words])
    status = ended.value.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())
