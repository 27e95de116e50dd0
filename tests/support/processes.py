"""Processes that a test starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run_group(
    command: Sequence[str], timeout: float, cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with additional variables; if it is late, end all processes that it started.

    It finds this interpreter through jobs/env.sh; its output is text.
    """
    # A separate group: ending only a shell would leave the launcher and its ranks running.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "HPCGNN_VENV": sys.prefix, **settings},
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
