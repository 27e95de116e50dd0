"""Schedules: how much of an exchange is in memory at one time.

*Resident* holds all ghosts of an exchange at once ("domain parallel" in "Sequential Aggregation and
Rematerialization"). *Sequential* is that paper's Algorithm 1: peer by peer, each block of ghosts
freed before the next but `prefetch` comes. A schedule changes no result, only the order of sums.
"""

from dataclasses import dataclass

SCHEDULES = ("resident", "sequential")
"""Names of schedules."""


@dataclass(frozen=True)
class Schedule:
    """The order of an exchange, whose stages may come one after another (`sequential`).

    Then `prefetch` stages are under way while one is multiplied. Raises ValueError when that is
    negative, or given without.
    """

    sequential: bool = False
    prefetch: int = 0

    def __post_init__(self) -> None:
        if self.prefetch < 0 or (self.prefetch > 0 and not self.sequential):
            raise ValueError(f"prefetch {self.prefetch} needs a sequential schedule, and >= 0")

    def window(self, num_stages: int) -> int:
        """Return how many of `num_stages` stages are in memory at one time, at least 1."""
        return max(min(1 + self.prefetch, num_stages) if self.sequential else num_stages, 1)


RESIDENT = Schedule()
"""Everything at once: the default."""


def refuse_to_keep(keep: bool) -> None:
    """Raise ValueError where the rows of a sequential exchange should be kept."""
    if keep:
        raise ValueError("a sequential exchange keeps no ghosts: fetch them again")
