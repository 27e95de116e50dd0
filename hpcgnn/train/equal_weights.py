"""Whether all ranks hold the same weights, as they do unless a machine computes wrongly."""

import platform
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from hpcgnn.comm import Communicator, allreduce_max
from hpcgnn.errors import MachineError
from hpcgnn.spmd import collective
from hpcgnn.storage.checksums import array_crc


@collective
def check_equal_weights(comm: Communicator, tensors: Mapping[str, Tensor], when: str) -> None:
    """Compare a checksum of `tensors` over the ranks.

    Parameters
    ----------
    tensors
        What must be equal on all ranks, by name.
    when
        For the message.

    Raises
    ------
    MachineError
        Naming the ranks that hold something else than most.
    """
    crc = 0
    for _, value in sorted(tensors.items()):
        crc = array_crc(value.detach().cpu().numpy(), crc)
    extremes = np.array([crc, -crc], np.int64)
    allreduce_max(comm, extremes)
    if extremes.sum() == 0:
        return
    found = comm.allgather((crc, platform.node()))
    crcs = [crc for crc, _ in found]
    counts = sorted(((crcs.count(each), each) for each in set(crcs)), reverse=True)
    most, common = counts[0]
    # Where no set of weights has most ranks, nobody knows whose are right.
    wrong = [
        f"rank {rank} on {host}"
        for rank, (crc, host) in enumerate(found)
        if crc != common or most == counts[1][0]
    ]
    others = f"than the other {most} rank(s)" if most > counts[1][0] else "than one another"
    raise MachineError(
        f"{', '.join(wrong)}: other weights {others} after {when}: memory or a processor there has "
        "failed, or processors differ (docs/sharp_bits.md); start the same command again without "
        "that host to go on from the last checkpoint"
    )
