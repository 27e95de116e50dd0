"""Rehearsals in a process of their own, whose memory is that of the rank alone."""

import multiprocessing
import pickle
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.plan.rehearsal import Rehearsal, rehearse, status_bytes
from hpcgnn.plan.share import Share

__all__ = ["in_fresh_process"]


def in_fresh_process(share: Share, epochs: int) -> Rehearsal:
    """Rehearse where nothing but the share is in memory.

    Not collective.

    Raises
    ------
    InputError
        When the process was killed, for instance because memory ran out.
    """
    with tempfile.TemporaryDirectory(prefix="hpcgnn-plan-") as folder:
        path = Path(folder) / "share"
        # Protocol 5 is read without a second copy of the arrays, which would count as memory.
        with path.open("wb") as file:
            pickle.dump(share, file, protocol=5)
        spawn = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
                return pool.submit(_rehearse_file, path, epochs).result()
        except BrokenProcessPool:
            raise InputError(
                f"the rehearsal of block row {share.block} of {share.num_blocks} was killed, as a "
                "process is that runs out of memory: plan more ranks, or on a host with more memory"
            ) from None


def _rehearse_file(path: Path, epochs: int) -> Rehearsal:
    idle = status_bytes("VmRSS")
    with path.open("rb") as file:
        share: Share = pickle.load(file)
    with ProcessGrid.of_this_process() as alone:
        return rehearse(alone, share, epochs, idle)
