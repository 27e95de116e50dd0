"""Make a command robust against standard streams that are closed or lose their reader."""

import io
import os
import sys
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError


class _Output(io.FileIO):
    """A stream that drops output once its reader has gone (``| head``) or its disk is full.

    Lost messages do not stop a run; losing standard output to a full disk is an `InputError`.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError) and self.fileno() != 1:
                # Do not redirect it: there may be room later.
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
    """Keep closed streams, and streams whose reader has gone, from ending a command.

    Closed descriptors are opened as /dev/null; otherwise the next opened files would get them, and
    with them the printed text. Streams that a caller has put into `sys` stay.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # This opens the lowest free number, which is `number`.
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
