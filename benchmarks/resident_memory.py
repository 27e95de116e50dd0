"""Train in this process, and print the resident memory after some epochs.

``python -m benchmarks.resident_memory section.key=value ...`` prints a JSON object: epoch -> MiB of
anonymous memory (RssAnon), for epochs 20, 100 and the last. Each is the maximum over the ten epochs
that end there, one of which is evaluated, since memory after single epochs varies.
`benchmarks.training_growth` calls it.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from hpcgnn.comm.mpi import MPI
from hpcgnn.config.file import load_config
from hpcgnn.train.loop import run_training
from hpcgnn.train.open_run import OpenRun
from hpcgnn.train.process import StopRequest
from hpcgnn.train.seed_run import SeedRun

WINDOW = 10


def resident_mib() -> float:
    """Return the resident anonymous memory of this process."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
    assert found is not None, "Linux tells it since 4.5"
    return int(found[1]) / 1024


def main() -> None:
    """Train, and print the resident memory."""
    resident: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        usual = [f"run.dir={folder}", "train.evaluate_every=10", "run.save_predictions=false"]
        config = load_config(None, [*usual, *sys.argv[1:]])
        end_epoch = OpenRun.end_epoch

        def end_and_look(run: OpenRun, trained: SeedRun) -> None:
            end_epoch(run, trained)
            resident.append(resident_mib())

        OpenRun.end_epoch = end_and_look  # type: ignore[method-assign]
        run_training(MPI.COMM_WORLD, config, StopRequest())
    ends = (20, 100, len(resident))
    print(json.dumps({end: max(resident[:end][-WINDOW:]) for end in ends}))


if __name__ == "__main__":
    main()
