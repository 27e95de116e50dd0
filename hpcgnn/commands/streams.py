"""The standard streams of a command, of which some may be closed and others lose their reader."""

import io
import os
import sys
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError


class _Output(io.FileIO):
    """A stream that drops what comes after its reader has gone (``| head``), or its disk is full.

    Messages are lost then and the run goes on; answers that are lost are an `InputError`.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError) and self.fileno() != 1:
                # There may be room again.
                return memoryview(data).nbytes
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            raise InputError(
                f"standard output: cannot be written ({error.strerror}); send it where there is "
                "room"
            ) from None


def guard_streams() -> None:
    """Let no stream that is closed, or whose reader has gone, end a command.

    Numbers of closed ones would go to the next files that are opened, and these get what is
    printed. Streams that a caller has put into `sys` stay.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        if old is getattr(sys, f"__{name}__"):
            new = io.TextIOWrapper(
                io.BufferedWriter(_Output(number, "wb", closefd=False)),
                encoding=getattr(old, "encoding", None),
                errors=getattr(old, "errors", "backslashreplace"),
                line_buffering=getattr(old, "line_buffering", True),
            )
            setattr(sys, name, new)
