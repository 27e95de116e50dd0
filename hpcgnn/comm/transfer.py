"""Communication under way."""

from collections.abc import Sequence

from mpi4py import MPI

__all__ = ["Transfer"]


class Transfer:
    """Messages that were started; `wait` ends them. Their buffers must not be touched before that.

    Not collective.

    Parameters
    ----------
    requests
        What to wait for.
    row
        The datatype that the messages use, freed at the end.
    """

    def __init__(
        self, requests: Sequence[MPI.Request] = (), row: MPI.Datatype | None = None
    ) -> None:
        self._requests, self._row = list(requests), row

    def wait(self) -> None:
        """Return when this rank has all that was sent to it; waiting again returns at once.

        Neighborwise collective.
        """
        MPI.Request.Waitall(self._requests)
        if self._row is not None:
            self._row.Free()
            self._row = None
