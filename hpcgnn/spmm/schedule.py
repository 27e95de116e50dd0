"""Schedules: how much of an exchange is in memory at one time.

*Resident* holds all ghosts of an exchange at once ("domain parallel" in "Sequential Aggregation and
Rematerialization"). *Sequential* is that paper's Algorithm 1: it goes peer by peer and holds the
ghosts of ``1 + prefetch`` peers. A schedule changes only the order of sums in a result.
"""

from dataclasses import dataclass

SCHEDULES = ("resident", "sequential")
"""Names of schedules."""


@dataclass(frozen=True)
class Schedule:
    """The order of the stages of an exchange: all at once, or one after another (`sequential`).

    If sequential, `prefetch` stages are under way while one is multiplied. Raises ValueError if
    `prefetch` is negative, or positive in a schedule that is not sequential.
    """

    sequential: bool = False
    prefetch: int = 0

    def __post_init__(self) -> None:
        if self.prefetch < 0 or (self.prefetch > 0 and not self.sequential):
            raise ValueError(f"prefetch {self.prefetch}: use 0, or more if sequential")

    def window(self, num_stages: int) -> int:
        """Return how many of `num_stages` stages are in memory at a time, at least 1."""
        return max(min(1 + self.prefetch, num_stages) if self.sequential else num_stages, 1)


RESIDENT = Schedule()
"""All stages at once, the default."""


def refuse_to_keep(keep: bool) -> None:
    """Raise ValueError if the rows of a sequential exchange are to be kept."""
    if keep:
        raise ValueError("a sequential exchange keeps no ghosts: fetch them again")
